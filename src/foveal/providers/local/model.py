"""Provider whose small model runs on this machine, and the process that serves it.

It is for users without an API key.

1. The first request downloads and checks the weights (`download`) and starts the server (`LocalServer`); both
   report `DownloadProgress`. `start` can be called earlier, to show the progress.
2. A server that has died is started again with the next request.
3. A small model writes its calls as text. `TextCallParser` turns them into calls, as other providers send them.
4. A small model tends to repeat a call whose result it already has. Then the request is sent once more, with the
   prompt to answer in words.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import sys
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing, suppress
from hashlib import blake2b
from http.client import HTTPException
from importlib import import_module
from pathlib import Path
from typing import Any, Final
from urllib.request import ProxyHandler, build_opener

from msgspec.structs import replace

from foveal.core.log.events import AnyFact, Dialect, ModelSaid, ToolReturned, UserSaid, calls_of
from foveal.core.models.model import model
from foveal.core.view.request import Fitted
from foveal.core.wire.safe_print import one_line
from foveal.errors import ProviderError
from foveal.ports import PromptProgress, Reply, ReplyItem, ReplyPiece
from foveal.providers.base import JsonObject, tool_names
from foveal.providers.endpoint import ProviderEndpoint
from foveal.providers.local.download import DownloadProgress, OnProgress, Weights, cached_file, fetch
from foveal.providers.openai_chat import OpenAIChat

# ── Server process ───────────────────────────────────────────────────────────────────────────────────────

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
    """A running server, on a free port of the loopback interface.

    It is a program of its own (`dasllama`), which runs under a watchdog that stops it when this process ends. It
    writes its log to a file, and has a home folder of its own, so that it neither reads nor writes the user's.
    """

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


LOCAL_WINDOW: Final = 4_096
"""Tokens; small, so that a new user sees reductions within minutes."""
LOCAL_READ_TIMEOUT_S: Final = 900.0
"""Seconds without a byte: a full window takes minutes on a busy machine."""
PROGRESS_INTERVAL_S: Final = 0.5
"""Seconds between two questions to the server how much of a request it has read."""
ANSWER_PROMPT: Final = "Now answer in words."
NEXT_CALL_STOP: Final = '\n{"name"'
"""Stop sequence: where the model begins another call."""
MAX_HELD_CHARS: Final = 20_000
"""Most characters held back while a text may still become a call."""
_CALL_OPENINGS: Final = ("{", "[", "```", "<tool_call>", "<tools>", "<function_call>")
_CALL_WRAPPERS: Final = re.compile(
    r"</?(?:tool_call|tools|function_call)>|^[ \t]*```[a-z]*[ \t]*$", re.MULTILINE | re.IGNORECASE
)


# ── Provider ──────────────────────────────────────────────────────────────────────────────────────


class LocalModel:
    """A `Provider` whose model runs on this machine."""

    dialect: Dialect = "openai_chat"

    def __init__(
        self,
        source: Weights | Path,
        *,
        cache: Path,
        window: int | None = None,
        progress: OnProgress = lambda _: None,
    ) -> None:
        """`source` is the weights to download, or the path of a GGUF file."""
        self._source = source
        self._cache = cache
        self._progress = progress
        self._server: LocalServer | None = None
        self._chat: OpenAIChat | None = None
        self._start_lock = asyncio.Lock()
        label = source.name if isinstance(source, Weights) else str(source)
        self.name: str = f"local/{label}"
        self.model = model(self.name, window=window or LOCAL_WINDOW)

    def __repr__(self) -> str:
        return f"LocalModel({self.name!r})"

    @property
    def is_downloaded(self) -> bool:
        """Whether the weights are on the disk."""
        return isinstance(self._source, Path) or cached_file(self._source, self._cache) is not None

    @property
    def server(self) -> LocalServer | None:
        """The server, once it has started."""
        return self._server

    async def start(self) -> None:
        """Download the weights and start the server unless it is running; raises `ProviderError`."""
        async with self._start_lock:
            if self._server is not None and self._server.is_running:
                return
            await self._stop()
            gguf = self._source
            if isinstance(gguf, Weights):
                gguf = await fetch(gguf, self._cache, progress=self._progress)
            self._progress(DownloadProgress(stage="starting"))
            # The client library takes as long to import as the server to start.
            importing = asyncio.create_task(asyncio.to_thread(import_module, "openai"))
            self._server = await LocalServer.start(
                gguf, window=self.model.window, home=self._cache / "server"
            )
            await importing
            self._chat = _SingleCallChat(
                ProviderEndpoint("the local model", url=self._server.url),
                self.model,
                name=self.name,
                model_id=self._server.model_id,
                read_timeout_s=LOCAL_READ_TIMEOUT_S,
            )
            self._progress(DownloadProgress(stage="ready"))

    async def send(self, request: Fitted, *, max_tokens: int) -> AsyncGenerator[ReplyItem, None]:
        """Send a request; send it again with `ANSWER_PROMPT` if the reply only repeats answered calls."""
        await self.start()
        answered = answered_calls(request.facts)
        # Calls and the reply are held back until it is clear that they are not repetitions.
        held: list[ReplyItem] = []
        async with aclosing(self._send_once(request, max_tokens)) as items:
            async for item in items:
                if answered and (isinstance(item, Reply) or _is_call(item)):
                    held.append(item)
                else:
                    yield item
        if held and repeats_calls(held[-1], answered):
            prompted = replace(request, facts=(*request.facts, UserSaid(content=ANSWER_PROMPT)))
            async with aclosing(self._send_once(prompted, max_tokens)) as items:
                async for item in items:
                    yield item
        else:
            for item in held:
                yield item

    async def _send_once(self, request: Fitted, max_tokens: int) -> AsyncGenerator[ReplyItem, None]:
        assert self._chat is not None
        parser = TextCallParser(tool_names(request.tools), position=len(request.facts))
        async with (
            aclosing(self._chat.send(request, max_tokens=max_tokens)) as items,
            aclosing(self._with_progress(items)) as watched,
        ):
            async for item in watched:
                for parsed in parser.feed(item):
                    yield parsed

    async def _with_progress(self, items: AsyncGenerator[ReplyItem, None]) -> AsyncGenerator[ReplyItem, None]:
        """Yield the items; before the first one, also how much of the request the server has read."""
        first = asyncio.ensure_future(anext(items))
        try:
            while not (await asyncio.wait({first}, timeout=PROGRESS_INTERVAL_S))[0]:
                progress = await self._server.prompt_progress() if self._server is not None else None
                if progress is not None:
                    yield progress
        finally:
            first.cancel()
            await asyncio.wait({first})
        yield first.result()
        async for item in items:
            yield item

    async def close(self) -> None:
        """Stop the server and close its client."""
        async with self._start_lock:
            await self._stop()

    async def _stop(self) -> None:
        chat, server = self._chat, self._server
        self._chat = self._server = None
        if chat is not None:
            await chat.close()
        if server is not None:
            await server.stop()


class _SingleCallChat(OpenAIChat):
    """Chat that stops after one call, because a small model continues to make calls until it is stopped."""

    def request_body(self, request: Fitted, max_tokens: int) -> JsonObject:
        body = super().request_body(request, max_tokens)
        return {**body, "stop": [NEXT_CALL_STOP]} if request.tools else body


# ── Repeated calls ────────────────────────────────────────────────────────────────────────────────


def answered_calls(facts: Sequence[AnyFact]) -> set[tuple[str, str]]:
    """Return the calls since the last user message, if the newest fact is a tool result."""
    found: set[tuple[str, str]] = set()
    for fact in reversed(facts if facts and isinstance(facts[-1], ToolReturned) else ()):
        if isinstance(fact, UserSaid):
            break
        if isinstance(fact, ModelSaid):
            found |= {(call.name, _without_whitespace(call.arguments)) for _, call in calls_of(fact.content)}
    return found


def repeats_calls(item: ReplyItem, answered: set[tuple[str, str]]) -> bool:
    """Return whether a reply makes calls, and only calls that were answered before."""
    calls = item.message.get("tool_calls") if isinstance(item, Reply) else None
    bodies = [call["function"] for call in calls or []]
    return bool(bodies) and all(
        (body["name"], _without_whitespace(body["arguments"])) in answered for body in bodies
    )


def _without_whitespace(arguments: str) -> str:
    return "".join(arguments.split())


# ── Calls written as text ─────────────────────────────────────────────────────────────────────────
# A small model writes a call as a JSON object with a tool's name, often in a fence or between tags:
#
# ```json
# {"name": "read_file", "arguments": {"path": "notes.txt"}}
# ```
#
# A reply is taken for calls only if it contains nothing but such objects, each with the name of an offered tool;
# the same call twice counts once. Text is held back only while it may still become a call.


class TextCallParser:
    """Separates calls from text in a streamed reply."""

    def __init__(self, tools: Collection[str], *, position: int) -> None:
        """`position` is the reply's place in the conversation; the ids of its calls are derived from it."""
        self._tools = tools
        self._position = position
        self._held = ""
        self._is_holding = bool(tools)

    def feed(self, item: ReplyItem) -> Sequence[ReplyItem]:
        """Add an item and return the items to pass on; calls are passed on only with the whole reply."""
        if isinstance(item, Reply):
            return self._finish(item)
        if _is_call(item):
            return []
        if not isinstance(item, ReplyPiece) or item.kind != "text" or not self._is_holding:
            return [item]
        self._held += item.text
        if self._may_be_call():
            return []
        return [*self._release()]

    def _may_be_call(self) -> bool:
        start = self._held.lstrip()
        return len(start) < MAX_HELD_CHARS and any(
            start.startswith(opening) or opening.startswith(start) for opening in _CALL_OPENINGS
        )

    def _release(self) -> list[ReplyPiece]:
        held, self._held, self._is_holding = self._held, "", False
        return [ReplyPiece(text=held)] if held else []

    def _finish(self, reply: Reply) -> list[ReplyPiece | Reply]:
        calls = [
            self._call(place, name, arguments)
            for place, (name, arguments) in enumerate(parse_calls(self._held, self._tools))
        ]
        if calls and not reply.message.get("tool_calls"):
            message = {**reply.message, "content": None, "tool_calls": calls}
            return [*_call_pieces(calls), replace(reply, message=message, stop="tool_calls")]
        return [*self._release(), *_call_pieces(reply.message.get("tool_calls") or []), reply]

    def _call(self, place: int, name: str, arguments: str) -> JsonObject:
        """Return a call; its id is derived, never random, because the id is part of later requests."""
        source = f"{self._position}.{place}.{name}.{arguments}"
        digest = blake2b(source.encode(), digest_size=6).hexdigest()
        return {
            "id": f"call_{digest}",
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }


def _is_call(item: ReplyItem) -> bool:
    return isinstance(item, ReplyPiece) and item.kind == "call"


def _call_pieces(calls: list[JsonObject]) -> list[ReplyPiece]:
    return [ReplyPiece(text=call["function"]["name"], kind="call") for call in calls]


def parse_calls(text: str, tools: Collection[str]) -> list[tuple[str, str]]:
    """Return the calls that a text consists of, each as name and JSON arguments.

    A text that contains anything else has no calls, except that the beginning of a further call that was cut off is
    ignored.
    """
    rest = _CALL_WRAPPERS.sub(" ", text).strip()
    calls: list[tuple[str, str]] = []
    while rest:
        try:
            value, end = json.JSONDecoder().raw_decode(rest)
        except (ValueError, RecursionError):
            return list(dict.fromkeys(calls)) if rest.startswith("{") else []
        for item in value if isinstance(value, list) else [value]:
            if (call := _read_call(item, tools)) is None:
                return []
            calls.append(call)
        rest = rest[end:].strip(" \t\r\n,;")
    return list(dict.fromkeys(calls))


def _read_call(item: Any, tools: Collection[str]) -> tuple[str, str] | None:
    if isinstance(item, dict) and isinstance(item.get("function"), dict):
        item = item["function"]
    if not isinstance(item, dict) or item.get("name") not in tools:
        return None
    given = item.get("arguments", item.get("parameters", {}))
    if not isinstance(given, dict | str):
        return None
    return item["name"], given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
