"""`foveal serve` as a separate process: on a free port, in its own folder.

    with serving(provider="support.serve_process:scripted") as server:
        httpx.get(f"{server.url}/healthz")

`FOVEAL_PROVIDER=module:function` sets the provider of the process; it can import the modules of `tests`.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any, Final
from urllib.parse import urlsplit

from foveal.ports import ReplyPiece
from foveal.testing import Scripted
from support import warm_start

HERE: Final = Path(__file__).parents[1]
DEADLINE: Final = 60.0
"""Seconds that any step may take on a busy machine."""
CANARY: Final = "canary-7f3a"
"""Text that must not appear in logs or other tenants' data."""
_PASSED_ON: Final = re.compile(r"PATH|LANG|LC_\w+|TMPDIR|SYSTEMROOT|VIRTUAL_ENV|COVERAGE_\w+")


class HttpReply:
    """The response to a request."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        """Names are in lower case."""
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def ask(
    url: str,
    path: str,
    *,
    method: str = "",
    body: Any = None,
    headers: Mapping[str, str] | None = None,
    token: str = "",
) -> HttpReply:
    """Send one request over a new connection; a body that is not bytes is sent as JSON."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=DEADLINE)
    sent = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    own = {"Authorization": f"Bearer {token}"} if token else {}
    kind = {"Content-Type": "application/json"} if sent is not None else {}
    method = method or ("GET" if sent is None else "POST")
    try:
        connection.request(method, path, sent, {**kind, **own, **(headers or {})})
        answer = connection.getresponse()
        named = {name.lower(): value for name, value in answer.getheaders()}
        return HttpReply(answer.status, named, answer.read())
    finally:
        connection.close()


def raw(url: str, sent: bytes) -> bytes:
    """Send bytes and return what the server sends until it closes the connection."""
    place = urlsplit(url)
    with socket.create_connection((place.hostname or "", place.port or 0), timeout=DEADLINE) as connection:
        come = b""
        with suppress(ConnectionError):  # the server may close before it has read everything
            connection.sendall(sent)
            while data := connection.recv(1 << 16):
                come += data
    return come


class Server:
    """A running server process."""

    def __init__(self, arguments: list[str], environment: Mapping[str, str], folder: Path) -> None:
        self.folder = folder
        self.url = ""
        self._lines: list[str] = []
        self._news = threading.Condition()
        self._process = warm_start.start(
            ["-m", "foveal.cli", "serve", "--port=0", *arguments],
            env=environment, cwd=folder.parent, stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE, encoding="utf-8",
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def output(self) -> str:
        """The standard error output so far."""
        with self._news:
            return "".join(self._lines)

    @property
    def logged(self) -> list[dict[str, Any]]:
        """The JSON lines of its log."""
        return [json.loads(line) for line in self.output.splitlines() if line.startswith("{")]

    def wait_for(self, event: str, *, seconds: float = DEADLINE, **fields: Any) -> dict[str, Any]:
        """Wait for the first log line with this event and these fields, and return it."""

        def found() -> dict[str, Any] | None:
            wanted = {"event": event, **fields}
            return next((line for line in self.logged if wanted.items() <= line.items()), None)

        with self._news:
            self._news.wait_for(lambda: found() or self._process.poll() is not None, timeout=seconds)
        line = found()
        assert line is not None, f"no {event} {fields} in:\n{self.output}"
        return line

    def wait_until(self, condition: Callable[[], Any], *, seconds: float = DEADLINE) -> None:
        """Wait until the log makes a condition true."""
        with self._news:
            assert self._news.wait_for(condition, timeout=seconds), self.output

    def ask(self, path: str, **how: Any) -> HttpReply:
        """Send one request."""
        return ask(self.url, path, **how)

    def kill(self) -> None:
        """Kill the process as `kill -9` does."""
        self._signal(signal.SIGKILL)
        self.wait()

    def stop(self) -> int:
        """Stop the process as a service manager does; return the exit code."""
        self._signal(signal.SIGTERM)
        return self.wait()

    def interrupt(self) -> None:
        """Send SIGTERM without waiting."""
        self._signal(signal.SIGTERM)

    def hang_up(self) -> None:
        """Send SIGHUP, with which a service manager asks for a reload."""
        self._signal(signal.SIGHUP)

    def wait(self) -> int:
        code = self._process.wait(timeout=DEADLINE)
        self._reader.join(timeout=DEADLINE)
        return code

    def close(self) -> None:
        """End the process if it still runs, and close its pipe."""
        if self._process.poll() is None:
            self._process.kill()
        self.wait()
        assert self._process.stderr is not None
        self._process.stderr.close()

    def _signal(self, sent: signal.Signals) -> None:
        if self._process.poll() is None:
            self._process.send_signal(sent)

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            with self._news:
                self._lines.append(line)
                self._news.notify_all()
        with self._news:
            self._news.notify_all()


def environment_of(home: Path, **more: str) -> dict[str, str]:
    """Return an environment without the current user's keys and configuration."""
    kept = {name: value for name, value in os.environ.items() if _PASSED_ON.fullmatch(name)}
    return {
        **kept,
        "HOME": str(home),
        "PYTHONPATH": os.pathsep.join([str(HERE), str(home)]),
        "PYTHONUTF8": "1",
        "NO_PROXY": "*",
        **more,
    }


@contextmanager
def serving(
    *,
    folder: Path | None = None,
    window: int = 0,
    settings: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    provider: str = "support.serve_process:scripted",
) -> Iterator[Server]:
    """Run a server. `folder` is its data folder (default: a new one), `settings` are configuration keys, and
    `provider=""` leaves the choice to the environment. Tokens are estimated: this saves a second per start."""
    with tempfile.TemporaryDirectory(prefix="foveal-") as place:
        home = Path(place)
        given = {"FOVEAL_PROVIDER": provider} if provider else {}
        arguments = [f"--window={window}"] if window else []
        for name, value in {"tokenizer": "estimate", **(settings or {})}.items():
            text = str(value).lower() if isinstance(value, bool) else value
            text = ",".join(map(str, value)) if isinstance(value, list | tuple) else text
            arguments += ["--set", f"{name}={text}"]
        data = folder or home / "server"
        if "FOVEAL_DATABASE" not in (environment or {}) and "server.database" not in (settings or {}):
            arguments += [f"--folder={data}"]  # it would be used in place of the database
        server = Server(arguments, environment_of(home, **given, **(environment or {})), data)
        try:
            server.url = server.wait_for("listening")["url"]
            yield server
        finally:
            server.close()


def until(condition: Callable[[], Any], *, seconds: float = DEADLINE) -> Any:
    """Wait until a condition returns a true value, and return it."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "the condition did not become true"
        time.sleep(0.02)
    return found


class Undownloaded(Scripted):
    """A local model that is not on the disk, and must not be downloaded."""

    is_downloaded = False

    async def start(self) -> None:
        raise AssertionError("no request needs the model")


def undownloaded(*_: Any, **__: Any) -> Undownloaded:
    return Undownloaded(name="local/tiny")


class Echo(Scripted):
    """Repeats the last user message. If it begins with `hold`, the model streams a word and waits until the file
    named by the environment variable GATE exists."""

    def __init__(self, *, window: int, name: str, gate: str) -> None:
        super().__init__(window=window, name=name)
        self._gate = Path(gate) if gate else None

    async def send(self, request: Any, *, max_tokens: int) -> Any:
        said = [message["content"] for message in request.to_openai() if message["role"] == "user"][-1]
        if said.startswith("hold") and self._gate is not None:
            yield ReplyPiece(text="Well … ")
            while not self._gate.exists():
                await asyncio.sleep(0.02)
        self._answers = [f"You said: {said}"]
        async for piece in super().send(request, max_tokens=max_tokens):
            yield piece


def scripted(
    name: str | None, *, environment: Mapping[str, str], window: int | None, progress: Any
) -> Scripted:
    """A provider for `FOVEAL_PROVIDER=support.serve_process:scripted`."""
    if name == "broken/model":
        raise RuntimeError(f"{CANARY}: unexpected")
    return Echo(window=window or 0, name=name or "scripted/model", gate=environment.get("GATE", ""))


class Telling(Scripted):
    """Answers with what the request shows of a memory."""

    async def send(self, request: Any, *, max_tokens: int) -> Any:
        shown = [str(message["content"]) for message in request.to_openai() if message["role"] == "system"]
        self._answers = ["I know: " + " ".join(shown).partition("Memory of ")[2].replace("\n", " ")]
        async for piece in super().send(request, max_tokens=max_tokens):
            yield piece


def telling(name: str | None, **_: Any) -> Scripted:
    """A provider for `FOVEAL_PROVIDER=support.serve_process:telling`."""
    return Telling(name=name or "scripted/model")
