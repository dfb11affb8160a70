"""Work that takes longer than an event loop may wait, in threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Final, TypeVar

from foveal.stores.compression import LinePacker
from foveal.stores.search_words import Tokenizer

T = TypeVar("T")

MAX_INLINE_WORK_BYTES: Final = 64 << 10
"""Bytes that are processed on the event loop; more of them go to a thread."""


class _OfThread(threading.local):
    """The objects of one thread, made when it first needs them."""

    def __init__(self) -> None:
        self.packer = LinePacker()
        self.tokenizer = Tokenizer()


_of_thread: Final = _OfThread()


def packer() -> LinePacker:
    """Return the current thread's packer."""
    return _of_thread.packer


def tokenizer() -> Tokenizer:
    """Return the current thread's tokenizer."""
    return _of_thread.tokenizer


async def outside_loop(size: int, work: Callable[[], T]) -> T:
    """Run `work`, which processes `size` bytes; in a thread if these are many."""
    return work() if size <= MAX_INLINE_WORK_BYTES else await asyncio.to_thread(work)
