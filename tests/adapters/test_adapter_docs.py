"""The page about adapters names the tested versions, and its code is that of the examples, which run."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from support.framework_environments import ISOLATED, PACKAGES, framework_python, framework_variables
from support.gemini_stand_in import GeminiStandIn
from support.paths import ROOT
from support.provider_stand_in import Answer

PAGE = (ROOT / "docs/frameworks/index.md").read_text(encoding="utf-8")
EXAMPLES = ROOT / "examples" / "frameworks"
ROW = re.compile(
    r"^\| [^|]+ \| (?:`adapters\.(\w+)\.|\[transport\]\(\S+/with_(\w+)\.py\))[^|]* \| [^|]+ \| (\S+) (\S+) \|",
    re.MULTILINE,
)
"""A framework in the table: its module or example, its package and the version."""
ANSWER = "Because of a bound."
AGENTS = {"crewai", "google_adk", "litellm", "smolagents", "strands"}
"""Examples that ask a question when they are run; the tests of the others load them."""


def pins(path: Path) -> dict[str, str]:
    return dict(re.findall(r"^([\w.-]+)==(\S+)", path.read_text(encoding="utf-8"), re.MULTILINE))


def pinned_version(name: str, package: str) -> str:
    """Return the version in the framework's own environment, if it has one."""
    files = (ISOLATED / "constraints" / f"{environment}.txt" for environment in (package, name))
    own = next((path for path in files if path.exists()), ROOT / "constraints.txt")
    return pins(own).get(package, "not pinned")


def test_the_table_has_the_versions_of_the_tests() -> None:
    rows = [(module or example, package, version) for module, example, package, version in ROW.findall(PAGE)]
    assert rows == [(name, package, pinned_version(name, package)) for name, package, _ in rows]
    assert {name for row in rows for name in row[:2]} >= set(PACKAGES)


def test_every_adapter_is_in_the_table() -> None:
    modules = (ROOT / "src" / "foveal" / "adapters").glob("*.py")
    adapters = {
        path.stem for path in modules if "    from foveal.adapters." in path.read_text(encoding="utf-8")
    }
    assert {module for module, *_ in ROW.findall(PAGE) if module} == adapters


def test_code_for_other_environments_is_that_of_the_examples() -> None:
    blocks = re.findall(r"^```py\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    examples = [path.read_text(encoding="utf-8") for path in EXAMPLES.glob("*.py")]
    assert blocks
    assert [block for block in blocks if not any(block in example for example in examples)] == []


@pytest.mark.skipif(not os.environ.get("FOVEAL_SOAK"), reason="makes environments; FOVEAL_SOAK=1 runs it")
@pytest.mark.parametrize("name", sorted(AGENTS & set(PACKAGES)))
def test_an_example_asks_its_question(name: str) -> None:
    calls = (("final_answer", {"answer": ANSWER}),) if name == "smolagents" else ()
    with GeminiStandIn(script=lambda number: Answer(text=ANSWER, calls=calls)) as provider:
        addresses = {"OPENAI_BASE_URL": provider.openai, "GOOGLE_GEMINI_BASE_URL": provider.gemini}
        keys = dict.fromkeys(("OPENAI_API_KEY", "GOOGLE_API_KEY"), "none")
        done = subprocess.run(
            [framework_python(name), EXAMPLES / f"with_{name}.py"],
            env={**framework_variables(name), **addresses, **keys},
            capture_output=True,
            text=True,
            check=False,
        )
    assert (done.returncode, provider.faults) == (0, []), done.stderr
    assert ANSWER in done.stdout
