"""The requests sent so far: their number, the last one's time and size, and prefix breaks."""

from __future__ import annotations

from typing import Any, NamedTuple

from foveal.core.engine.engine import Engine
from foveal.core.engine.overflow import silent_overflow
from foveal.core.engine.prefix import PrefixBreak, moved_step
from foveal.core.log.events import AnyFact, handle, kind
from foveal.core.policies import Moment
from foveal.core.view.steps import Step
from foveal.core.wire.overflow_errors import stop_reason
from foveal.core.wire.usage import read_usage


class _SentSize(NamedTuple):
    units: int = 0
    tokens: int = 0
    """What the provider was expected to count."""
    unreduced_units: int = 0
    """Units of the request if nothing had been reduced."""


class SentRequests:
    """Remembers what was sent, for the policy's `Moment` and for the report."""

    def __init__(self) -> None:
        self.count = 0
        self.breaks: list[PrefixBreak] = []
        self._prefix_lost = False
        """The tools, the system text or the model changed since the last request."""
        self._model_switched = False
        self.saved = 0.0
        """Tokens saved against sending everything, at the full price."""
        self._last_time: float | None = None
        self._last = _SentSize()
        self._last_steps: list[Any] = []

    @property
    def last_tokens(self) -> int:
        """Tokens of the last request by Foveal's count; 0 before the first."""
        return self._last.tokens

    def moment(self, engine: Engine, now: float) -> Moment:
        """Return what a policy may know of the next request. A clock that goes backwards counts as no time
        passed."""
        model = engine.model
        return Moment(
            calls=self.count,
            idle=None if self._last_time is None else max(0.0, now - self._last_time),
            ttl=model.cache_ttl,
            read=model.read_ratio,
            write=model.write_ratio,
            prefix_lost=self._prefix_lost,
            model_switched=self._model_switched,
            saved=self.saved,
        )

    def note_lost_prefix(self) -> None:
        """Note that the tools or the system text changed: the provider reads the whole next request again."""
        self._prefix_lost = True

    def note_model_switch(self) -> None:
        """Note that another model reads the next request."""
        self._model_switched = True
        self._prefix_lost |= self.count > 0

    def add(self, engine: Engine, now: float, steps: list[Any]) -> None:
        """Record that a request was made; `steps` holds what each step of the view was sent as."""
        self.count += 1
        self._last_time = now
        moved = moved_step(engine.view, self._last_steps, steps)
        self._last_steps = steps
        prefix_lost, switched = self._prefix_lost, self._model_switched
        self._prefix_lost = self._model_switched = False
        before = self._last
        sent = self._last = _SentSize(
            units=engine.total_units,
            tokens=engine.calibration.tokens(engine.total_units),
            unreduced_units=engine.unreduced_units + engine.fixed_units,
        )
        cached, cached_unreduced = before.units, before.unreduced_units
        if moved is not None or prefix_lost:
            behind = _units_from(engine, moved)
            self.breaks.append(self._break(engine, moved, behind, switched=switched))
            cached = 0 if prefix_lost else sent.units - behind
            cached_unreduced = 0 if prefix_lost else before.unreduced_units
        if sent.unreduced_units >= cached_unreduced:  # else the history was edited: nothing to compare with
            everything = _price(engine, sent.unreduced_units, cached_unreduced)
            self.saved += everything - _price(engine, sent.units, cached)
        engine.request_sent()

    def _break(self, engine: Engine, moved: Step | None, behind: int, *, switched: bool) -> PrefixBreak:
        mover, cause, why = engine.prefix_mover, "", ""
        if mover is not None:
            cause, why = mover.handle, kind(mover.fact)
        elif switched:
            cause, why = handle(engine.opened_seq), kind(engine.opened)
        return PrefixBreak(
            call=self.count,
            at="" if moved is None else handle(moved.seq),
            tokens=round(behind * engine.calibration.ratio),
            cause=cause,
            why=why,
        )

    def usage_facts(self, reported: object, engine: Engine) -> list[AnyFact]:
        """Return what a provider reported for the last request, as facts; none if it reported no numbers."""
        last = self._last
        fact = read_usage(
            reported,
            model=engine.model.name,
            units=last.units,
            predicted=last.tokens,
            unreduced=last.unreduced_units,
        )
        if fact is None:
            return []
        overflow = silent_overflow(fact, model=engine.model, stop=stop_reason(reported))
        return [fact] if overflow is None else [fact, overflow]


def _price(engine: Engine, units: int, cached: int) -> float:
    """Return the price of a request of which `cached` units are in the cache, relative to uncached units."""
    model = engine.model
    return model.read_ratio * cached + model.write_ratio * max(0, units - cached)


def _units_from(engine: Engine, moved: Step | None) -> int:
    """Return the units from a step on, or of all steps without one."""
    first = -1 if moved is None else moved.seq
    return sum(engine.view.units_of(step) for step in engine.view.steps if step.seq >= first)
