"""Decoding, editing and encoding of text files.

What an edit does not touch stays the same byte for byte: encoding, byte order mark, line endings and bytes that are
not valid text.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Final, NamedTuple

from foveal.agent.tool import InvalidArguments

_BOMS: Final = ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))
_IMAGE_MAGIC: Final = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


class TextCoding(NamedTuple):
    """Encoding and byte order mark of a file."""

    codec: str = "utf-8"
    bom: bytes = b""

    def encode(self, text: str) -> bytes:
        """Return the bytes; raises `InvalidArguments` for text that has none, such as half a surrogate pair."""
        escape = "surrogateescape" if self.codec == "utf-8" else "strict"
        try:
            return self.bom + text.encode(self.codec, escape)
        except UnicodeEncodeError as problem:
            place = f"character {problem.start + 1:,} ({text[problem.start]!a})"
            raise InvalidArguments(
                f"Nothing was written: {place} cannot be written in {self.codec}."
            ) from None


def detect_coding(data: bytes) -> TextCoding:
    """Return the encoding, recognised by the first bytes."""
    for bom, codec in _BOMS:
        if data.startswith(bom):
            return TextCoding(codec, bom)
    return TextCoding()


def decode_exactly(data: bytes) -> tuple[str, TextCoding]:
    """Return text that encodes to the same bytes, and its encoding; invalid bytes become lone surrogates."""
    how = detect_coding(data)
    body = data[len(how.bom) :]
    if how.codec == "utf-8":
        return body.decode("utf-8", "surrogateescape"), how
    try:
        return body.decode(how.codec), how
    except UnicodeDecodeError:
        raise InvalidArguments(
            f"It is not valid {how.codec}, though it begins like it; it was not changed."
        ) from None


def decode_for_reading(data: bytes) -> tuple[str, list[str]]:
    """Return the text for the model, and notes about it."""
    how = detect_coding(data)
    body = data[len(how.bom) :]
    notes = [] if how.codec == "utf-8" else [f"it is written in {how.codec}"]
    try:
        text = body.decode(how.codec)
    except UnicodeDecodeError:
        text = body.decode(how.codec, "replace")
        notes.append(f"bytes that are not {how.codec} are shown as �")
    crlf = text.count("\r\n")
    if crlf and crlf == text.count("\n"):
        text = text.replace("\r\n", "\n")
        notes.append("its lines end in CRLF")
    return text, notes


def is_binary(start: bytes) -> bool:
    """Return whether a file with these first bytes is not text."""
    return b"\0" in start and detect_coding(start).codec == "utf-8"


def image_type(start: bytes) -> str:
    """Return the MIME type of an image with these first bytes, "" for a file that models do not accept as image."""
    if start.startswith(b"RIFF") and start[8:12] == b"WEBP":
        return "image/webp"
    return next((mime for magic, mime in _IMAGE_MAGIC if start.startswith(magic)), "")


def keep_line_endings(old: str, new: str) -> str:
    """Return the new text with the line endings of the old."""
    if "\r\n" in old and old.count("\r\n") == old.count("\n") and "\r" not in new:
        return new.replace("\n", "\r\n")
    return new


# ── Replacing ─────────────────────────────────────────────────────────────────────────────────────

_MAX_COMPARED_LINES: Final = 5_000
"""Most lines that are compared with a text that was not found."""
_MAX_LINE_CHARS: Final = 500
"""Longest line that is compared, and most characters of a line that are shown."""
_MAX_SHOWN_LINES: Final = 12


def replace_text(text: str, old: str, new: str, *, everywhere: bool) -> tuple[str, list[int]]:
    """Replace an exact text; return the new text and the lines of the replacements.

    Raises `InvalidArguments` with a hint if the old text is not in the file, or is there more than once without
    `everywhere`. Line numbers beyond the first 12 are 0.
    """
    if old == new:
        raise InvalidArguments("The old and the new text are the same, so nothing was changed.")
    if old not in text and "\r\n" in text and "\r" not in old:
        old, new = old.replace("\n", "\r\n"), new.replace("\n", "\r\n")
    places = _find_all(text, old)
    if not places:
        raise InvalidArguments(f"The old text is not in the file, so nothing was changed.{_hint(text, old)}")
    lines = [text.count("\n", 0, place) + 1 for place in places[:_MAX_SHOWN_LINES]]
    if len(places) > 1 and not everywhere:
        where = ", ".join(f"{line:,}" for line in lines) + (", …" if len(places) > _MAX_SHOWN_LINES else "")
        raise InvalidArguments(
            f"The old text is {len(places):,} times in the file (lines {where}), so nothing was changed. "
            "Give more lines around it, or all = true."
        )
    return text.replace(old, new), lines + [0] * (len(places) - len(lines))


def _find_all(text: str, old: str) -> list[int]:
    places, at = [], text.find(old)
    while at >= 0:
        places.append(at)
        at = text.find(old, at + len(old))
    return places


def _hint(text: str, old: str) -> str:
    """Return a sentence about the most similar text in the file."""
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
            quoted = _quote_lines(lines, start, len(wanted))
            return f" It differs in white space only from line {start + 1:,} on:\n{quoted}"
    comparable = [line for line in stripped[:_MAX_COMPARED_LINES] if 0 < len(line) <= _MAX_LINE_CHARS]
    close = get_close_matches(wanted[first][:_MAX_LINE_CHARS], comparable, n=1, cutoff=0.6)
    if not close:
        return " Read it again: it may have changed."
    start = max(0, stripped.index(close[0]) - first)
    return f" The nearest to it is from line {start + 1:,} on:\n{_quote_lines(lines, start, len(wanted))}"


def _quote_lines(lines: list[str], start: int, count: int) -> str:
    return "\n".join(_shorten_line(line) for line in lines[start : start + min(count, _MAX_SHOWN_LINES)])


def _shorten_line(line: str) -> str:
    line = line.encode("utf-8", "surrogateescape").decode("utf-8", "replace").removesuffix("\r")
    return (
        line
        if len(line) <= _MAX_LINE_CHARS
        else f"{line[:_MAX_LINE_CHARS]}… (+{len(line) - _MAX_LINE_CHARS:,} characters)"
    )
