"""Transcript files of other agents as past sessions.

1. A list reads the end of each new file, for the time of its newest message. Of each file that it shows it parses
   the first `HEAD_BYTES`, and the last `END_BYTES`, where agents put later titles. A file that holds several
   conversations lists the others once it has been read as a whole.
2. Parsed files stay in memory up to `MAX_LOADED_BYTES`; of these, the least recently used one goes first. A file
   that has changed is read again, also one that was rewritten within the precision of its time or has its old time
   back.
3. A file that cannot be read is a problem of the source; the others are not affected.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from heapq import nlargest
from io import BytesIO
from itertools import count, islice
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, TypeVar

from foveal import transcripts
from foveal.core.log.events import Event
from foveal.recall.archive.source import (
    MAX_SOURCE_SESSIONS,
    RecallProblem,
    SessionDetails,
    SessionEntry,
    SessionLog,
    recorded_folder,
    session_handle,
    whole_title,
)
from foveal.transcripts import Transcript, UnreadableTranscript
from foveal.transcripts.jsonl import GZIP_MAGIC, read_lines
from foveal.transcripts.read import UNKNOWN_FORMAT, is_transcript_name
from foveal.transcripts.transcript import TimedFact, parse_time

HEAD_BYTES: Final = 128 << 10
"""Beginning of a file that a list reads: system prompts of agents have tens of kilobytes."""
END_BYTES: Final = 32 << 10
"""End of a file that a list parses together with the beginning."""
MAX_LOADED_BYTES: Final = 192 << 20
"""Size of the files whose events stay in memory; a single larger one stays until another is read."""
MAX_TRANSCRIPT_BYTES: Final = 1 << 29
"""Size up to which a file is read at all."""
MAX_RAW_BYTES: Final = 64 << 20
"""Size up to which words are looked for in the bytes of a file that is not indexed yet."""
TAIL_BYTES: Final = (16 << 10, 1 << 20)
"""Ends of a file that are read: the second one only if the first has no whole line with a time."""
_TIMED_LINES: Final = 3
"""Lines that are compared: an agent may write two of the same moment in the other order."""
_TIME_FIELDS: Final = ("timestamp", "at")
"""Fields of a line with its time: in Claude Code, Codex and pi, and in files that Foveal exports."""
MAX_TAIL_BYTES: Final = 256 << 10
"""Bytes that are read from the end of a file for its row in the overview."""
EDGE_BYTES: Final = 4 << 10
"""Bytes at the beginning and at the end of a file that tell it from another one of the same size and time."""
SETTLED_AFTER_NS: Final = 3_000_000_000
"""Time after a change from which on another one gets another time: file systems count in up to 2 seconds."""
_MAX_TITLE_FACTS: Final = 20
"""Facts among which the message of a title is looked for."""
_MAX_HEADER_LINES: Final = 50
"""Lines among which the working folder is looked for."""

T = TypeVar("T")


class FileVersion(NamedTuple):
    """State of a file: when any of these changes, the file has changed."""

    modified_ns: int
    size: int
    inode: int
    edges: int
    """Digest of its beginning and its end: a file can be rewritten with the same size and time."""


class ReadEdges(NamedTuple):
    """The digest of a file's edges, and the state of the file that had them."""

    status: tuple[int, ...]
    edges: int
    is_settled: bool
    """Whether a later change would change the state: the file was not written just before."""


class LoadedFile(NamedTuple):
    """The conversations of a file."""

    version: FileVersion
    logs: tuple[TranscriptLog, ...]


class TranscriptLog:
    """The events of one conversation, in memory."""

    is_append_only = False

    is_lasting = True

    def __init__(self, events: Sequence[Event], *, parts: int) -> None:
        """`parts`: the number of conversations in its file."""
        self.parts: Final = parts
        self._events = events
        self._first = events[0].seq if events else 0

    @property
    def end(self) -> int:
        return self._first + len(self._events)

    async def pick(self, seqs: Sequence[int]) -> list[Event]:
        found = sorted({seq - self._first for seq in seqs})
        return [self._events[at] for at in found if 0 <= at < len(self._events)]

    async def skim(self, seqs: range) -> list[Event]:
        return await self.pick(seqs)

    async def checkpoint(self) -> None:
        """Return None: only a store has checkpoints."""


class TranscriptSource:
    """Transcripts in a file, or in a folder and the folders below it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._details: dict[str, tuple[FileVersion, tuple[SessionDetails, ...]]] = {}
        self._divisions = count(1)
        self._division = 0
        self._loaded: OrderedDict[str, LoadedFile] = OrderedDict()
        self._failed: dict[str, tuple[FileVersion, str]] = {}
        self._newest: dict[str, tuple[FileVersion, float | None]] = {}
        self._edges: dict[str, ReadEdges] = {}
        self._remembered: Callable[[str, FileVersion], int] = lambda _handle, _version: 1

    def remember_parts(self, parts: Callable[[str, FileVersion], int]) -> None:
        """Use an index that knows how many conversations a file had, by the handle of the first: a file with
        several need not be read to list them."""
        self._remembered = parts

    @property
    def name(self) -> str:
        return str(self._path)

    @property
    def problems(self) -> Sequence[str]:
        return [problem for _, problem in self._failed.values()]

    @property
    def division(self) -> int:
        """Changes when a file turns out to hold other conversations than `entries` has listed."""
        return self._division

    async def entries(self) -> list[SessionEntry]:
        found = await asyncio.to_thread(self._list_files)
        kept = {path for path, _ in found}
        for known in (self._details, self._loaded, self._failed, self._newest, self._edges):
            for path in known.keys() - kept:
                del known[path]
        return [
            entry
            for path, version in found
            for part in range(self._known_parts(path, version))
            if self._failed.get(path, (None,))[0] != version
            for entry in (_entry(path, version, part, self._newest_time(path, version, part)),)
        ]

    async def describe(self, entry: SessionEntry) -> SessionDetails:
        path, part = transcript_place(entry.key)
        known = self._details.get(path)
        if known is None or known[0] != entry.version:
            is_alone = part == 0 and self._remembered(entry.handle, _as_version(entry)) == 1
            known = await asyncio.to_thread(self._read_head if is_alone else self._read_details, path)
        return _at(known[1], part, path)

    async def open(self, entry: SessionEntry) -> SessionLog:
        path, part = transcript_place(entry.key)
        return _at((await asyncio.to_thread(self._load, path)).logs, part, path)

    async def find_raw(self, entry: SessionEntry, words: Sequence[bytes]) -> frozenset[int] | None:
        path, _ = transcript_place(entry.key)
        return await asyncio.to_thread(_find_raw, path, words)

    async def close(self) -> None:
        self._loaded.clear()

    # ── Files ────────────────────────────────────────────────────────────────────────────────────────────

    def _scan(self) -> Iterator[tuple[str, FileVersion]]:
        """Yield the newest files with their versions; a file that is deleted meanwhile is left out."""
        if not self._path.exists():
            raise RecallProblem(f"there is no file or folder {self._path}")
        paths = self._path.rglob("*") if self._path.is_dir() else (self._path,)
        is_folder = self._path.is_dir()
        found = (
            (str(path), version)
            for path in paths
            if not is_folder or is_transcript_name(path.name)
            if (version := self._file_version(path)) is not None
        )
        yield from nlargest(MAX_SOURCE_SESSIONS, found, key=lambda file: file[1])

    def _list_files(self) -> list[tuple[str, FileVersion]]:
        """Return the newest files with their versions; the time of the newest message of each is known then."""
        found = list(self._scan())
        for path, version in found:
            if self._newest.get(path, (None,))[0] != version:
                self._newest[path] = version, newest_line_time(path, version.size)
        return found

    def _newest_time(self, path: str, version: FileVersion, part: int) -> float | None:
        """Return the time of the newest message; of a file with several conversations, that of this one."""
        known = self._details.get(path)
        if known is not None and known[0] == version and part < len(known[1]):
            return self._newest[path][1] if known[1][part].newest is None else known[1][part].newest
        return self._newest[path][1]

    def _known_parts(self, path: str, version: FileVersion) -> int:
        known = self._details.get(path)
        listed = len(known[1]) if known is not None and known[0] == version else 1
        return max(listed, self._remembered(transcript_handle(path), version))

    def _read_head(self, path: str) -> tuple[FileVersion, tuple[SessionDetails, ...]]:
        """Return what the beginning and the end of a file say of its first conversation; of all, if that is the
        whole file."""
        version = self._current_version(path)
        try:
            with open(path, "rb") as file:
                head = _without_middle(file, version.size)
            is_whole = version.size <= HEAD_BYTES
            found = [_details(each, head, is_whole=is_whole) for each in _read_transcripts(head, path)]
        except UnreadableTranscript as problem:
            if version.size <= HEAD_BYTES:
                raise self._failure(path, version, str(problem)) from None
            return self._read_details(path)  # one JSON value that is longer than the beginning
        except OSError as problem:
            raise self._failure(path, version, f"{path}: {problem.strerror}") from None
        return self._keep_details(path, version, found if is_whole else found[:1])

    def _read_details(self, path: str) -> tuple[FileVersion, tuple[SessionDetails, ...]]:
        self._load(path)
        return self._details[path]

    def _load(self, path: str) -> LoadedFile:
        """Return the conversations of a file, parsed again if the file has changed."""
        version = self._current_version(path)
        loaded = self._loaded.pop(path, None)
        if loaded is None or loaded.version != version:
            loaded = self._parse(path, version)
        self._loaded[path] = loaded
        total = sum(file.version.size for file in self._loaded.values())
        while total > MAX_LOADED_BYTES and len(self._loaded) > 1:
            total -= self._loaded.popitem(last=False)[1].version.size
        return loaded

    def _parse(self, path: str, version: FileVersion) -> LoadedFile:
        if version.size > MAX_TRANSCRIPT_BYTES:
            problem = f"{path} has {version.size >> 20:,} MB, more than the {MAX_TRANSCRIPT_BYTES >> 20} MB"
            raise self._failure(path, version, f"{problem} that are read")
        try:
            with open(path, "rb") as file:
                head = file.read(HEAD_BYTES)
            details, parts = [], []
            for each in transcripts.read(path):
                details.append(_details(each, head, is_whole=True))
                parts.append(list(each.events(first=each.first)))
        except UnreadableTranscript as problem:
            text = str(UnreadableTranscript(path, problem.line, _without_advice(problem.problem)))
            raise self._failure(path, version, text) from None
        except OSError as problem:
            raise self._failure(path, version, f"{path}: {problem.strerror}") from None
        self._keep_details(path, version, details)
        self._failed.pop(path, None)
        return LoadedFile(version, tuple(TranscriptLog(events, parts=len(parts)) for events in parts))

    def _keep_details(
        self, path: str, version: FileVersion, details: Sequence[SessionDetails]
    ) -> tuple[FileVersion, tuple[SessionDetails, ...]]:
        listed = self._known_parts(path, version)
        self._details[path] = version, tuple(details)
        if len(details) != listed:
            self._division = next(self._divisions)  # two threads never set the same number
        return self._details[path]

    def _file_version(self, path: Path) -> FileVersion | None:
        """Return the version of a file; None if it is gone, or a pipe, which would block the reader."""
        try:
            found = path.stat()
            if not os.path.isfile(path):
                return None
            return FileVersion(
                found.st_mtime_ns, found.st_size, found.st_ino, self._edges_of(str(path), found)
            )
        except OSError:
            return None

    def _edges_of(self, path: str, found: os.stat_result) -> int:
        """Return the digest of a file's edges, which are read if the file may have changed."""
        status = (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)
        known = self._edges.get(path)
        if known is None or known.status != status or not known.is_settled:
            is_settled = time.time_ns() - max(status[:2]) > SETTLED_AFTER_NS
            known = self._edges[path] = ReadEdges(status, _read_edges(path, found.st_size), is_settled)
        return known.edges

    def _current_version(self, path: str) -> FileVersion:
        version = self._file_version(Path(path))
        if version is None:
            raise RecallProblem(f"{path} does not exist any more")
        return version

    def _failure(self, path: str, version: FileVersion, problem: str) -> RecallProblem:
        self._failed[path] = version, problem
        return RecallProblem(problem)


def _find_raw(path: str, words: Sequence[bytes]) -> frozenset[int] | None:
    """Return the numbers of the words in a file; None if it is compressed, too large or cannot be read."""
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_RAW_BYTES + 1)
    except OSError:
        return None
    if len(content) > MAX_RAW_BYTES or content.startswith(GZIP_MAGIC):
        return None
    content = content.lower()
    return frozenset(number for number, word in enumerate(words) if word in content)


def _read_edges(path: str, size: int) -> int:
    """Return the digest of the beginning and the end of a file; 0 if it cannot be read, which the source reports
    when the file is described."""
    try:
        with open(path, "rb") as file:
            digest = blake2b(file.read(EDGE_BYTES), digest_size=6)
            file.seek(max(EDGE_BYTES, size - EDGE_BYTES))
            digest.update(file.read(EDGE_BYTES))
    except OSError:
        return 0
    return int.from_bytes(digest.digest(), "big")


def _as_version(entry: SessionEntry) -> FileVersion:
    return FileVersion(*map(int, entry.version))


def _entry(path: str, version: FileVersion, part: int, newest: float | None) -> SessionEntry:
    key = _key(path, part)
    return SessionEntry(
        handle=transcript_handle(path, part),
        key=key,
        name=os.path.basename(path).partition(".")[0] + (f":{part}" if part else ""),
        active=version.modified_ns / 1e9 if newest is None else newest,
        version=version,
        size=version.size,
        is_file_time=newest is None,
    )


def _key(path: str, part: int) -> str:
    return f"{path}\0{part}"


def transcript_handle(path: str, part: int = 0) -> str:
    """Return the handle of a conversation in a file."""
    return session_handle("transcript", _key(path, part))


def transcript_place(key: str) -> tuple[str, int]:
    """Return the file of an entry, and the number of the conversation in it."""
    path, _, part = key.rpartition("\0")
    return path, int(part)


def _at(items: Sequence[T], part: int, path: str) -> T:
    if part >= len(items):
        raise RecallProblem(f"{path} has only {len(items)} conversations now: list the sessions again")
    return items[part]


# ── Beginning of a file ──────────────────────────────────────────────────────────────────────────────────


def _without_middle(file: BinaryIO, size: int) -> bytes:
    """Return the whole lines at the beginning and at the end of a file; only the beginning of one without lines."""
    head = file.read(HEAD_BYTES)
    lines, line_end, _ = head.rpartition(b"\n")
    if size <= HEAD_BYTES or head.startswith(GZIP_MAGIC) or not line_end:
        return head
    file.seek(max(HEAD_BYTES, size - END_BYTES))
    return lines + b"\n" + file.read(END_BYTES).partition(b"\n")[2]


def _read_transcripts(head: bytes, path: str) -> Iterator[Transcript]:
    try:
        yield from transcripts.read(BytesIO(head))
    except UnreadableTranscript as problem:
        raise UnreadableTranscript(path, problem.line, _without_advice(problem.problem)) from None


def _without_advice(problem: str) -> str:
    """Return the problem without the advice to pass a format, which the archive does not take."""
    return UNKNOWN_FORMAT if problem.startswith(UNKNOWN_FORMAT) else problem


def _details(transcript: Transcript, head: bytes, *, is_whole: bool) -> SessionDetails:
    opened = transcript.facts[0][0] if transcript.facts else None
    return SessionDetails(
        kind=transcript.source,
        title=whole_title(transcript.title, transcript.facts[:_MAX_TITLE_FACTS]),
        folder=recorded_folder(opened) or _line_folder(head),
        events=transcript.first + len(transcript.facts) if is_whole else None,
        newest=newest_fact_time(transcript.facts) if is_whole else None,
        model=transcript.model,
        parent=transcript.parent,
        window=transcript.window,
        unknown=transcript.unknown,
    )


def _line_folder(head: bytes) -> str:
    """Return the first `cwd` of a line or of its payload, as Claude Code, Codex and pi write it."""
    for line in islice(read_lines(BytesIO(head)), _MAX_HEADER_LINES):
        value = line.parse_object() or {}
        for part in (value, value.get("payload")):
            folder = part.get("cwd") if isinstance(part, dict) else None
            if isinstance(folder, str) and folder:
                return folder
    return ""


# ── End of a file ────────────────────────────────────────────────────────────────────────────────────────


def newest_fact_time(facts: Sequence[TimedFact]) -> float | None:
    """Return the newest time of the facts, None if none has one."""
    return max((at for _, at in facts if at is not None), default=None)


def newest_line_time(path: str, size: int) -> float | None:
    """Return the newest time of the last lines, None if there is none or the file cannot be read."""
    try:
        with open(path, "rb") as file:
            if file.read(len(GZIP_MAGIC)) == GZIP_MAGIC:  # its end cannot be read without the rest
                return None
            for length in TAIL_BYTES:
                start = file.seek(max(0, size - length))
                tail = file.read(length)
                newest = max(_line_times(tail, is_whole=start == 0), default=None)
                if newest is not None or start == 0:
                    return newest
    except OSError:  # the source reports it when the file is described
        return None
    return None


def _line_times(tail: bytes, *, is_whole: bool) -> Iterator[float]:
    """Yield the times of the last lines that have one."""
    lines = tail if is_whole else tail.partition(b"\n")[2]
    values = (line.parse_object() or {} for line in reversed(list(read_lines(BytesIO(lines)))))
    times = (
        at for value in values for field in _TIME_FIELDS if (at := parse_time(value.get(field))) is not None
    )
    return islice(times, _TIMED_LINES)


class TranscriptTail(NamedTuple):
    """Newest events of the first conversation of a file."""

    events: Sequence[Event]
    """Their seqs count from 0."""
    is_whole: bool


def read_tail(path: str, format: str, *, max_bytes: int = MAX_TAIL_BYTES) -> TranscriptTail:
    """Return the newest events of a file; none if its end cannot be understood without the rest."""
    try:
        with open(path, "rb") as file:
            is_packed = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
            size = file.seek(0, 2)
            start = file.seek(max(0, size - max_bytes))
            data = file.read(max_bytes)
    except OSError:  # the source reports it when the file is described
        return TranscriptTail((), is_whole=False)
    if start and is_packed:
        return TranscriptTail((), is_whole=False)
    lines = data.partition(b"\n")[2] if start else data
    try:
        first = next(iter(transcripts.read(BytesIO(lines), format=format)), None)
    except UnreadableTranscript:
        return TranscriptTail((), is_whole=False)
    return TranscriptTail(() if first is None else list(first.events()), is_whole=not start)
