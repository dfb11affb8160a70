"""`foveal`: sessions from the command line."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Protocol

from foveal import __version__
from foveal.apps.cli import chat, config_commands, replay_commands
from foveal.core.wire.safe_print import visible
from foveal.errors import FovealError

DIALECTS = ("openai", "responses", "anthropic")


class CommandTable(Protocol):
    """Commands of another app, for a program that has both."""

    @property
    def COMMANDS(self) -> Sequence[str]:  # noqa: N802 (it is a module's constant)
        """Their names; the function of that name carries one out."""
        ...

    def add_commands(self, commands: Any) -> None: ...


def main(argv: Sequence[str] | None = None, *, others: Sequence[CommandTable] = ()) -> int:
    """Run one command; the answer is the exit code: 0 done, 1 it could not be done, 2 a wrong call."""
    parser = _parser(others)
    given, rest = parser.parse_known_args(argv)
    if given.command == "demo":
        from foveal.apps.cli import demo

        return demo.main(rest)
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    from foveal.apps.cli import session_commands

    try:
        known: tuple[Any, ...] = (replay_commands, config_commands, chat, *others)
        module = next((module for module in known if given.command in module.COMMANDS), session_commands)
        command: Callable[[argparse.Namespace], Coroutine[Any, Any, int] | int]
        command = getattr(module, given.command)
        done = command(given)
        return done if isinstance(done, int) else asyncio.run(done)
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (FovealError, OSError) as problem:
        print(f"foveal: {visible(str(problem))}", file=sys.stderr)
        return 1


def store_path() -> Path:
    """Where sessions are kept, unless somebody says otherwise."""
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(os.environ.get("FOVEAL_STORE") or Path(data) / "foveal" / "sessions.db")


def _parser(others: Sequence[CommandTable] = ()) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="foveal", description="Sessions that never outgrow their window.")
    parser.add_argument("--version", action="version", version=f"foveal {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    watch = "watch the engine keep a recorded conversation in a small window"
    commands.add_parser("demo", help=watch, add_help=False)

    commands.add_parser("sessions", help="list the sessions, the newest first", parents=[_store()])

    taken = commands.add_parser("import", help="take in recorded conversations", parents=[_store()])
    taken.set_defaults(command="import_")
    taken.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="a file, or a folder of files")
    taken.add_argument("--format", default="auto", help="how they are written; recognised if not given")

    given = commands.add_parser("export", help="write a session out", parents=[_store(), _session()])
    given.add_argument("--to", default="foveal", choices=["foveal", *DIALECTS], help="default: foveal")
    given.add_argument("-o", "--output", type=Path, help="a file; default: standard output")

    commands.add_parser("log", help="what happened, reductions marked", parents=[_store(), _session()])

    shown = commands.add_parser("show", help="what the model sees", parents=[_store(), _session()])
    shown.add_argument("--at", type=int, metavar="SEQ", help="as it was after this event; default: now")
    shown.add_argument("--to", default="openai", choices=DIALECTS, help="dialect; default: openai")
    shown.add_argument("--json", action="store_true", help="the exact messages as JSON")
    replay_commands.add_commands(commands, store_path())
    config_commands.add_commands(commands, store_path())
    chat.add_commands(commands, _store())
    for other in others:
        other.add_commands(commands)
    return parser


def _store() -> argparse.ArgumentParser:
    part = argparse.ArgumentParser(add_help=False)
    part.add_argument(
        "--store", type=Path, default=store_path(), help="the file with the sessions (FOVEAL_STORE)"
    )
    return part


def _session() -> argparse.ArgumentParser:
    part = argparse.ArgumentParser(add_help=False)
    part.add_argument("session", metavar="SESSION", help="its id, or the beginning of it")
    return part
