"""The slash commands: one table, which is also the help and what is completed."""

from __future__ import annotations

import difflib
import re
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from foveal.apps.cli.chat import looking, steering
from foveal.apps.cli.chat.desk import Desk
from foveal.apps.cli.chat.rows import Row, bold, columns, dim, row
from foveal.errors import FovealError

Run = Callable[[Desk, str], Awaitable[list[Row]]]
_COMMAND: Final = re.compile(r"/[a-z][a-z-]*")


class Leave(Exception):
    """The user wants to go."""


class Command(NamedTuple):
    name: str
    usage: str
    about: str
    run: Run
    waits: bool = False
    """It changes something, so it waits for the turn that runs; the others are answered at once."""


async def _help(desk: Desk, argument: str) -> list[Row]:
    table = [(f"{command.name} {command.usage}".strip(), command.about) for command in COMMANDS]
    keys = "Enter sends · Alt-Enter or Esc Enter begins a new line · Tab completes · Ctrl-C stops · Ctrl-D leaves"
    return [row(bold("commands")), *(row(f"  {line}") for line in columns(table)), row(), row(dim(keys))]


async def _quit(desk: Desk, argument: str) -> list[Row]:
    raise Leave


COMMANDS: Final = (
    Command("/context", "", "what fills the window: a grid, files, tools, thresholds", looking.context),
    Command("/tokens", "", "used, latest and average turn, turns left, threshold, cost", looking.tokens),
    Command(
        "/compact",
        "[FOCUS]",
        "summarise old turns now; FOCUS is kept above all",
        steering.compact,
        waits=True,
    ),
    Command("/compaction-status", "", "mode, writers, summaries so far", looking.compaction_status),
    Command("/undo", "[HANDLE]", "take back the newest reduction, or this one", steering.undo, waits=True),
    Command(
        "/expand",
        "HANDLE [LINE]",
        "print what was said in full (“model”: show it to the model)",
        steering.expand,
    ),
    Command("/why", "TEXT", "was it in the last request? which rule hid it?", looking.why),
    Command(
        "/pin", "TEXT", "keep a rule, or the event of a handle, in every request", steering.pin, waits=True
    ),
    Command(
        "/instructions", "[PATH]", "the AGENTS.md files in force and what they take", looking.instructions
    ),
    Command("/model", "[NAME]", "which model answers; another one from now on", steering.model, waits=True),
    Command(
        "/policy", "[NAME]", "how the window is kept; another way from now on", steering.policy, waits=True
    ),
    Command("/sessions", "", "the sessions, newest first", looking.sessions),
    Command("/resume", "ID", "go on with another session", steering.resume, waits=True),
    Command("/fork", "[ID]", "go on with a copy of this session", steering.fork, waits=True),
    Command("/rewind", "[HANDLE]", "go back to before a message of yours", steering.rewind, waits=True),
    Command(
        "/continue-from",
        "ID",
        "a new session with the summary and rules of another",
        steering.continue_from,
        waits=True,
    ),
    Command(
        "/export", "FILE [FORMAT]", "write the session: foveal, openai, responses, anthropic", steering.export
    ),
    Command("/help", "", "this", _help),
    Command("/quit", "", "leave; the session stays", _quit),
)
NAMED: Final = {command.name: command for command in COMMANDS} | {"/exit": COMMANDS[-1]}


def command(text: str) -> tuple[Command, str] | None:
    """The command that a line means, and what stands behind it; None for a message. Raises for a command that there
    is not: nobody wants a mistyped command to be sent to a model."""
    word, _, rest = text.strip().partition(" ")
    if not _COMMAND.fullmatch(word) or "\n" in text.strip():
        return None
    found = NAMED.get(word)
    if found is None:
        near = difflib.get_close_matches(word, NAMED, n=1)
        hint = f"did you mean {near[0]}?" if near else "/help lists them"
        raise FovealError(f"there is no command {word}; {hint}")
    return found, rest.strip()
