"""The model for those who have no key: a small one that runs here, fetched once and started when it is first asked.

1. The file is fetched, checked and kept (`weights`); the server is ours, and ends with us (`engine`).
2. What it needs before it can answer is told as `Progress`; `start` can be called early, to show it.
3. A server that has died is started anew with the next request.
4. A small model writes its calls as text; here they become calls, as with every other provider. When it has the
   result of a call, it likes to make the same call again; then it is asked once more, for an answer in words.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from foveal.core.log.events import AnyFact, Dialect, ModelSaid, ToolReturned, UserSaid, calls_of
from foveal.core.models import model
from foveal.core.view.request import Fitted
from foveal.ports import Reply, ReplyPiece
from foveal.providers.base import names
from foveal.providers.endpoint import Endpoint
from foveal.providers.local.download import DownloadProgress, Tell, Weights, cached, fetch
from foveal.providers.local.local_server import LocalServer
from foveal.providers.openai_chat import OpenAIChat

# ── spoken ────────────────────────────────────────────────────────────────────────────────────────
# Calls that a small model writes as text: a JSON object with a tool's name, perhaps in a fence or between tags.
#
# ```json
# {"name": "read_file", "arguments": {"path": "notes.txt"}}
# ```
#
# Only an answer that is nothing but such objects, each naming a tool that is offered, is taken for calls; the same
# one twice is one. So text is held back only while it might still become a call; whatever else comes is passed on.

Json = dict[str, Any]

LONGEST: Final = 20_000
"""Characters that are held back at the most."""
_OPENINGS: Final = ("{", "[", "```", "<tool_call>", "<tools>", "<function_call>")
_AROUND: Final = re.compile(
    r"</?(?:tool_call|tools|function_call)>|^[ \t]*```[a-z]*[ \t]*$", re.MULTILINE | re.IGNORECASE
)


class TextCallParser:
    """Hears one answer, and tells calls from words."""

    def __init__(self, tools: Collection[str], *, place: int) -> None:
        """`place` tells this answer from others of the conversation, for the ids of its calls."""
        self._tools = tools
        self._place = place
        self._held = ""
        self._holding = bool(tools)

    def hear(self, piece: ReplyPiece | Reply) -> list[ReplyPiece | Reply]:
        """What can be told now; calls are told only with the reply, when it is sure that they are wanted."""
        if isinstance(piece, Reply):
            return self._end(piece)
        if piece.kind == "call":
            return []
        if piece.kind != "text" or not self._holding:
            return [piece]
        self._held += piece.text
        if self._may_be_a_call():
            return []
        return [*self._let_go()]

    def _may_be_a_call(self) -> bool:
        start = self._held.lstrip()
        return len(start) < LONGEST and any(
            start.startswith(opening) or opening.startswith(start) for opening in _OPENINGS
        )

    def _let_go(self) -> list[ReplyPiece]:
        held, self._held, self._holding = self._held, "", False
        return [ReplyPiece(text=held)] if held else []

    def _end(self, reply: Reply) -> list[ReplyPiece | Reply]:
        calls = self._calls(self._held)
        if calls and not reply.message.get("tool_calls"):
            message = {**reply.message, "content": None, "tool_calls": calls}
            return [*_named(calls), replace(reply, message=message, stop="tool_calls")]
        return [*self._let_go(), *_named(reply.message.get("tool_calls") or []), reply]

    def _calls(self, text: str) -> list[Json]:
        found = called(text, self._tools)
        return [self._call(place, name, arguments) for place, (name, arguments) in enumerate(found)]

    def _call(self, place: int, name: str, arguments: str) -> Json:
        """A call with an id that is derived, never random: the model sees it."""
        digest = blake2b(f"{self._place}.{place}.{name}.{arguments}".encode(), digest_size=6).hexdigest()
        return {
            "id": f"call_{digest}",
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }


def _named(calls: list[Json]) -> list[ReplyPiece]:
    return [ReplyPiece(text=call["function"]["name"], kind="call") for call in calls]


def called(text: str, tools: Collection[str]) -> list[tuple[str, str]]:
    """The calls that a text consists of, each with its arguments as JSON; none if there is anything else in it, but
    for the beginning of another call that was cut off."""
    rest = _AROUND.sub(" ", text).strip()
    calls: list[tuple[str, str]] = []
    while rest:
        try:
            value, end = json.JSONDecoder().raw_decode(rest)
        except (ValueError, RecursionError):
            return list(dict.fromkeys(calls)) if rest.startswith("{") else []
        for item in value if isinstance(value, list) else [value]:
            if (call := _read(item, tools)) is None:
                return []
            calls.append(call)
        rest = rest[end:].strip(" \t\r\n,;")
    return list(dict.fromkeys(calls))


def _read(item: Any, tools: Collection[str]) -> tuple[str, str] | None:
    if isinstance(item, dict) and isinstance(item.get("function"), dict):
        item = item["function"]
    if not isinstance(item, dict) or item.get("name") not in tools:
        return None
    given = item.get("arguments", item.get("parameters", {}))
    if not isinstance(given, dict | str):
        return None
    return item["name"], given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)


# ── local ─────────────────────────────────────────────────────────────────────────────────────────

WINDOW: Final = 4_096
"""Tokens; small, so that a newcomer sees what Foveal does within minutes."""
IN_WORDS: Final = "Now answer in words."
ANOTHER_CALL: Final = '\n{"name"'
SILENCE: Final = 900.0
"""Seconds without a byte: a full window takes minutes on a busy machine."""


class LocalModel:
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
        self._engine: LocalServer | None = None
        self._chat: OpenAIChat | None = None
        self._starting = asyncio.Lock()
        label = source.name if isinstance(source, Weights) else str(source)
        self.name = f"local/{label}"
        self.model = model.model(self.name, window=window or WINDOW)

    def __repr__(self) -> str:
        return f"Local({self.name!r})"

    @property
    def fetched(self) -> bool:
        """The weights are on the disk."""
        return isinstance(self._source, Path) or cached(self._source, self._cache) is not None

    @property
    def engine(self) -> LocalServer | None:
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
            self._progress(DownloadProgress(stage="starting"))
            self._engine = await LocalServer.start(
                gguf, window=self.model.window, home=self._cache / "server"
            )
            place = Endpoint("the local model", url=self._engine.url)
            self._chat = _Chat(place, self.model, name=self.name, served=self._engine.served, silence=SILENCE)
            self._progress(DownloadProgress(stage="ready"))

    async def send(self, request: Fitted, *, max_tokens: int) -> AsyncGenerator[ReplyPiece | Reply, None]:
        await self.start()
        known = made(request.facts)
        held: list[ReplyPiece | Reply] = []
        async with aclosing(self._heard(request, max_tokens)) as answer:
            async for item in answer:
                if known and (isinstance(item, Reply) or item.kind == "call"):
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

    async def _heard(self, request: Fitted, max_tokens: int) -> AsyncGenerator[ReplyPiece | Reply, None]:
        assert self._chat is not None
        listener = TextCallParser(names(request.tools), place=len(request.facts))
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


def repeated(item: ReplyPiece | Reply, known: set[tuple[str, str]]) -> bool:
    """A reply that only makes calls which were made and answered."""
    calls = item.message.get("tool_calls") if isinstance(item, Reply) else None
    bodies = [call["function"] for call in calls or []]
    return bool(bodies) and all((body["name"], _same(body["arguments"])) in known for body in bodies)


def _same(arguments: str) -> str:
    """Arguments without what makes no difference."""
    return "".join(arguments.split())
