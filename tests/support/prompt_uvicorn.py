"""Servers of uvicorn in this process that stop at once.

uvicorn looks every 100 ms whether it has to stop, and then waits as long again for its connections. Nearly all of a
short test would be these two waits, so its pauses have a tenth of their length here.
"""

from __future__ import annotations

import asyncio
import types
from importlib import import_module
from typing import Final

SHARE: Final = 0.1


class _Asyncio(types.ModuleType):
    """`asyncio` with shorter pauses."""

    def __getattr__(self, name: str) -> object:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds * SHARE)


def shorten_pauses() -> None:
    vars(import_module("uvicorn.server"))["asyncio"] = _Asyncio("asyncio")
