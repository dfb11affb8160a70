"""Server-sent events whose client leaves, or may not read on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import anyio

from foveal.web.event_stream import while_allowed, with_keep_alive


def test_a_client_that_leaves_ends_the_stream_without_an_error() -> None:
    """Starlette cancels a response by a scope that cancels every further wait too."""

    async def scene() -> str:
        ended = asyncio.Event()

        async def silent() -> AsyncGenerator[bytes, None]:
            try:
                await asyncio.sleep(60)
                yield b"data: {}\n\n"
            finally:
                await asyncio.sleep(0)
                ended.set()

        with anyio.CancelScope() as scope:
            asyncio.get_running_loop().call_later(0.02, scope.cancel)
            async for _ in with_keep_alive(silent(), interval=60):
                raise AssertionError("a silent stream has no events")
        await asyncio.wait_for(ended.wait(), 1)
        return "ended"

    assert asyncio.run(scene()) == "ended"


def test_a_stream_ends_for_a_caller_that_may_not_read_on() -> None:
    async def scene() -> list[bytes]:
        ended, checks = asyncio.Event(), iter([True, True, False])

        async def one_then_silence() -> AsyncGenerator[bytes, None]:
            try:
                yield b"data: 1\n\n"
                await asyncio.sleep(60)
            finally:
                ended.set()

        async def may_read_on() -> bool:
            return next(checks)

        stream = while_allowed(one_then_silence(), may_read_on, last_event=b"event: login\n\n", interval=0.01)
        sent = [event async for event in stream]
        await asyncio.wait_for(ended.wait(), 1)
        return sent

    assert asyncio.run(scene()) == [b"data: 1\n\n", b"event: login\n\n"]
