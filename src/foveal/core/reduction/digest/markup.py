"""Text of HTML and XML, in the form that the digests of other texts read."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import Final

_UNSHOWN: Final = (("<script", "</script"), ("<style", "</style"), ("<svg", "</svg"), ("<!--", "-->"))
"""Elements that hold no text."""
_TAG: Final = re.compile(r"<(/?)([A-Za-z][\w:.-]{0,40})([^<>]{0,2000})>|<[!?][^<>]{0,2000}>")
_HTML_SIGN: Final = re.compile(r"<(?:html|body|div|p|h1|tr|li)\b", re.IGNORECASE)
_INLINE_TAGS: Final = frozenset(
    ("a", "b", "code", "em", "i", "small", "span", "strong", "sub", "sup", "time", "u")
)
_HEADING_TAGS: Final = frozenset(("title", "h1", "h2", "h3", "h4", "h5", "h6"))
_EMPTY_FIELD: Final = re.compile(r"^[ \t]*[\w:.-]+: *$", re.MULTILINE)


def without_markup(text: str) -> str:
    """Return the text of a page, with headings after `#` and cells after `|`; of XML, elements as fields."""
    for opening, closing in _UNSHOWN:
        if opening in text:
            text = "".join(_outside(text, opening, closing))
    plain = _TAG.sub(_html_tag if _HTML_SIGN.search(text) else _xml_tag, text)
    return html.unescape(_EMPTY_FIELD.sub("", plain))


def _outside(text: str, opening: str, closing: str) -> Iterator[str]:
    end = 0
    while (start := text.find(opening, end)) >= 0:
        yield text[end:start]
        end = text.find(closing, start)
        if end < 0:
            return
        end += closing.endswith(">") and len(closing)
    yield text[end:]


def _html_tag(tag: re.Match[str]) -> str:
    name = (tag[2] or "").lower()
    if name in _INLINE_TAGS:
        return ""
    if name in ("td", "th"):
        return "" if tag[1] else " | "
    return "\n# " if name in _HEADING_TAGS and not tag[1] else "\n"


def _xml_tag(tag: re.Match[str]) -> str:
    return "\n" if tag[1] or not tag[2] else f"\n{tag[2]}: "
