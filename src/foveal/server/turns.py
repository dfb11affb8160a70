"""How one message from the inbox becomes a turn: heard once, answered once, and its end written down."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from operator import itemgetter
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from foveal.agent.agent import Agent
from foveal.agent.agent_events import AgentEvent, ModelAnswered, TextStreamed, TurnFinished, UserMessageHeard
from foveal.core.engine.report import Report
from foveal.core.log.events import Event, ModelSaid, Noted, UserSaid, calls_of, text_of
from foveal.errors import FovealError, ProviderError
from foveal.server.inbox import InboxEntry
from foveal.server.runtime import Runtime, TurnBegan, TurnEnded
from foveal.sessions.session import Session

# ── turns ─────────────────────────────────────────────────────────────────────────────────────────
# A turn as others see it: what it tells while it runs, and how it ended.
#
# Whoever follows it may come late, leave and come back: the turn goes on without them, and they get it from the
# beginning, or from where they were.

PIECES: Final = 1_000
"""What a turn that has ended tells whole, until the next one comes."""
_number: Final = itemgetter(0)
Why = Literal["answered", "steps", "denied", "stopped", "failed"]


class TurnOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a turn ended."""

    why: Why
    text: str = ""
    """The model's last answer."""
    problem: str = ""
    """What went wrong, for people."""
    code: str = ""
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
        self._told: list[tuple[int, AgentEvent]] = []
        self._count = 0
        self._text = ""
        self._outcome: TurnOutcome | None = None
        self._news = asyncio.Event()
        self._stop: Callable[[], object] | None = None
        self._stopped = False

    # ── for whoever follows it ───────────────────────────────────────────────────────────────────────

    async def follow(self) -> AsyncIterator[AgentEvent]:
        """All that it tells, from the beginning on."""
        async for _, happening in self.numbered():
            yield happening

    async def numbered(self, *, after: int = 0) -> AsyncIterator[tuple[int, AgentEvent]]:
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

    async def outcome(self) -> TurnOutcome:
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

    def tell(self, happening: AgentEvent) -> None:
        self._count += 1
        self._told.append((self._count, happening))
        if isinstance(happening, ModelAnswered):
            self._text = happening.text
        self._wake()

    def end(self, outcome: TurnOutcome) -> None:
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
        self._told = [told for told in self._told if not isinstance(told[1], TextStreamed)]

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


# ── performance ───────────────────────────────────────────────────────────────────────────────────

TOPIC: Final = "message"
"""Of the note that stands before the user's words and names their turn."""


class TurnRunner:
    """One turn of one session; who runs it has the session for himself."""

    def __init__(self, ground: Runtime, agent: Agent, entry: InboxEntry, turn: Turn) -> None:
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

        def told(outcome: TurnOutcome) -> None:
            seconds = time.monotonic() - began
            self._ground.tell(TurnEnded(**place, seconds=seconds, why=outcome.why, problem=outcome.code))

        self._ground.tell(TurnBegan(**place))
        try:
            answer = await self._heard()  # whoever stops the turn stops what comes after this
        except FovealError as problem:
            said = f"the message is kept, and will be answered later: {problem}"
            outcome = TurnOutcome(why="failed", problem=said, code=type(problem).__name__, kept=True)
            turn.end(outcome)
            told(outcome)
            raise
        outcome = await self._outcome(asyncio.create_task(self._perform(answer)))
        try:
            await self._ground.desk.done(
                self._entry.id, why=outcome.why, problem=outcome.problem, code=outcome.code
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

    async def _outcome(self, task: asyncio.Task[Why]) -> TurnOutcome:
        self._turn.begin(task.cancel)
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait([task])
            raise
        text = self._turn.text
        if task.cancelled():
            return TurnOutcome(why="stopped", text=text, report=self._report)
        problem = task.exception()
        if problem is None:
            return TurnOutcome(why=task.result(), text=text, report=self._report)
        if not isinstance(problem, FovealError):
            told = f"something unexpected went wrong ({type(problem).__name__})"
            return TurnOutcome(why="failed", text=text, problem=told, code=type(problem).__name__)
        code = problem.code if isinstance(problem, ProviderError) else ""
        return TurnOutcome(why="failed", text=text, problem=str(problem), code=code or type(problem).__name__)

    async def _heard(self) -> ModelAnswered | None:
        """Put the words into the log, unless a process that died over them did; the answer, if it got so far."""
        heard, answer = await self._found()
        if self._entry.kind == "again" or heard:
            await self._agent.resume()
        else:
            note = Noted(text=self._entry.turn, topic=TOPIC)
            heard = (await self._agent.hear(self._entry.said, note, dialect=self._entry.dialect)).handle
        if heard:
            self._turn.tell(UserMessageHeard(handle=heard))
        return answer

    async def _perform(self, answer: ModelAnswered | None) -> Why:
        """Have it answered, and tell why it ended."""
        if answer is not None:
            self._turn.tell(answer)
            self._report = _numbers(await self._session.report())
            self._turn.tell(TurnFinished(why="answered", report=self._report))
            return "answered"
        why: Why = "answered"
        async for happening in self._agent.answer():
            if isinstance(happening, TurnFinished):
                why, self._report = happening.why, _numbers(happening.report)
                happening = TurnFinished(why=why, report=self._report)
            self._turn.tell(happening)
        return why

    async def _found(self) -> tuple[str, ModelAnswered | None]:
        """What another process, which died over it, has stored of this turn: the words, and the answer."""
        if self._entry.state == "waiting":
            return "", None
        events = await self._session.events(first=self._entry.since + 1)
        return said_in(events, self._entry)


def said_in(events: list[Event], entry: InboxEntry) -> tuple[str, ModelAnswered | None]:
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
            said = ModelAnswered(text=text_of(fact.content), calls=calls, handle=event.handle)
            answer = said if not calls else None
    return heard, answer


def _numbers(report: Report) -> Report:
    """A report without a line for each event: turns that ended are kept for a while."""
    return replace(report, events=())


def deleted() -> TurnOutcome:
    return TurnOutcome(why="stopped", problem="the session was deleted", code="deleted")


async def elsewhere(session: Session, entry: InboxEntry | None, turn: Turn) -> None:
    """End a turn that another process has answered."""
    if entry is None:
        turn.end(deleted())
        return
    heard, answer = said_in(await session.events(first=entry.since + 1), entry)
    report = _numbers(await session.report())
    if heard:
        turn.tell(UserMessageHeard(handle=heard))
    if answer is not None:
        turn.tell(answer)
    if entry.why in ("answered", "steps", "denied"):
        turn.tell(TurnFinished(why=entry.why, report=report))  # type: ignore[arg-type]
    turn.end(
        TurnOutcome(
            why=entry.why,  # type: ignore[arg-type]
            text=answer.text if answer is not None else "",
            problem=entry.problem,
            code=entry.code,
            report=report,
        )
    )
