"""Reads the inline Markdown of a block as text and marks.

`plain_inline` returns what a reader sees, for chat apps that take formatting beside the text. `source_inline`
returns the source without the delimiters of its marks, for chat apps that take Markdown: escapes stay in it.
Neither loses the address of a link: an address that cannot be a link is written after the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from markdown_it.token import Token

from foveal.server.gateways.split_message import MarkedText, TextMark

_KINDS: Final = {"strong": "bold", "em": "italic", "s": "strikethrough"}
_MAX_LINK_CHARS: Final = 2_000
"""A longer address is written after its text: Telegram refuses it in a link."""
_MAX_SOURCE_LINK_CHARS: Final = 800
"""The same bound where the address takes room in the message."""


def plain_inline(tokens: Sequence[Token]) -> MarkedText:
    """Return the text that a reader sees, and its marks; marks never overlap code, and code is no link."""
    return _InlineReader(tokens, is_source=False).result()


def source_inline(tokens: Sequence[Token]) -> MarkedText:
    """Return the source with its marks taken out."""
    return _InlineReader(tokens, is_source=True).result()


class _OpenMark(NamedTuple):
    kind: str
    start: int
    value: str
    place: int
    """Where the mark belongs in the order of the marks."""
    written: int
    """How many texts were written before it."""


class _InlineReader:
    def __init__(self, tokens: Sequence[Token], *, is_source: bool) -> None:
        self._is_source = is_source
        self._max_link_chars = _MAX_SOURCE_LINK_CHARS if is_source else _MAX_LINK_CHARS
        self._text: list[str] = []
        self._length = 0
        self._marks: list[TextMark | None] = []
        self._open: list[_OpenMark] = []
        for token in tokens:
            self._read(token)

    def result(self) -> MarkedText:
        text = "".join(self._text)
        return MarkedText(text, tuple(mark for mark in self._marks if mark)).slice(0, len(text))

    def _read(self, token: Token) -> None:
        name = token.type.removesuffix("_open").removesuffix("_close")
        if name in _KINDS:
            self._begin(_KINDS[name], token.markup) if token.nesting == 1 else self._end()
            return
        match token.type:
            case "softbreak" | "hardbreak":
                self._write("\n")
            case "code_inline":
                self._code(token)
            case "link_open" | "link_close" if self._is_source and token.markup == "autolink":
                self._write("<" if token.nesting == 1 else ">")
            case "link_open":
                self._begin("link", str(token.attrs.get("href", "")))
            case "link_close":
                self._end_link()
            case "image":
                self._begin("link", str(token.attrs.get("src", "")))
                self._write(token.content or "picture")
                self._end_link()
            case "text_special" if self._is_source:
                self._write(token.markup)
            case _:
                self._write(token.content)

    def _write(self, text: str) -> None:
        self._text.append(text)
        self._length += len(text)

    def _begin(self, kind: str, value: str) -> None:
        self._open.append(_OpenMark(kind, self._length, value, len(self._marks), len(self._text)))
        self._marks.append(None)

    def _end(self) -> None:
        opened = self._open.pop()
        self._marks[opened.place] = TextMark(opened.kind, opened.start, self._length, opened.value)

    def _code(self, token: Token) -> None:
        """Write code as a mark of its own; Telegram shows no other mark around code, and no link on it."""
        if self._is_source:
            self._begin("code", token.markup)
            self._write(token.content)
            self._end()
        elif any(mark.kind == "link" for mark in self._open):
            self._write(token.content)
        else:
            interrupted = list(self._open)
            while self._open:
                self._end()
            self._begin("code", token.markup)
            self._write(token.content)
            self._end()
            for mark in interrupted:
                self._begin(mark.kind, mark.value)

    def _end_link(self) -> None:
        """End a link; write the address after its text if it cannot be a link."""
        opened = self._open[-1]
        if not "".join(self._text[opened.written :]).strip():
            self._open.pop()
            self._write(opened.value)
        elif opened.value.startswith(("http://", "https://")) and len(opened.value) <= self._max_link_chars:
            self._end()
        else:
            self._open.pop()
            self._write(f" ({opened.value})" if opened.value else "")
