"""Runs a subprocess in its own process group and kills the group at the end.

1. Both streams are one pipe, so their output stays in order. It is spooled to a file: of output above
   `MAX_COMMAND_BYTES`, the beginning and the end. Memory use does not depend on the amount of output.
2. When the process ends, the processes that it left running in its group are killed. When it takes too long or the
   caller is cancelled, the group, or what runs in a sandbox, gets SIGTERM, then SIGKILL; the output until then is
   returned. On Linux the result names what was killed, and what has left the group and runs on; a sandbox ends all
   of it before it can be named.
3. The group is killed before its leader is reaped, so that the group's number cannot belong to another process yet.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import re
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, Protocol, Self

from foveal.agent.tool import MAX_OUTPUT_CHARS, OutputListener
from foveal.core.wire.safe_print import one_line

TERMINATE_WAIT_S: Final = 1.0
"""Seconds between SIGTERM and SIGKILL."""
TRAILING_OUTPUT_WAIT_S: Final = 0.5
"""Seconds in which other processes of the group may still write after their leader has ended."""
MAX_COMMAND_BYTES: Final = MAX_OUTPUT_CHARS - 4_096
"""Most bytes of a command's output that are kept; notes after them fit into an answer too."""
_MAX_LEFT_COMMAND_CHARS: Final = 80
_CHUNK_BYTES: Final = 1 << 18


class LeftProcess(NamedTuple):
    """A process that a command has left running."""

    pid: int
    command: str
    is_in_group: bool
    """Whether it is killed with the group of the command; daemons leave it."""


class ProcessResult(NamedTuple):
    """Output and end of a process."""

    output: str
    status: int
    """The exit status, or the negative number of the signal that ended the process."""
    timed_out: bool = False
    had_orphans: bool = False
    """Whether the process had left others running, which were killed."""
    left: tuple[LeftProcess, ...] = ()
    """Those that are known."""
    had_invalid_utf8: bool = False
    """Whether some bytes were not UTF-8 and were replaced."""


class OutputSink(Protocol):
    """Where a pipe writes its data."""

    def write(self, data: bytes, /) -> object: ...


async def run_process(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    timeout_s: float,
    on_output: OutputListener | None = None,
) -> ProcessResult:
    """Run a process to its end; when cancelled, stop it and return the output so far.

    `on_output` gets the output while it is printed."""
    mark = f"{_MARK_VARIABLE}={os.urandom(8).hex()}"
    with OutputSpool(MAX_COMMAND_BYTES) as spool, OutputPipe(spool, on_output) as pipe:
        child = _spawn(argv, cwd, {**env, _MARK_VARIABLE: mark.partition("=")[2]}, pipe.writer)
        pipe.close_writer()
        ended = watch_exit(child)
        timed_out = was_stopped = False
        try:
            await asyncio.wait_for(ended.wait(), timeout_s)
            await _wait_for(pipe.ended, TRAILING_OUTPUT_WAIT_S)
        except (TimeoutError, asyncio.CancelledError) as problem:
            timed_out, was_stopped = isinstance(problem, TimeoutError), True
            if not ask_sandboxed(child.pid):
                _signal_group(child, signal.SIGTERM)
            with suppress(asyncio.CancelledError):
                await _wait_for(ended, TERMINATE_WAIT_S)
        left = () if was_stopped else tuple(_left_processes(child.pid, mark))
        had_orphans = not was_stopped and (
            not pipe.ended.is_set() or any(process.is_in_group for process in left)
        )
        await _kill_group(child, ended)
        pipe.drain()
        text, had_invalid_utf8 = spool.text()
        status = -signal.SIGKILL if child.returncode is None else child.returncode
        return ProcessResult(
            text,
            status,
            timed_out=timed_out,
            had_orphans=had_orphans,
            left=left,
            had_invalid_utf8=had_invalid_utf8,
        )


def _spawn(argv: Sequence[str], cwd: Path, env: Mapping[str, str], out: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        argv,
        cwd=cwd,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=out,
        start_new_session=True,
    )


def watch_exit(child: subprocess.Popen[bytes]) -> asyncio.Event:
    """Return an event that is set when a process ends; the process is not reaped by that."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def wait() -> None:
        if hasattr(os, "waitid"):
            with suppress(ChildProcessError):
                os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        else:
            child.wait()
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=wait, name=f"wait-{child.pid}", daemon=True).start()
    return ended


async def _wait_for(event: asyncio.Event, timeout_s: float) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), timeout_s)


def ask_sandboxed(leader: int) -> bool:
    """Ask what a process runs in a sandbox to end; return False if there is nothing. The sandbox ends after it; if
    the sandbox were asked, it would kill what it runs, which could not remove its locks then."""
    inside = list(_sandboxed_below(leader))
    for pid in inside:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGTERM)
    return bool(inside)


def _signal_group(child: subprocess.Popen[bytes], number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)


async def _kill_group(child: subprocess.Popen[bytes], ended: asyncio.Event) -> None:
    """Kill the whole group and reap its leader."""
    _signal_group(child, signal.SIGKILL)
    with suppress(asyncio.CancelledError):
        await _wait_for(ended, TERMINATE_WAIT_S)
    child.poll()


# ── Processes that a command leaves ─────────────────────────────────────────────────────────────

_MARK_VARIABLE: Final = "FOVEAL_COMMAND"
"""Set for a command, so that its processes are recognised after they have left its group."""
_PARENT: Final = re.compile(r"^PPid:\s*(\d+)", re.M)
_OWN_NUMBERS: Final = re.compile(r"^NSpid:\s*([\d\t ]+)$", re.M)
"""The numbers of a process, one for each namespace of processes in which it is."""


def _left_processes(leader: int, mark: str) -> Iterator[LeftProcess]:
    """Yield what runs of a command whose leader has ended; nothing where there is no /proc."""
    names = os.listdir("/proc") if os.path.isdir("/proc") else []
    for pid in sorted(int(name) for name in names if name.isdecimal()):
        with suppress(OSError, ValueError, IndexError):  # it has just ended, or belongs to another user
            state, _, group = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:3]
            is_in_group = int(group) == leader
            if state in "ZX" or not (is_in_group or mark.encode() in _proc_words(pid, "environ")):
                continue
            command = b" ".join(_proc_words(pid, "cmdline")).decode("utf-8", "replace")
            yield LeftProcess(pid, one_line(command, width=_MAX_LEFT_COMMAND_CHARS), is_in_group)


def _sandboxed_below(leader: int) -> Iterator[int]:
    """Yield the descendants of a process that run in a namespace of processes of its own."""
    names = os.listdir("/proc") if os.path.isdir("/proc") else []
    children: dict[int, list[tuple[int, bool]]] = {}
    for pid in (int(name) for name in names if name.isdecimal()):
        with suppress(OSError, ValueError, AttributeError):
            status = Path(f"/proc/{pid}/status").read_text()
            parent = int(_PARENT.search(status)[1])  # type: ignore[index]
            is_nested = len(_OWN_NUMBERS.search(status)[1].split()) > 1  # type: ignore[index]
            children.setdefault(parent, []).append((pid, is_nested))
    waiting = children.get(leader, [])
    while waiting:
        waiting = [*waiting]
        pid, is_nested = waiting.pop()
        waiting += children.get(pid, [])
        if is_nested:
            yield pid


def _proc_words(pid: int, name: str) -> list[bytes]:
    return Path(f"/proc/{pid}/{name}").read_bytes().strip(b"\0").split(b"\0")


# ── Output ────────────────────────────────────────────────────────────────────────────────────────


class OutputPipe:
    """A pipe that the event loop reads into a sink, and shows to a listener."""

    def __init__(self, sink: OutputSink, listener: OutputListener | None = None) -> None:
        self._sink, self._listener = sink, listener
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Event = asyncio.Event()
        """Set when all writers have closed the pipe."""
        self.writer: int
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)

    def __enter__(self) -> Self:
        self._loop.add_reader(self._reader, self._read)
        return self

    def close_writer(self) -> None:
        """Close this process's copy of the writing end; the child has inherited its own."""
        writer, self.writer = self.writer, -1
        if writer >= 0:
            os.close(writer)

    def __exit__(self, *_: object) -> None:
        self.close_writer()
        self._loop.remove_reader(self._reader)
        os.close(self._reader)

    def drain(self) -> None:
        """Read what is in the pipe, at most 64 chunks, without waiting."""
        for _ in range(64):
            if not self._read():
                return

    def _read(self) -> bool:
        try:
            data = b"" if self.ended.is_set() else os.read(self._reader, _CHUNK_BYTES)
        except (BlockingIOError, InterruptedError):
            return False
        if data:
            self._sink.write(data)
            if self._listener is not None:
                self._listener(data)
        else:
            self.ended.set()
            self._loop.remove_reader(self._reader)
        return bool(data)


class OutputSpool:
    """A temporary file for output of any length: the first half, then a ring with the last half."""

    def __init__(self, max_bytes: int) -> None:
        self._half = max(1, max_bytes // 2)
        self._file = tempfile.TemporaryFile(prefix="foveal-")  # noqa: SIM115 - closed by __exit__
        self._total = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, data: bytes) -> None:
        """Append data, overwriting the oldest data of the ring when it is full."""
        while data:
            position, room = self._next_position()
            piece, data = data[:room], data[room:]
            self._file.seek(position)
            self._file.write(piece)
            self._total += len(piece)

    def _next_position(self) -> tuple[int, int]:
        """Return the position of the next byte, and how many bytes can follow there."""
        half = self._half
        if self._total < half:
            return self._total, half - self._total
        inside = (self._total - half) % half
        return half + inside, half - inside

    @property
    def total(self) -> int:
        """Bytes that were written so far."""
        return self._total

    def text(self, start: int = 0) -> tuple[str, bool]:
        """Return the output from a byte on, and whether some of it was not UTF-8."""
        self._file.flush()
        if start >= self._total:
            return "", False
        half, first_in_ring = self._half, self._total - self._half
        with mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ) as whole:
            if first_in_ring <= half:
                return _decode(whole if not start else whole[start:])
            cut = half + self._total % half
            ring = whole[cut:] + whole[half:cut]
            if start >= first_in_ring:
                return _decode(ring[start - first_in_ring :])
            left_out = first_in_ring - max(start, half)
            note = f"\n[{left_out:,} bytes were left out here and not kept: output may have {2 * half:,}]\n"
            (begin, invalid), (end, also) = _decode(whole[start:half]), _decode(ring)
            return begin + note + end, invalid or also


def _decode(data: mmap.mmap | bytes) -> tuple[str, bool]:
    try:
        return str(data, "utf-8"), False
    except UnicodeDecodeError:
        return str(data, "utf-8", "replace"), True


# ── The environment of commands ──────────────────────────────────────────────────────────────────────
# A command is checked by its text. A variable that makes the shell, the loader or git run something else would make
# that check worthless, so none of them reaches a command.

_SECRET_NAME: Final = re.compile(
    r"API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|_KEY$|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|^(PG|MYSQL_?)?PASS$"
    r"|^FOVEAL_(SERVER_)?DATABASE$",
    re.I,
)
_SHELL_VARIABLE: Final = re.compile(
    r"BASH_.*|ENV|SHELLOPTS|BASHOPTS|PS[0-4]|PROMPT_COMMAND|IFS|CDPATH|GLOBIGNORE|EXECIGNORE|POSIXLY_CORRECT"
    # Functions that a shell has exported, also as old shells and other systems name them.
    r"|.*\(\).*|.*%%.*",
    re.S,
)
_PROGRAM_VARIABLE: Final = re.compile(
    r"LD_(PRELOAD|AUDIT|DEBUG.*|PROFILE.*)|DYLD_(INSERT|FORCE|PRINT).*"
    r"|PYTHON(STARTUP|INSPECT|BREAKPOINT|USERBASE|HOME)|PERL5(OPT|DB|LIB)|PERLLIB|RUBY(OPT|LIB)|NODE_OPTIONS"
    r"|JAVA_TOOL_OPTIONS|_JAVA_OPTIONS|JDK_JAVA_OPTIONS|GLIBC_TUNABLES|GCONV_PATH|LOCPATH"
    r"|LESS(OPEN|CLOSE)|MANPAGER|SSH_ASKPASS|SUDO_ASKPASS|RIPGREP_CONFIG_PATH|MAKEFLAGS|MAKEFILES|GNUMAKEFLAGS"
    r"|GIT_(?!(AUTHOR|COMMITTER)_(NAME|EMAIL|DATE)$|SSL_CAINFO$).*"
)
_NONINTERACTIVE: Final = {
    "TERM": "dumb",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "NO_COLOR": "1",
}


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment for non-interactive programs, without keys and other secrets."""
    return {
        name: value for name, value in environment.items() if not _SECRET_NAME.search(name)
    } | _NONINTERACTIVE


def command_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment for commands: without secrets and without variables that start programs."""
    kept = {
        name: value
        for name, value in environment.items()
        if not _SHELL_VARIABLE.fullmatch(name) and not _PROGRAM_VARIABLE.fullmatch(name)
    }
    return without_secrets(kept)
