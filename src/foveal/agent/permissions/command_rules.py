"""Rules that the user has agreed to: which commands and tools run without a question.

1. A command rule is literal words, the project's real path, and the real path of the program, which lies outside of
   the workspace. It covers exactly these words, or commands that begin with them.
2. A rule by first words has at least two and a program that neither deletes, publishes, fetches nor interprets; it
   covers further arguments, not further options (see program_kinds.py).
3. An entry of the settings (`tools.allow`, `--allow`, `tools.deny`) is one of

    write               every call of this tool
    github__*           every call of the tools of the MCP server `github`
    run: git status     commands that begin with these words, where that is possible, else exactly this command
"""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from collections.abc import Iterable
from pathlib import Path
from shutil import which
from typing import Final

import msgspec

from foveal.agent.permissions.command_line import parse_command_line
from foveal.agent.permissions.program_kinds import (
    can_be_prefix,
    defines_git_alias,
    is_always_asked,
    may_follow_prefix,
    starts_programs,
    subcommand_places,
)
from foveal.config.project.code_runners import program_names
from foveal.config.tool_names import SERVER_MARK, is_tool_pattern, names_tool
from foveal.core.wire.safe_print import one_line, visible
from foveal.errors import BadSetting

SHELL_TOOL: Final = "run"
"""Name of the tool whose calls are command lines."""
RULE_LIFETIME_S: Final = 30 * 24 * 3600
"""Seconds for which a rule of a project is in force."""
_SHARED_FOLDERS: Final = ("/tmp", "/var/tmp", "/dev/shm")
"""Folders where any process can write a program."""


class SimpleCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A command of a line, and the program that its first word stands for."""

    words: tuple[str, ...]
    program: str = ""
    """Real path; "" if no rule can name it: it is not found, or lies where an agent can write."""


class CommandRule(msgspec.Struct, frozen=True, kw_only=True):
    """Allows or denies a command by its words."""

    words: tuple[str, ...]
    is_prefix: bool = False
    project: str = ""
    """Real path of the folder in which it counts; "" in an entry of the settings, which counts everywhere."""
    program: str = ""
    """Real path of the program; "" in an entry of the settings: any outside of the workspace."""
    expires_at: float | None = None
    """Seconds since 1970; None for a rule of this session or of the settings."""

    @property
    def text(self) -> str:
        """The words as they are written in a shell, safe to print."""
        return visible(shlex.join(self.words))

    def covers(self, command: SimpleCommand, project: str) -> bool:
        """Return whether a command needs no question."""
        if not command.program or is_always_asked(command.words):
            return False
        if self.project not in ("", project) or self.program not in ("", command.program):
            return False
        if command.words == self.words:
            return True
        more = command.words[len(self.words) :]
        return (
            self.is_prefix
            and can_be_prefix(self.words, command.program)
            and command.words[: len(self.words)] == self.words
            and all(may_follow_prefix(self.words, word) for word in more)
        )


class ToolRule(msgspec.Struct, frozen=True):
    """Allows or denies tools by their name, or by how their names begin: `github__*` are all tools of the MCP
    server `github`, `github__get_*` those of its tools that begin with `get_`."""

    pattern: str

    @property
    def text(self) -> str:
        return visible(self.pattern)

    def covers(self, tool: str) -> bool:
        """Return whether calls of a tool need no question."""
        return names_tool(self.pattern, tool)


Rule = CommandRule | ToolRule


def find_program(word: str, *, folder: Path, outside_of: Iterable[Path], search_path: str | None) -> str:
    """Return the real path of the program of a command that runs in `folder`, "" if rules must not name it."""
    found = os.path.join(folder, word) if "/" in word else which(word, path=search_path)
    if found is None or not os.path.isabs(found) or not os.access(found, os.X_OK):
        return ""
    real = Path(os.path.realpath(found))
    writable = (*outside_of, Path(os.path.realpath(tempfile.gettempdir())), *map(Path, _SHARED_FOLDERS))
    return "" if any(real.is_relative_to(place) for place in writable) else str(real)


# ── Rules for a command ──────────────────────────────────────────────────────────────────────────────────


def exact_rule(command: SimpleCommand, project: str) -> CommandRule | None:
    """Return the rule for exactly this command, None if there can be none."""
    if not command.program or is_always_asked(command.words):
        return None
    return CommandRule(words=command.words, project=project, program=command.program)


def prefix_rule(command: SimpleCommand, project: str) -> CommandRule | None:
    """Return the rule for commands that begin with the first two words, None if there can be none."""
    words = command.words[:2]
    if not command.program or not can_be_prefix(words, command.program):
        return None
    rule = CommandRule(words=words, is_prefix=True, project=project, program=command.program)
    return rule if rule.covers(command, project) else None


# ── Entries of the settings ──────────────────────────────────────────────────────────────────────────────


def parse_allow_entries(entries: Iterable[str]) -> tuple[tuple[Rule, ...], tuple[str, ...]]:
    """Return the rules, and a note for each entry that allows less than it may seem to; raises `BadSetting`."""
    rules = tuple(dict.fromkeys(_parse_entry(entry, "allow") for entry in entries))
    notes = [
        f"allow {SHELL_TOOL}: {rule.text} allows exactly this command: commands that begin with "
        f"`{rule.text}` cannot be allowed"
        for rule in rules
        if isinstance(rule, CommandRule) and not rule.is_prefix
    ]
    return rules, tuple(notes)


def parse_deny_entries(entries: Iterable[str]) -> tuple[Rule, ...]:
    """Return the rules of `tools.deny`; raises `BadSetting`."""
    return tuple(dict.fromkeys(_parse_entry(entry, "deny") for entry in entries))


def _parse_entry(entry: str, setting: str) -> Rule:
    text = entry.strip()
    tool, colon, command = (part.strip() for part in text.partition(":"))
    if not colon and is_tool_pattern(tool):
        if setting == "allow" and tool.endswith("*") and SERVER_MARK not in tool:
            raise BadSetting(setting, one_line(entry), "names of one MCP server's tools, such as github__*")
        return ToolRule(tool)
    if not colon or tool != SHELL_TOOL or not command:
        wanted = f'the name of a tool, names like "github__*", or "{SHELL_TOOL}: git status"'
        raise BadSetting(setting, one_line(entry), wanted)
    line = parse_command_line(command)
    problem = line.problem or ("" if len(line.commands) == 1 else "it has several commands")
    if setting == "deny" and not problem:
        return CommandRule(words=line.commands[0], is_prefix=True)
    if not problem and is_always_asked(line.commands[0]):
        problem = f"`{line.commands[0][0]}` changes the shell"
    if problem:
        raise BadSetting(setting, one_line(entry), f"one command of plain words; {problem}")
    return CommandRule(words=line.commands[0], is_prefix=can_be_prefix(line.commands[0]))


# ── Denying ──────────────────────────────────────────────────────────────────────────────────────────────

_TEXT_WORDS: Final = re.compile(r"[^\s;&|()<>`$\"'{}\\]+")


def denies_line(rule: CommandRule, text: str, commands: Iterable[tuple[str, ...]]) -> bool:
    """Return whether a deny rule matches one of the commands, words that a command could run (`env git push`) or,
    in a line that is not plain, any words of its text."""
    if not (found := tuple(commands)):
        return _is_in_text(rule, text)
    return any(
        _begins_with(words, rule.words) or (starts_programs(words) and _is_in_text(rule, " ".join(words)))
        for words in found
    )


def _is_in_text(rule: CommandRule, text: str) -> bool:
    words = tuple(_TEXT_WORDS.findall(text))
    return any(_begins_with(words[at:], rule.words) for at in range(len(words)))


def _begins_with(words: tuple[str, ...], prefix: tuple[str, ...]) -> bool:
    """Return whether a command is the one that a deny rule names, whatever options stand before its subcommand."""
    if not words or not program_names(words[0]) & program_names(prefix[0]):
        return False
    wanted = prefix[1:]
    is_found = any(words[at : at + len(wanted)] == wanted for at in subcommand_places(words))
    return is_found or (bool(wanted) and defines_git_alias(words))
