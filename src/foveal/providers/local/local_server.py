"""The server of the local model: started on loopback, on a free port, and ended with us.

It is a program of its own (`dasllama`), so it runs beside us with its log in a file. Its home is a folder of ours,
so that it neither reads nor writes the user's.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Final
from urllib.request import ProxyHandler, build_opener

from foveal.core.wire.safe_print import one_line
from foveal.errors import ProviderError

PATIENCE: Final = 120.0
"""Seconds until a server must have loaded its model."""
STREAMS: Final = 2
"""Answers at a time: one to the user, one for a summary."""
WATCHER: Final = Path(__file__).with_name("watchdog.py")


class LocalServer:
    """A server that runs."""

    def __init__(
        self, process: asyncio.subprocess.Process, *, port: int, served: str, pid: int, log: Path
    ) -> None:
        self._process = process
        self.log = log
        self.url = f"http://127.0.0.1:{port}/v1"
        self.served = served
        """What the server calls its model."""
        self.pid = pid
        """The server's own process."""

    @classmethod
    async def start(cls, gguf: Path, *, window: int, home: Path) -> LocalServer:
        """Start a server and wait until it answers; raises `ProviderError`."""
        home.mkdir(parents=True, exist_ok=True)
        log = home / f"server-{os.getpid()}.log"
        port = _free_port()
        process = await _spawn(_command(gguf, port, window), home, log)
        try:
            pid = int(await _line(process))
            served = await asyncio.wait_for(_ready(process, port), PATIENCE)
        except (TimeoutError, ValueError, ConnectionError):
            await _stop(process)
            raise ProviderError(
                f"the local model did not start: {_last_words(log)}; its log is {log}", code="server"
            ) from None
        except BaseException:
            await asyncio.shield(_stop(process))
            raise
        return cls(process, port=port, served=served, pid=pid, log=log)

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    async def stop(self) -> None:
        """End it; its log is kept only where it ended by itself, which nobody wanted."""
        wanted = self.alive
        await _stop(self._process)
        if wanted:
            self.log.unlink(missing_ok=True)


def _command(gguf: Path, port: int, window: int) -> list[str]:
    try:
        program: str = import_module("dasllama").tool_path("dasllama-server")
    except (ImportError, FileNotFoundError):
        raise ProviderError(
            "the local model needs its server: pip install 'foveal[local]'; where there is none for this machine, "
            "use a provider's model, or Ollama",
            code="refused",
        ) from None
    place = ("--host", "127.0.0.1", "-p", str(port))
    size = ("--ctx", str(window), "-s", str(STREAMS), "-t", str(_threads()), "--gpu", "off")
    return [program, "-m", str(gguf), *place, *size]


def _threads() -> int:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 2
    return max(1, min(8, usable))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def _spawn(command: list[str], home: Path, log: Path) -> asyncio.subprocess.Process:
    """The server under its watcher, apart from the terminal: Ctrl-C is for us, not for it."""
    with log.open("wb") as file:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", str(WATCHER), *command),
            cwd=home,
            env=_environment(home),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=file,
            start_new_session=True,
        )


def _environment(home: Path) -> Mapping[str, str]:
    """What a server needs of our environment, and no key among it."""
    kept = ("PATH", "LANG", "LC_ALL", "TMPDIR", "TEMP", "SYSTEMROOT", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
    ours = {"HOME": str(home), "DASLLAMA_IMAGE_SAVE": "0"}  # or it would leave a second copy of the weights
    return {name: os.environ[name] for name in kept if name in os.environ} | ours


async def _line(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None
    return await process.stdout.readline()


async def _ready(process: asyncio.subprocess.Process, port: int) -> str:
    """The name under which the model is served, as soon as it is."""
    while process.returncode is None:
        found = await asyncio.to_thread(_served, port)
        if found:
            return found
        await asyncio.sleep(0.1)
    raise ConnectionError("it ended by itself")


def _served(port: int) -> str:
    with suppress(OSError, ValueError, LookupError, TypeError):
        with build_opener(ProxyHandler({})).open(f"http://127.0.0.1:{port}/v1/models", timeout=2) as reply:
            listed: Any = json.load(reply)
        return str(listed["data"][0]["id"])
    return ""


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Close its pipe, which ends it, and see that it has."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), 5)
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _last_words(log: Path) -> str:
    with suppress(OSError):
        lines = log.read_text("utf-8", "replace").strip().splitlines()
        if lines:
            return one_line(" ".join(lines[-3:]), width=300)
    return "it said nothing"
