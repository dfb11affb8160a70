"""HTTP as it comes from the network, with bounds that the parser itself does not have: on what comes before a body,
and on how long that and the body may take.

1. The headers of a request must be there within `PATIENCE` seconds.
2. Of a body at least `SLOWEST` bytes must come every `TRICKLE` seconds, or its end, unless we do not read them.
3. What is left of a body that nobody wants any more is passed over for that time, and then the connection ends.
"""

from __future__ import annotations

from asyncio import TimerHandle, Transport
from typing import Any, Final, Literal

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from foveal.apps.server.headers import LARGEST, SECURITY
from foveal.apps.server.refusals import Refusal, encoded, written

PATIENCE: Final = 30.0
TRICKLE: Final = 30.0
SLOWEST: Final = 16 * 1024


class Bounded(HttpToolsProtocol):
    """uvicorn's own, which is written in C for the most part."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._awaited: Literal["headers", "body", ""] = ""
        """What must come now."""
        self._come = 0
        """Bytes of it since it was last looked at, without those that came together with its beginning."""
        self._begun = False
        """It has begun in what is being read."""
        self._unwanted = False
        """It was seen before that the body comes after its answer."""
        self._timer: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect("headers")
        self._look_later()

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect("")
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._awaited or self.transport.is_closing():
            return
        if not self._begun:
            self._come += len(data)
        self._begun = False
        if self._awaited == "headers" and self._come > LARGEST:
            self._refuse(431, "the headers of this request are too large")
        elif self._timer is None:
            self._look_later()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._expect("headers")

    def on_headers_complete(self) -> None:
        self._expect("body")
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._expect("")
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "this is no HTTP request")

    def _unsupported_upgrade_warning(self) -> None:
        """Whoever asks for another protocol gets this one."""

    # ── time ─────────────────────────────────────────────────────────────────────────────────────────

    def _expect(self, part: Literal["headers", "body", ""]) -> None:
        """This comes from here on. The clock is set when what has come is read, and the part still not whole:
        most requests come in one piece."""
        self._awaited = part
        self._come = 0
        self._begun = True
        self._unwanted = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_later(self) -> None:
        self._timer = self.loop.call_later(TRICKLE if self._awaited == "body" else PATIENCE, self._look)

    def _look(self) -> None:
        """So much time has passed: has enough come?"""
        self._timer = None
        if self._awaited == "headers":
            self._refuse(408, "the headers of this request did not come in time")
        elif self.cycle.response_started and self._unwanted:
            self.transport.close()
        elif self._come >= SLOWEST or self.flow.read_paused or self.cycle.response_started:
            self._unwanted = self.cycle.response_started
            self._come = 0
            self._look_later()
        else:
            self._refuse(408, "the body of this request did not come in time")

    def _refuse(self, status: int, detail: str) -> None:
        """Say no in place of the application."""
        self._expect("")
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
