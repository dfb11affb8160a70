"""A live session: one session of a tenant and the agent that answers in it.

1. When `submit` returns, the message is stored. Messages are answered in the order in which they were stored,
   whichever process received them, and whether or not the caller waits.
2. A message is written to the log together with a note of its turn, so that it is never recorded or answered twice:
   a turn that was interrupted by a crash continues where it was.
3. `append`, `perform`, `compact` and `take_out` raise `Busy` while a turn runs or waits. With `waits`, those that
   have this argument run between that turn and the next one instead.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any, Final, Protocol, TypeVar
from uuid import uuid4

from foveal.agent.loop import Agent
from foveal.core.engine.operations import OPERATIONS, OperationRequest
from foveal.core.engine.report import Report
from foveal.core.log.events import AnyFact, Content, Dialect, Event, ModelSaid, Noted, Rewound, UserSaid
from foveal.core.models.cost import UsageTotals
from foveal.errors import Busy, ContextOverflow, FovealError, LeaseLost, StoreError
from foveal.memory.memory import Memory
from foveal.ports import Hit, SessionEnd, SessionInfo
from foveal.server.inbox import InboxEntry
from foveal.server.runtime import LOG, Runtime, UnavailableProvider
from foveal.server.turns import (
    Turn,
    TurnOutcome,
    TurnRunner,
    answer_topic,
    end_turn_from_log,
    failed_outcome,
    postponed_outcome,
    session_deleted_outcome,
)
from foveal.sessions.perform import Performed, SessionCompaction, compact_measured, perform
from foveal.sessions.session import Session

MAX_ENDED_TURNS: Final = 64
"""Ended turns of a session whose events can still be read."""
MAX_UNSTORED_ANSWERS: Final = 3
"""Answers to a message that a process could not store, after which its turn fails: each has its price."""
MemoryOf = Callable[[InboxEntry], Awaitable[Memory | None]]
"""Returns the memory of the user who wrote a message; None if there is none."""
TurnListener = Callable[["LiveSession", Turn], Awaitable[None]]
T = TypeVar("T")


class SessionOwner(Protocol):
    """The tenant of a session, as far as the session uses it."""

    @property
    def name(self) -> str: ...

    @property
    def runtime(self) -> Runtime: ...

    @property
    def turn_listeners(self) -> Sequence[TurnListener]: ...


class LiveSession:
    def __init__(
        self,
        owner: SessionOwner,
        agent: Agent,
        *,
        agent_name: str = "",
        user: str = "",
        memories: list[Memory] | None = None,
        memory_of: MemoryOf | None = None,
        pauses_on_disconnect: bool = False,
    ) -> None:
        """`agent_name` is that of the configuration. `memories` is a list that the tools search: it is set for each
        turn, with what `memory_of` returns. The owner finds the session for others, so it is not
        garbage-collected before the session."""
        self.tenant: str = owner.name
        self.agent_name = agent_name
        """The agent of the configuration whose settings it has; "" for the server's own."""
        self.user = user
        """Who speaks in it; "" if that is not known, or several people do."""
        self._memories = [] if memories is None else memories
        """The memory of the user who wrote the message of the running turn."""
        self._memory_of = memory_of
        self.pauses_on_disconnect = pauses_on_disconnect
        """Whether a turn stops when the last client that waits for it goes away."""
        self._owner = owner
        self.session: Session = agent.session
        self.id: str = agent.session.id
        self._runtime = owner.runtime
        self._agent = agent
        self._turns: OrderedDict[int, Turn] = OrderedDict()
        self._running: Turn | None = None
        self._task: asyncio.Task[None] | None = None
        self._has_new_messages = False
        self._is_deleting = False
        self._unstored: dict[int, int] = {}
        """How many answers to a message could not be stored, by its id in the inbox."""
        self._between_turns: list[tuple[Callable[[], Awaitable[Any]], asyncio.Future[Any]]] = []
        """Changes of the session that wait for the end of the running turn, and their results."""

    @property
    def model(self) -> str:
        return self._agent.provider.name

    @property
    def is_busy(self) -> bool:
        """Whether a turn runs or waits in this process."""
        return self._task is not None

    @property
    def is_answering(self) -> bool:
        """Whether a turn has begun or waits, and has not ended."""
        return any(turn.state != "ended" for turn in self._turns.values())

    # ── Turns ────────────────────────────────────────────────────────────────────────────────────────

    async def submit(
        self, content: Content, *, key: str = "", dialect: Dialect = "", checks_text: bool = True
    ) -> Turn:
        """Store a user message, to be answered after those before it. The same key returns the same turn; with
        another text it raises `KeyReused`, unless `checks_text` is off."""
        fact = UserSaid(content=content, dialect=dialect)
        redacted = fact if self._runtime.redact is None else self._runtime.redact(fact)
        assert isinstance(redacted, UserSaid)
        return await self._enqueue(key, redacted, checks_text=checks_text)

    async def retry(self, *, key: str = "") -> Turn:
        """Ask the model again after a failed or stopped turn. The same key returns the same turn."""
        newest = None if key else await self._runtime.inbox.newest(self.tenant, self.id)
        return await self._enqueue(key or f"again-{newest.id if newest else 0}", None)

    def turn(self, id: str) -> Turn | None:
        """Return a turn that runs, waits or ended recently in this process."""
        return next((turn for turn in self._turns.values() if turn.id == id), None)

    async def find_turn_of(self, key: str) -> Turn | None:
        """Return the turn of the message with a key; None if there is no such message."""
        entry = await self._runtime.inbox.find(self.tenant, self.id, key=self._runtime.storable_key(key))
        return None if entry is None else await self._attach(entry)

    async def find_turn(self, id: str) -> Turn | None:
        """Return a turn that runs, waits or ended recently, in this process or another one."""
        if (known := self.turn(id)) is not None:
            return known
        recent = await self._runtime.inbox.recent(self.tenant, self.id, limit=MAX_ENDED_TURNS)
        entry = next((entry for entry in recent if entry.turn_id == id), None)
        return None if entry is None else await self._attach(entry)

    def process_inbox(self) -> None:
        """Start answering the messages in the inbox unless a task already does."""
        self._has_new_messages = True
        if self._runtime.is_closing:
            self._postpone_turns()
        elif self._task is None:
            self._runtime.recent_sessions.add((self.tenant, self.id), self)
            self._task = asyncio.create_task(self._run())

    async def wait_idle(self) -> None:
        """Wait until no turn runs in this process."""
        while self._task is not None:
            await asyncio.wait([self._task])

    def stop(self) -> None:
        """Stop the running turn, or the next one."""
        waiting = (turn for turn in self._turns.values() if turn.state == "waiting")
        turn = self._running or next(waiting, None)
        if turn is not None:
            turn.stop()

    def abort(self) -> None:
        """Stop the running turn and begin no other, also while waiting for another process's lock."""
        if self._running is not None:
            self._running.stop()
        elif self._task is not None:
            self._task.cancel()

    @contextmanager
    def deleting(self) -> Iterator[None]:
        """Stop the running turn and begin no other while the block deletes the session."""
        self._is_deleting = True
        self.abort()
        try:
            yield
        finally:  # if the deletion failed, its messages are answered after all
            self._is_deleting = False
            self.process_inbox()

    async def _enqueue(self, key: str, message: UserSaid | None, *, checks_text: bool = True) -> Turn:
        provider = self._agent.provider
        if isinstance(provider, UnavailableProvider) and provider.refusal is not None:
            raise provider.refusal
        entry, is_new = await self._runtime.inbox.put(
            self.tenant,
            self.id,
            key=self._runtime.storable_key(key) or uuid4().hex,
            message=message,
            now=self._runtime.clock(),
            checks_text=checks_text,
        )
        turn = await self._attach(entry)
        if is_new:
            self._runtime.emit_inbox_count_soon()
        return turn

    async def _attach(self, entry: InboxEntry) -> Turn:
        """Return the turn of a message, which ends here too if another process answers or has answered it."""
        turn = self._turn(entry)
        if entry.state == "done" and turn.state != "ended":
            await end_turn_from_log(self.session, entry, turn)
        elif entry.state != "done":
            self.process_inbox()
        return turn

    def _turn(self, entry: InboxEntry) -> Turn:
        """Return the turn of a message, creating it on first use."""
        known = self._turns.get(entry.id)
        if known is None or (known.state == "ended" and entry.state != "done"):
            ended = [id for id, turn in self._turns.items() if turn.state == "ended"]
            for id in ended[: max(0, len(self._turns) + 1 - MAX_ENDED_TURNS)]:
                del self._turns[id]
            for id in ended[-1:]:
                self._turns[id].discard_streamed_text()
            known = Turn(entry.turn_id, tenant=self.tenant, session=self.id, key=entry.key)
            self._turns[entry.id] = known
        return known

    async def _run(self) -> None:
        """Answer the messages in the inbox one after the other, holding the session lock. Errors become the outcome
        of the turns; a message that could not be taken stays in the inbox."""
        try:
            while self._has_new_messages and not self._runtime.is_closing:
                self._has_new_messages = False
                try:
                    async with self._lock():
                        await self._process_messages()
                except LeaseLost:
                    LOG.warning("a session of tenant %s was taken over by another process", self.tenant)
                    self._has_new_messages = True  # this process waits for the other one, then looks again
                await self._update_turns()
        except FovealError as problem:
            if isinstance(problem, StoreError):
                self._runtime.store_failed(self.tenant, problem)
            self._end_all(failed_outcome(problem, is_pending=True))
        except Exception as problem:  # noqa: BLE001 (callers that await the turns must not wait forever)
            LOG.error("a session failed: %s", type(problem).__name__)
            self._end_all(failed_outcome(problem, is_pending=True))
        finally:
            self._task = None  # no `await` between the last check of `_has_new_messages` and this line
            self._refuse_changes()
            if self._runtime.is_closing:
                self._postpone_turns()

    def _postpone_turns(self) -> None:
        """End the waiting turns for their callers; the next start answers the messages."""
        self._end_all(postponed_outcome())

    def _end_all(self, outcome: TurnOutcome) -> None:
        """End all turns except the running one with this outcome."""
        for turn in self._turns.values():
            if turn is not self._running:
                turn.end(outcome)

    async def _process_messages(self) -> None:
        while not self._runtime.is_closing:
            await self._make_changes()
            end = await self.session.end()
            if end.erased:
                await self._runtime.inbox.delete_session(self.tenant, self.id)
                self._end_all(session_deleted_outcome())
            if self._is_deleting or end.erased:
                return
            entry = await self._runtime.inbox.take(self.tenant, self.id, last=end.next_seq - 1)
            if entry is None:
                return
            memory = None if self._memory_of is None else await self._memory_of(entry)
            self._memories[:] = [] if memory is None else [memory]
            self.session.memories = tuple(self._memories)
            turn = self._running = self._turn(entry)
            tries = self._unstored.pop(entry.id, 0)
            keeps = tries + 1 < MAX_UNSTORED_ANSWERS
            runner = TurnRunner(self._runtime, self._agent, entry, turn, keeps_unstored=keeps)
            try:
                await runner.run()
            finally:
                self._running = None
                if runner.is_unstored:
                    self._unstored[entry.id] = tries + 1
            self._runtime.emit_inbox_count_soon()
            await self._notify_listeners(turn)

    @asynccontextmanager
    async def _lock(self) -> AsyncIterator[None]:
        """Hold the session lock. While another process holds it, end the turns that it answers."""
        watch = asyncio.create_task(self._watch_answers())
        try:
            async with self._runtime.locks.lock(self.tenant, self.id):
                watch.cancel()
                yield
        finally:
            watch.cancel()

    async def _watch_answers(self) -> None:
        woken = asyncio.Event()
        unsubscribe = self._runtime.storage.wakeups.subscribe(answer_topic(self.tenant, self.id), woken.set)
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._runtime.answer_poll_s):
                        await woken.wait()
                woken.clear()
                with suppress(FovealError):
                    await self._update_turns()
        finally:
            unsubscribe()

    async def _update_turns(self) -> None:
        """End the turns that another process has answered."""
        for id, turn in list(self._turns.items()):
            if turn.state != "ended":
                entry = await self._runtime.inbox.entry(self.tenant, id)
                if entry is None or entry.state == "done":
                    await end_turn_from_log(self.session, entry, turn)

    async def _notify_listeners(self, turn: Turn) -> None:
        for listener in self._owner.turn_listeners:
            try:
                await listener(self, turn)
            except Exception as problem:  # noqa: BLE001 (a listener must not break the session)
                LOG.error("a turn listener failed: %s", type(problem).__name__)

    # ── Changing the session ─────────────────────────────────────────────────────────────────────────

    async def append(self, *facts: AnyFact) -> tuple[Event, ...]:
        """Append facts to the log without asking the model."""
        self._check_idle("append to it")
        async with self._runtime.locks.lock(self.tenant, self.id):
            return await self.session.append(*facts)

    async def add_note(self, text: str, *, topic: str) -> None:
        """Append a note to the log between turns; the model does not see it."""
        async with self._runtime.locks.lock(self.tenant, self.id):
            await self.session.append(Noted(text=text, topic=topic))

    async def perform(self, asked: OperationRequest, *, waits: bool = False) -> Performed:
        """Carry out an operation."""
        operation = OPERATIONS[asked.operation]

        async def work() -> Performed:
            done = await perform(self.session, asked)
            if operation.name == "undo":
                await self._agent.withdraw_recall_tools()
            elif operation.hides:
                await self._agent.equip()
            return done

        return await self.change(work, what=operation.phrase, waits=waits)

    async def undo_all(
        self, choose: Callable[[list[Event]], Sequence[Event]], *, waits: bool = False
    ) -> list[Performed]:
        """Undo the events that `choose` finds in the log, the newest first, as far as the next request can be
        reduced to fit without them; raises `ContextOverflow` if not even the newest can be undone."""

        async def work() -> list[Performed]:
            done: list[Performed] = []
            for event in reversed(choose(await self.session.events())):
                try:
                    asked = OperationRequest(operation="undo", event=event.handle)
                    done.append(await perform(self.session, asked))
                except ContextOverflow:
                    if not done:
                        raise
                    break
            await self._agent.withdraw_recall_tools()
            return done

        return await self.change(work, what=OPERATIONS["undo"].phrase, waits=waits)

    async def compact(
        self, focus: str = "", *, agreed: bool = False, waits: bool = False
    ) -> SessionCompaction:
        """Summarise old turns now, or with `agreed` do what the report's question asks; raises `NotCompacted`."""
        work = partial(compact_measured, self.session, focus, agreed=agreed, then=self._agent.equip)
        return await self.change(work, what=OPERATIONS["compact"].phrase, waits=waits)

    async def take_out(self, name: str, *, waits: bool = False) -> bool:
        """Rewind to before a user message if nothing was said after it; return whether that was so."""

        async def take_out() -> bool:
            said = await self.session.event(name)
            later = await self.session.events(first=said.seq + 1)
            if any(isinstance(event.fact, UserSaid | ModelSaid | Rewound) for event in later):
                return False
            await self.session.rewind(said.seq - 1)
            return True

        return await self.change(take_out, what="take a message out", waits=waits)

    async def change(self, change: Callable[[], Awaitable[T]], *, what: str, waits: bool = False) -> T:
        """Make a change under the session lock, which the running turn holds until it has ended."""
        if not waits:
            self._check_idle(what)
        if not waits or self._task is None:
            async with self._runtime.locks.lock(self.tenant, self.id):
                return await change()
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._between_turns.append((change, result))
        self._has_new_messages = True  # the task looks once more before it ends
        return await result

    async def _make_changes(self) -> None:
        """Make the changes that wait for the end of a turn; the caller holds the session lock."""
        while self._between_turns:
            change, result = self._between_turns[0]
            if not result.cancelled():
                try:
                    made = await change()
                except Exception as problem:  # noqa: BLE001 (the caller gets it)
                    if not result.cancelled():
                        result.set_exception(problem)
                else:
                    if not result.cancelled():
                        result.set_result(made)
            del self._between_turns[0]

    def _refuse_changes(self) -> None:
        """End the wait for changes that were not made, such as when the server stops."""
        for _, result in self._between_turns:
            if not result.done():
                result.set_exception(Busy(f"session {self.id!r} has not made the change: try again"))
        self._between_turns.clear()

    async def prepare(self) -> Event | None:
        """Write the summary that will be needed soon; turns may run meanwhile."""
        return await self.session.prepare()

    async def rename(self, title: str) -> None:
        await self.session.rename(self._runtime.storable_text(title))

    def _check_idle(self, what: str) -> None:
        if self.is_answering:
            raise Busy(f"session {self.id!r} is answering: {what} after the turn has ended, or stop it first")

    # ── Reading ──────────────────────────────────────────────────────────────────────────────────────

    async def report(self, *, with_statements: bool = False) -> Report:
        return await self.session.report(with_statements=with_statements)

    async def usage(self) -> UsageTotals:
        return await self.session.usage()

    async def events(self, *, first: int = 0, last: int | None = None) -> list[Event]:
        return await self.session.events(first=first, last=last)

    async def search(self, query: str, limit: int = 50) -> list[Hit]:
        return await self.session.search(query, limit)

    async def end(self) -> SessionEnd:
        return await self.session.end()

    async def info(self) -> SessionInfo:
        return await self.session.info()

    async def close(self) -> None:
        """Stop background summaries."""
        await self.session.close()
