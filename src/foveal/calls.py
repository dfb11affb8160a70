"""The requests of a conversation: how many there were, when the last was, and where the prefix broke."""

from __future__ import annotations

from foveal.engine import Engine
from foveal.events import Used, handle, kind
from foveal.policies import Moment
from foveal.report import Break
from foveal.steps import Step
from foveal.usage import used


class Calls:
    def __init__(self, count: int = 0) -> None:
        self.count = count
        self.breaks: list[Break] = []
        self.broken = False
        """The prefix will be lost anyway: the tools or the system text changed since the last request."""
        self._last: float | None = None
        self._sent = (0, 0, 0)

    def moment(self, engine: Engine, now: float) -> Moment:
        """What a policy may know of the next request. A clock that goes backwards means no time has passed."""
        model = engine.model
        return Moment(
            calls=self.count,
            idle=None if self._last is None else max(0.0, now - self._last),
            ttl=model.cache_ttl,
            read=model.read_ratio,
            write=model.write_ratio,
            broken=self.broken,
        )

    def made(self, engine: Engine, now: float, moved: Step | None) -> None:
        """A request was made; `moved` is the first step in it that was not as in the request before."""
        self.count += 1
        self._last = now
        broken, self.broken = self.broken, False
        units = engine.total_units
        self._sent = (units, engine.calibration.tokens(units), engine.unreduced + engine.fixed_units)
        if moved is not None or broken:
            self.breaks.append(self._break(engine, moved))
        engine.mover = None

    def _break(self, engine: Engine, moved: Step | None) -> Break:
        """Where the prefix broke; without a step, in front of them all: tools or system text changed."""
        first = -1 if moved is None else moved.seq
        behind = sum(engine.view.units_of(step) for step in engine.view.steps if step.seq >= first)
        cause = engine.mover
        return Break(
            call=self.count,
            at="" if moved is None else handle(moved.seq),
            tokens=round(behind * engine.calibration.ratio),
            cause=cause.handle if cause is not None else "",
            why=kind(cause.fact) if cause is not None else "",
        )

    def report(self, reported: object, engine: Engine) -> Used | None:
        """What a provider reported for the newest request, as a fact; None when it says nothing."""
        units, predicted, unreduced = self._sent
        return used(reported, model=engine.model.name, units=units, predicted=predicted, unreduced=unreduced)
