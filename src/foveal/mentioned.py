"""Which paths a tool call mentions: folders of these files may have instructions of their own."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, Final

_COMMANDS: Final = ("command", "cmd", "script", "shell", "argv", "args")
"""Arguments whose text is a command, word by word."""


def paths_in(arguments: str | Mapping[str, Any], *, most: int = 200) -> tuple[str, ...]:
    """What may be a path in a call's arguments: texts of one line, and the words of a command that are no flags.
    Whether there is such a file is for others to say."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return ()
    found: dict[str, None] = {}
    for text in _texts(arguments, command=False, depth=0):
        if text and not text.startswith("-") and "\0" not in text and len(text) <= 4_096:
            found[text] = None
        if len(found) >= most:
            break
    return tuple(found)


def _texts(value: Any, *, command: bool, depth: int) -> Iterator[str]:
    if isinstance(value, str):
        if command:
            yield from _words(value[:16_384])
        elif "\n" not in value:
            yield value
    elif isinstance(value, Mapping) and depth < 8:
        for key, inner in value.items():
            yield from _texts(inner, command=str(key) in _COMMANDS, depth=depth + 1)
    elif isinstance(value, list) and depth < 8:
        for inner in value:
            if command and isinstance(inner, str):  # one argument, or a command for another shell
                yield from _texts(inner, command=False, depth=depth + 1)
            yield from _texts(inner, command=command, depth=depth + 1)


def _words(command: str) -> list[str]:
    reader = shlex.shlex(command, posix=True, punctuation_chars=True)
    reader.whitespace_split = True
    reader.commenters = ""
    try:
        return list(reader)
    except ValueError:  # a quote that is never closed
        return command.split()
