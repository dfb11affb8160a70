"""What an errand does in its session, and when it is tried again.

A run says its prompt once: the message's key is the errand's. If the model could not be reached it is asked again
later; after the last attempt, or when there is no use in another, a note in the session says so.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Final

from foveal.core.log.events import Noted
from foveal.errors import PASSING, FovealError, NothingToAsk, StoreError, UnknownSession
from foveal.server.jobs.dbos_engine import Verdict
from foveal.server.jobs.queue import Job, JobQueue
from foveal.server.jobs.schedule_store import Result, ScheduleStore
from foveal.server.live_session import LiveSession
from foveal.server.service import Service
from foveal.server.turns import Turn, TurnOutcome

TOPIC: Final = "schedule"
TRY_AGAIN: Final = frozenset((*PASSING, "StoreError", "StoreUnusable", "Conflict"))
"""Sorts of failures that may be over when it is tried again."""
_log = logging.getLogger("foveal.work")


class JobRunner:
    def __init__(self, service: Service, errands: JobQueue, timetable: ScheduleStore, *, tries: int) -> None:
        self._service = service
        self._errands = errands
        self._timetable = timetable
        self._tries = tries
        self._spoken: set[str] = set()
        """Errands whose prompts are in their sessions; known to be so by this process."""

    async def attempt(self, id: str, number: int) -> Verdict:
        """Try an errand; the number counts from 0. Whatever happens there is a verdict, unless the server ends."""
        try:
            return await self._attempt(id, number)
        except (
            StoreError
        ) as problem:  # of our own file: nothing can be noted, so it is never given up for that
            _log.error("an errand has to wait: %s", problem)
            return "later"

    async def abandon(self, id: str) -> None:
        """The worker has given up on an errand: processes died over it again and again."""
        errand = await self._errands.get(id)
        if errand is not None:
            await self._give_up(errand, "the server broke off each time", tries=0)

    # ── one attempt ──────────────────────────────────────────────────────────────────────────────────────

    async def _attempt(self, id: str, number: int) -> Verdict:
        errand = await self._errands.get(id)
        if errand is None:
            return "done"
        if errand.kind == "prepare":
            await self._prepare(errand)
            return await self._end(errand)
        outcome = await self._run(errand, number)
        if outcome.why == "stopped" and self._service.ground.closing:
            raise asyncio.CancelledError  # the server ends: the errand stays open
        if outcome.why != "failed":
            return await self._end(errand, result="stopped" if outcome.why == "stopped" else "answered")
        if outcome.code in TRY_AGAIN and number + 1 < self._tries:
            await self._tell(errand, "retrying")
            return "later"
        await self._give_up(errand, outcome.problem or outcome.code, tries=number + 1)
        return "done"

    async def _prepare(self, errand: Job) -> None:
        try:
            room = await self._service.tenant(errand.tenant).room(errand.session)
            await room.prepare()
        except UnknownSession:
            pass  # it was deleted meanwhile
        except Exception as problem:  # noqa: BLE001 (the next turn asks for it again, or does it itself)
            _log.warning("a summary was not written: %s", type(problem).__name__)

    async def _run(self, errand: Job, number: int) -> TurnOutcome:
        try:
            tenant = self._service.tenant(errand.tenant)
            room = await tenant.ensure(errand.session, title=errand.schedule)
            turn = await self._asked(room, errand, number)
            return TurnOutcome(why="answered") if turn is None else await turn.outcome()
        except StoreError as problem:
            gone = isinstance(problem, UnknownSession)
            return TurnOutcome(
                why="failed", problem=str(problem), code="UnknownSession" if gone else "StoreError"
            )
        except Exception as problem:  # noqa: BLE001 (an errand must never end the worker)
            told = str(problem) if isinstance(problem, FovealError) else ""
            return TurnOutcome(why="failed", problem=told, code=type(problem).__name__)

    async def _asked(self, room: LiveSession, errand: Job, number: int) -> Turn | None:
        """Say the prompt if that was not done yet. If it has failed, ask the model once more, or wait for who does;
        None when the session has gone on without it."""
        turn = await self._said(room, errand)
        while True:
            newest = await self._service.ground.desk.newest(room.tenant, room.id)
            if newest is None:
                return None
            # A server that ended has stopped it; what a person stops while it runs never comes here.
            mine = newest.key == errand.key or newest.kind == "again"
            broken_off = mine and newest.why == "stopped"
            if not number and not broken_off:
                return turn
            if newest.state != "done":
                return await room.say("", key=newest.key)
            if not broken_off and newest.why != "failed":
                return None
            with suppress(NothingToAsk):  # somebody else was faster
                return await room.again()

    async def _said(self, room: LiveSession, errand: Job) -> Turn:
        """Say the prompt, after those of the session that were asked for before it: jobs overtake each other."""
        for earlier in await self._errands.queue(errand):
            if earlier.id not in self._spoken and earlier.id != errand.id:
                await room.say(earlier.prompt, key=earlier.key)
                self._spoken.add(earlier.id)
        turn = await room.say(errand.prompt, key=errand.key)
        self._spoken.add(errand.id)
        return turn

    # ── ends ─────────────────────────────────────────────────────────────────────────────────────────────

    async def _end(self, errand: Job, *, result: Result = "answered") -> Verdict:
        await self._tell(errand, result)
        await self._errands.done(errand.id)
        self._spoken.discard(errand.id)
        return "done"

    async def _tell(self, errand: Job, result: Result) -> None:
        if errand.schedule:
            await self._timetable.tell(errand.tenant, errand.schedule, result)

    async def _give_up(self, errand: Job, problem: str, *, tries: int) -> None:
        count = "" if tries < 2 else f" after {tries} attempts"
        what = f"schedule {errand.schedule!r}" if errand.schedule else "background run"
        text = f"{what} ({errand.key}): no answer{count}: {problem}"
        _log.warning("%s of tenant %s was given up%s", what, errand.tenant, count)
        with suppress(FovealError):  # the session is gone, or cannot be written to
            await _note(await self._service.tenant(errand.tenant).room(errand.session), text)
        await self._end(errand, result="failed")


async def _note(room: LiveSession, text: str) -> None:
    """Leave a note when the session is at rest, unless it is there."""
    note = Noted(text=text, topic=TOPIC)
    count = (await room.info()).events
    if any(event.fact == note for event in await room.events(first=max(0, count - 50))):
        return
    await room.note(text, topic=TOPIC)
