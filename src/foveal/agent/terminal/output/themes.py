"""Themes: the colours and characters that the terminal can show.

1. `FOVEAL_THEME` is `dark`, `light` or `plain`. Otherwise the background is read from `COLORFGBG`, which some
   terminals set; if it is not known, the colours are legible on black and on white.
2. `NO_COLOR` means no colours. A terminal of 16 colours gets only those.
3. Where the locale is not UTF-8, the marks of the screen are ASCII characters of the same width.

The terminal is not asked for its background: an answer that comes late would be read as input.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final, Literal

import msgspec

Background = Literal["dark", "light", "unknown"]

SGR_CODES: Final[dict[str, str]] = {
    "bold": "1",
    "dim": "2",
    "good": "32",
    "fair": "33",
    "bad": "31",
    "accent": "36",
    "blue": "34",
    "magenta": "35",
}
"""Codes of the styles for terminals of 16 colours, which have their own palette."""
LIGHT_SGR_CODES: Final = {**SGR_CODES, "fair": "35", "accent": "34"}
"""Without yellow and cyan, which are hard to read on white."""
COLOUR_NUMBERS: Final[dict[Background, dict[str, int]]] = {
    "dark": {"dim": 246, "good": 77, "fair": 179, "bad": 203, "accent": 80, "blue": 75, "magenta": 176},
    "light": {"dim": 242, "good": 28, "fair": 130, "bad": 160, "accent": 30, "blue": 26, "magenta": 127},
    "unknown": {"dim": 244, "good": 28, "fair": 166, "bad": 160, "accent": 31, "blue": 33, "magenta": 133},
}
"""Colours of the palette of 256 colours; those for an unknown background have a contrast of at least 3 on both."""
ASCII_MARKS: Final = str.maketrans(
    "│┊└●▪✗›…·▕▏█■▣□▫–—→←↑↓◐◓◑◒⏎␊“”‘’×−•▌─━═┃║┏┓┗┛┡┩├┤┬┴┼╇╈",
    "||`*-x>~.[]##%-.--><^v|/-\\\\\\\"\"''x-*|---||+++++++++++++",
)
"""ASCII characters of one column for the characters that the screen draws."""


class Theme(msgspec.Struct, frozen=True, kw_only=True):
    """How styles become codes, and which characters are used."""

    codes: Mapping[str, str] = msgspec.field(default_factory=lambda: SGR_CODES)
    """SGR codes by style; empty for no colours."""
    background: Background = "unknown"
    colours: int = 16
    """Number of colours: 0, 16 or 256 (also for terminals with more)."""
    is_unicode: bool = True

    def characters(self, text: str) -> str:
        """Return a text in characters that the terminal can show."""
        if self.is_unicode or text.isascii():
            return text
        return text.translate(ASCII_MARKS).encode("ascii", "backslashreplace").decode()


def terminal_theme(environ: Mapping[str, str] = os.environ) -> Theme:
    """Return the theme of the terminal that the environment describes."""
    wanted = environ.get("FOVEAL_THEME", "")
    is_unicode = has_unicode(environ)
    if environ.get("NO_COLOR") or wanted == "plain":
        return Theme(codes={}, colours=0, is_unicode=is_unicode)
    background = _background(wanted, environ)
    if not _has_256_colours(environ):
        codes = LIGHT_SGR_CODES if background == "light" else SGR_CODES
        return Theme(codes=codes, background=background, is_unicode=is_unicode)
    numbers = {style: f"38;5;{number}" for style, number in COLOUR_NUMBERS[background].items()}
    return Theme(codes={"bold": "1", **numbers}, background=background, colours=256, is_unicode=is_unicode)


def _background(wanted: str, environ: Mapping[str, str]) -> Background:
    if wanted in ("dark", "light"):
        return "dark" if wanted == "dark" else "light"
    *_, number = environ.get("COLORFGBG", "").split(";")
    if not number.isdecimal():
        return "unknown"
    return "light" if int(number) in (7, *range(9, 16)) else "dark"


def _has_256_colours(environ: Mapping[str, str]) -> bool:
    return "256" in environ.get("TERM", "") or environ.get("COLORTERM", "") in ("truecolor", "24bit")


def has_unicode(environ: Mapping[str, str]) -> bool:
    """Return whether the locale is UTF-8; one that is not set counts as UTF-8, as terminals are today."""
    name = environ.get("LC_ALL") or environ.get("LC_CTYPE") or environ.get("LANG") or "UTF-8"
    return name.casefold().replace("-", "").endswith(("utf8", "utf8@euro"))
