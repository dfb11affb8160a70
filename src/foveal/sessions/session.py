"""A durable session: the engine of `Context` with its log in a store.

    async with foveal.open_store("chats.db") as store:
        session = await foveal.Session.open(store, "demo", model="anthropic/claude-sonnet-4-5")
        await session.append(foveal.UserSaid(content="…"))
        messages = (await session.fit()).to_anthropic()

1. Facts are stored when `append` returns; only stored facts are shown to a model.
2. When another process appended first, the session reads what it missed and tries again: a conflict never loses a
   user's message, and a reduction is decided again.
3. Messages can be appended while a summary is written; the next request waits for it only when it must.
"""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, Literal, NoReturn, Self, Unpack

from msgspec.structs import replace

from foveal.branches import Branch
from foveal.core import wire
from foveal.core.compaction.summariser import Summarise, SummaryProgress, summariser_chain
from foveal.core.engine.asked_cut import (
    CONTEXT_CUT,
    CONTEXT_STATUS,
    CONTEXT_TOOL_NAMES,
    cut_answer,
    plan_asked_cut,
    read_cut_request,
    refusal_text,
    status_text,
)
from foveal.core.engine.branches import (
    BranchStatus,
    branch_ended,
    branched,
    fold_handle,
    joined_messages,
    kept_in,
    list_branches,
    not_joined_yet,
)
from foveal.core.engine.context_arguments import (
    check_extras,
    check_new_session_id,
    check_seq,
    check_store,
    check_text,
    checked_facts,
    checked_list,
)
from foveal.core.engine.engine import Engine
from foveal.core.engine.event_status import EventStatus, event_status, prioritised_status
from foveal.core.engine.operations import (
    OPERATIONS,
    OperationArguments,
    OperationName,
    decide,
    focus_fact,
    seq_of,
)
from foveal.core.engine.report import Report, report
from foveal.core.engine.reviews import ProposedCut, ReductionHook, Wish, failed_wish, read_wish
from foveal.core.engine.settings import (
    EngineSettings,
    SettingArguments,
    check_room,
    has_other_limits,
    lost_policy,
    opened_fact,
    opens_anew,
    resolve_settings,
)
from foveal.core.engine.tool_deferral import ToolDeferral
from foveal.core.engine.unreadable_summaries import Unreadable, unreadable_after_switch
from foveal.core.engine.user_statements import UserStatement, list_statements
from foveal.core.log.events import (
    AnyFact,
    Branched,
    BranchEnded,
    Call,
    Compacted,
    DialectName,
    Equipped,
    Event,
    Instructed,
    ModelSaid,
    Opened,
    Priority,
    Reverted,
    Rewound,
    SnapshotTaken,
    UserSaid,
    calls_of,
    handle,
    unraw,
)
from foveal.core.models.budget import Caps
from foveal.core.models.cost import UsageTotals
from foveal.core.models.model import Model
from foveal.core.models.spending import LimitText, read_limits
from foveal.core.policies.ladder.mask import mask_refused_media
from foveal.core.tokens.counter import Counter
from foveal.core.view.fold import effective_events
from foveal.core.view.request import Fitted, ReducedCounts
from foveal.core.view.view import View
from foveal.core.wire.tool_schemas import parse_arguments
from foveal.errors import (
    BadSetting,
    Busy,
    Conflict,
    FovealError,
    ReductionHookFailed,
    SessionExists,
    SettingsChanged,
    UnknownSession,
    UsageMissing,
)
from foveal.memory.attached import checked_memories, current_text, heard_notes
from foveal.memory.memory import Memory
from foveal.ports import Hit, SessionEnd, SessionInfo, Store
from foveal.sessions.background_compaction import BackgroundCompaction
from foveal.sessions.continuation import Carry, carried_facts
from foveal.sessions.event_writer import DEFAULT_OPTIONS, EventWriter, SessionOptions
from foveal.sessions.fitter import ManualCompaction, RequestFitter
from foveal.sessions.log_reader import BranchReader, effective_slices
from foveal.sessions.offload import offload
from foveal.user_paths import prompt_text

REPORTED_PER_FOLDED: Final = 8
"""Events that a report lists in the time in which one new event is counted and folded, about."""


def events_in_memory(model: Model, caps: Caps | None = None) -> int:
    """Return how many events a session keeps in memory: twice what fits into the window at 200 tokens each."""
    max_input = model.max_input
    if caps is not None and caps.max_input_tokens is not None:
        max_input = min(max_input, caps.max_input_tokens)
    return min(2_000, max(100, max_input // 200 * 2))


_asking: ContextVar[asyncio.Lock | None] = ContextVar("asking", default=None)
"""The lock of the session whose hook is at work in this task, or in the one that has started it."""


class _OwnHookLock(asyncio.Lock):
    """Lets one operation of a session work at a time. A hook is part of one, and would wait for itself."""

    def __init__(self) -> None:
        super().__init__()
        self._is_asking = False

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Refuse what the hook does with the session, as long as it works."""
        token, self._is_asking = _asking.set(self), True
        try:
            yield
        finally:
            self._is_asking = False
            _asking.reset(token)

    async def acquire(self) -> Literal[True]:
        """Wait for the lock; raises `Busy` in the hook that the lock is held for."""
        if self._is_asking and _asking.get() is self:
            raise Busy("the hook `on_reduction` of this session is at work: it cannot use the session")
        return await super().acquire()


class Session:
    """A conversation whose log is in a store.

    Use a session from one event loop; calls are served one after the other. `Session.open` creates it; the
    constructor does not read the store.

    Args:
        store: The store that keeps the log.
        id: The id of the session in the store.
        settings: The resolved settings.
        clock: Returns the time in seconds since 1970.
        background: Writes summaries while other calls are served.
        options: Redaction, a callback for stored events, and when summaries are prepared.
        memories: What is known from earlier conversations; every request shows it.
        on_reduction: Sees each cut before it is made.

    Examples:
        ```python
        import foveal

        async with foveal.open_store("chats.db") as store:
            session = await foveal.Session.open(store, "demo", model="claude-sonnet-4-6")
            await session.append(foveal.UserSaid(content="Why is CI red?"))
            messages = (await session.fit()).to_anthropic()
        ```
    """

    def __init__(
        self,
        store: Store,
        id: str,
        settings: EngineSettings,
        clock: Callable[[], float],
        background: BackgroundCompaction,
        *,
        options: SessionOptions = DEFAULT_OPTIONS,
        memories: tuple[Memory, ...] = (),
        on_reduction: ReductionHook | None = None,
    ) -> None:
        self.store = store
        """The store that has the session."""
        self.id = id
        """The id of the session."""
        self.memories = memories
        """The memories that its requests show."""
        max_events = events_in_memory(settings.model, settings.caps)
        if not settings.caps.max_messages:
            settings = settings._replace(caps=replace(settings.caps, max_messages=max_events * 3 // 4))
        self._options = options
        self._hook = on_reduction
        self._writer = EventWriter(
            store, id, settings, clock, max_events_in_memory=max_events, options=options
        )
        self._background = background
        self._clock = clock
        self._lock = _OwnHookLock()
        self._fitter = RequestFitter(
            self._writer,
            background,
            clock,
            prepares_summaries=options.prepares_summaries,
            review=None if on_reduction is None else self._review,
        )
        self._manual = ManualCompaction(self._writer, self._fitter, background, self._lock)
        self._branch = BranchReader(store, id)
        self._unstored: tuple[AnyFact, ...] = ()
        """What a new session, or one that continues with another reserve, begins with until facts are stored."""
        self._discarding: asyncio.Task[None] | None = None
        """Records that a summary is discarded; kept here because the event loop does not keep tasks alive."""

    @classmethod
    async def open(
        cls,
        store: Store,
        id: str,
        *,
        model: str | Model,
        origin: str = "",
        folder: str = "",
        summarise: Summarise | Sequence[Summarise] | None = None,
        prompt: str = "",
        progress: Callable[[SummaryProgress], None] | None = None,
        on_reduction: ReductionHook | None = None,
        clock: Callable[[], float] | None = None,
        options: SessionOptions = DEFAULT_OPTIONS,
        begin: Sequence[AnyFact] = (),
        is_new: bool = False,
        memory: Memory | Sequence[Memory] | None = None,
        **settings: Unpack[SettingArguments],
    ) -> Self:
        """Open a session, or create it.

        A change of model or policy is recorded in the log, and a change of the reserve with the next fact.

        Args:
            store: The store.
            id: The id of the session.
            model: The model's name, or a `foveal.Model`.
            origin: The session that this one continues; recorded in the log. `""` records none.
            folder: The working folder; recorded with the first event. `""` records none.
            summarise: The callables, sync or async, that write summaries, in the order in which they are tried.
                None writes summaries from the log alone.
            prompt: A text, or `file://…`, that replaces the task of the summary prompt. `""` keeps Foveal's.
            progress: Called with a `SummaryProgress` while a summary is written. None reports nothing.
            on_reduction: Called with a `ProposedCut` before a cut is made; it returns None, or what to keep, a
                focus or a veto (`Steering`). It may be async, and must not call the session. None asks nothing.
            clock: Returns the time in seconds since 1970. None uses `time.time`.
            options: Redaction, a callback for stored events, and when summaries are prepared. The default has
                none of them.
            begin: Facts that a new session starts with; they are stored together with its first event.
            is_new: Whether no session has this id. Nothing is read then, and the session is stored with the
                first `append`.
            memory: What is known from earlier conversations, or several of them: every request shows it behind the
                instructions. The first one also obeys "remember that …". None shows none.
            **settings: The settings that `Context` and `Session` share; `SettingArguments` lists them with
                their defaults.

        Returns:
            The session, ready for `append` and `fit`.

        Raises:
            BadSetting: A setting is unknown or outside its range, or an argument has a wrong type.
            SessionExists: The session was erased.
            StoreError: The store cannot be read or written.

        Examples:
            ```python
            import foveal

            async with foveal.open_store("chats.db") as store:
                session = await foveal.Session.open(store, "demo", model="gpt-4.1", policy="handoff", window=64_000)
            ```
        """
        check_store(store, id, field="id")
        check_extras(prompt=prompt, progress=progress, clock=clock, on_reduction=on_reduction)
        check_text("origin", origin, 'the id of a session, or ""')
        check_text("folder", folder)
        begin = checked_facts("begin", begin)
        if not isinstance(options, SessionOptions):
            raise BadSetting("options", options, "a `SessionOptions`")
        if not isinstance(is_new, bool):
            raise BadSetting("is_new", is_new, "True or False")
        clock = clock or time.time
        background = BackgroundCompaction(
            summariser_chain(summarise), prompt=prompt_text(prompt), clock=time.monotonic, progress=progress
        )
        resolved, memories = resolve_settings(model, **settings), checked_memories(memory)
        session = cls(
            store,
            id,
            resolved,
            clock,
            background,
            options=options,
            memories=memories,
            on_reduction=on_reduction,
        )
        async with session._lock:
            engine = session._writer.begin() if is_new else await session._writer.load()
            if session._writer.is_erased:
                raise SessionExists(id)
            if not engine.next_seq:
                check_new_session_id("id", id)
            before = engine.opened
            about = "" if engine.next_seq else folder
            reserve = resolved.caps.reserve
            kept = {} if reserve is None else {"reserve": reserve}
            opened = opened_fact(resolved.model, engine.policy, origin=origin, folder=about, settings=kept)
            if is_new:
                session._unstored = (opened, *begin)
            elif origin or opens_anew(opened, before):
                unreadable = unreadable_after_switch(engine.view, opened, before)
                instead = await session._facts_instead(engine, unreadable)
                await session._writer.commit([opened, *instead, *(() if engine.next_seq else begin)])
            elif has_other_limits(opened, before):
                session._unstored = (opened,)
            lost = lost_policy(before, engine.policy, given=settings)
            if lost and not is_new:
                changed = [f"policy: {lost} → {engine.policy.name}"]
                warnings.warn(SettingsChanged(changed, lost_policy=lost), stacklevel=2)
        return session

    def __repr__(self) -> str:
        return f"<Session {self.id}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Session cannot be pickled or copied: its events are in its store; `Session.open` opens it again"
        )

    # ── The loop ─────────────────────────────────────────────────────────────────────────────────────

    async def append(self, *facts: AnyFact) -> tuple[Event, ...]:
        """Store facts; they are durable when this returns.

        Args:
            *facts: Facts of `foveal.events`, such as `UserSaid`. They are stored together, or none is.

        Returns:
            The stored events.

        Raises:
            BadSetting: An argument is not a fact. Messages of a provider go to `take`.
            StoreError: The store cannot write.

        Examples:
            ```python
            import foveal

            async with foveal.stores.MemoryStore() as store:
                session = await foveal.Session.open(store, "demo", model="gpt-4.1")
                (event,) = await session.append(foveal.UserSaid(content="Why is CI red?"))
                assert event.handle == "e1"
            ```
        """
        checked_facts("facts", facts)
        async with self._lock:
            events = await self._commit(facts)
            if notes := await heard_notes(self.memories, events, session=self.id):
                await self._commit(notes)
            if facts and isinstance(facts[-1], ModelSaid) and not calls_of(facts[-1].content):
                await self._fitter.turn_finished()
            return events

    async def take(self, *messages: Any, dialect: DialectName = "") -> tuple[Event, ...]:
        """Store messages of a provider.

        Args:
            *messages: Dicts, or objects of the provider's client.
            dialect: The format of the messages. `""` detects it.

        Returns:
            The stored events.

        Raises:
            MalformedMessage: A message cannot be read in the dialect.
            BadSetting: The dialect is unknown.
            StoreError: The store cannot write.

        Examples:
            ```python
            import foveal

            async with foveal.stores.MemoryStore() as store:
                session = await foveal.Session.open(store, "demo", model="gpt-4.1")
                await session.take({"role": "user", "content": "Why is CI red?"})
            ```
        """
        reader = wire.wire_for(wire.checked_dialect(dialect) or wire.detect_dialect(messages))
        return await self.append(*(fact for chunk in reader.read(messages) for fact in chunk.facts))

    async def equip(
        self, tools: Sequence[Any], *, deferral: ToolDeferral | None = None, dialect: DialectName = ""
    ) -> bool:
        """Set the tools that are offered from here on.

        They are counted. The same tools are not stored again.

        Args:
            tools: The schemas of the tools, in any dialect.
            deferral: Decides which of them are offered, and which the model must load. None offers all.
            dialect: The dialect of the requests, for a deferral.

        Returns:
            Whether other tools are offered, or were loaded, than before.

        Raises:
            BadSetting: `tools` is not a list, or JSON cannot hold it.
            StoreError: The store cannot write.

        Examples:
            ```python
            import foveal

            async with foveal.stores.MemoryStore() as store:
                session = await foveal.Session.open(store, "demo", model="gpt-4.1")
                await session.equip([{"type": "function", "function": {"name": "bash"}}])
            ```
        """
        tools = checked_list("tools", tools, "a list of schemas; an empty one for no tools")
        wire.tools_text(tools)  # checks the items
        async with self._lock:
            offered = self._writer.redact(Equipped(tools=wire.raw_setting(wire.plain_json(tools), "tools")))
            engine = await self._writer.refresh()
            held = engine.view.tools
            facts = [offered] if (held is None and tools) or (held is not None and held[1] != offered) else []
            if deferral is not None and isinstance(offered, Equipped):
                deferral.give(unraw(offered.tools), "", self.counter)
                if deferral.is_active:
                    facts = deferral.facts(
                        engine.view, engine.model.name, dialect=wire.checked_dialect(dialect)
                    )
            if facts:
                await self._commit(facts)
            return bool(facts)

    async def fit(self, *, may_exceed: bool = False) -> Fitted:
        """Return what the next request should send: legal, and within the budget.

        It waits for a summary only when the request would not fit without it. Messages can be appended
        meanwhile.

        Args:
            may_exceed: Whether a request that cannot be reduced further is returned as it is, because the
                provider may accept it. By default it is an error.

        Returns:
            The request, which `to_openai`, `to_anthropic` and others write for a provider.

        Raises:
            ContextOverflow: The request cannot be made to fit; the error has the numbers.
            BudgetExceeded: The request would exceed a spending limit (`limit`), or its price is not known.
            UnknownSession: The session was deleted.
            StoreError: The store cannot be read or written.

        Examples:
            ```python
            import foveal

            async with foveal.stores.MemoryStore() as store:
                session = await foveal.Session.open(store, "demo", model="gpt-4.1")
                await session.append(foveal.UserSaid(content="Why is CI red?"))
                request = await session.fit()
                assert request.tokens <= request.limit
            ```
        """
        waited = False
        while True:
            async with self._lock:
                await self._show_memories()
                if facts := (await self._writer.load_kept()).budget_facts(at=self._clock()):
                    await self._commit(facts)
                fitted = await self._fitter.fit(may_start_summary=not waited, may_exceed=may_exceed)
            if fitted is not None:
                return fitted
            waited = True
            await self._background.wait()

    async def _show_memories(self) -> None:
        """Record what the memories say, if the view shows something else. The lock is held."""
        known = self._writer.engine
        if not self.memories and known is not None and known.view.memory is None:
            return
        text = await current_text(self.memories)
        engine = await self._writer.refresh()
        facts = [self._writer.redact(fact) for fact in engine.memory_facts(text)]
        if facts and text and (shown := engine.view.memory) is not None:
            (fact,) = facts
            if isinstance(fact, Instructed) and fact.content == shown.utterance.fact.content:
                return  # only what may not be stored differs
        if facts:
            await self._commit(facts)

    async def set_reserve(self, tokens: int | None) -> None:
        """Change the setting `reserve` for the next requests.

        Args:
            tokens: Tokens to keep free for the answer. None keeps what the model may write, at most an eighth
                of the window.

        Raises:
            BadSetting: The number is negative, not whole, or not smaller than the window.
        """
        async with self._lock:
            settings = self._writer.settings
            check_room(settings.model, replace(settings.caps, reserve=tokens))
            self._writer.set_reserve(tokens)

    async def set_limit(self, limit: LimitText | None) -> None:
        """Change the setting `limit` for the next requests.

        Args:
            limit: Most dollars or tokens that the session may use, such as `"5 USD"`, or several; a number is
                dollars. None is no limit.

        Raises:
            BadSetting: A limit is not understood.
        """
        async with self._lock:
            self._writer.set_limit(() if limit is None else read_limits(limit))

    async def observe(self, reported: Any) -> None:
        """Record the usage that a provider reported for the last request.

        A reply without usage is a warning (`UsageMissing`), once per conversation.

        Args:
            reported: The usage as an object or a dict, or the whole reply.

        Raises:
            BadSetting: The report is not understood.

        Examples:
            ```python
            import foveal

            async with foveal.stores.MemoryStore() as store:
                session = await foveal.Session.open(store, "demo", model="gpt-4.1")
                await session.append(foveal.UserSaid(content="Why is CI red?"))
                await session.fit()
                await session.observe({"prompt_tokens": 14, "completion_tokens": 5})
                assert (await session.usage()).calls == 1
            ```
        """
        async with self._lock:
            requests = self._fitter.requests
            facts = requests.usage_facts(reported, await self._writer.load(), requests.last)
            if facts:
                await self._commit(facts)
            elif requests.is_first_without_usage(reported):
                warnings.warn(UsageMissing(), stacklevel=2)

    async def overflowed(self, error: object) -> bool:
        """Return whether a provider's error says that the request was too large.

        If so, the session learns the limit, and the next `fit` (or `max_tokens`) is smaller: send again.

        Args:
            error: The exception of a client, or the body of the response.

        Returns:
            True if the request should be fitted and sent again; False if the error is about something else.

        Raises:
            ContextOverflow: Several smaller requests in a row were refused too.
        """
        async with self._lock:
            engine = await self._writer.refresh()
            found = engine.refusal(error, sent=self._fitter.requests.last.tokens)
            if isinstance(found, Unreadable):
                await self._commit(await self._facts_instead(engine, found))
            elif found is not None:
                await self._commit([found])
            return found is not None

    async def _facts_instead(self, engine: Engine, unreadable: Unreadable) -> list[AnyFact]:
        """Return what takes the place of what the model cannot read."""
        log = await self._writer.whole_log() if unreadable.items else ()
        return await offload(lambda: engine.facts_instead(unreadable, log), events=len(log))

    async def hide_refused_media(self) -> Event | None:
        """Show placeholders instead of images and files that a provider may have refused.

        The newest ones are hidden first: those that came after the newest answer.

        Returns:
            The event that records it; None if there is nothing to hide.
        """
        async with self._lock:
            engine = await self._writer.refresh()
            fact = None if engine.policy.ladder == "off" else mask_refused_media(engine.view)
            return None if fact is None else (await self._commit_changes([fact]))[0]

    # ── Reading ──────────────────────────────────────────────────────────────────────────────────────

    async def usage(self) -> UsageTotals:
        """Return the tokens and dollars that this session has used so far."""
        async with self._lock:
            return (await self._writer.refresh()).usage_totals

    async def max_tokens(self) -> int:
        """Return the most tokens that the answer to the next request may take."""
        async with self._lock:
            return (await self._writer.refresh()).max_tokens

    async def report(self, *, with_events: bool = True, with_statements: bool = False) -> Report:
        """Return what fills the window and why.

        The report lists the events that the view needs, not the whole log.

        Args:
            with_events: Whether the report lists events. Without them it takes less time.
            with_statements: Whether it lists what the user said that still holds, and warns of what is shown
                nowhere. For that, all messages of the user are read from the store.

        Returns:
            A `Report`; `print` shows it as a table.

        Examples:
            ```python
            import foveal

            async with foveal.stores.MemoryStore() as store:
                session = await foveal.Session.open(store, "demo", model="gpt-4.1")
                print(await session.report())
            ```
        """
        async with self._lock:
            requests, engine = self._fitter.requests, await self._writer.refresh()
            work = partial(
                report,
                engine,
                fitted=requests.count,
                breaks=requests.breaks,
                statements=await self._statements(engine) if with_statements else (),
                with_events=with_events,
                at=self._clock(),
            )
            return await offload(work, events=len(engine.log) // REPORTED_PER_FOLDED)

    async def statements(self) -> tuple[UserStatement, ...]:
        """Return what the user said that still holds: rules, corrections and facts, oldest first.

        Each has the message it stands in, the later message that replaces it, if any, and where the next request
        shows it. All messages of the user are read from the store.

        Examples:
            ```python
            import foveal

            async with foveal.stores.MemoryStore() as store:
                session = await foveal.Session.open(store, "demo", model="gpt-4.1")
                await session.append(foveal.UserSaid(content="Never push to main."))
                (statement,) = await session.statements()
                assert statement.shown == "verbatim"
            ```
        """
        async with self._lock:
            return await self._statements(await self._writer.refresh())

    async def _statements(self, engine: Engine) -> tuple[UserStatement, ...]:
        store, id = self._writer.store, self._writer.id
        end = (await store.end(id)).next_seq
        said = [
            event
            async for part in effective_slices(store, id, first=0, end=end)
            for event in part
            if isinstance(event.fact, UserSaid)
        ]
        return await offload(partial(list_statements, said, engine.view), events=len(said))

    async def why(self, name: str | int) -> EventStatus:
        """Return how the next request shows one event, and why.

        Args:
            name: The handle of an event (`"e12"`), or its seq.

        Returns:
            The level, the tokens, the rule, and the event that recorded the reduction.

        Raises:
            UnknownHandle: No event has this handle.
        """
        async with self._lock:
            event = await self._writer.event(name)
            engine = await self._writer.refresh()
            asides = engine.view.asides.values()
            if engine.view.find(event.seq) or any(shown.seq == event.seq for shown in asides):
                return event_status(engine, event)
            return prioritised_status(engine, await self._writer.hidden_status(event), event.seq)

    async def original(self, name: str | int) -> str:
        """Return the whole text of an event, at whatever level it is shown.

        Args:
            name: The handle of an event, or its seq.

        Raises:
            UnknownHandle: No event has this handle.
        """
        return wire.original_text((await self._writer.event(name)).fact)

    async def event(self, name: str | int) -> Event:
        """Return the event with this handle.

        Args:
            name: The handle of an event, or its seq.

        Raises:
            UnknownHandle: No event has this handle.
        """
        return await self._writer.event(name)

    async def events(self, *, first: int = 0, last: int | None = None) -> list[Event]:
        """Return the events of a range of the log, oldest first.

        Args:
            first: The first seq.
            last: The last seq, included. None reads to the end.

        Raises:
            UnknownSession: Nothing is stored yet.
            BadSetting: An argument is not a number.
        """
        check_seq("first", first)
        if last is not None:
            check_seq("last", last)
        return await self.store.read(self.id, first=first, last=last)

    async def search(self, query: str, limit: int = 50) -> list[Hit]:
        """Return the events whose text has words of the query, best first.

        Args:
            query: Any text.
            limit: Most events to return.

        Raises:
            UnknownSession: Nothing is stored yet.
            BadSetting: `query` is not a text, or `limit` is not a number.

        Examples:
            ```python
            import foveal

            async with foveal.stores.MemoryStore() as store:
                session = await foveal.Session.open(store, "demo", model="gpt-4.1")
                await session.append(foveal.UserSaid(content="The ticket is OPS-17."))
                (hit,) = await session.search("ticket")
                assert hit.seq == 1
            ```
        """
        check_text("query", query)
        check_seq("limit", limit)
        return await self.store.search(self.id, query, limit=limit)

    async def pick(self, seqs: Sequence[int]) -> list[Event]:
        """Return the events with these seqs.

        Args:
            seqs: The seqs. Those that do not exist are left out.

        Raises:
            UnknownSession: Nothing is stored yet.
            BadSetting: `seqs` is not a list of numbers.
        """
        for seq in checked_list("seqs", seqs, "a list of seqs"):
            check_seq("seqs", seq)
        return await self.store.pick(self.id, seqs)

    async def left_behind(self) -> frozenset[int]:
        """Return the seqs of what is no part of the conversation any more.

        These are events that a rewind has taken back, and system texts that newer ones have replaced. Recall
        neither finds nor reads them.

        Raises:
            UnknownSession: Nothing is stored yet.
        """
        return await self._branch.left_behind(end=self.last + 1)

    def visible(self, seq: int) -> bool:
        """Return whether the current request shows an event in full.

        Args:
            seq: The seq of the event.

        Raises:
            BadSetting: `seq` is not a number.
        """
        check_seq("seq", seq)
        found = self._writer.engine.view.find(seq) if self._writer.engine is not None else None
        return found is not None and found[1].level == "full"

    async def needs_recall_tools(self) -> bool:
        """Return whether recall tools should be offered.

        They are needed when something is reduced. When other tools are offered, they are offered from the
        start, because a changed tool list moves the prefix.
        """
        async with self._lock:
            view = (await self._writer.refresh()).view
            return bool(ReducedCounts.of(view)) or (
                view.tools is not None and bytes(view.tools[1].tools) != b"[]"
            )

    async def open_calls(self) -> list[Call]:
        """Return the calls of the newest answers that have no result yet."""
        async with self._lock:
            steps = (await self._writer.refresh()).view.steps
            return [
                slot.call for step in steps if step.has_open_call for slot in step.slots if not slot.result
            ]

    @property
    def counter(self) -> Counter:
        """Counts the tokens of this session."""
        return self._writer.settings.counter

    @property
    def last(self) -> int:
        """The seq of the newest event that is known to be stored; -1 when none is known."""
        return self._writer.engine.next_seq - 1 if self._writer.engine is not None else -1

    async def end(self) -> SessionEnd:
        """Return where the session ends in the store, and whether it was erased.

        Raises:
            UnknownSession: Nothing is stored yet.
        """
        return await self.store.end(self.id)

    async def info(self) -> SessionInfo:
        """Return the session's title, times and size.

        Raises:
            UnknownSession: Nothing is stored yet.
        """
        return await self.store.info(self.id)

    def redacted(self, fact: AnyFact) -> AnyFact:
        """Return a fact as it would be stored.

        Args:
            fact: Any fact. `SessionOptions.redact` changes it; without that it is returned as it is.

        Raises:
            BadSetting: It is not a fact.
        """
        checked_facts("fact", [fact])
        return self._writer.redact(fact)

    # ── Changing what is shown ───────────────────────────────────────────────────────────────────────

    async def pin(self, text: str = "", *, event: str | int | None = None) -> str:
        """Keep a rule, or the step of an event, in every request.

        A step stays as it is shown now, or whole if it is hidden or expanded.

        Args:
            text: The rule. `""` pins only the event.
            event: The handle or seq of an event whose step is kept. None pins only the text.

        Returns:
            The handle of the pin, for `undo`.

        Raises:
            BadSetting: There is neither text nor event, or the text does not fit.
            UnknownHandle: No event has this handle, or the event is no message.
            ContextOverflow: There is no room for the whole step.
        """
        return (await self._perform("pin", event, text=text))[0].handle

    async def supersede(self, name: str | int, *, by: str | int) -> str:
        """Say that a message of the user no longer holds, because of a later one.

        Wherever the message is shown, a line at its end names the later one. A pinned message stays pinned.
        Superseded again, the message names the newest one.

        Args:
            name: The handle or seq of the message, or of a pinned rule.
            by: The handle or seq of the later message of the user.

        Returns:
            The handle of the event that records it, for `undo`.

        Raises:
            UnknownHandle: No event has one of the handles, or the event is no message of the user, or it was
                rewound.
            BadSetting: `by` is not later than the message.
            ContextOverflow: There is no room for the line.
        """
        return (await self._perform("supersede", name, by))[0].handle

    async def drop(self, name: str | int) -> str:
        """Hide the step of an event, or a summary, until `undo`.

        A notice in the request names what is hidden. A summary leaves with all that it stands for.

        Args:
            name: The handle or seq of an event of the step.

        Returns:
            The handle of the event that records the drop.

        Raises:
            UnknownHandle: No event has this handle, or the event is not shown.
            NotDropped: Every request contains the event: an instruction, a pinned step, the latest user
                message, an open call.
        """
        return (await self._perform("drop", name))[0].handle

    async def manage(self, name: str, arguments: str | Mapping[str, Any]) -> str:
        """Answer a model's call of `context_status` or `context_cut` (`foveal.recall.context_tools`).

        Args:
            name: The name of the tool.
            arguments: The arguments as the model wrote them: JSON text or a mapping.

        Returns:
            The text for the model. A wrong call, or a cut that is not to be made, is answered with the reason.

        Raises:
            StoreError: The store cannot be read or written.

        Examples:
            ```python
            import foveal

            async with foveal.stores.MemoryStore() as store:
                session = await foveal.Session.open(store, "demo", model="gpt-4.1")
                await session.append(foveal.UserSaid(content="Why is CI red?"))
                assert "refused" in await session.manage("context_cut", {"why": "the search is done"})
            ```
        """
        given = parse_arguments(arguments)
        async with self._lock:
            engine = await self._writer.refresh()
            moment = self._fitter.requests.moment(engine)
            if isinstance(given, str):
                return refusal_text(given)
            if name == CONTEXT_STATUS:
                return await offload(partial(status_text, engine, moment), events=len(engine.log))
            if name != CONTEXT_CUT:
                return refusal_text(f"there are {' and '.join(CONTEXT_TOOL_NAMES)}")
            try:
                asked = read_cut_request(given, count=engine.next_seq)
                work = partial(plan_asked_cut, engine, moment, asked)
                planned = await offload(work, events=len(engine.log))
            except FovealError as problem:
                return refusal_text(problem)
            before = engine.calibration.tokens(engine.total_units)
            outcome = await self._fitter.write_ledger(engine, planned)
            if isinstance(outcome, Compacted):
                await self._commit_changes([asked.fact, outcome])
            return cut_answer(await self._writer.load(), outcome, before=before)

    async def mark(self, name: str | int, *, priority: Priority) -> str:
        """Say when reductions hide a message, `low` first and `high` last.

        A message of the model is meant with its results, a result alone. What is `high` goes after all that may
        go, and stays as it is while all of it takes at most half of the room. The request of now does not change.

        Args:
            name: The handle or seq of the message.
            priority: `"low"`, `"high"`, or `"normal"`, which takes an earlier mark and that of the tool back.

        Returns:
            The handle of the event that records it, for `undo`.

        Raises:
            UnknownHandle: No event has this handle, or the event is no message of this conversation.
            BadSetting: The priority is unknown.
        """
        return (await self._perform("mark", name, priority=priority))[0].handle

    async def focus_next(self, text: str) -> str:
        """Say what the next summary or record keeps above all.

        Args:
            text: The focus. `""` takes an earlier one back.

        Returns:
            The handle of the event that records it.

        Raises:
            BadSetting: `text` is not a text, or is too long.
        """
        fact = focus_fact(text)
        async with self._lock:
            return (await self._commit([fact]))[0].handle

    async def snapshot(self, data: Any, *, label: str = "") -> str:
        """Record the state of the application; it is never sent to the model.

        Args:
            data: Any value that JSON has, for example a commit id.
            label: A name under which the application finds the snapshot again.

        Returns:
            The handle of the event.

        Raises:
            BadSetting: JSON cannot hold the value, or `label` is not a text.

        Examples:
            ```python
            import foveal

            async with foveal.stores.MemoryStore() as store:
                session = await foveal.Session.open(store, "demo", model="gpt-4.1")
                handle = await session.snapshot({"commit": "4f2a"}, label="workspace")
                event = await session.event(handle)
                assert isinstance(event.fact, foveal.events.SnapshotTaken)
            ```
        """
        fact = SnapshotTaken(data=wire.raw_setting(data, "data"), label=check_text("label", label))
        return (await self.append(fact))[0].handle

    async def compact(self, focus: str = "") -> str:
        """Summarise old turns now.

        Args:
            focus: What the summary must keep above all. `""` sets no focus.

        Returns:
            The handle of the event that records the summary.

        Raises:
            NotCompacted: There is nothing to summarise, or no summary was written.
            BadSetting: `focus` is not a text.
        """
        check_text("focus", focus)
        return await self._manual.compact(focus)

    async def agree(self) -> str:
        """Answer the `question` of the report with yes, in mode `confirm`.

        The session then reduces as mode `auto` would.

        Returns:
            The handle of the newest reduction.

        Raises:
            NotCompacted: There is no question, or nothing can be reduced.
        """
        return await self._manual.agree()

    async def undo(self, name: str | int | None = None) -> str:
        """Take back a reduction, an expansion, a pin, a `supersede` or a rewind.

        It does not matter what came after it. The messages of a rewind return to their places, before what was said
        since.

        Args:
            name: The handle or seq of the event that recorded it. None takes back the newest reduction,
                `supersede` or rewind.

        Returns:
            The handle of what was taken back.

        Raises:
            UnknownHandle: No event has this handle, or there is nothing to take back.
            ContextOverflow: There is no room for what it hides.
        """
        (undone,) = await self._perform("undo", name)
        assert isinstance(undone.fact, Reverted)
        return handle(undone.fact.target)

    async def expand(self, name: str | int) -> str:
        """Show a reduced range or step in full until the user's next message.

        Several expansions may together be larger than the limit: the report then says `over`, and the next `fit`
        reduces other messages, or ends expansions. No request exceeds the limit because of them.

        Args:
            name: The handle or seq of a reduction, or of an event whose step is shown.

        Returns:
            The handle of the first event that records the expansion.

        Raises:
            UnknownHandle: No event has this handle, or there is nothing to expand.
            ContextOverflow: There is no room for what is shown.
        """
        return (await self._perform("expand", name))[0].handle

    async def prepare(self) -> Event | None:
        """Write the summary that will be needed soon.

        It is for applications that turned off `SessionOptions.prepares_summaries`.

        Returns:
            The event that records the outcome; None when no summary will be needed soon, or one is being
            written.

        Raises:
            NotCompacted: The session was closed or deleted meanwhile.
        """
        return await self._manual.prepare()

    async def needs_summary_soon(self) -> bool:
        """Return whether a summary will be needed soon and none is being written."""
        async with self._lock:
            return self._fitter.upcoming_summary(await self._writer.refresh()) is not None

    async def rewind(self, to: str | int) -> None:
        """Return to the state after an event.

        Later events stay in the log and are not shown until `undo`.

        Args:
            to: The handle or seq of the last event that counts.

        Raises:
            UnknownHandle: No event has this handle.

        Examples:
            ```python
            import foveal

            async with foveal.stores.MemoryStore() as store:
                session = await foveal.Session.open(store, "demo", model="gpt-4.1")
                await session.append(foveal.UserSaid(content="Hello."), foveal.UserSaid(content="Why is CI red?"))
                await session.rewind("e1")
                assert len((await session.fit()).facts) == 1
            ```
        """
        async with self._lock:
            count = (await self._writer.refresh()).next_seq
            await self._commit_changes([Rewound(to=seq_of(to, count=count))])

    async def _perform(
        self, operation: OperationName, *names: str | int | None, text: str = "", priority: str = ""
    ) -> tuple[Event, ...]:
        """Store what an operation decides about the events with these handles."""
        async with self._lock:
            named = [None if name is None else await self._writer.event(name) for name in names]
            engine = await self._writer.refresh()
            event, by = (*named, None, None)[:2]
            given = OperationArguments(text, event, by, priority)
            log = await self._writer.whole_log() if OPERATIONS[operation].reads_log(engine, given) else ()
            facts = await offload(partial(decide, operation, engine, log, given), events=len(log))
            return await self._commit_changes(facts)

    async def _review(self, proposed: ProposedCut, count: int) -> Wish:
        """Return what the hook asks for in a log of `count` events; nothing if it fails, with a warning."""
        assert self._hook is not None
        try:
            with self._lock.asking():
                answer = self._hook(proposed)
                if isinstance(answer, Awaitable):
                    answer = await answer
            return read_wish(answer, count=count)
        except Exception as error:  # noqa: BLE001 (no request is lost because of a hook)
            failed = failed_wish(error)
        warnings.warn(ReductionHookFailed(failed.problem), stacklevel=1)
        return failed

    async def _commit(
        self, facts: Sequence[AnyFact], *, end: Callable[[View, Sequence[Event]], AnyFact] | None = None
    ) -> tuple[Event, ...]:
        """Store facts, after those of a new session that are not stored yet; return the events of `facts`, and that
        of what `end` returns."""
        begin = len(self._unstored)
        events = tuple(await self._writer.commit((*self._unstored, *facts), end=end))
        self._unstored = ()
        return events[begin:]

    async def _commit_changes(
        self, facts: Sequence[AnyFact], *, end: Callable[[View, Sequence[Event]], AnyFact] | None = None
    ) -> tuple[Event, ...]:
        """Store facts that may change the range of a summary that is being written; such a summary is discarded,
        which is recorded once it is written. The lock is held."""
        events = await self._commit(facts, end=end)
        if self._background.is_outdated((await self._writer.load()).view):
            self._discarding = asyncio.create_task(self._manual.record_outdated())
        return events

    # ── Branches ─────────────────────────────────────────────────────────────────────────────────────

    @asynccontextmanager
    async def branch(self, task: str) -> AsyncIterator[Branch]:
        """Run a part of the work that folds to its result when the block ends.

        The prefix does not change while the block runs. At its end, one record with the task, the result and the
        handles replaces what was said in it. An error folds it too, to its text, and is raised.

        Args:
            task: What the block is to do.

        Returns:
            A context manager with the `Branch`, for `result` and `keep`. Without a result, the last text of the
            model counts.

        Raises:
            BadSetting: `task` is not a text, or empty.
            StoreError: The store cannot write.

        Examples:
            ```python
            import foveal

            async with foveal.stores.MemoryStore() as store:
                session = await foveal.Session.open(store, "demo", model="gpt-4.1")
                async with session.branch("Find the failing test.") as branch:
                    await session.append(foveal.ModelSaid(content="It is test_dates.py."))
                    branch.result("test_dates.py fails")
                [record] = (await session.fit()).facts
                assert "test_dates.py fails" in str(record)
            ```
        """
        branch = Branch(task, await self.begin_branch(task))
        try:
            yield branch
        except BaseException as error:
            with suppress(FovealError):
                await self._close_branch(branch, error)
            raise
        await self._close_branch(branch)

    async def _close_branch(self, branch: Branch, error: BaseException | None = None) -> None:
        """Fold a branch at the end of its block, unless it has ended or was rewound meanwhile."""
        async with self._lock:
            engine = await self._writer.refresh()
            if any(handle(seq) == branch.handle for seq, _ in engine.view.open_branches):
                end, has_failed = engine.next_seq, error is not None
                ended = branch_ended(
                    engine.view,
                    branch.handle,
                    result=branch.result_after(error),
                    end=end,
                    keep=branch.kept_before(end),
                    has_failed=has_failed,
                )
                branch.end(await self._fold_branch(ended))
                branch.check_kept(end)

    async def begin_branch(self, task: str) -> str:
        """Begin a branch that `end_branch` ends, for code that has no block.

        A branch stays open when the session is closed and opened again.

        Args:
            task: What the branch is to do.

        Returns:
            The handle of the branch.

        Raises:
            BadSetting: `task` is not a text, or empty.
            StoreError: The store cannot write.
        """
        return (await self.append(branched(task)))[0].handle

    async def end_branch(
        self,
        result: str | None = None,
        *,
        name: str | int | None = None,
        keep: Sequence[str | int] = (),
    ) -> str:
        """End a branch, and those inside it, and fold it to its result.

        Args:
            result: What came of it. None takes the last text of the model.
            name: The handle of the branch. None ends the innermost one.
            keep: Handles of events inside that stay in view.

        Returns:
            The handle of the fold, for `undo` and `expand`; "" if there is no result and nothing to fold.

        Raises:
            UnknownHandle: No branch is open, or a handle names nothing in it.
            BadSetting: `result` is not a text.

        Examples:
            ```python
            import foveal

            async with foveal.stores.MemoryStore() as store:
                session = await foveal.Session.open(store, "demo", model="gpt-4.1")
                await session.begin_branch("Find the failing test.")
                fold = await session.end_branch("test_dates.py fails")
                await session.undo(fold)
            ```
        """
        async with self._lock:
            engine = await self._writer.refresh()
            end = engine.next_seq
            return await self._fold_branch(branch_ended(engine.view, name, result=result, end=end, keep=keep))

    async def _fold_branch(self, ended: BranchEnded) -> str:
        """Store the end of an open branch; return the handle of its fold, which follows; "" without one. The
        lock is held."""
        (event,) = await self._commit_changes([ended])
        return fold_handle((await self._writer.load()).log, event.seq)

    async def branches(self) -> tuple[BranchStatus, ...]:
        """Return the branches so far, in the order in which they began."""
        async with self._lock:
            end = (await self._writer.refresh()).next_seq
            slices = effective_slices(self.store, self.id, first=0, end=end)
            kinds = (Branched, BranchEnded, Compacted)
            return list_branches([e async for part in slices for e in part if isinstance(e.fact, kinds)])

    async def open_branches(self) -> tuple[str, ...]:
        """Return the handles of the branches that have not ended, the outermost first."""
        async with self._lock:
            view = (await self._writer.refresh()).view
            return tuple(handle(seq) for seq, _ in view.open_branches)

    async def join(
        self,
        fork: Session,
        result: str | None = None,
        *,
        task: str,
        keep: Sequence[str | int] = (),
    ) -> str:
        """Bring back what a fork has done, as a folded branch.

        Its messages are stored here, so the recall tools find them, and `undo` of the fold shows them.

        Args:
            fork: The forked session.
            result: What came of it. None takes the last text of its model.
            task: What it was to do.
            keep: Handles of its events, in its own log, that stay in view.

        Returns:
            The handle of the fold, for `undo` and `expand`; "" if there is no result and nothing to fold.

        Raises:
            BadSetting: `fork` is no fork of this session or joined already, or an argument is not a text.
            StoreError: A store cannot be read or written.

        Examples:
            ```python
            import foveal

            async with foveal.stores.MemoryStore() as store:
                session = await foveal.Session.open(store, "demo", model="gpt-4.1")
                await session.append(foveal.UserSaid(content="Why is CI red?"))
                child = await session.fork("demo-log")
                await child.append(foveal.ModelSaid(content="The disk was full."))
                await session.join(child, task="Read the log of the build.")
                assert "The disk was full." in str((await session.fit()).facts[-1])
            ```
        """
        log = await fork._writer.whole_log() if isinstance(fork, Session) else []
        origins = (e for e in log if isinstance(e.fact, Opened) and e.fact.origin.startswith(f"{self.id}@"))
        if (opened := next(origins, None)) is None:
            raise BadSetting("fork", fork, "a session that `fork` of this one has returned")
        began = branched(task, is_joined=True, fork=fork.id)
        said = joined_messages([event for event in effective_events(log) if event.seq > opened.seq])
        wanted = set(kept_in(opened.seq, keep, end=len(log)))

        def end(view: View, stored: Sequence[Event]) -> BranchEnded:
            first, *recorded = stored[-1 - len(said) :]
            kept = [new.seq for event, new in zip(said, recorded, strict=True) if event.seq in wanted]
            return branch_ended(view, first.seq, result=result, end=stored[-1].seq + 1, keep=kept)

        async with self._lock:
            for event in effective_events(await self._writer.whole_log()):
                if isinstance(event.fact, Branched) and event.fact.fork == fork.id:
                    raise BadSetting("fork", fork, not_joined_yet(event.seq))
            joined = [began, *(event.fact for event in said)]
            *_, ended = await self._commit_changes(joined, end=end)
            return fold_handle((await self._writer.load()).log, ended.seq)

    # ── The session as a whole ───────────────────────────────────────────────────────────────────────

    async def fork(self, id: str, *, at: str | int | None = None) -> Session:
        """Create a session that begins with events of this one.

        Args:
            id: The id of the new session.
            at: The handle or seq of the last event to take over. None takes over all events.

        Returns:
            The new session, with the same settings.

        Raises:
            SessionExists: A session with this id exists, or existed and was erased.
            BadSetting: `id` is not a text.
            UnknownHandle: No event has the handle `at`.
            UnknownSession: Nothing is stored in this session yet.

        Examples:
            ```python
            import foveal

            async with foveal.stores.MemoryStore() as store:
                session = await foveal.Session.open(store, "demo", model="gpt-4.1")
                await session.append(foveal.UserSaid(content="Why is CI red?"))
                other = await session.fork("demo-2")
            ```
        """
        check_new_session_id("id", id)
        async with self._lock:
            engine = await self._writer.refresh()
            last = engine.next_seq - 1 if at is None else seq_of(at, count=engine.next_seq)
            try:
                await self.store.fork(self.id, id, at=last)
            except Conflict:  # for a store, an id that is in use is an event that cannot be the first one
                raise SessionExists(id) from None
        background = self._background.for_another_session()
        forked = type(self)(
            self.store,
            id,
            self._writer.settings,
            self._clock,
            background,
            options=self._options,
            memories=self.memories,
            on_reduction=self._hook,
        )
        await forked.append(replace(engine.opened, origin=f"{self.id}@{last}"))
        return forked

    @classmethod
    async def continue_from(
        cls,
        store: Store,
        origin: str,
        id: str,
        *,
        model: str | Model,
        carry: Carry = "record",
        begin: Sequence[AnyFact] = (),
        summarise: Summarise | Sequence[Summarise] | None = None,
        prompt: str = "",
        progress: Callable[[SummaryProgress], None] | None = None,
        clock: Callable[[], float] | None = None,
        options: SessionOptions = DEFAULT_OPTIONS,
        memory: Memory | Sequence[Memory] | None = None,
        **settings: Unpack[SettingArguments],
    ) -> Self:
        """Create a session that begins with a record of an earlier one.

        The new session takes over the pinned rules. The record is one user message: rules, first request,
        summaries and newest messages within a budget.

        Args:
            store: The store that has the earlier session.
            origin: The id of the earlier session.
            id: The id of the new session.
            model: The model's name, or a `foveal.Model`.
            carry: What is taken over beside pinned rules: `"record"`, `"summary"`, `"rules"`, or a list of
                handles.
            begin: Facts that come before what is taken over.
            summarise: As in `open`.
            prompt: As in `open`.
            progress: As in `open`.
            clock: As in `open`.
            options: As in `open`.
            memory: As in `open`.
            **settings: As in `open`.

        Returns:
            The new session.

        Raises:
            UnknownSession: There is no session `origin`.
            UnknownHandle: No event of the session has a handle that `carry` names.
            SessionExists: The id is in use, or was.
            BadSetting: A setting is unknown or outside its range.

        Examples:
            ```python
            import foveal

            async with foveal.stores.MemoryStore() as store:
                session = await foveal.Session.open(store, "monday", model="gpt-4.1")
                await session.append(foveal.UserSaid(content="Why is CI red?"))
                await foveal.Session.continue_from(store, "monday", "tuesday", model="gpt-4.1")
            ```
        """
        check_store(store, origin, field="origin")
        check_new_session_id("id", id)
        begin = checked_facts("begin", begin)
        facts = await carried_facts(
            store, origin, resolve_settings(model, **settings), carry=carry, begin=begin
        )
        with suppress(UnknownSession):
            await store.end(id)
            raise SessionExists(id)
        return await cls.open(
            store,
            id,
            model=model,
            origin=origin,
            summarise=summarise,
            prompt=prompt,
            progress=progress,
            clock=clock,
            options=options,
            begin=[*begin, *facts],
            memory=memory,
            **settings,
        )

    async def rename(self, title: str) -> None:
        """Set the session's title.

        Args:
            title: The new title.

        Raises:
            UnknownSession: Nothing is stored yet.
            BadSetting: `title` is not a text.
        """
        check_text("title", title)
        await self.store.rename(self.id, title)

    async def close(self) -> None:
        """Cancel a summary that is being written; what is stored stays."""
        await self._background.close()
        if self._discarding is not None:
            await asyncio.wait([self._discarding])

    async def delete(self) -> None:
        """Erase the text of this session for good.

        The log stays gapless, with nothing in it. A summary that is being written is cancelled.

        Examples:
            ```python
            import foveal

            async with foveal.stores.MemoryStore() as store:
                session = await foveal.Session.open(store, "demo", model="gpt-4.1")
                await session.delete()
                assert (await store.info("demo")).erased
            ```
        """
        async with self._lock:
            await self._background.close()
            await self._writer.erase()
