"""The end of a transcript file, parsed without the rest."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import Final, NamedTuple

from foveal import transcripts
from foveal.core.log.events import Event
from foveal.transcripts import UnreadableTranscript
from foveal.transcripts.jsonl import GZIP_MAGIC

MAX_TAIL_BYTES: Final = 256 << 10
"""Bytes that are read from the end of a file for its row in the overview."""


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
