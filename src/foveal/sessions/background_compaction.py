"""Background compaction: a model writes one summary at a time while the session continues.

`run_dialogue_async` runs one summary dialogue in an event loop; `BackgroundCompaction` holds its task and result.

1. Only a request that would not fit without the summary waits for it.
2. A result is used only if the range it was written from is unchanged; otherwise it is discarded, and that is
   recorded with its cost, as soon as it is written.
3. Cancelling leaves nothing behind: a summary is recorded whole, or not at all, by the holder of the session's
   lock.
4. There is always an outcome, whatever the models do: the ledger needs no model.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from foveal.core.compaction.health import CompactionHealth, CompactionOutcome
from foveal.core.compaction.plan import range_fingerprint
from foveal.core.compaction.summariser import (
    DialogueRun,
    Summariser,
    SummaryProgress,
    SummaryRequest,
    read_complete,
)
from foveal.core.compaction.summariser_protocol import Draft
from foveal.core.compaction.summary import ledger_summary
from foveal.core.engine.summary_job import SummaryJob, failed_compaction
from foveal.core.log.events import CompactionFailed
from foveal.core.view.view import View
from foveal.sessions.offload import offload

# ── Running a summary dialogue in an event loop ────────────────────────────────────────────────────────
# A summariser may be an async function, an async generator, or a callable that returns an awaitable. Callables that
# are not async, and streams that block, run in threads.


async def run_dialogue_async(run: DialogueRun, *, events: int = 0) -> CompactionOutcome:
    """Run a dialogue about so many events to its outcome in an event loop."""
    requests = run.requests()
    try:
        while (request := await offload(partial(next, requests, None), events=events)) is not None:
            with run.errors_as_failures():
                call, summary_request = await offload(partial(run.prepare, request), events=events)
                run.accept(await _collect_draft(await _call(call, summary_request), run))
    finally:
        with suppress(ValueError):  # cancelled while a thread works on it, which then ends by itself
            run.close()
    return run.outcome


async def _call(call: Callable[[SummaryRequest], Any], request: SummaryRequest) -> Any:
    functions = (call, getattr(call, "__call__", call))  # noqa: B004 - an instance may have an async __call__
    is_async = any(inspect.iscoroutinefunction(f) or inspect.isasyncgenfunction(f) for f in functions)
    reply = call(request) if is_async else await asyncio.to_thread(_call_in_thread, call, request)
    return await reply if isinstance(reply, Awaitable) else reply


def _call_in_thread(call: Callable[[SummaryRequest], Any], request: SummaryRequest) -> Any:
    try:
        return call(request)
    except StopIteration as stop:  # a future cannot carry it: the await would never end
        raise RuntimeError("it raised StopIteration") from stop


async def _collect_draft(reply: Any, run: DialogueRun) -> Draft:
    draft = read_complete(reply)
    if draft is not None:
        return draft
    text = ""
    async for chunk in reply if isinstance(reply, AsyncIterable) else _iterate_in_threads(iter(reply)):
        text = run.append_chunk(text, chunk)
    return Draft(text=text)


async def _iterate_in_threads(stream: Iterator[object]) -> AsyncIterator[object]:
    """Yield the chunks of a blocking stream, each read in a thread."""
    end = object()
    while (chunk := await asyncio.to_thread(next, stream, end)) is not end:
        yield chunk


# ── Background compaction ──────────────────────────────────────────────────────────────────────────────

RANGE_CHANGED: Final = "what it was written from has changed meanwhile"
"""The problem that is recorded for a summary of a range that changed. The text enters the log and must not
change."""


class BackgroundCompaction:
    """Writes the summaries of one session."""

    def __init__(
        self,
        summarisers: Sequence[Summariser],
        *,
        prompt: str = "",
        clock: Callable[[], float],
        progress: Callable[[SummaryProgress], None] | None = None,
    ) -> None:
        self.summarisers: tuple[Summariser, ...] = tuple(summarisers)
        self._prompt = prompt
        self._clock = clock
        self._progress = progress
        self._job: SummaryJob | None = None
        self._task: asyncio.Task[CompactionOutcome] | None = None
        self._last_taken: tuple[SummaryJob, asyncio.Task[CompactionOutcome]] | None = None

    def for_another_session(self) -> BackgroundCompaction:
        """Return another `BackgroundCompaction` with the same summarisers."""
        return BackgroundCompaction(
            self.summarisers, prompt=self._prompt, clock=self._clock, progress=self._progress
        )

    @property
    def is_idle(self) -> bool:
        """Whether no summary is being written, and no written one waits to be taken."""
        return self._task is None

    def may_ask_model(self, health: CompactionHealth) -> bool:
        """Return whether there is a model that has not failed too often."""
        return bool(self.summarisers) and not health.is_broken

    def start(self, job: SummaryJob) -> None:
        """Start to write a summary, and return at once."""
        assert self._task is None, "one summary at a time"
        self._job = job
        self._task = asyncio.create_task(self._write(job))

    async def wait(self) -> None:
        """Wait until the summary is written. Cancelling the wait does not cancel the writing."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def take(self, view: View) -> CompactionOutcome | None:
        """Return the outcome of a finished summary, once; a failure if its range has changed in `view`."""
        task, job = self._task, self._job
        if task is None or job is None or not task.done():
            return None
        self._task = self._job = None
        self._last_taken = job, task
        outcome = _outcome(task, job)
        if outcome is None or isinstance(outcome, CompactionFailed):
            return outcome
        if range_fingerprint(view, job.plan) == job.fingerprint:
            return outcome
        return failed_compaction(job.plan, RANGE_CHANGED, outcome)

    @property
    def taken_focus(self) -> str:
        """The focus of the summary that was taken last."""
        return "" if self._last_taken is None else self._last_taken[0].plan.focus

    def is_outdated(self, view: View) -> bool:
        """Return whether the range of the summary, written or not, has changed. An expansion ends with the user's
        next message and does not count."""
        job = self._job
        return (
            job is not None and not view.expansions and range_fingerprint(view, job.plan) != job.fingerprint
        )

    def take_outdated(self, view: View) -> CompactionOutcome | None:
        """Return, once, the failure of a finished summary whose range has changed in `view`."""
        return self.take(view) if self.is_outdated(view) else None

    def give_back(self) -> None:
        """Put back the last taken outcome, which was not recorded because another writer was faster. The next
        `take` compares it with what that writer appended."""
        if self._last_taken is not None and self._task is None:
            self._job, self._task = self._last_taken
        self._last_taken = None

    async def close(self) -> None:
        """Cancel what is being written and discard it."""
        task, self._task, self._job = self._task, None, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _write(self, job: SummaryJob) -> CompactionOutcome:
        """Return the outcome of a job, by the first model that succeeds or else by the ledger."""
        if not self.summarisers:
            return await offload(partial(ledger_summary, job.source), events=len(job.source.events))
        begin = partial(job.dialogue, self.summarisers, prompt=self._prompt)
        run = DialogueRun(
            await offload(begin, events=len(job.fitted.facts)),  # it joins the texts of the whole request
            self.summarisers,
            build_request=job.request,
            clock=self._clock,
            progress=_from_any_thread(self._progress),
        )
        return await run_dialogue_async(run, events=len(job.source.events))


def _from_any_thread(
    progress: Callable[[SummaryProgress], None] | None,
) -> Callable[[SummaryProgress], None] | None:
    """Return a function that calls `progress` in the thread of the running event loop."""
    if progress is None:
        return None
    loop, own = asyncio.get_running_loop(), threading.get_ident()

    def report(state: SummaryProgress) -> None:
        if threading.get_ident() == own:
            progress(state)
        else:
            loop.call_soon_threadsafe(progress, state)

    return report


def _outcome(task: asyncio.Task[CompactionOutcome], job: SummaryJob) -> CompactionOutcome | None:
    if task.cancelled():
        return None
    problem = task.exception()
    if problem is not None:
        return failed_compaction(job.plan, f"{type(problem).__name__}: {problem}")
    return task.result()
