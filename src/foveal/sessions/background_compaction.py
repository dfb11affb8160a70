"""Summaries that a model writes while the session goes on: one at a time, in the background.

1. Nobody waits for a summary, except a request that would not fit without it.
2. A result is used only if what it was written from is still there and still the same; otherwise it is dropped, and
   that is recorded.
3. Cancelling leaves nothing: a summary is recorded whole or not at all, by whoever holds the session.
4. Whatever the models do, there is an outcome: at last the ledger, which needs none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from foveal.core.compaction.health import CompactionHealth
from foveal.core.compaction.plan import source
from foveal.core.compaction.summariser import Summariser, SummaryProgress, awrite
from foveal.core.compaction.writing import CompactionOutcome
from foveal.core.engine.summary_job import SummaryJob, failed
from foveal.core.log.events import CompactionFailed
from foveal.core.view.view import View

CHANGED: Final = "what it was written from has changed meanwhile"


class BackgroundCompaction:
    """The background of one session."""

    def __init__(
        self,
        summarisers: Sequence[Summariser],
        *,
        prompt: str = "",
        clock: Callable[[], float],
        progress: Callable[[SummaryProgress], None] | None = None,
    ) -> None:
        self.summarisers = tuple(summarisers)
        self._prompt = prompt
        self._clock = clock
        self._progress = progress
        self._job: SummaryJob | None = None
        self._task: asyncio.Task[CompactionOutcome] | None = None
        self._taken: tuple[SummaryJob, asyncio.Task[CompactionOutcome]] | None = None

    def another(self) -> BackgroundCompaction:
        """One like this for another session."""
        return BackgroundCompaction(
            self.summarisers, prompt=self._prompt, clock=self._clock, progress=self._progress
        )

    @property
    def busy(self) -> bool:
        return self._task is not None and not self._task.done()

    @property
    def idle(self) -> bool:
        """Nothing is being written, and nothing that was waits to be taken."""
        return self._task is None

    def asks(self, record: CompactionHealth) -> bool:
        """There is a model, and it has not failed too often."""
        return bool(self.summarisers) and not record.broken

    def begin(self, job: SummaryJob) -> None:
        """Write in the background; the caller goes on at once."""
        assert self._task is None, "one at a time"
        self._job = job
        self._task = asyncio.create_task(self.write(job))

    async def wait(self) -> None:
        """Until what is being written is done. Who cancels this wait does not cancel the writing."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def take(self, view: View) -> CompactionOutcome | None:
        """What was written since the last time, if it is done: as it is if its source is unchanged."""
        task, job = self._task, self._job
        if task is None or job is None or not task.done():
            return None
        self._task = self._job = None
        self._taken = job, task
        outcome = _outcome(task, job)
        if outcome is None or isinstance(outcome, CompactionFailed):
            return outcome
        if source(view, job.plan) == job.fingerprint:
            return outcome
        return failed(job.plan, CHANGED, outcome)

    def give_back(self) -> None:
        """What was taken last could not be recorded: somebody else appended first. It may still be true."""
        if self._taken is not None and self._task is None:
            self._job, self._task = self._taken
        self._taken = None

    async def close(self) -> None:
        """Stop what is being written; nothing of it remains."""
        task, self._task, self._job = self._task, None, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def write(self, job: SummaryJob) -> CompactionOutcome:
        """The outcome of a job, by the first model that can, or by the ledger."""
        return await awrite(
            job.talk(self.summarisers, prompt=self._prompt),
            self.summarisers,
            requests=job.request,
            clock=self._clock,
            progress=self._progress,
        )


def _outcome(task: asyncio.Task[CompactionOutcome], job: SummaryJob) -> CompactionOutcome | None:
    if task.cancelled():
        return None
    problem = task.exception()
    if problem is not None:
        return failed(job.plan, f"{type(problem).__name__}: {problem}")
    return task.result()
