"""Clients that close one direction of the connection, and refusals that reach clients which still send."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from foveal.web.http_headers import MAX_HEADER_BYTES
from support.provider_stand_in import StandIn
from support.serve_process import DEADLINE, ask, until
from support.upstream import ProxyServer

PROVIDER = {"FOVEAL_PROVIDER": "support.serve_process:scripted"}


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[ProxyServer]:
    with (
        StandIn() as provider,
        ProxyServer(tmp_path, openai=provider.openai, environment=PROVIDER) as server,
    ):
        yield server


def half_closed(proxy: ProxyServer, data: bytes) -> bytes:
    """Send a request, end this side of the connection, and return what comes until the server ends its side."""
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=DEADLINE) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65_536), b""))


def post(path: str, body: object) -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


@pytest.mark.parametrize("stream", [False, True])
def test_a_half_closed_client_gets_the_answer_of_a_turn(proxy: ProxyServer, stream: bool) -> None:
    assert ask(proxy.url, "/api/sessions", body={"id": "demo"}).status == 201
    come = half_closed(proxy, post("/api/sessions/demo/turns", {"text": "hello", "stream": stream}))
    assert come.startswith(b"HTTP/1.1 200 ")
    assert (b"event: outcome" if stream else b'"why":"answered"') in come


@pytest.mark.parametrize("stream", [False, True])
def test_a_half_closed_drop_in_client_gets_its_answer(proxy: ProxyServer, stream: bool) -> None:
    body = {"model": "gpt-4.1", "messages": [{"role": "user", "content": "hello"}], "stream": stream}
    come = half_closed(proxy, post("/v1/chat/completions", body))
    assert come.startswith(b"HTTP/1.1 200 ")
    assert (b"data: [DONE]" if stream else b'"choices"') in come


def test_a_half_closed_client_gets_the_answers_to_several_requests(proxy: ProxyServer) -> None:
    one = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert half_closed(proxy, one * 3).count(b"HTTP/1.1 200 ") == 3


@pytest.mark.parametrize(
    "data", [b"GET /healthz HTTP/1.1\r\nHost: loc", post("/api/sessions", {"id": "a"})[:-1]]
)
def test_an_incomplete_request_of_a_half_closed_client_ends_the_connection(
    proxy: ProxyServer, data: bytes
) -> None:
    assert b" 20" not in half_closed(proxy, data)
    assert until(lambda: ask(proxy.url, "/healthz").json["sessions_open"] == 0)


@pytest.mark.parametrize("factor", [1, 8])
def test_a_header_that_is_too_large_is_refused_with_a_body_that_arrives(
    proxy: ProxyServer, factor: int
) -> None:
    header = b"X: " + b"y" * MAX_HEADER_BYTES * factor
    sent = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + header + b"\r\n\r\n"
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=DEADLINE) as connection:
        connection.sendall(sent)
        come = b"".join(iter(lambda: connection.recv(65_536), b""))
    head, _, body = come.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 431 ")
    assert json.loads(body)["status"] == 431
