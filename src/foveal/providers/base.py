"""What the adapters share: one request is sent, its stream is read, and whatever goes wrong is told.

An adapter adds three things: how its library is called, what the body of a request is, and how an answer is put
together from the events of its stream.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any, Final

from foveal.errors import ProviderError
from foveal.providers.endpoint import Endpoint
from foveal.providers.provider_errors import PATIENCE, TRIES, wait_of

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic
    from openai import AsyncOpenAI
import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from typing import Protocol

from foveal.core.log.events import Dialect
from foveal.core.models.model import Model
from foveal.core.view.request import Fitted
from foveal.ports import Reply, ReplyPiece
from foveal.providers import provider_errors

# ── clients ───────────────────────────────────────────────────────────────────────────────────────
# The official client libraries, loaded when they are needed, with bounded patience.
#
# A library retries by itself what may pass: a connection that fails, 408, 409, 429 and 5xx. It would also wait as
# long as the provider asks, which may be an hour; beyond `PATIENCE` seconds we would rather say so.

CONNECT: Final = 10.0
"""Seconds for a connection."""
SILENCE: Final = 300.0
"""Seconds without a single byte until an answer is given up."""
NO_KEY: Final = "none"
"""What is sent where no key is needed, because the libraries insist on one."""


def openai_client(place: Endpoint, *, silence: float = SILENCE) -> AsyncOpenAI:
    need("openai")
    import openai

    return openai.AsyncOpenAI(
        api_key=place.key.reveal() or NO_KEY,
        base_url=place.url,
        max_retries=TRIES,
        http_client=_http(openai, place, silence),
    )


def anthropic_client(place: Endpoint, *, silence: float = SILENCE) -> AsyncAnthropic:
    need("anthropic")
    import anthropic

    return anthropic.AsyncAnthropic(
        api_key=place.key.reveal() or NO_KEY,
        base_url=place.url,
        max_retries=TRIES,
        http_client=_http(anthropic, place, silence),
    )


def need(library: str) -> None:
    """Raises when a library is not installed."""
    if importlib.util.find_spec(library) is None:
        raise ProviderError(
            f"the library `{library}` is not installed: pip install 'foveal[chat]'", code="refused"
        )


def _http(library: Any, place: Endpoint, silence: float) -> Any:
    """An HTTP client for one place; one on this machine is never asked through a proxy."""
    return library.DefaultAsyncHttpxClient(
        timeout=library.Timeout(silence, connect=CONNECT),
        event_hooks={"response": [_impatient]},
        trust_env=not place.here,
    )


async def _impatient(response: Any) -> None:
    """Let the library not retry when it would have to wait for longer than a person does."""
    wait = wait_of(response.headers)
    if response.status_code >= 400 and wait is not None and wait > PATIENCE:
        response.headers["x-should-retry"] = "false"


# ── offered ───────────────────────────────────────────────────────────────────────────────────────
# Tools as each dialect offers them, from the neutral form `{"name", "description", "parameters"}`.
#
# Tools that are in some dialect's form already are understood too; what is none of ours (a tool that the provider
# runs itself) is passed on as it is.

JsonObject = dict[str, Any]

_NOTHING: Final[JsonObject] = {"type": "object", "properties": {}}


def for_chat(tools: Iterable[JsonObject]) -> list[JsonObject]:
    return _each(tools, lambda tool: {"type": "function", "function": tool})


def for_responses(tools: Iterable[JsonObject]) -> list[JsonObject]:
    return _each(tools, lambda tool: {"type": "function", **tool, "strict": False})


def for_anthropic(tools: Iterable[JsonObject]) -> list[JsonObject]:
    return _each(tools, _anthropic)


def names(tools: Iterable[JsonObject]) -> set[str]:
    """The names of the tools that we run."""
    return {found["name"] for tool in tools if (found := _neutral(tool)) is not None}


def _anthropic(tool: JsonObject) -> JsonObject:
    kept = {name: value for name, value in tool.items() if name != "parameters"}
    return {**kept, "input_schema": tool["parameters"]}


def _each(tools: Iterable[JsonObject], write: Callable[[JsonObject], JsonObject]) -> list[JsonObject]:
    return [tool if (found := _neutral(tool)) is None else write(found) for tool in tools]


def _neutral(tool: JsonObject) -> JsonObject | None:
    """Name, description and parameters; None for what is not a function."""
    body = tool.get("function") if isinstance(tool.get("function"), dict) else tool
    if not isinstance(body, dict) or not isinstance(body.get("name"), str):
        return None
    schema = body.get("parameters", body.get("input_schema"))
    if schema is None and tool.get("type") not in (None, "function"):
        return None
    about = {"description": body["description"]} if body.get("description") else {}
    return {"name": body["name"], **about, "parameters": schema or _NOTHING}


# ── adapter ───────────────────────────────────────────────────────────────────────────────────────


class StreamedReply(Protocol):
    """An answer that is put together from what its stream brings."""

    began: bool
    """Something of it has come."""
    text: str
    """What was said so far."""

    @property
    def complete(self) -> bool:
        """Its end has come."""
        ...

    def add(self, event: JsonObject) -> list[ReplyPiece]:
        """Take what one event brings, and tell what of it can be shown; raises what the event says went wrong."""
        ...

    def reply(self) -> Reply: ...


class BaseProvider(ABC):
    """A `Provider` for one model behind one address."""

    dialect: Dialect

    def __init__(
        self,
        place: Endpoint,
        model: Model,
        *,
        name: str = "",
        served: str = "",
        options: Mapping[str, Any] | None = None,
        silence: float = SILENCE,
    ) -> None:
        """`served` is what the server calls the model, `options` are further fields of every request, and after
        `silence` seconds without a byte an answer is given up."""
        self.name = name or model.name
        self.model = model
        self.place = place
        self.served = served or model.name.partition("/")[2] or model.name
        self.options = dict(options or {})
        self.silence = silence
        self._client: Any = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.place!r})"

    async def send(self, request: Fitted, *, max_tokens: int) -> AsyncGenerator[ReplyPiece | Reply, None]:
        answer, kind = self.answer(), ""
        try:
            async with asyncio.timeout(self.silence):  # the libraries would try again and again
                stream = await self.ask(await self._ready(), self.body(request, max_tokens))
            async with stream:
                kind = stream.response.headers.get("content-type", "")
                async for event in stream:
                    for piece in answer.add(event.to_dict(mode="json")):
                        yield piece
        except Exception as error:
            told = provider_errors.explained(
                error, self.place, self.served, said=answer.text, began=answer.began
            )
            if told is error:
                raise
            raise told from None
        if not answer.complete:
            raise provider_errors.broken_off(self.place, answer.text, began=answer.began, kind=kind)
        yield answer.reply()

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def _ready(self) -> Any:
        if self._client is None:
            # Loading the library takes seconds: the terminal must not stand still meanwhile.
            self._client = await asyncio.to_thread(self.client)
        return self._client

    @abstractmethod
    def client(self) -> Any:
        """The library's client."""

    @abstractmethod
    async def ask(self, client: Any, body: JsonObject) -> Any:
        """The stream of an answer."""

    @abstractmethod
    def body(self, request: Fitted, max_tokens: int) -> JsonObject: ...

    @abstractmethod
    def answer(self) -> StreamedReply: ...
