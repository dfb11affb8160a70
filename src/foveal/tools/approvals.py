"""Tool calls that the user has allowed permanently.

An entry is one of

    write               every call of this tool
    github__*           every call of the tools whose names begin like this
    run: git status     every command that begins with these words and is a single simple command

A command with any character that could start a second command (`;`, `&`, `|`, `$`, a backquote, `<`, `>`, brackets,
a line break) is never allowed by its first words. The class is a value: the caller stores it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from foveal.errors import BadSetting
from foveal.tools.shell import SHELL_TOOL
from foveal.tools.tool import Arguments

_SHELL_SYNTAX = re.compile(r"[;&|$`<>(){}\\\n\r\0]")
_TOOL_PATTERN = re.compile(r"[A-Za-z0-9_-]+\*?")


class Approvals(msgspec.Struct, frozen=True):
    """The entries, in the order in which they were added."""

    entries: tuple[str, ...] = ()

    @classmethod
    def parse(cls, entries: Iterable[str]) -> Approvals:
        """Read entries as a user writes them; raises `BadSetting` for an invalid entry."""
        return cls(tuple(dict.fromkeys(_parse_entry(entry) for entry in entries)))

    def allow(self, entry: str) -> Approvals:
        """Return approvals with a further entry."""
        return replace(self, entries=tuple(dict.fromkeys((*self.entries, _parse_entry(entry)))))

    def allows(self, name: str, arguments: Arguments) -> bool:
        """Return whether a call needs no confirmation."""
        return any(_covers(entry, name, arguments) for entry in self.entries)


def suggest_entry(name: str, arguments: Arguments) -> str | None:
    """Return the entry that "always" adds for this call, None if it cannot be allowed permanently."""
    if name != SHELL_TOOL:
        return name
    words = _simple_command(str(arguments.get("command", "")))
    if not words:
        return None
    has_subcommand = len(words) > 1 and re.fullmatch(r"[a-z][a-z-]*", words[1])
    return f"{SHELL_TOOL}: {shlex.join(words[:2] if has_subcommand else words)}"


def _parse_entry(entry: object) -> str:
    text = entry.strip() if isinstance(entry, str) else ""
    tool, colon, command = (part.strip() for part in text.partition(":"))
    if colon and tool == SHELL_TOOL and _simple_command(command):
        return f"{SHELL_TOOL}: {command}"
    if not colon and _TOOL_PATTERN.fullmatch(tool):
        return tool
    raise BadSetting(
        "allow", entry, f'the name of a tool, names like "github__*", or "{SHELL_TOOL}: git status"'
    )


def _covers(entry: str, name: str, arguments: Arguments) -> bool:
    tool, colon, command = entry.partition(":")
    if not colon:
        return name.startswith(tool[:-1]) if tool.endswith("*") else name == tool
    if name != SHELL_TOOL or tool != SHELL_TOOL:
        return False
    allowed, words = _simple_command(command), _simple_command(str(arguments.get("command", "")))
    return bool(allowed) and words[: len(allowed)] == allowed


def _simple_command(command: str) -> list[str]:
    """Return the words of a simple command, none if it may be more than that."""
    if _SHELL_SYNTAX.search(command):
        return []
    try:
        return shlex.split(command)
    except ValueError:
        return []
