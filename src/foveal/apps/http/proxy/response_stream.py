"""An answer on its way back, and what is told of it."""

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

from foveal.apps.http.http_errors import HttpError, face_of, last_words
from foveal.apps.http.proxy import forwarded_headers
from foveal.errors import FovealError
from foveal.server.proxy import upstream_reply
from foveal.server.proxy.client_request import ClientRequest
from foveal.server.proxy.exchange import Exchange
from foveal.server.runtime import Exchanged, Runtime

LOOK_EVERY: Final = 5.0
"""Seconds after which it is looked again whether anybody is still listening."""
AFTER_ALL: Final = 600.0
"""Seconds that an answer may still take after its client has hung up."""
LONG: Final = 64 * 1024
"""Bytes from which on an answer is read beside the loop."""
RELOOKS: Final = 3
"""How often a stream may say that it ends before it does."""
_TAIL: Final = 32


class StreamSummary:
    """One request: what goes upstream, what the client is told about it, and what whoever watches is."""

    def __init__(
        self,
        *,
        ground: Runtime,
        tenant: str,
        asked: ClientRequest,
        model: str,
        exchange: Exchange | None,
        problem: str,
        secret: str,
        began: float,
    ) -> None:
        self.asked = asked
        self.exchange = exchange
        self.secret = secret
        """What no client may see."""
        self._ground, self._tenant, self._model, self._problem = ground, tenant, model, problem
        self._began = self._mark = began
        self._added = 0.0
        self._status = 0
        self._ended = False

    @property
    def body(self) -> bytes:
        return self.asked.body if self.exchange is None else self.exchange.body

    def sending(self) -> None:
        self._added += time.perf_counter() - self._mark

    def arrived(self, status: int) -> None:
        self._status, self._mark = status, time.perf_counter()

    def headers(self) -> list[tuple[bytes, bytes]]:
        exchange = self.exchange
        told: dict[bytes, Any] = {b"x-foveal-model": self._model}
        if exchange is None:
            told[b"x-foveal-reduced"] = f"none; not managed ({self._problem})"
        else:
            told[b"x-foveal-session"] = exchange.session
            told[b"x-foveal-tokens"] = exchange.tokens
            told[b"x-foveal-whole"] = exchange.whole
            told[b"x-foveal-reduced"] = exchange.reduced
        return [(name, forwarded_headers.safe(value)) for name, value in told.items()]

    def failed(self, response: aiohttp.ClientResponse, error: bytes | None) -> Response:
        """The answer that is upstream's error."""
        response.release()
        self.end()
        body = forwarded_headers.without(self.secret, error or b"")
        made = Response(body, status_code=response.status)
        headers = forwarded_headers.back(response.raw_headers, self.secret)
        made.raw_headers = [*headers, (b"content-length", str(len(body)).encode()), *self.headers()]
        return made

    def end(self, status: int = 0) -> None:
        """It is over; `status` is what the client was told, if not upstream's."""
        exchange, now = self.exchange, time.perf_counter()
        if exchange is not None:
            exchange.end()
        if self._ended:
            return
        self._ended = True
        self._ground.tell(
            Exchanged(
                tenant=self._tenant,
                session=exchange.session if exchange else "",
                dialect=self.asked.dialect,
                model=self._model,
                status=status or self._status,
                seconds=now - self._began,
                added=self._added,
                tokens=exchange.tokens if exchange else 0,
                whole=exchange.whole if exchange else 0,
                recovered=exchange.recovered if exchange else 0,
                streamed=self.asked.streamed,
            )
        )


class ResponseStream(Response):
    """Passes on what upstream sends, and has it recorded."""

    def __init__(
        self,
        request: Request,
        response: aiohttp.ClientResponse,
        told: StreamSummary,
        begun: bytes,
        *,
        silence: float,
    ) -> None:
        """`begun` is what has been read of it already."""
        super().__init__(status_code=response.status)
        self._begun = begun
        self._request, self._response, self._told, self._silence = request, response, told, silence
        self._exchange = told.exchange if response.status == 200 else None
        """Who waits for the answer to be recorded; None when there is nothing to record any more."""
        self._kept: list[bytes] = []
        self._size = 0
        self._looked = time.monotonic()
        self._gone = 0.0
        """When it was found that the client has hung up."""
        self._looks = RELOOKS
        self.raw_headers = [*forwarded_headers.back(response.raw_headers, told.secret), *told.headers()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with self._response:
                if streams(self._response):
                    await self._streamed(send)
                else:
                    await self._at_once(send)
        except HttpError as refusal:
            self._told.end(refusal.status)
            raise
        finally:
            self._told.end()

    # ── both ways ────────────────────────────────────────────────────────────────────────────────────

    async def _at_once(self, send: Send) -> None:
        """An answer that is of use only as a whole: read first, so that its end is known before it is sent."""
        try:
            async for chunk in self._response.content.iter_any():
                self._keep(chunk)
                if self._size > upstream_reply.LARGEST:
                    break
        except (aiohttp.ClientError, OSError) as problem:
            silent = isinstance(problem, TimeoutError)
            raise HttpError(
                504 if silent else 502, "the provider's answer broke off", code="broken_off"
            ) from None
        body = forwarded_headers.without(self._told.secret, b"".join(self._kept))
        if self._size > upstream_reply.LARGEST:
            await self._larger(send, body)
            return
        if self._exchange is not None:
            self._exchange.ending = True
        await self._start(send, length=len(body))
        await self._send(send, body, more=False)
        await self._recorded(streamed=False)

    async def _larger(self, send: Send, begun: bytes) -> None:
        """More than can be kept: it passes."""
        self._kept, self._exchange = [], None
        await self._start(send)
        await self._send(send, begun)
        with suppress(aiohttp.ClientError, OSError):
            async for chunk in self._response.content.iter_any():
                await self._send(send, chunk)
                if await self._nobody_listens():
                    return
            await self._send(send, b"", more=False)

    async def _streamed(self, send: Send) -> None:
        await self._start(send)
        try:
            if self._begun:
                await self._passed(send, self._begun)
            async for chunk in self._response.content.iter_any():
                await self._passed(send, chunk)
                if await self._nobody_listens():
                    return
        except TimeoutError:
            told = f"the provider has not sent anything for {self._silence:,.0f} s (`server.silence`)"
            words = last_words(HttpError(504, told, code="upstream_silent"), face_of(self._request.url.path))
            await self._send(send, words)
            return
        except (aiohttp.ClientError, OSError):
            return  # the client's connection breaks off, as upstream's has
        await self._send(send, b"", more=False)
        await self._recorded(streamed=True)

    async def _passed(self, send: Send, chunk: bytes) -> None:
        """Pass on a piece; when it says that all has been said, that is recorded at once."""
        ends = False
        if self._exchange is not None:
            ends = upstream_reply.ending(
                b"".join((*self._kept[-1:], chunk))[-len(chunk) - _TAIL :], self._told.asked.dialect
            )
            self._keep(chunk)
            if self._size > upstream_reply.LARGEST:
                self._kept, self._exchange = [], None
            elif ends:
                self._exchange.ending = True
        await self._send(send, chunk)
        if ends and self._looks > 0:
            self._looks -= 1
            await self._recorded(streamed=True)

    # ── its parts ────────────────────────────────────────────────────────────────────────────────────

    async def _start(self, send: Send, *, length: int | None = None) -> None:
        headers = self.raw_headers
        if length is not None:
            headers = [*headers, (b"content-length", str(length).encode())]
        await send({"type": "http.response.start", "status": self.status_code, "headers": headers})

    async def _send(self, send: Send, chunk: bytes, *, more: bool = True) -> None:
        """Pass on a piece, unless nobody takes it any more."""
        chunk = forwarded_headers.without(self._told.secret, chunk)
        if not self._gone:
            try:
                async with asyncio.timeout(self._silence):
                    await send({"type": "http.response.body", "body": chunk, "more_body": more})
            except (TimeoutError, OSError):
                self._gone = time.monotonic()

    def _keep(self, chunk: bytes) -> None:
        self._size += len(chunk)
        self._kept.append(chunk)

    async def _nobody_listens(self) -> bool:
        """The client has hung up, and the answer has had all the time that it gets after that."""
        now = time.monotonic()
        if not self._gone and now - self._looked > LOOK_EVERY:
            self._looked = now
            if await self._request.is_disconnected():
                self._gone = now
        return bool(self._gone) and (now - self._gone > AFTER_ALL or self._exchange is None)

    async def _recorded(self, *, streamed: bool) -> None:
        """Have the answer recorded, if all of it is here."""
        exchange = self._exchange
        if exchange is None:
            return
        read = partial(upstream_reply.read, b"".join(self._kept), self._told.asked.dialect, streamed=streamed)
        # A long one takes a while to read, and others are waiting.
        answer = read() if self._size < LONG else await asyncio.to_thread(read)
        if answer is not None:
            self._exchange = None
            with suppress(FovealError):  # the client brings its answer along with its next request
                await exchange.answered(answer)


def streams(response: aiohttp.ClientResponse) -> bool:
    """It comes as events."""
    return response.headers.get("content-type", "").lower().startswith("text/event-stream")
