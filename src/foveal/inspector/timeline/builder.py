"""Builds the timeline of a growing session, and the outline of a long log.

The engine takes over each event of the log, as it did when the session was recorded: it folds the view, learns how
the provider counts and what its limits are, and sums the costs. The builder only notes what each event changed.

An outline of a long log and its timeline need the same rows, so each one is made once. The timeline adds the size,
and whether the text of a result reports a failure.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence, Set
from operator import attrgetter
from typing import Final, cast

import msgspec
from msgspec.structs import replace

from foveal.core.compaction.health import cut_text, read_metrics
from foveal.core.compaction.ledger.call_reader import read_call
from foveal.core.engine.engine import Engine
from foveal.core.engine.settings import EngineSettings, recorded_reserve, recorded_window
from foveal.core.log.events import (
    AnyFact,
    BranchEnded,
    Clipped,
    Compacted,
    CompactionFailed,
    Dropped,
    Event,
    Expanded,
    Masked,
    ModelSaid,
    Opened,
    Pinned,
    Prioritised,
    Reverted,
    Rewound,
    Superseded,
    ToolReturned,
    Used,
    calls_of,
    handle,
    kind,
)
from foveal.core.models.budget import Caps
from foveal.core.models.model import Model, counter_for, model
from foveal.core.policies.presets import PRESETS, PresetName
from foveal.core.tokens.counter import Counter, FunctionCounter
from foveal.core.tokens.message_tokens import CountedFact, MessageCounts, MessageTokens
from foveal.core.view.fold import EffectiveLog
from foveal.core.view.steps import hidden_ranges
from foveal.core.view.text_facts import reports_failure
from foveal.core.view.view import View
from foveal.core.wire.event_text import original_text
from foveal.core.wire.safe_print import one_line
from foveal.inspector.timeline.event_sentences import event_sentence, reason_text
from foveal.inspector.timeline.request_rows import RequestRows, RequestSize, key_seq
from foveal.inspector.timeline.timeline import (
    MAX_CARD_KEYS,
    Prices,
    ReductionCard,
    Timeline,
    TimelineRow,
    ViewChange,
)
from foveal.inspector.timeline.view_tracker import ViewTracker, fact_category

# ── Cards of reductions ──────────────────────────────────────────────────────────────────────────────────
# A rewrite pays after `(w − r) / r · S / D` further calls: removing `D` tokens in front of `S` makes the provider
# read `S` again at the write price `w` instead of the read price `r`, and each later call reads `D` tokens less.

_CHECKED_DRAFT: Final = (
    "length, sections and script",
    "every name occurs in the source",
    "sentences about the user are removed: the log quotes the user",
    "it does not repeat its instructions",
)
_UNCHECKED_DRAFT: Final = (
    "wrong statements made of words that occur",
    "omissions",
    "another language in the same script",
)
_CHECKED_LEDGER: Final = ("every line is taken from the log; no model wrote any of it",)
_UNCHECKED_LEDGER: Final = ("whether these are the details that matter later",)
_UNCHECKED_RECORDED: Final = ("everything: another program wrote it",)
_MAX_CHECK_CHARS: Final = 300


class ReductionCards:
    """Collects the cards of a growing log."""

    def __init__(self) -> None:
        self._cards: dict[int, ReductionCard] = {}

    def cards(self) -> tuple[ReductionCard, ...]:
        return tuple(self._cards.values())

    def add(
        self,
        event: Event,
        changes: Sequence[ViewChange],
        *,
        before: RequestSize,
        after: RequestSize,
        behind: int,
        model: Model,
    ) -> None:
        """Take over an event; `behind` is the units of the request behind the first message that it changed."""
        card = _card(event)
        if card is None:
            return
        keys = [change.key for change in changes if key_seq(change.key) != event.seq]
        removed = before.tokens - after.tokens
        behind_tokens = round(behind * after.ratio)
        self._cards[event.seq] = replace(
            card,
            before=before.tokens,
            after=after.tokens,
            keys=tuple(keys[:MAX_CARD_KEYS]),
            count=len(keys),
            behind=behind_tokens,
            pays_after=_pays_after(model, removed=removed, behind=behind_tokens) if keys else None,
            did=_did(event, changes),
        )

    def take_back(self, event: Event, effective: Set[int]) -> None:
        """Note which reductions are in force after an event that changes which earlier ones count."""
        for seq, card in self._cards.items():
            is_undone = seq not in effective
            if is_undone != (card.undone >= 0):
                self._cards[seq] = replace(card, undone=event.seq if is_undone else -1)


def _did(event: Event, changes: Sequence[ViewChange]) -> str:
    """Return what a cut did, in words; "" for any other event."""
    fact = event.fact
    if not isinstance(fact, Compacted) or not fact.masks:
        return ""
    gone = [change for change in changes if change.level == "summarised" and change.by == event.seq]
    return cut_text(fact, steps=sum(change.category in ("user", "assistant") for change in gone))


def _pays_after(model: Model, *, removed: int, behind: int) -> int | None:
    if removed <= 0 or model.input_price is None:
        return None
    read, write = model.read_ratio, model.write_ratio
    return math.ceil(max(0.0, (write - read) / read * behind / removed))


def _card(event: Event) -> ReductionCard | None:
    """Return the card of a reduction without its effect on the request; None for any other event."""
    match event.fact:
        case Clipped(target=target) as clip if not clip.shows_all:
            return ReductionCard(seq=event.seq, kind="clipped", rule=clip.rule, first=target, last=target)
        case Masked() as masked:
            targets = [mask.target for mask in masked.masks]
            return ReductionCard(
                seq=event.seq,
                kind="masked",
                rule=masked.rule,
                reason=masked.reason,
                why=reason_text(masked.reason),
                first=min(targets, default=-1),
                last=max(targets, default=-1),
            )
        case Dropped() as dropped:
            return ReductionCard(
                seq=event.seq,
                kind="dropped",
                rule=dropped.rule,
                reason=dropped.reason,
                why=reason_text(dropped.reason),
                first=min((first for first, _ in dropped.ranges), default=-1),
                last=max((last for _, last in dropped.ranges), default=-1),
                ranges=hidden_ranges(dropped),
            )
        case Compacted() as summary:
            return _summary_card(event.seq, summary)
        case CompactionFailed() as failed:
            return replace(
                _metrics_card(event.seq, "compaction_failed", failed), problem=one_line(failed.problem)
            )
        case _:
            return None


def _summary_card(seq: int, fact: Compacted) -> ReductionCard:
    checked: tuple[str, ...]
    unchecked: tuple[str, ...]
    if fact.by == "ledger":
        checked, unchecked = _CHECKED_LEDGER, _UNCHECKED_LEDGER
    elif fact.reason == "recorded":
        checked, unchecked = (), _UNCHECKED_RECORDED
    else:
        checked, unchecked = _CHECKED_DRAFT, _UNCHECKED_DRAFT
    return replace(
        _metrics_card(seq, "compacted", fact),
        rule=fact.rule,
        ranges=hidden_ranges(fact),
        chars=len(fact.summary),
        checked=checked,
        unchecked=unchecked,
    )


def _metrics_card(seq: int, kind: str, fact: Compacted | CompactionFailed) -> ReductionCard:
    metrics = read_metrics(fact)
    return ReductionCard(
        seq=seq,
        kind=kind,
        reason=fact.reason,
        why=reason_text(fact.reason),
        first=fact.first,
        last=fact.last,
        by=one_line(fact.by),
        checks=tuple(one_line(check, width=_MAX_CHECK_CHARS) for check in metrics.checks),
        score=metrics.score,
        cost=metrics.cost if metrics.asked or fact.reason == "recorded" else 0.0,
        seconds=metrics.seconds,
    )


# ── The timeline ─────────────────────────────────────────────────────────────────────────────────────────

_at = attrgetter("at")
_CARDS: Final = (Clipped, Masked, Dropped, Compacted, CompactionFailed)
"""Facts that get a card, except a clip of what no request has shown yet."""

_UNCOUNTED: Final = FunctionCounter("uncounted", lambda text: 1, exact=False, limit=1_000)
"""Counts nothing: levels do not depend on sizes, and counting takes as long as everything else."""


class InspectedSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a session beside its log."""

    id: str
    title: str = ""
    format: str = "foveal"
    model: str = ""
    """The model of a log that names none."""
    window: int | None = None
    """Tokens; None for the one that the log records, or else the known one of the model."""
    reserve: int | None = None
    """Tokens that are kept free for the answer; None for those that the log records, or else for those that Foveal
    keeps for the model."""
    problems: tuple[str, ...] = ()


class TimelineRows:
    """Makes the rows of one log; each event is asked for in order, or was asked for before."""

    def __init__(self) -> None:
        self._rows: dict[int, TimelineRow] = {}
        self._calls: dict[str, tuple[int, str, str]] = {}
        """The newest calls by id: the event, the tool and the file."""

    def row(self, event: Event) -> TimelineRow:
        """Return the row of an event."""
        known = self._rows.get(event.seq)
        if known is None:
            known = self._rows[event.seq] = self._made(event)
        return known

    def sized_row(self, event: Event, meter: MessageTokens) -> TimelineRow:
        """Return the row of an event with all that it has."""
        row, fact = self.row(event), event.fact
        if not isinstance(fact, CountedFact):
            return row
        failed = row.failed or (isinstance(fact, ToolReturned) and reports_failure(original_text(fact)))
        return replace(row, units=meter.message(event.seq, fact), failed=failed)

    def _made(self, event: Event) -> TimelineRow:
        fact = event.fact
        tool, path, call = "", "", -1
        if isinstance(fact, ModelSaid):
            tool, path = self._note_calls(event.seq, fact)
        elif isinstance(fact, ToolReturned):
            call, tool, path = self._calls.get(fact.call_id, (-1, one_line(fact.name), ""))
        return TimelineRow(
            seq=event.seq,
            kind=kind(fact),
            category=fact_category(fact),
            at=event.at,
            preview=event_sentence(fact),
            chars=len(original_text(fact)),
            tool=tool,
            path=path,
            call=call,
            failed=isinstance(fact, ToolReturned) and fact.error,
            target=_target(fact),
        )

    def _note_calls(self, seq: int, fact: ModelSaid) -> tuple[str, str]:
        """Remember the calls of an answer; return the tool and the file of the first one."""
        first = ("", "")
        for _, call in calls_of(fact.content):
            touched = read_call(call).touched
            path = one_line(touched[0][0]) if touched else ""
            tool = one_line(call.name)
            self._calls[call.id] = (seq, tool, path)
            first = first if first[0] else (tool, path)
        return first


def _target(fact: AnyFact) -> int:
    match fact:
        case Reverted(target=target) | Clipped(target=target) | Superseded(target=target):
            return target
        case Prioritised(target=target):
            return target
        case Rewound(to=to):
            return to
        case Pinned(target=target) if target is not None:
            return target
        case BranchEnded(branch=first) | Expanded(first=first) | Compacted(reason="branch", first=first):
            return first
        case _:
            return -1


class TimelineBuilder:
    """The timeline of one session."""

    def __init__(
        self,
        settings: InspectedSettings,
        *,
        counter: Counter | None = None,
        counts: MessageCounts | None = None,
        row_maker: TimelineRows | None = None,
    ) -> None:
        """Without `counter`, the vocabulary of the model counts; `counts` are stored with this log, and `row_maker`
        may have rows of it."""
        self._settings = settings
        self._row_maker = row_maker if row_maker is not None else TimelineRows()
        self._given_counter = counter
        self._counts = counts
        self._window, self._reserve = settings.window, settings.reserve
        self._start(settings.model)
        self._origin = ""
        self._rows: list[TimelineRow] = []
        self._changes: list[ViewChange] = []
        self._requests = RequestRows()
        self._cards = ReductionCards()
        self._size = RequestSize(0, 0, 0, 1.0)
        self._answered_at = -1
        """The newest answer: what came after it is in no request yet."""

    @property
    def log(self) -> list[Event]:
        """All events so far."""
        return self._engine.log

    @property
    def next_seq(self) -> int:
        """The seq of the next event."""
        return self._engine.next_seq

    def add(self, events: Iterable[Event]) -> None:
        """Take over the next events."""
        for event in events:
            self._add(event)

    def follow(self, events: Iterable[Event]) -> Iterator[tuple[Event, View, list[ViewChange]]]:
        """Take over the next events; yield each with the view after it, which the next one changes, and what it
        changed."""
        for event in events:
            changes = self._add(event)
            yield event, self._engine.view, changes

    def _add(self, event: Event) -> list[ViewChange]:
        self._choose_model(event.fact)
        fact, engine, tracker = event.fact, self._engine, self._tracker
        folded_again = engine.effective_log if engine.take_over(event) else None
        changes = tracker.add(event, engine.view, folded_again=folded_again)
        before, self._size = self._size, self._measure()
        self._changes += changes
        self._rows.append(self._row_maker.sized_row(event, engine.view.meter))
        if folded_again is not None:
            self._cards.take_back(event, tracker.effective)
        if isinstance(fact, _CARDS) and not (isinstance(fact, Clipped) and fact.target > self._answered_at):
            behind = self._behind(changes)
            self._cards.add(
                event, changes, before=before, after=self._size, behind=behind, model=engine.model
            )
        marked = tracker.marked if isinstance(fact, ModelSaid) else ()
        shown = [handle(seq) for seq in marked if engine.view.find(seq)]
        self._requests.add(event, changes, self._size, model=engine.model, marked=shown)
        if isinstance(fact, ModelSaid):
            self._answered_at = event.seq
        return changes

    def document(self, first: int = 0) -> Timeline:
        """Return the timeline from event `first` on."""
        requests = self._requests.rows()
        # The usage of an answer may come after it, so the request before the first new event may be new too.
        first_request = next(
            (index for index, row in enumerate(requests) if max(row.answer, row.used) >= first), len(requests)
        )
        first_request = max(0, first_request - 1) if first else 0
        shown_model, usage = self._engine.model, self._engine.usage_totals
        return Timeline(
            id=self._settings.id,
            title=self._settings.title,
            format=self._settings.format,
            model=shown_model.name,
            policy=self._engine.opened.policy,
            window=shown_model.window,
            limit=self._limit(),
            prices=Prices(
                input=shown_model.input_price,
                cache_read=shown_model.cached_price,
                cache_write=shown_model.write_price,
                output=shown_model.output_price,
            ),
            cache_ttl=shown_model.cache_ttl,
            origin=self._origin,
            first=first,
            next=self.next_seq,
            rows=tuple(self._rows[first:]),
            changes=tuple(self._changes[bisect_left(self._changes, first, key=_at) :]),
            requests=tuple(requests[first_request:]),
            first_request=first_request,
            reductions=self._cards.cards(),
            spent=usage.spent,
            unpriced=usage.unpriced,
            saved=usage.saved,
            problems=self._settings.problems,
        )

    # ── The engine ───────────────────────────────────────────────────────────────────────────────────

    def _start(self, name: str) -> None:
        """Begin with a model, whose vocabulary counts."""
        found = model(name or "unknown", window=self._window)
        counter = self._given_counter or counter_for(found.name, "auto")
        view, caps = View(MessageTokens(counter, self._counts)), Caps(reserve=self._reserve)
        self._engine: Engine = Engine(EngineSettings(found, PRESETS["off"], caps, counter), view=view)
        self._tracker: ViewTracker = ViewTracker(self._engine.log, self._engine.view)

    def _choose_model(self, fact: AnyFact) -> None:
        """Continue with the model that a fact names; a transcript names it with each answer."""
        if isinstance(fact, Opened):
            self._origin = self._origin or fact.origin
            self._window = self._settings.window or recorded_window(fact)
            self._reserve = (
                recorded_reserve(fact) if self._settings.reserve is None else self._settings.reserve
            )
        elif not isinstance(fact, Used) or fact.model == self._engine.model.name:
            return
        if not fact.model:
            return
        if not self.log:
            self._start(fact.model)
            return
        self._engine.set_reserve(self._reserve)
        engine, found = self._engine, model(fact.model, window=self._window)
        if engine.provider_limits.limit_model(found) != engine.model:
            engine.switch_model(found)

    def _limit(self) -> int:
        """Return the most tokens of the next request. A transcript says nothing of what its program keeps free."""
        engine = self._engine
        if self._settings.format != "foveal":
            return engine.model.max_input
        engine.policy = PRESETS.get(cast(PresetName, engine.opened.policy), PRESETS["off"])
        return engine.available_tokens(engine.budget())

    def _measure(self) -> RequestSize:
        engine = self._engine
        view, units, calibration = engine.view, engine.total_units, engine.calibration
        tokens = calibration.tokens(units)
        return RequestSize(units, view.tool_units, tokens, calibration.ratio, view.tool_use.summary)

    def _behind(self, changes: list[ViewChange]) -> int:
        """Return the units of the request behind the first message that was changed."""
        if not changes:
            return 0
        view = self._engine.view
        first = min(change.place if change.place >= 0 else key_seq(change.key) for change in changes)
        return sum(view.units_of(step) for step in view.steps if step.seq > first)


def timeline_outline(session: str, log: Sequence[Event], rows: TimelineRows) -> Timeline:
    """Return the outline of a long log: its rows and the newest request, before sizes and earlier requests are
    known. Its rows stay in `rows` for the timeline."""
    effective = EffectiveLog.of(log)
    changes = ViewTracker(log, effective.view(MessageTokens(_UNCOUNTED)), effective.events).newest_request()
    return Timeline(
        id=session,
        outline=True,
        next=log[-1].seq + 1 if log else 0,
        rows=tuple(map(rows.row, log)),
        changes=tuple(replace(change, units=0) for change in changes),
    )
