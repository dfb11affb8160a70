"""From a file, a folder or a stream to recordings, one after the other.

In memory is one conversation at a time: a file with thousands of them can be as large as it likes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO, Final, Protocol, TypeAlias

from foveal.errors import BadSetting
from foveal.transcripts import claude_code, codex, data, openai, own, pi
from foveal.transcripts.detection import LOOKED_AT, detect_lines
from foveal.transcripts.lines import Line, Progress, joined, read_lines
from foveal.transcripts.recording import Recording, UnreadableTranscript

Skipped: TypeAlias = Callable[[UnreadableTranscript], None]
"""Told of each file in a folder that is passed over."""


class Format(Protocol):
    """One product's way to write conversations down."""

    def __call__(self, lines: Iterable[Line], path: str, stem: str) -> Iterator[Recording]: ...


FORMATS: Final[dict[str, Format]] = {
    own.NAME: own.read,
    data.NAME: data.read,
    openai.NAME: openai.read,
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
) -> Iterator[Recording]:
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


def _file(path: Path, format: str, progress: Progress | None) -> Iterator[Recording]:
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
) -> Iterator[Recording]:
    name = path or "the stream"
    lines = joined(read_lines(stream, progress=progress, total=size))
    begin: list[Line] = []
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
) -> Iterator[Recording]:
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
