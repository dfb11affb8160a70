"""Signals, and what they set in motion: what runs may finish, what takes too long is stopped and stored."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable
from typing import Any, Final

from foveal.apps.server.closing import Ending
from foveal.service import Service

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
TRICKLE: Final = 2.0
"""Seconds that answers get, after the turns that they tell of have ended, to be sent to their end."""


class Stop:
    """Whether the end was asked for: once, it takes its time; twice, it does not; the third signal kills."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.hurried = asyncio.Event()

    def listen(self) -> None:
        loop = asyncio.get_running_loop()
        for each in SIGNALS:
            loop.add_signal_handler(each, self.ask)

    def ask(self) -> None:
        if not self.asked.is_set():
            self.asked.set()
            return
        self.hurried.set()
        loop = asyncio.get_running_loop()
        for each in SIGNALS:
            loop.remove_signal_handler(each)


async def end(service: Service, ending: Ending, stop: Stop, *, grace: float) -> None:
    """Bring to an end what runs: turns first, then the answers that are still being sent."""
    loop = asyncio.get_running_loop()
    until = loop.time() + grace
    ending.begin()
    turns = asyncio.create_task(service.end_turns(grace=grace))
    if not await _before(turns, stop.hurried):
        for room in service.rooms:
            room.give_up()
        await turns
    flights = asyncio.create_task(ending.landed())
    left = 0.0 if stop.hurried.is_set() else max(TRICKLE, until - loop.time())
    await _before(flights, stop.hurried, timeout=left)
    flights.cancel()
    await ending.cut()


async def first_of(act: Awaitable[Any], event: asyncio.Event) -> bool:
    """Whether something was done before an event came; what was not done is given up. Raises what it raises."""
    task = asyncio.ensure_future(act)
    if not await _before(task, event):
        task.cancel()
        await asyncio.wait([task])
        return False
    task.result()
    return True


async def _before(task: asyncio.Future[Any], event: asyncio.Event, *, timeout: float | None = None) -> bool:
    """Wait for a task, but not longer than an event or a time; whether it is done."""
    waiting = asyncio.create_task(event.wait())
    try:
        await asyncio.wait([task, waiting], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    return task.done()
