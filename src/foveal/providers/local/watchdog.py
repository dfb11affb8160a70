"""Script that runs a program and stops it when the parent process ends.

    python -I -S watchdog.py PROGRAM ARGUMENT…

1. Standard input is a pipe whose other end only the parent process holds. When the parent closes it or ends in any
   way, the pipe ends, and the watchdog stops the program with its process group. A line `keep` in the pipe lets the
   program run on without the parent.
2. If the watchdog itself is killed, Linux kills the program with it.
3. The first line of standard output is the program's process id, which is also the number of its group.
4. The program's output goes to standard error. If that is closed, the output is read and dropped, so that a program
   that runs on does not fail.

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
TRAILING_OUTPUT_S = 0.5
"""Seconds in which processes that left the group may still write after the program has ended."""
KEEP = b"keep\n"


def main(command: list[str]) -> int:
    """Run a command and return its exit code as a shell does."""
    is_linux = sys.platform == "linux"
    reader, writer = os.pipe()
    program = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=writer,
        stderr=writer,
        start_new_session=True,
        preexec_fn=_die_with_parent if is_linux else None,
    )
    os.close(writer)
    signal.signal(signal.SIGTERM, lambda *_: _signal_group(program, signal.SIGTERM))
    threading.Thread(target=_wait_for_pipe_end, args=(program,), daemon=True).start()
    relay = threading.Thread(target=_relay_output, args=(reader,), daemon=True)
    relay.start()
    sys.stdout.write(f"{program.pid}\n")
    sys.stdout.flush()
    code = program.wait()
    _signal_group(program, signal.SIGKILL)  # what the program has left running
    relay.join(TRAILING_OUTPUT_S)
    return code if code >= 0 else 128 - code


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _relay_output(reader: int) -> None:
    while data := os.read(reader, 1 << 16):
        with suppress(OSError):  # the parent has ended
            os.write(2, data)


def _wait_for_pipe_end(program: subprocess.Popen[bytes]) -> None:
    received = b""
    with suppress(OSError):
        while data := os.read(0, 4096):
            received += data
    if KEEP not in received:
        _stop_program(program)


def _stop_program(program: subprocess.Popen[bytes]) -> None:
    _signal_group(program, signal.SIGTERM)
    try:
        program.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        _signal_group(program, signal.SIGKILL)


def _signal_group(program: subprocess.Popen[bytes], number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(program.pid, number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
