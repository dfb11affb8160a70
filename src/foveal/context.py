"""`Context`: keeps the messages of your own agent loop inside the model's window.

    ctx = foveal.Context(model="gpt-4.1")
    reply = client.chat.completions.create(model="gpt-4.1", messages=ctx.fit(messages))
    ctx.observe(reply.usage)

1. `fit` takes the whole history in any of the three dialects, recognises by content what it has seen before,
   records the rest, reduces until the request fits, and returns a list in the same dialect.
2. It never changes its input, and its output shares nothing with what is kept here.
3. If a message is edited (replaced, or changed in place while it is shown), the log records a rewind to the message
   before it and continues from there. An edited system message replaces the old one where it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast

from msgspec import Raw
from msgspec.structs import replace

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
from foveal.core.engine.engine import Engine
from foveal.core.engine.event_status import EventStatus
from foveal.core.engine.history_diff import MESSAGE_FACTS, HistoryChange, MessageHistory
from foveal.core.engine.operations import (
    check_agreement,
    compaction_handle,
    expand_facts,
    newest_reduction,
    pin_fact,
    plan_manual_compaction,
    seq_of,
    undo_fact,
)
from foveal.core.engine.report import Report, event_status, report
from foveal.core.engine.sent_requests import SentRequests
from foveal.core.engine.settings import SettingArguments, resolve_settings
from foveal.core.engine.summary_job import SummaryJob
from foveal.core.log.events import (
    AnyFact,
    Compacted,
    Content,
    Dialect,
    Dropped,
    Equipped,
    Event,
    Instructed,
    Opened,
    Rewound,
    SnapshotTaken,
    ToolReturned,
    handle,
)
from foveal.core.models.model import Model
from foveal.core.reduction.truncation import Limits
from foveal.core.view.fold import effective_events
from foveal.core.view.request import render_view
from foveal.errors import BadSetting, ContextOverflow, MalformedMessage
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
        **settings: Unpack[SettingArguments],
    ) -> None:
        """`settings` are those of `SettingArguments`: policy, window, reserve, caps, tokenizer. The dialect is
        detected from the messages; pass it where they are ambiguous. `summarise` writes summaries: a callable
        that receives a request, or several as fallbacks; without it, summaries are written from the log alone.
        `prompt` is a text, or `file://…`, that replaces Foveal's."""
        self._engine = Engine(*resolve_settings(model, **settings))
        self._clock = clock or time.time
        self._lock = RLock()
        self._requests = SentRequests()
        self._history = MessageHistory()
        self._summarisers = summariser_chain(summarise)
        self._prompt = prompt_text(prompt)
        self._progress = progress
        self._wire = wire.wire_for(dialect)
        self._dialect: Dialect = dialect
        """The dialect once it is certain; "" until then."""
        self._call_limits: dict[str, Limits] = {}
        self._recall: Recall | None = None
        self._opened: Opened | None = None
        """A change of model that the next `fit` records, after the answers of the model before it."""
        self._record(Opened(model=self._engine.model.name, policy=self._engine.policy.name))

    # ── The loop ─────────────────────────────────────────────────────────────────────────────────────

    def fit(
        self, messages: Sequence[Any] | None = None, *, tools: Sequence[Any] = (), system: Any = None
    ) -> list[dict[str, Any]]:
        """Return the history as the next request should send it: legal, and within the budget.

        `system` is text that the caller sends beside the messages (Anthropic's `system`, Responses'
        `instructions`); it is counted, never cut, and not part of the result. Without `messages`, the messages
        passed to `append` are fitted. Raises `ContextOverflow` when the request cannot fit.
        """
        with self._lock:
            now = self._clock()
            system_content = None if system is None else _system_content(system)
            tools_json = wire.tools_text(_checked_list("tools", tools or ()))
            known, change = len(self._history.known), None
            if messages is not None:
                given = _checked_list("messages", messages)
                with self._in_dialect(given[known:], tools or (), system):
                    change = self._history.diff(given, self._wire, self._engine.log)
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
            self._history.known.share_copies(known, self._rendered_step)
            return fitted

    def append(self, *messages: Any) -> None:
        """Record messages that follow the recorded ones, for a loop that does not resend its whole history."""
        with self._lock:
            with self._in_dialect(messages, (), None):
                chunks = list(self._wire.read(messages))
            self._record_change(HistoryChange(len(self._history.known), [], chunks, messages))

    def observe(self, report: Any) -> None:
        """Learn from the usage that the provider reported for the request of the last `fit`: an object or a dict of
        any dialect, or the whole reply. A report without numbers is ignored."""
        with self._lock:
            for fact in self._requests.usage_facts(report, self._engine):
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
                self._recall = Recall(InMemoryLibrary(self._engine.log, visible=self._is_shown_in_full))
            return _run_without_waiting(self._recall.call(name, arguments))

    def _is_shown_in_full(self, seq: int) -> bool:
        found = self._engine.view.find(seq)
        return found is not None and found[1].level == "full"

    # ── Changing what is shown ───────────────────────────────────────────────────────────────────────

    def pin(self, text: str = "", *, event: str | int | None = None) -> str:
        """Keep a rule in every request, or the step of an event as it is now. Returns the pin's handle."""
        with self._lock:
            target = None if event is None else self._event(event).seq
            return self._record(pin_fact(self._engine.view, text, target)).handle

    def snapshot(self, data: Any, *, label: str = "") -> str:
        """Record the application's own state, for example a commit id; it is never sent. Returns its handle."""
        with self._lock:
            return self._record(SnapshotTaken(data=wire.raw_setting(data, "data"), label=label)).handle

    def compact(self, focus: str = "") -> str:
        """Summarise old turns now; `focus` says what to keep above all. Returns the handle of the event that
        records the summary; raises `NotCompacted` when there is nothing to summarise or no summary was written."""
        with self._lock:
            event = self._record(self._write_summary(plan_manual_compaction(self._engine, focus)))
            self._release_hidden([event])
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
            self._opened = Opened(model=engine.model.name, policy=engine.policy.name)

    def limit(self, call_id: str, limits: Limits) -> None:
        """Clip the coming result of one call by its own limits instead of those of its tool or the policy."""
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
            self._record(Instructed(content=content or "", aside=True, dialect="anthropic"))

    def _record_tools(self, tools_json: str) -> None:
        held = self._engine.view.tools
        if not tools_json and held is None:
            return
        tools = Raw((tools_json or "[]").encode("utf-8", "replace"))
        if held is None or held[1].tools != tools:
            self._record(Equipped(tools=tools))

    @contextmanager
    def _in_dialect(self, messages: Sequence[Any], tools: Sequence[Any], system: Any) -> Iterator[None]:
        """Detect the dialect, and keep it if all messages can be read in it. Messages and tools decide; a system
        text beside the messages only hints at Anthropic's, for a Claude model."""
        if self._dialect:
            yield
            return
        found, before = wire.detect_dialect(messages, tools=tools), self._wire
        hint: Dialect = (
            "anthropic" if system is not None and "claude" in self._engine.model.name.lower() else ""
        )
        self._wire = wire.wire_for(found or hint)
        try:
            yield
        except MalformedMessage:
            self._wire = before
            raise
        self._dialect = found

    def _record_change(self, change: HistoryChange) -> None:
        """Record new messages, with a rewind if older ones were edited, and replaced messages in their place."""
        history = self._history
        for replaced in change.replaced:
            history.note_replaced(replaced, self._record(replaced.fact))
        if change.start < len(history.known):
            to = history.known.seq_before[change.start]
            show_dropped = self._has_room_for_dropped(to)
            self._record(Rewound(to=to, keep_state=True, keep_reductions=True, show_dropped=show_dropped))
            history.truncate(change.start)
        index = 0
        for chunk in change.chunks:
            seq_before = self._engine.next_seq - 1
            for fact in chunk.facts:
                self._record(fact)
            history.known.add(change.messages[index : index + chunk.messages], seq_before=seq_before)
            index += chunk.messages

    def _has_room_for_dropped(self, to: int) -> bool:
        """Return whether the whole history up to `to` takes less than half of what triggers a reduction, so that
        dropped steps can be shown again."""
        engine = self._engine
        events = effective_events(engine.log[: to + 1])
        messages = ((event.seq, event.fact) for event in events if isinstance(event.fact, MESSAGE_FACTS))
        units = sum(engine.view.meter.message(seq, fact) for seq, fact in messages)
        return units < engine.budget().act // 2

    # ── Fitting ──────────────────────────────────────────────────────────────────────────────────────

    def _rendered_step(self, seq: int) -> Sequence[Any] | None:
        found = self._engine.view.find(seq)
        return None if found is None else found[0].rendered

    def _reduce(self, now: float, *, agreed: bool = False) -> None:
        engine, first = self._engine, self._engine.next_seq
        moment = replace(self._requests.moment(engine), agreed=agreed)
        try:
            engine.reduce_to_fit(moment, at=now, write=self._write_summary)
        except ContextOverflow:
            engine.discard_from(first + len(engine.paid_facts(first)))
            raise
        self._release_hidden(engine.log[first:])

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
        )
        return run_dialogue(run)

    def _release_hidden(self, events: Sequence[Event]) -> None:
        """Drop the copies of messages that `events` hide."""
        view = self._engine.view
        for event in events:
            fact = event.fact
            if isinstance(fact, Dropped | Compacted):
                ranges = fact.ranges if isinstance(fact, Dropped) else ((fact.first, fact.last),)
                for first, last in ranges:
                    self._history.known.release_hidden(first, last, lambda seq: view.find(seq) is not None)

    def _event(self, name: str | int) -> Event:
        log = self._engine.log
        return log[seq_of(name, count=len(log))]


def _checked_list(field: str, given: Iterable[Any]) -> list[Any]:
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise BadSetting(field, given, "a list")
    return given if type(given) is list else list(given)


def _run_without_waiting(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as result:
        return cast(T, result.value)
    raise AssertionError("a library in memory has nothing to wait for")


def _system_content(system: Any) -> Content:
    """Return the caller's system text (a string, or a list of blocks) as content."""
    try:
        fact = next(wire.wire_for("anthropic").read([{"role": "system", "content": system}])).facts[0]
    except MalformedMessage as problem:
        raise BadSetting(
            "system", system, f"a text or a list of blocks; {problem.field}: {problem.problem}"
        ) from None
    assert isinstance(fact, Instructed)
    return fact.content
