"""The requests that this process has sent: their number, the last one's size, and prefix breaks."""

from __future__ import annotations

from itertools import takewhile
from typing import Any, NamedTuple

from foveal.core.engine.engine import Engine
from foveal.core.engine.overflow import silent_overflow
from foveal.core.engine.prefix import PrefixBreak, moved_step
from foveal.core.log.events import AnyFact, handle, kind
from foveal.core.policies import Moment
from foveal.core.view.steps import Step
from foveal.core.wire.overflow_errors import stop_reason
from foveal.core.wire.usage import has_usage, read_usage


class SentSize(NamedTuple):
    """What is remembered of a request until its usage is reported."""

    units: int = 0
    tokens: int = 0
    """What the provider was expected to count."""
    unreduced_units: int = 0
    """Units of the request if nothing had been reduced."""
    until: int = 0
    """The seq after the newest event that the request could show."""


class SentRequests:
    """Remembers what was sent, for the report and for the usage that the provider reports.

    A repeated request is the same request: it changes none of the figures. What a policy may know of past calls
    comes from the log (`PastCalls`)."""

    def __init__(self) -> None:
        self.count: int = 0
        self.breaks: list[PrefixBreak] = []
        self.last: SentSize = SentSize()
        """The newest request."""
        self._last_steps: list[Any] = []
        self._usage_was_missing = False

    def moment(self, engine: Engine) -> Moment:
        """Return what a policy may know of the next request."""
        return engine.past_calls.moment(engine.model)

    def add(self, engine: Engine, steps: list[Any]) -> None:
        """Record that a request was made; `steps` holds what each step of the view was sent as."""
        before = self.last
        self.last = SentSize(
            units=engine.total_units,
            tokens=engine.calibration.tokens(engine.total_units),
            unreduced_units=engine.unreduced_units + engine.fixed_units,
            until=engine.next_seq,
        )
        prefix_lost = self.count > 0 and engine.past_calls.lost_at >= before.until
        if self.count and not prefix_lost and steps == self._last_steps:
            return
        self.count += 1
        moved = moved_step(engine.view, self._last_steps, steps)
        self._last_steps = steps
        if moved is not None or prefix_lost:
            self.breaks.append(self._break(engine, moved, _units_from(engine, moved)))
        engine.request_sent()

    def add_whole(self, engine: Engine) -> None:
        """Record that the whole history was sent, so that the provider compacts it, and not what the view shows.
        The next request is compared with the one before."""
        units = engine.unreduced_units + engine.fixed_units
        tokens = engine.calibration.tokens(units)
        self.last = SentSize(units=units, tokens=tokens, unreduced_units=units, until=engine.next_seq)

    def _break(self, engine: Engine, moved: Step | None, behind: int) -> PrefixBreak:
        mover, cause, why = engine.prefix_mover, "", ""
        if mover is not None:
            cause, why = mover.handle, kind(mover.fact)
        elif engine.past_calls.is_switched:
            cause, why = handle(engine.opened_seq), kind(engine.opened)
        return PrefixBreak(
            call=self.count,
            at="" if moved is None else handle(moved.seq),
            tokens=round(behind * engine.calibration.ratio),
            cause=cause,
            why=why,
        )

    def usage_facts(self, reported: object, engine: Engine, sent: SentSize) -> list[AnyFact]:
        """Return what a provider reported for a request, as facts; none if it reported no prompt tokens. Raises
        `BadSetting` for a report that is not understood."""
        fact = read_usage(
            reported,
            model=engine.model.name,
            units=sent.units,
            predicted=sent.tokens,
            unreduced=sent.unreduced_units,
            until=sent.until,
        )
        if fact is None:
            return []
        limits, stop = engine.provider_limits, stop_reason(reported)
        overflow = silent_overflow(fact, limits=limits, model=engine.model, stop=stop)
        return [fact] if overflow is None else [fact, overflow]

    def is_first_without_usage(self, reported: object) -> bool:
        """Return whether a reply has no usage, and is the first one here that has none."""
        if self._usage_was_missing or has_usage(reported):
            return False
        self._usage_was_missing = True
        return True


def _units_from(engine: Engine, moved: Step | None) -> int:
    """Return the units from a step on, or of all steps without one."""
    view = engine.view
    if moved is None:
        return sum(map(view.units_of, view.steps))
    # Steps stand in the order of their seqs, and most often the last one has moved.
    return sum(map(view.units_of, takewhile(lambda step: step.seq >= moved.seq, reversed(view.steps))))
