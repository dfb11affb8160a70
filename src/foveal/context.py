"""The small synchronous face for somebody else's loop: three lines, and the loop stays inside its window.

    ctx = foveal.Context(model="gpt-4.1")
    reply = client.chat.completions.create(model="gpt-4.1", messages=ctx.fit(messages))
    ctx.observe(reply.usage)

`fit` takes the whole history as the caller keeps it, in any of the three dialects, recognises by content what it
has seen before, records the rest, reduces until the request fits, and returns a list in the same dialect. Its
input is never changed and its output never shared with what is kept here.

Messages that were handed over are facts. One that is edited (replaced, or changed in place while it is shown) is
recognised: the log records a rewind to the message before it and goes on from there, and an edited system message
replaces the old one where it stands.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast

from msgspec import Raw

from foveal.core import wire
from foveal.core.compaction.plan import NoPlan, Plan
from foveal.core.compaction.summariser import Summarise, SummaryProgress, chain, write
from foveal.core.compaction.writing import CompactionOutcome
from foveal.core.engine.engine import Engine
from foveal.core.engine.history_diff import MESSAGES, HistoryChange, MessageHistory
from foveal.core.engine.report import EventStatus, Report, event_status, report
from foveal.core.engine.sent_requests import SentRequests
from foveal.core.engine.settings import GivenSettings, engine_settings
from foveal.core.engine.summary_job import SummaryJob
from foveal.core.log.events import (
    REDUCTIONS,
    AnyFact,
    Compacted,
    CompactionFailed,
    Content,
    Dialect,
    Dropped,
    Equipped,
    Event,
    Instructed,
    Opened,
    Pinned,
    Reverted,
    Rewound,
    SnapshotTaken,
    ToolReturned,
    parse_handle,
)
from foveal.core.models.model import Model
from foveal.core.policies import Moment
from foveal.core.reduction.truncation import Limits
from foveal.core.reduction.undo import check_undo, expansion, no_room
from foveal.core.view.fold import effective
from foveal.core.view.request import Renderer
from foveal.core.view.view import hidden_by
from foveal.errors import BadSetting, ContextOverflow, MalformedMessage, NotCompacted, UnknownHandle
from foveal.project.prompt_file import prompt_text

if TYPE_CHECKING:
    from foveal.recall.recall import Recall

T = TypeVar("T")


class Context:
    """One conversation's context. Use it from any thread; one call at a time is served."""

    def __init__(
        self,
        model: str | Model,
        *,
        dialect: Dialect = "",
        summarise: Summarise | Sequence[Summarise] | None = None,
        prompt: str = "",
        progress: Callable[[SummaryProgress], None] | None = None,
        clock: Callable[[], float] | None = None,
        **settings: Unpack[GivenSettings],
    ) -> None:
        """`settings` are those of `foveal.core.engine.settings.Settings`: policy, window, reserve, caps, tokenizer. The dialect
        is recognised from the messages; name it where they leave it open. `summarise` writes summaries: a callable
        that is given a request, or several to fall back on; without it, they are written from the log alone.
        `prompt` is a text, or `file://…`, in place of ours."""
        self._engine = Engine(*engine_settings(model, **settings))
        self._clock = clock or time.time
        self._lock = RLock()
        self._renderer = Renderer()
        self._calls = SentRequests()
        self._history = MessageHistory()
        self._summarisers = chain(summarise)
        self._prompt = prompt_text(prompt)
        self._progress = progress
        self._wire = wire.wire(dialect)
        self._dialect: Dialect = dialect
        self._per_call: dict[str, Limits] = {}
        self._recall: Recall | None = None
        self._record(Opened(model=self._engine.model.name, policy=self._engine.policy.name))

    # ── the three lines ──────────────────────────────────────────────────────────────────────────────

    def fit(
        self, messages: Sequence[Any] | None = None, *, tools: Sequence[Any] = (), system: Any = None
    ) -> list[dict[str, Any]]:
        """The history as the next request should send it: legal, and within the budget.

        `system` is text that the caller sends beside the messages (Anthropic's `system`, Responses'
        `instructions`); it is counted, never cut, and not part of what is returned. Without `messages`, what
        was given to `append` is fitted.
        """
        with self._lock:
            now = self._clock()
            beside = None if system is None else _content(system)
            offered = wire.tools_text(_listed("tools", tools or ()))
            known, change = len(self._history.taken), None
            if messages is not None:
                given = _listed("messages", messages)
                with self._in_dialect(given[known:], tools or (), system):
                    change = self._history.compared(given, self._wire, self._engine.log)
                known = min(known, change.at)
            self._take_system(beside)
            self._take_tools(offered)
            if change is not None:
                self._take(change)
            self._settle(now)
            fitted, moved = self._renderer.render(self._engine.view, self._wire)
            self._calls.made(self._engine, now, moved)
            self._history.taken.share(known, self._written)
            return fitted

    def append(self, *messages: Any) -> None:
        """Record messages that follow those taken so far; for loops that would rather not resend the rest."""
        with self._lock:
            with self._in_dialect(messages, (), None):
                change = HistoryChange(
                    len(self._history.taken), [], list(self._wire.read(messages)), messages
                )
            self._take(change)

    def observe(self, report: Any) -> None:
        """Learn from the usage that the provider reported for the request of the last `fit`: an object or a
        dict of any dialect, or the whole reply. A report without numbers is ignored."""
        with self._lock:
            for fact in self._calls.report(report, self._engine):
                self._record(fact)

    def overflowed(self, error: object) -> bool:
        """Whether a provider's error says that the request was too large. If so, its limit is learned and the next
        `fit` is smaller (or `max_tokens` is): send again. Raises `ContextOverflow` when that has not helped."""
        with self._lock:
            fact = self._calls.refusal(error, self._engine)
            if fact is not None:
                self._record(fact)
            return fact is not None

    @property
    def max_tokens(self) -> int:
        """What the answer to the next request may take at the most."""
        with self._lock:
            return self._engine.max_tokens

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────

    def report(self) -> Report:
        """What fills the window, and for every event its level and the rule that put it there."""
        with self._lock:
            return report(self._engine, calls=self._calls.count, breaks=self._calls.breaks)

    def why(self, name: str | int) -> EventStatus:
        """How one event stands in the next request: its level, its tokens, the rule and the event behind it."""
        with self._lock:
            event = self._event(name)
            counts = any(event is other for other in effective(self._engine.log))
            return event_status(self._engine, event, counts=counts)

    def original(self, name: str | int) -> str:
        """The whole text of an event, whatever is shown of it."""
        with self._lock:
            return wire.original(self._event(name).fact)

    @property
    def log(self) -> tuple[Event, ...]:
        """Everything that happened, oldest first."""
        with self._lock:
            return tuple(self._engine.log)

    def recall(self, name: str, arguments: str | Mapping[str, Any]) -> str:
        """Answer a model's call of `recall_search` or `recall_read` (offer them with `foveal.recall.recall.tools`): looks
        into the whole log, also at what is no longer shown. Needs no event loop."""
        from foveal.recall.recall import (  # looks for SQLite, which most loops never need
            InMemoryLibrary,
            Recall,
        )

        with self._lock:
            if self._recall is None:
                self._recall = Recall(InMemoryLibrary(self._engine.log, visible=self._shown_whole))
            return finished(self._recall.call(name, arguments))

    def _shown_whole(self, seq: int) -> bool:
        found = self._engine.view.find(seq)
        return found is not None and found[1].level == "full"

    # ── steering ─────────────────────────────────────────────────────────────────────────────────────

    def pin(self, text: str = "", *, event: str | int | None = None) -> str:
        """Keep a rule in every request, or the step of an event as it is now. Returns the pin's handle."""
        with self._lock:
            if not text and event is None:
                raise BadSetting("pin", text, "a text, or the handle of an event")
            target = None if event is None else self._event(event).seq
            if target is not None and self._engine.view.find(target) is None:
                raise UnknownHandle(
                    f"{event!r} is not shown any more, so it cannot be pinned; see why({event!r})"
                )
            return self._record(Pinned(text=text, target=target)).handle

    def snapshot(self, data: Any, *, label: str = "") -> str:
        """Record an application's own state (a commit id, say); it is never sent. Returns its handle."""
        with self._lock:
            return self._record(SnapshotTaken(data=wire.opaque(data, "data"), label=label)).handle

    def compact(self, focus: str = "") -> str:
        """Summarise old turns now; `focus` says what to keep above all. Returns the handle of the event that
        records it; raises `NotCompacted` when there is nothing to summarise or nothing came of it."""
        with self._lock:
            planned = self._engine.plan(reason="hand", focus=focus)
            if isinstance(planned, NoPlan):
                ratio = self._engine.calibration.ratio
                raise NotCompacted(planned.told(ratio), floor=round(planned.floor * ratio))
            event = self._record(self._summary(planned))
            if isinstance(event.fact, CompactionFailed):
                raise NotCompacted(event.fact.problem)
            self._release([event])
            return event.handle

    def undo(self, name: str | int | None = None) -> str:
        """Take back one reduction (the newest, if none is named), whatever came after it. Returns its handle."""
        with self._lock:
            event = self._newest_reduction() if name is None else self._event(name)
            check_undo(event, effective(self._engine.log))
            self._record(Reverted(target=event.seq))
            return event.handle

    def expand(self, name: str | int) -> None:
        """Show a range as it was said until the user speaks again: that of a reduction, or the step of an event.
        Raises `ContextOverflow` when there is no room for it."""
        with self._lock:
            first = self._engine.next_seq
            for fact in expansion(effective(self._engine.log), self._event(name).seq):
                self._record(fact)
            try:
                self._engine.settle(Moment(), at=self._clock())
            except ContextOverflow as problem:
                self._engine.take_back(first)
                raise no_room(problem, name) from None

    def use(self, model: str | Model, *, window: int | None = None) -> None:
        """Go on with another model; if it holds less, the next `fit` makes the history fit it."""
        with self._lock:
            engine = self._engine
            engine.switch(engine_settings(model, window=window).model)
            self._calls.broken = self._calls.switched = self._calls.count > 0
            self._record(Opened(model=engine.model.name, policy=engine.policy.name))

    def limit(self, call_id: str, limits: Limits) -> None:
        """Clip the coming result of one call by its own limits, before those of its tool and of the policy."""
        with self._lock:
            self._per_call[call_id] = limits

    # ── taking in ────────────────────────────────────────────────────────────────────────────────────

    def _record(self, fact: AnyFact) -> Event:
        limits = self._per_call.pop(fact.call_id, None) if isinstance(fact, ToolReturned) else None
        return self._engine.append(fact, at=self._clock(), limits=limits)

    def _take_system(self, content: Content | None) -> None:
        held = self._engine.view.asides.get("")
        if content is None and held is None:
            return
        if held is None or held.fact.content != (content or ""):
            self._calls.broken |= held is not None
            self._record(Instructed(content=content or "", aside=True, dialect="anthropic"))

    def _take_tools(self, offered: str) -> None:
        held = self._engine.view.tools
        if not offered and held is None:
            return
        tools = Raw((offered or "[]").encode("utf-8", "replace"))
        if held is None or held[1].tools != tools:
            self._calls.broken |= held is not None
            self._record(Equipped(tools=tools))

    @contextmanager
    def _in_dialect(self, messages: Sequence[Any], tools: Sequence[Any], system: Any) -> Iterator[None]:
        """Find out the dialect, for good if all can be read in it. What messages or tools say decides; a system
        text beside the messages is a hint for a model that takes it so."""
        if self._dialect:
            yield
            return
        found, before = wire.detect(messages, tools=tools), self._wire
        hint: Dialect = (
            "anthropic" if system is not None and "claude" in self._engine.model.name.lower() else ""
        )
        self._wire = wire.wire(found or hint)
        try:
            yield
        except MalformedMessage:
            self._wire = before
            raise
        self._dialect = found

    def _take(self, change: HistoryChange) -> None:
        """Record what is new: edited instructions in their place, a rewind where the rest was edited."""
        for place, newer, message in change.replaced:
            self._history.replaced(place, self._record(newer), message)
        if change.at < len(self._history.taken):
            to = self._history.taken.before[change.at]
            whole = self._fits_whole(to)
            self._record(Rewound(to=to, keep_state=True, keep_reductions=True, show_dropped=whole))
            self._history.cut(change.at)
        at = 0
        for chunk in change.chunks:
            before = self._engine.next_seq - 1
            for fact in chunk.facts:
                self._record(fact)
            self._history.taken.add(change.messages[at : at + chunk.messages], before=before)
            at += chunk.messages

    # ── sending ──────────────────────────────────────────────────────────────────────────────────────

    def _written(self, seq: int) -> Sequence[Any] | None:
        found = self._engine.view.find(seq)
        return None if found is None else found[0].native

    def _fits_whole(self, to: int) -> bool:
        """What had been dropped may be shown again: the whole history up to `to` takes half of the room."""
        engine = self._engine
        events = effective(engine.log[: to + 1])
        said = ((event.seq, event.fact) for event in events if isinstance(event.fact, MESSAGES))
        units = sum(engine.view.meter.message(seq, fact) for seq, fact in said)
        return units < engine.budget().act // 2

    def _settle(self, now: float) -> None:
        known = self._engine.next_seq
        try:
            self._engine.settle(self._calls.moment(self._engine, now), at=now, write=self._summary)
        except ContextOverflow:
            self._engine.take_back(known + len(self._engine.paid(known)))
            raise
        self._release(self._engine.log[known:])

    def _summary(self, plan: Plan) -> CompactionOutcome:
        """The summary of a range: by the models that there are for it, unless they failed too often, or else
        from the log alone."""
        engine = self._engine
        broken = engine.record.broken and plan.reason != "hand"
        if not self._summarisers or not plan.ask or broken:
            return engine.ledger(plan)
        job = SummaryJob.of(engine, plan, effective(engine.log), self._wire.dialect)
        return write(
            job.talk(self._summarisers, prompt=self._prompt),
            self._summarisers,
            requests=job.request,
            clock=time.monotonic,
            progress=self._progress,
        )

    def _release(self, events: Sequence[Event]) -> None:
        """Messages that are no longer shown need no copies."""
        view = self._engine.view
        for event in events:
            if isinstance(event.fact, Dropped | Compacted):
                for first, last in hidden_by(event.fact):
                    self._history.taken.hide(first, last, lambda seq: view.find(seq) is not None)

    def _newest_reduction(self) -> Event:
        for event in reversed(effective(self._engine.log)):
            if isinstance(event.fact, REDUCTIONS):
                return event
        raise UnknownHandle("nothing has been reduced, so there is nothing to undo")

    def _event(self, name: str | int) -> Event:
        seq, log = parse_handle(name), self._engine.log
        if seq is None or seq >= len(log):
            raise UnknownHandle(f"no event has the handle {name!r}; the log has e0 to e{len(log) - 1}")
        return log[seq]


def _listed(field: str, given: Iterable[Any]) -> list[Any]:
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise BadSetting(field, given, "a list")
    return given if type(given) is list else list(given)


def finished(work: Coroutine[Any, Any, T]) -> T:
    """The answer of a coroutine that never has to wait."""
    try:
        work.send(None)
    except StopIteration as answer:
        return cast(T, answer.value)
    raise AssertionError("a library in memory has nothing to wait for")


def _content(system: Any) -> Content:
    """System text as a caller gives it (a string, or a list of blocks) as content."""
    try:
        fact = next(wire.wire("anthropic").read([{"role": "system", "content": system}])).facts[0]
    except MalformedMessage as problem:
        raise BadSetting(
            "system", system, f"a text or a list of blocks; {problem.field}: {problem.problem}"
        ) from None
    assert isinstance(fact, Instructed)
    return fact.content
