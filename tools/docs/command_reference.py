"""Generates docs/reference/command-line.md from the parsers of the `foveal` command.

`python tools/docs/command_reference.py` writes the page. A test of the documentation checks that it is current.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn
from unittest.mock import patch

from foveal.cli import demo
from foveal.cli.__main__ import main

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "command-line.md"
HEAD = """\
# Command line

Every command of `foveal`, with an example, its arguments and their defaults. The
page is made from the parser of the program.

- `foveal COMMAND --help` prints the arguments of a command, `foveal --version` the version.
- Without a command, `foveal` runs [`chat`](#chat): `foveal --continue` is `foveal chat --continue`.
- The exit code is 0 for success, 1 for an error and 2 for wrong arguments; 3 if a call of `run` was denied. That of
  [`why`](#why) is 1 for "no" and 2 for an error.
- Most commands read the [settings](config.md) too. A flag overrides the environment, which overrides the files.
- A [session](../glossary.md#foveals-own-words) is named by its id, or by the beginning of its id. An event is
  named by its handle, such as `e11`.
"""
EXAMPLES = {
    "demo": "foveal demo --window 6000",
    "sessions": "foveal sessions",
    "import": "foveal import ~/.codex/sessions",
    "export": "foveal export SESSION --to openai_chat -o session.json",
    "log": "foveal log SESSION",
    "show": "foveal show SESSION --at e11",
    "replay": "foveal replay logs/ --policy economy --policy rolling --window 32000",
    "tune": "foveal tune logs/ --window 32000",
    "why": 'foveal why SESSION "the port is 8080"',
    "config": "foveal config --agent reviewer",
    "doctor": "foveal doctor",
    "database migrate": "foveal database migrate postgresql://owner@db.example.com/foveal --grant foveal_server",
    "database copy": "foveal database copy ~/.local/share/foveal/server postgresql://owner@db.example.com/foveal",
    "memory list": "foveal memory list staging port",
    "memory show": "foveal memory show m12 --json",
    "memory add": 'foveal memory add --project "The build needs Node 22."',
    "memory edit": 'foveal memory edit m12 "I prefer spaces."',
    "memory forget": "foveal memory forget m12",
    "memory search": "foveal memory search staging port",
    "memory erase": "foveal memory erase --yes",
    "memory undo": "foveal memory undo",
    "memory accept": "foveal memory accept m12",
    "memory reject": "foveal memory reject m12",
    "memory export": "foveal memory export -o memory.jsonl",
    "memory import": "foveal memory import memory.jsonl",
    "chat": "foveal chat --model anthropic/claude-sonnet-4-6 --policy handoff",
    "run": 'foveal run --allow "run: git status" "which files have I changed?"',
    "serve": "foveal serve --port 8790 --set server.grace=10",
    "admin tenants": "foveal admin tenants",
    "admin tokens": "foveal admin tokens",
    "admin usage": "foveal admin usage --by user,model --since 30d --tenant alice",
    "admin budgets": "foveal admin budgets --tenant alice",
    "admin health": "foveal admin health",
    "admin audit": "foveal admin audit --since 7d --action erase --format jsonl",
    "token create": 'foveal token create --tenant alice --label "laptop"',
    "token list": "foveal token list",
    "token revoke": "foveal token revoke ID",
    "pair": "foveal pair telegram",
    "mcp": "foveal mcp --tokens 2000",
    "wrap": 'foveal wrap codex -- exec "Why is CI red?"',
    "unwrap": "foveal unwrap codex",
    "inspect": "foveal inspect SESSION",
    "completion": "foveal completion bash",
}
"""One line for each command that can run."""
SAME_OPTIONS = {"run": "chat"}
"""Commands that have all options of another one."""
EXPLAINED = {
    "demo": "[Try it](../try-it.md)",
    "import": "[Import and export](../library/import.md)",
    "export": "[Import and export](../library/import.md)",
    "log": "[Import and export](../library/import.md)",
    "show": "[Import and export](../library/import.md)",
    "replay": "[Replay lab](../measure/replay.md)",
    "tune": "[Tune for your logs](../measure/tune.md)",
    "why": "[Replay lab](../measure/replay.md)",
    "config": "[Settings](config.md)",
    "database": "[One machine, several machines](../service/deploy.md)",
    "memory": "[Memory](../terminal/memory.md)",
    "chat": "[Terminal](../terminal/chat.md)",
    "run": "[In pipes and scripts](../terminal/chat.md#in-pipes-and-scripts)",
    "serve": "[A service](../service/index.md)",
    "token": "[A service](../service/index.md)",
    "admin": "[Administration](../service/administration.md)",
    "pair": "[A bot](../bots/index.md)",
    "mcp": "[Past sessions over MCP](../coding-agents/mcp.md)",
    "wrap": "[My coding agent](../coding-agents/index.md#one-command)",
    "unwrap": "[My coding agent](../coding-agents/index.md#one-command)",
    "inspect": "[Inspector](../inspector.md)",
    "completion": "[Terminal](../terminal/chat.md)",
}
"""The page that explains a command."""
DEFAULT = re.compile(r"(?:^|; | \()default: ((?:[^;()]|\([^()]*\))+)\)?")
USER_SETTINGS = ("FOVEAL_", "XDG_")


class Command(NamedTuple):
    """A command or subcommand."""

    name: str
    """All words after `foveal`."""
    about: str
    parser: argparse.ArgumentParser


class Argument(NamedTuple):
    """A row of a command's table."""

    name: str
    default: str
    about: str

    def __str__(self) -> str:
        # In a table, GitHub and the site read a `|` between backquotes in different ways.
        names = " or ".join(f"`{name}`" for name in self.name.split("|"))
        return f"| {names} | {self.default} | {self.about} |"


# ── The parsers ──────────────────────────────────────────────────────────────────────────────────────────


class _Found(Exception):
    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.parser = parser


def parser_of(run: Callable[[list[str]], int]) -> argparse.ArgumentParser:
    """Return the parser that a program makes for its arguments, without running the program."""

    def stop(parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        raise _Found(parser)

    with patch.object(argparse.ArgumentParser, "parse_known_args", stop):
        try:
            run([])
        except _Found as found:
            return found.parser
    raise LookupError("the program parses no arguments")


def commands(parser: argparse.ArgumentParser, before: str = "") -> Iterator[Command]:
    """Yield the commands of a parser, each followed by its subcommands."""
    for group in parser._actions:
        if isinstance(group, argparse._SubParsersAction):
            abouts = {action.dest: action.help or "" for action in group._choices_actions}
            for word, inner in group.choices.items():
                # The demo parses its own arguments.
                found = parser_of(demo.main) if f"{before}{word}" == "demo" else inner
                yield Command(f"{before}{word}", abouts[word], found)
                yield from commands(inner, f"{before}{word} ")


def all_commands() -> list[Command]:
    """Return the commands of `foveal`, with the defaults of a user who has set nothing."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(USER_SETTINGS)}
    with patch.dict(os.environ, kept, clear=True):
        return list(commands(parser_of(main)))


# ── The page ─────────────────────────────────────────────────────────────────────────────────────────────


def arguments(parser: argparse.ArgumentParser) -> list[Argument]:
    """Return the arguments of a command, options last, without `--help` and the names of subcommands."""
    skipped = (argparse._HelpAction, argparse._SubParsersAction)
    shown = (action for action in parser._actions if not isinstance(action, skipped))
    ordered = sorted(shown, key=lambda action: bool(action.option_strings))
    return [_argument(parser, action) for action in ordered if action.help != argparse.SUPPRESS]


def _argument(parser: argparse.ArgumentParser, action: argparse.Action) -> Argument:
    about = parser._get_formatter()._expand_help(action) if action.help else ""
    stated = DEFAULT.search(about)
    default = stated[1].strip() if stated else _default(action)
    about = DEFAULT.sub("", about, count=1).removeprefix("; ")
    if action.choices and not _is_one_word(action):
        about += f": {', '.join(f'`{choice}`' for choice in action.choices)}"
    return Argument(_name(action), default, about)


def _is_one_word(action: argparse.Action) -> bool:
    """Return whether an argument can only be one word, such as `project`."""
    return not action.option_strings and action.choices is not None and len(list(action.choices)) == 1


def _name(action: argparse.Action) -> str:
    if _is_one_word(action):
        return str(next(iter(action.choices or ())))
    value = action.dest.upper() if action.metavar is None else str(action.metavar)
    if action.nargs in ("*", "+"):
        value += " …"
    if not action.option_strings:
        return value
    names = ", ".join(action.option_strings)
    if action.nargs == 0:
        return names
    return f"{names} [{value}]" if action.nargs == "?" else f"{names} {value}"


def _default(action: argparse.Action) -> str:
    value: Any = action.default
    if not action.option_strings and action.nargs not in ("?", "*"):
        return "required"
    if value in (None, False, argparse.SUPPRESS, "") or value == []:
        return "–"
    if isinstance(value, Path):
        return f"`{value}`".replace(str(Path.home()), "~")
    return f"`{value}`"


def section(command: Command, known: dict[str, list[Argument]]) -> Iterator[str]:
    """Yield the lines about a command."""
    depth = "#" * (2 + command.name.count(" "))
    page = EXPLAINED.get(command.name)
    more = f"\n{page} explains it." if page else ""
    yield f"{depth} {command.name}\n\n{_sentence(command.about)}{more}\n"
    if command.name in EXAMPLES:
        yield f"```sh\n{EXAMPLES[command.name]}\n```\n"
    rows = arguments(command.parser)
    if (same := SAME_OPTIONS.get(command.name)) is not None:
        rows = [row for row in rows if row not in known[same]]
        yield f"It has all options of [`{same}`](#{same}), and this argument:\n"
    if rows:
        yield "\n".join(["| argument | default | meaning |", "|---|---|---|", *map(str, rows), ""])


def _sentence(about: str) -> str:
    """Return the description of a command as a sentence about the command."""
    return f"{about[:1].upper()}{about[1:]}."


def draw_page() -> str:
    """Return the whole page."""
    found = all_commands()
    known = {command.name: arguments(command.parser) for command in found}
    table = ["| command | what it does |", "|---|---|"]
    table += [
        f"| [`{command.name}`](#{command.name.replace(' ', '-')}) | {command.about} |" for command in found
    ]
    sections = [line for command in found for line in section(command, known)]
    return "\n".join([HEAD, *table, "", *sections])


if __name__ == "__main__":
    PAGE.write_text(draw_page(), encoding="utf-8")
