"""Command-line options of `foveal chat` and `foveal run`."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from foveal.errors import FovealError

# `foveal --help` loads this module, so it imports nothing that takes long.
if TYPE_CHECKING:
    from foveal.sessions.continuation import Carry

COMPACTION_MODES: Final = ("auto", "confirm", "off")


class WrongOption(FovealError):
    """An option has a value that only the configuration shows to be wrong."""


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
    picks_session: bool = False
    """The user picks the session to continue."""
    newest: bool = False
    """Continue the session of this folder that was active last."""
    continue_from: str = ""
    """An existing session of which a new one takes over a record."""
    carry: Carry = "record"
    """What it takes over."""
    allow: tuple[str, ...] = ()
    """Tools that run without asking."""
    yes: bool = False
    """Every tool runs without asking."""
    tools: bool | None = None
    """Offer tools to the model; None: to every model but the bundled ones."""
    agent: str = ""
    """The agent of the configuration whose settings are used, `[agents.NAME]`."""
    settings: dict[str, str] = {}
    """Values of `--set` by dotted name."""
    project: bool = True
    """Use what the project brings and the user allows: settings, MCP servers, instruction files."""
    sandbox: bool = True
    """Run commands in a sandbox, if the settings say so too."""
    trust_hash: str = ""
    """Allows all items of the project if this is their hash."""
    json: bool = False

    @classmethod
    def from_args(cls, args: argparse.Namespace) -> ChatOptions:
        from foveal.config import setting_flags

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
            picks_session=args.resume == "",
            newest=args.newest,
            continue_from=args.continue_from or "",
            carry=parse_carry(args.carry),
            allow=allow,
            yes=args.yes,
            tools=args.tools,
            agent=args.agent,
            settings=setting_flags(args.set),
            project=not args.no_project,
            sandbox=not args.no_sandbox,
            trust_hash=args.trust_hash,
            json=args.json,
        )


def parse_carry(text: str) -> Carry:
    """Return what is to be taken over: a word, or a list of handles such as `e3,e9`. Raises `BadSetting`."""
    from foveal.core.log.events import parse_handle
    from foveal.sessions.continuation import check_carry

    words = [word for word in re.split(r"[\s,]+", text) if word]
    carry: Any = [*words] if words and all(parse_handle(word) is not None for word in words) else text.strip()
    check_carry(carry)
    return carry  # type: ignore[no-any-return]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that both commands share."""
    _add_model_options(parser)
    _add_session_options(parser)
    _add_permission_options(parser)
    parser.add_argument(
        "--json", action="store_true", help="write one JSON object per line to standard output"
    )


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    add: Any = parser.add_argument
    add(
        "--model",
        metavar="NAME",
        help="provider/model; default: a provider whose API key is in the environment, else a local model",
    )
    add("--policy", metavar="NAME", help="a preset: economy, handoff, confirm, …; default: economy")
    add("--window", type=int, metavar="TOKENS", help="the context window, if the known value is wrong")
    add("--mode", choices=COMPACTION_MODES, help="summarise automatically, only when you agree, or never")
    add("--agent", metavar="NAME", default="", help="use the settings of the agent [agents.NAME]")
    about = "override a setting, such as context.policy=rolling; may be repeated"
    add("--set", action="append", default=[], metavar="KEY=VALUE", help=about)


def _add_session_options(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--session", metavar="ID", help="open this session, or create it")
    which.add_argument(
        "--resume",
        metavar="ID",
        nargs="?",
        const="",
        help="continue this session; the beginning of its id is enough, without an id you pick one",
    )
    about = "continue the newest session of this folder"
    which.add_argument("--continue", dest="newest", action="store_true", help=about)
    which.add_argument(
        "--continue-from", metavar="ID", help="start a session that takes over a record of this one"
    )
    parser.add_argument(
        "--carry",
        metavar="WHAT",
        default="record",
        help="with --continue-from: record, summary, rules, or handles such as e3,e9; default: record",
    )


def _add_permission_options(parser: argparse.ArgumentParser) -> None:
    add: Any = parser.add_argument
    add(
        "--allow",
        action="append",
        default=[],
        metavar="TOOL",
        help='run this tool without asking: write, "run: git status"; may be repeated',
    )
    add("--yes", action="store_true", help="run every tool without asking, except for protected paths")
    add(
        "--tools",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="offer tools to the model, or none; default: tools, but none to the bundled local model",
    )
    add("--no-sandbox", action="store_true", help="run commands outside of the sandbox; each is asked about")
    add(
        "--no-project",
        action="store_true",
        help="ignore foveal.toml, AGENTS.md and preferences.md of the project",
    )
    add(
        "--trust-hash",
        metavar="HASH",
        default="",
        help="use all that the project brings, if it has this hash (foveal config project)",
    )
