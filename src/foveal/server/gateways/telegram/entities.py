"""Renders blocks of a message in Telegram's format: plain text and formatting entities.

1. Text and entities are sent separately, so no text can become markup and nothing is escaped. Offsets count UTF-16
   units.
2. The entities obey the rules of the Bot API: no entity contains or is part of `code` or `pre`, apart from a quote
   around them, and quotes are not nested. Telegram drops entities that break the rules, links among them.
3. What Telegram cannot show is shown in another way: a table in monospaced text, a rule as a line, a picture as a
   link.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from telegram import MessageEntity

from foveal.server.gateways.markdown_blocks import MessageBlock, plain_inline, read_blocks
from foveal.server.gateways.split_message import utf16

MAX_ENTITIES: Final = 100
"""Telegram ignores further entities of a message."""
HORIZONTAL_RULE: Final = "———"
MAX_TELEGRAM_TABLE_WIDTH: Final = 40
"""Characters of a line of a table; phones wrap longer lines."""
_INDENT: Final = "  "
_DECORATION: Final = (MessageEntity.BOLD, MessageEntity.ITALIC)
"""Entities that are left out if there are too many, the last one first."""
_KINDS: Final = {
    "bold": MessageEntity.BOLD,
    "italic": MessageEntity.ITALIC,
    "strikethrough": MessageEntity.STRIKETHROUGH,
    "code": MessageEntity.CODE,
    "link": MessageEntity.TEXT_LINK,
}


class FormattedText(NamedTuple):
    """A text and its formatting, as Telegram takes them."""

    text: str
    entities: tuple[MessageEntity, ...] = ()


def sendable(text: str) -> str:
    """Return a text without characters that cannot be sent: NUL and unpaired surrogates."""
    return text.replace("\0", "").encode("utf-8", "replace").decode("utf-8")


def telegram_blocks(markdown: str) -> list[MessageBlock]:
    """Return the blocks of a message."""
    return read_blocks(
        sendable(markdown), inline=plain_inline, has_references=True, max_table_width=MAX_TELEGRAM_TABLE_WIDTH
    )


def format_markdown(markdown: str) -> FormattedText:
    """Return Markdown as one text with entities, whatever its size."""
    return format_blocks(telegram_blocks(markdown))


class _Range(NamedTuple):
    """An entity with offsets in characters."""

    kind: str
    start: int
    end: int
    url: str | None = None
    language: str | None = None


def format_blocks(blocks: Sequence[MessageBlock]) -> FormattedText:
    """Return blocks as text and entities."""
    text = ""
    ranges: list[_Range] = []
    quote_start, quote = 0, 0
    for number, block in enumerate(blocks):
        if number:
            text += block_gap(block)
        if block.quote != quote:
            quote_start, quote = len(text), block.quote
        text += block_prefix(block)
        ranges += _block_ranges(block, start=len(text))
        text += block_text(block)
        if quote and (number + 1 == len(blocks) or blocks[number + 1].quote != quote):
            ranges.append(_Range(MessageEntity.BLOCKQUOTE, quote_start, len(text)))
    whole = text.rstrip()
    return FormattedText(whole, tuple(_entities(whole, _most_important(ranges))))


def block_gap(block: MessageBlock) -> str:
    """Return the line breaks between a block and the one before it."""
    return "\n" if block.is_close else "\n\n"


def block_prefix(block: MessageBlock) -> str:
    """Return the indentation and the marker of a list item."""
    if not block.is_first:
        return ""
    marker = block.items[-1]
    return _INDENT * (len(block.items) - 1) + (marker if marker[0].isdigit() else "•") + " "


def block_text(block: MessageBlock) -> str:
    """Return the text of a block as Telegram shows it."""
    if block.kind == "rule":
        return HORIZONTAL_RULE
    return f"{block.header}\n{block.body.text}" if block.header else block.body.text


def important_entities(block: MessageBlock) -> int:
    """Return how many entities a block needs at most, without those that may be left out."""
    inside = sum(_KINDS[mark.kind] not in _DECORATION for mark in block.body.marks)
    return inside + block.is_monospace + (block.quote > 0)


def _block_ranges(block: MessageBlock, *, start: int) -> list[_Range]:
    end = start + len(block_text(block))
    if block.is_monospace:
        return [_Range(MessageEntity.PRE, start, end, language=block.language or None)]
    ranges = [
        _Range(
            _KINDS[mark.kind],
            start + mark.start,
            start + mark.end,
            url=mark.value if mark.kind == "link" else None,
        )
        for mark in block.body.marks
    ]
    if block.kind != "heading":
        return ranges
    # A heading is bold; nothing else in it can be bold, and bold must not contain code.
    others = [found for found in ranges if found.kind != MessageEntity.BOLD]
    borders = [
        start,
        *(place for found in others if found.kind == MessageEntity.CODE for place in found[1:3]),
        end,
    ]
    bold = [_Range(MessageEntity.BOLD, *pair) for pair in zip(borders[::2], borders[1::2], strict=True)]
    return [*bold, *others]


def _most_important(ranges: Iterable[_Range]) -> list[_Range]:
    kept = sorted(
        (found for found in ranges if found.start < found.end),
        key=lambda found: _DECORATION.index(found.kind) + 1 if found.kind in _DECORATION else 0,
    )
    return kept[:MAX_ENTITIES]


def _entities(text: str, ranges: Iterable[_Range]) -> Iterable[MessageEntity]:
    order = sorted(
        ranges, key=lambda found: (found.start, -found.end, found.kind != MessageEntity.BLOCKQUOTE)
    )
    position, offset = 0, 0
    for found in order:
        end = min(found.end, len(text))
        offset += utf16(text[position : found.start])
        position = found.start
        if end > found.start:
            length = utf16(text[found.start : end])
            yield MessageEntity(found.kind, offset, length, url=found.url, language=found.language)
