"""On which line of a TOML text a key stands, which `tomllib` does not tell.

Each statement of a TOML text is a TOML text of its own, so `tomllib` itself says which keys a statement sets; all
that is left to find out is where a statement ends. One that goes over several lines ends in a line with a closing
bracket or triple quotes.
"""

from __future__ import annotations

import tomllib
from typing import Any, Final

_CLOSES: Final = ("]", '"""', "'''")
_TRIES: Final = 200


def lines(text: str) -> dict[tuple[str, ...], int]:
    """For each table and key of a valid TOML text, the line it begins on, counted from 1."""
    found: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    rows = text.replace("\r\n", "\n").split("\n")
    at = 0
    while at < len(rows):
        end, stated = _statement(rows, at)
        if stated is None:
            break  # rather no line than a wrong one
        header = rows[at].lstrip().startswith("[")
        for path in _paths(stated):
            found.setdefault(path if header else (*table, *path), at + 1)
        if header:
            table = max(_paths(stated), key=len)
        at = end
    return found


def _statement(rows: list[str], at: int) -> tuple[int, dict[str, Any] | None]:
    """The line after a statement, and what it says."""
    tries = 0
    for end in range(at + 1, len(rows) + 1):
        if end > at + 1 and not any(mark in rows[end - 1] for mark in _CLOSES):
            continue
        try:
            return end, tomllib.loads("\n".join(rows[at:end]) + "\n")
        except tomllib.TOMLDecodeError:
            tries += 1
            if tries > _TRIES:
                break
    return at, None


def _paths(stated: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = [path] if path else []
    if isinstance(stated, list) and stated and isinstance(stated[0], dict):
        stated = stated[0]
    if isinstance(stated, dict):
        for name, inner in stated.items():
            found += _paths(inner, (*path, name))
    return found


def line_of(found: dict[tuple[str, ...], int], path: tuple[str, ...]) -> int:
    """The line of a key, or of the nearest table around it; 0 when that is not known."""
    while path and path not in found:
        path = path[:-1]
    return found.get(path, 0)
