"""Which tests `make test-quick` and `make soak` run.

`make soak` runs those that do more in it: more examples of a property, more crashes, all frameworks and clients.
A file that asks for the variable itself runs as a whole, of the others the properties and what is marked `soak`.

`make test-quick` runs those that start no server, browser, database or framework. A file is quick if all that
it imports is in `INSIDE`: itself, through modules of `support`, through the `conftest.py` of its folder, and
through the shared fixtures that its tests take. So nothing has to be marked, and a file that begins to use a
browser is no longer quick.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).parents[1]

INSIDE: Final = {
    "anthropic", "anyio", "apsw", "bench", "botocore", "command_reference", "core", "cronsim", "drawings",
    "foveal", "griffe", "httpx", "httpx2", "hypothesis", "make", "markdown_it", "msgspec", "openai",
    "pydantic", "pytest", "savings_picture", "starlette", "support", "tools", "tree_sitter", "tree_sitter_bash",
    "yaml",
}  # fmt: skip
"""Packages and scripts that a quick file may import, beside the standard library."""
OUTSIDE: Final = {
    "ag2", "agent_framework", "agents", "aiohttp", "autogen_agentchat", "chat_captures", "crewai",
    "dbos", "deepagents", "discord", "dspy", "google", "haystack", "http", "inspector_pictures", "langchain",
    "langchain_core", "langchain_openai", "langgraph", "litellm", "llama_index", "mcp", "mcp_types",
    "multiprocessing", "observed", "opentelemetry", "playwright", "prometheus_client", "prompt_toolkit",
    "psycopg", "pty", "pydantic_ai", "pyte", "requests", "smolagents", "socket", "strands", "telegram",
    "uvicorn", "xllamacpp",
}  # fmt: skip
"""Packages of servers, browsers, databases, terminals and frameworks, and what other programs are reached with."""

_IMPORT: Final = re.compile(
    r"^[ \t]*(?:from ([\w.]+) import (\([^)]*\)|.*)|import (\w+(?:, \w+)*))", re.MULTILINE
)


def is_quick(path: Path) -> bool:
    """Return whether `make test-quick` runs a file of tests."""
    return packages(path) <= INSIDE | sys.stdlib_module_names - OUTSIDE


def does_more_in_soak(path: Path) -> bool:
    """Return whether `make soak` runs a file of tests: it has properties or marked tests, or it asks for the
    variable."""
    return any(
        re.search(r"FOVEAL_SOAK|mark\.soak|@given\(|RuleBasedStateMachine", text)
        for text in (file.read_text("utf-8") for file in _reached(frozenset({path, *_conftests(path)})))
    )


@cache
def asks_for_soak(path: Path) -> bool:
    """Return whether tests of a file that are no properties do more in `make soak`."""
    return (
        re.search(r"FOVEAL_SOAK|\bSOAK\b|some_cases|adapter_runs|started_worker", path.read_text("utf-8"))
        is not None
    )


@cache
def packages(path: Path) -> frozenset[str]:
    """Return the packages that a file uses."""
    files = _reached(frozenset({path, *_conftests(path), *_fixture_modules(path)}))
    names = {name for file in files for name in _imported(file.read_text("utf-8"))}
    return frozenset(name.partition(".")[0] for name in names)


def _reached(files: frozenset[Path]) -> set[Path]:
    """Return files and the modules of `support` that they import, directly or not."""
    seen: set[Path] = set()
    waiting = set(files)
    while waiting:
        file = waiting.pop()
        seen.add(file)
        waiting |= _support_files(_imported(file.read_text("utf-8"))) - seen
    return seen


def _imported(text: str) -> frozenset[str]:
    """Return the names after `import`; of `from a import b` both `a` and `a.b`. Programs in strings count too."""
    found: set[str] = set()
    for package, names, plain in _IMPORT.findall(text):
        inner = {f"{package}.{name}" for name in re.findall(r"\w+", names)}
        found |= set(plain.split(", ")) if plain else {package, *inner}
    return frozenset(found)


def _support_files(names: frozenset[str]) -> set[Path]:
    files = {
        TESTS.joinpath(*name.split(".")).with_suffix(".py") for name in names if name.startswith("support.")
    }
    return {file for file in files if file.exists()}


def _conftests(path: Path) -> set[Path]:
    """Return the `conftest.py` of the folders between the tests' own and the file."""
    folders = [folder for folder in path.parents if TESTS in folder.parents]
    return {folder / "conftest.py" for folder in folders if (folder / "conftest.py").exists()}


def _fixture_modules(path: Path) -> set[Path]:
    """Return the modules that the fixtures of `tests/conftest.py` import for the tests of a file."""
    taken = set(re.findall(r"[(,]\s*(\w+): ", path.read_text("utf-8")))
    return {file for name, files in _shared_fixtures().items() if name in taken for file in files}


@cache
def _shared_fixtures() -> dict[str, set[Path]]:
    """Return the modules that each fixture of `tests/conftest.py` imports."""
    parts = re.split(r"^@pytest\.fixture.*$", (TESTS / "conftest.py").read_text("utf-8"), flags=re.MULTILINE)[
        1:
    ]
    return {re.findall(r"def (\w+)", part)[0]: _support_files(_imported(part)) for part in parts}
