"""Bytes of a file as text and back, so that what an edit does not touch stays as it was, byte for byte."""

from __future__ import annotations

from typing import Final, NamedTuple

from foveal.tools.arguments import Refused

_BOMS: Final = ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))
_PICTURES: Final = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


class Coding(NamedTuple):
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
            raise Refused(f"Nothing was written: {place} cannot be written in {self.codec}.") from None


def coding(data: bytes) -> Coding:
    """How these bytes are written down, by their first ones."""
    for bom, codec in _BOMS:
        if data.startswith(bom):
            return Coding(codec, bom)
    return Coding()


def exact(data: bytes) -> tuple[str, Coding]:
    """The text, such that encoding it gives the same bytes: those that are no text become lone surrogates."""
    how = coding(data)
    body = data[len(how.bom) :]
    if how.codec == "utf-8":
        return body.decode("utf-8", "surrogateescape"), how
    try:
        return body.decode(how.codec), how
    except UnicodeDecodeError:
        raise Refused(f"It is not valid {how.codec}, though it begins like it; it was not changed.") from None


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
