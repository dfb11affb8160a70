"""Makes untrusted text safe to print in a terminal.

1. `visible` is for what a user decides about: commands, paths, arguments, changes. Each character that looks like
   nothing or like a blank, other than the space, becomes a symbol (`␛`) or a mark (`⟨U+202E⟩`), and so does what
   looks like a symbol or a mark. So does a Cyrillic, Greek or similar letter in a word with Latin ones, which looks
   like one of them. It is applied once, to the text as it is.
2. `printable` is for prose on a screen. It replaces control, zero-width, bidirectional and tag characters, and
   keeps spaces of other languages and the selectors of emoji.
3. `readable` replaces the same characters by their codes (`\\u{202e}`). Stored summaries depend on it: it does not
   change.
4. Only the printed text changes, never what is stored.

`counted` and `seconds_text` are for numbers in such texts.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Final

_UNSAFE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0e\ufeff\uffa0\ufff9-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_NOT_PLAIN: Final = re.compile(r"[^\x20-\x7e\n\t]")
MARK: Final = re.compile(r"⟨U\+[0-9A-F]{4,6}⟩")
_LOOK_ALIKES: Final = re.compile(rf"(?={MARK.pattern})⟨|[\u2400-\u2424⏎]")
"""Characters of a text that look like a mark, or like a symbol for a character that cannot be seen."""
_FOREIGN_LETTERS: Final = (
    "\u0391\u0392\u0395-\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a5\u03a7\u03b9\u03bd\u03bf\u03c1\u03c5"
    "\u0400-\u058f\u13a0-\u13ff\u2c80-\u2cff\ua4d0-\ua4ff\uab70-\uabbf"
)
"""Letters of scripts that have some like the Latin ones: Greek, as far as they are alike, Cyrillic, Armenian,
Cherokee, Coptic and Lisu."""
_FOREIGN_LETTER: Final = re.compile(rf"[{_FOREIGN_LETTERS}]")
_MATHEMATICAL: Final = re.compile("[\U0001d400-\U0001d7ff]")
"""Letters of formulas, which look like Latin ones."""
_WORD: Final = re.compile(r"[^\W_]+")
_LATIN_LETTER: Final = re.compile(r"[A-Za-z]")
_UNSEEN_CATEGORIES: Final = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs"})
_BLANKS: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U00016fe4\U0001107f\U0001d159"
    "\U000e0100-\U000e01ef]"
)
"""Letters, marks and symbols that are drawn as nothing: fillers, variation selectors, the empty Braille cell."""
_UNCLEAR_SPACES: Final = re.compile(r"^ +| +$| {2,}")
TERMINAL_SEQUENCE: Final = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])|\x9b[0-?]*[ -/]*[@-~]"
)
"""Orders to a terminal, such as colours."""
MAX_MARKS_PER_LETTER: Final = 8
MAX_KNOWN_UNSEEN: Final = 65_536
"""Characters of which it is remembered whether they are seen: a text can have millions."""


def visible(text: str) -> str:
    """Return the text with each character that cannot be seen as a symbol or a mark; newlines and tabs stay."""
    if text.isascii() and text.isprintable():
        return text
    return unhidden(_LOOK_ALIKES.sub(_mark, text))


def unhidden(text: str) -> str:
    """Return what `visible` does, for a text that can have its symbols and marks already: they stay."""
    if text.isascii() and text.isprintable():
        return text
    if _FOREIGN_LETTER.search(text):
        text = _WORD.sub(_show_word, text)
    return _NOT_PLAIN.sub(_show, _MATHEMATICAL.sub(_mark, text))


def marked(text: str) -> str:
    """Return the text with a mark for each character outside of ASCII, for names that are hardly ever others."""
    return _NOT_PLAIN.sub(_mark, text)


def printable(text: str) -> str:
    """Return prose with each unsafe character as a symbol or a mark; newlines and tabs stay."""
    if text.isascii() and text.isprintable():
        return text
    return _UNSAFE.sub(_mark, text)


def readable(text: str) -> str:
    """Return prose with each unsafe character as a symbol or its code; newlines and tabs stay."""
    if text.isascii() and text.isprintable():
        return text
    return _UNSAFE.sub(_escape, text)


def one_line(text: str, *, width: int = 80) -> str:
    """Return the first `width` characters of a text on one line, safe to print; blanks become single spaces. It is
    for titles and excerpts, not for what a user decides about."""
    words = printable(" ".join(text.split(maxsplit=width)))
    return words if len(words) <= width else words[: width - 1] + "…"


def exact_line(text: str) -> str:
    """Return all of a text on one line with every character visible; spaces at its ends and runs of them too."""
    line = visible(text).replace("\n", "␊").replace("\t", "␉")
    return _UNCLEAR_SPACES.sub(lambda found: "␠" * len(found.group()), line)


def _show_word(match: re.Match[str]) -> str:
    word = match.group()
    return _FOREIGN_LETTER.sub(_mark, word) if _LATIN_LETTER.search(word) else word


def _show(match: re.Match[str]) -> str:
    character, at = match.group(), match.start()
    if _is_unseen(character):
        return _mark(match)
    # A mark that follows no letter changes a character of the text around it, or stands on a blank.
    if unicodedata.category(character)[0] == "M" and not _has_letter_before(match.string, at):
        return _mark(match)
    return character


@lru_cache(maxsize=MAX_KNOWN_UNSEEN)
def _is_unseen(character: str) -> bool:
    return unicodedata.category(character) in _UNSEEN_CATEGORIES or _BLANKS.match(character) is not None


def _has_letter_before(text: str, at: int) -> bool:
    """Return whether a letter or digit stands before this place, with a few marks between them at most."""
    for character in reversed(text[max(0, at - MAX_MARKS_PER_LETTER) : at]):
        if _is_unseen(character):
            return False
        if (category := unicodedata.category(character)[0]) != "M":
            return category in "LN"
    return False


def _mark(match: re.Match[str]) -> str:
    code = ord(match.group())
    return chr(0x2400 + code) if code < 0x20 else f"⟨U+{code:04X}⟩"


def _escape(match: re.Match[str]) -> str:
    code = ord(match.group())
    return chr(0x2400 + code) if code < 0x20 else f"\\u{{{code:x}}}"


def counted(count: int, unit: str, units: str = "") -> str:
    """Return a number with its unit, in the plural (`units`, by default with an s) unless it is 1."""
    return f"{count:,} {unit if count == 1 else units or f'{unit}s'}"


def seconds_text(seconds: float) -> str:
    """Return a duration in words, such as `1 second` or `0.5 seconds`."""
    return f"{seconds:g} second{'s' * (seconds != 1)}"
