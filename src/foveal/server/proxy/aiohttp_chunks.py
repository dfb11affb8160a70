"""Relay of an upstream's stream: most chunks are forwarded in the callback that receives them.

aiohttp wakes the reading task for every chunk, which takes several times as long as forwarding the chunk. While a
task waits in `StreamRelay.next_chunk`, the body hands each chunk to a function instead, and only a chunk that the
function does not take wakes the task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import aiohttp

_WAITING: Final[dict[aiohttp.StreamReader, StreamRelay]] = {}
"""The relays whose task waits, by the body that they read."""


class StreamRelay:
    def __init__(self, response: aiohttp.ClientResponse, forward: Callable[[bytes], bool]) -> None:
        """`forward` returns whether it has forwarded the chunk; it must not raise."""
        self._content = response.content
        self._forward = forward
        self._waiter: asyncio.Future[None] | None = None

    async def next_chunk(self) -> bytes:
        """Return the next bytes that `forward` does not take; b"" at the end. Raises the errors of aiohttp."""
        if not _CAN_REPLACE_CLASS:
            return await self._content.readany()
        while not (chunk := self._content.read_nowait()) and not self._content.is_eof():
            await self._wait()
        return chunk

    async def _wait(self) -> None:
        content = self._content
        self._waiter = asyncio.get_running_loop().create_future()
        _WAITING[content], content.__class__ = self, _RelayedContent
        try:
            await self._waiter
        finally:
            content.__class__ = aiohttp.StreamReader
            del _WAITING[content]

    def take(self, chunk: bytes) -> bool:
        """Forward a chunk; return False if the task has to do it."""
        return self._waiter is not None and not self._waiter.done() and self._forward(chunk)

    def wake(self) -> None:
        """Let the task read what was not forwarded."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class _RelayedContent(aiohttp.StreamReader):
    """The body of a response while its relay waits. aiohttp's parser creates the object, and only its class can be
    replaced: it must have the same attributes."""

    __slots__ = ()

    def feed_data(self, data: bytes, size: int = 0) -> bool:
        relay = _WAITING[self]
        if relay.take(data):
            return False
        has_more = super().feed_data(data, size)
        relay.wake()
        return has_more

    def feed_eof(self) -> None:
        super().feed_eof()
        _WAITING[self].wake()

    def set_exception(self, exc: BaseException, *cause: BaseException) -> None:
        super().set_exception(exc, *cause)
        _WAITING[self].wake()


def _can_replace_class() -> bool:
    """Return whether the body of this version of aiohttp has a layout that allows it."""
    body = aiohttp.StreamReader.__new__(aiohttp.StreamReader)
    try:
        body.__class__ = _RelayedContent
    except TypeError:
        return False
    return True


_CAN_REPLACE_CLASS: Final = _can_replace_class()
"""Without it every chunk wakes the task."""
