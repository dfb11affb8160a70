"""HTTP protocol with limits on headers and bodies, for clients that close one direction.

uvicorn's parser has no such limits, and drops a request when the client ends its side of the connection:

1. The headers of a request have at most `MAX_HEADER_BYTES` bytes and arrive within `HEADERS_TIMEOUT_S` seconds.
2. Of a body, at least `MIN_BODY_BYTES_PER_CHECK` bytes arrive in each `BODY_CHECK_INTERVAL_S` seconds, or its end,
   except while the server itself has paused reading.
3. The rest of a body whose response has already begun is read and discarded for one more interval; then the
   connection is closed.
4. After a refusal, what the client still sends is discarded for a while: closing the connection at once would reset
   it, and the client would lose the response.
5. A client that ends its side after a complete request gets its response. One that has closed the connection
   altogether looks the same until the first bytes of the response are sent; the request is processed either way.
   `asgi_extensions` tells an application that the client has ended its side.
6. A request line with a whole URL (`GET http://name/path`) names a host, as the Host header does. If the two
   differ, the application sees both, and refuses the request as one with two Host headers.

The module needs httptools, which is not installed on Windows: `listener` imports it only where it is there.
"""

from __future__ import annotations

import re
from asyncio import TimerHandle, Transport
from functools import partial
from typing import Any, Final, Literal

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from foveal.web.asgi_extensions import mark_client_ended, offer_write_now
from foveal.web.http_errors import HttpError, encode_json, error_body
from foveal.web.http_headers import MAX_HEADER_BYTES, REQUEST_LINE_HOST, SECURITY_HEADERS

HEADERS_TIMEOUT_S: Final = 30.0
BODY_CHECK_INTERVAL_S: Final = 30.0
MIN_BODY_BYTES_PER_CHECK: Final = 16 * 1024
MAX_DISCARDED_BYTES: Final = 1 << 20
"""Bytes that are discarded after a refusal."""
MAX_DISCARDING_S: Final = 2.0
_AUTHORITY_END: Final = re.compile(rb"[/?#]")


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's httptools protocol, most of which is C, with the limits of this module."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._expected: Literal["headers", "body", ""] = ""
        """The part of a request that must arrive now."""
        self._received = 0
        """Bytes of that part since the last check, without those that arrived in the same read as its beginning."""
        self._is_new = False
        """The part began in the read that is being parsed."""
        self._was_answered = False
        """The last check found that the response had begun before the body was complete."""
        self._timer: TimerHandle | None = None
        self._has_ended = False
        """The client has ended its side."""
        self._to_discard: int | None = None
        """Bytes to discard before the connection is closed; None unless the request was refused."""

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect("headers")
        self._schedule_check()

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect("")
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._to_discard is not None:
            self._discard(len(data))
            return
        super().data_received(data)
        if not self._expected or self.transport.is_closing():
            return
        if not self._is_new:
            self._received += len(data)
        self._is_new = False
        if self._expected == "headers" and self._received > MAX_HEADER_BYTES:
            self._refuse(431, "the headers of this request are too large")
        elif self._timer is None:
            self._schedule_check()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._expect("headers")

    def on_headers_complete(self) -> None:
        self._expect("body")
        if not self.url.startswith(b"/"):
            self._add_host_of_url()
        super().on_headers_complete()
        if self.cycle is not None:
            scope: Any = self.cycle.scope
            offer_write_now(scope, partial(_write_now, self.cycle))

    def _add_host_of_url(self) -> None:
        """Add the host that the request line names, unless the Host header names it too; as the Host header if
        there is none."""
        _, separator, rest = self.url.partition(b"://")
        authority = _AUTHORITY_END.split(rest if separator else self.url, maxsplit=1)[0]
        hosts = [value.lower() for name, value in self.headers if name == b"host"]
        if hosts != [authority.lower()]:
            self.headers.append((REQUEST_LINE_HOST if hosts else b"host", authority))

    def on_message_complete(self) -> None:
        self._expect("")
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "this is not an HTTP request")

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing: a request to upgrade the protocol is answered as plain HTTP."""

    # ── The end of the client's side ─────────────────────────────────────────────────────────────────

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep the connection open while a complete request waits for its response."""
        waits = self.cycle is not None and not self.cycle.response_complete and not self._expected
        self._has_ended = waits and self._to_discard is None
        if self._has_ended:
            mark_client_ended(self.cycle.scope)  # type: ignore[arg-type]
        return self._has_ended

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._has_ended and self.cycle.response_complete and not self.pipeline:
            self.transport.close()

    # ── Time limits ──────────────────────────────────────────────────────────────────────────────────

    def _expect(self, part: Literal["headers", "body", ""]) -> None:
        """Begin a new part of the request.

        The timer starts only if the part is still incomplete after the current read (`data_received`), because most
        requests arrive in one read.
        """
        self._expected = part
        self._received = 0
        self._is_new = True
        self._was_answered = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule_check(self) -> None:
        delay = BODY_CHECK_INTERVAL_S if self._expected == "body" else HEADERS_TIMEOUT_S
        self._timer = self.loop.call_later(delay, self._check)

    def _check(self) -> None:
        """Refuse the request if too little arrived since the last check."""
        self._timer = None
        if self._expected == "headers":
            self._refuse(408, "the headers of this request did not arrive in time")
        elif self.cycle.response_started and self._was_answered:
            self.transport.close()
        elif (
            self._received >= MIN_BODY_BYTES_PER_CHECK or self.flow.read_paused or self.cycle.response_started
        ):
            self._was_answered = self.cycle.response_started
            self._received = 0
            self._schedule_check()
        else:
            self._refuse(408, "the body of this request did not arrive in time")

    def _refuse(self, status: int, detail: str) -> None:
        """Send an error in place of the application, and close the connection after what the client still sends; at
        once if a response is being sent."""
        self._expect("")
        if self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete:
            self.transport.close()  # the client would read an error as a part of the response before it
        elif not self.transport.is_closing():
            self.transport.write(_raw_response(status, detail))
            self.transport.write_eof()
            self._to_discard = MAX_DISCARDED_BYTES
            self.loop.call_later(MAX_DISCARDING_S, self.transport.close)

    def _discard(self, size: int) -> None:
        assert self._to_discard is not None
        self._to_discard -= size
        if self._to_discard < 0:
            self.transport.close()


def _write_now(cycle: RequestResponseCycle, body: bytes) -> bool:
    """Write a part of a chunked body as `cycle.send` does, unless that has to wait or to do anything else."""
    is_writable = cycle.chunked_encoding and cycle.response_started and not cycle.response_complete
    if not is_writable or cycle.disconnected or cycle.flow.write_paused or not body:
        return False
    cycle.transport.write(b"%x\r\n%b\r\n" % (len(body), body))
    return True


def _raw_response(status: int, detail: str) -> bytes:
    error = HttpError(status, detail)
    body = encode_json(error_body(error, "problem"))
    headers = (
        (b"content-type", b"application/problem+json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
        (b"cache-control", b"no-store"),
        *SECURITY_HEADERS,
    )
    lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
    return f"HTTP/1.1 {status} {error.title}\r\n".encode() + lines + b"\r\n" + body
