"""How one message from the inbox becomes a turn: heard once, answered once, and its end written down."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Final

from msgspec.structs import replace

from foveal.agent import Agent
from foveal.errors import FovealError, ProviderError
from foveal.events import Event, ModelSaid, Noted, UserSaid, calls_of, text_of
from foveal.happenings import Answered, Ended, Heard
from foveal.report import Report
from foveal.service.desk import Entry
from foveal.service.ground import Ground
from foveal.service.occurrences import TurnBegan, TurnEnded
from foveal.service.turns import Outcome, Turn, Why
from foveal.session import Session

TOPIC: Final = "message"
"""Of the note that stands before the user's words and names their turn."""


class Performance:
    """One turn of one session; who runs it has the session for himself."""

    def __init__(self, ground: Ground, agent: Agent, entry: Entry, turn: Turn) -> None:
        self._ground = ground
        self._agent = agent
        self._session = agent.session
        self._entry = entry
        self._turn = turn
        self._report: Report | None = None

    async def run(self) -> None:
        """Until the turn has ended, in whatever way, and the desk knows. Raises when the words cannot be stored in
        the session: then they stay on the desk."""
        turn, began, model = self._turn, time.monotonic(), self._agent.provider.name
        place = {"tenant": turn.tenant, "session": turn.session, "turn": turn.id, "model": model}

        def told(outcome: Outcome) -> None:
            seconds = time.monotonic() - began
            self._ground.tell(TurnEnded(**place, seconds=seconds, why=outcome.why, problem=outcome.sort))

        self._ground.tell(TurnBegan(**place))
        try:
            answer = await self._heard()  # whoever stops the turn stops what comes after this
        except FovealError as problem:
            said = f"the message is kept, and will be answered later: {problem}"
            outcome = Outcome(why="failed", problem=said, sort=type(problem).__name__, kept=True)
            turn.end(outcome)
            told(outcome)
            raise
        outcome = await self._outcome(asyncio.create_task(self._perform(answer)))
        try:
            await self._ground.desk.done(
                self._entry.id, why=outcome.why, problem=outcome.problem, sort=outcome.sort
            )
        finally:  # the log has it: if the desk has not, it will be found there
            turn.end(outcome)
            told(outcome)
        if outcome.why != "failed":
            await self._look_ahead()

    async def _look_ahead(self) -> None:
        """Have the summary written that will be needed soon, or ask for it after the next turn."""
        if self._ground.later is not None:
            with suppress(FovealError):
                if await self._session.due():
                    await self._ground.later(self._turn.tenant, self._turn.session, self._session.last)

    async def _outcome(self, task: asyncio.Task[Why]) -> Outcome:
        self._turn.begin(task.cancel)
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait([task])
            raise
        text = self._turn.text
        if task.cancelled():
            return Outcome(why="stopped", text=text, report=self._report)
        problem = task.exception()
        if problem is None:
            return Outcome(why=task.result(), text=text, report=self._report)
        if not isinstance(problem, FovealError):
            told = f"something unexpected went wrong ({type(problem).__name__})"
            return Outcome(why="failed", text=text, problem=told, sort=type(problem).__name__)
        sort = problem.sort if isinstance(problem, ProviderError) else ""
        return Outcome(why="failed", text=text, problem=str(problem), sort=sort or type(problem).__name__)

    async def _heard(self) -> Answered | None:
        """Put the words into the log, unless a process that died over them did; the answer, if it got so far."""
        heard, answer = await self._found()
        if self._entry.kind == "again" or heard:
            await self._agent.resume()
        else:
            note = Noted(text=self._entry.turn, topic=TOPIC)
            heard = (await self._agent.hear(self._entry.said, note, dialect=self._entry.dialect)).handle
        if heard:
            self._turn.tell(Heard(handle=heard))
        return answer

    async def _perform(self, answer: Answered | None) -> Why:
        """Have it answered, and tell why it ended."""
        if answer is not None:
            self._turn.tell(answer)
            self._report = _numbers(await self._session.report())
            self._turn.tell(Ended(why="answered", report=self._report))
            return "answered"
        why: Why = "answered"
        async for happening in self._agent.answer():
            if isinstance(happening, Ended):
                why, self._report = happening.why, _numbers(happening.report)
                happening = Ended(why=why, report=self._report)
            self._turn.tell(happening)
        return why

    async def _found(self) -> tuple[str, Answered | None]:
        """What another process, which died over it, has stored of this turn: the words, and the answer."""
        if self._entry.state == "waiting":
            return "", None
        events = await self._session.events(first=self._entry.since + 1)
        return said_in(events, self._entry)


def said_in(events: list[Event], entry: Entry) -> tuple[str, Answered | None]:
    """The handle of a message's words, and its last answer if that calls no tool; both may be missing."""
    mine = entry.kind == "again"
    heard, answer = "", None
    for event in events:
        fact = event.fact
        if isinstance(fact, Noted) and fact.topic == TOPIC:
            if mine:
                break  # the next message
            mine = fact.text == entry.turn
        elif mine and isinstance(fact, Noted) and fact.topic == "turn":
            answer = None  # what was said so far is no answer
        elif mine and isinstance(fact, UserSaid):
            heard = event.handle
        elif mine and isinstance(fact, ModelSaid):
            calls = len(calls_of(fact.content))
            said = Answered(text=text_of(fact.content), calls=calls, handle=event.handle)
            answer = said if not calls else None
    return heard, answer


def _numbers(report: Report) -> Report:
    """A report without a line for each event: turns that ended are kept for a while."""
    return replace(report, events=())


def deleted() -> Outcome:
    return Outcome(why="stopped", problem="the session was deleted", sort="deleted")


async def elsewhere(session: Session, entry: Entry | None, turn: Turn) -> None:
    """End a turn that another process has answered."""
    if entry is None:
        turn.end(deleted())
        return
    heard, answer = said_in(await session.events(first=entry.since + 1), entry)
    report = _numbers(await session.report())
    if heard:
        turn.tell(Heard(handle=heard))
    if answer is not None:
        turn.tell(answer)
    if entry.why in ("answered", "steps", "denied"):
        turn.tell(Ended(why=entry.why, report=report))  # type: ignore[arg-type]
    turn.end(
        Outcome(
            why=entry.why,  # type: ignore[arg-type]
            text=answer.text if answer is not None else "",
            problem=entry.problem,
            sort=entry.sort,
            report=report,
        )
    )
