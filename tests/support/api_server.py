"""The HTTP API inside the test process: real sockets, a real store, a scripted provider.

    with ApiServer(folder) as server:
        server.client().post("/api/sessions", json={"id": "demo"})

The first word of the last user message decides: `hold NAME` streams a word and waits until `server.release(NAME)`,
`fail CODE` fails with this code, and any other text is repeated. A request for a summary gets one.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import httpx
import uvicorn

from foveal import config
from foveal.cli.served_inspector import served_inspector
from foveal.core.log import Dialect
from foveal.core.models.model import model
from foveal.core.view.request import Fitted
from foveal.errors import ProviderError
from foveal.ports import Reply, ReplyPiece
from foveal.server import AuthTokens, Service
from foveal.server.http.app import app
from foveal.server.jobs import JobWorker
from foveal.server.jobs.worker import WorkerTiming
from foveal.server.proxy.upstreams import Upstreams
from support.threaded_server import ThreadedServer

T = TypeVar("T")
DEADLINE = 60.0
BRIEF_POLLS = WorkerTiming(poll_s=0.1, engine_poll_s=0.1)
SUMMARY = "<summary>\n## Goal\nTalk.\n## Decisions\n-\n## State\n-\n## Next\n-\n## Dead ends\n-\n</summary>"
_gates: dict[str, threading.Event] = {}


def gate(name: str) -> threading.Event:
    return _gates.setdefault(name, threading.Event())


class ObedientProvider:
    """A provider that obeys the user message, without a model."""

    dialect: Dialect = "openai_chat"

    def __init__(self, name: str, window: int | None) -> None:
        self.name = name
        self.model = model(name, window=window or 128_000)

    async def send(self, request: Fitted, *, max_tokens: int) -> AsyncIterator[ReplyPiece | Reply]:
        said = _last(request.to_openai())
        order, _, rest = said.partition(" ")
        if order == "fail":
            raise ProviderError(f"the provider is out of order ({rest})", code=rest)
        if order == "hold":
            yield ReplyPiece(text="Well … ")
            while not gate(rest).is_set():
                await asyncio.sleep(0.01)
        text = SUMMARY if "<summary>" in said else f"You said: {said[:2_000]}"
        yield ReplyPiece(text=text)
        usage = {"prompt_tokens": 50, "completion_tokens": 5}
        yield Reply(message={"role": "assistant", "content": text}, usage=usage, stop="stop")

    async def close(self) -> None:
        pass


def _last(messages: list[dict[str, Any]]) -> str:
    content = [message["content"] for message in messages if message["role"] == "user"][-1]
    if isinstance(content, str):
        return content
    return " ".join(part.get("text", f"({part['type']})") for part in content)


def make(
    name: str | None, *, environment: Mapping[str, str], window: int | None, progress: Any
) -> ObedientProvider:
    return ObedientProvider(name or "scripted/model", window)


class ApiServer(ThreadedServer):
    """The server, in a thread with its own event loop."""

    def __init__(self, folder: Path, *, background: bool = False, **settings: Any) -> None:
        super().__init__()
        self.folder = folder
        self._background = background
        self.url = ""
        self._settings = {"server.rate": 0, **{k.replace("__", "."): v for k, v in settings.items()}}

    def end(self) -> None:
        for opened in _gates.values():
            opened.set()
        self._server.should_exit = True

    async def serve(self) -> None:
        self.folder.mkdir(exist_ok=True)
        settings = config.load(self.folder, flags=self._settings, environ={}, user_folder=self.folder)
        environment = {"FOVEAL_PROVIDER": f"{__name__}:make"}
        async with AsyncExitStack() as stack:
            place = self.folder / "server"
            opened = Service.open(settings, folder=place, environment=environment)
            self.service = service = await stack.enter_async_context(opened)
            self.loop = asyncio.get_running_loop()
            upstreams = Upstreams(service)
            stack.push_async_callback(upstreams.close)
            if self._background:
                from support.prompt_dbos import shorten_pauses  # imports the job engine

                shorten_pauses()
            worker = (
                await stack.enter_async_context(JobWorker.open(service, timing=BRIEF_POLLS))
                if self._background
                else None
            )
            self.inspector = served_inspector(service)
            self.app = app(service, upstreams=upstreams, worker=worker, pages=self.inspector)
            await self._run(self.app)

    async def _run(self, made: Any) -> None:
        told = uvicorn.Config(made, host="127.0.0.1", port=0, log_level="critical", lifespan="off")
        self._server = uvicorn.Server(told)
        serving = asyncio.create_task(self._server.serve())
        while not self._server.started and not serving.done():
            await asyncio.sleep(0.01)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.ready.set()
        await serving

    # ── For tests ────────────────────────────────────────────────────────────────────────────────────

    def client(self, token: str = "") -> httpx.Client:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        # Without certificates: loading them takes longer than most tests.
        return httpx.Client(
            base_url=self.url, headers=headers, timeout=DEADLINE, trust_env=False, verify=False
        )

    def token(self, tenant: str) -> str:
        tokens = AuthTokens(self.service.runtime.database)
        return self.do(tokens.create(tenant, now=0.0))[1]

    def do(self, act: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the server's event loop."""
        return asyncio.run_coroutine_threadsafe(act, self.loop).result(DEADLINE)

    def release(self, name: str) -> None:
        gate(name).set()
