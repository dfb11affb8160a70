"""Python programs that start as forks of a process which has imported what `foveal` imports.

A new interpreter needs about a second of CPU until a chat shows its prompt, nearly all of it for imports, and the
tests start some hundred chats, servers and workers. `start` and `run` fork them from one process per test worker
(the fork server of `multiprocessing`). All that follows the imports is as in a new process: arguments, environment,
folder, standard streams, signals and the exit code.

Tests of the start itself (which modules it imports, how it reports a missing package, options of the interpreter)
use `subprocess` and `sys.executable`.
"""

from __future__ import annotations

import ctypes
import fcntl
import importlib
import io
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from multiprocessing import connection, forkserver, reduction
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import IO, Any, Final, Self

from support.paths import TESTS

EXIT_LIMIT_S: Final = 60.0
"""How long a program may run after the block that uses it."""

Stream = int | IO[Any] | None
"""As in `subprocess`: PIPE, DEVNULL, a descriptor, a file, or None for the stream of this process."""


class WarmProcess:
    """A started program, with the attributes of `subprocess.Popen` that the tests use."""

    def __init__(self, process: BaseProcess, args: list[str], pipes: Sequence[IO[Any] | None]) -> None:
        assert process.pid is not None
        self._process = process
        self.args = args
        self.pid: int = process.pid
        self.stdin, self.stdout, self.stderr = pipes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the pipes and wait for the exit; a program that does not end by itself is killed."""
        self._close()
        try:
            self.wait(EXIT_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            self.wait()
            raise

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while the program runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended since
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, input: Any = None, timeout: float | None = None) -> tuple[Any, Any]:
        """Write the input, read both outputs to their end, and wait for the exit."""
        read: dict[IO[Any], Any] = {}
        outputs = [
            stream for stream in (self.stdout, self.stderr) if stream is not None and not stream.closed
        ]
        readers = [
            threading.Thread(target=lambda s=s: read.update({s: s.read()}), daemon=True) for s in outputs
        ]
        for reader in readers:
            reader.start()
        with suppress(BrokenPipeError):
            if self.stdin is not None and not self.stdin.closed:
                if input:
                    self.stdin.write(input)
                self.stdin.close()
        self.wait(timeout)
        for reader in readers:
            reader.join(timeout)
        self._close()
        return read.get(self.stdout), read.get(self.stderr)  # type: ignore[arg-type]

    def _close(self) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()


def start(
    command: Sequence[object],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: Stream = None,
    stdout: Stream = None,
    stderr: Stream = None,
    encoding: str | None = None,
    is_terminal: bool = False,
) -> WarmProcess:
    """Start what follows `python` in a command line: `-m MODULE …` or `FILE …`.

    With `is_terminal`, `stdin` becomes the controlling terminal of a new session.
    """
    args = list(map(str, command))
    opened = [_opened(number, given) for number, given in enumerate((stdin, stdout, stderr))]
    environment = dict(os.environ if env is None else env)
    streams = _SentStreams([inner for inner, _, _ in opened])
    process = _context().Process(
        target=_run_program, args=(args, environment, str(cwd or Path.cwd()), streams, is_terminal)
    )
    process.daemon = True  # ends with the test worker, even if a test forgets it
    with _STARTING:
        process.start()
        _read_exit_code_once(process)
    for inner, _, is_ours in opened:
        if is_ours:
            os.close(inner)
    ends = [
        None if outer is None else _file(outer, number, encoding)
        for number, (_, outer, _) in enumerate(opened)
    ]
    return WarmProcess(process, args, ends)


_STARTING: Final = threading.Lock()
PR_SET_PDEATHSIG: Final = 1


def _read_exit_code_once(process: BaseProcess) -> None:
    """Let one thread at a time read the exit code of a process.

    Each start of a process looks whether others have ended. If that happens while another thread waits for one of
    them, both read its exit code; the second finds the pipe at its end, and the code becomes 255."""
    popen: Any = process._popen  # type: ignore[attr-defined]
    poll_unlocked, reading = popen.poll, threading.Lock()

    def poll(flag: int = os.WNOHANG) -> int | None:
        if flag != os.WNOHANG:
            connection.wait([popen.sentinel])
        with reading:
            code: int | None = poll_unlocked(os.WNOHANG)
            return code

    popen.poll = poll


@contextmanager
def child(command: Sequence[object]) -> Iterator[WarmProcess]:
    """Run a program with pipes, and kill it at the end."""
    process = start(command, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def run(
    command: Sequence[object], *, input: Any = None, timeout: float = 240.0, **how: Any
) -> subprocess.CompletedProcess[Any]:
    """Run a program to its end and return its output, as `subprocess.run` with `capture_output` does."""
    with start(command, **{"stdin": PIPE, "stdout": PIPE, "stderr": PIPE, **how}) as process:
        try:
            printed = process.communicate(input, timeout)
        finally:
            process.kill()
    return subprocess.CompletedProcess(process.args, process.wait(), *printed)


def _opened(number: int, given: Stream) -> tuple[int, int | None, bool]:
    """Return the program's descriptor, the other end of a pipe, and whether the first is to be closed here."""
    if given == PIPE:
        reading, writing = os.pipe()
        return (reading, writing, True) if number == 0 else (writing, reading, True)
    if given == DEVNULL:
        return os.open(os.devnull, os.O_RDWR), None, True
    if given is None:
        return number, None, False
    return (given if isinstance(given, int) else given.fileno()), None, False


def _file(descriptor: int, number: int, encoding: str | None) -> IO[Any]:
    """Open this process's end of a pipe."""
    mode = "w" if number == 0 else "r"
    return open(descriptor, mode if encoding else mode + "b", encoding=encoding)


class _SentStreams:
    """Descriptors that become a list of descriptors of the new process when they are pickled for it."""

    def __init__(self, streams: Sequence[int]) -> None:
        self._streams = streams

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, tuple(map(reduction.DupFd, self._streams))


def _received(*sent: Any) -> list[int]:
    return [one.detach() for one in sent]


# ── The fork server and its children ─────────────────────────────────────────────────────────────────────


@cache
def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["support.warm_imports"])
    # A checkout that is chosen with PYTHONPATH is the one whose programs run.
    given = os.environ.get("PYTHONPATH", "")
    folders = os.pathsep.join([str(TESTS), *([given] if given else [])])
    with _environment(PYTHONPATH=folders, PYTHONUTF8="1"):
        forkserver.ensure_running()
    return context


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


_INSTALLED: Final = [path for path in sys.path if path and Path(path) != TESTS]
"""The folders of packages. The fork server computes it, before a program's own folders are added."""


def _run_program(
    command: list[str], env: dict[str, str], cwd: str, streams: list[int], is_terminal: bool
) -> None:
    """Make this fork what a new interpreter would be, and run the program."""
    multiprocessing.current_process().daemon = False  # it may have children
    _end_with_parent()
    if is_terminal:
        os.setsid()
        fcntl.ioctl(streams[0], termios.TIOCSCTTY, 0)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.dont_write_bytecode = bool(env.get("PYTHONDONTWRITEBYTECODE"))
    sys.stdin = sys.__stdin__ = _text_stream(0, "rb", "surrogateescape")
    sys.stdout = sys.__stdout__ = _text_stream(1, "wb", "surrogateescape")
    sys.stderr = sys.__stderr__ = _text_stream(2, "wb", "backslashreplace", line_buffering=True)
    is_module = command[0] == "-m"
    given = env.get("PYTHONPATH", "")
    own = cwd if is_module else str(Path(command[0]).parent)
    sys.path[:] = [own, *(given.split(os.pathsep) if given else []), *_INSTALLED]
    importlib.invalidate_caches()
    sys.argv = command[1:] if is_module else command
    if is_module:
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(command[0], run_name="__main__")


def _end_with_parent() -> None:
    """Have Linux kill this process when the fork server ends, which it does with its test worker.

    A worker that is killed cannot end its programs, and they would keep its output open. The fork server itself
    ends when nobody holds its pipe any more, so this process gives up its end."""
    server: Any = forkserver._forkserver  # type: ignore[attr-defined]
    os.close(server._forkserver_alive_fd)
    server._forkserver_alive_fd = None
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _text_stream(number: int, mode: str, errors: str, *, line_buffering: bool = False) -> io.TextIOWrapper:
    """Open a standard stream as an interpreter in UTF-8 mode does."""
    is_unbuffered = mode == "wb" and bool(os.environ.get("PYTHONUNBUFFERED"))
    opened: Any = open(number, mode, buffering=0 if is_unbuffered else -1, closefd=False)  # noqa: SIM115
    line_buffering = line_buffering or os.isatty(number)
    return io.TextIOWrapper(opened, "utf-8", errors, None, line_buffering, is_unbuffered)
