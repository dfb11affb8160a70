"""`Context`: keeps the messages of your own agent loop inside the model's window.

    ctx = foveal.Context(model="gpt-4.1")
    reply = client.chat.completions.create(model="gpt-4.1", messages=ctx.fit(messages))
    ctx.observe(reply.usage)

1. `fit` takes the whole history in any dialect, recognises by content what it has seen before,
   records the rest, reduces until the request fits, and returns a list in the same dialect.
2. It never changes its input, and its output shares nothing with what is kept here.
3. If a message is edited (replaced, or changed in place while it is shown), the log records a rewind to the message
   before it and continues from there. An edited system message replaces the old one where it is.
4. One context is for one conversation. A history that shares nothing with the recorded one begins another, with a
   warning; `recall` does not find what was said before it.
5. `save` returns the log and `load` continues with it: the next `fit` recognises the history in it.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import get_ident
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

from msgspec import Raw
from msgspec.structs import replace

from foveal.context.context_lock import ContextLock, run_in_thread
from foveal.context.saved_events import append_missing
from foveal.context.summariser_problems import SummariserProblems
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
from foveal.core.engine.context_arguments import (
    ContextArguments,
    check_limit,
    checked_list,
    dialect_of,
    model_of,
    system_text,
)
from foveal.core.engine.engine import Engine
from foveal.core.engine.event_status import EventStatus
from foveal.core.engine.given_history import GivenHistory
from foveal.core.engine.history_diff import HistoryChange
from foveal.core.engine.no_waiting import run_without_waiting
from foveal.core.engine.operations import (
    check_agreement,
    compaction_handle,
    drop_fact,
    expand_facts,
    newest_reduction,
    pin_fact,
    plan_manual_compaction,
    seq_of,
    undo_fact,
)
from foveal.core.engine.origins import Origin
from foveal.core.engine.report import Report, event_status, report
from foveal.core.engine.sent_requests import SentRequests
from foveal.core.engine.settings import SettingArguments, opened_fact, opens_anew, resolve_settings
from foveal.core.engine.summary_job import SummaryJob
from foveal.core.log.codec import decode, encode
from foveal.core.log.events import (
    AnyFact,
    Content,
    Dialect,
    Equipped,
    Event,
    Instructed,
    Opened,
    SnapshotTaken,
    ToolReturned,
    handle,
)
from foveal.core.models.model import Model
from foveal.core.reduction.truncation import Limits
from foveal.core.view.fold import effective_events
from foveal.core.view.request import render_view
from foveal.core.wire.typed_messages import Beside, MessageT
from foveal.errors import ContextOverflow, MalformedMessage, UnrelatedConversation, UsageMissing
from foveal.ports import Store
from foveal.project.prompt_file import prompt_text

if TYPE_CHECKING:
    from foveal.recall.recall import Recall

T = TypeVar("T")


class Context:
    """The context of one conversation. It can be used from any thread; calls are served one at a time."""

    def __init__(
        self,
        model: str | Model,
        *,
        dialect: Dialect = "",
        summarise: Summarise | Sequence[Summarise] | None = None,
        prompt: str = "",
        progress: Callable[[SummaryProgress], None] | None = None,
        clock: Callable[[], float] | None = None,
        log: Sequence[Event] = (),
        **settings: Unpack[SettingArguments],
    ) -> None:
        """`settings` are those of `SettingArguments`: policy, window, reserve, caps, tokenizer. The dialect is
        detected from the messages; pass it where they are ambiguous. `summarise` writes summaries: a callable
        that receives a request, or several as fallbacks; without it, summaries are written from the log alone.
        `prompt` is a text, or `file://…`, that replaces Foveal's. `log` is that of an earlier context, to continue
        it."""
        self._engine = engine = Engine(*resolve_settings(model, **settings), log=log)
        self._clock = clock or time.time
        self._lock = ContextLock()
        self._requests = SentRequests()
        self._history = GivenHistory(engine, self._record)
        self._summarisers = summariser_chain(summarise)
        self._prompt = prompt_text(prompt)
        self._progress = progress
        self._wire = wire.wire_for(dialect or dialect_of(log))
        self._dialect: Dialect = dialect
        """The dialect once it is certain; "" until then."""
        self._summariser_problems = SummariserProblems()
        self._call_limits: dict[str, Limits] = {}
        self._recall: Recall | None = None
        self._opened: Opened | None = None
        """A change of model that the next `fit` records, after the answers of the model before it."""
        self._wait: Callable[[Awaitable[Any]], Any] | None = None
        """Waits for what an async summariser returns; set while `afit` runs."""
        opened = opened_fact(engine.model, engine.policy)
        if not log or opens_anew(opened, engine.opened):
            self._record(opened)

    @classmethod
    def load(
        cls, saved: bytes, model: str | Model | None = None, **arguments: Unpack[ContextArguments]
    ) -> Self:
        """Continue a context from what `save` returned. The settings are not saved: pass them again."""
        log = [decode(line) for line in saved.splitlines() if line]
        return cls(model or model_of(log), log=log, **arguments)

    def save(self) -> bytes:
        """Return the whole log, one event per line of JSON."""
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
        """Continue a context from a session in a store; raises `UnknownSession`."""
        log = await store.read(session)
        return cls(model or model_of(log), log=log, **arguments)

    async def save_to(self, store: Store, session: str) -> None:
        """Append the events that a session in a store does not have yet. Raises `Conflict` if the session is not
        this context's."""
        with self._lock:
            log = tuple(self._engine.log)
        await append_missing(store, session, log)

    # ── The loop ─────────────────────────────────────────────────────────────────────────────────────

    @overload
    def fit(self, messages: Sequence[MessageT], **beside: Unpack[Beside]) -> list[MessageT]: ...
    @overload
    def fit(self, messages: Sequence[object] | None = None, **beside: Unpack[Beside]) -> list[Any]: ...
    def fit(
        self, messages: Sequence[Any] | None = None, *, tools: Sequence[Any] = (), system: Any = None
    ) -> list[Any]:
        """Return the history as the next request should send it: legal, and within the budget.

        `system` is text that the caller sends beside the messages (`system` of Anthropic and Bedrock, Responses'
        `instructions`); it is counted, never cut, and not part of the result. Without `messages`, the messages
        passed to `append` are fitted. Raises `ContextOverflow` when the request cannot fit.
        """
        with self._lock:
            now = self._clock()
            system_content = None if system is None else system_text(system)
            tools_json = wire.tools_text(checked_list("tools", tools or ()))
            known, change = len(self._history), None
            if messages is not None:
                given = checked_list("messages", messages)
                with self._in_dialect(given[known:], tools or (), system):
                    change = self._history.recognise(given, self._wire)
                known = min(known, change.start)
            is_first = not known
            if is_first:
                self._record_setup(system_content, tools_json)
            if change is not None:
                self._record_change(change)
            if not is_first:  # the new messages may begin with the answer to a request without these changes
                self._record_setup(system_content, tools_json)
            self._reduce(now)
            fitted, steps = render_view(self._engine.view, self._wire)
            self._requests.add(self._engine, steps)
            self._history.share_copies(known)
            return fitted

    def fit_with_origins(
        self, messages: Sequence[Any] | None = None, *, tools: Sequence[Any] = (), system: Any = None
    ) -> tuple[list[Any], list[Origin]]:
        """Return what `fit` returns, and for each message of it which given message it stands for."""
        with self._lock:
            fitted = self.fit(messages, tools=tools, system=system)
            return fitted, self._history.origins(self._wire, fitted)

    @overload
    async def afit(self, messages: Sequence[MessageT], **beside: Unpack[Beside]) -> list[MessageT]: ...
    @overload
    async def afit(self, messages: Sequence[object] | None = None, **beside: Unpack[Beside]) -> list[Any]: ...
    async def afit(self, messages: Sequence[Any] | None = None, **beside: Unpack[Beside]) -> list[Any]:
        """Do what `fit` does without blocking the event loop: the work runs in a thread, an async summariser in
        this loop."""
        return (await self.afit_with_origins(messages, **beside))[0]

    async def afit_with_origins(
        self, messages: Sequence[Any] | None = None, *, tools: Sequence[Any] = (), system: Any = None
    ) -> tuple[list[Any], list[Origin]]:
        """Return what `fit_with_origins` returns, without blocking the event loop."""

        needed, thread = bool(self._summarisers), get_ident()

        def work(wait: Callable[[Awaitable[Any]], Any]) -> tuple[list[Any], list[Origin]]:
            try:
                with self._lock:
                    self._wait = wait
                    try:
                        return self.fit_with_origins(messages, tools=tools, system=system)
                    finally:
                        self._wait = None
            finally:  # not when the task is cancelled: this thread still holds the lock then
                if needed:
                    self._lock.end_to_need(thread)

        if needed:
            self._lock.begin_to_need(thread)
        return await run_in_thread(work)

    def append(self, *messages: Any) -> None:
        """Record messages that follow the recorded ones, for a loop that does not resend its whole history."""
        with self._lock:
            with self._in_dialect(messages, (), None):
                change = self._history.following(messages, self._wire)
            self._record_change(change)

    def observe(self, report: Any) -> None:
        """Learn from the usage that the provider reported for the request of the last `fit`: an object or a dict of
        a provider or framework, or the whole reply. Raises `BadSetting` for a report that is not understood; warns
        once of a reply without usage (`UsageMissing`). Usage without prompt tokens, of an aborted reply, is
        ignored."""
        with self._lock:
            facts = self._requests.usage_facts(report, self._engine)
            if not facts and self._requests.is_first_without_usage(report):
                warnings.warn(UsageMissing(), stacklevel=2)
            for fact in facts:
                self._record(fact)

    def overflowed(self, error: object) -> bool:
        """Return whether a provider's error says that the request was too large. If so, its limit is learned and
        the next `fit` (or `max_tokens`) is smaller: send again. Raises `ContextOverflow` when that has not
        helped."""
        with self._lock:
            fact = self._engine.refusal(error, sent=self._requests.last_tokens)
            if fact is not None:
                self._record(fact)
            return fact is not None

    def new_conversation(self) -> None:
        """Begin another conversation with the same settings, pins and limits learned: the messages so far leave the
        view, and `recall` does not find them."""
        with self._lock:
            self._history.begin_conversation()
            self._recall = None

    def set_reserve(self, tokens: int | None) -> None:
        """Change the setting `reserve`, the tokens that are kept free for the next answers."""
        with self._lock:
            self._engine.set_reserve(tokens)

    @property
    def max_tokens(self) -> int:
        """Most tokens that the answer to the next request may take."""
        with self._lock:
            return self._engine.max_tokens

    # ── Reading ──────────────────────────────────────────────────────────────────────────────────────

    def report(self) -> Report:
        """Return what fills the window, and for every event its level and the rule that decided it."""
        with self._lock:
            return report(self._engine, calls=self._requests.count, breaks=self._requests.breaks)

    def why(self, name: str | int) -> EventStatus:
        """Return how the next request shows one event: its level, its tokens, the rule, and the event behind it."""
        with self._lock:
            return event_status(self._engine, self._event(name))

    def original(self, name: str | int) -> str:
        """Return the whole text of an event, at whatever level it is shown."""
        with self._lock:
            return wire.original_text(self._event(name).fact)

    @property
    def log(self) -> tuple[Event, ...]:
        """All events, oldest first."""
        with self._lock:
            return tuple(self._engine.log)

    def recall(self, name: str, arguments: str | Mapping[str, Any]) -> str:
        """Answer a model's call of `recall_search` or `recall_read` (`foveal.recall.tools` describes them to the
        model). It searches the whole log, including what is no longer shown, and needs no event loop."""
        from foveal.recall.recall import InMemoryLibrary, Recall  # loads SQLite, which most loops never need

        with self._lock:
            if self._recall is None:
                library = InMemoryLibrary(
                    self._engine.log, visible=self._is_shown_in_full, first=self._history.conversation_start
                )
                self._recall = Recall(library)
            return run_without_waiting(self._recall.call(name, arguments))

    def _is_shown_in_full(self, seq: int) -> bool:
        found = self._engine.view.find(seq)
        return found is not None and found[1].level == "full"

    # ── Changing what is shown ───────────────────────────────────────────────────────────────────────

    def pin(self, text: str = "", *, event: str | int | None = None) -> str:
        """Keep a rule in every request, or the step of an event: as it is now, or whole if it is hidden or
        expanded. Returns the pin's handle; raises `ContextOverflow` when there is no room."""
        with self._lock:
            target = None if event is None else self._event(event).seq
            return self._record(pin_fact(self._engine, text, target, log=self._engine.log)).handle

    def drop(self, name: str | int) -> str:
        """Hide the step of an event, or a summary with all that it stands for, until `undo`; a notice names it.
        Returns the handle of the event that records it; raises `NotDropped` for what every request contains."""
        with self._lock:
            event = self._record(drop_fact(self._engine, self._event(name).seq))
            self._history.release_hidden([event])
            return event.handle

    def snapshot(self, data: Any, *, label: str = "") -> str:
        """Record the application's own state, for example a commit id; it is never sent. Returns its handle."""
        with self._lock:
            return self._record(SnapshotTaken(data=wire.raw_setting(data, "data"), label=label)).handle

    def compact(self, focus: str = "") -> str:
        """Summarise old turns now; `focus` says what to keep above all. Returns the handle of the event that
        records the summary; raises `NotCompacted` when there is nothing to summarise or no summary was written."""
        with self._lock:
            event = self._record(self._write_summary(plan_manual_compaction(self._engine, focus)))
            self._history.release_hidden([event])
            return compaction_handle(event)

    def agree(self) -> str:
        """Answer the `question` of the report with yes, in mode `confirm`: reduce as mode `auto` would now. Returns
        the handle of the newest reduction; raises `NotCompacted` when there is no question or nothing to reduce."""
        with self._lock:
            engine, first = self._engine, self._engine.next_seq
            check_agreement(engine)
            self._reduce(self._clock(), agreed=True)
            return newest_reduction(engine.log[first:])

    def undo(self, name: str | int | None = None) -> str:
        """Take back a reduction or a pin, by default the newest reduction, whatever came after it. Returns the
        handle of what was taken back; raises `ContextOverflow` when there is no room for what it hides."""
        with self._lock:
            fact = undo_fact(self._engine, self._engine.log, None if name is None else self._event(name))
            self._record(fact)
            return handle(fact.target)

    def expand(self, name: str | int) -> str:
        """Show the range of a reduction, or the step of an event, in full until the user's next message. Returns
        the handle of the (first) event that records it; raises `ContextOverflow` when there is no room."""
        with self._lock:
            facts = expand_facts(self._engine, self._engine.log, self._event(name).seq)
            events = [self._record(fact) for fact in facts]
            return events[0].handle

    def use(self, model: str | Model, *, window: int | None = None) -> None:
        """Continue with another model; if its window is smaller, the next `fit` reduces the history to it."""
        with self._lock:
            engine = self._engine
            engine.switch_model(resolve_settings(model, window=window).model)
            self._opened = opened_fact(engine.model, engine.policy)

    def limit(self, call_id: str, limits: Limits) -> None:
        """Clip the coming result of one call by its own limits instead of those of its tool or the policy."""
        check_limit(call_id, limits)
        with self._lock:
            self._call_limits[call_id] = limits

    # ── Recording ────────────────────────────────────────────────────────────────────────────────────

    def _record(self, fact: AnyFact) -> Event:
        limits = self._call_limits.pop(fact.call_id, None) if isinstance(fact, ToolReturned) else None
        return self._engine.append(fact, at=self._clock(), limits=limits)

    def _record_setup(self, system: Content | None, tools_json: str) -> None:
        """Record what has changed beside the messages: the model, the system text and the tools."""
        if self._opened is not None:
            self._record(self._opened)
            self._opened = None
        self._record_system(system)
        self._record_tools(tools_json)

    def _record_system(self, content: Content | None) -> None:
        held = self._engine.view.asides.get("")
        if content is None and held is None:
            return
        if held is None or held.fact.content != (content or ""):
            dialect: Dialect = self._dialect if self._dialect in ("gemini", "bedrock") else "anthropic"
            self._record(Instructed(content=content or "", aside=True, dialect=dialect))

    def _record_tools(self, tools_json: str) -> None:
        held = self._engine.view.tools
        if not tools_json and held is None:
            return
        tools = Raw((tools_json or "[]").encode("utf-8", "replace"))
        if held is None or held[1].tools != tools:
            self._record(Equipped(tools=tools))

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

    def _record_change(self, change: HistoryChange) -> None:
        if self._history.record(change):
            self._recall = None
            if (before := self._history.messages_before) > 1:  # one message was rather edited
                warnings.warn(UnrelatedConversation(before), stacklevel=3)

    # ── Fitting ──────────────────────────────────────────────────────────────────────────────────────

    def _reduce(self, now: float, *, agreed: bool = False) -> None:
        engine, first = self._engine, self._engine.next_seq
        moment = replace(self._requests.moment(engine), agreed=agreed)
        try:
            engine.reduce_to_fit(moment, at=now, write=self._write_summary)
        except ContextOverflow:
            engine.discard_from(first + len(engine.paid_facts(first)))
            raise
        self._history.release_hidden(engine.log[first:])

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
        outcome = run_dialogue(run)
        self._summariser_problems.add(run.errors)
        return outcome

    def _event(self, name: str | int) -> Event:
        log = self._engine.log
        return log[seq_of(name, count=len(log))]
