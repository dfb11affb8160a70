"""Files as lines of bytes: plain or gzipped, whole or broken off, with an eye on how far the reading is.

Nothing here raises because of what a line holds. A compressed file that breaks off gives what could be had of it,
and one more line that says so; a last line without its end is a line.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, BinaryIO, Final, NamedTuple, TypeAlias

import msgspec

Progress: TypeAlias = Callable[[int, int], None]
"""Told how many bytes were read, and how many there are (0: nobody knows)."""

CHUNK: Final = 1 << 20
LARGEST_DOCUMENT: Final = 1 << 28
"""A file that is one JSON value over many lines is held in memory whole, up to this size."""
GZIP: Final = b"\x1f\x8b"


class NotJson(ValueError):
    """A line that is not JSON."""


class JsonLine(NamedTuple):
    number: int
    raw: bytes

    def value(self) -> Any:
        """What the line holds; raises `NotJson`."""
        return value(self.raw)

    def mapping(self) -> dict[str, Any] | None:
        """The JSON object that the line holds, None when it holds something else."""
        try:
            held = value(self.raw)
        except NotJson:
            return None
        return held if isinstance(held, dict) else None


def value(raw: bytes) -> Any:
    """A JSON value; escapes that are not valid Unicode are allowed, numbers that are none are not."""
    try:
        return msgspec.json.decode(raw)
    except RecursionError:
        raise NotJson("nested too deeply") from None
    except ValueError as problem:
        if b"\\u" not in raw:
            raise NotJson(str(problem)) from None
    try:
        return json.loads(raw.decode("utf-8"), parse_constant=_refuse)
    except (ValueError, RecursionError) as problem:
        raise NotJson(str(problem)) from None


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


# ── bytes to lines ───────────────────────────────────────────────────────────────────────────────────────


def read_lines(stream: BinaryIO, *, progress: Progress | None = None, total: int = 0) -> Iterator[JsonLine]:
    """The lines of a stream that are not blank, numbered from 1."""
    chunks = _chunks(stream, progress or _nobody, total)
    begin = next(chunks, b"")
    chunks = chain((begin,), chunks)
    if begin.startswith(GZIP):
        chunks = _unzipped(chunks)
    for number, raw in enumerate(_split(chunks), 1):
        raw = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
        if raw and not raw.isspace():
            yield JsonLine(number, raw)


def _nobody(done: int, total: int) -> None:
    return None


def _chunks(stream: BinaryIO, progress: Progress, total: int) -> Iterator[bytes]:
    done = 0
    while chunk := stream.read(CHUNK):
        done += len(chunk)
        yield chunk
        progress(done, total)


def _unzipped(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The text of one gzip member after the other, in pieces of bounded size."""
    member, begun, read = zlib.decompressobj(wbits=31), False, 0
    for chunk in chunks:
        read += len(chunk)
        while chunk:
            begun, before = True, member.copy()
            try:
                yield member.decompress(chunk, CHUNK)
            except zlib.error as problem:
                yield from _salvaged(before, chunk)
                yield f"\n[foveal: damaged before byte {read:,} of the compressed file: {problem}]".encode()
                return
            chunk = member.unconsumed_tail
            if member.eof:
                chunk = member.unused_data.lstrip(b"\0")
                member, begun = zlib.decompressobj(wbits=31), False
    yield member.flush()
    if begun and not member.eof:
        yield f"\n[foveal: the compressed file breaks off after {read:,} bytes]".encode()


def _salvaged(member: Any, chunk: bytes) -> Iterator[bytes]:
    """What comes out of a damaged piece before the damage."""
    try:
        for place in range(0, len(chunk), 64):
            yield member.decompress(chunk[place : place + 64])
    except zlib.error:
        return


def _split(chunks: Iterable[bytes]) -> Iterator[bytes]:
    held: list[bytes] = []  # pieces of a line whose end has not come yet
    for chunk in chunks:
        *lines, last = chunk.split(b"\n")
        if lines:
            held.append(lines[0])
            yield b"".join(held).removesuffix(b"\r")
            for line in lines[1:]:
                yield line.removesuffix(b"\r")
            held = []
        held.append(last)
    yield b"".join(held)


# ── documents over many lines ────────────────────────────────────────────────────────────────────────────


def joined(lines: Iterator[JsonLine]) -> Iterator[JsonLine]:
    """The lines; when they are one JSON value that was printed over many of them, that value as a single line."""
    first = next(lines, None)
    if first is None:
        return iter(())
    if not _goes_on(first.raw):
        return chain((first,), lines)
    held, size = [first], len(first.raw)
    for line in lines:
        held.append(line)
        size += len(line.raw)
        if size > LARGEST_DOCUMENT:
            return chain(held, lines)
    whole = b"\n".join(line.raw for line in held)
    try:
        value(whole)
    except NotJson:
        return iter(held)
    return iter((JsonLine(1, whole),))


def _goes_on(raw: bytes) -> bool:
    """A JSON value begins here and does not end here."""
    if raw.lstrip()[:1] not in (b"[", b"{"):
        return False
    try:
        msgspec.json.decode(raw)
    except RecursionError:
        return False
    except ValueError as problem:
        return "truncated" in str(problem)
    return False
