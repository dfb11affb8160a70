"""A tool call that is running: its time and the last lines of its output."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any, Final

from foveal.core.wire.safe_print import readable

MAX_LIVE_LINES: Final = 20
"""Most lines of a running command that an event has."""
MAX_LIVE_LINE_CHARS: Final = 500
_MAX_TAIL_BYTES: Final = 16 * 1024
_REPORT_INTERVAL_S: Final = 1.0
"""Seconds after which the time is reported although nothing was printed."""
_TERMINAL_SEQUENCE: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")


class RunningCall:
    """Collects what a running tool prints, and says when there is something new to show."""

    def __init__(self) -> None:
        self._tail = b""
        self._started: float | None = None
        self._ended: float | None = None
        self._has_news = False
        self._reported = 0.0

    def start(self) -> None:
        """Start the clock: from now on the tool runs."""
        self._started = self._reported = time.monotonic()

    def end(self) -> None:
        """Stop the clock."""
        self._ended = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds for which the tool has run so far; 0 if it did not start."""
        if self._started is None:
            return 0.0
        return (time.monotonic() if self._ended is None else self._ended) - self._started

    def add_output(self, data: bytes) -> None:
        """Add output of the tool."""
        self._tail = (self._tail + data[-_MAX_TAIL_BYTES:])[-_MAX_TAIL_BYTES:]
        self._has_news = True

    def take_news(self) -> bool:
        """Return whether something is to be shown that was not shown before."""
        now = time.monotonic()
        if self._started is None or not (self._has_news or now - self._reported >= _REPORT_INTERVAL_S):
            return False
        self._has_news, self._reported = False, now
        return True

    def last_lines(self) -> tuple[str, ...]:
        """Return the last lines, safe to print; of a line that was printed over, what is there now."""
        text = _TERMINAL_SEQUENCE.sub("", self._tail.decode("utf-8", "replace"))
        lines = [line.rstrip("\r").rpartition("\r")[2] for line in text.rstrip("\r\n").split("\n")]
        shown = lines[-MAX_LIVE_LINES:] if text else []
        return tuple(readable(line[:MAX_LIVE_LINE_CHARS]) for line in shown)


async def cancel_and_wait(task: asyncio.Future[Any]) -> None:
    """Cancel a task and wait until it has ended, also if the caller is cancelled again meanwhile."""
    task.cancel()
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            continue
