"""Digest of a tool result: short lines that say what it holds.

    next(digest_lines('{"id": "A-7", "total": 19.50}'))  →  'id: A-7, total: 19.50'

1. The most telling line comes first, so a caller with little room takes the first lines.
2. A line has at most `MAX_DIGEST_LINE_CHARS`, and there are at most `MAX_DIGEST_LINES`. A text that is not blank
   has at least one.
3. Values are quoted from the text. Only counts (`40 rows`, `12 elements`) and separators are added.
4. It reads the first `MAX_HEAD_CHARS` and the last `MAX_TAIL_CHARS` of a text, in linear time.

The kind of a result is judged by its form alone: JSON, markup, code, rows of cells, fields (`key: value`, which
mail and chat are too), a page with headings. Anything else is read as sentences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeAlias

from foveal.core.reduction.digest.forms import (
    code_digest,
    fields_digest,
    page_digest,
    sentences_digest,
    table_digest,
    without_markup,
)
from foveal.core.reduction.digest.json import json_digest, parse_json_start
from foveal.core.reduction.digest.pieces import (
    MAX_DIGEST_LINES,
    MAX_HEAD_CHARS,
    MAX_TAIL_CHARS,
    TextLines,
    cut,
)

DigestReader: TypeAlias = Callable[[TextLines], Iterable[str] | None]
"""Returns the digest of a text of its kind; None if the text is of another kind."""
READERS: Final[tuple[DigestReader, ...]] = (code_digest, table_digest, fields_digest, page_digest)
"""The first that knows the text writes its digest."""


def digest_lines(text: str) -> Iterator[str]:
    """Yield short lines that say what a text holds, the most telling first."""
    text = _without_fence(text.strip())
    seen: set[str] = set()
    for line in _digest(text):
        if (short := cut(line)) and short not in seen:
            seen.add(short)
            yield short
        if len(seen) == MAX_DIGEST_LINES:
            return
    if not seen and text:
        yield cut(text)  # a form without content, such as `{}`


def _digest(text: str) -> Iterator[str]:
    head, tail = text[:MAX_HEAD_CHARS], text[max(MAX_HEAD_CHARS, len(text) - MAX_TAIL_CHARS) :]
    if head[:1] in ("{", "["):
        parsed = parse_json_start(head, is_whole=not tail)
        if parsed is not None:
            return json_digest(parsed, tail, digest_text=_lines_digest)
    return _lines_digest(head, tail)


def _lines_digest(head: str, tail: str = "") -> Iterator[str]:
    """Return the digest of a text that is not JSON, of its beginning and its end."""
    if head.count("</") >= 2 or head[:5].lower() in ("<!doc", "<html"):
        head, tail = without_markup(head), without_markup(tail)
    lines = head.split("\n")
    if tail:
        # The last line of the head and the first of the tail are cut, unless there is no other.
        lines = [*(lines[:-1] or lines), *tail.split("\n")[1:]]
    text = TextLines([line for line in lines if line and not line.isspace()], is_whole=not tail)
    found = next(filter(None, (read(text) for read in READERS)), None)
    return iter(sentences_digest(text.lines) if found is None else found)


def _without_fence(text: str) -> str:
    """Return a text without the fence of a code block that holds all of it."""
    if text.startswith("```") and text.endswith("```") and "\n" in text:
        return text[text.index("\n") : -3].strip() or text
    return text
