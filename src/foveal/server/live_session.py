"""One session of a tenant, with the agent that answers in it.

1. What `say` returned for is stored. It is answered in the order of its storing, whichever process it came to, and
   whoever asked may go away.
2. Words are put into the log together with a note of their key, so that nothing is said or answered twice: a turn
   that a dying process left is taken up where it was.
3. What steers a room (append, compact, undo) is refused while a turn runs, with `Busy`.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final
from uuid import uuid4

import msgspec

from foveal.agent.agent import Agent
from foveal.core.engine.report import Report
from foveal.core.log.events import AnyFact, Content, Dialect, Event, Noted, UserSaid
from foveal.core.models import model
from foveal.core.models.cost import UsageTotals
from foveal.core.models.model import Model
from foveal.core.redaction.redact import scrub
from foveal.core.view.request import Fitted
from foveal.errors import AnsweredElsewhere, Busy, FovealError, ProviderError
from foveal.ports import Hit, Reply, ReplyPiece, SessionInfo
from foveal.server.inbox import InboxEntry
from foveal.server.runtime import LOG, Runtime
from foveal.server.turns import Turn, TurnOutcome, TurnRunner, deleted, elsewhere
from foveal.sessions.session import Session

# ── unasked ───────────────────────────────────────────────────────────────────────────────────────
# A provider that cannot be asked: for sessions that are to be read, searched and erased all the same.


class UnavailableProvider:
    """A `Provider` that says why it gives no answer."""

    dialect: Dialect = "openai_chat"

    def __init__(
        self, name: str, why: str, *, window: int | None, code: str = "refused", elsewhere: bool = False
    ) -> None:
        """`elsewhere`: not even a message may be left for it."""
        self.name = name or "unknown"
        self.model: Model = model.model(self.name.partition("@")[0], window=window)
        self.why = why
        self.elsewhere = elsewhere
        self._code = code

    async def send(self, request: Fitted, *, max_tokens: int) -> AsyncIterator[ReplyPiece | Reply]:
        nothing: tuple[ReplyPiece, ...] = ()
        for piece in nothing:
            yield piece
        raise ProviderError(self.why, code=self._code)

    async def close(self) -> None:
        """There is nothing to close."""


# ── room ──────────────────────────────────────────────────────────────────────────────────────────

KEPT: Final = 64
"""Ended turns that can still be followed."""
PUT_OFF: Final = "the server stops: the message is kept, and will be answered at its next start"
Told = Callable[["LiveSession", Turn], Awaitable[None]]


class Compaction(msgspec.Struct, frozen=True, kw_only=True):
    event: Event
    before: int
    """Tokens of a request before and after."""
    after: int


class LiveSession:
    def __init__(self, ground: Runtime, tenant: str, agent: Agent, answered: Sequence[Told]) -> None:
        self.tenant = tenant
        self.session: Session = agent.session
        self.id: str = agent.session.id
        self._ground = ground
        self._agent = agent
        self._answered = answered
        self._turns: OrderedDict[int, Turn] = OrderedDict()
        self._running: Turn | None = None
        self._task: asyncio.Task[None] | None = None
        self._called = False
        self._left = False

    @property
    def model(self) -> str:
        return self._agent.provider.name

    @property
    def busy(self) -> bool:
        """A turn runs or waits in this process."""
        return self._task is not None

    # ── turns ────────────────────────────────────────────────────────────────────────────────────────

    async def say(self, content: Content, *, key: str = "", dialect: Dialect = "") -> Turn:
        """Store the user's words, to be answered after whatever was said before. The same key is the same turn."""
        said = UserSaid(content=content, dialect=dialect)
        kept = said if self._ground.redact is None else self._ground.redact(said)
        assert isinstance(kept, UserSaid)
        return await self._put(key, kept.content, dialect)

    async def again(self, *, key: str = "") -> Turn:
        """Ask the model once more, when the last turn came to nothing. The same key is the same turn."""
        newest = None if key else await self._ground.desk.newest(self.tenant, self.id)
        return await self._put(key or f"again-{newest.id if newest else 0}", None, "")

    def turn(self, id: str) -> Turn | None:
        """A turn that runs, waits, or ended lately."""
        return next((turn for turn in self._turns.values() if turn.id == id), None)

    def take_up(self) -> None:
        """Answer what lies in the inbox, if nobody does yet."""
        self._called = True
        if self._ground.closing:
            self._put_off()
        elif self._task is None:
            self._task = asyncio.create_task(self._work())

    async def at_rest(self) -> None:
        """Until nothing runs here."""
        while self._task is not None:
            await asyncio.wait([self._task])

    def stop(self) -> None:
        """End the turn that runs, or the one that is next."""
        waiting = (turn for turn in self._turns.values() if turn.state == "waiting")
        turn = self._running or next(waiting, None)
        if turn is not None:
            turn.stop()

    def give_up(self) -> None:
        """End the turn that runs and begin no other, even while another process works on the session."""
        if self._running is not None:
            self._running.stop()
        elif self._task is not None:
            self._task.cancel()

    @contextmanager
    def leaving(self) -> Iterator[None]:
        """While the session is being erased: the turn that runs is ended, and no other begun."""
        self._left = True
        self.give_up()
        try:
            yield
        finally:  # if it could not be erased, its messages are answered after all
            self._left = False
            self.take_up()

    async def _put(self, key: str, content: Content | None, dialect: Dialect) -> Turn:
        provider = self._agent.provider
        if isinstance(provider, UnavailableProvider) and provider.elsewhere:
            raise AnsweredElsewhere(provider.why)
        entry, fresh = await self._ground.desk.put(
            self.tenant,
            self.id,
            key=self._ground.harmless(key) or uuid4().hex,
            content=content,
            dialect=dialect,
            now=self._ground.clock(),
        )
        turn = self._turn(entry)
        if entry.state == "done" and turn.state != "ended":
            await elsewhere(self.session, entry, turn)  # it ended before this process began
        elif entry.state != "done":
            self.take_up()
        if fresh:
            await self._ground.tell_waiting()
        return turn

    def _turn(self, entry: InboxEntry) -> Turn:
        """The turn of a message, the same for all who ask."""
        known = self._turns.get(entry.id)
        if known is None or (known.state == "ended" and entry.state != "done"):
            ended = [id for id, turn in self._turns.items() if turn.state == "ended"]
            for id in ended[: max(0, len(self._turns) + 1 - KEPT)]:
                del self._turns[id]
            for id in ended[-1:]:
                self._turns[id].thin()
            known = Turn(entry.turn, tenant=self.tenant, session=self.id, key=entry.key)
            self._turns[entry.id] = known
        return known

    async def _work(self) -> None:
        """Answer what lies in the inbox, one message after the other, while nobody else works on the session. What
        goes wrong is told by the turns; a message that could not be taken up stays where it is."""
        try:
            while self._called and not self._ground.closing:
                self._called = False
                async with self._ground.turnstile.hold(self.tenant, self.id):
                    await self._empty_inbox()
                await self._learn()
        except FovealError as problem:
            self._end_all(
                TurnOutcome(why="failed", problem=str(problem), code=type(problem).__name__, kept=True)
            )
        except Exception as problem:  # noqa: BLE001 (nobody may wait for ever, whatever it is)
            LOG.error("a room failed: %s", type(problem).__name__)
            told = f"something unexpected went wrong ({type(problem).__name__}); the message is kept"
            self._end_all(TurnOutcome(why="failed", problem=told, code=type(problem).__name__, kept=True))
        finally:
            self._task = None  # nothing is awaited between the last look at `_called` and this
            if self._ground.closing:
                self._put_off()

    def _put_off(self) -> None:
        """Let those go who wait for turns that the next start will take up."""
        self._end_all(TurnOutcome(why="stopped", problem=PUT_OFF, code="stopping", kept=True))

    def _end_all(self, outcome: TurnOutcome) -> None:
        """The same end for all turns but the one that runs."""
        for turn in self._turns.values():
            if turn is not self._running:
                turn.end(outcome)

    async def _empty_inbox(self) -> None:
        while not self._ground.closing:
            info = await self.session.info()
            if info.erased:
                await self._ground.desk.forget(self.tenant, self.id)
                self._end_all(deleted())
            if self._left or info.erased:
                return
            entry = await self._ground.desk.take(self.tenant, self.id, last=info.events - 1)
            if entry is None:
                return
            turn = self._running = self._turn(entry)
            try:
                await TurnRunner(self._ground, self._agent, entry, turn).run()
            finally:
                self._running = None
            await self._ground.tell_waiting()
            await self._tell(turn)

    async def _learn(self) -> None:
        """How turns ended that another process has answered."""
        for id, turn in list(self._turns.items()):
            if turn.state != "ended":
                entry = await self._ground.desk.entry(id)
                if entry is None or entry.state == "done":
                    await elsewhere(self.session, entry, turn)

    async def _tell(self, turn: Turn) -> None:
        for told in self._answered:
            try:
                await told(self, turn)
            except Exception as problem:  # noqa: BLE001 (whoever listens has his own troubles)
                LOG.error("an answer could not be told on: %s", type(problem).__name__)

    # ── steering ─────────────────────────────────────────────────────────────────────────────────────

    async def append(self, *facts: AnyFact) -> tuple[Event, ...]:
        """Store facts that nobody has to answer."""
        self._at_rest("append to it")
        async with self._ground.turnstile.hold(self.tenant, self.id):
            return await self.session.append(*facts)

    async def note(self, text: str, *, topic: str) -> None:
        """Leave a note for whoever reads the log, between turns."""
        async with self._ground.turnstile.hold(self.tenant, self.id):
            await self.session.append(Noted(text=text, topic=topic))

    async def compact(self, focus: str = "") -> Compaction:
        """Summarise old turns now; raises `NotCompacted`."""
        self._at_rest("compact it")
        async with self._ground.turnstile.hold(self.tenant, self.id):
            before = (await self.session.report()).used
            event = await self.session.compact(focus)
            return Compaction(event=event, before=before, after=(await self.session.report()).used)

    async def undo(self, name: str | None = None) -> Event:
        """Take back a reduction, the newest if none is named."""
        self._at_rest("undo something")
        async with self._ground.turnstile.hold(self.tenant, self.id):
            return await self.session.undo(name)

    async def pin(self, text: str = "", *, event: str | None = None) -> str:
        self._at_rest("pin something")
        return await self.session.pin(text, event=event)

    async def prepare(self) -> Event | None:
        """Write the summary that will be needed soon; messages are answered meanwhile."""
        return await self.session.prepare()

    async def rename(self, title: str) -> None:
        await self.session.rename(title if self._ground.redact is None else scrub(title))

    def _at_rest(self, what: str) -> None:
        if any(turn.state != "ended" for turn in self._turns.values()):
            raise Busy(f"session {self.id!r} is answering: {what} when it has ended, or stop it first")

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────

    async def report(self) -> Report:
        return await self.session.report()

    async def usage(self) -> UsageTotals:
        return await self.session.usage()

    async def events(self, *, first: int = 0, last: int | None = None) -> list[Event]:
        return await self.session.events(first=first, last=last)

    async def search(self, query: str, limit: int = 50) -> list[Hit]:
        return await self.session.search(query, limit)

    async def info(self) -> SessionInfo:
        return await self.session.info()

    async def close(self) -> None:
        """Stop what is being written in the background."""
        await self.session.close()
