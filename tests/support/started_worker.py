"""A job worker in a process of its own, which tests kill, pause and stop; its program is `job_process.py`."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE
from typing import Final

from support import warm_start
from support.paths import SUPPORT

DEADLINE: Final = 300.0 if os.environ.get("FOVEAL_SOAK") else 60.0


class StartedWorker:
    """A process with a job worker of a folder, or of the database with the URL."""

    def __init__(
        self, folder: Path, name: str, url: str = "", *, environment: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.name = name
        self._printed = b""
        program = SUPPORT / "job_process.py"
        self._process = warm_start.start(
            [program, folder, name, *([url] if url else [])],
            stdin=PIPE,
            stdout=PIPE,
            env={**os.environ, **(environment or {})},
        )

    def wait_until_open(self) -> None:
        self.wait_for("open")

    def wait_for(self, line: str) -> None:
        """Wait until the process prints a line."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + DEADLINE
        while f"{line}\n".encode() not in self._printed:
            assert time.monotonic() < deadline, f"{line!r} was not printed, only {self._printed!r}"
            if select.select([self._process.stdout], [], [], 1.0)[0]:
                data = os.read(self._process.stdout.fileno(), 65_536)
                assert data, f"it ended before it printed {line!r}"
                self._printed += data

    def ask(self, tenant: str, session: str, key: str) -> None:
        """Request a run and wait until it is stored."""
        self._write(f"{tenant} {session} {key}\n")
        self.wait_for(f"stored {key}")

    def has_printed(self, line: str) -> bool:
        return f"{line}\n".encode() in self._printed

    def kill(self) -> None:
        self._process.kill()
        self._close()

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> int:
        """Stop the process as SIGTERM stops a server, with running turns; return its exit code."""
        self._write("stop\n")
        return self._close()

    def end(self) -> int:
        """Let the process end normally; return its exit code."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._close()

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode())
        self._process.stdin.flush()

    def _close(self) -> int:
        code = self._process.wait(DEADLINE)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
        return code
