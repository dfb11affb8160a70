"""Bytes of a file as text and back, so that what an edit does not touch stays as it was, byte for byte."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Final, NamedTuple

from foveal.tools.tool_arguments import InvalidArguments

_BOMS: Final = ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))
_PICTURES: Final = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


class TextCoding(NamedTuple):
    """How a file's text is written down."""

    codec: str = "utf-8"
    bom: bytes = b""

    def encode(self, text: str) -> bytes:
        """Raises `Refused` for what cannot be written, such as one half of a surrogate pair."""
        escape = "surrogateescape" if self.codec == "utf-8" else "strict"
        try:
            return self.bom + text.encode(self.codec, escape)
        except UnicodeEncodeError as problem:
            place = f"character {problem.start + 1:,} ({text[problem.start]!a})"
            raise InvalidArguments(
                f"Nothing was written: {place} cannot be written in {self.codec}."
            ) from None


def coding(data: bytes) -> TextCoding:
    """How these bytes are written down, by their first ones."""
    for bom, codec in _BOMS:
        if data.startswith(bom):
            return TextCoding(codec, bom)
    return TextCoding()


def exact(data: bytes) -> tuple[str, TextCoding]:
    """The text, such that encoding it gives the same bytes: those that are no text become lone surrogates."""
    how = coding(data)
    body = data[len(how.bom) :]
    if how.codec == "utf-8":
        return body.decode("utf-8", "surrogateescape"), how
    try:
        return body.decode(how.codec), how
    except UnicodeDecodeError:
        raise InvalidArguments(
            f"It is not valid {how.codec}, though it begins like it; it was not changed."
        ) from None


def readable(data: bytes) -> tuple[str, list[str]]:
    """The text for reading, and what should be said about it."""
    how = coding(data)
    body = data[len(how.bom) :]
    said = [] if how.codec == "utf-8" else [f"it is written in {how.codec}"]
    try:
        text = body.decode(how.codec)
    except UnicodeDecodeError:
        text = body.decode(how.codec, "replace")
        said.append(f"bytes that are not {how.codec} are shown as �")
    ends = text.count("\r\n")
    if ends and ends == text.count("\n"):
        text = text.replace("\r\n", "\n")
        said.append("its lines end in CRLF")
    return text, said


def binary(start: bytes) -> bool:
    """Whether a file that begins so is not text."""
    return b"\0" in start and coding(start).codec == "utf-8"


def picture(start: bytes) -> str:
    """The mime type of a picture that begins so, "" if it is none that models look at."""
    if start.startswith(b"RIFF") and start[8:12] == b"WEBP":
        return "image/webp"
    return next((mime for magic, mime in _PICTURES if start.startswith(magic)), "")


def endings(old: str, new: str) -> str:
    """A new text with the line endings of the one it replaces."""
    if "\r\n" in old and old.count("\r\n") == old.count("\n") and "\r" not in new:
        return new.replace("\n", "\r\n")
    return new


# ── editing ───────────────────────────────────────────────────────────────────────────────────────
# One text replaced in another: exactly, and where it is meant; or an answer that helps to find what was meant.

_LOOKED_AT: Final = 5_000
"""Lines that are compared with what was not found."""
_LONG: Final = 500
"""Characters of a line that is compared or shown."""
_SHOWN: Final = 12


def replaced(text: str, old: str, new: str, *, everywhere: bool) -> tuple[str, list[int]]:
    """The text after the change, and the lines where it was made."""
    if old == new:
        raise InvalidArguments("The old and the new text are the same, so nothing was changed.")
    if old not in text and "\r\n" in text and "\r" not in old:
        old, new = old.replace("\n", "\r\n"), new.replace("\n", "\r\n")
    places = _places(text, old)
    if not places:
        raise InvalidArguments(f"The old text is not in the file, so nothing was changed.{_hint(text, old)}")
    lines = [text.count("\n", 0, place) + 1 for place in places[:_SHOWN]]
    if len(places) > 1 and not everywhere:
        where = ", ".join(f"{line:,}" for line in lines) + (", …" if len(places) > _SHOWN else "")
        raise InvalidArguments(
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
