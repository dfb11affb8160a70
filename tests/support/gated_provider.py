"""A provider that waits for a gate, and a decorator that runs coroutine tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import wraps
from typing import Any, Final

from foveal.ports import Reply, ReplyPiece
from foveal.testing import Scripted

DEADLINE: Final = 240.0
"""Seconds that a test may take on a busy machine."""


def run(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @wraps(test)
    def sync(*args: Any, **kwargs: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), DEADLINE))  # type: ignore[arg-type]

    return sync


class GatedProvider(Scripted):
    """Answers after its gate is set."""

    def __init__(self, *answers: Any, **more: Any) -> None:
        super().__init__(*answers, **more)
        self.asked_once = asyncio.Event()
        self.gate = asyncio.Event()

    async def send(self, request: Any, *, max_tokens: int) -> AsyncIterator[ReplyPiece | Reply]:
        self.asked_once.set()
        await self.gate.wait()
        async for piece in super().send(request, max_tokens=max_tokens):
            yield piece
