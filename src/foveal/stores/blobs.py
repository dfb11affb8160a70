"""The line of an event as it is stored: small, and byte for byte the same when it comes back.

Every JSON string of more than 4 KB is cut out of the line and becomes a blob, and so does what is left if it is
still that long (a list of tools, say). A blob is stored once per content. What remains is compressed with a
dictionary of our own words, because a short line has nothing yet to refer back to.

Cutting works on the bytes of the line, not on the fields of facts: whatever is large is found, in kinds of later
versions too. The line is that of the same fact at seq 0 without a time, so that equal facts have equal lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

import zstandard

from foveal.stores.dictionary import WORDS

LARGE: Final = 4096
"""Bytes from which on a text is a blob."""

LEVEL: Final = 3
LEVEL_OF_BLOBS: Final = 6

_PLAIN: Final = b"{"
"""A body that begins like JSON is not compressed."""
_WITH_WORDS: Final = b"\x01"
"""What comes before a body that was compressed with the first dictionary."""
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


class Cut(NamedTuple):
    """A text that belongs at `place` of what is left of its line."""

    place: int
    text: bytes


class Packed(NamedTuple):
    body: bytes
    """What is left of the line, compressed; empty when that is the first of the cuts."""
    cuts: tuple[Cut, ...]


def digest(text: bytes) -> bytes:
    """The name of a content."""
    return blake2b(text, digest_size=32).digest()


class Packer:
    """Packs and unpacks lines; for one thread at a time."""

    def __init__(self) -> None:
        words = zstandard.ZstdCompressionDict(WORDS, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
        short = zstandard.ZstdCompressionParameters.from_level(
            LEVEL,
            source_size=LARGE,
            dict_size=len(WORDS),
            format=zstandard.FORMAT_ZSTD1_MAGICLESS,
            write_content_size=1,
            write_dict_id=0,
        )
        words.precompute_compress(compression_params=short)
        self._shorten = zstandard.ZstdCompressor(dict_data=words, compression_params=short)
        self._lengthen = zstandard.ZstdDecompressor(dict_data=words, format=zstandard.FORMAT_ZSTD1_MAGICLESS)
        self._deflate = zstandard.ZstdCompressor(level=LEVEL_OF_BLOBS, write_checksum=True)
        self._inflate = zstandard.ZstdDecompressor()

    def pack(self, line: bytes) -> Packed:
        if len(line) <= LARGE:
            return Packed(self.small(line), ())
        rest, cuts = _cut(line)
        if len(rest) <= LARGE:
            return Packed(self.small(rest), cuts)
        return Packed(b"", (Cut(0, rest), *cuts))

    def unpack(self, body: bytes, cuts: Sequence[Cut] = ()) -> bytes:
        if not body:
            (_, rest), *cuts = cuts
        elif body[:1] == _WITH_WORDS:
            rest = self._lengthen.decompress(body[1:])
        else:
            rest = body
        return b"".join(_joined(rest, cuts)) if cuts else rest

    def deflate(self, text: bytes) -> bytes:
        """A blob's content as it is stored."""
        return self._deflate.compress(text)

    def inflate(self, body: bytes) -> bytes:
        return self._inflate.decompress(body)

    def small(self, line: bytes) -> bytes:
        """The body of a line that is not large."""
        short = _WITH_WORDS + self._shorten.compress(line)
        return short if len(short) < len(line) or line[:1] != _PLAIN else line


def _cut(line: bytes) -> tuple[bytes, tuple[Cut, ...]]:
    """The line without its large strings, whose quotes stay."""
    rest: list[bytes] = []
    cuts: list[Cut] = []
    at = size = 0
    for string in _STRING.finditer(line):
        first, last = string.start() + 1, string.end() - 1
        if last - first > LARGE:
            rest.append(line[at:first])
            size += first - at
            cuts.append(Cut(size, line[first:last]))
            at = last
    rest.append(line[at:])
    return b"".join(rest), tuple(cuts)


def _joined(rest: bytes, cuts: Sequence[Cut]) -> Iterator[bytes]:
    at = 0
    for place, text in cuts:
        yield rest[at:place]
        yield text
        at = place
    yield rest[at:]
