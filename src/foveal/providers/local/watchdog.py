"""Runs a server for as long as the process that wants it lives. Started as a script; imports nothing of ours.

    python -I -S watch.py PROGRAM ARGUMENT…

Standard input is a pipe whose other end only our process has: when that closes it, or dies in whatever way, the
pipe ends, and so does the server. Should this watcher itself be killed, Linux ends the server with it.
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
GRACE = 2.0
"""Seconds that a server has to end by itself."""


def main(command: list[str]) -> int:
    linux = sys.platform == "linux"
    server = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=2, preexec_fn=_die_with_parent if linux else None
    )
    signal.signal(signal.SIGTERM, lambda *_: server.terminate())
    threading.Thread(target=_wait_for_end, args=(server,), daemon=True).start()
    sys.stdout.write(f"{server.pid}\n")
    sys.stdout.flush()
    return server.wait()


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _wait_for_end(server: subprocess.Popen[bytes]) -> None:
    with suppress(OSError):
        while os.read(0, 4096):
            pass
    _end(server)


def _end(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(GRACE)
    except subprocess.TimeoutExpired:
        server.kill()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
