"""Reader of one session of a source, which follows it while it grows.

A store is asked for its end; a transcript is read again when its file has changed. The longer a look takes, the
longer a follower rests after it, so that a large file that grows does not keep a processor busy.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import eq
from typing import TYPE_CHECKING, Final

from foveal.core.engine.state import stored_counts
from foveal.core.log.events import Event
from foveal.core.tokens.message_tokens import MessageCounts
from foveal.errors import UnknownSession
from foveal.inspector.sessions.source import (
    MAX_PART_EVENTS,
    ActionResult,
    LogEnd,
    NotWritable,
    OfferedWriter,
    SessionAbout,
    SessionAction,
    SessionMissing,
)
from foveal.recall.archive.listing import ListedSession
from foveal.recall.archive.source import RecallProblem, SessionLog

if TYPE_CHECKING:
    from foveal.inspector.sessions.actions import SessionActor

POLL_S: Final = 0.5
"""Pause between two looks at a session that is followed."""
REST_PER_WORK: Final = 5
"""A follower rests at least this many times as long as its last look took."""


class ArchivedSession:
    """A session of an archive source."""

    def __init__(
        self,
        listed: ListedSession,
        about: SessionAbout,
        *,
        first: Event | None = None,
        actor: SessionActor,
        next_generation: Callable[[], int],
    ) -> None:
        self.entry: Final = listed.entry
        self.source: Final = listed.source
        self.first: Final = first
        """The first event, as far as it is known."""
        self._about = about
        self._actor = actor
        self._next_generation = next_generation
        self._log: SessionLog | None = None
        self._generation = 0
        self._looking = asyncio.Lock()
        self._looked_at = 0.0

    @property
    def about(self) -> SessionAbout:
        return self._about

    def set_about(self, about: SessionAbout) -> None:
        """Replace what is known of the session."""
        self._about = about

    def begin_generation(self) -> None:
        """Say that earlier events may be others now."""
        self._generation = self._next_generation()

    async def end(self, *, max_age: float = 0.0) -> LogEnd:
        """Return where the log ends now, or ended up to `max_age` seconds ago."""
        log = await self._look(max_age)
        return LogEnd(log.end, self._generation)

    async def read(self, first: int, last: int) -> list[Event]:
        return await self.pick(range(max(first, 0), min(last + 1, first + MAX_PART_EVENTS)))

    async def pick(self, seqs: Sequence[int]) -> list[Event]:
        log = self._log or await self._look()
        wanted = [seq for seq in seqs if seq >= 0]
        if wanted and max(wanted) >= log.end:
            log = await self._look()
        with _missing():
            return await log.pick([seq for seq in wanted if seq < log.end])

    async def counts(self) -> MessageCounts | None:
        log = self._log or await self._look()
        with _missing():
            checkpoint = await log.checkpoint()
        return None if checkpoint is None else stored_counts(checkpoint.state)

    async def wait(self, after: LogEnd, *, timeout: float) -> LogEnd:
        until = time.monotonic() + timeout
        while True:
            began = time.monotonic()
            end = await self.end(max_age=POLL_S / 2)  # one look is enough for all who wait
            now = time.monotonic()
            if end != after or now >= until:
                return end
            await asyncio.sleep(min(max(POLL_S, REST_PER_WORK * (now - began)), until - now))

    async def act(self, action: SessionAction) -> ActionResult:
        if refusal := self._actor.refusal(self.source):
            raise NotWritable(refusal)
        return await self._actor.act(self.source, self.entry.key, action)

    async def writers(self) -> tuple[OfferedWriter, ...]:
        return await self._actor.writers()

    async def _look(self, max_age: float = 0.0) -> SessionLog:
        """Return the log as it is now, or was up to `max_age` seconds ago."""
        async with self._looking:
            if self._log is not None and time.monotonic() - self._looked_at < max_age:
                return self._log
            looked_at = time.monotonic()
            with _missing():
                log, before = await self.source.open(self.entry), self._log
            if log is not before and not await _continues(before, log):
                self.begin_generation()
            self._log, self._looked_at = log, looked_at
            return log


async def _continues(before: SessionLog | None, log: SessionLog) -> bool:
    """Return whether all events that `before` had are the same in `log`."""
    if before is None:
        return log.is_append_only
    if log.end < before.end:
        return False
    if log.is_append_only:
        return True
    seqs = range(before.end)
    return await asyncio.to_thread(eq, await before.pick(seqs), await log.pick(seqs))


@contextmanager
def _missing() -> Iterator[None]:
    """Raise `SessionMissing` for a session that does not exist any more."""
    try:
        yield
    except (UnknownSession, RecallProblem) as problem:
        raise SessionMissing(str(problem)) from None
