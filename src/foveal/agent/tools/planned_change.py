"""A planned change of one file: what is shown to the user, and the digest that binds an approval to it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from difflib import unified_diff
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

from foveal.agent.tools import text_edit
from foveal.agent.tools.workspace import FileStamp
from foveal.core.wire.safe_print import visible

_MAX_DIFF_CHARS: Final = 400_000
"""Most characters of two texts that are compared line by line; above it, the middle that differs is shown whole."""
_CONTEXT_LINES: Final = 2
"""Unchanged lines that are shown around a change."""


class PlannedChange(NamedTuple):
    """The new text of a file, and the state of the file from which it was planned."""

    path: Path
    """Real path."""
    old: str | None
    """None for a new file."""
    new: str
    coding: text_edit.TextCoding
    stamp: FileStamp | None
    """The file when it was read; None for a new file."""
    lines: tuple[int, ...] = ()
    """Lines at which an edit replaces a text."""

    @property
    def data(self) -> bytes:
        """The bytes to write."""
        return self.coding.encode(self.new)

    @property
    def digest(self) -> str:
        """Identifies the real path, the old and the new content."""
        old = b"-" if self.old is None else b"+" + self.coding.encode(self.old)
        total = sha256()
        for part in (os.fsencode(self.path), old, self.data):
            total.update(b"%d:" % len(part))
            total.update(part)
        return total.hexdigest()

    def diff(self, name: str) -> str:
        """Return the whole change as a unified diff that is safe to print."""
        old, new = _without_crlf(self.old or "", self.new)
        return "\n".join(visible(line) for line in _diff_lines(old, new, name))


def count_text(text: str) -> str:
    """Return how many lines and characters a text has, in words."""
    lines = text.count("\n") + (text[-1:] not in ("", "\n"))
    return f"{lines:,} line{'' if lines == 1 else 's'}, {len(text):,} characters"


def _without_crlf(old: str, new: str) -> tuple[str, str]:
    """Return both texts with `\\n` if all their lines end in CRLF; else a carriage return is part of the change."""
    if all("\r\n" in text and text.count("\r") == text.count("\n") for text in (old, new) if text):
        return old.replace("\r\n", "\n"), new.replace("\r\n", "\n")
    return old, new


def _diff_lines(old: str, new: str, name: str) -> Iterator[str]:
    before, after = _split_lines(old), _split_lines(new)
    if len(old) + len(new) <= _MAX_DIFF_CHARS:
        yield from unified_diff(before, after, name, name, lineterm="", n=_CONTEXT_LINES)
    elif old != new:
        yield from _middle_lines(before, after, name)


def _split_lines(text: str) -> list[str]:
    """Return the lines of a text; a last line without a line end says so, as in git."""
    if not text:
        return []
    lines = text.removesuffix("\n").split("\n")
    return lines if text.endswith("\n") else [*lines[:-1], f"{lines[-1]}\n\\ No newline at end of file"]


def _middle_lines(before: Sequence[str], after: Sequence[str], name: str) -> Iterator[str]:
    """Yield a diff in linear time: one hunk from the first to the last line that differs."""
    shorter = min(len(before), len(after))
    head = next((at for at in range(shorter) if before[at] != after[at]), shorter)
    tail = next((at for at in range(shorter - head) if before[-1 - at] != after[-1 - at]), shorter - head)
    removed, added = before[head : len(before) - tail], after[head : len(after) - tail]
    yield f"--- {name}"
    yield f"+++ {name}"
    yield f"@@ -{head + 1},{len(removed)} +{head + 1},{len(added)} @@"
    yield from (f"-{line}" for line in removed)
    yield from (f"+{line}" for line in added)
