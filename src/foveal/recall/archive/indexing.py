"""Which sessions are indexed first for a search, and the task that indexes the rest.

A look at the bytes of sessions takes about a fiftieth of the time of indexing them. It finds words by their
letters, so a text that differs from the query only in accents is found once it is indexed.
"""

from __future__ import annotations

import asyncio
import time
import collections
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import takewhile
from math import inf, log
from typing import Final

from foveal.errors import FovealError
from foveal.stores.search_words import Tokenizer

INDEXING_SLICE_S: Final = 2.0
"""Time for which the task indexes until it lists the sessions again; it makes way for a call before that."""
OTHER_BUILDER_S: Final = 1.0
"""Time after which the task looks again whether another process has stopped building."""
_MIN_LETTERS: Final = 2


class RawScan:
    """What the bytes of sessions say of one query."""

    def __init__(self, query: str) -> None:
        terms = Tokenizer().terms(query)
        stems = [_same_letters(term.word, term.stem) or term.word for term in terms]
        can_scan = all(stem.isascii() and len(stem) >= _MIN_LETTERS for stem in stems)
        self.words: Final = [stem.encode() for stem in dict.fromkeys(stems)] if can_scan else []
        """What is looked for; none if bytes cannot show it, as of scripts that are written in several ways."""
        self._found: dict[str, frozenset[int]] = {}

    def add(self, handle: str, found: frozenset[int] | None) -> None:
        """Note which words a session has; None if that is not known."""
        if found is not None:
            self._found[handle] = found

    @property
    def without_words(self) -> set[str]:
        """The sessions that have none of the words."""
        return {handle for handle, found in self._found.items() if not found}

    def scores(self) -> dict[str, float]:
        """Return how well each session may answer; a word counts more if few sessions have it."""
        counts = collections.Counter(number for found in self._found.values() for number in found)
        rarity = {number: log(1 + len(self._found) / count) for number, count in counts.items()}
        return {handle: sum(rarity[number] for number in found) for handle, found in self._found.items()}


def _same_letters(word: str, stem: str) -> str:
    """Return how both begin: they differ at their ends, such as "pony" and "poni", the stem of "ponies" too."""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(word, stem, strict=False))
    return "".join(letter for letter, _ in same)


class BackgroundIndexing:
    """A task that indexes what searches have left, in slices between which calls pass; for one event loop."""

    def __init__(self, work: Callable[[float], Awaitable[bool]], may_build: Callable[[], bool]) -> None:
        """`work` indexes for so many seconds and returns whether there is more; `may_build` says whether no other
        process does it."""
        self._work = work
        self._may_build = may_build
        self._task: asyncio.Task[None] | None = None
        self._until = 0.0
        self._stopped = asyncio.Event()

    @property
    def is_running(self) -> bool:
        return self._task is not None and not self._task.done()

    def start(self, *, for_s: float = inf) -> None:
        """Index for at most so long from now on."""
        self._until = time.monotonic() + for_s
        if not self.is_running and not self._stopped.is_set():
            self._task = asyncio.ensure_future(self._run())

    async def stop(self) -> None:
        """End the task for good after its current step, because a thread of it cannot be interrupted."""
        self._until = 0.0
        self._stopped.set()
        if self._task is not None:
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        with suppress(FovealError, OSError):  # a call reports it
            while time.monotonic() < self._until:
                if not self._may_build():
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._stopped.wait(), OTHER_BUILDER_S)
                elif not await self._work(INDEXING_SLICE_S):
                    return
