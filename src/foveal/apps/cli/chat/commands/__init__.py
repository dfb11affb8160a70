"""The slash commands: one table, which is also the help and what is completed."""

from __future__ import annotations

import difflib
import re
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from foveal.apps.cli.chat.chat_state import ChatState
from foveal.apps.cli.chat.commands import read, write
from foveal.apps.cli.chat.output.styled_text import Row, bold, columns, dim, row
from foveal.errors import FovealError

Run = Callable[[ChatState, str], Awaitable[list[Row]]]
_COMMAND: Final = re.compile(r"/[a-z][a-z-]*")


class LeaveChat(Exception):
    """The user wants to go."""


class SlashCommand(NamedTuple):
    name: str
    usage: str
    about: str
    run: Run
    waits: bool = False
    """It changes something, so it waits for the turn that runs; the others are answered at once."""


async def _help(desk: ChatState, argument: str) -> list[Row]:
    table = [(f"{command.name} {command.usage}".strip(), command.about) for command in COMMANDS]
    keys = "Enter sends · Alt-Enter or Esc Enter begins a new line · Tab completes · Ctrl-C stops · Ctrl-D leaves"
    return [row(bold("commands")), *(row(f"  {line}") for line in columns(table)), row(), row(dim(keys))]


async def _quit(desk: ChatState, argument: str) -> list[Row]:
    raise LeaveChat


COMMANDS: Final = (
    SlashCommand("/context", "", "what fills the window: a grid, files, tools, thresholds", read.context),
    SlashCommand("/tokens", "", "used, latest and average turn, turns left, threshold, cost", read.tokens),
    SlashCommand(
        "/compact",
        "[FOCUS]",
        "summarise old turns now; FOCUS is kept above all",
        write.compact,
        waits=True,
    ),
    SlashCommand("/compaction-status", "", "mode, writers, summaries so far", read.compaction_status),
    SlashCommand("/undo", "[HANDLE]", "take back the newest reduction, or this one", write.undo, waits=True),
    SlashCommand(
        "/expand",
        "HANDLE [LINE]",
        "print what was said in full (“model”: show it to the model)",
        write.expand,
    ),
    SlashCommand("/why", "TEXT", "was it in the last request? which rule hid it?", read.why),
    SlashCommand(
        "/pin", "TEXT", "keep a rule, or the event of a handle, in every request", write.pin, waits=True
    ),
    SlashCommand(
        "/instructions", "[PATH]", "the AGENTS.md files in force and what they take", read.instructions
    ),
    SlashCommand("/model", "[NAME]", "which model answers; another one from now on", write.model, waits=True),
    SlashCommand(
        "/policy", "[NAME]", "how the window is kept; another way from now on", write.policy, waits=True
    ),
    SlashCommand("/sessions", "", "the sessions, newest first", read.sessions),
    SlashCommand("/resume", "ID", "go on with another session", write.resume, waits=True),
    SlashCommand("/fork", "[ID]", "go on with a copy of this session", write.fork, waits=True),
    SlashCommand("/rewind", "[HANDLE]", "go back to before a message of yours", write.rewind, waits=True),
    SlashCommand(
        "/continue-from",
        "ID",
        "a new session with the summary and rules of another",
        write.continue_from,
        waits=True,
    ),
    SlashCommand(
        "/export", "FILE [FORMAT]", "write the session: foveal, openai, responses, anthropic", write.export
    ),
    SlashCommand("/help", "", "this", _help),
    SlashCommand("/quit", "", "leave; the session stays", _quit),
)
NAMED: Final = {command.name: command for command in COMMANDS} | {"/exit": COMMANDS[-1]}


def command(text: str) -> tuple[SlashCommand, str] | None:
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
