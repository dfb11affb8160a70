"""The upstream's response on its way to the client, and its recording.

1. A stream is forwarded chunk by chunk; a copy is kept, and read when the stream has ended.
2. A response that is no stream is read whole before its first byte is forwarded.
3. A client that disconnects does not end the response: it is read to the end and recorded, for at most
   `MAX_SECONDS_AFTER_DISCONNECT` seconds.
4. A response above `MAX_RECORDED_REPLY_BYTES` is forwarded and not recorded.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from functools import partial
from typing import Any, Final

import aiohttp
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from foveal.apps.http.http_errors import HttpError, error_format, stream_error_event
from foveal.apps.http.proxy import forwarded_headers
from foveal.errors import FovealError
from foveal.server.proxy import upstream_reply
from foveal.server.proxy.client_request import ClientRequest
from foveal.server.proxy.exchange import Exchange
from foveal.server.proxy.upstream_reply import MAX_RECORDED_REPLY_BYTES
from foveal.server.runtime import ProxyRequestEnded, Runtime

DISCONNECT_CHECK_INTERVAL_S: Final = 5.0
MAX_SECONDS_AFTER_DISCONNECT: Final = 600.0
"""Time that a response may still take after its client has disconnected."""
MIN_BYTES_FOR_THREAD: Final = 64 * 1024
"""Larger responses are parsed in a thread, so other requests do not wait."""
MAX_EARLY_READS: Final = 3
"""How often text in a stream may look like its end before the stream ends."""
_TAIL_BYTES: Final = 32
"""Bytes of the previous chunk that are searched again: the end marker may be split between two chunks."""


class ProxyRequest:
    """One request of a client: the body for the upstream, the headers for the client, the event for observers."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        tenant: str,
        client_request: ClientRequest,
        model: str,
        exchange: Exchange | None,
        problem: str,
        secret: str,
        began: float,
    ) -> None:
        """`problem` says why there is no exchange: the request is forwarded without context management."""
        self.client_request = client_request
        self.exchange = exchange
        self.secret = secret
        """The server's own key, which no client may see."""
        self._runtime, self._tenant, self._model, self._problem = runtime, tenant, model, problem
        self._began = self._response_arrived = began
        self._added_seconds = 0.0
        self._status = 0
        self._has_ended = False

    @property
    def body(self) -> bytes:
        """The body to send upstream."""
        return self.client_request.body if self.exchange is None else self.exchange.body

    def mark_sending(self) -> None:
        """Count the time since the start, or since the last response, as added by this server."""
        self._added_seconds += time.perf_counter() - self._response_arrived

    def mark_response(self, status: int) -> None:
        """Note that the upstream's response has arrived."""
        self._status, self._response_arrived = status, time.perf_counter()

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return the `X-Foveal-…` headers of the response."""
        exchange = self.exchange
        values: dict[bytes, Any] = {b"x-foveal-model": self._model}
        if exchange is None:
            values[b"x-foveal-reduced"] = f"none; not managed ({self._problem})"
        else:
            values[b"x-foveal-session"] = exchange.session_id
            values[b"x-foveal-tokens"] = exchange.tokens
            values[b"x-foveal-whole"] = exchange.unreduced_tokens
            values[b"x-foveal-reduced"] = exchange.reductions
        return [(name, forwarded_headers.safe_value(value)) for name, value in values.items()]

    def error_response(self, response: aiohttp.ClientResponse, error: bytes | None) -> Response:
        """End the request with the upstream's error, and return it as the response."""
        response.release()
        self.end()
        body = forwarded_headers.without_secret(self.secret, error or b"")
        result = Response(body, status_code=response.status)
        headers = forwarded_headers.to_client(response.raw_headers, self.secret)
        result.raw_headers = [*headers, (b"content-length", str(len(body)).encode()), *self.headers()]
        return result

    def end(self, status: int = 0) -> None:
        """End the request and emit its event, once; `status` is the client's if it is not the upstream's."""
        exchange, now = self.exchange, time.perf_counter()
        if exchange is not None:
            exchange.end()
        if self._has_ended:
            return
        self._has_ended = True
        self._runtime.emit(
            ProxyRequestEnded(
                tenant=self._tenant,
                session=exchange.session_id if exchange else "",
                dialect=self.client_request.dialect,
                model=self._model,
                status=status or self._status,
                seconds=now - self._began,
                added_seconds=self._added_seconds,
                tokens=exchange.tokens if exchange else 0,
                unreduced_tokens=exchange.unreduced_tokens if exchange else 0,
                overflow_retries=exchange.overflow_retries if exchange else 0,
                streamed=self.client_request.is_streamed,
            )
        )


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
    ) -> None:
        """`already_read` is the beginning of the response if it was read before."""
        super().__init__(status_code=response.status)
        self._request, self._response, self._proxy_request = request, response, proxy_request
        self._already_read, self._silence_s = already_read, silence_s
        self._exchange = proxy_request.exchange if response.status == 200 else None
        """The exchange that records the response; None if there is nothing to record, or no longer."""
        self._copy: list[bytes] = []
        self._copy_bytes = 0
        self._early_reads_left = MAX_EARLY_READS
        self._connection_checked_at = time.monotonic()
        self._disconnected_at = 0.0
        """0 while the client is connected."""
        headers = forwarded_headers.to_client(response.raw_headers, proxy_request.secret)
        self.raw_headers = [*headers, *proxy_request.headers()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with self._response:
                if is_event_stream(self._response):
                    await self._forward_stream(send)
                else:
                    await self._forward_whole(send)
        except HttpError as error:
            self._proxy_request.end(error.status)
            raise
        finally:
            self._proxy_request.end()

    # ── Whole responses ──────────────────────────────────────────────────────────────────────────────

    async def _forward_whole(self, send: Send) -> None:
        """Read the response, then send it: a client cannot use a part of it."""
        try:
            async for chunk in self._response.content.iter_any():
                self._keep(chunk)
                if self._copy_bytes > MAX_RECORDED_REPLY_BYTES:
                    break
        except (aiohttp.ClientError, OSError) as problem:
            status = 504 if isinstance(problem, TimeoutError) else 502
            raise HttpError(status, "the provider's response broke off", code="broken_off") from None
        body = forwarded_headers.without_secret(self._proxy_request.secret, b"".join(self._copy))
        if self._copy_bytes > MAX_RECORDED_REPLY_BYTES:
            await self._forward_too_large(send, body)
            return
        if self._exchange is not None:
            self._exchange.mark_ending()
        await self._start(send, length=len(body))
        await self._send(send, body, more=False)
        await self._record(streamed=False)

    async def _forward_too_large(self, send: Send, beginning: bytes) -> None:
        """Forward a response that is too large to keep, without recording it."""
        self._copy, self._exchange = [], None
        await self._start(send)
        await self._send(send, beginning)
        with suppress(aiohttp.ClientError, OSError):
            async for chunk in self._response.content.iter_any():
                await self._send(send, chunk)
                if await self._is_abandoned():
                    return
            await self._send(send, b"", more=False)

    # ── Streams ──────────────────────────────────────────────────────────────────────────────────────

    async def _forward_stream(self, send: Send) -> None:
        await self._start(send)
        try:
            if self._already_read:
                await self._forward_chunk(send, self._already_read)
            async for chunk in self._response.content.iter_any():
                await self._forward_chunk(send, chunk)
                if await self._is_abandoned():
                    return
        except TimeoutError:
            detail = f"the provider has not sent anything for {self._silence_s:,.0f} s (`server.silence`)"
            error = HttpError(504, detail, code="upstream_silent")
            await self._send(send, stream_error_event(error, error_format(self._request.url.path)))
            return
        except (aiohttp.ClientError, OSError):
            return  # the client's connection breaks off, as the upstream's did
        await self._send(send, b"", more=False)
        await self._record(streamed=True)

    async def _forward_chunk(self, send: Send, chunk: bytes) -> None:
        """Forward a chunk; if it ends the stream, record the response before the upstream closes it."""
        ends = False
        if self._exchange is not None:
            previous = b"".join(self._copy[-1:])
            searched = (previous + chunk)[-len(chunk) - _TAIL_BYTES :]
            ends = upstream_reply.is_stream_end(searched, self._proxy_request.client_request.dialect)
            self._keep(chunk)
            if self._copy_bytes > MAX_RECORDED_REPLY_BYTES:
                self._copy, self._exchange = [], None
            elif ends:
                self._exchange.mark_ending()
        await self._send(send, chunk)
        if ends and self._early_reads_left > 0:
            self._early_reads_left -= 1
            await self._record(streamed=True)

    # ── Sending and recording ────────────────────────────────────────────────────────────────────────

    async def _start(self, send: Send, *, length: int | None = None) -> None:
        headers = self.raw_headers
        if length is not None:
            headers = [*headers, (b"content-length", str(length).encode())]
        await send({"type": "http.response.start", "status": self.status_code, "headers": headers})

    async def _send(self, send: Send, chunk: bytes, *, more: bool = True) -> None:
        """Send a chunk to the client, unless it has disconnected; a client that does not read counts as that."""
        chunk = forwarded_headers.without_secret(self._proxy_request.secret, chunk)
        if not self._disconnected_at:
            try:
                async with asyncio.timeout(self._silence_s):
                    await send({"type": "http.response.body", "body": chunk, "more_body": more})
            except (TimeoutError, OSError):
                self._disconnected_at = time.monotonic()

    def _keep(self, chunk: bytes) -> None:
        self._copy_bytes += len(chunk)
        self._copy.append(chunk)

    async def _is_abandoned(self) -> bool:
        """Return whether the client has disconnected and the response is not worth reading any further."""
        now = time.monotonic()
        if not self._disconnected_at and now - self._connection_checked_at > DISCONNECT_CHECK_INTERVAL_S:
            self._connection_checked_at = now
            if await self._request.is_disconnected():
                self._disconnected_at = now
        late = now - self._disconnected_at > MAX_SECONDS_AFTER_DISCONNECT
        return bool(self._disconnected_at) and (late or self._exchange is None)

    async def _record(self, *, streamed: bool) -> None:
        """Record the response if the copy is complete."""
        exchange = self._exchange
        if exchange is None:
            return
        data, dialect = b"".join(self._copy), self._proxy_request.client_request.dialect
        read = partial(upstream_reply.read_reply, data, dialect, streamed=streamed)
        reply = read() if self._copy_bytes < MIN_BYTES_FOR_THREAD else await asyncio.to_thread(read)
        if reply is not None:
            self._exchange = None
            with suppress(FovealError):  # the client's next request contains the reply again
                await exchange.record_reply(reply)


def is_event_stream(response: aiohttp.ClientResponse) -> bool:
    """Return whether a response consists of server-sent events."""
    return response.headers.get("content-type", "").lower().startswith("text/event-stream")
