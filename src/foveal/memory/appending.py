"""Appends to the log of a memory beside other writers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final

from foveal.core.log.events import Event
from foveal.errors import Conflict
from foveal.ports import Store

MAX_APPEND_CONFLICTS: Final = 200
"""Conflicts in a row with other writers that are resolved by reading again."""


async def append_decided(
    store: Store, log: str, decide: Callable[[], list[Event]], refresh: Callable[[], Awaitable[None]]
) -> list[Event]:
    """Append the events that `decide` returns for the newest state, and return them.

    If another writer was first, `refresh` reads what it wrote, and `decide` decides again. Raises `Conflict` if
    that does not end."""
    await refresh()
    for attempt in range(MAX_APPEND_CONFLICTS):
        events = decide()
        if not events:
            return []
        try:
            await store.append(log, events)
        except Conflict:
            if attempt == MAX_APPEND_CONFLICTS - 1:
                raise
            await asyncio.sleep(random.uniform(0, min(0.05, 0.001 * 2**attempt)))
            await refresh()
            continue
        return events
    raise AssertionError("the last attempt returns or raises")
