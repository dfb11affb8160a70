"""Where a configuration value was set: file and line, variable or flag."""

from __future__ import annotations

import tomllib
from typing import Any, Final, Literal, NamedTuple

# ── Line numbers ─────────────────────────────────────────────────────────────────────────────────────
# `tomllib` does not report the lines of keys. Each TOML statement is itself a valid TOML text, so `tomllib` can
# parse single statements and say which keys they set; only the end of a statement must be found. A statement over
# several lines ends in a line with a closing bracket or triple quotes.

_CLOSING_MARKS: Final = ("]", '"""', "'''")
_MAX_PARSE_ATTEMPTS: Final = 200


def key_lines(text: str) -> dict[tuple[str, ...], int]:
    """Return the line of each table and key of a valid TOML text, counted from 1."""
    found: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    rows = text.replace("\r\n", "\n").split("\n")
    at = 0
    while at < len(rows):
        end, parsed = _statement(rows, at)
        if parsed is None:
            break  # no line number is better than a wrong one
        header = rows[at].lstrip().startswith("[")
        for path in _paths(parsed):
            found.setdefault(path if header else (*table, *path), at + 1)
        if header:
            table = max(_paths(parsed), key=len)
        at = end
    return found


def _statement(rows: list[str], at: int) -> tuple[int, dict[str, Any] | None]:
    """Return the index of the line after a statement, and its parsed content."""
    tries = 0
    for end in range(at + 1, len(rows) + 1):
        if end > at + 1 and not any(mark in rows[end - 1] for mark in _CLOSING_MARKS):
            continue
        try:
            return end, tomllib.loads("\n".join(rows[at:end]) + "\n")
        except tomllib.TOMLDecodeError:
            tries += 1
            if tries > _MAX_PARSE_ATTEMPTS:
                break
    return at, None


def _paths(parsed: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = [path] if path else []
    if isinstance(parsed, list) and parsed and isinstance(parsed[0], dict):
        parsed = parsed[0]
    if isinstance(parsed, dict):
        for name, inner in parsed.items():
            found += _paths(inner, (*path, name))
    return found


def line_of(found: dict[tuple[str, ...], int], path: tuple[str, ...]) -> int:
    """Return the line of a key, or of the nearest table around it; 0 if unknown."""
    while path and path not in found:
        path = path[:-1]
    return found.get(path, 0)


class ValueSource(NamedTuple):
    """Where a value was set."""

    kind: Literal["default", "policy", "user", "project", "environment", "flag"]
    where: str = ""
    """A file, a variable, a flag, or the policy's name."""
    line: int = 0

    def __str__(self) -> str:
        where = f"{self.where}:{self.line}" if self.line else self.where
        return f"policy {where}" if self.kind == "policy" else where or self.kind
