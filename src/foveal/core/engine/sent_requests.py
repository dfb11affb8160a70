"""The requests of a conversation: how many there were, when the last was, and where the prefix broke."""

from __future__ import annotations

from foveal.core.compaction.health import REFUSALS
from foveal.core.engine.engine import Engine
from foveal.core.engine.report import Break
from foveal.core.log.events import AnyFact, Overflowed, handle, kind
from foveal.core.policies import Moment
from foveal.core.view.steps import Step
from foveal.core.wire.overflow_errors import recognise, silent, stop_reason
from foveal.core.wire.usage import used


class SentRequests:
    def __init__(self, count: int = 0) -> None:
        self.count = count
        self.breaks: list[Break] = []
        self.broken = False
        """The prefix will be lost anyway: the tools or the system text changed since the last request."""
        self.switched = False
        """Another model will read the next request."""
        self.saved = 0.0
        """What was saved so far against sending everything, in tokens at the full price."""
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
            switched=self.switched,
            saved=self.saved,
        )

    def made(self, engine: Engine, now: float, moved: Step | None) -> None:
        """A request was made; `moved` is the first step in it that was not as in the request before."""
        self.count += 1
        self._last = now
        broken, self.broken, self.switched = self.broken, False, False
        units = engine.total_units
        before, _, whole_before = self._sent
        whole = engine.unreduced + engine.fixed_units
        self._sent = (units, engine.calibration.tokens(units), whole)
        if moved is not None or broken:
            behind = _behind(engine, moved)
            self.breaks.append(self._break(engine, moved, behind))
            before = 0 if broken else units - behind
            whole_before = 0 if broken else whole_before
        self._save(engine, (whole, whole_before), (units, before))
        engine.mover = None

    def _save(self, engine: Engine, whole: tuple[int, int], sent: tuple[int, int]) -> None:
        """Take down what a request has saved: units of it and of its cached part, had everything been sent, and as
        it was."""
        model = engine.model
        prices = [
            model.read_ratio * cached + model.write_ratio * max(0, units - cached)
            for units, cached in (whole, sent)
        ]
        if whole[0] >= whole[1]:  # else history was edited, and there is nothing to compare with
            self.saved += prices[0] - prices[1]

    def _break(self, engine: Engine, moved: Step | None, behind: int) -> Break:
        """Where the prefix broke; without a step, in front of them all: tools or system text changed."""
        cause = engine.mover
        return Break(
            call=self.count,
            at="" if moved is None else handle(moved.seq),
            tokens=round(behind * engine.calibration.ratio),
            cause=cause.handle if cause is not None else "",
            why=kind(cause.fact) if cause is not None else "",
        )

    def report(self, reported: object, engine: Engine) -> list[AnyFact]:
        """What a provider reported for the newest request, as facts; none when it says nothing."""
        units, predicted, unreduced = self._sent
        model = engine.model
        fact = used(reported, model=model.name, units=units, predicted=predicted, unreduced=unreduced)
        if fact is None:
            return []
        stop = stop_reason(reported)
        problem = silent(prompt=fact.prompt, predicted=predicted, window=model.window, stop=stop)
        if (
            not problem or fact.prompt > 2 * predicted
        ):  # such a number is not this request's, or a sum of several
            return [fact]
        cut = fact.prompt < predicted  # the provider has left something out
        limit, needed = (fact.prompt, 0) if cut else (model.window, fact.prompt)
        return [
            fact,
            Overflowed(
                model=model.name,
                limit=limit,
                needed=needed,
                sent=predicted,
                limit_kind="silent",
                problem=problem,
            ),
        ]

    def refusal(self, error: object, engine: Engine) -> Overflowed | None:
        """That a provider refused the newest request as too large; None when the error is about something else.
        Raises `ContextOverflow` when it has been made smaller often enough."""
        found = recognise(error)
        if found is None:
            return None
        if engine.record.refused >= REFUSALS:
            raise engine.refused_again(found.message)
        kind, limit = found.kind, found.limit
        media = sum(part.size for part in engine.view.media.values())
        if kind == "bytes":  # images can be left out; where there are none, words must
            kind, limit = ("bytes", media // 2) if media else ("tokens", 0)
        if kind == "tokens" and not limit and found.over:  # it says only by how much
            limit = max(0, self._sent[1] - found.over)
        sent = self._sent[1] or engine.calibration.tokens(
            engine.total_units
        )  # another process may have sent it
        return Overflowed(
            model=engine.model.name,
            limit=limit,
            needed=found.needed,
            output=found.output,
            sent=sent,
            limit_kind=kind,
            problem=found.message,
        )


def _behind(engine: Engine, moved: Step | None) -> int:
    """Units from a step on; of all steps without one."""
    first = -1 if moved is None else moved.seq
    return sum(engine.view.units_of(step) for step in engine.view.steps if step.seq >= first)
