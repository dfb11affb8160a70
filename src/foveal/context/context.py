"""`Context`: keeps the messages of your own agent loop inside the model's window.

    ctx = foveal.Context(model="gpt-4.1")
    reply = client.chat.completions.create(model="gpt-4.1", messages=ctx.fit(messages))
    ctx.observe(reply.usage)

1. `fit` takes the whole history in any dialect, recognises by content what it has seen before,
   records the rest, reduces until the request fits, and returns a list in the same dialect.
2. It never changes its input, and its output shares nothing with what is kept here.
3. If a message is edited (replaced, or changed in place while it is shown), the log records a rewind to the message
   before it and continues from there. An edited system message replaces the old one where it is.
4. One context is for one conversation. A history that shares nothing with the recorded one begins another, and one
   that leaves it before its newest user message may be another; both give a warning. `recall` finds only what is on
   the branch that is continued.
5. `save` returns the log and `load` continues with it: the next `fit` recognises the history in it.

For type checkers, a list of a client's TypedDicts comes back as a list of the same type, so that the client accepts
it. Dicts without a type and objects of a client come back as `list[Any]`, which checkers accept in every client. No
client has to be installed for that.
"""

from __future__ import annotations

import time
import warnings
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from operator import attrgetter
from threading import get_ident
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    NoReturn,
    Protocol,
    Self,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

from msgspec import Raw
from msgspec.structs import replace

from foveal.branches import BRANCH_TOOL_NAMES, Branch
from foveal.branches import answer as branch_answer
from foveal.context.threads import ContextLock, note_request, own_request, run_in_thread, run_without_waiting
from foveal.core import wire
from foveal.core.compaction.health import CompactionOutcome
from foveal.core.compaction.plan import Plan
from foveal.core.compaction.summariser import (
    DialogueRun,
    Summarise,
    SummaryProgress,
    run_dialogue,
    summariser_chain,
)
from foveal.core.engine.asked_cut import (
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
    ContextArguments,
    check_extras,
    check_limit,
    check_new_session_id,
    check_recorded,
    check_store,
    check_text,
    checked_list,
    checked_log,
    continued_arguments,
    dialect_of,
    model_of,
    recall_arguments,
    saved_events,
    system_text,
)
from foveal.core.engine.engine import Engine
from foveal.core.engine.event_status import EventStatus, event_status
from foveal.core.engine.given_history import GivenHistory
from foveal.core.engine.history_diff import HistoryChange
from foveal.core.engine.operations import (
    OperationArguments,
    OperationName,
    check_agreement,
    compaction_handle,
    decide,
    focus_fact,
    newest_reduction,
    plan_manual_compaction,
    priority_fact,
    seq_of,
)
from foveal.core.engine.origins import Origin
from foveal.core.engine.report import Report, report
from foveal.core.engine.reviews import (
    HOOK_TOPIC,
    PriorityOf,
    ProposedCut,
    ReductionHook,
    Wish,
    brief_of,
    failed_wish,
    read_wish,
)
from foveal.core.engine.sent_requests import SentRequests, SentSize
from foveal.core.engine.settings import (
    EngineSettings,
    SettingArguments,
    check_room,
    has_other_settings,
    opened_fact,
    opens_anew,
    resolve_settings,
    settings_to_save,
    without_model_settings,
)
from foveal.core.engine.summary_job import SummaryJob
from foveal.core.engine.tool_deferral import DeferTools, ToolDeferral, tool_deferral
from foveal.core.engine.unreadable_summaries import (
    Unreadable,
    unreadable_after_switch,
    unreadable_in_dialect,
)
from foveal.core.engine.user_statements import UserStatement, list_statements
from foveal.core.log.codec import encode
from foveal.core.log.events import (
    DIALOGUE_TYPES,
    AnyFact,
    Branched,
    BranchEnded,
    Compacted,
    Content,
    Dialect,
    DialectName,
    Equipped,
    Event,
    Instructed,
    Noted,
    Opened,
    Priority,
    Reverted,
    Rewound,
    SnapshotTaken,
    ToolReturned,
    handle,
    unraw,
)
from foveal.core.models.model import Model
from foveal.core.models.spending import LimitText, read_limits
from foveal.core.reduction.truncation import Limits
from foveal.core.view.fold import effective_events, left_behind
from foveal.core.view.request import ReducedCounts, RequestWriter, copy_messages
from foveal.core.wire import plain_json
from foveal.core.wire.native_compaction import ends_with_trigger
from foveal.core.wire.safe_print import counted, one_line
from foveal.core.wire.tool_schemas import parse_arguments
from foveal.errors import (
    BadSetting,
    Conflict,
    ContextOverflow,
    FovealError,
    MalformedMessage,
    ReductionHookFailed,
    SummariserFailed,
    UnknownSession,
    UsageMissing,
)
from foveal.ports import Store
from foveal.user_paths import prompt_text

if TYPE_CHECKING:
    from foveal.context.memories import ContextMemories
    from foveal.memory.memory import Memory
    from foveal.recall.recall import Recall


class TypedMessage(Protocol):
    """A message whose type is a TypedDict, such as `ChatCompletionMessageParam` or `MessageParam`."""

    # Every TypedDict class has this attribute and `dict` does not: nothing else tells them apart for both mypy and
    # pyright.
    __required_keys__: ClassVar[frozenset[str]]


MessageT = TypeVar("MessageT", bound=TypedMessage)
"""The type of the caller's messages."""


class Beside(TypedDict, total=False):
    """What a request has beside its messages; each is optional."""

    tools: Sequence[object]
    """The tools that are offered: dicts, or objects of the client."""
    system: object
    """The system text that is sent beside the messages: a string or a list of blocks."""
    priority: PriorityOf | None
    """Returns the priority of a new message: `low`, `normal` or `high`, or None for that of its tool."""


T = TypeVar("T")


class Context:
    """Keeps the messages of one conversation inside the model's window.

    A context can be used from any thread; calls are served one at a time. It lives in memory: `save` and
    `save_to` keep it.

    Args:
        model: The model's name, such as `"gpt-4.1"`, or a `foveal.Model`. An unknown name is allowed.
        dialect: The format of the messages. `""` detects it; pass it where the messages are ambiguous.
        summarise: The callables that write summaries, in the order in which they are tried. None writes
            summaries from the log alone.
        prompt: A text, or `file://…`, that replaces the task of the summary prompt. `""` keeps Foveal's.
        progress: Called with a `SummaryProgress` while a summary is written. None reports nothing.
        on_reduction: Called with a `ProposedCut` before a cut is made; it returns None, or what to keep, a focus or
            a veto (`Steering`). An async one needs `afit`. None makes each cut without asking.
        clock: Returns the time in seconds since 1970. None uses `time.time`.
        defer_tools: Whether requests offer few tools, and `load_tools` for the others; send `ctx.tools` then.
            `"appended"` never uses a provider's own form for loading them, which a gateway may refuse.
        core_tools: The names of tools that are never deferred.
        memory: What is known from earlier conversations, or several of them: every request shows it behind the
            instructions. The first one also obeys "remember that …". None shows none.
        log: The events of an earlier context to continue. It is empty for a new conversation.
        **settings: The settings that `Context` and `Session` share: `policy`, `window`, `reserve` and others.
            `SettingArguments` lists them with their defaults.

    Raises:
        BadSetting: A setting is unknown or outside its range, or the file of `prompt` cannot be read.

    Examples:
        ```python
        import foveal

        ctx = foveal.Context("gpt-4.1", policy="economy", window=32_000)
        messages: list[object] = [{"role": "user", "content": "Why is CI red?"}]
        reply = client.chat.completions.create(model="gpt-4.1", messages=ctx.fit(messages))
        ctx.observe(reply.usage)
        ```
    """

    def __init__(
        self,
        model: str | Model,
        *,
        dialect: DialectName = "",
        summarise: Summarise | Sequence[Summarise] | None = None,
        prompt: str = "",
        progress: Callable[[SummaryProgress], None] | None = None,
        on_reduction: ReductionHook | None = None,
        clock: Callable[[], float] | None = None,
        defer_tools: DeferTools = False,
        core_tools: Sequence[str] = (),
        memory: Memory | Sequence[Memory] | None = None,
        log: Sequence[Event] = (),
        **settings: Unpack[SettingArguments],
    ) -> None:
        check_extras(prompt=prompt, progress=progress, clock=clock, on_reduction=on_reduction)
        deferral = tool_deferral(defer_tools, core_tools)
        dialect, log = wire.checked_dialect(dialect), checked_log(log)
        resolved = resolve_settings(model, **settings)
        self._settings = settings_to_save(resolved, settings)
        """What the log records of the caller's settings, for `load`."""
        self._clock = clock or time.time
        self._summarisers = summariser_chain(summarise)
        self._prompt = prompt_text(prompt)
        self._progress = progress
        self._hook = on_reduction
        self._wire = wire.wire_for(dialect or dialect_of(log))
        self._dialect: Dialect = dialect
        """The dialect once it is certain; "" until then."""
        self._call_limits: dict[str, Limits] = {}
        self._opened: Opened | None = None
        """A change of model that the next `fit` records, after the answers of the model before it."""
        engine = Engine(resolved, log=log)
        self._begin(engine, deferral, memory)
        opened = opened_fact(resolved.model, resolved.policy, settings=self._settings)
        if not log or opens_anew(opened, engine.opened) or has_other_settings(opened, engine.opened):
            self._record(opened)

    def _begin(self, engine: Engine, deferral: ToolDeferral | None, memory: object) -> None:
        """Set what a context does not share with its forks."""
        self._engine = engine
        self._deferral = deferral
        self._memories = _context_memories(memory, engine.log)
        self._lock = ContextLock()
        self._requests = SentRequests()
        self._writer = RequestWriter()
        self._history = GivenHistory(engine, self._record)
        self._has_warned_of_summariser = False
        self._recall: Recall | None = None
        self._forked_at: int | None = None
        """For a fork: the event with which it began."""
        self._joined_at: int | None = None
        """For a fork: the event with which another context joined it last."""
        self._left_behind: frozenset[int] | None = None
        """What recall must not find; None until it is needed."""
        self._wait: Callable[[Awaitable[Any]], Any] | None = None
        """Waits for what an async summariser or a store returns; set while `afit` runs."""

    def _take_settings(self, other: Context) -> None:
        """Take over the settings of a context that this one is a fork of."""
        self._settings, self._clock = other._settings, other._clock
        self._summarisers, self._prompt, self._progress = other._summarisers, other._prompt, other._progress
        self._hook = other._hook
        self._wire, self._dialect = other._wire, other._dialect
        self._call_limits, self._opened = dict(other._call_limits), other._opened

    def __repr__(self) -> str:
        engine = self._engine
        if not self._lock.enter_now():  # a debugger shows a context while another thread uses it
            return f"<Context {engine.model.name}: in use>"
        try:
            used = engine.calibration.tokens(engine.total_units)
            filled = f"{counted(len(engine.log), 'event')}, {used:,} of {engine.model.window:,} tokens"
            return f"<Context {engine.model.name}: {filled}, policy {engine.policy.name}>"
        finally:
            self._lock.leave()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Context cannot be pickled or copied: `save()` returns its log as bytes, and `Context.load(saved)` "
            "continues it, with the same settings"
        )

    @classmethod
    def load(
        cls, saved: bytes, model: str | Model | None = None, **arguments: Unpack[ContextArguments]
    ) -> Self:
        """Continue a context from what `save` returned.

        The settings that are not given stay as they were saved: `policy`, `window`, `reserve` and the others that
        are plain values. A warning (`SettingsChanged`) names those that differ. A window is not kept for another
        model. Callables, `prompt` and what `set_reserve` and `set_limit` have set are not saved.

        Args:
            saved: The bytes that `save` returned.
            model: The model to continue with. None is the model of the saved log.
            **arguments: The arguments of `Context` beside `model` and `log`.

        Returns:
            A context whose next `fit` recognises the history that was saved.

        Raises:
            BadSetting: A setting is not allowed, `saved` is not bytes or is empty, or the log names no model.
            UnreadableEvent: A line of `saved` is not an event, or lines are missing.

        Examples:
            ```python
            import foveal

            ctx = foveal.Context("gpt-4.1", window=32_000)
            ctx.fit([{"role": "user", "content": "Why is CI red?"}])
            ctx = foveal.Context.load(ctx.save())
            assert ctx.report().window == 32_000
            ```
        """
        return cls._continue(saved_events(saved), model, arguments)

    def save(self) -> bytes:
        """Return the whole log, one event per line of JSON.

        Returns:
            The events as bytes, for `load` or for a file.

        Examples:
            ```python
            from pathlib import Path

            import foveal

            Path("context.jsonl").write_bytes(foveal.Context("gpt-4.1").save())
            ```
        """
        with self._lock:
            return b"\n".join(map(encode, self._engine.log))

    @classmethod
    async def load_from(
        cls,
        store: Store,
        session: str,
        model: str | Model | None = None,
        **arguments: Unpack[ContextArguments],
    ) -> Self:
        """Continue a context from a session in a store, with its settings as in `load`.

        Args:
            store: The store that has the session.
            session: The id of the session.
            model: The model to continue with. None is the model of the stored log.
            **arguments: The arguments of `Context` beside `model` and `log`.

        Returns:
            A context with the events of the session. Later events reach the store with `save_to`.

        Raises:
            UnknownSession: No session has this id.
            BadSetting: A setting is not allowed, `store` is not an open store, or the log names no model.

        Examples:
            ```python
            import foveal

            async with foveal.open_store("contexts.db") as store:
                await foveal.Context("gpt-4.1").save_to(store, "ci")
                ctx = await foveal.Context.load_from(store, "ci")
            ```
        """
        check_store(store, session)
        return cls._continue(await store.read(session), model, arguments)

    @classmethod
    def _continue(cls, log: Sequence[Event], model: str | Model | None, arguments: ContextArguments) -> Self:
        arguments, warning = continued_arguments(log, model, arguments)
        context = cls(model_of(log) if model is None else model, log=log, **arguments)
        if warning is not None:
            warnings.warn(warning, stacklevel=3)
        return context

    async def save_to(self, store: Store, session: str) -> None:
        """Append the events that a session in a store does not have yet.

        Args:
            store: The store.
            session: The id of the session; it is created if it does not exist.

        Raises:
            Conflict: The stored events are not those of this context.
            StoreError: The store cannot write.
            BadSetting: `store` is not an open store, or `session` is not a text.

        Examples:
            ```python
            import foveal

            async with foveal.open_store("contexts.db") as store:
                ctx = foveal.Context("gpt-4.1")
                await ctx.save_to(store, "ci")
            ```
        """
        check_store(store, session)
        with self._lock:
            log = tuple(self._engine.log)
        await _append_missing(store, session, log)

    # ── The loop ─────────────────────────────────────────────────────────────────────────────────────

    @overload
    def fit(self, messages: Sequence[MessageT], **beside: Unpack[Beside]) -> list[MessageT]: ...
    @overload
    def fit(self, messages: Sequence[object] | None = None, **beside: Unpack[Beside]) -> list[Any]: ...
    def fit(
        self,
        messages: Sequence[Any] | None = None,
        *,
        tools: Sequence[Any] = (),
        system: Any = None,
        priority: PriorityOf | None = None,
    ) -> list[Any]:
        """Return the history as the next request should send it.

        The result is legal for the provider and within the budget. The given messages are not changed. A history
        that ends with a `compaction_trigger` (OpenAI Responses) is not reduced: the provider compacts it whole.

        Args:
            messages: The whole history, oldest first, as dicts or objects of a client. None fits the messages
                that are recorded, by `append` or by an earlier `fit`.
            tools: The tools that the request offers; they are counted. By default there are none.
            system: Text that you send beside the messages, such as `system` of Anthropic. It is counted, never
                cut, and not part of the result. None sends none.
            priority: Called with each new message (`EventBrief`); returns when reductions hide it: `"low"` first,
                `"high"` last, None as its tool says. None calls nothing.

        Returns:
            The messages to send, in the same dialect. The list is yours. Messages that are the same in two requests
            are the same objects; if you change some, later requests have new copies.

        Raises:
            ContextOverflow: The request cannot be made to fit; the error has the numbers.
            BudgetExceeded: The request would exceed a spending limit (`limit`), or its price is not known.
            MalformedMessage: A message cannot be read in any dialect.
            BadSetting: `messages` or `tools` is not a list, `system` is not text, or `messages` is None and
                nothing is recorded, so that the request would be empty.
            Busy: `afit` of this context runs with a summariser or a memory. Other methods raise it too.
            StoreError: The store of the memory cannot be read here; one on PostgreSQL needs `afit`.

        Examples:
            ```python
            import foveal

            ctx = foveal.Context("claude-sonnet-4-6")
            messages: list[object] = [{"role": "user", "content": "Why is CI red?"}]
            assert ctx.fit(messages, system="You are careful.") == messages
            ```
        """
        with self._lock:
            self._lock.check_change()
            now = self._clock()
            system_content = None if system is None else system_text(system)
            tools = () if tools is None else checked_list("tools", tools)
            known, change = len(self._history), None
            trigger: Any = None
            history: list[Any] = []
            if messages is None:
                check_recorded(self._engine.view)
            else:
                given = history = checked_list("messages", messages)
                if ends_with_trigger(given, self._dialect):  # it is no part of the conversation
                    trigger, history = given[-1], given[:-1]
                with self._in_dialect(given[known:], tools, system):
                    change = self._history.recognise(history, self._wire)
                known = min(known, change.start)
            is_first = not known
            if is_first:
                self._record_setup(system_content, tools)
            first = self._engine.next_seq
            if change is not None:
                self._record_change(change)
            if priority is not None:
                self._record_priorities(priority, first)
            if not is_first:  # the new messages may begin with the answer to a request without these changes
                self._record_setup(system_content, tools)
            self._record_memory()
            self._record_loaded_tools()
            self._make_room(now, sends_whole=trigger is not None)
            fitted = self._write_request(None if trigger is None else history)
            self._history.share_copies(known)
            return fitted if trigger is None else [*fitted, plain_json(trigger)]

    def fit_with_origins(
        self,
        messages: Sequence[Any] | None = None,
        *,
        tools: Sequence[Any] = (),
        system: Any = None,
        priority: PriorityOf | None = None,
    ) -> tuple[list[Any], list[Origin]]:
        """Return what `fit` returns, with the origin of each message.

        Args:
            messages: As in `fit`.
            tools: As in `fit`.
            system: As in `fit`.
            priority: As in `fit`.

        Returns:
            The messages to send, and one `Origin` for each of them.

        Raises:
            ContextOverflow: The request cannot be made to fit.
            MalformedMessage: A message cannot be read in any dialect.
            BadSetting: An argument is not a list, `system` is not text, or there is no message.

        Examples:
            ```python
            import foveal

            ctx = foveal.Context("gpt-4.1")
            messages: list[object] = [{"role": "user", "content": "Why is CI red?"}]
            fitted, origins = ctx.fit_with_origins(messages)
            assert [origin.input for origin in origins] == [0]
            ```
        """
        with self._lock:
            given = None if messages is None else checked_list("messages", messages)
            fitted = self.fit(given, tools=tools, system=system, priority=priority)
            if given is None or not ends_with_trigger(given, self._dialect):
                return fitted, self._history.origins(self._wire, fitted)
            whole = [Origin(inputs=(index,), whole=True) for index in range(len(given))]
            if not ReducedCounts.of(self._engine.view):
                whole[:-1] = self._history.origins(self._wire, fitted[:-1])
            return fitted, whole

    @overload
    async def afit(self, messages: Sequence[MessageT], **beside: Unpack[Beside]) -> list[MessageT]: ...
    @overload
    async def afit(self, messages: Sequence[object] | None = None, **beside: Unpack[Beside]) -> list[Any]: ...
    async def afit(self, messages: Sequence[Any] | None = None, **beside: Unpack[Beside]) -> list[Any]:
        """Do what `fit` does without blocking the event loop.

        The work runs in a thread. An async summariser runs in the caller's event loop.

        Args:
            messages: As in `fit`.
            **beside: `tools`, `system` and `priority`, as in `fit`.

        Returns:
            The messages to send, in the same dialect.

        Raises:
            ContextOverflow: The request cannot be made to fit.
            MalformedMessage: A message cannot be read in any dialect.
            BadSetting: An argument is not a list, `system` is not text, or there is no message.

        Examples:
            ```python
            import foveal

            ctx = foveal.Context("gpt-4.1")
            fitted = await ctx.afit([{"role": "user", "content": "Why is CI red?"}])
            ```
        """
        return (await self.afit_with_origins(messages, **beside))[0]

    async def afit_with_origins(
        self,
        messages: Sequence[Any] | None = None,
        *,
        tools: Sequence[Any] = (),
        system: Any = None,
        priority: PriorityOf | None = None,
    ) -> tuple[list[Any], list[Origin]]:
        """Do what `fit_with_origins` does without blocking the event loop.

        Args:
            messages: As in `fit`.
            tools: As in `fit`.
            system: As in `fit`.
            priority: As in `fit`.

        Returns:
            The messages to send, and one `Origin` for each of them.

        Raises:
            ContextOverflow: The request cannot be made to fit.
            MalformedMessage: A message cannot be read in any dialect.
            BadSetting: An argument is not a list, `system` is not text, or there is no message.
        """

        needed, thread = bool(self._summarisers or self._memories or self._hook), get_ident()

        def work(
            wait: Callable[[Awaitable[Any]], Any],
        ) -> tuple[tuple[list[Any], list[Origin]], SentSize]:
            try:
                with self._lock:
                    self._wait = wait
                    try:
                        fitted = self.fit_with_origins(
                            messages, tools=tools, system=system, priority=priority
                        )
                        return fitted, self._requests.last
                    finally:
                        self._wait = None
            finally:  # not when the task is cancelled: this thread still holds the lock then
                if needed:
                    self._lock.end_to_need(thread)

        if needed:
            self._lock.begin_to_need(thread)
        fitted, sent = await run_in_thread(work)
        note_request(self._requests, sent)  # here, because the thread had a copy of this task's variables
        return fitted

    def append(self, *messages: Any) -> None:
        """Record messages that follow the recorded ones.

        Use it in a loop that does not keep its history, and call `fit` without messages.

        Args:
            *messages: The new messages, as dicts or objects of a client.

        Raises:
            MalformedMessage: A message cannot be read in any dialect.

        Examples:
            ```python
            import foveal

            ctx = foveal.Context("gpt-4.1")
            ctx.append({"role": "user", "content": "Why is CI red?"})
            reply = client.chat.completions.create(model="gpt-4.1", messages=ctx.fit())
            ctx.append(reply.choices[0].message)
            ```
        """
        with self._lock:
            with self._in_dialect(messages, (), None):
                change = self._history.following(messages, self._wire)
            self._record_change(change)

    def observe(self, report: Any) -> None:
        """Learn from the usage that the provider reported for the last request.

        It counts for the last request of the same thread or task. A reply without usage is a warning
        (`UsageMissing`), once per conversation. Usage without prompt tokens, of an aborted reply, is ignored.

        Args:
            report: The usage of a provider or framework as an object or a dict, or the whole reply.

        Raises:
            BadSetting: The report is not understood.

        Examples:
            ```python
            import foveal

            ctx = foveal.Context("gpt-4.1")
            ctx.fit([{"role": "user", "content": "Why is CI red?"}])
            ctx.observe({"prompt_tokens": 14, "completion_tokens": 5})
            assert ctx.report().measured
            ```
        """
        with self._lock:
            facts = self._requests.usage_facts(report, self._engine, own_request(self._requests))
            if not facts and self._requests.is_first_without_usage(report):
                warnings.warn(UsageMissing(), stacklevel=2)
            for fact in facts:
                self._record(fact)

    def overflowed(self, error: object) -> bool:
        """Return whether a provider's error says that the request was too large.

        If so, the context learns the limit, and the next `fit` (or `max_tokens`) is smaller: send again.

        Args:
            error: The exception of a client, or the body of the response.

        Returns:
            True if the request should be fitted and sent again; False if the error is about something else.

        Raises:
            ContextOverflow: Several smaller requests in a row were refused too.

        Examples:
            ```python
            import foveal
            import openai

            ctx = foveal.Context("gpt-4.1")
            messages: list[object] = [{"role": "user", "content": "Why is CI red?"}]
            try:
                client.chat.completions.create(model="gpt-4.1", messages=ctx.fit(messages))
            except openai.BadRequestError as error:
                if not ctx.overflowed(error):
                    raise
                client.chat.completions.create(model="gpt-4.1", messages=ctx.fit(messages))
            ```
        """
        with self._lock:
            found = self._engine.refusal(error, sent=own_request(self._requests).tokens)
            if isinstance(found, Unreadable):
                self._take_back(found)
            elif found is not None:
                self._record(found)
            return found is not None

    def new_conversation(self) -> None:
        """Begin another conversation with the same settings, pins and learned limits.

        The messages so far leave the view, and `recall` does not find them.

        Examples:
            ```python
            import foveal

            ctx = foveal.Context("gpt-4.1")
            ctx.fit([{"role": "user", "content": "Why is CI red?"}])
            ctx.new_conversation()
            ctx.fit([{"role": "user", "content": "Translate the manual."}])
            ```
        """
        with self._lock:
            self._history.begin_conversation()

    def set_reserve(self, tokens: int | None) -> None:
        """Change the setting `reserve` for the next requests.

        Args:
            tokens: Tokens to keep free for the answer. None keeps what the model may write, at most an eighth
                of the window.

        Raises:
            BadSetting: The number is negative, not whole, or not smaller than the window.

        Examples:
            ```python
            import foveal

            ctx = foveal.Context("gpt-4.1")
            ctx.set_reserve(2_000)
            assert ctx.report().totals["reserve"] == 2_000
            ```
        """
        with self._lock:
            engine = self._engine
            caps = replace(engine.caps, reserve=tokens)
            check_room(engine.model, engine.provider_limits.limit_caps(caps, engine.model))
            engine.set_reserve(tokens)

    def set_limit(self, limit: LimitText | None) -> None:
        """Change the setting `limit` for the next requests.

        Args:
            limit: Most dollars or tokens that the conversation may use, such as `"5 USD"`, or several; a number is
                dollars. None is no limit.

        Raises:
            BadSetting: A limit is not understood.

        Examples:
            ```python
            import foveal

            ctx = foveal.Context("gpt-4.1", limit="5 USD")
            ctx.set_limit(["10 USD", "2M tokens per day"])
            ```
        """
        with self._lock:
            self._engine.set_limit(() if limit is None else read_limits(limit))

    @property
    def binds_thinking(self) -> bool:
        """Whether the model refuses thinking once anything before it has changed."""
        with self._lock:
            return self._engine.view.thinking.is_bound

    @property
    def max_tokens(self) -> int:
        """Most tokens that the answer to the next request may take."""
        with self._lock:
            return self._engine.max_tokens

    # ── Reading ──────────────────────────────────────────────────────────────────────────────────────

    def report(self) -> Report:
        """Return what fills the window, and how each event is shown.

        Returns:
            A `Report`; `print` shows it as a table.

        Examples:
            ```python
            import foveal

            ctx = foveal.Context("gpt-4.1")
            ctx.fit([{"role": "user", "content": "Why is CI red?"}])
            print(ctx.report())
            ```
        """
        with self._lock:
            return report(
                self._engine,
                fitted=self._requests.count,
                breaks=self._requests.breaks,
                statements=self._statements(),
                at=self._clock(),
            )

    def statements(self) -> tuple[UserStatement, ...]:
        """Return what the user said that still holds: rules, corrections and facts, oldest first.

        Each has the message it stands in, the later message that replaces it, if any, and where the next request
        shows it.

        Examples:
            ```python
            import foveal

            ctx = foveal.Context("gpt-4.1")
            ctx.append({"role": "user", "content": "The deadline is 14 March 2027."})
            ctx.append({"role": "assistant", "content": "Noted."})
            ctx.append({"role": "user", "content": "The deadline moved to 2 April 2027."})
            first, second = ctx.statements()
            assert first.replaced_by == second.handle
            ```
        """
        with self._lock:
            return self._statements()

    def _statements(self) -> tuple[UserStatement, ...]:
        return list_statements(effective_events(self._engine.log), self._engine.view)

    def why(self, name: str | int) -> EventStatus:
        """Return how the next request shows one event, and why.

        Args:
            name: The handle of an event (`"e12"`), or its seq.

        Returns:
            The level, the tokens, the rule, and the event that recorded the reduction.

        Raises:
            UnknownHandle: No event has this handle.

        Examples:
            ```python
            import foveal

            ctx = foveal.Context("gpt-4.1")
            ctx.fit([{"role": "user", "content": "Why is CI red?"}])
            assert ctx.why("e1").level == "full"
            ```
        """
        with self._lock:
            return event_status(self._engine, self._event(name))

    def original(self, name: str | int) -> str:
        """Return the whole text of an event, at whatever level it is shown.

        Args:
            name: The handle of an event, or its seq.

        Raises:
            UnknownHandle: No event has this handle.

        Examples:
            ```python
            import foveal

            ctx = foveal.Context("gpt-4.1")
            ctx.fit([{"role": "user", "content": "Why is CI red?"}])
            assert ctx.original("e1") == "Why is CI red?"
            ```
        """
        with self._lock:
            return wire.original_text(self._event(name).fact)

    @property
    def log(self) -> tuple[Event, ...]:
        """All events, oldest first."""
        with self._lock:
            return tuple(self._engine.log)

    def recall(self, name: str, arguments: str | Mapping[str, Any]) -> str:
        """Answer a model's call of `recall_search` or `recall_read`, or of `context_status` or `context_cut`.

        It searches the log of this conversation, including what is no longer shown, and needs no event loop. With a
        memory, it searches that too, and also answers calls of `remember` and `forget`. Calls of `branch` and
        `return` are answered too. `foveal.recall.tools`, `foveal.memory.tools` and `foveal.branches.tools` return
        the schemas for the model, and `foveal.recall.context_tools` those of the tools with which it asks for a
        cut.

        Args:
            name: The name of the tool.
            arguments: The arguments as the model wrote them: JSON text or a mapping.

        Returns:
            The text for the model. A wrong call is answered with what is wrong; it raises nothing.

        Raises:
            BadSetting: `name` is not a text, or JSON cannot hold `arguments`: no model wrote them.

        Examples:
            ```python
            import foveal

            ctx = foveal.Context("gpt-4.1")
            ctx.fit([{"role": "user", "content": "The ticket is OPS-17."}])
            assert "OPS-17" in ctx.recall("recall_search", {"query": "ticket"})
            ```
        """
        from foveal.recall.recall import InMemoryLibrary, Recall  # loads SQLite, which most loops never need

        check_text("name", name, "the name of a tool")
        given = recall_arguments(arguments)
        if name in CONTEXT_TOOL_NAMES:
            return self._manage(name, given)
        with self._lock:
            if name in BRANCH_TOOL_NAMES:
                return branch_answer(name, given, open_branches=len(self._engine.view.open_branches))
            if self._recall is None:
                log, visible = self._engine.log, self._is_shown_in_full
                library = InMemoryLibrary(log, visible=visible, apart=self._is_left_behind)
                memories = () if self._memories is None else self._memories.memories
                self._recall = Recall(library, memories=memories)
            if self._memories is not None:
                return self._memories.answer(name, given, self._recall)
            return run_without_waiting(self._recall.call(name, given))

    def _manage(self, name: str, arguments: str | Mapping[str, Any]) -> str:
        """Answer a call of a context tool."""
        with self._lock:
            engine, given = self._engine, parse_arguments(arguments)
            moment = self._requests.moment(engine)
            if isinstance(given, str):
                return refusal_text(given)
            if name == CONTEXT_STATUS:
                return status_text(engine, moment)
            try:
                asked = read_cut_request(given, count=engine.next_seq)
                planned = plan_asked_cut(engine, moment, asked)
            except FovealError as problem:
                return refusal_text(problem)
            before = engine.calibration.tokens(engine.total_units)
            outcome = engine.write_ledger(planned)
            if isinstance(outcome, Compacted):
                events = [self._record(fact) for fact in (asked.fact, outcome)]
                self._history.release_hidden(events)
            return cut_answer(engine, outcome, before=before)

    @property
    def tools(self) -> list[Any]:
        """The tools to send with the last request that `fit` has returned: those that it got, or fewer with
        `defer_tools`."""
        with self._lock:
            held = self._engine.view.tools
            return [] if held is None else list(unraw(held[1].tools))

    def load_tools(self, arguments: str | Mapping[str, Any]) -> str:
        """Answer a model's call of `load_tools`, which requests offer with `defer_tools`.

        Send the answer as the result of the call, as you send those of other tools. The next `fit` reads from the
        messages what was loaded.

        Args:
            arguments: The arguments as the model wrote them: JSON text or a mapping.

        Returns:
            The text for the model. A wrong call is answered with what is wrong; it raises nothing.

        Raises:
            BadSetting: `defer_tools` is off, or JSON cannot hold `arguments`: no model wrote them.

        Examples:
            ```python
            import foveal

            ctx = foveal.Context("gpt-4.1", defer_tools=True)
            assert "needs the names" in ctx.load_tools({"names": []})
            ```
        """
        given = recall_arguments(arguments)
        if self._deferral is None:
            raise BadSetting("defer_tools", self._deferral, "True, before a model can load tools")
        with self._lock:
            return self._deferral.answer(given)

    def _is_left_behind(self, seq: int) -> bool:
        if self._left_behind is None:
            self._left_behind = left_behind(self._engine.log)
        return seq in self._left_behind

    def _is_shown_in_full(self, seq: int) -> bool:
        found = self._engine.view.find(seq)
        return found is not None and found[1].level == "full"

    # ── Changing what is shown ───────────────────────────────────────────────────────────────────────

    def pin(self, text: str = "", *, event: str | int | None = None) -> str:
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

        Examples:
            ```python
            import foveal

            ctx = foveal.Context("gpt-4.1")
            pin = ctx.pin("Answer in French.")
            ctx.undo(pin)
            ```
        """
        return self._perform("pin", event, text=text)[0].handle

    def supersede(self, name: str | int, *, by: str | int) -> str:
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

        Examples:
            ```python
            import foveal

            ctx = foveal.Context("gpt-4.1")
            ctx.append({"role": "user", "content": "Never push to main."})
            ctx.append({"role": "user", "content": "You can push to main now."})
            ctx.supersede("e1", by="e2")
            assert ctx.fit()[0]["content"] == "Never push to main.\\n[foveal: replaced by e2]"
            ```
        """
        return self._perform("supersede", name, by)[0].handle

    def drop(self, name: str | int) -> str:
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

        Examples:
            ```python
            import foveal

            ctx = foveal.Context("gpt-4.1")
            ctx.append({"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Hello, reader."})
            ctx.append({"role": "user", "content": "Why is CI red?"})
            ctx.drop("e2")
            assert "Hello, reader." not in str(ctx.fit())
            ```
        """
        return self._perform("drop", name)[0].handle

    def mark(self, name: str | int, *, priority: Priority) -> str:
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

        Examples:
            ```python
            import foveal

            ctx = foveal.Context("gpt-4.1")
            ctx.append({"role": "user", "content": "Why is CI red?"})
            ctx.undo(ctx.mark("e1", priority="high"))
            ```
        """
        return self._perform("mark", name, priority=priority)[0].handle

    def focus_next(self, text: str) -> str:
        """Say what the next summary or record keeps above all.

        The model that writes a summary reads it. A record by code quotes what contains its words first.

        Args:
            text: The focus. `""` takes an earlier one back.

        Returns:
            The handle of the event that records it.

        Raises:
            BadSetting: `text` is not a text, or is too long.

        Examples:
            ```python
            import foveal

            ctx = foveal.Context("gpt-4.1")
            ctx.focus_next("the migration")
            ```
        """
        with self._lock:
            return self._record(focus_fact(text)).handle

    def snapshot(self, data: Any, *, label: str = "") -> str:
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

            ctx = foveal.Context("gpt-4.1")
            handle = ctx.snapshot({"commit": "4f2a"}, label="workspace")
            ```
        """
        fact = SnapshotTaken(data=wire.raw_setting(data, "data"), label=check_text("label", label))
        with self._lock:
            return self._record(fact).handle

    def compact(self, focus: str = "") -> str:
        """Summarise old turns now.

        Args:
            focus: What the summary must keep above all. `""` sets no focus.

        Returns:
            The handle of the event that records the summary.

        Raises:
            NotCompacted: There is nothing to summarise, or no summary was written.
            BadSetting: `focus` is not a text.

        Examples:
            ```python
            import foveal

            ctx = foveal.Context("gpt-4.1")
            for part in range(4):
                ctx.append({"role": "user", "content": f"Look at part {part}."})
                ctx.append({"role": "assistant", "content": f"Part {part} has a bound that is wrong. " * 60})
            summary = ctx.compact("the bounds")
            ctx.expand(summary)
            ```
        """
        check_text("focus", focus)
        with self._lock:
            event = self._record(self._write_summary(plan_manual_compaction(self._engine, focus)))
            self._history.release_hidden([event])
            return compaction_handle(event)

    def agree(self) -> str:
        """Answer the `question` of the report with yes, in mode `confirm`.

        The context then reduces as mode `auto` would.

        Returns:
            The handle of the newest reduction.

        Raises:
            NotCompacted: There is no question, or nothing can be reduced.

        Examples:
            ```python
            import foveal

            ctx = foveal.Context("gpt-4.1", policy="confirm")
            ctx.fit([{"role": "user", "content": "Why is CI red?"}])
            if ctx.report().question:
                ctx.agree()
            ```
        """
        with self._lock:
            engine, first = self._engine, self._engine.next_seq
            check_agreement(engine)
            self._reduce(self._clock(), agreed=True)
            return newest_reduction(engine.log[first:])

    def undo(self, name: str | int | None = None) -> str:
        """Take back a reduction, an expansion, a pin or a `supersede`, whatever came after it.

        Args:
            name: The handle or seq of the event that recorded it. None takes back the newest reduction or
                `supersede`.

        Returns:
            The handle of what was taken back.

        Raises:
            UnknownHandle: No event has this handle, there is nothing to take back, or a later summary covers it.
            ContextOverflow: There is no room for what the reduction hides.

        Examples:
            ```python
            import foveal

            ctx = foveal.Context("gpt-4.1")
            ctx.append({"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Hello, reader."})
            ctx.append({"role": "user", "content": "Why is CI red?"})
            assert ctx.drop("e2") == ctx.undo()
            ```
        """
        (undone,) = self._perform("undo", name)
        assert isinstance(undone.fact, Reverted)
        return handle(undone.fact.target)

    def expand(self, name: str | int) -> str:
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

        Examples:
            ```python
            import foveal

            ctx = foveal.Context("gpt-4.1")
            ctx.append({"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Hello, reader."})
            ctx.append({"role": "user", "content": "Why is CI red?"})
            ctx.expand(ctx.drop("e2"))
            assert "Hello, reader." in str(ctx.fit())
            ```
        """
        return self._perform("expand", name)[0].handle

    def use(self, model: str | Model, *, window: int | None = None) -> None:
        """Continue with another model.

        If its window is smaller, the next `fit` reduces the history to it. If it is not larger than `reserve`, the
        next `fit` raises `ContextOverflow`: call `set_reserve`.

        Args:
            model: The name of the model, or a `foveal.Model`.
            window: Tokens in its window. None takes the known value; a window that was set before is not kept.

        Raises:
            BadSetting: The name or the window is not allowed.

        Examples:
            ```python
            import foveal

            ctx = foveal.Context("gpt-4.1")
            ctx.use("gpt-4.1-mini", window=32_000)
            assert ctx.report().window == 32_000
            ```
        """
        with self._lock:
            engine = self._engine
            chosen = resolve_settings(model, window=window).model
            engine.switch_model(chosen)
            self._settings = without_model_settings(self._settings)
            self._opened = opened_fact(chosen, engine.policy, settings=self._settings)

    def limit(self, call_id: str, limits: Limits) -> None:
        """Clip the coming result of one call by its own limits.

        These limits replace those of the tool and of the policy. Call it before the result is recorded.

        Args:
            call_id: The id of the tool call.
            limits: How much of the result is shown.

        Raises:
            BadSetting: The id is empty, or `limits` is not a `foveal.Limits`.

        Examples:
            ```python
            import foveal

            ctx = foveal.Context("gpt-4.1")
            ctx.limit("call_1", foveal.Limits(strategy="tail", lines=40))
            ```
        """
        check_limit(call_id, limits)
        with self._lock:
            self._call_limits[call_id] = limits

    # ── Branches ─────────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def branch(self, task: str, *, messages: Sequence[Any] | None = None) -> Iterator[Branch]:
        """Run a part of the work that folds to its result when the block ends.

        The prefix does not change while the block runs. At its end, one record with the task, the result and the
        handles replaces what was said in it. An error folds it too, to its text, and is raised.

        Args:
            task: What the block is to do.
            messages: The list that your loop keeps, if you pass one to `fit`: what it has when the block begins
                stays outside, and what it has when the block ends is inside. None uses what is recorded.

        Returns:
            A context manager with the `Branch`, for `result` and `keep`. Without a result, the last text of the
            model counts.

        Raises:
            BadSetting: `task` is not a text, or empty.
            MalformedMessage: A message cannot be read in any dialect.

        Examples:
            ```python
            import foveal

            ctx = foveal.Context("gpt-4.1")
            ctx.append({"role": "user", "content": "Why is CI red?"})
            with ctx.branch("Find the failing test.") as branch:
                ctx.append({"role": "assistant", "content": "I looked at 40 files. It is test_dates.py."})
                branch.result("test_dates.py fails")
            assert "test_dates.py fails" in ctx.fit()[1]["content"]
            ```
        """
        branch = Branch(task, self.begin_branch(task, messages=messages))
        try:
            yield branch
        except BaseException as error:
            with suppress(FovealError):
                self._close(branch, messages, error)
            raise
        self._close(branch, messages)

    def _close(
        self, branch: Branch, messages: Sequence[Any] | None, error: BaseException | None = None
    ) -> None:
        """Fold a branch at the end of its block, unless it has ended or was rewound meanwhile."""
        with self._lock:
            self._record_given(messages)
            if any(handle(seq) == branch.handle for seq, _ in self._engine.view.open_branches):
                end, has_failed = self._engine.next_seq, error is not None
                ended = branch_ended(
                    self._engine.view,
                    branch.handle,
                    result=branch.result_after(error),
                    end=end,
                    keep=branch.kept_before(end),
                    has_failed=has_failed,
                )
                branch.end(self._fold_branch(ended))
                branch.check_kept(end)

    def begin_branch(self, task: str, *, messages: Sequence[Any] | None = None) -> str:
        """Begin a branch that `end_branch` ends, for code that has no block.

        Args:
            task: What the branch is to do.
            messages: As in `branch`.

        Returns:
            The handle of the branch.

        Raises:
            BadSetting: `task` is not a text, or empty.
            MalformedMessage: A message cannot be read in any dialect.

        Examples:
            ```python
            import foveal

            ctx = foveal.Context("gpt-4.1")
            ctx.begin_branch("Find the failing test.")
            ctx.end_branch("test_dates.py fails")
            ```
        """
        fact = branched(task)
        with self._lock:
            self._record_given(messages)
            return self._record(fact).handle

    def end_branch(
        self,
        result: str | None = None,
        *,
        name: str | int | None = None,
        keep: Sequence[str | int] = (),
        messages: Sequence[Any] | None = None,
    ) -> str:
        """End a branch, and those inside it, and fold it to its result.

        Args:
            result: What came of it. None takes the last text of the model.
            name: The handle of the branch. None ends the innermost one.
            keep: Handles of events inside that stay in view.
            messages: As in `branch`.

        Returns:
            The handle of the fold, for `undo` and `expand`; "" if there is no result and nothing to fold.

        Raises:
            UnknownHandle: No branch is open, or a handle names nothing in it.
            BadSetting: `result` is not a text.

        Examples:
            ```python
            import foveal

            ctx = foveal.Context("gpt-4.1")
            ctx.begin_branch("Find the failing test.")
            fold = ctx.end_branch("test_dates.py fails")
            ctx.undo(fold)
            ```
        """
        with self._lock:
            self._record_given(messages)
            end = self._engine.next_seq
            return self._fold_branch(branch_ended(self._engine.view, name, result=result, end=end, keep=keep))

    def _fold_branch(self, ended: BranchEnded) -> str:
        """Record the end of an open branch; return the handle of its fold, which follows; "" without one."""
        event = self._record(ended)
        self._history.release_hidden(self._engine.log[event.seq :])
        return fold_handle(self._engine.log, event.seq)

    def branches(self) -> tuple[BranchStatus, ...]:
        """Return the branches so far, in the order in which they began.

        Examples:
            ```python
            import foveal

            ctx = foveal.Context("gpt-4.1")
            ctx.begin_branch("Find the failing test.")
            assert [branch.is_open for branch in ctx.branches()] == [True]
            ```
        """
        with self._lock:
            return list_branches(self._engine.log)

    def fork(self, task: str) -> Self:
        """Return a second context that continues from here.

        It is for a sub-agent that runs beside this one. Its requests begin with the same bytes as the next request
        of this context, so they are read from the provider's cache. `join` brings the result back.

        Args:
            task: What the sub-agent is to do.

        Returns:
            A context with the same log and settings: policy, `limit`, hooks, memories and deferred tools. What
            happens in one of the two does not change the other. A limit counts what was used before the fork, and
            then each context's own requests.

        Raises:
            BadSetting: `task` is not a text, or empty.

        Examples:
            ```python
            import foveal

            ctx = foveal.Context("gpt-4.1")
            ctx.append({"role": "user", "content": "Why is CI red?"})
            child = ctx.fork("Read the log of the build.")
            child.append({"role": "user", "content": "Read the log of the build."})
            child.append({"role": "assistant", "content": "The disk was full."})
            ctx.join(child)
            assert "The disk was full." in ctx.fit()[1]["content"]
            ```
        """
        fact = branched(task)
        with self._lock:
            engine, fork = self._engine, object.__new__(type(self))
            fork._take_settings(self)
            settings = EngineSettings(engine.model, engine.policy, engine.caps, engine.view.meter.counter)
            memories = None if self._memories is None else self._memories.memories
            fork._begin(Engine(settings, log=engine.log), deepcopy(self._deferral), memories)
            fork._forked_at = fork._record(fact).seq
            return fork

    def join(
        self,
        fork: Context,
        result: str | None = None,
        *,
        keep: Sequence[str | int] = (),
        messages: Sequence[Any] | None = None,
    ) -> str:
        """Bring back what a fork has done, as a folded branch.

        The messages of the fork are recorded here, so `recall` finds them, and `undo` of the fold shows them.

        Args:
            fork: A context that `fork` of this one has returned.
            result: What came of it. None takes the result of the fork's own call of `return`, or the last text of
                its model.
            keep: Handles of events of the fork, in its own log, that stay in view.
            messages: As in `branch`.

        Returns:
            The handle of the fold, for `undo` and `expand`; "" if there is no result and nothing to fold.

        Raises:
            BadSetting: `fork` is no fork of this context, or is joined already, or `result` is not a text.
            UnknownHandle: A handle of `keep` names no message of the fork.

        Examples:
            ```python
            import foveal

            ctx = foveal.Context("gpt-4.1")
            child = ctx.fork("Read the log of the build.")
            ctx.join(child, "The disk was full.")
            ```
        """
        if not isinstance(fork, Context) or fork is self:
            raise BadSetting("fork", fork, "a context that `fork` of this one has returned")
        with self._lock:
            if any(event.seq == fork._joined_at for event in effective_events(self._engine.log)):
                raise BadSetting("fork", fork, not_joined_yet(fork._joined_at or 0))
            task, events, ended = fork._to_join(self._engine.log, result, keep)
            self._record_given(messages)
            first = self._record(branched(task, is_joined=True))
            fork._joined_at = first.seq
            seqs = {event.seq: self._record(event.fact).seq for event in joined_messages(events)}
            kept = tuple(seqs[seq] for seq in ended.keep if seq in seqs)
            return self._fold_branch(replace(ended, branch=first.seq, keep=kept))

    def _to_join(
        self, log: Sequence[Event], result: str | None, keep: Sequence[str | int]
    ) -> tuple[str, list[Event], BranchEnded]:
        """Return the task of a fork of the context with this log, what was said in it, and how it ends."""
        with self._lock:
            own, first = self._engine.log, self._forked_at
            if first is None:  # a fork that was saved and loaded
                first = next((seq for seq, event in enumerate(own) if log[seq : seq + 1] != [event]), 0)
            began = own[first].fact if 0 < first <= len(log) else None
            if not isinstance(began, Branched) or own[first - 1] != log[first - 1]:
                raise BadSetting("fork", self, "a context that `fork` of this one has returned")
            events = effective_events(own)
            events = events[bisect_right(events, first, key=attrgetter("seq")) :]
            facts = (event.fact for event in reversed(events))
            ended = next((f for f in facts if isinstance(f, BranchEnded) and f.branch == first), None)
            if ended is None:
                view, end = self._engine.view, len(own)
                return began.task, events, branch_ended(view, first, result=result, end=end, keep=keep)
            kept = (*ended.keep, *kept_in(first, keep, end=len(own)))
            source = ended.source if result is None else "given"
            result = ended.result if result is None else result
            return began.task, events, replace(ended, result=result, source=source, keep=kept)

    # ── Recording ────────────────────────────────────────────────────────────────────────────────────

    def _record_given(self, messages: Sequence[Any] | None) -> None:
        """Record what a history has that is not recorded yet."""
        if messages is not None:
            self._lock.check_change()
            given = checked_list("messages", messages)
            with self._in_dialect(given[len(self._history) :], (), None):
                change = self._history.recognise(given, self._wire)
            self._record_change(change)

    def _perform(
        self, operation: OperationName, *names: str | int | None, text: str = "", priority: str = ""
    ) -> list[Event]:
        """Record what an operation decides about the events with these handles."""
        with self._lock:
            named = [None if name is None else self._event(name) for name in names]
            event, by = (*named, None, None)[:2]
            given = OperationArguments(text, event, by, priority)
            facts = decide(operation, self._engine, self._engine.log, given)
            events = [self._record(fact) for fact in facts]
            self._history.release_hidden(events)
            return events

    def _record(self, fact: AnyFact) -> Event:
        self._lock.check_change()
        limits = self._call_limits.pop(fact.call_id, None) if isinstance(fact, ToolReturned) else None
        if isinstance(fact, Rewound | Reverted):
            self._recall = self._left_behind = None
        elif isinstance(fact, Instructed):
            self._left_behind = None
        return self._engine.append(fact, at=self._clock(), limits=limits)

    def _record_setup(self, system: Content | None, tools: Sequence[Any]) -> None:
        """Record what has changed beside the messages: the model, the system text and the tools."""
        engine, opened = self._engine, self._opened
        if opened is not None:
            unreadable = unreadable_after_switch(engine.view, opened, engine.opened)
            self._record(opened)
            self._take_back(unreadable)
            self._opened = None
        self._take_back(unreadable_in_dialect(engine.view, self._wire.dialect, model=engine.model.name))
        self._record_system(system)
        self._record_tools(tools)

    def _take_back(self, unreadable: Unreadable) -> None:
        """Record what takes the place of what the model cannot read."""
        for fact in self._engine.facts_instead(unreadable, self._engine.log):
            self._record(fact)

    def _record_system(self, content: Content | None) -> None:
        held = self._engine.view.asides.get("")
        if content is None and held is None:
            return
        if held is None or held.fact.content != (content or ""):
            dialect: Dialect = self._dialect if self._dialect in ("gemini", "bedrock") else "anthropic"
            self._record(Instructed(content=content or "", aside=True, dialect=dialect))

    def _record_tools(self, tools: Sequence[Any]) -> None:
        if self._deferral is not None:
            self._deferral.give(tools, self._wire.dialect, self._engine.view.meter.counter)
            if self._deferral.is_active:
                self._record_loaded_tools()
                return
        tools_json = wire.tools_text(tools)
        held = self._engine.view.tools
        if not tools_json and held is None:
            return
        tools = Raw((tools_json or "[]").encode("utf-8", "replace"))
        if held is None or held[1].tools != tools:
            self._record(Equipped(tools=tools))

    def _record_loaded_tools(self) -> None:
        """Record which tools the model has loaded, and offer what a reduction has hidden."""
        if self._deferral is not None and self._deferral.is_active:
            for fact in self._deferral.facts(self._engine.view, self._engine.model.name):
                self._record(fact)

    @contextmanager
    def _in_dialect(self, messages: Sequence[Any], tools: Sequence[Any], system: Any) -> Iterator[None]:
        """Detect the dialect, and keep it if all messages can be read in it. Messages and tools decide; until they
        do, the model's name is a hint."""
        if self._dialect:
            yield
            return
        found, before = wire.detect_dialect(messages, tools=tools), self._wire
        instructed = any(step.kind == "instructed" for step in self._engine.view.permanent_steps)
        name = self._engine.model.name
        likely = wire.likely_dialect(messages, model=name, system=system, has_system_message=instructed)
        self._wire = wire.wire_for(found or likely)
        try:
            yield
        except MalformedMessage:
            self._wire = before
            raise
        self._dialect = found

    def _record_memory(self) -> None:
        """Record what the memories say, if the view shows something else."""
        notes, text = ((), "") if self._memories is None else self._memories.update(self._wait)
        for fact in (*notes, *self._engine.memory_facts(text)):
            self._record(fact)

    def _record_priorities(self, priority: PriorityOf, first: int) -> None:
        """Record the priorities of the messages from `first` on."""
        engine = self._engine
        for event in engine.log[first:]:
            brief = brief_of(engine.view, event.seq, ratio=engine.calibration.ratio)
            if brief is None or type(event.fact) not in DIALOGUE_TYPES:
                continue
            try:
                chosen = priority(brief)
                fact = None if chosen is None else priority_fact(event.seq, chosen)
            except Exception as error:  # noqa: BLE001 (no request is lost because of a hook)
                problem = failed_wish(error).problem
                self._record(Noted(text=f"the function `priority` failed: {problem}", topic=HOOK_TOPIC))
                warnings.warn(ReductionHookFailed(problem, "priority"), stacklevel=3)
                return
            if fact is not None:
                self._record(fact)

    def _record_change(self, change: HistoryChange) -> None:
        warning = self._history.record(change)
        if warning is not None:
            warnings.warn(warning, stacklevel=3)

    # ── Fitting ──────────────────────────────────────────────────────────────────────────────────────

    def _make_room(self, now: float, *, sends_whole: bool) -> None:
        """Reduce within the limits of spending. A history that the provider compacts is sent whole, if it fits."""
        self._engine.check_spending(at=now, sends=False)
        for fact in self._engine.budget_facts(at=now):
            self._record(fact)
        if sends_whole:
            self._engine.check_whole_fits()
        else:
            self._reduce(now)
            self._record_loaded_tools()
        self._engine.check_spending(at=now)

    def _write_request(self, whole: Sequence[Any] | None) -> list[Any]:
        """Return the messages of the next request, and note that it is sent. `whole` is the history that is to be
        sent unreduced, also where an earlier request showed it reduced."""
        if whole is not None and ReducedCounts.of(self._engine.view):
            fitted = copy_messages(list(map(plain_json, whole)))
            self._requests.add_whole(self._engine)
        else:
            fitted, steps = self._writer.write(self._engine.view, self._wire)
            self._requests.add(self._engine, steps)
        note_request(self._requests, self._requests.last)
        return fitted

    def _reduce(self, now: float, *, agreed: bool = False) -> None:
        engine, first = self._engine, self._engine.next_seq
        moment = replace(self._requests.moment(engine), agreed=agreed)
        try:
            review = None if self._hook is None else self._review
            engine.reduce_to_fit(moment, at=now, write=self._write_summary, review=review)
        except ContextOverflow:
            engine.discard_from(first + len(engine.paid_facts(first)))
            raise
        self._history.release_hidden(engine.log[first:])

    def _review(self, proposed: ProposedCut) -> Wish:
        """Return what the hook asks for; nothing if it fails, with a warning."""
        assert self._hook is not None
        with self._lock.asking("the hook `on_reduction`"):
            try:
                answer = self._hook(proposed)
                if isinstance(answer, Awaitable):
                    answer = self._wait_for_hook(answer)
                return read_wish(answer, count=self._engine.next_seq)
            except Exception as error:  # noqa: BLE001 (no request is lost because of a hook)
                failed = failed_wish(error)
        warnings.warn(ReductionHookFailed(failed.problem), stacklevel=6)  # the caller of `fit`
        return failed

    def _wait_for_hook(self, answer: Awaitable[Any]) -> Any:
        if self._wait is None:
            if isinstance(answer, Coroutine):
                answer.close()
            raise BadSetting(
                "on_reduction", self._hook, "a function that is not async, or `afit` instead of `fit`"
            )
        return self._wait(answer)

    def _write_summary(self, plan: Plan) -> CompactionOutcome:
        """Return the summary of a range, written by a model or, if there is none or it failed too often, from the
        log alone. The user's `compact` always asks the model."""
        engine = self._engine
        failed_too_often = engine.compaction_health.is_broken and plan.reason != "hand"
        if not self._summarisers or not plan.ask or failed_too_often:
            return engine.write_ledger(plan)
        job = SummaryJob.of(engine, plan, effective_events(engine.log), self._wire.dialect)
        run = DialogueRun(
            job.dialogue(self._summarisers, prompt=self._prompt),
            self._summarisers,
            build_request=job.request,
            clock=time.monotonic,
            progress=self._progress,
            wait=self._wait,
        )
        with self._lock.asking("a summariser"):
            outcome = run_dialogue(run)
        if run.errors and not self._has_warned_of_summariser:
            self._has_warned_of_summariser = True
            problem = SummariserFailed(one_line(f"{type(run.errors[0]).__name__}: {run.errors[0]}"))
            warnings.warn(problem, stacklevel=1)
        return outcome

    def _event(self, name: str | int) -> Event:
        log = self._engine.log
        return log[seq_of(name, count=len(log))]


def _context_memories(memory: object, log: Sequence[Event]) -> ContextMemories | None:
    """Return the memories of a context; None without any."""
    if memory is None:
        return None
    from foveal.context.memories import ContextMemories  # loads what most loops never need

    return ContextMemories(memory, log)


async def _append_missing(store: Store, session: str, log: Sequence[Event]) -> None:
    """Append the events that a session does not have yet; raises `Conflict` if it has others than the log."""
    try:
        end = (await store.end(session)).next_seq
    except UnknownSession:
        check_new_session_id("session", session)
        end = 0
    if end > len(log):
        held = f"it has {counted(end, 'event')}, and this context {len(log):,}"
        problem = f"{held}: another program has continued it; load it"
        raise Conflict(session, given=len(log), next_seq=end, problem=problem)
    # Times are compared too, so that two conversations that end with the same words are told apart.
    for seq in {0, end - 1} if end else ():
        if await store.read(session, first=seq, last=seq) != [log[seq]]:
            problem = f"event {seq:,} in the store is not that of this context: save it with another id"
            raise Conflict(session, given=len(log), next_seq=end, problem=problem)
    if end < len(log):
        await store.append(session, log[end:])
