"""Streams that are forwarded without waking a task, and what wakes it nevertheless."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from threading import Event
from time import sleep

import aiohttp
import pytest

from foveal.core.log import ModelSaid, text_of
from foveal.server.proxy.response_stream import StreamRelay
from support.upstream import DEADLINE, Piece, ProxyServer, RawUpstream, ReceivedRequest, stream_head, until

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def relay_all(
    pieces: list[bytes], *, taken: frozenset[bytes] | None = None
) -> tuple[list[bytes], list[bytes], int]:
    """Send the pieces one by one; return the chunks that were forwarded at once (only those in `taken`, if given),
    the others, and how many connections two requests needed."""
    connections, forwarded, left = 0, list[bytes](), list[bytes]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        # The socket has to be closed here: one that stays open is a warning in whatever test runs next.
        with closing(writer), suppress(asyncio.IncompleteReadError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(HEAD)
                for piece in pieces:
                    await asyncio.sleep(0.01)
                    writer.write(piece)
                if not pieces[-1].endswith(b"0\r\n\r\n"):
                    return

    def forward(chunk: bytes) -> bool:
        if taken is None or chunk in taken:
            forwarded.append(chunk)
            return True
        return False

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, aiohttp.ClientSession() as client:
        for _ in range(2):
            async with client.get(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/") as response:
                relay = StreamRelay(response, forward)
                while chunk := await relay.next_chunk():
                    left.append(chunk)
    return forwarded, left, connections


def test_chunks_are_forwarded_at_once_and_the_connection_is_used_again() -> None:
    pieces = [framed(b"one"), framed(b"two"), b"0\r\n\r\n"]
    assert asyncio.run(relay_all(pieces)) == ([b"one", b"two"] * 2, [], 1)


def test_a_chunk_that_is_not_taken_is_returned() -> None:
    pieces = [framed(b"one"), b"3\r\ntw", b"o\r\n", framed(b"three") + b"0\r\n\r\n"]
    taken = frozenset({b"one", b"o"})
    assert asyncio.run(relay_all(pieces, taken=taken)) == ([b"one", b"o"] * 2, [b"tw", b"three"] * 2, 1)


def test_chunks_after_one_that_is_not_taken_stay_behind_it() -> None:
    pieces = [framed(b"one"), framed(b"two") + framed(b"three"), framed(b"four"), b"0\r\n\r\n"]
    taken = frozenset({b"one", b"three", b"four"})
    assert asyncio.run(relay_all(pieces, taken=taken)) == ([b"one", b"four"] * 2, [b"twothree"] * 2, 1)


def test_a_stream_that_breaks_off_raises_the_error_of_the_connection() -> None:
    with pytest.raises(aiohttp.ClientPayloadError):
        asyncio.run(relay_all([framed(b"one"), b"5\r\ntw"]))


def test_a_client_that_stops_reading_for_a_while_gets_every_byte(tmp_path: Path) -> None:
    events = [
        b'data: {"choices": [{"index": 0, "delta": {"content": "%d %b"}}]}\n\n' % (number, b"x" * 2_000)
        for number in range(4_000)
    ]
    end = b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'

    def script(seen: ReceivedRequest, number: int) -> Iterator[Piece]:
        yield stream_head()
        yield from events
        yield end

    with RawUpstream(script) as upstream, ProxyServer(tmp_path, openai=upstream.openai) as proxy:
        body = json.dumps(
            {"model": "gpt-4.1", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
        )
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8_192)
            client.settimeout(DEADLINE)
            client.connect(("127.0.0.1", proxy.port))
            client.sendall(
                b"POST /v1/chat/completions HTTP/1.0\r\nhost: 127.0.0.1\r\nauthorization: Bearer sk-0123456789\r\n"
                b"content-length: %d\r\n\r\n%b" % (len(body), body.encode())
            )
            sleep(0.5)  # the buffers on the way are full: the server waits for this client
            received = bytearray()
            while data := client.recv(65_536):
                received += data
        assert _unframed(bytes(received)) == b"".join(events) + end
        (session,) = proxy.sessions()
        until(lambda: any(isinstance(event.fact, ModelSaid) for event in proxy.events(session)))
        said = [
            text_of(event.fact.content)
            for event in proxy.events(session)
            if isinstance(event.fact, ModelSaid)
        ]
        assert said == ["".join(f"{number} {'x' * 2_000}" for number in range(4_000))]


CHUNK = b'data: {"choices": [{"index": 0, "delta": {"content": "%b"}}]}\n\n'
END = b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'


def post(proxy: ProxyServer, *, key: bytes = b"authorization: Bearer sk-0123456789\r\n") -> socket.socket:
    """Return a connection on which a request for a stream was sent."""
    body = b'{"model": "gpt-4.1", "stream": true, "messages": [{"role": "user", "content": "Hi"}]}'
    client = socket.create_connection(("127.0.0.1", proxy.port), timeout=DEADLINE)
    client.sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n%bcontent-length: %d\r\n\r\n%b"
        % (key, len(body), body)
    )
    return client


def receive(client: socket.socket, until_bytes: bytes) -> bytes:
    received = bytearray()
    while until_bytes not in received and (data := client.recv(65_536)):
        received += data
    return bytes(received)


def answers(proxy: ProxyServer) -> list[str]:
    (session,) = proxy.sessions()
    return [
        text_of(event.fact.content) for event in proxy.events(session) if isinstance(event.fact, ModelSaid)
    ]


def test_bytes_that_are_no_request_end_the_stream_and_its_reply_is_recorded(tmp_path: Path) -> None:
    has_sent_bytes = Event()

    def script(seen: ReceivedRequest, number: int) -> Iterator[Piece]:
        yield stream_head()
        yield CHUNK % b"one "
        assert has_sent_bytes.wait(DEADLINE)
        yield from (CHUNK % b"two", END)

    with RawUpstream(script) as upstream, ProxyServer(tmp_path, openai=upstream.openai) as proxy:
        with post(proxy) as client:
            receive(client, b"one ")
            client.sendall(b"\0\1 no request\r\n\r\n")
            assert receive(client, b"never") == b""
            has_sent_bytes.set()
        until(lambda: answers(proxy) == ["one two"])


@pytest.mark.parametrize("length", [1, 12, 26])
def test_the_servers_own_key_is_not_returned_in_two_chunks(tmp_path: Path, length: int) -> None:
    own = b"sk-of-the-server-0123456789"
    begin, rest = CHUNK.split(b"%b")
    split = [begin + own[:length], own[length:] + rest]
    pieces = [CHUNK % b"one", *split, begin + own[:length], *split, END, own[:length]]

    def script(seen: ReceivedRequest, number: int) -> Iterator[Piece]:
        yield stream_head()
        for piece in pieces:
            yield piece
            sleep(0.05)

    keys = {"OPENAI_API_KEY": own.decode()}
    with (
        RawUpstream(script) as upstream,
        ProxyServer(tmp_path, openai=upstream.openai, environment=keys) as proxy,
        post(proxy, key=b"") as client,
    ):
        received = _unframed(receive(client, b"\r\n0\r\n\r\n"))
    assert received == b"".join(pieces).replace(own, b"***")


def _unframed(response: bytes) -> bytes:
    """Return the body of a chunked response."""
    _, _, rest = response.partition(b"\r\n\r\n")
    found: list[bytes] = []
    while size := int(rest[: rest.index(b"\r\n")], 16):
        start = rest.index(b"\r\n") + 2
        found.append(rest[start : start + size])
        rest = rest[start + size + 2 :]
    return b"".join(found)
