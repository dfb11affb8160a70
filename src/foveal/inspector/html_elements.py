"""HTML as text: every string that is not `Html` is escaped, in one place.

Characters that cannot be seen or that turn the direction of text are shown as their codes, and lone surrogates too,
so a page is always valid UTF-8.
"""

from __future__ import annotations

from html import escape
from typing import Final

from foveal.core.wire.safe_print import readable

_VOID_ELEMENTS: Final = frozenset({"input", "link", "meta"})


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def escaped(text: str) -> Html:
    """Return text as HTML; `Html` stays as it is."""
    return text if isinstance(text, Html) else Html(escape(readable(text), quote=True))


def element(name: str, attributes: dict[str, str] | None = None, *children: str) -> Html:
    """Return an element; attributes and children that are not `Html` are escaped."""
    written = "".join(f' {key}="{escaped(value)}"' for key, value in (attributes or {}).items())
    if name in _VOID_ELEMENTS:
        return Html(f"<{name}{written}>")
    return Html(f"<{name}{written}>{''.join(map(escaped, children))}</{name}>")


def joined(*parts: str) -> Html:
    """Return the parts one after the other."""
    return Html("".join(map(escaped, parts)))
