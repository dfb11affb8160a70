"""The upstream's response on its way to the client, and its recording.

1. A stream is forwarded chunk by chunk; a copy is kept, and read when the stream has ended.
2. A response that is no stream is read whole before its first byte is forwarded.
3. A client that disconnects does not end the response: it is read to the end and recorded, for at most
   `MAX_SECONDS_AFTER_DISCONNECT` seconds; with `on_disconnect = "pause"` a stream is given up instead.
4. A response above `MAX_RECORDED_REPLY_BYTES` is forwarded and not recorded.
5. A stream that ends before the answer does, or in which the upstream falls silent, ends with the error event of
   the client's API. An event is forwarded when it is complete, so that the error event never follows a part of
   another one. What had arrived of the reply is stored as a note.

`StreamRelay` forwards most chunks in the callback that receives them. aiohttp wakes the reading task for every
chunk, which takes several times as long as forwarding the chunk. While a task waits in `StreamRelay.next_chunk`,
the body hands each chunk to a function instead, and only a chunk that the function does not take wakes the task.

Responses in flight, which a retry of the same request joins.

Client libraries send a request again after a time-out, while upstream still answers the first one. The retry gets
the same response from its first byte on, and no second request goes upstream.

1. A retry has the same tenant, key, address and body as a request in flight. In addition, it says that it is a
   retry (`Idempotency-Key`, or the retry count of the OpenAI and Anthropic libraries), or the first client has
   disconnected. Equal requests without such a sign are separate: a client may want several answers to one question.
2. The first request reads the response to its end, whether or not its own client still reads.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Coroutine, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, NamedTuple

import aiohttp
import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from foveal.core.wire.usage import usage_or_none
from foveal.errors import FovealError, StoreError
from foveal.server.budgets import NOTHING_SPENT, Reservation, spent_amount
from foveal.server.proxy import headers as proxy_headers
from foveal.server.proxy.exchange import Exchange
from foveal.server.runtime import ProxyRequestEnded, Runtime
from foveal.transport.client_request import ClientRequest
from foveal.transport.upstream_reply import MAX_RECORDED_REPLY_BYTES, ReplyCopy
from foveal.web.asgi_extensions import write_now_of
from foveal.web.http_errors import HttpError, error_format, stream_error_event

IDEMPOTENCY_HEADER: Final = "idempotency-key"
RETRY_COUNT_HEADER: Final = "x-stainless-retry-count"


class ResponseHead(NamedTuple):
    status: int
    headers: Sequence[tuple[bytes, bytes]]


class SharedResponse:
    """A response as it arrives, for any number of connections."""

    def __init__(self, request: Request, on_end: Callable[[SharedResponse], None]) -> None:
        self.chunks: list[bytes] = []
        self.is_complete: bool = False
        """The response has arrived whole."""
        self.has_ended: bool = False
        self.followers: int = 0
        """Further connections that receive the response."""
        self._request, self._on_end = request, on_end
        self._size = 0
        self._is_joinable = True
        self._head: ResponseHead | None = None
        self._error: BaseException | None = None
        self._waiting: list[asyncio.Future[None]] = []

    # ── For the first request ────────────────────────────────────────────────────────────────────────

    def start(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        self._head = ResponseHead(status, headers)
        self._wake()

    def add(self, chunk: bytes) -> None:
        """Add a chunk as clients get it. A response that is too large to keep can no longer be joined."""
        if self._is_joinable or self.followers:
            self.chunks.append(chunk)
            self._size += len(chunk)
            if self._size > MAX_RECORDED_REPLY_BYTES:
                self._is_joinable = False
                if not self.followers:
                    self.chunks.clear()
            if self._waiting:
                self._wake()

    def end(self, *, is_complete: bool = False, error: BaseException | None = None) -> None:
        """End the response, if it has not ended; `error` says why there is none."""
        if not self.has_ended:
            self.has_ended, self.is_complete, self._error = True, is_complete, error
            self._on_end(self)
            self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    # ── For retries ──────────────────────────────────────────────────────────────────────────────────

    async def is_retried_by(self, request: Request) -> bool:
        """Return whether an equal request is a retry that can get this response."""
        if not self._is_joinable or self.has_ended:
            return False
        count = request.headers.get(RETRY_COUNT_HEADER, "0")
        if IDEMPOTENCY_HEADER in request.headers or (count.isdecimal() and int(count) > 0):
            return True
        has_left = await self._request.is_disconnected()
        return has_left and self._is_joinable and not self.has_ended

    @contextmanager
    def follow(self) -> Iterator[None]:
        """Keep the chunks while the block runs."""
        self.followers += 1
        try:
            yield
        finally:
            self.followers -= 1

    async def head(self) -> ResponseHead:
        """Wait for the beginning of the response; raises the error of the first request."""
        while self._head is None and not self.has_ended:
            await self.news()
        if self._head is None:
            raise self._error or ConnectionError("the first request ended without a response")
        return self._head

    async def news(self) -> None:
        """Wait until something is added to the response."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await future


class JoinedResponse(Response):
    """The response of another request in flight."""

    def __init__(self, shared: SharedResponse, head: ResponseHead) -> None:
        super().__init__(status_code=head.status)
        self.raw_headers: list[tuple[bytes, bytes]] = list(head.headers)
        self._shared = shared

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        shared, sent = self._shared, 0
        with shared.follow():
            await send(
                {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            )
            while sent < len(shared.chunks) or not shared.has_ended:
                if sent == len(shared.chunks):
                    await shared.news()
                    continue
                body = b"".join(shared.chunks[sent:])
                sent = len(shared.chunks)
                await send({"type": "http.response.body", "body": body, "more_body": True})
            if shared.is_complete:  # otherwise this connection breaks off, as the first one did
                await send({"type": "http.response.body", "body": b"", "more_body": False})


class InFlightRequests:
    """Responses in flight, by what makes two requests equal."""

    def __init__(self) -> None:
        self._responses: dict[Hashable, SharedResponse] = {}

    @property
    def responses(self) -> list[SharedResponse]:
        return list(self._responses.values())

    async def find(self, key: Hashable, request: Request) -> SharedResponse | None:
        """Return the response that a retry joins; None if the request is no retry."""
        known = self._responses.get(key)
        return known if known is not None and await known.is_retried_by(request) else None

    def begin(self, key: Hashable, request: Request) -> SharedResponse:
        """Return the response to a new request; retries find it until it ends."""

        def remove(ended: SharedResponse) -> None:
            if self._responses.get(key) is ended:
                del self._responses[key]

        self._responses[key] = shared = SharedResponse(request, remove)
        return shared


_WAITING: Final[dict[aiohttp.StreamReader, StreamRelay]] = {}
"""The relays whose task waits, by the body that they read."""


class StreamRelay:
    def __init__(self, response: aiohttp.ClientResponse, forward: Callable[[bytes], bool]) -> None:
        """`forward` returns whether it has forwarded the chunk; it must not raise."""
        self.forward: Callable[[bytes], bool] = forward
        self.waiter: asyncio.Future[None]
        """Set while the task waits, done when it is woken."""
        self._content = response.content

    async def next_chunk(self) -> bytes:
        """Return the next bytes that `forward` does not take; b"" at the end. Raises the errors of aiohttp."""
        if not _CAN_REPLACE_CLASS:
            return await self._content.readany()
        while not (chunk := self._content.read_nowait()) and not self._content.is_eof():
            await self._wait()
        return chunk

    async def _wait(self) -> None:
        content = self._content
        self.waiter = asyncio.get_running_loop().create_future()
        _WAITING[content], content.__class__ = self, _RelayedContent
        try:
            await self.waiter
        finally:
            content.__class__ = aiohttp.StreamReader
            del _WAITING[content]

    def wake(self) -> None:
        """Let the task read what was not forwarded."""
        if not self.waiter.done():
            self.waiter.set_result(None)


class _RelayedContent(aiohttp.StreamReader):
    """The body of a response while its relay waits. aiohttp's parser creates the object, and only its class can be
    replaced: it must have the same attributes."""

    __slots__ = ()

    def feed_data(self, data: bytes, size: int = 0) -> bool:
        relay = _WAITING[self]
        # This runs for each of hundreds of chunks, so it saves the call of a method.
        if not relay.waiter.done() and relay.forward(data):
            return False
        has_more = super().feed_data(data, size)
        relay.wake()
        return has_more

    def feed_eof(self) -> None:
        super().feed_eof()
        _WAITING[self].wake()

    def set_exception(self, exc: BaseException, *cause: BaseException) -> None:
        super().set_exception(exc, *cause)
        _WAITING[self].wake()


def _can_replace_class() -> bool:
    """Return whether the body of this version of aiohttp has a layout that allows it."""
    body = aiohttp.StreamReader.__new__(aiohttp.StreamReader)
    try:
        body.__class__ = _RelayedContent
    except TypeError:
        return False
    return True


_CAN_REPLACE_CLASS: Final = _can_replace_class()
"""Without it every chunk wakes the task."""


DISCONNECT_CHECK_INTERVAL_S: Final = 5.0
MAX_SECONDS_AFTER_DISCONNECT: Final = 600.0
"""Time that a response may still take after its client has disconnected."""
MIN_BYTES_FOR_THREAD: Final = 64 * 1024
"""Larger responses are parsed in a thread, so other requests do not wait."""
DEADLINE_MOVES: Final = 16
"""A deadline is moved when this part of its time has passed, so that it ends up to a sixteenth early."""


class ProxyRequest(msgspec.Struct, kw_only=True, eq=False):
    """One request of a client: the body for the upstream, the headers for the client, the event for observers."""

    runtime: Runtime
    tenant: str
    client_request: ClientRequest
    model: str
    exchange: Exchange | None
    problem: str
    """Why there is no exchange: the request is forwarded without context management."""
    secret: str
    """The server's own key, which no client may see."""
    shared: SharedResponse
    """The response, for retries of the request."""
    began: float
    reservation: Reservation | None = None
    """What is kept for the request where budgets apply."""
    usage: Any = None
    """The usage that the upstream reported."""
    response_arrived: float = 0.0
    added_seconds: float = 0.0
    status: int = 0
    has_ended: bool = False

    def __post_init__(self) -> None:
        self.response_arrived = self.began

    @property
    def body(self) -> bytes:
        """The body to send upstream."""
        return self.client_request.body if self.exchange is None else self.exchange.body

    def mark_sending(self) -> None:
        """Count the time since the start, or since the last response, as added by this server."""
        self.added_seconds += time.perf_counter() - self.response_arrived

    def mark_response(self, status: int) -> None:
        """Note that the upstream's response has arrived."""
        self.status, self.response_arrived = status, time.perf_counter()

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return the `X-Foveal-…` headers of the response."""
        request = self.client_request
        headers = proxy_headers.foveal_headers(
            self.model,
            self.exchange,
            self.problem,
            is_unchanged=request.asks_for_compaction,
            budget="" if self.reservation is None else self.reservation.header(),
        )
        if request.asked_max_tokens:
            limit = b"%d; asked %d" % (request.max_tokens, request.asked_max_tokens)
            headers.append((b"x-foveal-max-tokens", limit))
        return headers

    def error_response(self, response: aiohttp.ClientResponse, error: bytes | None) -> Response:
        """End the request with the upstream's error, and return it as the response."""
        response.release()
        self.end()
        body = proxy_headers.without_secret(self.secret, error or b"")
        result = Response(body, status_code=response.status)
        headers = proxy_headers.to_client(response.raw_headers, self.secret)
        result.raw_headers = [*headers, (b"content-length", str(len(body)).encode()), *self.headers()]
        self.shared.start(result.status_code, result.raw_headers)
        self.shared.add(body)
        self.shared.end(is_complete=True)
        return result

    def store_failed(self, problem: StoreError) -> None:
        """Report that the response could not be recorded."""
        self.runtime.store_failed(self.tenant, problem)

    def end(self, error: HttpError | None = None) -> None:
        """End the request and emit its event, once; `error` is what the client gets in place of a response."""
        exchange, now = self.exchange, time.perf_counter()
        if exchange is not None:
            exchange.end()
        if self.has_ended:
            return
        self.has_ended = True
        is_answered, session = self.status == 200, exchange.session_id if exchange else ""
        if is_answered and (exchange is None or not exchange.is_counted):
            self.runtime.usage.add_call(self.tenant, session, self.model, usage_or_none(self.usage))
        if self.reservation is not None:
            used = spent_amount(self.usage, self.reservation.model) if is_answered else NOTHING_SPENT
            self.runtime.budgets.settle_soon(self.reservation, used)
        self.runtime.emit(
            ProxyRequestEnded(
                tenant=self.tenant,
                session=session,
                dialect=self.client_request.dialect,
                model=self.model,
                status=self.status if error is None else error.status,
                error="" if error is None else error.code,
                seconds=now - self.began,
                added_seconds=self.added_seconds,
                tokens=exchange.tokens if exchange else 0,
                unreduced_tokens=exchange.unreduced_tokens if exchange else 0,
                overflow_retries=exchange.overflow_retries if exchange else 0,
                streamed=self.client_request.is_streamed,
                not_managed=_without_quotes(self.problem),
            )
        )


_MALFORMED: Final = re.compile(r"messages\[\d+\]")


def _without_quotes(problem: str) -> str:
    """Return why a request is not managed, without the value that the error of a malformed message quotes."""
    malformed = _MALFORMED.match(problem)
    return f"{malformed[0]} is malformed" if malformed else problem


_EVENT_NUMBER: Final = re.compile(rb'"sequence_number": ?(\d{1,9})')


class ResponseStream(Response):
    """Forwards the upstream's response to the client, and records it."""

    def __init__(
        self,
        request: Request,
        response: aiohttp.ClientResponse,
        proxy_request: ProxyRequest,
        already_read: bytes,
        *,
        silence_s: float,
        pauses: bool = False,
    ) -> None:
        """`already_read` is the beginning of the response if it was read before. With `pauses`, a stream is read no
        further when its client has disconnected."""
        super().__init__(status_code=response.status)
        self._request, self._response, self._proxy_request = request, response, proxy_request
        self._already_read, self._silence_s, self._pauses = already_read, silence_s, pauses
        self._shared = proxy_request.shared
        self._exchange = proxy_request.exchange if response.status == 200 else None
        """The exchange that records the response; None if there is nothing to record, or no longer."""
        self._copy = ReplyCopy(proxy_request.client_request.dialect)
        self._secret = proxy_request.secret
        self._is_stream = is_event_stream(response)
        self._held = b""
        """The end of the previous chunk that is not sent yet: an incomplete event, or what may begin the secret."""
        self._says_end = False
        """A chunk looked like the end of the stream."""
        self._connection_checked_at = time.monotonic()
        self._disconnected_at = 0.0
        """0 while the client is connected."""
        self._is_sending = False
        self._write_now = write_now_of(request.scope)
        self._loop = asyncio.get_running_loop()
        self._deadline = asyncio.timeout(None)
        self._due_at = 0.0
        """When the deadline is moved next."""
        headers = proxy_headers.to_client(response.raw_headers, proxy_request.secret)
        self.raw_headers: list[tuple[bytes, bytes]] = [*headers, *proxy_request.headers()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with self._response:
                if self._is_stream:
                    await self._forward_stream(send)
                else:
                    await self._forward_whole(send)
        except HttpError as error:
            self._shared.end(error=error)
            self._proxy_request.end(error)
            raise
        finally:
            self._shared.end()
            self._proxy_request.end()

    # ── Whole responses ──────────────────────────────────────────────────────────────────────────────

    async def _forward_whole(self, send: Send) -> None:
        """Read the response, then send it: a client cannot use a part of it."""
        body = bytearray()
        try:
            async for chunk in self._response.content.iter_any():
                body += chunk
                self._copy.add(chunk)
                if self._copy.is_too_large:
                    break
        except (aiohttp.ClientError, OSError) as problem:
            status = 504 if isinstance(problem, TimeoutError) else 502
            raise HttpError(status, "the provider's response broke off", code="broken_off") from None
        if self._copy.is_too_large:
            await self._forward_too_large(send, bytes(body))
            return
        if self._exchange is not None:
            self._exchange.mark_ending()
        length = len(proxy_headers.without_secret(self._secret, bytes(body)))
        await self._start(send, length=length)
        await self._send_in_time(send, bytes(body))
        await self._finish(send)
        await self._record(streamed=False)

    async def _forward_too_large(self, send: Send, beginning: bytes) -> None:
        """Forward a response that is too large to keep, without recording it."""
        self._exchange = None
        await self._start(send)
        await self._send_in_time(send, beginning)
        with suppress(aiohttp.ClientError, OSError):
            async for chunk in self._response.content.iter_any():
                await self._send_in_time(send, chunk)
                if await self._is_abandoned():
                    return
            await self._finish(send)

    # ── Streams ──────────────────────────────────────────────────────────────────────────────────────
    # An answer has hundreds of chunks, so the work per chunk is kept small: `_forward_now` forwards most of them
    # without waking this task. One deadline covers reading and sending, and it is moved at most `DEADLINE_MOVES`
    # times within the time that it allows; `_due_at` is the only time that is compared for each chunk.

    async def _forward_stream(self, send: Send) -> None:
        await self._start(send)
        self._without_read_timeout()
        try:
            is_over = False
            while not is_over:  # again if the client does not read: the response is still recorded
                is_over = await self._within_deadline(self._forward_chunks(send))
        except TimeoutError:
            detail = f"the provider has not sent anything for {self._silence_s:,.0f} s (`server.silence`)"
            await self._break_off(send, HttpError(504, detail, code="upstream_silent"))
        except (aiohttp.ClientError, OSError):
            await self._break_off(send, _broken_off_error())

    async def _break_off(self, send: Send, error: HttpError) -> None:
        """Store what has arrived, end the client's stream with an error event, and the request with its status."""
        exchange, self._exchange, data = self._exchange, None, self._copy.data()
        if exchange is not None:
            try:
                await exchange.record_broken_off(self._copy.read_broken_off())
            except StoreError as problem:
                self._proxy_request.store_failed(problem)
        self._held = b""  # the beginning of an event
        numbers = _EVENT_NUMBER.findall(data)
        event = stream_error_event(
            error, error_format(self._request.url.path), number=int(numbers[-1]) + 1 if numbers else 0
        )
        await self._send_in_time(send, event)
        self._proxy_request.end(error)
        await self._finish(send)

    def _without_read_timeout(self) -> None:
        """Turn off the time-out of aiohttp, which starts a timer for every chunk."""
        connection = self._response.connection
        if connection is not None and connection.protocol is not None:
            connection.protocol.read_timeout = None

    async def _within_deadline(self, work: Coroutine[Any, Any, bool]) -> bool:
        """Return the result of `work`. False if the client does not read: then it counts as disconnected. Raises
        `TimeoutError` if the upstream is silent."""
        try:
            async with asyncio.timeout(self._silence_s) as self._deadline:
                self._set_due()
                return await work
        except TimeoutError:
            if not self._is_sending:
                raise
            self._is_sending, self._disconnected_at = False, time.monotonic()
            return False

    def _set_due(self) -> None:
        """Set when the deadline is moved and the connection checked next."""
        self._due_at = self._loop.time() + min(self._silence_s / DEADLINE_MOVES, DISCONNECT_CHECK_INTERVAL_S)

    def _move_deadline(self) -> None:
        self._deadline.reschedule(self._loop.time() + self._silence_s)
        self._set_due()

    async def _forward_chunks(self, send: Send) -> bool:
        """Forward chunks to the end of the response, and record it; return True when nothing is left to do."""
        already_read, self._already_read = self._already_read, b""
        if already_read and not self._forward_now(already_read):
            await self._forward_chunk(send, already_read)
        relay = StreamRelay(self._response, self._forward_now)
        while chunk := await relay.next_chunk():  # b"" is the end
            is_due = self._loop.time() > self._due_at
            if is_due:
                self._move_deadline()
            await self._forward_chunk(send, chunk)
            if (is_due or self._disconnected_at) and await self._is_abandoned():
                return True
        self._deadline.reschedule(None)
        await self._record(streamed=True)
        # A connection without a length or chunks looks the same whether it is closed or reset.
        if self._exchange is not None and not self._says_end and self._copy.read_broken_off():
            await self._break_off(send, _broken_off_error())
        else:
            await self._finish(send)
        return True

    def _forward_now(self, chunk: bytes) -> bool:
        """Forward a chunk if that needs no waiting and nothing else is due; return whether it was forwarded."""
        if self._write_now is None or self._disconnected_at or self._loop.time() > self._due_at:
            return False
        if self._exchange is not None and not self._says_end and self._copy.ends(chunk):
            return False
        is_plain = not self._secret and not self._held and chunk.endswith(b"\n\n")
        visible, held = (chunk, b"") if is_plain else self._split(chunk)
        if not self._write_now(visible):
            return False
        self._held = held
        if self._exchange is not None and not self._copy.add(chunk):
            self._exchange = None  # it is too large to be recorded
        self._shared.add(visible)
        return True

    async def _forward_chunk(self, send: Send, chunk: bytes) -> None:
        """Forward a chunk; if it ends the stream, record the response before the upstream closes it."""
        ends = False
        if self._exchange is not None:
            ends = self._copy.ends(chunk)
            if ends:
                self._says_end = True
                self._exchange.mark_ending()
            if not self._copy.add(chunk):
                self._exchange = None
        await self._send(send, chunk)
        if ends and self._copy.may_read_early():
            self._deadline.reschedule(None)
            await self._record(streamed=True)
            self._move_deadline()

    # ── Sending and recording ────────────────────────────────────────────────────────────────────────

    async def _start(self, send: Send, *, length: int | None = None) -> None:
        headers = self.raw_headers
        if length is not None:
            headers = [*headers, (b"content-length", str(length).encode())]
        self._shared.start(self.status_code, headers)
        await send({"type": "http.response.start", "status": self.status_code, "headers": headers})

    async def _send(self, send: Send, chunk: bytes) -> None:
        """Send a chunk to the client, unless it has disconnected."""
        chunk, self._held = self._split(chunk)
        self._shared.add(chunk)
        if not self._disconnected_at:
            self._is_sending = True
            try:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            except OSError:
                self._disconnected_at = time.monotonic()
            self._is_sending = False

    async def _send_in_time(self, send: Send, chunk: bytes) -> None:
        """Send a chunk to the client; a client that does not read counts as disconnected."""
        try:
            async with asyncio.timeout(self._silence_s):
                await self._send(send, chunk)
        except TimeoutError:
            self._is_sending, self._disconnected_at = False, time.monotonic()

    async def _finish(self, send: Send) -> None:
        """Tell the client that the response is complete."""
        if self._held:
            self._shared.add(self._held)
        self._shared.end(is_complete=True)
        if not self._disconnected_at:
            with suppress(OSError):
                await send({"type": "http.response.body", "body": self._held, "more_body": False})

    def _split(self, chunk: bytes) -> tuple[bytes, bytes]:
        """Return what of a chunk and of the end of the previous one can be sent, and what is held back."""
        visible, held = proxy_headers.split_before_secret(self._secret, self._held + chunk)
        if not self._is_stream:
            return visible, held
        events, incomplete = proxy_headers.split_after_event(visible)
        return events, incomplete + held

    def _is_check_due(self) -> bool:
        """Return whether `_is_abandoned` can be true."""
        due = self._connection_checked_at + DISCONNECT_CHECK_INTERVAL_S
        return bool(self._disconnected_at) or time.monotonic() > due

    async def _is_abandoned(self) -> bool:
        """Return whether no client is connected and the response is not worth reading any further."""
        now = time.monotonic()
        if not self._disconnected_at and self._is_check_due():
            self._connection_checked_at = now
            if await self._request.is_disconnected():
                self._disconnected_at = now
        if not self._disconnected_at or self._shared.followers:
            return False
        waits_s = 0.0 if self._pauses else MAX_SECONDS_AFTER_DISCONNECT
        return self._exchange is None or now - self._disconnected_at >= waits_s

    async def _record(self, *, streamed: bool) -> None:
        """Record the response if the copy is complete."""
        exchange = self._exchange
        if exchange is None:
            return
        read = partial(self._copy.read, streamed=streamed)
        reply = read() if self._copy.size < MIN_BYTES_FOR_THREAD else await asyncio.to_thread(read)
        if reply is not None:
            self._exchange, self._proxy_request.usage = None, reply.usage
            try:
                await exchange.record_reply(reply)
            except StoreError as problem:  # the client's next request contains the reply again
                self._proxy_request.store_failed(problem)
            except FovealError:
                return


def _broken_off_error() -> HttpError:
    detail = "the provider broke the stream off: its connection ended before the answer did"
    return HttpError(502, detail, code="broken_off")


def is_event_stream(response: aiohttp.ClientResponse) -> bool:
    """Return whether a response consists of server-sent events."""
    return response.headers.get("content-type", "").lower().startswith("text/event-stream")
