"""Python programs for shell scripts and settings, started by `support.warm_start` in place of new interpreters.

    with warm_commands() as address:
        script = f"{command(address, 'foveal.cli')} token list"
        server = {"command": sys.executable, "args": arguments(address, "server.py", "8080")}

The command is a small client: it passes its arguments, environment, folder and standard streams to a thread of the
test, which starts the program and returns its exit code.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from support import warm_start
from support.paths import SUPPORT

PROGRAM_LIMIT_S: Final = 240.0
"""Seconds that a program may run."""
CLIENT: Final = SUPPORT / "warm_client.py"


def command(address: Path, module: str) -> str:
    """Return the beginning of a shell command that runs a module."""
    return shlex.join([sys.executable, *arguments(address, module)])


def arguments(address: Path, program: object, *given: object) -> list[str]:
    """Return the arguments of a Python that runs a module, or a file whose name ends with `.py`."""
    return ["-S", "-I", *map(str, (CLIENT, address, program, *given))]


@contextmanager
def warm_commands() -> Iterator[Path]:
    """Serve commands at an address while the block runs."""
    with (
        tempfile.TemporaryDirectory(prefix="foveal-") as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener,
    ):
        address = Path(folder) / "commands"
        listener.bind(str(address))
        listener.listen()
        accepting = threading.Thread(target=_accept, args=(listener,), daemon=True)
        accepting.start()
        try:
            yield address
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join()


def _accept(listener: socket.socket) -> None:
    with suppress(OSError):  # the listener was shut down
        while True:
            client, _ = listener.accept()
            threading.Thread(target=_serve, args=(client,), daemon=True).start()


def _serve(client: socket.socket) -> None:
    with client:
        _, streams, _, _ = socket.recv_fds(client, 1, 3)
        try:
            received = b"".join(iter(lambda: client.recv(1 << 16), b""))
            given = json.loads(received)
            stdin, stdout, stderr = streams
            program, *words = given["arguments"]
            process = warm_start.start(
                [*([] if program.endswith(".py") else ["-m"]), program, *words],
                env=given["environment"], cwd=Path(given["folder"]),
                stdin=stdin, stdout=stdout, stderr=stderr,
            )  # fmt: skip
            code = process.wait(PROGRAM_LIMIT_S)
        finally:
            for stream in streams:
                os.close(stream)
        client.sendall(str(code if code >= 0 else 128 - code).encode())
