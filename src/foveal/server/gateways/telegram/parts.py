"""Splits a message into parts that Telegram accepts.

1. A part has at most 4,096 UTF-16 units and 100 entities. Bold and italics are left out before any other entity;
   a part that needs more than 100 others is divided.
2. Each part of a table has the table's header; each part of code has its language; each part of a quote is a quote.
3. The same message always has the same parts.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from foveal.server.gateways.markdown_blocks import MessageBlock, cut_block
from foveal.server.gateways.outgoing import ChannelMessage
from foveal.server.gateways.split_message import PartSize, pack, utf16
from foveal.server.gateways.telegram.entities import (
    MAX_ENTITIES,
    FormattedText,
    block_gap,
    block_prefix,
    block_text,
    format_blocks,
    important_entities,
    sendable,
    telegram_blocks,
)

TELEGRAM_MESSAGE_LIMIT: Final = 4096
"""UTF-16 units of one message."""
REFUSED_PART: Final = "(Telegram does not accept this part of the answer; it is stored on the server.)"
_ROOM: Final = PartSize(TELEGRAM_MESSAGE_LIMIT, MAX_ENTITIES)


def telegram_parts(message: ChannelMessage) -> list[FormattedText]:
    """Return the text and the footer in parts; at least one."""
    blocks = telegram_blocks(message.text)
    cut = partial(cut_block, window=TELEGRAM_MESSAGE_LIMIT, fits=lambda block: _size(block).fits(_ROOM))
    packed = pack(blocks, room=_ROOM, size=_size, cut=cut, is_heading=lambda block: block.kind == "heading")
    formatted = [part for part in map(format_blocks, packed) if part.text]
    parts = formatted or [FormattedText(REFUSED_PART)]
    return _with_footer(parts, sendable(message.footer)) if message.footer else parts


def _size(block: MessageBlock) -> PartSize:
    units = utf16(block_prefix(block)) + utf16(block_text(block))
    return PartSize(units, important_entities(block), gap=len(block_gap(block)))


def _with_footer(parts: list[FormattedText], footer: str) -> list[FormattedText]:
    """Add the footer to the last part, or as a part of its own if it does not fit."""
    *rest, last = parts
    if utf16(last.text) + utf16(footer) + 2 > TELEGRAM_MESSAGE_LIMIT:
        return [*parts, FormattedText(footer)]
    return [*rest, FormattedText(f"{last.text}\n\n{footer}", last.entities)]
