"""The reference is complete and true: it is made from the docstrings, and their examples run.

1. A page of the reference names an object with `::: path`; the site shows its docstring and those of its members.
2. Every public name is on exactly one page, and in the tables of the first page.
3. Every parameter has a line in `Args`, every field a docstring, every class and function an example.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, Final, NamedTuple

import anthropic
import griffe
import openai
import pytest
import yaml

import foveal
from foveal import adapters, errors, testing, transcripts
from support.doc_pages import DOCS, code_blocks, page_text
from support.docstring_examples import DocstringExample, docstring_examples
from support.paths import ROOT
from support.provider_stand_in import Answer, StandIn

REFERENCE: Final = DOCS / "reference"
DIRECTIVE: Final = re.compile(r"^::: (\S+)\n((?: {4}.*\n)*)", re.MULTILINE)
MODULES: Final = (*foveal._SUBMODULES.values(), "foveal.replay")  # type: ignore[attr-defined]
"""Modules whose names are public. The modules below `foveal.adapters` are those of frameworks."""
UNREAD: Final = {"agent", "cli", "config", "inspector", "mcp_server", "providers", "server", "web"}
"""Packages without public names; reading them takes as long as reading the rest."""
MAX_FIRST_SENTENCE_WORDS: Final = 15

Documented = griffe.Module | griffe.Class | griffe.Function | griffe.Attribute


class Shown(NamedTuple):
    """An object that a page shows."""

    page: str
    path: str
    """The path in the directive."""
    object: Documented
    options: dict[str, Any]


@cache
def package() -> griffe.Module:
    loader = griffe.GriffeLoader(
        search_paths=[str(ROOT / "src")], docstring_parser="google", docstring_options={"warnings": False}
    )
    all_submodules = loader.finder.submodules
    loader.finder.submodules = lambda module: [  # type: ignore[method-assign]
        found for found in all_submodules(module) if found[0][0] not in UNREAD
    ]
    loaded = loader.load("foveal")
    loader.resolve_aliases(implicit=False, external=False)
    assert isinstance(loaded, griffe.Module)
    return loaded


def find(path: str) -> Documented:
    found = package()[path.removeprefix("foveal.")]
    return found.final_target if found.is_alias else found  # type: ignore[return-value]


@cache
def shown() -> tuple[Shown, ...]:
    found = []
    for page in sorted(REFERENCE.glob("*.md")):
        for path, options in DIRECTIVE.findall(f"{page.read_text(encoding='utf-8')}\n"):
            given = yaml.safe_load(options) or {}
            found.append(Shown(page.stem, path, find(path), given.get("options", {})))
    return tuple(found)


def members(item: Shown) -> Iterator[Documented]:
    """Yield the public members of a class that its page shows."""
    chosen = item.options.get("members")
    hidden = [rule.removeprefix("!") for rule in item.options.get("filters", ())]
    if chosen is False or not item.object.is_class:
        return
    for name, member in item.object.members.items():
        is_chosen = name in chosen if chosen else not any(re.search(rule, name) for rule in hidden)
        if is_chosen and not name.startswith("_") and not member.is_alias:
            yield member  # type: ignore[misc]


def everything() -> Iterator[Documented]:
    """Yield every object of the reference and its members."""
    for item in shown():
        yield item.object
        yield from members(item)


def sections(item: Documented, kind: str) -> list[Any]:
    assert item.docstring is not None, item.path
    return [section for section in item.docstring.parsed if section.kind.value == kind]


# ── Names ────────────────────────────────────────────────────────────────────────────────────────────────


def names_of(module: griffe.Module) -> Iterator[str]:
    """Yield the public names of a module: those of `__all__`, or else those that it defines."""
    if module.exports is not None:
        yield from map(str, module.exports)
        return
    for name, member in module.members.items():
        is_own = not member.is_alias or (
            module.is_init_module and member.target_path.startswith(f"{module.path}.")  # type: ignore[union-attr]
        )
        if is_own and not name.startswith("_") and not member.is_module:
            yield name


def public_paths() -> Iterator[str]:
    yield from (f"foveal.{name}" for name in (*foveal.__all__, "clip"))
    for path in MODULES:
        module = find(path)
        assert isinstance(module, griffe.Module)
        for name in names_of(module):
            inner = module.members[name]
            # `foveal.transcripts.read` is a function in the module of the same name.
            yield f"{path}.{name}.{name}" if inner.is_module else f"{path}.{name}"
    for info in iter_modules(adapters.__path__):
        module = find(f"foveal.adapters.{info.name}")
        assert isinstance(module, griffe.Module)
        for name in names_of(module):
            if module.exports is not None or name.startswith("Foveal"):
                yield f"{module.path}.{name}"


def test_every_public_name_is_on_exactly_one_page() -> None:
    on_pages = Counter(item.object.path for item in shown())
    assert [path for path, times in on_pages.items() if times > 1] == []
    missing = {path for path in public_paths() if find(path).path not in on_pages}
    assert sorted(missing) == []


def index_rows() -> dict[str, list[str]]:
    """Return for each page of the reference the rows of its table on the first page."""
    rows: dict[str, list[str]] = {}
    for item in shown():
        name = item.path.rpartition(".")[2]
        assert item.object.docstring is not None, item.path
        about = first_sentence(item.object.docstring.value)
        rows.setdefault(item.page, []).append(f"| [`{name}`]({item.page}.md#{item.path}) | {about} |")
    return rows


def test_the_first_page_lists_every_name() -> None:
    page = page_text("reference/index")
    for name, rows in index_rows().items():
        table = "\n".join(rows)
        assert table in page, f"the table of {name}.md should be\n{table}"
    listed = re.findall(r"^\| \[`\w+`\]\(([\w-]+)\.md#", page, re.MULTILINE)
    assert len(listed) == len(shown())


# ── Docstrings ───────────────────────────────────────────────────────────────────────────────────────────


def first_sentence(text: str) -> str:
    paragraph = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<=[.])\s(?=[A-Z`])", paragraph)[0]


def is_exception(item: Documented) -> bool:
    return isinstance(item, griffe.Class) and any(
        str(base).rpartition(".")[2] in {*vars(errors), *vars(builtins)} for base in item.bases
    )


def signature(item: Documented) -> set[str]:
    """Return the parameters of a function, or of the constructor of a class, as `Args` writes them."""
    if isinstance(item, griffe.Class):
        if is_exception(item) or "__init__" not in item.members:
            return set()
    elif not isinstance(item, griffe.Function):
        return set()
    prefixes = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}
    return {
        f"{prefixes.get(parameter.kind, '')}{parameter.name}"  # type: ignore[arg-type]
        for parameter in item.parameters
        if parameter.name not in ("self", "cls")
    }


def test_everything_shown_has_a_docstring() -> None:
    assert [item.path for item in everything() if item.docstring is None] == []


def test_a_docstring_begins_with_a_short_sentence() -> None:
    firsts = {item.path: first_sentence(item.docstring.value) for item in everything() if item.docstring}
    assert {
        path: first
        for path, first in firsts.items()
        if not first.endswith(".") or len(first.split()) > MAX_FIRST_SENTENCE_WORDS
        if isinstance(find(path), griffe.Class | griffe.Function)
    } == {}


def test_every_parameter_is_explained_and_every_explained_one_exists() -> None:
    for item in everything():
        listed = {part.name for section in sections(item, "parameters") for part in section.value}
        assert listed == signature(item), item.path


def test_every_named_exception_exists() -> None:
    known = {*vars(errors), *vars(builtins), *dir(testing), *transcripts.__all__}
    for item in everything():
        named = {str(part.annotation) for section in sections(item, "raises") for part in section.value}
        assert named <= known, item.path


def test_every_public_class_and_function_has_an_example() -> None:
    for item in shown():
        if item.object.is_class or item.object.is_function:
            assert item.object.docstring is not None
            assert re.search(r"^ *```py", item.object.docstring.value, re.MULTILINE), item.path


def test_an_example_for_a_framework_that_may_be_missing_names_what_exists() -> None:
    """Such blocks have the language `py`. The examples of the frameworks run in environments of their own."""
    blocks = [
        code for item in everything() if item.docstring for code in code_blocks(item.docstring.value, "py")
    ]
    assert len(blocks) > 5
    imports = [
        node for code in blocks for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom)
    ]
    own = [
        (node.module, alias.name) for node in imports for alias in node.names if "foveal" in str(node.module)
    ]
    assert [find(f"{module}.{name}").name for module, name in own] == [name for _, name in own]


# ── Examples ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def clients() -> Iterator[dict[str, Any]]:
    """The names that a reader has at hand: a client of either provider."""
    with (
        pytest.MonkeyPatch.context() as patch,
        StandIn(script=lambda number: Answer(text="Because of a bound."), keep_alive=False) as provider,
    ):
        patch.setenv("NO_PROXY", "127.0.0.1")
        # The agents of frameworks make their own clients.
        patch.setenv("OPENAI_BASE_URL", provider.openai)
        patch.setenv("OPENAI_API_KEY", "none")
        patch.setenv("OPENAI_AGENTS_DISABLE_TRACING", "1")
        with (
            openai.OpenAI(base_url=provider.openai, api_key="none") as client,
            anthropic.Anthropic(base_url=provider.anthropic, api_key="none") as claude,
        ):
            yield {"client": client, "claude": claude}
        assert provider.faults == []


@pytest.mark.parametrize("example", docstring_examples(), ids=lambda example: example.id)
def test_an_example_of_a_docstring_runs(
    example: DocstringExample, clients: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    block = compile(example.code, example.id, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if (waiting := eval(block, {**clients})) is not None:  # noqa: S307
        asyncio.run(waiting)
