"""HTTP as it comes from the network, with bounds that the parser itself does not have: on what comes before a body,
and on how long that may take."""

from __future__ import annotations

from asyncio import TimerHandle, Transport
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from foveal.apps.server.headers import LARGEST, SECURITY
from foveal.apps.server.refusals import Refusal, encoded, written

PATIENCE: Final = 30.0
"""Seconds that a client may take to send the headers of a request."""


class Bounded(HttpToolsProtocol):
    """uvicorn's own, which is written in C for the most part."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._head = 0
        self._late: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        self._relax()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._late is not None and not self.transport.is_closing():
            self._head += len(data)
            if self._head > LARGEST:
                self._refuse(431, "the headers of this request are too large")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._expect()

    def on_headers_complete(self) -> None:
        self._relax()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "this is no HTTP request")

    def _unsupported_upgrade_warning(self) -> None:
        """Whoever asks for another protocol gets this one."""

    def _expect(self) -> None:
        """Headers come from here on."""
        self._relax()
        self._head = 0
        self._late = self.loop.call_later(PATIENCE, self._too_late)

    def _relax(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _too_late(self) -> None:
        self._late = None
        self._refuse(408, "the headers of this request did not come in time")

    def _refuse(self, status: int, detail: str) -> None:
        """Say no in place of the application, which has not seen the request."""
        self._relax()
        if not self.transport.is_closing():
            self.transport.write(_answer(status, detail))
            self.transport.close()


def _answer(status: int, detail: str) -> bytes:
    refusal = Refusal(status, detail)
    body = encoded(written(refusal, "problem"))
    headers = (
        (b"content-type", b"application/problem+json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
        (b"cache-control", b"no-store"),
        *SECURITY,
    )
    lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
    return f"HTTP/1.1 {status} {refusal.title}\r\n".encode() + lines + b"\r\n" + body
