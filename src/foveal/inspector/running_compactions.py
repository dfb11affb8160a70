"""Compactions that pages have started: one at a time for a session, and none without its page.

A model can write for minutes. When the client of the request disconnects, or the server stops, the compaction is
cancelled: nothing is recorded, and its provider is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from starlette.requests import Request

from foveal.web.asgi_extensions import wait_for_client_end
from foveal.web.http_errors import HttpError

_RUNNING: Final = (
    "a summary of this session is being written: wait for it, or cancel it on the page that started it"
)
_CANCELLED: Final = "the summary was cancelled; nothing was recorded"
T = TypeVar("T")


class RunningCompactions:
    """The compactions of one server."""

    def __init__(self) -> None:
        self._sessions: set[tuple[str, str]] = set()

    async def run(
        self,
        session: tuple[str, str],
        work: Coroutine[Any, Any, T],
        *,
        request: Request,
        stopping: asyncio.Event,
    ) -> T:
        """Return what `work` returns; raises `HttpError` if one is running, or if it was cancelled."""
        if session in self._sessions:
            work.close()
            raise HttpError(409, _RUNNING, code="compaction_running")
        self._sessions.add(session)
        try:
            return await _while_connected(work, request, stopping)
        finally:
            self._sessions.discard(session)


async def _while_connected(work: Coroutine[Any, Any, T], request: Request, stopping: asyncio.Event) -> T:
    task = asyncio.ensure_future(work)
    ends = [asyncio.ensure_future(wait_for_client_end(request)), asyncio.ensure_future(stopping.wait())]
    try:
        await asyncio.wait({task, *ends}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in (task, *ends):
            each.cancel()  # does nothing to one that is done
        await asyncio.wait({task, *ends})  # the provider is closed then
    if task.cancelled():
        raise HttpError(409, _CANCELLED, code="cancelled")
    return task.result()
