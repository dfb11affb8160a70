"""Script that runs a server and stops it when the parent process ends.

    python -I -S watchdog.py PROGRAM ARGUMENT…

1. Standard input is a pipe whose other end only the parent process holds. When the parent closes it or ends in any
   way, the pipe ends, and the watchdog stops the server.
2. If the watchdog itself is killed, Linux kills the server with it.
3. The first line of standard output is the server's process id.

The script runs without the project on its path, so it imports only the standard library.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress

PR_SET_PDEATHSIG = 1
STOP_TIMEOUT_S = 2.0
"""Seconds between SIGTERM and SIGKILL."""


def main(command: list[str]) -> int:
    """Run a command and return its exit code."""
    is_linux = sys.platform == "linux"
    server = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=2, preexec_fn=_die_with_parent if is_linux else None
    )
    signal.signal(signal.SIGTERM, lambda *_: server.terminate())
    threading.Thread(target=_wait_for_pipe_end, args=(server,), daemon=True).start()
    sys.stdout.write(f"{server.pid}\n")
    sys.stdout.flush()
    return server.wait()


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _wait_for_pipe_end(server: subprocess.Popen[bytes]) -> None:
    with suppress(OSError):
        while os.read(0, 4096):
            pass
    _stop_server(server)


def _stop_server(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        server.kill()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
