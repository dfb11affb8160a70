"""Time of the newest message of a transcript file, from the end of the file.

The time of the file itself is not it: copying, restoring or syncing a file changes that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from io import BytesIO
from itertools import islice
from typing import Final

from foveal.transcripts.jsonl import GZIP_MAGIC, read_lines
from foveal.transcripts.transcript import TimedFact, parse_time

TAIL_BYTES: Final = (16 << 10, 1 << 20)
"""Ends of a file that are read: the second one only if the first has no whole line with a time."""
_TIMED_LINES: Final = 3
"""Lines that are compared: an agent may write two of the same moment in the other order."""
_TIME_FIELDS: Final = ("timestamp", "at")
"""Fields of a line with its time: in Claude Code, Codex and pi, and in files that Foveal exports."""


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
