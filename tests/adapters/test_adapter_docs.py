"""The pages about frameworks name the tested versions, and their code is that of the examples, which run.

1. The overview has a row for every adapter module and for every framework with an environment of its own. Each row
   leads to a page, which names the same version.
2. `python` blocks run in `tests/docs`; `py` blocks are parts of the page's own example in `examples/frameworks`.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from support.doc_pages import code_blocks, page_text
from support.framework_environments import (
    ISOLATED,
    PACKAGES,
    framework_python,
    framework_variables,
)
from support.gemini_stand_in import GeminiStandIn
from support.paths import ROOT
from support.provider_stand_in import Answer

EXAMPLES = ROOT / "examples" / "frameworks"
ADDED = r"(?:`adapters\.(\w+)\.\w+`|\[transport\]\(transport\.md\))"
ROW = re.compile(rf"^\| \[[^]]+\]\(([\w-]+)\.md\) \| {ADDED} \| (\S+) (\S+) \|$", re.MULTILINE)
"""A row of the overview: the page, the adapter module if there is one, the package and its version."""
OTHER_PAGES = {"index", "transport", "own-adapter"}
ANSWER = "Because of a bound."
ENDS_WITH_CALL = {"smolagents": "final_answer", "dspy": "submit"}
"""The tool with which an agent of a framework gives its answer, if a plain text is none."""


class FrameworkRow(NamedTuple):
    """A framework in the table of the overview."""

    page: str
    module: str
    """Its adapter; "" for one that uses a transport."""
    package: str
    version: str

    @property
    def name(self) -> str:
        """The name of its environment and of its example."""
        return self.page.replace("-", "_")


ROWS = [FrameworkRow(*row) for row in ROW.findall(page_text("frameworks/index"))]
by_page = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.page)


def pins(path: Path) -> dict[str, str]:
    return dict(re.findall(r"^([\w.-]+)==(\S+)", path.read_text(encoding="utf-8"), re.MULTILINE))


def pinned_version(row: FrameworkRow) -> str:
    """Return the version in the framework's own environment, if it has one."""
    own = ISOLATED / "constraints" / f"{row.name}.txt"
    return pins(own if own.exists() else ROOT / "constraints.txt").get(row.package, "not pinned")


def test_every_adapter_and_every_environment_is_in_the_table() -> None:
    modules = (ROOT / "src" / "foveal" / "adapters").glob("*.py")
    # An adapter takes the settings that all adapters share.
    adapters = {
        path.stem for path in modules if "import AdapterArguments" in path.read_text(encoding="utf-8")
    }
    assert {row.module for row in ROWS if row.module} == adapters
    assert {row.name for row in ROWS} >= set(PACKAGES)


def test_every_page_is_in_the_table() -> None:
    pages = {path.stem for path in (ROOT / "docs/frameworks").glob("*.md")}
    assert {row.page for row in ROWS} == pages - OTHER_PAGES


@by_page
def test_the_table_and_the_page_have_the_version_of_the_tests(row: FrameworkRow) -> None:
    assert row.version == pinned_version(row)
    named = re.findall(r"Tested\s+with\s+(\S+)\s+([\w.]*\w)", page_text(f"frameworks/{row.page}"))
    assert named == [(row.package, row.version)]


@by_page
def test_a_page_answers_the_same_questions_in_the_same_order(row: FrameworkRow) -> None:
    page = page_text(f"frameworks/{row.page}")
    assert re.search(r"^# .+\n\n[A-Z]", page)
    assert "[overview](index.md)" in page
    expected = (
        "```sh\npip install . ",
        "report()",
        "## Which conversation\n",
        "own compaction\n",
        "## Measured\n",
    )
    places = [page.find(part) for part in expected]
    assert places == sorted(places)
    assert -1 not in places


@by_page
def test_code_for_another_environment_is_that_of_its_example(row: FrameworkRow) -> None:
    page = page_text(f"frameworks/{row.page}")
    blocks = code_blocks(page, "py")
    assert bool(blocks) == (row.name in PACKAGES)
    assert blocks or code_blocks(page, "python")
    example = EXAMPLES / f"with_{row.name}.py"
    text = example.read_text(encoding="utf-8") if blocks else ""
    assert [block for block in blocks if block not in text] == []


@pytest.mark.soak
@pytest.mark.parametrize("name", sorted(PACKAGES))
def test_an_example_asks_its_question(name: str, tmp_path: Path) -> None:
    tool = ENDS_WITH_CALL.get(name)
    calls = ((tool, {"answer": ANSWER}),) if tool else ()
    with GeminiStandIn(script=lambda number: Answer(text=ANSWER, calls=calls)) as provider:
        addresses = dict.fromkeys(("OPENAI_BASE_URL", "OPENAI_API_BASE"), provider.openai)
        keys = dict.fromkeys(("OPENAI_API_KEY", "GOOGLE_API_KEY"), "none")
        done = subprocess.run(
            [framework_python(name), EXAMPLES / f"with_{name}.py"],
            cwd=tmp_path,
            env={
                **framework_variables(name),
                **addresses,
                "GOOGLE_GEMINI_BASE_URL": provider.gemini,
                **keys,
            },
            capture_output=True,
            text=True,
            check=False,
        )
    assert (done.returncode, provider.faults) == (0, []), done.stderr
    assert ANSWER in done.stdout
    assert "· policy economy" in done.stdout, "the example prints no report"
