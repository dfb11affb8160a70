"""Limits of a digest, and the short texts that its lines are made of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeVar

from foveal.core.wire.safe_print import readable

MAX_DIGEST_LINE_CHARS: Final = 160
"""Characters of one line of a digest."""
MAX_DIGEST_LINES: Final = 40
"""Lines of one digest."""
MAX_HEAD_CHARS: Final = 8_000
"""Characters that are read from the beginning of a text."""
MAX_TAIL_CHARS: Final = 2_000
"""Characters that are read from the end of a longer text: last rows and totals stand there."""
MAX_SAMPLE_LINES: Final = 24
"""Lines by which the kind of a text is judged."""
MAX_VALUE_CHARS: Final = 80
"""Characters of one value beside others on a line."""
DIGIT: Final = re.compile(r"\d")

T = TypeVar("T")


class TextLines(NamedTuple):
    """The lines of a text that are read, without blank ones."""

    lines: Sequence[str]
    is_whole: bool
    """Whether these are all lines of the text, and none is cut."""


def cut(text: str, width: int = MAX_DIGEST_LINE_CHARS) -> str:
    """Return the beginning of a text on one line that is safe to show."""
    if len(text) <= width and text.isascii() and text.isprintable() and "  " not in text:
        return text.strip()  # most pieces need no more
    line = readable(" ".join(text[: 4 * width].split()))
    return line if len(line) <= width else line[: width - 1].rstrip() + "…"


def packed(pieces: Iterable[str], separator: str) -> Iterator[str]:
    """Yield the pieces, as many on one line as fit."""
    line = ""
    for piece in filter(None, map(cut, pieces)):
        if line and len(line) + len(separator) + len(piece) > MAX_DIGEST_LINE_CHARS:
            yield line
            line = piece
        else:
            line = f"{line}{separator}{piece}" if line else piece
    if line:
        yield line


def ends_first(items: Sequence[T]) -> Iterator[T]:
    """Yield the first item, the last, and then the others in their order: the ends bound what lies between."""
    yield from items[:1]
    yield from items[1:][-1:]
    yield from items[1:-1]


def distinct(items: Iterable[str]) -> Iterator[str]:
    seen: set[str] = set()
    for item in items:
        if item not in seen:
            seen.add(item)
            yield item
