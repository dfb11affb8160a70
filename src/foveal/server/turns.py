"""Turns: one message from the inbox, its answer, and how it ended.

1. `Turn` is what callers see: a stream of events that can be read late, left and resumed, and an outcome. The turn
   continues without its readers, unless the session's `on_disconnect` is `pause`.
2. `TurnRunner` runs a turn: it records the message once, has the agent answer it once, and marks it as done.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from operator import itemgetter
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from foveal.agent.events import (
    AgentEvent,
    BudgetReached,
    MemoryChanged,
    ModelAnswered,
    PromptReading,
    TextStreamed,
    ToolFinished,
    ToolOutputStreamed,
    TurnFinished,
    UserMessageStored,
)
from foveal.agent.loop import Agent
from foveal.core.engine.report import Report
from foveal.core.log.events import Call, Event, ModelSaid, Noted, UserSaid, calls_of, text_of
from foveal.core.redaction import StreamRedactor, scrub
from foveal.errors import BudgetExceeded, FovealError, LeaseLost, ProviderError, StoreUnusable
from foveal.memory.attached import MEMORY_NOTE_TOPIC, obeyed_notes
from foveal.memory.model_tools import MEMORY_TOOL_NAMES, changed_text
from foveal.ports import ReplyPiece
from foveal.server.budgets import BUDGET_NOTE_TOPIC, notices_of
from foveal.server.chat_markers import with_own_words
from foveal.server.chat_questions import MAX_QUESTION_CHARS, ChatQuestion, question_id
from foveal.server.inbox import InboxEntry
from foveal.server.runtime import Runtime, TurnBegan, TurnEnded, UnavailableProvider
from foveal.sessions.log_reader import read_slices
from foveal.sessions.session import Session

MAX_KEPT_TURN_EVENTS: Final = 1_000
"""Events of an ended turn that are kept whole until the next turn ends."""
_event_number: Final = itemgetter(0)
POSTPONED: Final = "the server is stopping: the message is kept and will be answered after the next start"
STOPPING_CODE: Final = "stopping"
"""Code of a turn that ended because its server stops, not because a user stopped it."""
CLIENT_GONE: Final = "the client disconnected, and on_disconnect is pause"
PAUSED: Final = f"{CLIENT_GONE}: ask again to continue"
PAUSED_CODE: Final = "disconnected"
EndReason = Literal["answered", "steps", "denied", "stopped", "failed"]


class TurnOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a turn ended."""

    why: EndReason
    text: str = ""
    """The model's last answer; of a turn that ended early what was stored of it."""
    problem: str = ""
    """What went wrong, as a message for users."""
    code: str = ""
    """The `code` of a `ProviderError`, `budget_exceeded` or `price_unknown`, or the class name of another error."""
    report: Report | None = None
    is_pending: bool = False
    """The message is still in the inbox and will be answered later."""
    wait_s: float | None = None
    """Seconds until the period of a spending limit ends that the turn has reached; else None."""


class Turn:
    """One user request and all that follows until the final answer."""

    def __init__(self, id: str, *, tenant: str, session: str, key: str) -> None:
        self.id = id
        self.tenant = tenant
        self.session = session
        self.key = key
        """The caller's key of the message: the same key again is the same turn."""
        self.state: Literal["waiting", "running", "ended"] = "waiting"
        self._events: list[tuple[int, AgentEvent]] = []
        self._count = 0
        self._text = ""
        self._outcome: TurnOutcome | None = None
        self._changed = asyncio.Event()
        self._stop: Callable[[], object] | None = None
        self._stopped = False
        self._clients = 0
        self._pauses = self._is_paused = False

    # ── For readers ──────────────────────────────────────────────────────────────────────────────────

    async def events(self) -> AsyncIterator[AgentEvent]:
        """Yield all events of the turn, from the first."""
        async for _, event in self.numbered_events():
            yield event

    async def numbered_events(self, *, after: int = 0) -> AsyncIterator[tuple[int, AgentEvent]]:
        """Yield the events after number `after`, numbered from 1. Some time after the turn has ended, the streamed
        pieces of its answers are gone and only the answers remain."""
        while True:
            # Read before the events: while a slow reader takes them, more may come, and the turn may end.
            changed, has_ended = self._changed, self._outcome is not None
            start = bisect_right(self._events, after, key=_event_number)
            for number, event in self._events[start:]:
                after = number
                yield number, event
            if has_ended:
                return
            if self._changed is changed:
                await changed.wait()

    async def outcome(self) -> TurnOutcome:
        """Wait until the turn has ended and return how."""
        while self._outcome is None:
            await self._changed.wait()
        return self._outcome

    def stop(self) -> None:
        """Stop the turn as Ctrl-C would: the text so far is stored."""
        self._stopped = True
        if self._stop is not None:
            self._stop()

    @contextmanager
    def awaited(self, *, pauses: bool) -> Iterator[None]:
        """Count a client that waits for the turn in this block. If one of them came with `pauses`, the turn stops
        when the last one leaves before its end."""
        self._clients += 1
        self._pauses |= pauses
        try:
            yield
        finally:
            self._clients -= 1
            if self._pauses and not self._clients and self._outcome is None:
                self._is_paused = True
                self.stop()

    # ── For the runner ───────────────────────────────────────────────────────────────────────────────

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopped

    @property
    def is_paused(self) -> bool:
        """Whether the turn was stopped because its last client went away."""
        return self._is_paused

    @property
    def text(self) -> str:
        """The newest answer of the model."""
        return self._text

    def begin(self, stop: Callable[[], object]) -> None:
        assert self._outcome is None, "a turn that has ended does not begin again"
        self.state = "running"
        self._stop = stop
        if self._stopped:
            stop()

    def emit(self, event: AgentEvent) -> None:
        self._count += 1
        self._events.append((self._count, event))
        if isinstance(event, ModelAnswered):
            self._text = event.text
        self._wake_readers()

    def end(self, outcome: TurnOutcome) -> None:
        """Set the outcome; only the first call counts."""
        if self._outcome is None:
            self.state = "ended"
            self._stop = None
            self._outcome = outcome
            if len(self._events) > MAX_KEPT_TURN_EVENTS:
                self.discard_streamed_text()
            self._wake_readers()

    def discard_streamed_text(self) -> None:
        """Drop the streamed pieces and the progress; readers of an old turn get the whole answers."""
        passing = (TextStreamed, PromptReading)
        self._events = [event for event in self._events if not isinstance(event[1], passing)]

    def _wake_readers(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


# ── Running a turn ────────────────────────────────────────────────────────────────────────────────

TURN_NOTE_TOPIC: Final = "message"
"""Topic of the note in the log that precedes a user message and holds its turn id."""


def answer_topic(tenant: str, session: str) -> str:
    """Return the topic of the wake-up after each turn of a session."""
    return f"answer/{tenant}/{session}"


class TurnRunner:
    """Runs one turn; the caller holds the session lock."""

    def __init__(
        self, runtime: Runtime, agent: Agent, entry: InboxEntry, turn: Turn, *, keeps_unstored: bool = True
    ) -> None:
        """`keeps_unstored`: whether a message whose answer cannot be stored stays in the inbox."""
        self.is_unstored: bool = False
        """Whether the answer could not be stored and the message was kept."""
        self._keeps_unstored = keeps_unstored
        self._runtime = runtime
        self._agent = agent
        self._session = agent.session
        self._entry = entry
        self._turn = turn
        self._report: Report | None = None
        agent.approve = self._ask
        self._asked: set[str] = set()
        """Questions that another process has asked."""
        self._problem = ""
        """Why the turn ended without an answer."""

    async def run(self) -> None:
        """Run the turn to its end and mark the message as done, unless the server stops before. Raises if the
        message or its answer cannot be written to the log: then it stays in the inbox. After `LeaseLost` the turn
        is open: the process that has taken over ends it."""
        turn, began, model = self._turn, time.monotonic(), self._agent.provider.name
        place = {"tenant": turn.tenant, "session": turn.session, "turn": turn.id, "model": model}

        def emit_ended(outcome: TurnOutcome) -> None:
            seconds = time.monotonic() - began
            self._runtime.emit(TurnEnded(**place, seconds=seconds, why=outcome.why, problem=outcome.code))

        self._runtime.emit(TurnBegan(**place))
        try:
            outcome = await self._run()
        except (LeaseLost, asyncio.CancelledError):
            emit_ended(TurnOutcome(why="stopped", code=LeaseLost.__name__))
            raise
        except FovealError as problem:
            outcome = failed_outcome(problem, is_pending=True)
            turn.end(outcome)
            emit_ended(outcome)
            raise
        emit_ended(outcome)
        if outcome.is_pending:
            return
        await self._runtime.storage.wakeups.notify(answer_topic(turn.tenant, turn.session))
        if outcome.why != "failed":
            await self._request_summary()

    async def _run(self) -> TurnOutcome:
        answer = await self._record_message()  # stopping the turn takes effect only after this
        async with self._counts_unreported_calls():
            outcome = await self._outcome(asyncio.create_task(self._answer(answer)))
        if outcome.is_pending:
            self._turn.end(outcome)
            return outcome
        try:
            await self._runtime.inbox.finish(
                self._entry, why=outcome.why, problem=outcome.problem, code=outcome.code
            )
        except LeaseLost:
            raise
        except FovealError:  # the next run finds the answer in the log
            self._turn.end(outcome)
            raise
        self._turn.end(outcome)
        return outcome

    @asynccontextmanager
    async def _counts_unreported_calls(self) -> AsyncIterator[None]:
        """Count the calls of this block that broke off or came without usage: no stored event has theirs."""
        before = await self._session.usage()
        try:
            yield
        finally:
            with suppress(FovealError):
                after = await self._session.usage()
                for _ in range((after.calls - after.reported) - (before.calls - before.reported)):
                    self._runtime.usage.add_call(
                        self._turn.tenant, self._turn.session, self._agent.provider.name, None
                    )

    async def _request_summary(self) -> None:
        """Ask for the summary that will be needed soon; on an error the next turn asks again."""
        if self._runtime.request_summary is not None:
            with suppress(FovealError):
                if await self._session.needs_summary_soon():
                    await self._runtime.request_summary(
                        self._turn.tenant, self._turn.session, self._session.last
                    )

    async def _outcome(self, task: asyncio.Task[EndReason]) -> TurnOutcome:
        self._turn.begin(lambda: self._cancel(task))
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.exception()  # it could not store the text so far; asyncio would log that
            raise
        if task.cancelled():
            return self._stopped_outcome(await self._text_so_far())
        problem = task.exception()
        is_wanted = not self._turn.is_stopped or self._runtime.is_closing
        self.is_unstored = isinstance(problem, StoreUnusable) and self._keeps_unstored and is_wanted
        if problem is not None and (self.is_unstored or isinstance(problem, LeaseLost)):
            raise problem
        if problem is None:
            return TurnOutcome(
                why=task.result(), text=self._turn.text, problem=self._problem, report=self._report
            )
        return failed_outcome(problem, text=await self._text_so_far())

    async def _text_so_far(self) -> str:
        """Return the text of a turn that ended early, as the log has it: later answers of the model build on it."""
        with suppress(FovealError):
            return (
                find_partial_text(await read_turn(self._session, self._entry), self._entry) or self._turn.text
            )
        return self._turn.text

    def _cancel(self, task: asyncio.Task[EndReason]) -> None:
        if self._runtime.is_closing:
            self._agent.postpone()
        elif self._turn.is_paused:
            self._agent.explain_interruption(CLIENT_GONE)
        task.cancel()

    def _stopped_outcome(self, text: str) -> TurnOutcome:
        """Return the outcome of a turn that a user or the end of the server has stopped."""
        if not self._runtime.is_closing:
            problem, code = (PAUSED, PAUSED_CODE) if self._turn.is_paused else ("", "")
            return TurnOutcome(why="stopped", text=text, problem=problem, code=code, report=self._report)
        return replace(postponed_outcome(), text=text, report=self._report)

    async def _record_message(self) -> ModelAnswered | None:
        """Write the message to the log unless a process that died did so; return the answer it stored, if any."""
        handle, answer = await self._find_in_log()
        if self._entry.kind == "again" or handle:
            await self._agent.resume(runs_later=self._awaits_answer)
        else:
            note = Noted(text=self._entry.turn_id, topic=TURN_NOTE_TOPIC)
            handle = (
                await self._agent.receive(self._entry.message, note, dialect=self._entry.dialect)
            ).handle
        if handle:
            self._turn.emit(UserMessageStored(handle=handle))
        if handle and answer is None and self._entry.kind == "say":
            for note in await self._heard_notes(handle):
                self._turn.emit(MemoryChanged(text=note.text))
        return answer

    async def _ask(self, call: Call, description: str) -> bool:
        """Ask the chat of the session whether a call may run. If the turn is stopped meanwhile, the question ends,
        unless the server stops: then it waits for the turn to continue."""
        runtime, turn, id = self._runtime, self._turn, question_id(self._turn.id, call)
        now, minutes = runtime.clock(), runtime.config.get("server.approval_minutes")
        text = self._agent.tools.preview(call.name, call.arguments) or description
        if len(text) > MAX_QUESTION_CHARS:
            return False
        question = ChatQuestion(
            id=id,
            session=turn.session,
            key=self._entry.key,
            tool=call.name,
            text=runtime.storable_text(text),
            at=now,
            until=now + minutes * 60.0,
        )
        try:
            if id in self._asked:
                return await runtime.questions.wait(turn.tenant, id)
            return await runtime.questions.ask(turn.tenant, question)
        except asyncio.CancelledError:
            if not runtime.is_closing:
                await asyncio.shield(runtime.questions.withdraw(turn.tenant, id))
            raise
        finally:
            self._asked.discard(id)

    async def _awaits_answer(self, call: Call) -> bool:
        """Return whether a call waits for an answer since another process asked."""
        id = question_id(self._turn.id, call)
        is_waiting = await self._runtime.questions.is_waiting(self._turn.tenant, id)
        self._asked |= {id} if is_waiting else set()
        return is_waiting

    async def _heard_notes(self, handle: str) -> list[Noted]:
        """Obey what the author of the message says about remembering, and note it in the log. A message that is
        heard again, after a crash, changes nothing more."""
        notes: list[Noted] = []
        for memory in self._session.memories:
            said = with_own_words(await self._session.event(handle))
            notes += await obeyed_notes(memory, [said], session=self._session.id)
        if notes:
            await self._session.append(*notes)
        return notes

    async def _answer(self, answer: ModelAnswered | None) -> EndReason:
        """Emit the stored answer, or have the agent answer; return why the turn ended."""
        if answer is not None:
            self._turn.emit(answer)
            self._report = await self._session.report(with_events=False)
            self._turn.emit(TurnFinished(why="answered", report=self._report))
            return "answered"
        why: EndReason = "answered"
        provider = self._agent.provider
        if isinstance(provider, UnavailableProvider) and provider.refusal is not None:
            raise provider.refusal  # before the request is reduced with settings that are not the session's
        events = self._agent.answer()
        async for event in events if self._runtime.redact is None else redacted_events(events):
            if isinstance(event, TurnFinished):
                why, self._problem, self._report = event.why, event.problem, _without_events(event.report)
                event = TurnFinished(why=why, problem=self._problem, report=self._report)
            for notice in notices_of(provider):
                await self._session.append(Noted(text=notice, topic=BUDGET_NOTE_TOPIC))
                self._turn.emit(BudgetReached(text=notice))
            self._turn.emit(event)
            if isinstance(event, ToolFinished) and event.call.name in MEMORY_TOOL_NAMES:
                await self._note_change(changed_text(event.text))
        return why

    async def _note_change(self, text: str) -> None:
        """Tell the user what the model has remembered or forgotten, and note it in the log."""
        if text:
            await self._session.append(Noted(text=text, topic=MEMORY_NOTE_TOPIC))
            self._turn.emit(MemoryChanged(text=text))

    async def _find_in_log(self) -> tuple[str, ModelAnswered | None]:
        """Return what a process that died has stored of this turn: the message's handle and the answer."""
        if self._entry.state == "waiting":
            return "", None
        return find_turn_in_log(await read_turn(self._session, self._entry), self._entry)


async def read_turn(session: Session, entry: InboxEntry) -> list[Event]:
    """Return the events from where a message was taken to the message after it, or a little more."""
    end = (await session.end()).next_seq
    turn: list[Event] = []
    found = entry.kind == "again"
    async for events in read_slices(session.store, session.id, first=entry.taken_after + 1, end=end):
        turn += events
        for event in events:
            if isinstance(event.fact, Noted) and event.fact.topic == TURN_NOTE_TOPIC:
                if found:
                    return turn
                found = event.fact.text == entry.turn_id
    return turn


def find_turn_in_log(events: list[Event], entry: InboxEntry) -> tuple[str, ModelAnswered | None]:
    """Return the handle of a message ("" if missing) and its last answer, if that calls no tool."""
    handle, answer = "", None
    for event in _events_of_turn(events, entry):
        fact = event.fact
        if isinstance(fact, Noted) and fact.topic == "turn":
            answer = None  # the text before such a note is not a final answer
        elif isinstance(fact, UserSaid):
            handle = event.handle
        elif isinstance(fact, ModelSaid):
            calls = len(calls_of(fact.content))
            answered = ModelAnswered(text=text_of(fact.content), calls=calls, handle=event.handle)
            answer = answered if not calls else None
    return handle, answer


def find_partial_text(events: list[Event], entry: InboxEntry) -> str:
    """Return the text of an answer that was stored although its turn ended early; "" if there is none."""
    text = ""
    for event in _events_of_turn(events, entry):
        if isinstance(event.fact, ModelSaid):
            text = "" if calls_of(event.fact.content) else text_of(event.fact.content)
    return text


def _events_of_turn(events: list[Event], entry: InboxEntry) -> Iterator[Event]:
    """Yield the events between the note that begins a turn and the note of the next one."""
    in_turn = entry.kind == "again"
    for event in events:
        if isinstance(event.fact, Noted) and event.fact.topic == TURN_NOTE_TOPIC:
            if in_turn:
                return
            in_turn = event.fact.text == entry.turn_id
        elif in_turn:
            yield event


def _without_events(report: Report) -> Report:
    """Return a report without its line per event: ended turns stay in memory for a while."""
    return replace(report, events=())


def failed_outcome(problem: BaseException, *, text: str = "", is_pending: bool = False) -> TurnOutcome:
    """Return the outcome of a turn that ended with an error."""
    code = type(problem).__name__
    if isinstance(problem, StoreUnusable):  # its message names the database
        message = "the store cannot be used now; the server's log has the reason"
    elif isinstance(problem, FovealError):
        message = str(problem)
    else:  # its message may contain text that users must not see
        message = f"something unexpected went wrong ({code})"
    if isinstance(problem, ProviderError):
        code = problem.code or code
    if is_pending:
        message = f"the message is kept and will be answered later: {message}"
    wait_s = None
    if isinstance(problem, BudgetExceeded):
        is_priced = problem.estimate is not None
        code, wait_s = ("budget_exceeded", problem.wait_s) if is_priced else ("price_unknown", None)
    return TurnOutcome(
        why="failed", text=text, problem=message, code=code, is_pending=is_pending, wait_s=wait_s
    )


def postponed_outcome() -> TurnOutcome:
    """Return the outcome of a turn whose server stops; another server or the next start answers the message."""
    return TurnOutcome(why="stopped", problem=POSTPONED, code=STOPPING_CODE, is_pending=True)


def session_deleted_outcome() -> TurnOutcome:
    return TurnOutcome(why="stopped", problem="the session was deleted", code="deleted")


async def end_turn_from_log(session: Session, entry: InboxEntry | None, turn: Turn) -> None:
    """End a turn that another process has answered, with what the log and the inbox say."""
    if entry is None:
        turn.end(session_deleted_outcome())
        return
    events = await read_turn(session, entry)
    handle, answer = find_turn_in_log(events, entry)
    report = await session.report(with_events=False)
    if handle:
        turn.emit(UserMessageStored(handle=handle))
    for event in _events_of_turn(events, entry):
        if isinstance(event.fact, Noted) and event.fact.topic == MEMORY_NOTE_TOPIC:
            turn.emit(MemoryChanged(text=event.fact.text))
        elif isinstance(event.fact, Noted) and event.fact.topic == BUDGET_NOTE_TOPIC:
            turn.emit(BudgetReached(text=event.fact.text))
    if answer is not None:
        turn.emit(answer)
    if entry.why in ("answered", "steps", "denied"):
        turn.emit(TurnFinished(why=entry.why, problem=entry.problem, report=report))  # type: ignore[arg-type]
    turn.end(
        TurnOutcome(
            why=entry.why,  # type: ignore[arg-type]
            text=answer.text if answer is not None else find_partial_text(events, entry),
            problem=entry.problem,
            code=entry.code,
            report=report,
        )
    )


# ── Redaction of events while they are streamed ──────────────────────────────────────────────────────
# The stored answer is redacted as a whole; the pieces that clients see before are redacted here with the same
# result, also where a secret is split over two pieces.


async def redacted_events(events: AsyncIterator[AgentEvent]) -> AsyncIterator[AgentEvent]:
    """Yield the events without the secrets in streamed text and output."""
    pieces = _Pieces()
    async for event in events:
        if isinstance(event, TextStreamed):
            for piece in pieces.take(event.piece):
                yield TextStreamed(piece=piece)
            continue
        for piece in pieces.rest():
            yield TextStreamed(piece=piece)
        if isinstance(event, ToolOutputStreamed):
            event = replace(event, lines=tuple(scrub("\n".join(event.lines)).split("\n")))
        yield event


class _Pieces:
    """The pieces of one answer; a piece of another kind ends the text before it."""

    def __init__(self) -> None:
        self._redactor = StreamRedactor()
        self._last: ReplyPiece | None = None

    def take(self, piece: ReplyPiece) -> Iterator[ReplyPiece]:
        if self._last is not None and self._last.kind != piece.kind:
            yield from self.rest()
        if piece.kind == "call":
            yield piece
            return
        self._last = piece
        if text := self._redactor.feed(piece.text):
            yield replace(piece, text=text)

    def rest(self) -> Iterator[ReplyPiece]:
        last, self._last = self._last, None
        if last is not None and (text := self._redactor.close()):
            yield replace(last, text=text)
