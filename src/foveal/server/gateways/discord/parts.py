"""Splits a message into parts that Discord accepts: at most 2,000 characters of Markdown.

1. A message that fits and has no table is sent as it was written.
2. Otherwise each part is valid Markdown by itself: what a cut interrupts (bold, a link, code, a quote) is closed at
   the end of a part and opened again in the next. Numbered items keep their numbers.
3. Discord has no tables: a table becomes a code block with aligned columns, with its header in each part.
4. The same message always has the same parts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from foveal.server.gateways.inline_markdown import source_inline
from foveal.server.gateways.markdown_blocks import MessageBlock, cut_block, read_blocks
from foveal.server.gateways.outgoing import ChannelMessage
from foveal.server.gateways.split_message import MarkedText, PartSize, TextMark, pack, utf16
from foveal.server.gateways.texts import SUBTEXT

DISCORD_MESSAGE_LIMIT: Final = 2_000
"""Size of a message, counted in UTF-16 units as Discord's clients do, which is never too low."""
MAX_DISCORD_TABLE_WIDTH: Final = 60
"""Characters of a line of a table."""
_QUOTE: Final = "> "
_ESCAPE: Final = 1
"""Units that `_escape_start` may add."""
_ROOM: Final = PartSize(DISCORD_MESSAGE_LIMIT)
_BACKTICKS: Final = re.compile("`{3,}")
_FENCE_END: Final = re.compile(r"(?:`{3,}|~{3,})$")
_BLOCK_START: Final = re.compile(r"(?P<sign>[-*+#>]+)(?=\s)|(?P<number>\d+)(?=[.)]\s)")


def discord_parts(message: ChannelMessage) -> list[str]:
    """Return the text and the footer in parts."""
    footer = "\n".join(f"{SUBTEXT}{line}" for line in message.footer.splitlines() if line.strip())
    parts = markdown_parts(_valid_unicode(message.text))
    if not footer:
        return parts
    if parts and utf16(parts[-1]) + 1 + utf16(footer) <= DISCORD_MESSAGE_LIMIT:
        return [*parts[:-1], f"{parts[-1]}\n{footer}"]
    return [*parts, *markdown_parts(footer)]


def markdown_parts(markdown: str) -> list[str]:
    """Return Markdown in parts, none of them blank."""
    blocks = read_blocks(
        markdown, inline=source_inline, has_references=False, max_table_width=MAX_DISCORD_TABLE_WIDTH
    )
    source = markdown.strip("\n").rstrip()
    if utf16(source) <= DISCORD_MESSAGE_LIMIT and _is_complete(source, blocks):
        return [source] if source else []
    cut = partial(cut_block, window=DISCORD_MESSAGE_LIMIT, fits=_fits, continued=_escape_start)
    packed = pack(blocks, room=_ROOM, size=_size, cut=cut, is_heading=lambda block: block.kind == "heading")
    return [part for part in map(_render, packed) if part]


def _is_complete(source: str, blocks: Sequence[MessageBlock]) -> bool:
    """Return whether Discord shows a source as it is: without tables, and with an end of its last code block."""
    if any(block.kind == "table" for block in blocks):
        return False
    return not blocks or blocks[-1].kind != "code" or bool(_FENCE_END.search(source))


def _size(block: MessageBlock) -> PartSize:
    gap = 2 + len(_QUOTE) * (block.quote > 0) if block.is_separate else 1
    return PartSize(utf16(_render_block(block)), gap=gap)


def _fits(block: MessageBlock) -> bool:
    return _size(block).fits(PartSize(_ROOM.units - _ESCAPE))


def _escape_start(text: MarkedText) -> MarkedText:
    """Return the rest of a paragraph so that its first characters are not read as a list, quote or heading."""
    found = _BLOCK_START.match(text.text)
    if not found:
        return text
    place = 0 if found["sign"] else found.end()
    marks = tuple(
        mark._replace(start=mark.start + (mark.start >= place), end=mark.end + (mark.end > place))
        for mark in text.marks
    )
    return MarkedText(f"{text.text[:place]}\\{text.text[place:]}", marks)


# ── Rendering ────────────────────────────────────────────────────────────────────────────────────────────


def _render(blocks: Sequence[MessageBlock]) -> str:
    text = ""
    for number, block in enumerate(blocks):
        if number and block.is_separate:
            same_quote = block.quote and block.quote == blocks[number - 1].quote
            text += f"\n{_QUOTE if same_quote else ''}"
        text += ("\n" if number else "") + _render_block(block)
    return text.strip("\n").rstrip()


def _render_block(block: MessageBlock) -> str:
    """Return a block as Markdown, with the list and the quote around it."""
    first, rest = _prefixes(block)
    match block.kind:
        case "code" | "table":
            text = f"{block.header}\n{block.body.text}" if block.header else block.body.text
            fence = "`" * max([3, *(len(run) + 1 for run in _BACKTICKS.findall(text))])
            # Discord takes the indentation of a code block for a part of the code.
            return _prefixed(f"{fence}{block.language}\n{text}\n{fence}", _QUOTE * (block.quote > 0))
        case "rule":
            return first + "---"
        case "heading":
            return first + "#" * block.level + " " + _render_inline(block.body).replace("\n", " ")
        case "paragraph":
            return first + _prefixed(_render_inline(block.body), rest).removeprefix(rest)


def _prefixes(block: MessageBlock) -> tuple[str, str]:
    """Return what stands before the first line of a block, and before its other lines."""
    quote = _QUOTE * (block.quote > 0)
    indents = [" " * (len(marker) + 1) for marker in block.items]
    rest = quote + "".join(indents)
    return (quote + "".join(indents[:-1]) + block.items[-1] + " " if block.is_first else rest), rest


def _prefixed(text: str, prefix: str) -> str:
    return "\n".join(prefix + line for line in text.split("\n"))


def _render_inline(inline: MarkedText) -> str:
    """Return text and marks as Markdown."""
    pieces: list[str] = []
    position = 0
    for place, _, delimiter in sorted(_delimiters(inline)):
        pieces += [inline.text[position:place], delimiter]
        position = place
    return "".join([*pieces, inline.text[position:]])


def _delimiters(inline: MarkedText) -> Iterator[tuple[int, int, str]]:
    """Yield position, order and text of each delimiter; at one position, inner marks end first."""
    count = len(inline.marks)
    for number, mark in enumerate(inline.marks):
        opening, closing = _delimiter_pair(mark, inline.text)
        yield mark.start, count + number, opening
        yield mark.end, count - number - 1, closing


def _delimiter_pair(mark: TextMark, text: str) -> tuple[str, str]:
    match mark.kind:
        case "link":
            is_plain = "(" not in mark.value and ")" not in mark.value
            return "[", f"]({mark.value})" if is_plain else f"](<{mark.value}>)"
        case "code":
            inside = text[mark.start : mark.end]
            space = " " if "`" in (inside[0], inside[-1]) else ""
            return mark.value + space, space + mark.value
        case _:
            return mark.value, mark.value


def _valid_unicode(text: str) -> str:
    """Return a text without unpaired surrogates, which JSON for Discord cannot represent."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
