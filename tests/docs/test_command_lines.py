"""Every command in the documentation exists: programs, arguments, make targets, extras, slash commands.

1. Each command of an `sh` block, and each `foveal …` between backquotes, is parsed by the parser of the program and
   not executed. Words in capitals stand for values of the reader, and `…` for further arguments.
2. Between backquotes, a command may lack its values, as in `foveal show` and `foveal serve --database`.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NoReturn
from unittest.mock import patch

import pytest
import tree_sitter_bash
from bench.__main__ import GROUPS, arguments
from tree_sitter import Language, Node, Parser

from foveal.agent.terminal.commands import SLASH_COMMANDS_BY_NAME
from foveal.cli.__main__ import main
from foveal.server.gateways.texts import BOT_COMMANDS
from support.doc_pages import PAGES, fenced_blocks, inline_code, page_name
from support.framework_environments import PACKAGES
from support.paths import ROOT

sys.path.insert(0, str(ROOT / "tools/docs"))

import command_reference

PROGRAMS: Final = {
    "foveal", "make", "pip", "python", "python3", ".venv/bin/python", ".venv/bin/ruff", "git", "curl", "cd",
    "chmod", "cp", "date", "export", "mkdir", "npm", "psql", "rm", "source", "sqlite3", "sudo", "umask",
    "opentelemetry-instrument", "claude", "codex", "aider", "opencode", "podman",
}  # fmt: skip
"""Programs that a reader of the documentation runs."""
PATHS: Final = {
    "/api", "/healthz", "/inspect", "/messages", "/metrics", "/responses", "/v1",
    "/etc", "/opt", "/proc", "/run", "/tmp", "/usr", "/var",
}  # fmt: skip
"""Paths of the server and of Linux that look like slash commands."""
EXTRAS: Final = re.compile(r"(?:\.|foveal)\[([\w,]+)\]")
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TARGETS: Final = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
FOREIGN: Final = re.compile(r"\b(pypi\.org|npmjs\.com|(docker|podman) (run|pull|build|compose))\b")
MAX_GAPS: Final = 6
"""Values that a command between backquotes may lack."""


class Refused(Exception):
    """The parser does not accept a command line."""


@cache
def parsers() -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of `foveal` ("") and of its commands. They accept no beginnings of options."""
    root = command_reference.parser_of(main)
    found = {command.name: command.parser for command in command_reference.commands(root)}
    for parser in (root, *found.values()):
        parser.allow_abbrev = False
    return {"": root, **found}


def parse(words: list[str]) -> None:
    """Parse the words after `foveal`; raises `Refused`."""

    def refuse(parser: argparse.ArgumentParser, message: str) -> NoReturn:
        raise Refused(message)

    is_chat = not words or (words[0].startswith("-") and words[0] not in ("-h", "--help", "--version"))
    with patch.object(argparse.ArgumentParser, "error", refuse):
        try:
            args, rest = parsers()[""].parse_known_args(["chat", *words] if is_chat else words)
            if args.command == "demo":
                parsers()["demo"].parse_args(rest)
            elif rest:
                raise Refused(f"unrecognized arguments: {' '.join(rest)}")
        except SystemExit:  # of `--help` and `--version`; all else is refused
            return


def parse_with_placeholders(words: list[str], *, has_gaps: bool = False) -> None:
    """Parse words in which capitals stand for a value; with `has_gaps`, values may be missing. Raises `Refused`."""
    words = [word for word in words if word != "…"]
    for _ in range(MAX_GAPS):
        try:
            return parse(words)
        except Refused as problem:
            changed = _with_value(words, str(problem), has_gaps=has_gaps)
            if changed == words:
                raise
            words = changed
    raise Refused(" ".join(words))


def _with_value(words: list[str], problem: str, *, has_gaps: bool) -> list[str]:
    """Return the words with a value in the place that a message of the parser is about."""
    if wrong := re.search(r"'([A-Z]+)'", problem):
        choice = re.search(r"choose from '?([^',)]+)", problem)
        return [(choice[1] if choice else "1") if word == wrong[1] else word for word in words]
    missing = re.search(r"(?:are required: |expected one argument)(?:([a-z]+)\|)?", problem)
    return [*words, missing[1] or "VALUE"] if has_gaps and missing else words


# ── Shell commands ───────────────────────────────────────────────────────────────────────────────────────


def simple_commands(script: str) -> Iterator[list[str]]:
    """Yield the words of each command of a script, those inside of substitutions too."""
    waiting = [Parser(Language(tree_sitter_bash.language())).parse(script.encode()).root_node]
    assert not waiting[0].has_error, script
    while waiting:
        node = waiting.pop()
        waiting += node.children
        if node.type in ("command", "declaration_command"):
            yield [_word(part) for part in node.children if part.type not in NO_WORDS]


NO_WORDS: Final = ("variable_assignment", "file_redirect", "herestring_redirect", "comment")


def _word(node: Node) -> str:
    text = (node.text or b"").decode()
    return next(iter(shlex.split(text)), "")


def check(words: list[str]) -> None:
    """Check one command; raises `AssertionError` or `Refused`."""
    program, *rest = words
    assert program in PROGRAMS, program
    match program:
        case "foveal":
            parse_with_placeholders(rest)
        case "make":
            assert set(rest) <= set(TARGETS), rest
        case "pip":
            check_extras(" ".join(rest))
        case "python" | "python3" | ".venv/bin/python" if rest[:2] == ["-m", "bench"]:
            assert set(arguments().parse_args(rest[2:]).groups) <= set(GROUPS), rest
        case "python" | "python3" | ".venv/bin/python" if rest and rest[0].endswith(".py"):
            assert (ROOT / rest[0]).exists(), rest[0]
        case "sudo" | "opentelemetry-instrument":
            inner = [word for word in rest if not word.startswith("-")]
            if "foveal" in inner:
                parse_with_placeholders(rest[rest.index("foveal") + 1 :])
        case "claude" | "codex" if "--" in rest:
            check(rest[rest.index("--") + 1 :])


def check_extras(text: str) -> None:
    for names in EXTRAS.findall(text):
        assert set(names.split(",")) <= set(PROJECT["optional-dependencies"]), names


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_every_shell_command_can_be_called(page: Path) -> None:
    problems = []
    for block in fenced_blocks(page, "sh"):
        for words in simple_commands(block.text):
            try:
                check(words)
            except (AssertionError, Refused) as problem:
                problems.append(f"{block.page}:{block.line}: {' '.join(words)}: {problem}")
    assert problems == []


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_every_command_between_backquotes_can_be_called(page: Path) -> None:
    problems = []
    for code in inline_code(page):
        try:
            match re.split(r"\s+", code.text, maxsplit=1):
                case ["foveal", rest]:
                    parse_with_placeholders(shlex.split(rest), has_gaps=True)
                case ["make", target] if page_name(page) != "library/testing":
                    assert target in TARGETS, target
                case ["python", rest] if rest.startswith("-m bench "):
                    assert rest.split()[2] in {*GROUPS, "GROUP"}
                case ["pip", rest]:
                    check_extras(rest)
                case [word, *_] if is_slash_command(word) and not page_name(page).startswith(
                    "coding-agents/"
                ):
                    assert word in SLASH_COMMANDS_BY_NAME or word[1:] in BOT_COMMANDS, word
        except (AssertionError, Refused, ValueError) as problem:
            problems.append(f"{code}: {problem}")
    assert problems == []


def is_slash_command(word: str) -> bool:
    return bool(re.fullmatch(r"/[a-z][a-z-]*", word)) and word not in PATHS


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_a_page_needs_no_container_and_names_no_registry(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    if page_name(page) == "service/deploy":  # the only place for containers
        before, containers, after = text.partition("\n## Containers\n")
        text = before + after.partition("\n## ")[2]
        assert containers
    lines = text.splitlines()
    assert [f"{number}: {line}" for number, line in enumerate(lines, 1) if FOREIGN.search(line)] == []


# ── The page about the command line ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", PACKAGES)
def test_the_page_of_a_framework_installs_what_its_tests_use(name: str) -> None:
    page = (ROOT / "docs" / "frameworks" / f"{name.replace('_', '-')}.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^pip install \. (.*)$", page, re.MULTILINE)
    installed = {word.partition("[")[0] for word in shlex.split(line)}
    needed = {package.partition("[")[0] for package in PACKAGES[name]}
    if "litellm" in needed:
        needed.add("mcp")  # litellm imports it and does not require it; `litellm[proxy]` does
    assert installed == needed


def test_the_command_line_page_is_current() -> None:
    written = command_reference.PAGE.read_text(encoding="utf-8")
    assert written == command_reference.draw_page(), "run .venv/bin/python tools/docs/command_reference.py"


def test_the_help_of_every_option_says_what_it_means() -> None:
    silent = [
        f"{name} {argument.name}"
        for name, parser in parsers().items()
        for argument in command_reference.arguments(parser)
        if not argument.about.partition(": `")[0].strip() or argument.about.startswith("may be")
    ]
    assert silent == []


def test_every_command_has_an_example() -> None:
    groups = {"admin", "database", "memory", "token"}
    assert set(command_reference.EXAMPLES) == set(parsers()) - groups - {""}


@pytest.mark.parametrize(
    "words",
    [
        "chat --windw 3",
        "serve --port many",
        "show",
        "token erase",
        "chat --win 3",
        "demo --loud",
        "no-such-command",
    ],
)
def test_a_wrong_command_line_is_noticed(words: str) -> None:
    with pytest.raises(Refused):
        parse_with_placeholders(words.split())


def test_a_command_inside_of_a_substitution_is_found() -> None:
    script = (
        "A=1 foveal serve --port 0 > log  # started\nsource <(foveal completion bash) && git log | foveal run"
    )
    found = list(simple_commands(script))
    assert ["foveal", "serve", "--port", "0"] in found
    assert ["foveal", "completion", "bash"] in found
    assert ["foveal", "run"] in found
