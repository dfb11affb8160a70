"""Paths that a tool call touches: their folders may have instructions of their own."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, Final

_COMMAND_ARGUMENTS: Final = ("command", "cmd", "script", "shell", "argv", "args")
"""Names of arguments whose text is a command."""


def paths_in(arguments: str | Mapping[str, Any], *, max_paths: int = 200) -> tuple[str, ...]:
    """Return what may be a path in a call's arguments: strings of one line, and words of commands except flags.

    Does not check whether the files exist; returns at most `max_paths`."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return ()
    found: dict[str, None] = {}
    for text in _argument_texts(arguments, command=False, depth=0):
        if text and not text.startswith("-") and "\0" not in text and len(text) <= 4_096:
            found[text] = None
        if len(found) >= max_paths:
            break
    return tuple(found)


def _argument_texts(value: Any, *, command: bool, depth: int) -> Iterator[str]:
    if isinstance(value, str):
        if command:
            yield from _command_words(value[:16_384])
        elif "\n" not in value:
            yield value
    elif isinstance(value, Mapping) and depth < 8:
        for key, inner in value.items():
            yield from _argument_texts(inner, command=str(key) in _COMMAND_ARGUMENTS, depth=depth + 1)
    elif isinstance(value, list) and depth < 8:
        for inner in value:
            if command and isinstance(inner, str):  # a single argument, or itself a command (`sh -c "…"`)
                yield from _argument_texts(inner, command=False, depth=depth + 1)
            yield from _argument_texts(inner, command=command, depth=depth + 1)


def _command_words(command: str) -> list[str]:
    reader = shlex.shlex(command, posix=True, punctuation_chars=True)
    reader.whitespace_split = True
    reader.commenters = ""
    try:
        return list(reader)
    except ValueError:  # an unclosed quote
        return command.split()
