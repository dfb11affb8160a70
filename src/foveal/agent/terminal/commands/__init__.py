"""Slash commands of the chat: the table, which is also the help, and the parser."""

from __future__ import annotations

import difflib
import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, NamedTuple

from foveal.agent.terminal.chat_state import ChatState
from foveal.agent.terminal.commands import read, remembering, rewinding, switching, write
from foveal.agent.terminal.output.styled_text import Row, bold, dim, row, table_lines
from foveal.agent.terminal.user_interface import LeaveChat
from foveal.core.engine.operations import OPERATIONS, Operation
from foveal.errors import FovealError

CommandFunction = Callable[[ChatState, str], Awaitable[list[Row]]]
_COMMAND: Final = re.compile(r"(/[a-z][a-z-]*)(?:\s+(.*))?", re.DOTALL)
_TEXT_ARGUMENT: Final = re.compile("TEXT|TASK|FOCUS|WISHES")
"""Words of a usage that stand for a text of any length."""
_METHOD: Final = re.compile(rf"`({'|'.join(OPERATIONS)}|rewind)(?:\((?:[\"'](e\d+)[\"'])?\))?`")
"""A method of `Session` as error messages name it."""


class SlashCommand(NamedTuple):
    """A row of the table."""

    name: str
    usage: str
    description: str
    run: CommandFunction
    is_queued: bool = False
    """The command changes something, so it waits for the running turn; the others run at once."""
    aliases: tuple[str, ...] = ()
    """Other names of the command."""

    @property
    def takes_text(self) -> bool:
        """Whether the argument is a text, which can have several lines."""
        return _TEXT_ARGUMENT.search(self.usage) is not None


async def _help(state: ChatState, argument: str) -> list[Row]:
    table = [
        (f"{', '.join((command.name, *command.aliases))} {command.usage}".strip(), command.description)
        for command in SLASH_COMMANDS
    ]
    keys = (
        "Enter sends · Alt-Enter or Esc Enter inserts a new line · @path attaches a file · Tab completes · "
        "Ctrl-C stops · Ctrl-D quits"
    )
    return [row(bold("commands")), *(row(f"  {line}") for line in table_lines(table)), row(), row(dim(keys))]


async def _quit(state: ChatState, argument: str) -> list[Row]:
    raise LeaveChat


def _operation(operation: Operation, run: CommandFunction | None = None) -> SlashCommand:
    """Return the command of an operation; `run` if the chat does more than the operation."""
    return SlashCommand(
        f"/{operation.name}",
        operation.usage,
        operation.help,
        run or partial(write.operate, operation=operation),
        is_queued=True,
    )


SLASH_COMMANDS: Final = (
    SlashCommand("/context", "", "show what fills the window: grid, files, tools, thresholds", read.context),
    SlashCommand("/tokens", "", "show tokens of the latest and average turn, turns left, cost", read.tokens),
    _operation(OPERATIONS["compact"], write.compact),
    SlashCommand(
        "/compaction-status",
        "",
        "show the mode, the writers and the summaries so far",
        read.compaction_status,
    ),
    _operation(OPERATIONS["undo"], rewinding.undo),
    SlashCommand(
        "/expand", "HANDLE [LINE]", "print an event in full (“model”: show it to the model)", write.expand
    ),
    SlashCommand(
        "/why", "TEXT", "say whether a text was in the last request, and which rule hid it", read.why
    ),
    *(_operation(each) for each in OPERATIONS.values() if each.name not in ("compact", "undo", "expand")),
    SlashCommand(
        "/focus",
        "[TEXT]",
        "what the next summary or record keeps above all; without TEXT, nothing",
        write.focus,
    ),
    SlashCommand(
        "/branch",
        "[TASK]",
        "begin a branch, a part of the work that /return folds; without a TASK, list the branches",
        write.branch,
        is_queued=True,
    ),
    SlashCommand(
        "/return",
        "[TEXT]",
        "fold the branch to this result, or to the last words of the model",
        write.return_from_branch,
        is_queued=True,
    ),
    SlashCommand(
        "/instructions", "[PATH]", "list the AGENTS.md files in force with their tokens", read.instructions
    ),
    SlashCommand(
        "/memory",
        "[WHAT]",
        "list what is remembered; search WORDS, why ID, edit ID TEXT, undo, accept ID, reject ID",
        remembering.memory,
    ),
    SlashCommand(
        "/remember", "[--project] TEXT", "keep a statement for all later sessions", remembering.remember
    ),
    SlashCommand("/forget", "ID", "take an entry out of the memory", remembering.forget),
    SlashCommand(
        "/permissions",
        "[remove [N]]",
        "list what runs without asking, or remove a rule",
        write.permissions,
    ),
    SlashCommand("/model", "[NAME]", "show the model, or switch to another", write.model, is_queued=True),
    SlashCommand("/policy", "[NAME]", "show the policy, or switch to another", write.policy, is_queued=True),
    SlashCommand(
        "/tools",
        "[on|off]",
        "list the tools, or offer them to the model or none",
        write.tools,
        is_queued=True,
    ),
    SlashCommand(
        "/jobs", "[end ID|keep ID]", "list the background commands; end one, or let it run on", write.jobs
    ),
    SlashCommand(
        "/plan",
        "[TASK|yes|off]",
        "plan mode: the agent reads and proposes; yes carries it out (also Shift-Tab)",
        switching.plan,
        is_queued=True,
    ),
    SlashCommand("/todo", "", "show the to-do list that the model keeps", read.todo),
    SlashCommand("/sessions", "", "list the sessions, newest first", read.sessions),
    SlashCommand(
        "/new",
        "",
        "start a new session; this one is kept",
        switching.new,
        is_queued=True,
        aliases=("/clear",),
    ),
    SlashCommand(
        "/resume",
        "[ID]",
        "switch to another session; without an id, pick one",
        switching.resume,
        is_queued=True,
    ),
    SlashCommand("/fork", "[ID]", "switch to a copy of this session", switching.fork, is_queued=True),
    SlashCommand(
        "/rewind",
        "[HANDLE] [WHAT]",
        "go back to before one of your messages: conversation, files or both",
        rewinding.rewind,
        is_queued=True,
    ),
    SlashCommand("/retry", "", "run the last turn again", rewinding.retry, is_queued=True),
    SlashCommand("/diff", "[PATH]", "show what the agent has changed in files, or in one", rewinding.diff),
    SlashCommand(
        "/init",
        "[WISHES]",
        "let the agent write an AGENTS.md for this project",
        write.init,
        is_queued=True,
    ),
    SlashCommand(
        "/continue-from",
        "ID [CARRY]",
        "start a session with a record of another: record, summary, rules, e3,e9",
        switching.continue_from,
        is_queued=True,
    ),
    SlashCommand(
        "/export",
        "FILE [FORMAT]",
        "write the session: foveal, markdown, openai, responses, anthropic, gemini",
        write.export,
    ),
    SlashCommand("/help", "", "list the commands", _help),
    SlashCommand("/quit", "", "quit; the session is kept", _quit, aliases=("/exit",)),
)
SLASH_COMMANDS_BY_NAME: Final = {
    name: command for command in SLASH_COMMANDS for name in (command.name, *command.aliases)
}


def parse_command(text: str) -> tuple[SlashCommand, str] | None:
    """Return the command of an input and its argument, which can have several lines, or None for a message.

    Raises `FovealError` for an unknown command, and for several lines after one that takes no text, so that neither
    is sent to the model.
    """
    match = _COMMAND.fullmatch(text.strip())
    if match is None:
        return None
    word, argument = match[1], match[2] or ""
    found = SLASH_COMMANDS_BY_NAME.get(word)
    if found is None:
        near = difflib.get_close_matches(word, SLASH_COMMANDS_BY_NAME, n=1)
        hint = f"did you mean {near[0]}?" if near else "/help lists them"
        raise FovealError(f"there is no command {word}; {hint}")
    if "\n" in text.strip() and not found.takes_text:
        raise FovealError(f"{word} takes no further lines: nothing was run or sent")
    return found, argument


def with_slash_commands(text: str) -> str:
    """Return an error message of the library with slash commands for the methods that it names: `/undo e4` for
    `undo("e4")` in backquotes."""
    return _METHOD.sub(lambda found: f"/{found[1]} {found[2] or ''}".rstrip(), text)
