"""What `foveal chat` and `foveal run` are told on the command line."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

import msgspec

MODES: Final = ("auto", "confirm", "off")


class ChatOptions(msgspec.Struct, frozen=True, kw_only=True):
    store: Path
    folder: Path
    """The working folder."""
    model: str | None = None
    policy: str | None = None
    window: int | None = None
    mode: str | None = None
    session: str = ""
    """The session to open or begin."""
    resume: str = ""
    """A session that there is, by its id or the beginning of it."""
    newest: bool = False
    """Go on with the session that was last active."""
    allow: tuple[str, ...] = ()
    yes: bool = False
    tools: bool = True
    json: bool = False

    @classmethod
    def of(cls, given: argparse.Namespace) -> ChatOptions:
        allow = tuple(entry.strip() for text in given.allow for entry in text.split(",") if entry.strip())
        return cls(
            store=given.store,
            folder=Path.cwd(),
            model=given.model,
            policy=given.policy,
            window=given.window,
            mode=given.mode,
            session=given.session or "",
            resume=given.resume or "",
            newest=given.newest,
            allow=allow,
            yes=given.yes,
            tools=not given.no_tools,
            json=given.json,
        )


def add_options(parser: argparse.ArgumentParser) -> None:
    add: Any = parser.add_argument
    add(
        "--model",
        metavar="NAME",
        help="provider/model; default: what the environment has a key for, else local",
    )
    add("--policy", metavar="NAME", help="a preset: economy, handoff, confirm, …; default: economy")
    add("--window", type=int, metavar="TOKENS", help="what the model holds, if you know better")
    add("--mode", choices=MODES, help="summaries: by themselves, when you agree, or never")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--session", metavar="ID", help="open this session, or begin it")
    which.add_argument(
        "--resume", metavar="ID", help="go on with this session; the beginning of its id is enough"
    )
    which.add_argument("--continue", dest="newest", action="store_true", help="go on with the newest session")
    add(
        "--allow",
        action="append",
        default=[],
        metavar="TOOL",
        help='run without asking: write, "run: git status"',
    )
    add("--yes", action="store_true", help="run every tool without asking")
    add("--no-tools", action="store_true", help="offer no tools to the model")
    add("--json", action="store_true", help="one JSON object a line on standard output")
