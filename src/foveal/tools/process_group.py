"""One process of ours, in a group of its own: its output in a spool file, and no end of it left behind.

1. Both streams are one pipe, so they stay in order. What comes is spooled to a file, beginning and end of it when
   it is more than `MOST`: output costs no memory while it comes, however much it is.
2. When the process ends, so does whatever it left running in its group. When it takes too long or the caller is
   cancelled, the group is asked to end, then killed; what was printed until then is returned.
3. The group is killed before its leader is waited for, so its number cannot belong to somebody else by then.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, Protocol, Self

from foveal.tools.tool import MOST

POLITE: Final = 1.0
"""Seconds between asking a group to end and killing it."""
LINGER: Final = 0.5
"""Seconds that others of the group may still write after their leader has ended."""
_CHUNK: Final = 1 << 18


class ProcessResult(NamedTuple):
    """How a process went."""

    output: str
    status: int
    """Its exit status; the negative number of the signal that ended it."""
    late: bool = False
    """It took too long, and was ended by us."""
    orphans: bool = False
    """It had left others running, which were ended."""
    garbled: bool = False
    """Some bytes were not UTF-8, and are replaced."""


class OutputSink(Protocol):
    def write(self, data: bytes, /) -> object: ...


async def execute(
    argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], timeout: float, most: int = MOST
) -> ProcessResult:
    """Run a process to its end. When it is cancelled, it returns what there is."""
    with OutputSpool(most) as spool, OutputPipe(spool) as pipe:
        child = _started(argv, cwd, env, pipe.writer)
        pipe.begin()
        ended = _watched(child)
        late = cancelled = False
        try:
            await asyncio.wait_for(ended.wait(), timeout)
            await _within(pipe.ended, LINGER)
        except (TimeoutError, asyncio.CancelledError) as problem:
            late, cancelled = isinstance(problem, TimeoutError), True
            _signal(child, signal.SIGTERM)
            with suppress(asyncio.CancelledError):
                await _within(ended, POLITE)
        orphans = not cancelled and not pipe.ended.is_set()
        await _finished(child, ended)
        pipe.drain()
        text, garbled = spool.text()
        status = -signal.SIGKILL if child.returncode is None else child.returncode
        return ProcessResult(text, status, late=late, orphans=orphans, garbled=garbled)


def _started(argv: Sequence[str], cwd: Path, env: Mapping[str, str], out: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        argv,
        cwd=cwd,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=out,
        start_new_session=True,
    )


def _watched(child: subprocess.Popen[bytes]) -> asyncio.Event:
    """An event that is set when a process has ended; it is not reaped by that."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def wait() -> None:
        if hasattr(os, "waitid"):
            with suppress(ChildProcessError):
                os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        else:
            child.wait()
        with suppress(RuntimeError):  # the loop is closed, and nobody is waiting
            loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=wait, name=f"wait-{child.pid}", daemon=True).start()
    return ended


async def _within(event: asyncio.Event, seconds: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
    return True


def _signal(child: subprocess.Popen[bytes], number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)


async def _finished(child: subprocess.Popen[bytes], ended: asyncio.Event) -> None:
    """End the whole group, and reap its leader."""
    _signal(child, signal.SIGKILL)
    with suppress(asyncio.CancelledError):
        await _within(ended, POLITE)
    child.poll()


# ── what it prints ───────────────────────────────────────────────────────────────────────────────────────


class OutputPipe:
    """A pipe whose other end fills a sink, while the event loop runs."""

    def __init__(self, sink: OutputSink) -> None:
        self._sink = sink
        self._loop = asyncio.get_running_loop()
        self.ended = asyncio.Event()
        """All who could write have closed it."""
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)

    def __enter__(self) -> Self:
        self._loop.add_reader(self._reader, self._read)
        return self

    def begin(self) -> None:
        """The writing end belongs to somebody else now."""
        writer, self.writer = self.writer, -1
        if writer >= 0:
            os.close(writer)

    def __exit__(self, *_: object) -> None:
        self.begin()
        self._loop.remove_reader(self._reader)
        os.close(self._reader)

    def drain(self) -> None:
        """Take what is there, without waiting for more than the pipe holds."""
        for _ in range(64):
            if not self._read():
                return

    def _read(self) -> bool:
        try:
            data = b"" if self.ended.is_set() else os.read(self._reader, _CHUNK)
        except (BlockingIOError, InterruptedError):
            return False
        if data:
            self._sink.write(data)
        else:
            self.ended.set()
            self._loop.remove_reader(self._reader)
        return bool(data)


class OutputSpool:
    """A file for output of any length: its beginning, and its end in a ring after that."""

    def __init__(self, most: int) -> None:
        self._half = max(1, most // 2)
        self._file = tempfile.TemporaryFile(prefix="foveal-")  # noqa: SIM115 - closed by __exit__
        self.total = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, data: bytes) -> None:
        while data:
            place, room = self._place()
            piece, data = data[:room], data[room:]
            self._file.seek(place)
            self._file.write(piece)
            self.total += len(piece)

    def _place(self) -> tuple[int, int]:
        """Where the next byte goes, and how many can follow it there."""
        half = self._half
        if self.total < half:
            return self.total, half - self.total
        inside = (self.total - half) % half
        return half + inside, half - inside

    def text(self) -> tuple[str, bool]:
        """What was written, and whether some of it was not UTF-8."""
        self._file.flush()
        half, left_out = self._half, self.total - 2 * self._half
        if not self.total:
            return "", False
        with mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ) as whole:
            if left_out <= 0:
                return _decoded(whole)
            cut = half + self.total % half
            note = f"\n[{left_out:,} bytes were left out here and not kept: output may have {2 * half:,}]\n"
            (start, some), (end, others) = _decoded(whole[:half]), _decoded(whole[cut:] + whole[half:cut])
            return start + note + end, some or others


def _decoded(data: mmap.mmap | bytes) -> tuple[str, bool]:
    try:
        return str(data, "utf-8"), False
    except UnicodeDecodeError:
        return str(data, "utf-8", "replace"), True
