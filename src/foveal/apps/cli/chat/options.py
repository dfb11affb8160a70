"""Command-line options of `foveal chat` and `foveal run`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

import msgspec

COMPACTION_MODES: Final = ("auto", "confirm", "off")


class ChatOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The parsed options; None means that configuration and environment decide."""

    store: Path
    folder: Path
    """The working folder."""
    model: str | None = None
    policy: str | None = None
    window: int | None = None
    mode: str | None = None
    session: str = ""
    """The session to open or create."""
    resume: str = ""
    """An existing session, by its id or the beginning of it."""
    newest: bool = False
    """Continue the session that was active last."""
    allow: tuple[str, ...] = ()
    """Tools that run without asking."""
    yes: bool = False
    """Every tool runs without asking."""
    tools: bool = True
    """Offer tools to the model."""
    json: bool = False

    @classmethod
    def from_args(cls, args: argparse.Namespace) -> ChatOptions:
        allow = tuple(entry.strip() for text in args.allow for entry in text.split(",") if entry.strip())
        return cls(
            store=args.store,
            folder=Path.cwd(),
            model=args.model,
            policy=args.policy,
            window=args.window,
            mode=args.mode,
            session=args.session or "",
            resume=args.resume or "",
            newest=args.newest,
            allow=allow,
            yes=args.yes,
            tools=not args.no_tools,
            json=args.json,
        )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that both commands share."""
    add: Any = parser.add_argument
    add(
        "--model",
        metavar="NAME",
        help="provider/model; default: a provider whose API key is in the environment, else a local model",
    )
    add("--policy", metavar="NAME", help="a preset: economy, handoff, confirm, …; default: economy")
    add("--window", type=int, metavar="TOKENS", help="the context window, if the known value is wrong")
    add("--mode", choices=COMPACTION_MODES, help="summarise automatically, only when you agree, or never")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--session", metavar="ID", help="open this session, or create it")
    which.add_argument(
        "--resume", metavar="ID", help="continue this session; the beginning of its id is enough"
    )
    which.add_argument("--continue", dest="newest", action="store_true", help="continue the newest session")
    add(
        "--allow",
        action="append",
        default=[],
        metavar="TOOL",
        help='run this tool without asking: write, "run: git status"; may be repeated',
    )
    add("--yes", action="store_true", help="run every tool without asking")
    add("--no-tools", action="store_true", help="offer no tools to the model")
    add("--json", action="store_true", help="write one JSON object per line to standard output")
