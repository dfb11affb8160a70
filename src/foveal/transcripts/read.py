"""From a file, a folder or a stream to recordings, one after the other.

In memory is one conversation at a time: a file with thousands of them can be as large as it likes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol, TypeAlias

from foveal.errors import BadSetting
from foveal.transcripts import claude_code, codex, foveal, message_lists, pi
from foveal.transcripts.jsonl import JsonLine, NotJson, Progress, joined, read_lines, value
from foveal.transcripts.transcript import Transcript, UnreadableTranscript, words

# ── detection ─────────────────────────────────────────────────────────────────────────────────────
# Which product wrote a file, by what only its lines have.

LOOKED_AT: Final = 50
"""Lines that are looked at before giving up."""


def detect(first_lines: Iterable[bytes | str], *, path: str = "the recording") -> str:
    """The name of the format that these lines are in; raises `UnreadableTranscript` when it is none."""
    empty = True
    for line in first_lines:
        empty = False
        raw = line.encode("utf-8", "surrogateescape") if isinstance(line, str) else line
        try:
            found = _format(value(raw))
        except NotJson:
            continue
        if found:
            return found
    if empty:
        raise UnreadableTranscript(path, 0, "there is nothing in it")
    raise UnreadableTranscript(
        path, 1, "no known recording begins like this; say which `format` it has if you know it"
    )


def detect_lines(lines: Iterable[JsonLine], *, path: str) -> str:
    return detect((line.raw for line in lines), path=path)


def _format(held: Any) -> str:
    if isinstance(held, Mapping):
        return next((name for name, test in _TESTS if test(held, words(held.get("type")))), "")
    return message_lists.MESSAGES_NAME if any(message_lists.conversations(held)) else ""


def _foveal(held: Mapping[str, Any], kind: str) -> bool:
    fact = held.get("fact")
    return held.get("foveal") == "session" or ("seq" in held and isinstance(fact, Mapping) and "kind" in fact)


def _codex(held: Mapping[str, Any], kind: str) -> bool:
    if "payload" in held:
        return kind in codex.TYPES
    header = {"id", "timestamp"} <= held.keys() and not {"type", "role", "messages"} & held.keys()
    return "record_type" in held or (header and bool({"instructions", "git"} & held.keys()))


def _pi(held: Mapping[str, Any], kind: str) -> bool:
    if kind == "session":
        return "id" in held
    if not {"id", "parentId"} <= held.keys() and "timestamp" not in held:
        return False
    message = held.get("message")
    if kind == "message":
        return isinstance(message, Mapping) and "role" in message
    return "uuid" not in held and "sessionId" not in held and kind in pi.ENTRIES


def _claude_code(held: Mapping[str, Any], kind: str) -> bool:
    if kind == "summary":
        return "leafUuid" in held
    known = kind in claude_code.NOTES or kind in claude_code.MESSAGES
    return known and bool({"sessionId", "uuid", "parentUuid", "isSidechain", "messageId"} & held.keys())


def _data(held: Mapping[str, Any], kind: str) -> bool:
    return isinstance(held.get("messages"), list) and {"id", "source", "meta"} <= held.keys()


def _openai(held: Mapping[str, Any], kind: str) -> bool:
    return any(message_lists.conversations(held)) or "role" in held or kind in codex.ITEMS


_TESTS: Final = (
    (foveal.NAME, _foveal),
    (codex.NAME, _codex),
    (claude_code.NAME, _claude_code),
    (pi.NAME, _pi),
    (message_lists.DATASET_NAME, _data),
    (message_lists.MESSAGES_NAME, _openai),
)


# ── reading ───────────────────────────────────────────────────────────────────────────────────────

Skipped: TypeAlias = Callable[[UnreadableTranscript], None]
"""Told of each file in a folder that is passed over."""


class TranscriptFormat(Protocol):
    """One product's way to write conversations down."""

    def __call__(self, lines: Iterable[JsonLine], path: str, stem: str) -> Iterator[Transcript]: ...


FORMATS: Final[dict[str, TranscriptFormat]] = {
    foveal.NAME: foveal.read,
    message_lists.DATASET_NAME: message_lists.read_dataset,
    message_lists.MESSAGES_NAME: message_lists.read_messages,
    codex.NAME: codex.read,
    claude_code.NAME: claude_code.read,
    pi.NAME: pi.read,
}
SUFFIXES: Final = (".jsonl", ".json", ".jsonl.gz", ".json.gz")
"""The files of a folder that are read."""


def read(
    source: str | os.PathLike[str] | BinaryIO,
    *,
    format: str = "auto",
    progress: Progress | None = None,
    skipped: Skipped | None = None,
) -> Iterator[Transcript]:
    """The recordings in a file, in all files of a folder, or in a binary stream.

    `progress` hears of the bytes that were read and of all there are. A file that cannot be read raises
    `UnreadableTranscript`; in a folder it is passed over, and `skipped` is told.
    """
    if format != "auto" and format not in FORMATS:
        raise BadSetting("format", format, f"auto, {', '.join(FORMATS)}")
    if not isinstance(source, str | os.PathLike):
        return _stream(source, format, "", "stream", progress, 0)
    path = Path(source)
    return _folder(path, format, progress, skipped) if path.is_dir() else _file(path, format, progress)


def _file(path: Path, format: str, progress: Progress | None) -> Iterator[Transcript]:
    stem = path.name.partition(".")[0] or path.name
    try:
        size = path.stat().st_size
        stream = path.open("rb")
    except OSError as problem:
        raise UnreadableTranscript(str(path), 0, problem.strerror or str(problem)) from None
    with closing(stream):
        yield from _stream(stream, format, str(path), stem, progress, size)


def _stream(
    stream: BinaryIO, format: str, path: str, stem: str, progress: Progress | None, size: int
) -> Iterator[Transcript]:
    name = path or "the stream"
    lines = joined(read_lines(stream, progress=progress, total=size))
    begin: list[JsonLine] = []
    try:
        begin = list(islice(lines, LOOKED_AT if format == "auto" else 1))
        if not begin:
            raise UnreadableTranscript(name, 0, "there is nothing in it")
        format = detect_lines(begin, path=name) if format == "auto" else format
        yield from FORMATS[format](chain(begin, lines), path, stem)
    except OSError as problem:
        raise UnreadableTranscript(name, 0, problem.strerror or str(problem)) from None


def _folder(
    folder: Path, format: str, progress: Progress | None, skipped: Skipped | None
) -> Iterator[Transcript]:
    paths = sorted(path for path in folder.rglob("*") if path.name.endswith(SUFFIXES) and path.is_file())
    sizes = list(map(_size, paths))
    done = read = 0
    for path, size in zip(paths, sizes, strict=True):
        ahead = _ahead(progress, done, sum(sizes))
        try:
            yield from _file(path, format, ahead)
            read += 1
        except UnreadableTranscript as problem:
            if skipped is not None:
                skipped(problem)
        done += size
    if not read:
        raise UnreadableTranscript(str(folder), 0, f"no file in it can be read (of {len(paths)} looked at)")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # gone since; opening it will say so
        return 0


def _ahead(progress: Progress | None, before: int, total: int) -> Progress | None:
    """The progress through one file as progress through all of them."""
    return None if progress is None else lambda done, _: progress(before + done, total)
