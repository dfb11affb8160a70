"""Server process of the local model, on a free port of the loopback interface.

The server is a program of its own (`dasllama`). It runs under a watchdog that stops it when this process ends,
writes its log to a file, and has a home folder of its own, so that it neither reads nor writes the user's.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPException
from importlib import import_module
from pathlib import Path
from typing import Any, Final
from urllib.request import ProxyHandler, build_opener

from foveal.core.wire.safe_print import one_line
from foveal.errors import ProviderError
from foveal.ports import PromptProgress

START_TIMEOUT_S: Final = 120.0
"""Seconds until the server must have loaded its model."""
POLL_TIMEOUT_S: Final = 2.0
"""Seconds until the server must answer a question about its state."""
PARALLEL_REPLIES: Final = 2
"""Replies at a time: the answer to the user, and a summary."""
PROMPT_CHUNK_TOKENS: Final = 128
"""Tokens that the server reads at a time; it reports its progress in between."""
WATCHDOG: Final = Path(__file__).with_name("watchdog.py")


class LocalServer:
    """A running server."""

    def __init__(
        self, process: asyncio.subprocess.Process, *, port: int, model_id: str, pid: int, log: Path
    ) -> None:
        self._process = process
        self.log = log
        self.url: str = f"http://127.0.0.1:{port}/v1"
        self.model_id = model_id
        """The server's name of the model."""
        self.pid = pid
        """The process of the server itself, not of its watchdog."""

    @classmethod
    async def start(cls, gguf: Path, *, window: int, home: Path) -> LocalServer:
        """Start a server and wait until it answers; raises `ProviderError`."""
        home.mkdir(parents=True, exist_ok=True)
        log = home / f"server-{os.getpid()}.log"
        port = _free_port()
        process = await _spawn(_command(gguf, port, window), home, log)
        try:
            pid = int(await _read_line(process))
            model_id = await asyncio.wait_for(_wait_until_ready(process, port), START_TIMEOUT_S)
        except (TimeoutError, ValueError, ConnectionError):
            await _stop(process)
            raise ProviderError(
                f"the local model did not start: {_log_tail(log)}; its log is {log}", code="server"
            ) from None
        except BaseException:
            await asyncio.shield(_stop(process))
            raise
        return cls(process, port=port, model_id=model_id, pid=pid, log=log)

    async def prompt_progress(self) -> PromptProgress | None:
        """Return how much of its newest request the server has read; None if it is reading none."""
        listed = await asyncio.to_thread(_get_json, f"{self.url}/streams")
        with suppress(LookupError, TypeError, ValueError):
            reading = [stream for stream in listed["streams"] if stream["state"] == "prefilling"]
            newest = max(reading, key=lambda stream: int(stream["id"]))
            return PromptProgress(read=int(newest["n_prefilled"]), total=int(newest["n_prompt"]))
        return None

    @property
    def is_running(self) -> bool:
        return self._process.returncode is None

    async def stop(self) -> None:
        """Stop the server; its log is kept only if the server had ended unexpectedly."""
        was_running = self.is_running
        await _stop(self._process)
        if was_running:
            self.log.unlink(missing_ok=True)


def _command(gguf: Path, port: int, window: int) -> list[str]:
    try:
        program: str = import_module("dasllama").tool_path("dasllama-server")
    except (ImportError, FileNotFoundError):
        raise ProviderError(
            "the local model needs its server: pip install 'foveal[local]'; if it does not exist for this machine, "
            "use a provider's model, or Ollama",
            code="refused",
        ) from None
    address = ("--host", "127.0.0.1", "-p", str(port))
    size = ("--ctx", str(window), "-s", str(PARALLEL_REPLIES), "-t", str(_threads()), "--gpu", "off")
    reading = ("--chunk-idle", str(PROMPT_CHUNK_TOKENS))
    return [program, "-m", str(gguf), *address, *size, *reading]


def _threads() -> int:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 2
    return max(1, min(8, usable))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def _spawn(command: list[str], home: Path, log: Path) -> asyncio.subprocess.Process:
    """Start the server under its watchdog, in a session of its own so that Ctrl-C does not reach it."""
    with log.open("wb") as file:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", str(WATCHDOG), *command),
            cwd=home,
            env=_environment(home),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=file,
            start_new_session=True,
        )


def _environment(home: Path) -> Mapping[str, str]:
    """Return the variables that the server needs; API keys are not among them."""
    passed = (
        "PATH", "LANG", "LC_ALL", "TMPDIR", "TEMP", "SYSTEMROOT", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH",
    )  # fmt: skip
    added = {"HOME": str(home), "DASLLAMA_IMAGE_SAVE": "0"}  # 0: no second copy of the weights on disk
    return {name: os.environ[name] for name in passed if name in os.environ} | added


async def _read_line(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None
    return await process.stdout.readline()


async def _wait_until_ready(process: asyncio.subprocess.Process, port: int) -> str:
    """Wait until the server lists its model, and return the model's name."""
    while process.returncode is None:
        found = await asyncio.to_thread(_served_model, port)
        if found:
            return found
        await asyncio.sleep(0.1)
    raise ConnectionError("the server ended")


def _served_model(port: int) -> str:
    with suppress(LookupError, TypeError):
        return str(_get_json(f"http://127.0.0.1:{port}/v1/models")["data"][0]["id"])
    return ""


def _get_json(url: str) -> Any:
    """Return what the server answers, None if it does not answer in time."""
    with (
        suppress(OSError, ValueError, HTTPException),
        build_opener(ProxyHandler({})).open(url, timeout=POLL_TIMEOUT_S) as reply,
    ):
        return json.load(reply)
    return None


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Close the watchdog's pipe, which stops the server, and kill the watchdog if that takes over 5 seconds."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), 5)
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _log_tail(log: Path) -> str:
    with suppress(OSError):
        lines = log.read_text("utf-8", "replace").strip().splitlines()
        if lines:
            return one_line(" ".join(lines[-3:]), width=300)
    return "its log is empty"
