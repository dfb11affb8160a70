"""Responses in flight, which a retry of the same request joins.

Client libraries send a request again after a time-out, while upstream still answers the first one. The retry gets
the same response from its first byte on, and no second request goes upstream.

1. A retry has the same tenant, key, address and body as a request in flight. In addition, it says that it is a
   retry (`Idempotency-Key`, or the retry count of the OpenAI and Anthropic libraries), or the first client has
   disconnected. Equal requests without such a sign are separate: a client may want several answers to one question.
2. The first request reads the response to its end, whether or not its own client still reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from foveal.transport.upstream_reply import MAX_RECORDED_REPLY_BYTES

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
