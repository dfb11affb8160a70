"""Runs one job in its session and decides about retries.

A run submits its prompt once: the message has the job's key. If the model could not be reached, a later attempt
asks it again. After the last attempt, or an error that a retry cannot fix, a note in the session says so.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Final

from foveal.core.log.events import Noted
from foveal.errors import TRANSIENT_CODES, BadSetting, FovealError, NothingToAsk, StoreError, UnknownSession
from foveal.server.jobs.backend import AttemptResult
from foveal.server.jobs.queue import Job, JobQueue
from foveal.server.jobs.schedule_store import RunResult, ScheduleStore
from foveal.server.live_session import LiveSession
from foveal.server.service import Service
from foveal.server.turns import STOPPING_CODE, Turn, TurnOutcome

RETRYABLE_CODES: Final = frozenset((*TRANSIENT_CODES, "StoreError", "StoreUnusable", "Conflict", "LeaseLost"))
"""Codes of failures that a retry may fix."""
RETRY_DELAYS_S: Final = (60.0, 300.0, 900.0, 3_600.0, 3_600.0, 3_600.0, 3_600.0, 3_600.0)
"""Seconds before each retry; a job has one attempt more than there are delays."""


SCHEDULE_NOTE_TOPIC: Final = "schedule"
_log = logging.getLogger("foveal.work")


class JobRunner:
    def __init__(
        self, service: Service, queue: JobQueue, schedules: ScheduleStore, *, max_attempts: int
    ) -> None:
        self._service = service
        self._queue = queue
        self._schedules = schedules
        self._max_attempts = max_attempts
        self._submitted: set[str] = set()
        """Ids of jobs whose prompts this process has submitted."""

    async def attempt(self, id: str, number: int) -> AttemptResult:
        """Run an attempt; `number` counts from 0. Returns a result for every error, unless the server stops."""
        try:
            return await self._attempt(id, number)
        except StoreError as problem:
            # The server's own database failed: giving up could not be recorded, so the job is retried.
            _log.error("a job has to wait: %s", problem)
            return "later"

    async def give_up(self, id: str) -> None:
        """Give up a job that the engine has given up because processes died while running it."""
        job = await self._queue.get(id)
        if job is not None:
            await self._give_up(job, "the server broke off each time", attempts=0)

    # ── An attempt ───────────────────────────────────────────────────────────────────────────────────────

    async def _attempt(self, id: str, number: int) -> AttemptResult:
        job = await self._queue.get(id)
        if job is None:
            return "done"
        if job.kind == "prepare":
            await self._prepare(job)
            return await self._end(job)
        outcome = await self._run(job, number)
        if outcome.why == "stopped" and self._service.runtime.is_closing:
            raise asyncio.CancelledError  # the server stops: the job stays open
        if outcome.why in ("answered", "stopped"):
            return await self._end(job, result=outcome.why)
        if outcome.code in RETRYABLE_CODES and number + 1 < self._max_attempts:
            await self._schedules.mark_retrying(job)
            return "later"
        await self._give_up(job, outcome.problem or outcome.code, attempts=number + 1)
        return "done"

    async def _prepare(self, job: Job) -> None:
        try:
            live = await self._service.tenant(job.tenant).session(job.session)
            await live.prepare()
        except UnknownSession:
            pass  # the session was deleted meanwhile
        except Exception as problem:  # noqa: BLE001 (the next turn asks again or writes it itself)
            _log.warning("a summary was not written: %s", type(problem).__name__)

    async def _run(self, job: Job, number: int) -> TurnOutcome:
        try:
            tenant = self._service.tenant(job.tenant)
            live = await tenant.ensure(job.session, title=job.schedule, agent=job.agent)
            if job.agent not in ("", live.agent_name):
                raise BadSetting("agent", job.agent, _agent_text(live))
            outcome = await self._outcome(live, job, number)
            while outcome.code == STOPPING_CODE and not self._service.runtime.is_closing:
                # Another process answered in this session and was stopped: this one asks again.
                outcome = await self._outcome(live, job, max(number, 1))
            return outcome
        except StoreError as problem:
            is_unknown = isinstance(problem, UnknownSession)
            return TurnOutcome(
                why="failed", problem=str(problem), code="UnknownSession" if is_unknown else "StoreError"
            )
        except Exception as problem:  # noqa: BLE001 (a job must never end the worker)
            text = str(problem) if isinstance(problem, FovealError) else ""
            return TurnOutcome(why="failed", problem=text, code=type(problem).__name__)

    async def _outcome(self, live: LiveSession, job: Job, number: int) -> TurnOutcome:
        turn = await self._turn(live, job, number)
        return TurnOutcome(why="answered") if turn is None else await turn.outcome()

    async def _turn(self, live: LiveSession, job: Job, number: int) -> Turn | None:
        """Submit the prompt unless that was done. If its turn failed, ask the model again, or return the turn that
        already does; None if the session has continued without an answer to the prompt."""
        turn = await self._submit(live, job)
        while True:
            newest = await self._service.runtime.inbox.newest(live.tenant, live.id)
            if newest is None:
                return None
            # A stopped server left the turn "stopped"; a turn that a user stops ends the job and never gets here.
            is_own = newest.key == job.key or newest.kind == "again"
            was_interrupted = is_own and newest.why == "stopped"
            if not number and not was_interrupted:
                return turn
            if newest.state != "done":
                return await live.submit("", key=newest.key, checks_text=False)
            if not was_interrupted and newest.why != "failed":
                return None
            with suppress(NothingToAsk):  # another request was faster: look again
                return await live.retry()

    async def _submit(self, live: LiveSession, job: Job) -> Turn:
        """Submit the prompt after those of earlier jobs of the session: the engine may start jobs in any order."""
        for earlier in await self._queue.open_runs_up_to(job):
            if earlier.id not in self._submitted and earlier.id != job.id:
                await live.submit(earlier.prompt, key=earlier.key, checks_text=False)
                self._submitted.add(earlier.id)
        turn = await live.submit(job.prompt, key=job.key, checks_text=False)
        self._submitted.add(job.id)
        return turn

    # ── The end of a job ─────────────────────────────────────────────────────────────────────────────────

    async def _end(self, job: Job, *, result: RunResult = "answered") -> AttemptResult:
        await self._schedules.end_job(job, result)
        self._submitted.discard(job.id)
        return "done"

    async def _give_up(self, job: Job, problem: str, *, attempts: int) -> None:
        if await self._queue.get(job.id) is None:
            return  # another executor has ended it
        count = "" if attempts < 2 else f" after {attempts} attempts"
        what = f"schedule {job.schedule!r}" if job.schedule else "background run"
        text = f"{what} ({job.key}): no answer{count}: {problem}"
        _log.warning("%s of tenant %s was given up%s", what, job.tenant, count)
        with suppress(FovealError):  # the session was deleted or cannot be written
            await _note(await self._service.tenant(job.tenant).session(job.session), text)
        await self._end(job, result="failed")


def _agent_text(live: LiveSession) -> str:
    own = f"has the agent {live.agent_name!r}" if live.agent_name else "has no agent"
    return f"session {live.id!r} exists and {own}"


async def _note(live: LiveSession, text: str) -> None:
    """Append a note to the session, unless one of its newest 50 events is the same note."""
    note = Noted(text=text, topic=SCHEDULE_NOTE_TOPIC)
    count = (await live.end()).next_seq
    if any(event.fact == note for event in await live.events(first=max(0, count - 50))):
        return
    await live.add_note(text, topic=SCHEDULE_NOTE_TOPIC)
