"""A fake upstream that answers at once, and a minimal HTTP client.

    python -m bench.loopback        prints its port and serves until standard input ends
    python -m bench.loopback PORT   the same for a bare relay to this port, which the server is compared with

It implements the parts of OpenAI chat completions and of Gemini's `generateContent` that the benchmarks need. An
answer reports usage, estimated from the size of the request. A streamed answer has `PIECES` pieces, one every
`PAUSE` seconds, and no usage.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any, Final

PIECES: Final = 40
PAUSE: Final = 0.05
WORDS: Final = "a word and another one "
REPLY_TOKENS: Final = 120
BYTES_PER_TOKEN: Final = 4


def reply(prompt_tokens: int = 0) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt-4.1",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": WORDS * 20},
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": REPLY_TOKENS,
            "total_tokens": prompt_tokens + REPLY_TOKENS,
        },
    }


def gemini_reply(prompt_tokens: int) -> dict[str, Any]:
    content = {"role": "model", "parts": [{"text": WORDS * 20}]}
    return {
        "candidates": [{"index": 0, "content": content, "finishReason": "STOP"}],
        "usageMetadata": {
            "promptTokenCount": prompt_tokens,
            "candidatesTokenCount": REPLY_TOKENS,
            "totalTokenCount": prompt_tokens + REPLY_TOKENS,
        },
    }


def pieces(name: str) -> list[bytes]:
    """Return the events of a stream that contains its name in every piece."""
    frame = {"id": name, "object": "chat.completion.chunk", "created": 1, "model": "gpt-4.1"}
    deltas: list[dict[str, Any]] = [
        {"index": 0, "delta": {"role": "assistant", "content": f"{name}:{number} "}}
        for number in range(PIECES)
    ]
    deltas.append({"index": 0, "delta": {}, "finish_reason": "stop"})
    events = [f"data: {json.dumps({**frame, 'choices': [delta]})}\n\n".encode() for delta in deltas]
    return [*events, b"data: [DONE]\n\n"]


def streamed_text(name: str) -> str:
    """Return the text of the stream with this name."""
    return "".join(f"{name}:{number} " for number in range(PIECES))


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            fields = dict(line.split(b": ", 1) for line in head.lower().split(b"\r\n")[1:] if b": " in line)
            body = await reader.readexactly(int(fields.get(b"content-length", b"0")))
            if b'"stream":true' in body:
                await _stream(writer, json.loads(body)["messages"][-1]["content"])
            else:
                make = gemini_reply if b":generatecontent " in head.lower() else reply
                whole = json.dumps(make(len(body) // BYTES_PER_TOKEN)).encode()
                length = b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(whole)
                writer.write(b"HTTP/1.1 200 OK\r\n" + length + whole)
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def _stream(writer: asyncio.StreamWriter, name: str) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    for piece in pieces(name):
        writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        await asyncio.sleep(PAUSE)
    writer.write(b"0\r\n\r\n")


async def main() -> None:
    server = await asyncio.start_server(_serve, "127.0.0.1", 0, backlog=1_024, limit=1 << 24)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


async def relay(to: int) -> None:
    """Relay requests with aiohttp and nothing else: the least that a proxy in Python does."""
    import aiohttp
    from aiohttp import web

    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), auto_decompress=False
    ) as client:

        async def forward(request: web.Request) -> web.StreamResponse:
            url = f"http://127.0.0.1:{to}{request.path}"
            headers = {"authorization": request.headers.get("authorization", "")}
            async with client.post(url, data=await request.read(), headers=headers) as upstream:
                kept = {"content-type": upstream.headers["content-type"]}
                response = web.StreamResponse(status=upstream.status, headers=kept)
                await response.prepare(request)
                async for chunk in upstream.content.iter_any():
                    await response.write(chunk)
                await response.write_eof()
                return response

        app = web.Application(client_max_size=1 << 26)
        app.router.add_post("/{path:.*}", forward)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=1_024).start()
        print(runner.addresses[0][1], flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        await runner.cleanup()


class KeepAliveConnection:
    """A keep-alive connection."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def open(self) -> KeepAliveConnection:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 24)
        return self

    async def ask(self, body: bytes) -> bytes:
        """Send a request and return the body of the response."""
        return (await self.ask_timed(body))[0]

    async def ask_timed(self, body: bytes) -> tuple[bytes, float]:
        """Send a request; return the body of the response, and the seconds until its first byte."""
        start = time.perf_counter()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{self._port}\r\n"
        head += f"authorization: Bearer sk-bench-0123456789\r\ncontent-length: {len(body)}\r\n\r\n"
        self._writer.write(head.encode() + body)
        fields = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        if b"content-length:" in fields:
            length = int(fields.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
            return await self._reader.readexactly(length), time.perf_counter() - start
        found, first = b"", 0.0
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            first = first or time.perf_counter() - start
            found += await self._reader.readexactly(size)
            await self._reader.readexactly(2)
        await self._reader.readexactly(2)
        return found, first

    def close(self) -> None:
        self._writer.close()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        import uvloop  # as in `foveal serve`

        uvloop.run(relay(int(sys.argv[1])))
    else:
        asyncio.run(main())
