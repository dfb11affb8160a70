"""Builds the timeline of a session from its events, as the session grows."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from operator import attrgetter
from typing import Final, cast

import msgspec

from foveal.core.compaction.health import read_metrics
from foveal.core.engine.counting import anchor_at_view, calibrate
from foveal.core.engine.overflow import ProviderLimits, available_tokens
from foveal.core.engine.settings import recorded_window
from foveal.core.log.events import (
    Clipped,
    Compacted,
    CompactionFailed,
    Dropped,
    Event,
    Masked,
    ModelSaid,
    Opened,
    Overflowed,
    Used,
    handle,
)
from foveal.core.models.budget import Caps, plan_budget
from foveal.core.models.cost import UsageTotals
from foveal.core.models.model import Model, model
from foveal.core.models.vocabulary import counter_for, first_calibration
from foveal.core.policies.presets import PRESETS, PresetName
from foveal.core.tokens.calibration import Calibration
from foveal.core.tokens.counter import Counter
from foveal.core.tokens.message_tokens import MessageTokens
from foveal.core.view.fold import needs_refold
from foveal.inspector.timeline.reduction_cards import ReductionCards
from foveal.inspector.timeline.request_rows import RequestRows, RequestSize, key_seq
from foveal.inspector.timeline.rows import TimelineRows
from foveal.inspector.timeline.timeline import Prices, Timeline, TimelineRow, ViewChange
from foveal.inspector.timeline.view_tracker import ViewTracker

_at = attrgetter("at")
_CARDS: Final = (Clipped, Masked, Dropped, Compacted, CompactionFailed)
"""Facts that get a card, except a clip of what no request has shown yet."""


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
    """Tokens that are kept free for the answer; None for those that Foveal keeps for the model."""
    problems: tuple[str, ...] = ()


class TimelineBuilder:
    """The timeline of one session."""

    def __init__(
        self,
        settings: InspectedSettings,
        *,
        counter: Counter | None = None,
        row_maker: TimelineRows | None = None,
    ) -> None:
        """Without `counter`, the vocabulary of the model counts; `row_maker` may have rows of this log."""
        self._settings = settings
        self._row_maker = row_maker if row_maker is not None else TimelineRows()
        self._given_counter = counter
        self._window = settings.window
        self._provider_limits = ProviderLimits()
        self._start(settings.model)
        self._usage = UsageTotals()
        self._opened = Opened(model="")
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
        return self._tracker.log

    @property
    def next_seq(self) -> int:
        """The seq of the next event."""
        return self.log[-1].seq + 1 if self.log else 0

    def add(self, events: Iterable[Event]) -> None:
        """Take over the next events."""
        for event in events:
            self._add(event)

    def _add(self, event: Event) -> None:
        self._learn(event)  # the first event names the model, with which the tracker begins
        fact, tracker = event.fact, self._tracker
        folds_again = needs_refold(fact, tracker.view)
        changes = tracker.add(event)
        before, self._size = self._size, self._measure()
        self._changes += changes
        self._rows.append(self._row_maker.sized_row(event, tracker.view.meter))
        if folds_again:
            self._cards.take_back(event, tracker.effective)
        if isinstance(fact, _CARDS) and not (isinstance(fact, Clipped) and fact.target > self._answered_at):
            behind = self._behind(changes)
            self._cards.add(event, changes, before=before, after=self._size, behind=behind, model=self._model)
        marked = tracker.marked if isinstance(fact, ModelSaid) else ()
        shown = [handle(seq) for seq in marked if tracker.view.find(seq)]
        self._requests.add(event, changes, self._size, model=self._model, marked=shown)
        if isinstance(fact, ModelSaid):
            self._answered_at = event.seq

    def document(self, first: int = 0) -> Timeline:
        """Return the timeline from event `first` on."""
        requests = self._requests.rows()
        # The usage of an answer may come after it, so the request before the first new event may be new too.
        first_request = next(
            (index for index, row in enumerate(requests) if max(row.answer, row.used) >= first), len(requests)
        )
        first_request = max(0, first_request - 1) if first else 0
        return Timeline(
            id=self._settings.id,
            title=self._settings.title,
            format=self._settings.format,
            model=self._model.name,
            policy=self._opened.policy,
            window=self._model.window,
            limit=self._limit(),
            prices=Prices(
                input=self._model.input_price,
                cache_read=self._model.cached_price,
                cache_write=self._model.write_price,
                output=self._model.output_price,
            ),
            cache_ttl=self._model.cache_ttl,
            origin=self._origin,
            first=first,
            next=self.next_seq,
            rows=tuple(self._rows[first:]),
            changes=tuple(self._changes[bisect_left(self._changes, first, key=_at) :]),
            requests=tuple(requests[first_request:]),
            first_request=first_request,
            reductions=self._cards.cards(),
            spent=self._usage.spent,
            unpriced=self._usage.unpriced,
            saved=self._usage.saved,
            problems=self._settings.problems,
        )

    # ── Sizes and costs ──────────────────────────────────────────────────────────────────────────────

    def _start(self, name: str) -> None:
        """Begin with a model, whose vocabulary counts."""
        self._model: Model = self._find_model(name)
        self._counter: Counter = self._given_counter or counter_for(self._model.name, "auto")
        self._tracker: ViewTracker = ViewTracker(MessageTokens(self._counter))
        self._calibration: Calibration = first_calibration(self._model, self._counter)

    def _switch_model(self, name: str) -> None:
        if not self.log:
            self._start(name)
            return
        before, self._model = self._model, self._find_model(name)
        if before.name == name:
            return
        self._calibration = first_calibration(self._model, self._counter)
        for event in self.log:
            self._calibration = calibrate(self._calibration, event, window=self._model.window)

    def _find_model(self, name: str) -> Model:
        return self._provider_limits.limit_model(model(name or "unknown", window=self._window))

    def _limit(self) -> int:
        """Return the most tokens of the next request. A transcript says nothing of what its program keeps free."""
        if self._settings.format != "foveal":
            return self._model.max_input
        tracker, preset = self._tracker, PRESETS.get(cast(PresetName, self._opened.policy))
        history = 0 if preset is None else preset.max_history_tokens
        calibration = self._anchored()
        budget = plan_budget(
            self._model,
            self._provider_limits.limit_caps(
                Caps(reserve=self._settings.reserve, max_history_tokens=history), self._model
            ),
            calibration,
            warn=1.0,
            act=1.0,
            fixed=tracker.units - tracker.view.units,
            instructed=tracker.view.permanent_units,
        )
        return available_tokens(budget, calibration)

    def _learn(self, event: Event) -> None:
        fact = event.fact
        if isinstance(fact, Opened):
            self._opened = fact
            self._origin = self._origin or fact.origin
            self._window = self._settings.window or recorded_window(fact)
            if fact.model:
                self._switch_model(fact.model)
        elif isinstance(fact, Used):
            if fact.model and fact.model != self._model.name:  # a transcript names the model with each answer
                self._switch_model(fact.model)
            self._usage = self._usage.after(fact, self._model)
        elif isinstance(fact, Compacted | CompactionFailed):
            metrics = read_metrics(fact)
            self._usage = self._usage.with_summary(metrics.cost, asked=metrics.asked)
        if isinstance(fact, Overflowed | Used):
            self._provider_limits = self._provider_limits.after(fact)
            self._model = self._provider_limits.limit_model(self._model)
        self._calibration = calibrate(self._calibration, event, window=self._model.window)

    def _measure(self) -> RequestSize:
        units, calibration = self._tracker.units, self._anchored()
        view, tokens = self._tracker.view, calibration.tokens(units)
        return RequestSize(units, view.tool_units, tokens, calibration.ratio, view.tool_use.summary)

    def _anchored(self) -> Calibration:
        """Return the calibration for the present view."""
        if not self._calibration.needs_anchoring:
            return self._calibration
        return anchor_at_view(self._calibration, self._tracker.view, units=self._tracker.units)

    def _behind(self, changes: list[ViewChange]) -> int:
        """Return the units of the request behind the first message that was changed."""
        if not changes:
            return 0
        view = self._tracker.view
        first = min(change.place if change.place >= 0 else key_seq(change.key) for change in changes)
        return sum(view.units_of(step) for step in view.steps if step.seq > first)
