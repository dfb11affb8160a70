"""The documentation is true: its code runs, its drawings are what the code draws, its tables name what there is."""

from __future__ import annotations

import ast
import asyncio
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import msgspec
import openai
import pytest

import foveal
from foveal import BadSetting, Limits, Policy
from support import warm_start
from support.doc_pages import (
    PAGES,
    ROOT_PAGES,
    SITE_PAGES,
    anchors,
    code_blocks,
    links,
    page_name,
    page_text,
    pictures,
)
from support.paths import ROOT
from support.provider_stand_in import Answer, StandIn

sys.path.insert(0, str(ROOT / "tools/docs"))

import drawings

BLOCKS = [
    pytest.param(code, id=f"{page_name(page)} {number}")
    for page in PAGES
    for number, code in enumerate(code_blocks(page.read_text(encoding="utf-8")), 1)
]


@pytest.fixture(scope="module")
def given() -> Iterator[dict[str, Any]]:
    """The names that a reader has at hand: a client of either provider."""
    with (
        pytest.MonkeyPatch.context() as patch,
        StandIn(script=lambda number: Answer(text="Because of a bound."), keep_alive=False) as provider,
    ):
        patch.setenv("NO_PROXY", "127.0.0.1")
        with (
            openai.OpenAI(base_url=provider.openai, api_key="none") as client,
            anthropic.Anthropic(base_url=provider.anthropic, api_key="none") as claude,
        ):
            yield {"client": client, "claude": claude, "provider": provider}


@pytest.fixture
def clients(given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """A copy of these names, and what the agents of frameworks make their own clients from."""
    provider: StandIn = given["provider"]
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("OPENAI_BASE_URL", provider.openai)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv("OPENAI_AGENTS_DISABLE_TRACING", "1")
    yield {name: given[name] for name in ("client", "claude")}
    assert provider.faults == []


@pytest.mark.parametrize("code", BLOCKS)
def test_a_code_block_runs_as_it_stands(
    code: str, clients: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    block = compile(code, "block", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if (waiting := eval(block, clients)) is not None:  # noqa: S307
        asyncio.run(waiting)


def test_the_block_of_the_start_page_prints_what_the_page_shows(capsys: pytest.CaptureFixture[str]) -> None:
    page = page_text("index")
    exec(compile(code_blocks(page)[0], "index", "exec"), {})  # noqa: S102
    assert capsys.readouterr().out == code_blocks(page, "text")[0]


def test_the_page_of_large_results_shows_the_marker_of_its_program() -> None:
    page, program = page_text("library/large-results"), {}
    exec(compile(code_blocks(page)[0], "large-results", "exec"), program)  # noqa: S102
    (marker,) = [line for line in program["shown"].splitlines() if line.startswith("[foveal: kept")]
    assert code_blocks(page, "text") == [f"{marker}\n"]


def test_the_blocks_of_the_sessions_page_run_in_their_order_when_pasted(tmp_path: Path) -> None:
    pasted = "\n\n".join([*code_blocks(page_text("library/sessions")), "print('all ran')\n"])
    done = warm_start.run(["-m", "asyncio"], cwd=tmp_path, input=pasted, encoding="utf-8", timeout=120)
    assert done.returncode == 0, done.stderr
    assert "Error" not in done.stderr, done.stderr
    assert "all ran" in done.stdout


@pytest.mark.parametrize("name", drawings.PAGES)
def test_a_drawing_is_what_the_code_draws(name: str) -> None:
    page = (ROOT / name).read_text(encoding="utf-8")
    assert drawings.DRAWING_PATTERN.search(page)
    assert page == drawings.redraw(page), (
        "run .venv/bin/python tools/docs/drawings.py and look at what changed"
    )


def test_the_picture_is_what_the_demo_prints() -> None:
    assert drawings.PICTURE.read_text(encoding="utf-8") == drawings.picture(), (
        "run .venv/bin/python tools/docs/drawings.py"
    )


def test_every_reduction_has_a_drawing() -> None:
    design = (ROOT / "docs/how-it-works/design.md").read_text(encoding="utf-8")
    drawn = {name for _, name, *_ in drawings.DRAWING_PATTERN.findall(design)}
    assert drawn == {"tree", "clip", "mask", "drop", "compact", "revert", "rewind"}


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_a_link_leads_somewhere_inside_the_repository(page: Path) -> None:
    for part in (*links(page), *pictures(page)):
        path, _, anchor = part.text.partition("#")
        target = page.parent / path if path else page
        if not re.match(r"https?://|mailto:", path):
            assert target.exists(), part
            # The build of the site checks its own anchors, which are made in another way than those of GitHub.
            if anchor and page in ROOT_PAGES:
                assert anchor in anchors(target), part


@pytest.mark.parametrize("name", ["AGENTS.md", "CONTRIBUTING.md", "docs/how-it-works/design.md"])
def test_every_file_that_a_page_names_exists(name: str) -> None:
    page = re.sub(r"```text\n.*?```", "", (ROOT / name).read_text(encoding="utf-8"), flags=re.DOTALL)
    named = re.findall(r"(?<![\w./])((?:[\w-]+/)*[\w-]+\.py)\b", page)
    assert named
    places = (ROOT / "src/foveal", ROOT / "tests", ROOT / "docs", ROOT / "tools")
    for path in named:
        assert (ROOT / path).exists() or any(next(place.rglob(path), None) for place in places), path


@pytest.mark.parametrize("page", SITE_PAGES, ids=page_name)
def test_code_in_a_table_has_no_vertical_bar(page: Path) -> None:
    """GitHub needs a backslash before the bar, which the site shows."""
    assert re.findall(r"^\|.*(`[^`\n]*\\\|[^`\n]*`)", page.read_text(encoding="utf-8"), re.MULTILINE) == []


VAGUE = re.compile(r"\b(somebody|nobody|whoever|someone|anybody|everybody|by hand|of ours)\b", re.IGNORECASE)


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_a_page_names_the_component(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    assert [f"{number}: {line}" for number, line in enumerate(lines, 1) if VAGUE.search(line)] == []


# ── settings ─────────────────────────────────────────────────────────────────────────────────────────────


def rows(heading: str) -> dict[str, tuple[str, str]]:
    """A table of the page about policies: for each setting its default and what is allowed."""
    page = (ROOT / "docs/reference/policies.md").read_text(encoding="utf-8")
    section = page.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    found = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \|", section, re.MULTILINE)
    return {name: (default, allowed) for name, default, allowed in found}


def defaults(struct: type[msgspec.Struct]) -> dict[str, str]:
    found = {}
    for field in msgspec.structs.fields(struct):
        if field.default_factory is not msgspec.NODEFAULT:
            found[field.name] = str(field.default_factory())
        else:
            found[field.name] = "–" if field.required else str(field.default) or "–"
    return found


def test_every_setting_is_documented_with_its_default() -> None:
    assert {name: default for name, (default, _) in rows("Settings").items()} == defaults(Policy)
    assert {name: default for name, (default, _) in rows("Limits").items()} == defaults(Limits)


def outside(allowed: str) -> list[object]:
    """Values that a range does not allow."""
    if found := re.fullmatch(r"0 to (\d+)", allowed):
        return [-0.1, int(found[1]) + 0.1]
    if found := re.fullmatch(r"whole, from (\d)", allowed):
        return [int(found[1]) - 1, 1.5]
    return ["no such value"] if allowed.startswith(("economy", "head", "true", "limits")) else []


def test_the_documented_ranges_are_the_real_ones() -> None:
    for name, (_, allowed) in rows("Settings").items():
        for value in outside(allowed):
            with pytest.raises(BadSetting, match=name):
                foveal.policy({"preset": "economy", name: value})
    for name, (_, allowed) in rows("Limits").items():
        for value in outside(allowed):
            with pytest.raises(BadSetting, match=name):
                Limits(**{name: value})


def test_every_public_error_is_explained() -> None:
    page = (ROOT / "docs/reference/errors.md").read_text(encoding="utf-8")
    errors = [name for name in foveal.__all__ if _is_error(getattr(foveal, name))]
    assert [name for name in errors if name not in page] == []


def _is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Exception)


def test_the_changelog_begins_with_this_version() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(r"^## (\S+)", changes, re.MULTILINE)[1] == foveal.__version__  # type: ignore[index]
