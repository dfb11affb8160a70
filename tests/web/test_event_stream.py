"""Server-sent events whose client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import anyio

from foveal.web.event_stream import with_keep_alive


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
