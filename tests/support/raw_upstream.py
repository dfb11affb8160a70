"""An upstream with scripted bytes: it needs nothing but the standard library."""

from __future__ import annotations

import os
import socket
import socketserver
import struct
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from time import sleep
from typing import Literal, Self

DEADLINE = 60.0


@dataclass
class ReceivedRequest:
    """A request that a `RawUpstream` upstream received."""

    line: str
    headers: dict[str, str]
    body: bytes


Piece = bytes | threading.Event | Literal["reset"]
"""Bytes to send, an event to wait for, or the reset of the connection."""
Script = Callable[[ReceivedRequest, int], Iterable[Piece]]


@dataclass
class RawUpstream:
    """Answers each request with the pieces of its script (by the request's number, from 1) and closes the
    connection."""

    script: Script
    seen: list[ReceivedRequest] = field(default_factory=list)

    def __enter__(self) -> Self:
        raw = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                line = self.rfile.readline().decode().strip()
                if not line:
                    return
                headers: dict[str, str] = {}
                while text := self.rfile.readline().decode().strip():
                    name, _, value = text.partition(":")
                    headers[name.lower()] = value.strip()
                seen = ReceivedRequest(
                    line, headers, self.rfile.read(int(headers.get("content-length", "0")))
                )
                raw.seen.append(seen)
                with suppress(OSError):
                    for piece in raw.script(seen, len(raw.seen)):
                        if isinstance(piece, bytes):
                            self.wfile.write(piece)
                        elif piece == "reset":
                            sleep(0.05)  # a reset discards what has not been read
                            linger = struct.pack("ii", 1, 0)
                            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                            os.close(self.connection.detach())
                        else:
                            assert piece.wait(DEADLINE)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            allow_reuse_address = True
            request_queue_size = 256

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def anthropic(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def openai(self) -> str:
        return f"{self.anthropic}/v1"


def answer(
    body: bytes, *, status: str = "200 OK", kind: str = "application/json", more: bytes = b""
) -> bytes:
    """Return a whole response as bytes."""
    length = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n".encode()
    return length + more + b"connection: close\r\n\r\n" + body


def stream_head(kind: str = "text/event-stream") -> bytes:
    """Return the head of a response that ends with its connection."""
    return f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\nconnection: close\r\n\r\n".encode()
