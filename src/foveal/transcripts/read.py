"""Reading of transcripts from files, folders and streams; detection of their format.

The reader holds one conversation in memory at a time, so a file with thousands of them may have any size.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, TypeAlias

from foveal.core.wire.dialects import DIALECTS, SHORT_NAMES
from foveal.core.wire.safe_print import counted
from foveal.errors import BadSetting
from foveal.transcripts.claude_code import CLAUDE_CODE
from foveal.transcripts.codex import CODEX
from foveal.transcripts.foveal import FOVEAL
from foveal.transcripts.jsonl import (
    JsonLine,
    JsonProblem,
    NotJson,
    Progress,
    find_problem,
    join_document,
    line_problem,
    parse_json,
    read_lines,
)
from foveal.transcripts.message_lists import DATASET, MESSAGE_LIST, find_requests
from foveal.transcripts.pi import PI
from foveal.transcripts.transcript import Transcript, TranscriptFormat, UnreadableTranscript, text_or_empty

FORMATS: Final[dict[str, TranscriptFormat]] = {
    format.name: format for format in (FOVEAL, DATASET, MESSAGE_LIST, CODEX, CLAUDE_CODE, PI)
}
"""The formats by name."""
_DIALECT_NAMES: Final = frozenset({*DIALECTS, *SHORT_NAMES})
"""Other names of lists of messages, whose dialect is detected."""
TRANSCRIPT_SUFFIXES: Final = (".jsonl", ".json", ".jsonl.gz", ".json.gz")
"""Suffixes of the files that are read from a folder."""

SkippedCallback: TypeAlias = Callable[[UnreadableTranscript], None]
"""Called with what is wrong with a file."""


# ── Detection ────────────────────────────────────────────────────────────────────────────────────────────

UNKNOWN_FORMAT: Final = "this is no known transcript format"
MAX_DETECTION_LINES: Final = 50
"""Lines that are tried before detection fails."""

_DETECTION_ORDER: Final = (FOVEAL, CODEX, CLAUDE_CODE, PI, DATASET, MESSAGE_LIST)
"""The most specific formats first: a message list matches lines of others too."""


def detect(first_lines: Iterable[bytes | str], *, path: str = "the transcript") -> str:
    """Return the name of the format of some lines.

    Args:
        first_lines: The first lines of a file.
        path: The name of the file in the error.

    Raises:
        UnreadableTranscript: No format matches, or there is no line.

    Examples:
        ```python
        from foveal.transcripts import detect

        assert detect(['{"foveal":"session","v":1,"id":"demo"}']) == "foveal"
        ```
    """
    empty = True
    for line in first_lines:
        empty = False
        raw = line.encode("utf-8", "surrogateescape") if isinstance(line, str) else line
        try:
            found = _detect_value(parse_json(raw))
        except NotJson:
            continue
        if found:
            return found
    if empty:
        raise UnreadableTranscript(path, 0, "the file is empty")
    raise UnreadableTranscript(
        path, 1, f"{UNKNOWN_FORMAT}; if you know it, name it with `format` (`--format`)"
    )


def _detect_value(value: Any) -> str:
    if isinstance(value, Mapping):
        kind = text_or_empty(value.get("type"))
        return next((format.name for format in _DETECTION_ORDER if format.matches(value, kind)), "")
    return MESSAGE_LIST.name if any(find_requests(value)) else ""


# ── Reading ──────────────────────────────────────────────────────────────────────────────────────────────


def read(
    source: str | os.PathLike[str] | BinaryIO,
    *,
    format: str = "auto",
    progress: Progress | None = None,
    skipped: SkippedCallback | None = None,
    damaged: SkippedCallback | None = None,
) -> Iterator[Transcript]:
    """Yield the transcripts of a file, a folder or a binary stream.

    Args:
        source: The path of a file or folder, or a binary stream.
        format: The name of a format in `FORMATS`; that of a dialect means a list of messages. `"auto"` detects it.
        progress: Called with the bytes read and the total. None reports nothing.
        skipped: Called with the error for each file of a folder that cannot be read. None skips it silently.
        damaged: Called with the first problem of each file that is read in part: a line that is not JSON, or a
            compressed file that is damaged or breaks off. None says nothing; the lines are notes all the same.

    Raises:
        BadSetting: The format is unknown.
        UnreadableTranscript: The file cannot be read, or no file of the folder can.

    Examples:
        ```python
        from pathlib import Path

        import foveal
        from foveal.transcripts import read, write_events

        ctx = foveal.Context("gpt-4.1")
        ctx.fit([{"role": "user", "content": "Why is CI red?"}])
        Path("demo.jsonl").write_bytes(b"".join(write_events(ctx.log, "demo")))
        (transcript,) = read("demo.jsonl")
        assert transcript.id == "demo"
        ```
    """
    if format in _DIALECT_NAMES:
        format = MESSAGE_LIST.name
    if format != "auto" and format not in FORMATS:
        raise BadSetting("format", format, f"auto, {', '.join(FORMATS)}")
    reading = _Reading(format, progress, damaged)
    if not isinstance(source, str | os.PathLike):
        return _read_stream(source, reading)
    path = Path(source)
    return _read_folder(path, reading, skipped) if path.is_dir() else _read_file(path, reading)


class _Reading(NamedTuple):
    """How files are read; the arguments of `read`."""

    format: str
    progress: Progress | None
    damaged: SkippedCallback | None


def _read_file(path: Path, reading: _Reading) -> Iterator[Transcript]:
    stem = path.name.partition(".")[0] or path.name
    try:
        size = path.stat().st_size
        stream = path.open("rb")
    except OSError as problem:
        raise UnreadableTranscript(str(path), 0, problem.strerror or str(problem)) from None
    with closing(stream):
        yield from _read_stream(stream, reading, str(path), stem, size)


def _read_stream(
    stream: BinaryIO, reading: _Reading, path: str = "", stem: str = "stream", size: int = 0
) -> Iterator[Transcript]:
    name, format = path or "the stream", reading.format
    lines = join_document(read_lines(stream, progress=reading.progress, total=size))
    first_lines: list[JsonLine] = []
    try:
        first_lines = list(islice(lines, MAX_DETECTION_LINES if format == "auto" else 1))
        if not first_lines:
            raise UnreadableTranscript(name, 0, "the file is empty")
        if format == "auto":
            format = _detect_lines(first_lines, lines, name)
        found: Iterator[JsonLine] = chain(first_lines, lines)
        if reading.damaged is not None:
            found = _report_damage(found, name, reading.damaged)
        yield from FORMATS[format].read(found, path, stem)
    except OSError as problem:
        raise UnreadableTranscript(name, 0, problem.strerror or str(problem)) from None


def _detect_lines(first_lines: Sequence[JsonLine], rest: Iterator[JsonLine], name: str) -> str:
    """Return the format of a file; the error says what is wrong with lines that are not JSON."""
    try:
        return detect((line.raw for line in first_lines), path=name)
    except UnreadableTranscript:
        problem = find_problem([*first_lines, *rest])
        if problem is None:
            raise
        raise UnreadableTranscript(name, problem.line, problem.words) from None


def _report_damage(lines: Iterable[JsonLine], name: str, damaged: SkippedCallback) -> Iterator[JsonLine]:
    """Yield the lines; afterwards report the first one that is not JSON, or that the compressed file ends early."""
    problems = 0
    first: JsonProblem | None = None
    for line in lines:
        yield line
        problem = line_problem(line)
        if problem is not None:
            # The line before the damage of a compressed file is cut off, which is no problem of its own.
            first = problem if first is None or not problem.line else first
            problems += bool(problem.line)
    if first is None:
        return
    others = problems - 1
    more = f", and {others:,} line{'s' * (others != 1)} after it" if first.line and others else ""
    rest = f"; this line is left out{more}" if first.line else ""
    damaged(UnreadableTranscript(name, first.line, first.words + rest))


def is_transcript_name(name: str) -> bool:
    """Return whether a file of a folder can be a transcript. Claude Code describes each of its sub-agents in a file
    beside its transcript, `agent-a1b2.meta.json`."""
    return name.endswith(TRANSCRIPT_SUFFIXES) and not name.endswith(".meta.json")


def _read_folder(folder: Path, reading: _Reading, skipped: SkippedCallback | None) -> Iterator[Transcript]:
    paths = sorted(path for path in folder.rglob("*") if is_transcript_name(path.name) and path.is_file())
    sizes = list(map(_file_size, paths))
    done = read = 0
    for path, size in zip(paths, sizes, strict=True):
        file_progress = _offset_progress(reading.progress, done, sum(sizes))
        try:
            yield from _read_file(path, reading._replace(progress=file_progress))
            read += 1
        except UnreadableTranscript as problem:
            if skipped is not None:
                skipped(problem)
        done += size
    if not read:
        raise UnreadableTranscript(
            str(folder), 0, f"no file in it is a transcript ({counted(len(paths), 'file')} tried)"
        )


def _file_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # deleted meanwhile; opening it raises the error
        return 0


def _offset_progress(progress: Progress | None, before: int, total: int) -> Progress | None:
    """Report progress through one file as progress through all files."""
    return None if progress is None else lambda done, _: progress(before + done, total)
