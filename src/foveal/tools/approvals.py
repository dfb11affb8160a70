"""What the user has allowed once and for all. Pure: whoever holds it keeps it.

An entry is one of

    write               every call of this tool
    github__*           every call of the tools whose names begin so
    run: git status     every command that begins with these words, and is nothing but one simple command

A command with anything in it that could be a second command (`;`, `&`, `|`, `$`, a backquote, `<`, `>`, brackets, a
new line) is never allowed by its beginning.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from foveal.errors import BadSetting
from foveal.tools.shell import NAME
from foveal.tools.tool import Arguments

_RISKY = re.compile(r"[;&|$`<>(){}\\\n\r\0]")
_ENTRY = re.compile(r"[A-Za-z0-9_-]+\*?")


class Approvals(msgspec.Struct, frozen=True):
    """The entries, in the order in which they were allowed."""

    entries: tuple[str, ...] = ()

    @classmethod
    def of(cls, entries: Iterable[str]) -> Approvals:
        """Entries as a user wrote them; `BadSetting` for what is none."""
        return cls(tuple(dict.fromkeys(_entry(entry) for entry in entries)))

    def allow(self, entry: str) -> Approvals:
        """With one more entry."""
        return replace(self, entries=tuple(dict.fromkeys((*self.entries, _entry(entry)))))

    def allows(self, name: str, arguments: Arguments) -> bool:
        """Whether this call need not be asked for."""
        return any(_covers(entry, name, arguments) for entry in self.entries)


def suggested(name: str, arguments: Arguments) -> str | None:
    """The entry that "always" would add after this call, None when it cannot be allowed for ever."""
    if name != NAME:
        return name
    words = _words(str(arguments.get("command", "")))
    if not words:
        return None
    subcommand = len(words) > 1 and re.fullmatch(r"[a-z][a-z-]*", words[1])
    return f"{NAME}: {shlex.join(words[:2] if subcommand else words)}"


def _entry(entry: object) -> str:
    text = entry.strip() if isinstance(entry, str) else ""
    tool, colon, command = (part.strip() for part in text.partition(":"))
    if colon and tool == NAME and _words(command):
        return f"{NAME}: {command}"
    if not colon and _ENTRY.fullmatch(tool):
        return tool
    raise BadSetting("allow", entry, f'the name of a tool, names like "github__*", or "{NAME}: git status"')


def _covers(entry: str, name: str, arguments: Arguments) -> bool:
    tool, colon, command = entry.partition(":")
    if not colon:
        return name.startswith(tool[:-1]) if tool.endswith("*") else name == tool
    if name != NAME or tool != NAME:
        return False
    allowed, words = _words(command), _words(str(arguments.get("command", "")))
    return bool(allowed) and words[: len(allowed)] == allowed


def _words(command: str) -> list[str]:
    """The words of one simple command, none when it may be more than that."""
    if _RISKY.search(command):
        return []
    try:
        return shlex.split(command)
    except ValueError:
        return []
