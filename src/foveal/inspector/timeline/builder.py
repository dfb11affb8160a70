"""Builds the timeline of a growing session, and the outline of a long log.

The engine takes over each event of the log, as it did when the session was recorded: it folds the view, learns how
the provider counts and what its limits are, and sums the costs. The builder only notes what each event changed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Final, cast

import msgspec

from foveal.core.engine.engine import Engine
from foveal.core.engine.settings import EngineSettings, recorded_window
from foveal.core.log.events import (
    AnyFact,
    Clipped,
    Compacted,
    CompactionFailed,
    Dropped,
    Event,
    Masked,
    ModelSaid,
    Opened,
    Used,
    handle,
)
from foveal.core.models.budget import Caps
from foveal.core.models.model import model
from foveal.core.models.vocabulary import counter_for
from foveal.core.policies.presets import PRESETS, PresetName
from foveal.core.tokens.counter import Counter, FunctionCounter
from foveal.core.tokens.message_tokens import MessageTokens
from foveal.core.view.fold import EffectiveLog
from foveal.inspector.timeline.reduction_cards import ReductionCards
from foveal.inspector.timeline.request_rows import RequestRows, RequestSize, key_seq
from foveal.inspector.timeline.rows import TimelineRows
from foveal.inspector.timeline.timeline import Prices, Timeline, TimelineRow, ViewChange
from foveal.inspector.timeline.view_tracker import ViewTracker

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

    def _add(self, event: Event) -> None:
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
        self._engine: Engine = Engine(
            EngineSettings(found, PRESETS["off"], Caps(reserve=self._settings.reserve), counter)
        )
        self._tracker: ViewTracker = ViewTracker(self._engine.log, self._engine.view)

    def _choose_model(self, fact: AnyFact) -> None:
        """Continue with the model that a fact names; a transcript names it with each answer."""
        if isinstance(fact, Opened):
            self._origin = self._origin or fact.origin
            self._window = self._settings.window or recorded_window(fact)
        elif not isinstance(fact, Used) or fact.model == self._engine.model.name:
            return
        if not fact.model:
            return
        if not self.log:
            self._start(fact.model)
            return
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
        changes=tuple(msgspec.structs.replace(change, units=0) for change in changes),
    )
