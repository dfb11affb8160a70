"""One text replaced in another: exactly, and where it is meant; or an answer that helps to find what was meant."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Final

from foveal.tools.arguments import Refused

_LOOKED_AT: Final = 5_000
"""Lines that are compared with what was not found."""
_LONG: Final = 500
"""Characters of a line that is compared or shown."""
_SHOWN: Final = 12


def replaced(text: str, old: str, new: str, *, everywhere: bool) -> tuple[str, list[int]]:
    """The text after the change, and the lines where it was made."""
    if old == new:
        raise Refused("The old and the new text are the same, so nothing was changed.")
    if old not in text and "\r\n" in text and "\r" not in old:
        old, new = old.replace("\n", "\r\n"), new.replace("\n", "\r\n")
    places = _places(text, old)
    if not places:
        raise Refused(f"The old text is not in the file, so nothing was changed.{_hint(text, old)}")
    lines = [text.count("\n", 0, place) + 1 for place in places[:_SHOWN]]
    if len(places) > 1 and not everywhere:
        where = ", ".join(f"{line:,}" for line in lines) + (", …" if len(places) > _SHOWN else "")
        raise Refused(
            f"The old text is {len(places):,} times in the file (lines {where}), so nothing was changed. "
            "Give more lines around it, or all = true."
        )
    return text.replace(old, new), lines + [0] * (len(places) - len(lines))


def _places(text: str, old: str) -> list[int]:
    places, at = [], text.find(old)
    while at >= 0:
        places.append(at)
        at = text.find(old, at + len(old))
    return places


def _hint(text: str, old: str) -> str:
    """What in the file is most like it."""
    if "�" in old:
        return " It has � in it, which stands for bytes that are no text: leave them out."
    wanted = [line.strip() for line in old.split("\n")]
    lines = text.split("\n")
    first = next((place for place, line in enumerate(wanted) if line), None)
    if first is None:
        return ""
    stripped = [line.strip() for line in lines]
    for at, line in enumerate(stripped):
        start = at - first
        if line == wanted[first] and start >= 0 and stripped[start : start + len(wanted)] == wanted:
            quoted = _quoted(lines, start, len(wanted))
            return f" It differs in white space only from line {start + 1:,} on:\n{quoted}"
    comparable = [line for line in stripped[:_LOOKED_AT] if 0 < len(line) <= _LONG]
    close = get_close_matches(wanted[first][:_LONG], comparable, n=1, cutoff=0.6)
    if not close:
        return " Read it again: it may have changed."
    start = max(0, stripped.index(close[0]) - first)
    return f" The nearest to it is from line {start + 1:,} on:\n{_quoted(lines, start, len(wanted))}"


def _quoted(lines: list[str], start: int, count: int) -> str:
    return "\n".join(_shown(line) for line in lines[start : start + min(count, _SHOWN)])


def _shown(line: str) -> str:
    line = line.encode("utf-8", "surrogateescape").decode("utf-8", "replace").removesuffix("\r")
    return line if len(line) <= _LONG else f"{line[:_LONG]}… (+{len(line) - _LONG:,} characters)"
