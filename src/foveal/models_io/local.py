"""The model for those who have no key: a small one that runs here, fetched once and started when it is first asked.

1. The file is fetched, checked and kept (`weights`); the server is ours, and ends with us (`engine`).
2. What it needs before it can answer is told as `Progress`; `start` can be called early, to show it.
3. A server that has died is started anew with the next request.
4. A small model writes its calls as text; here they become calls, as with every other provider. When it has the
   result of a call, it likes to make the same call again; then it is asked once more, for an answer in words.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from foveal import models
from foveal.events import AnyFact, Dialect, ModelSaid, ToolReturned, UserSaid, calls_of
from foveal.fitted import Fitted
from foveal.models_io import spoken
from foveal.models_io.engine import Engine
from foveal.models_io.offered import names
from foveal.models_io.openai import OpenAIChat
from foveal.models_io.place import Place
from foveal.models_io.weights import Progress, Tell, Weights, cached, fetch
from foveal.ports import Piece, Reply

WINDOW: Final = 4_096
"""Tokens; small, so that a newcomer sees what Foveal does within minutes."""
IN_WORDS: Final = "Now answer in words."
ANOTHER_CALL: Final = '\n{"name"'
SILENCE: Final = 900.0
"""Seconds without a byte: a full window takes minutes on a busy machine."""


class Local:
    """A `Provider` whose model runs on this machine."""

    dialect: Dialect = "openai_chat"

    def __init__(
        self,
        source: Weights | Path,
        *,
        cache: Path,
        window: int | None = None,
        progress: Tell = lambda _: None,
    ) -> None:
        """`source` is what to fetch, or a GGUF file that is there."""
        self._source = source
        self._cache = cache
        self._progress = progress
        self._engine: Engine | None = None
        self._chat: OpenAIChat | None = None
        self._starting = asyncio.Lock()
        label = source.name if isinstance(source, Weights) else str(source)
        self.name = f"local/{label}"
        self.model = models.model(self.name, window=window or WINDOW)

    def __repr__(self) -> str:
        return f"Local({self.name!r})"

    @property
    def fetched(self) -> bool:
        """The weights are on the disk."""
        return isinstance(self._source, Path) or cached(self._source, self._cache) is not None

    @property
    def engine(self) -> Engine | None:
        """The server, once it runs."""
        return self._engine

    async def start(self) -> None:
        """Fetch, check and load what is needed, once; raises `ProviderError`."""
        async with self._starting:
            if self._engine is not None and self._engine.alive:
                return
            await self._end()
            gguf = self._source
            if isinstance(gguf, Weights):
                gguf = await fetch(gguf, self._cache, progress=self._progress)
            self._progress(Progress(stage="starting"))
            self._engine = await Engine.start(gguf, window=self.model.window, home=self._cache / "server")
            place = Place("the local model", url=self._engine.url)
            self._chat = _Chat(place, self.model, name=self.name, served=self._engine.served, silence=SILENCE)
            self._progress(Progress(stage="ready"))

    async def send(self, request: Fitted, *, max_tokens: int) -> AsyncGenerator[Piece | Reply, None]:
        await self.start()
        known = made(request.facts)
        held: list[Piece | Reply] = []
        async with aclosing(self._heard(request, max_tokens)) as answer:
            async for item in answer:
                if known and (isinstance(item, Reply) or item.sort == "call"):
                    held.append(item)
                else:
                    yield item
        if held and repeated(held[-1], known):
            asked = replace(request, facts=(*request.facts, UserSaid(content=IN_WORDS)))
            async with aclosing(self._heard(asked, max_tokens)) as answer:
                async for item in answer:
                    yield item
        else:
            for item in held:
                yield item

    async def _heard(self, request: Fitted, max_tokens: int) -> AsyncGenerator[Piece | Reply, None]:
        assert self._chat is not None
        listener = spoken.Listener(names(request.tools), place=len(request.facts))
        async with aclosing(self._chat.send(request, max_tokens=max_tokens)) as answer:
            async for piece in answer:
                for heard in listener.hear(piece):
                    yield heard

    async def close(self) -> None:
        async with self._starting:
            await self._end()

    async def _end(self) -> None:
        chat, engine = self._chat, self._engine
        self._chat = self._engine = None
        if chat is not None:
            await chat.close()
        if engine is not None:
            await engine.stop()


class _Chat(OpenAIChat):
    """A small model that has made a call goes on to make others until it is stopped."""

    def body(self, request: Fitted, max_tokens: int) -> dict[str, Any]:
        body = super().body(request, max_tokens)
        return {**body, "stop": [ANOTHER_CALL]} if request.tools else body


def made(facts: Sequence[AnyFact]) -> set[tuple[str, str]]:
    """The calls since the user spoke last, if the newest fact is a result."""
    found: set[tuple[str, str]] = set()
    for fact in reversed(facts if facts and isinstance(facts[-1], ToolReturned) else ()):
        if isinstance(fact, UserSaid):
            break
        if isinstance(fact, ModelSaid):
            found |= {(call.name, _same(call.arguments)) for _, call in calls_of(fact.content)}
    return found


def repeated(item: Piece | Reply, known: set[tuple[str, str]]) -> bool:
    """A reply that only makes calls which were made and answered."""
    calls = item.message.get("tool_calls") if isinstance(item, Reply) else None
    bodies = [call["function"] for call in calls or []]
    return bool(bodies) and all((body["name"], _same(body["arguments"])) in known for body in bodies)


def _same(arguments: str) -> str:
    """Arguments without what makes no difference."""
    return "".join(arguments.split())
