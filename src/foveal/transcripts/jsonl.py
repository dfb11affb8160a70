"""Reading of JSON lines from plain or gzipped streams, complete or truncated.

Reading lines never raises because of their content. A truncated or damaged gzip file gives the lines that can be
decompressed, and then a line that says so. The last line needs no newline.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, BinaryIO, Final, NamedTuple, TypeAlias

import msgspec

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the number of bytes read and the total (0: unknown)."""

CHUNK_BYTES: Final = 1 << 20
MAX_DOCUMENT_BYTES: Final = 1 << 28
"""Size up to which a file that is one JSON value over many lines is read into memory."""
GZIP_MAGIC: Final = b"\x1f\x8b"
DAMAGE_MARK: Final = b"[foveal: the compressed file "
"""Begin of the line after which nothing of a compressed file can be read."""
_WIDE_TEXT_MARKS: Final = (b"\xff\xfe", b"\xfe\xff")
"""First bytes of texts in UTF-16."""
_CONTROL: Final = re.compile(rb"[\x00-\x07\x0b\x0e-\x1a\x1c-\x1f]")
"""Control characters that occur in no text."""


class NotJson(ValueError):
    """A line that is not JSON."""


class JsonLine(NamedTuple):
    """A line of a file, not yet parsed."""

    number: int
    raw: bytes

    def parse(self) -> Any:
        """Return the line's JSON value; raises `NotJson`."""
        return parse_json(self.raw)

    def parse_object(self) -> dict[str, Any] | None:
        """Return the line's JSON object, None if the line is anything else."""
        try:
            parsed = parse_json(self.raw)
        except NotJson:
            return None
        return parsed if isinstance(parsed, dict) else None


def parse_json(raw: bytes) -> Any:
    """Parse JSON. Allows escapes of lone surrogates; refuses NaN and Infinity."""
    try:  # msgspec is fast but refuses lone surrogates; the standard library reads them
        return msgspec.json.decode(raw)
    except RecursionError:
        raise NotJson("nested too deeply") from None
    except ValueError as problem:
        if b"\\u" not in raw:
            raise NotJson(str(problem)) from None
    try:
        return json.loads(raw.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as problem:
        raise NotJson(str(problem)) from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


class JsonProblem(NamedTuple):
    """Why a line is not JSON."""

    line: int
    """The number of the line; 0 if the problem is not in a line."""
    words: str


def find_problem(lines: Sequence[JsonLine]) -> JsonProblem | None:
    """Return why lines are not JSON; None if any of them is.

    Lines of which the first begins a value and does not end it are taken as one value."""
    if not lines or not all(_parse_error(line.raw) for line in lines):
        return None
    first, last = lines[0], lines[-1]
    if last.raw.startswith(DAMAGE_MARK):  # what is in front of the damage is cut off
        return line_problem(last)
    if not _continues(first.raw):
        return line_problem(first)
    words, at = _explain(b"\n".join(line.raw for line in lines))
    for line in lines:
        if at <= len(line.raw):
            return JsonProblem(line.number, _with_place(words, at))
        at -= len(line.raw) + 1
    return JsonProblem(first.number, words)


def line_problem(line: JsonLine) -> JsonProblem | None:
    """Return why one line is not JSON; None if it is."""
    if not _parse_error(line.raw):
        return None
    if line.raw.startswith(DAMAGE_MARK):
        return JsonProblem(0, line.raw.decode().removeprefix("[foveal: ").removesuffix("]"))
    return JsonProblem(line.number, _with_place(*_explain(line.raw)))


def _parse_error(raw: bytes) -> str:
    """Return why the parser refuses bytes, "" if it does not."""
    try:
        parse_json(raw)
    except NotJson as problem:
        return str(problem)
    return ""


def _with_place(words: str, at: int) -> str:
    return f"{words} (byte {at:,} of the line)"


def _explain(raw: bytes) -> tuple[str, int]:
    """Return what is wrong with bytes that are not JSON, and the byte, counted from 0."""
    if raw.startswith(_WIDE_TEXT_MARKS):
        return "the text is UTF-16; save it as UTF-8", 0
    control = _CONTROL.search(raw)
    if control:
        return f"this is binary data, not text: 0x{control[0][0]:02x}", control.start()
    try:
        raw.decode()
    except UnicodeDecodeError as problem:
        return f"0x{raw[problem.start]:02x} is not UTF-8", problem.start
    if _continues(raw):
        return "the JSON breaks off", len(raw)
    reason = _parse_error(raw).removeprefix("JSON is malformed: ")
    number = re.search(r"\((?:byte|char) (\d+)\)", reason)
    return f"this is not JSON: {re.split(r': line | [(]', reason)[0]}", int(number[1]) if number else 0


# ── Bytes to lines ───────────────────────────────────────────────────────────────────────────────────────


def read_lines(stream: BinaryIO, *, progress: Progress | None = None, total: int = 0) -> Iterator[JsonLine]:
    """Yield the lines of a stream that are not blank, with their numbers from 1."""
    chunks = _read_chunks(stream, progress or _ignore_progress, total)
    begin = next(chunks, b"")
    chunks = chain((begin,), chunks)
    if begin.startswith(GZIP_MAGIC):
        chunks = _decompress(chunks)
    for number, raw in enumerate(_split_lines(chunks), 1):
        raw = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
        if raw and not raw.isspace():
            yield JsonLine(number, raw)


def _ignore_progress(done: int, total: int) -> None:
    return None


def _read_chunks(stream: BinaryIO, progress: Progress, total: int) -> Iterator[bytes]:
    done = 0
    while chunk := stream.read(CHUNK_BYTES):
        done += len(chunk)
        yield chunk
        progress(done, total)


def _decompress(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the content of all gzip members, in chunks of bounded size."""
    member, has_data, read = zlib.decompressobj(wbits=31), False, 0
    for chunk in chunks:
        read += len(chunk)
        while chunk:
            has_data, before = True, member.copy()
            try:
                yield member.decompress(chunk, CHUNK_BYTES)
            except zlib.error as problem:
                yield from _salvage(before, chunk)
                reason = str(problem).rpartition(": ")[2]
                yield (
                    b"\n"
                    + DAMAGE_MARK
                    + f"is damaged before byte {read:,} ({reason}), and what was read of it may be wrong]".encode()
                )
                return
            chunk = member.unconsumed_tail
            if member.eof:
                chunk = member.unused_data.lstrip(b"\0")
                member, has_data = zlib.decompressobj(wbits=31), False
    yield member.flush()
    if has_data and not member.eof:
        yield b"\n" + DAMAGE_MARK + f"breaks off after {read:,} bytes]".encode()


def _salvage(member: Any, chunk: bytes) -> Iterator[bytes]:
    """Yield what can be decompressed of a damaged chunk before the damage."""
    try:
        for start in range(0, len(chunk), 64):
            yield member.decompress(chunk[start : start + 64])
    except zlib.error:
        return


def _split_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    held: list[bytes] = []  # parts of a line whose newline has not come yet
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


# ── Documents over many lines ────────────────────────────────────────────────────────────────────────────


def join_document(lines: Iterator[JsonLine]) -> Iterator[JsonLine]:
    """Return the lines; if they are one JSON value printed over many lines, that value as a single line."""
    first = next(lines, None)
    if first is None:
        return iter(())
    if not _continues(first.raw):
        return chain((first,), lines)
    held, size = [first], len(first.raw)
    for line in lines:
        held.append(line)
        size += len(line.raw)
        if size > MAX_DOCUMENT_BYTES:
            return chain(held, lines)
    whole = b"\n".join(line.raw for line in held)
    try:
        parse_json(whole)
    except NotJson:
        return iter(held)
    return iter((JsonLine(1, whole),))


def _continues(raw: bytes) -> bool:
    """Return whether a JSON list or object starts in this line and ends in a later line."""
    if raw.lstrip()[:1] not in (b"[", b"{"):
        return False
    try:
        msgspec.json.decode(raw)
    except RecursionError:
        return False
    except ValueError as problem:
        return "truncated" in str(problem)
    return False
