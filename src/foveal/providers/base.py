"""Base class of the providers: sends a request, reads the stream, explains errors.

A dialect's module adds three things: how its client library is called, the body of a request, and a `StreamedReply`
that assembles the reply from the events of the stream. This module also creates the client libraries' clients and
converts tools to each dialect's form.
"""

from __future__ import annotations

import asyncio
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from foveal.core.log.events import Dialect
from foveal.core.models.model import Model
from foveal.core.view.request import Fitted
from foveal.core.wire.tool_schemas import DEFER_FIELD, each_tool, neutral_form
from foveal.errors import ProviderError
from foveal.ports import Reply, ReplyItem, ReplyPiece, RetryWait
from foveal.providers import errors as provider_errors
from foveal.providers.endpoint import ProviderEndpoint

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic
    from openai import AsyncOpenAI

JsonObject = dict[str, Any]

SDK_CONNECT_TIMEOUT_S: Final = 10.0
"""Seconds until a connection must be open."""
READ_TIMEOUT_S: Final = 300.0
"""Seconds without a byte after which a request is given up."""
PLACEHOLDER_KEY: Final = "none"
"""The key sent to a service that needs none, because the client libraries require one."""


# ── Providers ─────────────────────────────────────────────────────────────────────────────────────


class StreamedReply(Protocol):
    """A reply assembled from the events of its stream."""

    has_started: bool
    """Whether the stream has delivered any part of the reply."""
    text: str
    """The text so far."""

    @property
    def is_complete(self) -> bool:
        """Whether the end of the reply has arrived."""
        ...

    def add(self, event: JsonObject) -> list[ReplyPiece]:
        """Add an event and return the pieces to show; raise the error that the event reports."""
        ...

    def reply(self) -> Reply:
        """Return the whole reply."""
        ...


class _OpenedStream(NamedTuple):
    """The stream of a reply, or the wait before the next attempt to open one."""

    stream: Any = None
    wait: RetryWait | None = None


class BaseProvider(ABC):
    """A `Provider` for one model at one endpoint."""

    dialect: Dialect
    library: str
    """The client library."""

    def __init__(
        self,
        endpoint: ProviderEndpoint,
        model: Model,
        *,
        name: str = "",
        model_id: str = "",
        options: Mapping[str, Any] | None = None,
        read_timeout_s: float = READ_TIMEOUT_S,
    ) -> None:
        """`model_id` is the server's name of the model, `options` are further fields of every request, and a
        request is given up after `read_timeout_s` seconds without a byte."""
        self.name: str = name or model.name
        self.model = model
        self.endpoint = endpoint
        self.model_id: str = model_id or model.name.partition("/")[2] or model.name
        self.options: dict[str, Any] = dict(options or {})
        self.read_timeout_s = read_timeout_s
        self._client: Any = None
        self._client_lock = asyncio.Lock()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.endpoint!r})"

    async def send(self, request: Fitted, *, max_tokens: int) -> AsyncGenerator[ReplyItem, None]:
        """Send a request; yield pieces of the reply as they arrive and the whole reply last."""
        reply, content_type = self.new_reply(), ""
        body, attempt = self.request_body(request, max_tokens), 1
        try:
            while (opened := await self._open_or_wait(body, attempt)).wait is not None:
                yield opened.wait
                await asyncio.sleep(opened.wait.seconds)
                attempt += 1
            async with (stream := opened.stream):
                content_type = stream.response.headers.get("content-type", "")
                async for event in stream:  # kinds that the library does not know are no reason to warn
                    for piece in reply.add(event.to_dict(mode="json", warnings=False)):
                        yield piece
        except Exception as error:
            explained = provider_errors.explain(
                error, self.endpoint, self.model_id, text=reply.text, has_started=reply.has_started
            )
            if explained is error:
                raise
            raise explained from None
        if not reply.is_complete:
            raise provider_errors.incomplete_stream_error(
                self.endpoint, reply.text, has_started=reply.has_started, content_type=content_type
            )
        yield reply.reply()

    async def _open_or_wait(self, body: JsonObject, attempt: int) -> _OpenedStream:
        """Return the stream of the reply, or the wait before the next attempt; raises the library's error."""
        client = await self._ready_client()
        try:
            async with asyncio.timeout(self.read_timeout_s):
                return _OpenedStream(await self.open_stream(client, body))
        except Exception as error:
            if (wait := provider_errors.retry_wait(error, attempt)) is None:
                raise
            return _OpenedStream(wait=wait)

    async def start(self) -> None:
        """Begin to import the client library, so that the first request need not wait for it."""
        # A daemon thread, because a program that ends meanwhile does not wait for it.
        Thread(target=_import_quietly, args=(self.library,), daemon=True).start()

    async def close(self) -> None:
        """Close the client and its connections."""
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def _ready_client(self) -> Any:
        async with self._client_lock:
            if self._client is None:
                # Importing the library takes seconds; a thread keeps the terminal responsive meanwhile.
                self._client = await asyncio.to_thread(self.make_client)
            return self._client

    @abstractmethod
    def make_client(self) -> Any:
        """Create the library's client."""

    @abstractmethod
    async def open_stream(self, client: Any, body: JsonObject) -> Any:
        """Send a request body and return the stream of the reply."""

    @abstractmethod
    def request_body(self, request: Fitted, max_tokens: int) -> JsonObject:
        """Return the body of a request in the dialect's form."""

    @abstractmethod
    def new_reply(self) -> StreamedReply:
        """Return an empty reply of the dialect."""


# ── Client libraries ──────────────────────────────────────────────────────────────────────────────


def openai_client(endpoint: ProviderEndpoint, *, read_timeout_s: float = READ_TIMEOUT_S) -> AsyncOpenAI:
    """Create OpenAI's client for an endpoint."""
    require_library("openai")
    import openai

    return openai.AsyncOpenAI(**_client_options(openai, endpoint, read_timeout_s))


def anthropic_client(endpoint: ProviderEndpoint, *, read_timeout_s: float = READ_TIMEOUT_S) -> AsyncAnthropic:
    """Create Anthropic's client for an endpoint."""
    require_library("anthropic")
    import anthropic

    return anthropic.AsyncAnthropic(**_client_options(anthropic, endpoint, read_timeout_s))


def _client_options(library: Any, endpoint: ProviderEndpoint, read_timeout_s: float) -> dict[str, Any]:
    return {
        "api_key": endpoint.key.reveal() or PLACEHOLDER_KEY,
        "base_url": endpoint.url,
        "max_retries": 0,  # `errors.retry_wait` decides
        "http_client": _http_client(library, endpoint, read_timeout_s),
    }


def _import_quietly(library: str) -> None:
    with suppress(ImportError):  # the first request reports it
        import_module(library)


def require_library(library: str) -> None:
    """Raise `ProviderError` if a client library is not installed."""
    if importlib.util.find_spec(library) is None:
        raise ProviderError(
            f"the library `{library}` is not installed: pip install 'foveal[chat]'", code="refused"
        )


def _http_client(library: Any, endpoint: ProviderEndpoint, read_timeout_s: float) -> Any:
    """Create the HTTP client; a server on this machine is reached directly, never through a proxy."""
    return library.DefaultAsyncHttpxClient(
        timeout=library.Timeout(read_timeout_s, connect=SDK_CONNECT_TIMEOUT_S),
        trust_env=not endpoint.is_local,
    )


# ── Tools ─────────────────────────────────────────────────────────────────────────────────────────
# Tools in each dialect's form, from the neutral form `{"name", "description", "parameters"}` or any dialect's form.
# A tool that the provider runs itself (web search, for example) is passed on unchanged.


def chat_tools(tools: Iterable[JsonObject]) -> list[JsonObject]:
    """Return tools in the form of OpenAI's chat completions."""
    return _convert(tools, lambda tool: {"type": "function", "function": tool})


def responses_tools(tools: Iterable[JsonObject]) -> list[JsonObject]:
    """Return tools in the form of OpenAI's Responses API."""
    return _convert(tools, lambda tool: {"type": "function", **tool, "strict": False})


def anthropic_tools(tools: Sequence[JsonObject]) -> list[JsonObject]:
    """Return tools in the form of Anthropic's messages, which has a field for those that are loaded later."""
    written = _convert(tools, _anthropic_tool)
    return [
        {**tool, DEFER_FIELD: True} if given.get(DEFER_FIELD) is True else tool
        for given, tool in zip(each_tool(tools), written, strict=True)
    ]


def tool_names(tools: Iterable[JsonObject]) -> set[str]:
    """Return the names of the tools that the agent runs, without those that the provider runs itself."""
    return {found["name"] for tool in each_tool(tools) if (found := neutral_form(tool)) is not None}


def _anthropic_tool(tool: JsonObject) -> JsonObject:
    fields = {name: value for name, value in tool.items() if name != "parameters"}
    return {**fields, "input_schema": tool["parameters"]}


def _convert(tools: Iterable[JsonObject], write: Callable[[JsonObject], JsonObject]) -> list[JsonObject]:
    return [tool if (found := neutral_form(tool)) is None else write(found) for tool in each_tool(tools)]
