"""Converts Markdown to Telegram's format: plain text and formatting entities.

Text and entities are sent separately, so no text can become markup and nothing is escaped. What Telegram cannot
show (tables, rules, pictures) is shown as source text or as a link. Offsets count UTF-16 units.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token
from telegram import MessageEntity

from foveal.apps.gateways.split_message import utf16

_PARSER: Final = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
_INLINE: Final = {"strong": MessageEntity.BOLD, "em": MessageEntity.ITALIC, "s": MessageEntity.STRIKETHROUGH}
_MAX_ENTITIES: Final = 100
"""Telegram ignores further entities of a message."""
_INDENT: Final = "  "
HORIZONTAL_RULE: Final = "———"


class FormattedText(NamedTuple):
    """A text and its formatting, as Telegram takes them."""

    text: str
    entities: tuple[MessageEntity, ...] = ()


def sendable(text: str) -> str:
    """Return a text without characters that cannot be sent: NUL and unpaired surrogates."""
    return text.replace("\0", "").encode("utf-8", "replace").decode("utf-8")


def format_markdown(markdown: str) -> FormattedText:
    """Return Markdown as text and entities."""
    return _Formatter(sendable(markdown)).result()


class _OpenEntity(NamedTuple):
    kind: str
    start: int
    url: str = ""


class _List(NamedTuple):
    ordered: bool
    next: int


class _Formatter:
    """Converts the tokens in one pass; holds the text so far and the open entities."""

    def __init__(self, source: str) -> None:
        self._lines = source.split("\n")
        self._text: list[str] = []
        self._length = 0
        self._entities: list[MessageEntity] = []
        self._open: list[_OpenEntity] = []
        self._lists: list[_List] = []
        self._table = False
        self._gap = ""
        """Line breaks to write before the next block."""
        self._blocks(_PARSER.parse(source))

    def result(self) -> FormattedText:
        text = "".join(self._text)
        whole = text.rstrip()
        end = self._length - utf16(text[len(whole) :])
        kept = [
            entity for entity in self._entities if entity.offset + entity.length <= end and entity.length > 0
        ]
        return FormattedText(
            whole, tuple(sorted(kept, key=lambda entity: (entity.offset, -entity.length))[:_MAX_ENTITIES])
        )

    # ── Writing ──────────────────────────────────────────────────────────────────────────────────────

    def _write(self, text: str) -> None:
        if self._gap and self._length:
            gap, self._gap = self._gap, ""
            self._text.append(gap)
            self._length += utf16(gap)
        self._gap = ""
        self._text.append(text)
        self._length += utf16(text)

    def _begin(self, kind: str, url: str = "") -> None:
        if self._gap:
            self._write("")
        self._open.append(_OpenEntity(kind, self._length, url))

    def _end(self) -> None:
        opened = self._open.pop()
        length = self._length - opened.start
        quoted = opened.kind == MessageEntity.BLOCKQUOTE
        # Telegram has no nested quotes.
        nested = quoted and any(other.kind == opened.kind for other in self._open)
        if length > 0 and not nested:
            url = opened.url or None
            self._entities.append(MessageEntity(opened.kind, opened.start, length, url=url))

    def _write_entity(self, kind: str, text: str, language: str = "") -> None:
        """Write a text that is one entity."""
        self._write("")
        start = self._length
        self._write(text)
        if text.strip():
            length = self._length - start
            self._entities.append(MessageEntity(kind, start, length, language=language or None))

    # ── Blocks ───────────────────────────────────────────────────────────────────────────────────────

    def _blocks(self, tokens: Sequence[Token]) -> None:
        for token in tokens:
            if token.type == "table_open":
                self._table = True
                first, last = token.map or (0, 0)
                self._write_entity(MessageEntity.PRE, "\n".join(self._lines[first:last]).strip("\n"))
            elif token.type == "table_close":
                self._table = False
                self._gap = "\n\n"
            elif not self._table:
                self._block(token)

    def _block(self, token: Token) -> None:
        match token.type:
            case "inline":
                self._inline(token.children or [])
            case "heading_open":
                self._begin(MessageEntity.BOLD)
            case "heading_close" | "blockquote_close":
                self._end()
                self._gap = "\n\n"
            case "blockquote_open":
                self._begin(MessageEntity.BLOCKQUOTE)
            case "paragraph_close":
                self._gap = "\n" if token.hidden or self._lists else "\n\n"
            case "bullet_list_open":
                self._lists.append(_List(ordered=False, next=0))
            case "ordered_list_open":
                self._lists.append(_List(ordered=True, next=int(token.attrs.get("start", 1))))
            case "bullet_list_close" | "ordered_list_close":
                self._lists.pop()
                self._gap = "\n" if self._lists else "\n\n"
            case "list_item_open":
                self._item()
            case "list_item_close":
                self._gap = "\n"
            case "fence" | "code_block":
                self._write_entity(
                    MessageEntity.PRE, token.content.rstrip("\n"), token.info.split(" ")[0][:30]
                )
                self._gap = "\n" if self._lists else "\n\n"
            case "hr":
                self._write(HORIZONTAL_RULE)
                self._gap = "\n\n"
            case _:
                if token.content:
                    self._write(token.content)

    def _item(self) -> None:
        top = self._lists[-1]
        mark = f"{top.next}. " if top.ordered else "• "
        self._lists[-1] = top._replace(next=top.next + 1)
        if self._length and not self._gap:
            self._gap = "\n"
        self._write(_INDENT * (len(self._lists) - 1) + mark)

    # ── Inline ───────────────────────────────────────────────────────────────────────────────────────

    def _inline(self, tokens: Sequence[Token]) -> None:
        for token in tokens:
            name = token.type.removesuffix("_open").removesuffix("_close")
            if name in _INLINE:
                self._begin(_INLINE[name]) if token.nesting == 1 else self._end()
                continue
            match token.type:
                case "softbreak" | "hardbreak":
                    self._write("\n")
                case "code_inline":
                    self._write_entity(MessageEntity.CODE, token.content)
                case "link_open":
                    self._begin_link(str(token.attrs.get("href", "")))
                case "link_close":
                    self._end_link()
                case "image":
                    self._begin_link(str(token.attrs.get("src", "")))
                    self._write(token.content or "picture")
                    self._end_link()
                case _:
                    self._write(token.content)

    def _begin_link(self, url: str) -> None:
        self._begin(MessageEntity.TEXT_LINK, url)

    def _end_link(self) -> None:
        """End a link to the web as an entity; write any other address after its text."""
        opened = self._open[-1]
        if opened.url.startswith(("http://", "https://")) and len(opened.url) <= 2_000:
            self._end()
            return
        self._open.pop()
        if opened.url:
            self._write(f" ({opened.url})")
