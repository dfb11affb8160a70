"""A turn as others see it: what it tells while it runs, and how it ended.

Whoever follows it may come late, leave and come back: the turn goes on without them, and they get it from the
beginning, or from where they were.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable
from operator import itemgetter
from typing import Final, Literal

import msgspec

from foveal.happenings import Answered, Happening, Streamed
from foveal.report import Report

PIECES: Final = 1_000
"""What a turn that has ended tells whole, until the next one comes."""
_number: Final = itemgetter(0)
Why = Literal["answered", "steps", "denied", "stopped", "failed"]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a turn ended."""

    why: Why
    text: str = ""
    """The model's last answer."""
    problem: str = ""
    """What went wrong, for people."""
    sort: str = ""
    """The sort of that: the `sort` of a `ProviderError`, or the name of another error."""
    report: Report | None = None
    kept: bool = False
    """The message is still on the desk, and will be answered later."""


class Turn:
    """One user request and all that follows until the final answer."""

    def __init__(self, id: str, *, tenant: str, session: str, key: str) -> None:
        self.id = id
        self.tenant = tenant
        self.session = session
        self.key = key
        """What whoever spoke called the message: the same key again is the same turn."""
        self.state: Literal["waiting", "running", "ended"] = "waiting"
        self._told: list[tuple[int, Happening]] = []
        self._count = 0
        self._text = ""
        self._outcome: Outcome | None = None
        self._news = asyncio.Event()
        self._stop: Callable[[], object] | None = None
        self._stopped = False

    # ── for whoever follows it ───────────────────────────────────────────────────────────────────────

    async def follow(self) -> AsyncIterator[Happening]:
        """All that it tells, from the beginning on."""
        async for _, happening in self.numbered():
            yield happening

    async def numbered(self, *, after: int = 0) -> AsyncIterator[tuple[int, Happening]]:
        """The same with numbers from 1 on, after the one that was seen last. Some time after it has ended, the
        pieces of its answers are no longer told, only the answers."""
        while True:
            news = self._news
            start = bisect_right(self._told, after, key=_number)
            for number, happening in self._told[start:]:
                after = number
                yield number, happening
            if self._outcome is not None:
                return
            if self._news is news:
                await news.wait()

    async def outcome(self) -> Outcome:
        """How it ended; waits until it has."""
        while self._outcome is None:
            await self._news.wait()
        return self._outcome

    def stop(self) -> None:
        """End it, as Ctrl-C would: what was said so far is stored."""
        self._stopped = True
        if self._stop is not None:
            self._stop()

    # ── for whoever runs it ──────────────────────────────────────────────────────────────────────────

    @property
    def stopped(self) -> bool:
        return self._stopped

    @property
    def text(self) -> str:
        """The newest answer."""
        return self._text

    def begin(self, stop: Callable[[], object]) -> None:
        assert self._outcome is None, "a turn that has ended does not begin again"
        self.state = "running"
        self._stop = stop
        if self._stopped:
            stop()

    def tell(self, happening: Happening) -> None:
        self._count += 1
        self._told.append((self._count, happening))
        if isinstance(happening, Answered):
            self._text = happening.text
        self._wake()

    def end(self, outcome: Outcome) -> None:
        """The first end counts."""
        if self._outcome is None:
            self.state = "ended"
            self._stop = None
            self._outcome = outcome
            if len(self._told) > PIECES:
                self.thin()
            self._wake()

    def thin(self) -> None:
        """Forget the pieces of the answers: who follows an old turn gets the answers."""
        self._told = [told for told in self._told if not isinstance(told[1], Streamed)]

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
