"""Clients and transports of `httpx` and `httpx2` that fit requests and observe the responses.

The code is written once, as coroutines. `BlockingIO` never waits, so a client without an event loop runs them with
`run_without_waiting`; `WaitingIO` awaits.

Both libraries have the same interface. Neither is imported here: the caller passes the module.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module
from itertools import chain
from typing import Any, Final, NamedTuple, Protocol

from foveal.context.threads import run_without_waiting
from foveal.core.engine.context_arguments import ContextArguments
from foveal.core.log.events import Dialect
from foveal.core.wire.bound_thinking import BETA_HEADER, with_beta
from foveal.core.wire.overflow_errors import refuses_controls
from foveal.errors import BadSetting, ConversationIdMissing
from foveal.transport.attempts import (
    MAX_ERROR_BYTES,
    FirstEvent,
    StreamBeginning,
    UpstreamHead,
    send_until_accepted,
)
from foveal.transport.client_request import ClientRequest
from foveal.transport.conversation_pool import SESSION_HEADER, ConversationPool, checked_pool
from foveal.transport.fitted_exchange import LOG, FittedExchange, begin_exchange

RETRY_HEADER: Final = "x-stainless-retry-count"
"""The libraries of OpenAI and Anthropic count their retries in it."""
MAX_INFLATED_BYTES: Final = 256 << 20
"""A compressed request that is larger than this is sent as it is."""
_DIALECT_OF_PATH: Final[dict[str, Dialect]] = {
    "/chat/completions": "openai_chat",
    "/responses": "openai_responses",
    "/messages": "anthropic",
    ":generateContent": "gemini",
    ":streamGenerateContent": "gemini",
}
"""How the paths of requests that carry a conversation end."""
_GEMINI_MODEL: Final = re.compile(r"/models/([^/:]+):")
_REPLACED_HEADERS: Final = frozenset(
    {SESSION_HEADER, "content-length", "content-encoding", "transfer-encoding", "accept-encoding"}
)


class HttpIO(Protocol):
    """How a client sends requests and reads streams."""

    library: Any
    """The module `httpx` or `httpx2`."""

    def observed(self, stream: ResponseBytes) -> Any: ...
    async def read_request(self, request: Any) -> bytes: ...
    async def begin(self, work: Callable[[], FittedExchange | None], *, in_thread: bool) -> Any: ...
    async def send(self, request: Any) -> Any: ...
    def iterator(self, stream: Any) -> Any: ...
    async def next_chunk(self, chunks: Any) -> bytes | None: ...
    async def close(self, response: Any) -> None: ...


class BlockingIO:
    """Blocks where `WaitingIO` waits."""

    def __init__(self, library: Any, send: Callable[[Any], Any]) -> None:
        self.library = library
        self._send = send

    def observed(self, stream: ResponseBytes) -> Any:
        return subclass(BlockingStream, self.library.SyncByteStream)(stream)

    async def read_request(self, request: Any) -> bytes:
        return bytes(request.read())

    async def begin(self, work: Callable[[], FittedExchange | None], *, in_thread: bool) -> Any:
        return work()

    async def send(self, request: Any) -> Any:
        return self._send(request)

    def iterator(self, stream: Any) -> Iterator[bytes]:
        return iter(stream)

    async def next_chunk(self, chunks: Iterator[bytes]) -> bytes | None:
        return next(chunks, None)

    async def close(self, response: Any) -> None:
        response.close()


class WaitingIO:
    def __init__(self, library: Any, send: Callable[[Any], Awaitable[Any]]) -> None:
        self.library = library
        self._send = send

    def observed(self, stream: ResponseBytes) -> Any:
        return subclass(WaitingStream, self.library.AsyncByteStream)(stream)

    async def read_request(self, request: Any) -> bytes:
        return bytes(await request.aread())

    async def begin(self, work: Callable[[], FittedExchange | None], *, in_thread: bool) -> Any:
        # Fitting takes milliseconds, unless a model writes a summary.
        if not in_thread:
            return work()
        begun = asyncio.ensure_future(asyncio.to_thread(work))
        try:
            return await asyncio.shield(begun)
        except asyncio.CancelledError:
            begun.add_done_callback(_end_unused)
            raise

    async def send(self, request: Any) -> Any:
        return await self._send(request)

    def iterator(self, stream: Any) -> AsyncIterator[bytes]:
        return aiter(stream)

    async def next_chunk(self, chunks: AsyncIterator[bytes]) -> bytes | None:
        return await anext(chunks, None)

    async def close(self, response: Any) -> None:
        await response.aclose()


# ── Requests ─────────────────────────────────────────────────────────────────────────────────────────────


def dialect_of(request: Any) -> Dialect | None:
    """Return the dialect of a request that carries a conversation; None for any other."""
    if request.method != "POST" or "json" not in request.headers.get("content-type", ""):
        return None
    path = request.url.path.rstrip("/")
    return next((dialect for end, dialect in _DIALECT_OF_PATH.items() if path.endswith(end)), None)


async def relay(io: HttpIO, conversations: ConversationPool, request: Any) -> Any:
    """Send a request, fitted if it carries a conversation, and return the response."""
    dialect = dialect_of(request)
    if dialect is None:
        return await io.send(_without_name(request))
    body = _inflated(await io.read_request(request), request.headers.get("content-encoding", ""))
    if body is None:
        return await io.send(_without_name(request))
    in_path = _GEMINI_MODEL.search(request.url.path) if dialect == "gemini" else None
    model = in_path[1] if in_path is not None else ""
    client_request = ClientRequest(dialect, body, conversations.request_cache, model=model)
    if not conversations.allows_binding_controls(request.url.host):
        client_request.refuse_binding_controls()
    name = request.headers.get(SESSION_HEADER, "").strip()
    is_retry = request.headers.get(RETRY_HEADER, "0") not in ("", "0")
    try:
        exchange: FittedExchange | None = await io.begin(
            lambda: begin_exchange(conversations, client_request, name=name, is_retry=is_retry),
            in_thread=conversations.writes_summaries,
        )
    except ConversationIdMissing as problem:
        return _refusal(io.library, request, problem)
    if exchange is None:
        return await io.send(_without_name(request))
    try:
        return await _HttpCall(io, request, exchange, conversations).response_for_client()
    except BaseException:
        exchange.end()
        raise


def _refusal(library: Any, request: Any, problem: ConversationIdMissing) -> Any:
    """Return an error in place of a provider's, which the client's library raises and does not retry."""
    error = {"type": "invalid_request_error", "code": "conversation_id_missing", "message": str(problem)}
    return library.Response(400, json={"type": "error", "error": error}, request=request)


def _end_unused(begun: asyncio.Future[FittedExchange | None]) -> None:
    """End an exchange that began after its request was cancelled, so that its conversation is free again."""
    exchange = None if begun.cancelled() or begun.exception() else begun.result()
    if exchange is not None:
        exchange.end()


def _inflated(body: bytes, encoding: str) -> bytes | None:
    """Return the body without its compression; None if that cannot be removed."""
    if encoding in ("", "identity"):
        return body
    if encoding == "gzip":
        with suppress(zlib.error):
            stream = zlib.decompressobj(wbits=31)
            inflated = stream.decompress(body, MAX_INFLATED_BYTES)
            if stream.eof:
                return inflated
    LOG.warning("a request is sent as it is: its body has the encoding %.20r", encoding)
    return None


def _without_name(request: Any) -> Any:
    """Return a request without the header that names its conversation."""
    if SESSION_HEADER in request.headers:
        del request.headers[SESSION_HEADER]
    return request


def _with_body(library: Any, request: Any, body: bytes) -> Any:
    """Return a request with another body. The response must not be compressed, because its usage is read."""
    headers = [(name, value) for name, value in request.headers.raw if _name(name) not in _REPLACED_HEADERS]
    headers.append((b"accept-encoding", b"identity"))
    return library.Request(
        request.method, request.url, headers=headers, content=body, extensions=request.extensions
    )


def _name(raw: bytes) -> str:
    return raw.decode("latin-1").lower()


# ── Streams ──────────────────────────────────────────────────────────────────────────────────────────────
# The libraries accept only streams of their own classes, so a class is made for each of them.


class ResponseBytes(NamedTuple):
    """The body of a response on its way to the client."""

    inner: Any
    """The stream of the library."""
    rest: Any
    """The iterator over it."""
    read: list[bytes]
    """The chunks that were read before."""
    exchange: FittedExchange


class BlockingStream:
    """The body of a response; the exchange sees each chunk before the client does."""

    def __init__(self, body: ResponseBytes) -> None:
        self._body = body

    def __iter__(self) -> Iterator[bytes]:
        body = self._body
        try:
            for chunk in chain(body.read, body.rest):
                body.exchange.add(chunk)
                yield chunk
        finally:
            body.exchange.end()

    def close(self) -> None:
        self._body.exchange.end()
        self._body.inner.close()


class WaitingStream:
    """The body of a response of an async client."""

    def __init__(self, body: ResponseBytes) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        body = self._body
        try:
            for chunk in body.read:
                body.exchange.add(chunk)
                yield chunk
            async for chunk in body.rest:
                body.exchange.add(chunk)
                yield chunk
        finally:
            body.exchange.end()

    async def aclose(self) -> None:
        self._body.exchange.end()
        await self._body.inner.aclose()


@cache
def subclass(first: type, *bases: type) -> type[Any]:
    """Return a class that is also one of the library's."""
    return type(first.__name__, (first, *bases), {})


# ── Responses ────────────────────────────────────────────────────────────────────────────────────────────


class _HttpCall:
    """An `UpstreamCall` through the client of an application."""

    def __init__(
        self, io: HttpIO, request: Any, exchange: FittedExchange, conversations: ConversationPool
    ) -> None:
        self._io, self._request, self._exchange = io, request, exchange
        self._conversations = conversations
        self._response: Any = None
        self._chunks: Any = None
        self._read: list[bytes] = []
        """The chunks that were read already."""

    async def response_for_client(self) -> Any:
        """Send the request until it is accepted, and return the response; its bytes are observed as they pass."""
        try:
            outcome = await send_until_accepted(self)
        except BaseException:
            if self._response is not None:
                await self._io.close(self._response)
            raise
        response, head = self._response, outcome.head
        is_readable = head.status == 200 and not response.headers.get("content-encoding")
        self._exchange.expect_reply(streamed=head.is_event_stream, is_readable=is_readable)
        if response.is_closed:  # made from bytes, as in tests and caches: its stream is never read
            self._exchange.add(response.content)
            self._exchange.end()
            return response
        stream = ResponseBytes(response.stream, self._chunks, self._read, self._exchange)
        response.stream = self._io.observed(stream)
        return response

    async def send(self) -> UpstreamHead:
        request = _with_body(self._io.library, self._request, self._exchange.body)
        if self._exchange.sends_binding_controls:
            request.headers[BETA_HEADER] = with_beta(request.headers.get(BETA_HEADER, ""))
        self._response = await self._io.send(request)
        self._chunks = self._io.iterator(self._response.stream)
        self._read = []
        status = self._response.status_code
        return UpstreamHead(status, self._response.headers.get("content-type", ""))

    async def read_error(self) -> bytes | None:
        data = b""
        while (chunk := await self._next_chunk()) is not None:
            data += chunk
            if len(data) > MAX_ERROR_BYTES:
                return None
        return data

    async def read_first_event(self) -> FirstEvent:
        if self._response.headers.get("content-encoding"):
            return FirstEvent()
        beginning = StreamBeginning()
        while (chunk := await self._next_chunk()) is not None:
            if (event := beginning.add(chunk)) is not None:
                return event
        return FirstEvent(beginning.data)

    async def shrink(self, error: object) -> bool:
        if self._exchange.sends_binding_controls and refuses_controls(error):
            self._conversations.note_refused_controls(self._request.url.host)
            self._exchange.drop_binding_controls()
            return True
        return self._exchange.retry_smaller(error)

    async def discard(self) -> None:
        await self._io.close(self._response)

    async def _next_chunk(self) -> bytes | None:
        chunk = await self._io.next_chunk(self._chunks)
        if chunk is not None:
            self._read.append(chunk)
        return chunk


LIBRARIES: Final = ("httpx", "httpx2")
_POOL_SETTINGS: Final = frozenset({"model", "limit", "strict_ids", *ContextArguments.__annotations__})
"""Settings that a client of the library does not take."""


class BlockingClient:
    """A client that fits every request it sends. The library's own class is the second base."""

    conversations: ConversationPool
    _library: Any

    def send(self, request: Any, *, stream: bool = False, **options: Any) -> Any:
        """Send a request; `stream` leaves the response unread."""
        send = super().send  # type: ignore[misc]
        io = BlockingIO(self._library, lambda fitted: send(fitted, stream=True, **options))
        response = run_without_waiting(relay(io, self.conversations, request))
        if not stream:
            try:
                response.read()
            except BaseException:
                response.close()
                raise
        return response


class WaitingClient:
    """An async client that fits every request it sends."""

    conversations: ConversationPool
    _library: Any

    async def send(self, request: Any, *, stream: bool = False, **options: Any) -> Any:
        """Send a request; `stream` leaves the response unread."""
        send = super().send  # type: ignore[misc]
        io = WaitingIO(self._library, lambda fitted: send(fitted, stream=True, **options))
        response = await relay(io, self.conversations, request)
        if not stream:
            try:
                await response.aread()
            except BaseException:
                await response.aclose()
                raise
        return response


class FittedTransport:
    """A transport that fits every request and sends it through another transport."""

    def __init__(self, inner: Any, conversations: ConversationPool, library: Any) -> None:
        self.conversations = conversations
        self._inner, self._library = inner, library

    def handle_request(self, request: Any) -> Any:
        io = BlockingIO(self._library, self._inner.handle_request)
        return run_without_waiting(relay(io, self.conversations, request))

    async def handle_async_request(self, request: Any) -> Any:
        io = WaitingIO(self._library, self._inner.handle_async_request)
        return await relay(io, self.conversations, request)

    def close(self) -> None:
        self._inner.close()

    async def aclose(self) -> None:
        await self._inner.aclose()


def make_client(name: str, conversations: ConversationPool | None, options: dict[str, Any]) -> Any:
    """Return a client of the library with this name."""
    library = import_module(name)
    return _make(subclass(BlockingClient, library.Client), library, conversations, options)


def make_async_client(name: str, conversations: ConversationPool | None, options: dict[str, Any]) -> Any:
    """Return an async client of the library with this name."""
    library = import_module(name)
    return _make(subclass(WaitingClient, library.AsyncClient), library, conversations, options)


def _make(
    kind: type[Any], library: Any, conversations: ConversationPool | None, options: dict[str, Any]
) -> Any:
    for field in _POOL_SETTINGS & options.keys():
        raise BadSetting(field, options[field], f"a setting of the pool: pass `ConversationPool({field}=…)`")
    pool = checked_pool(conversations)
    # The clients of OpenAI and Anthropic follow redirects and allow this many connections.
    limits = library.Limits(max_connections=1_000, max_keepalive_connections=100)
    client = kind(**{"follow_redirects": True, "limits": limits, **options})
    client.conversations = pool
    client._library = library
    return client


def wrap_transport(inner: Any, conversations: ConversationPool | None) -> Any:
    """Return a transport of the same library that fits requests and sends them through `inner`."""
    roots = (base.__module__.partition(".")[0] for base in type(inner).__mro__)
    name = next((root for root in roots if root in LIBRARIES), "")
    if not name:
        raise BadSetting("transport", type(inner).__name__, "a transport of httpx or httpx2")
    library = import_module(name)
    bases = (library.BaseTransport, library.AsyncBaseTransport)
    kind = subclass(FittedTransport, *(base for base in bases if isinstance(inner, base)))
    return kind(inner, checked_pool(conversations), library)
