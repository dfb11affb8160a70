"""A summary to be written: the plan, and all that a model must be told for it."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple, Self

from msgspec import UNSET

from foveal.core import wire
from foveal.core.compaction.plan import Plan, settled, source
from foveal.core.compaction.protocol import Ask, Draft, Failure, SummaryWriter
from foveal.core.compaction.summariser import Summariser, SummaryRequest
from foveal.core.compaction.writing import CompactionOutcome, dialogue
from foveal.core.engine.engine import Engine
from foveal.core.log.events import Compacted, CompactionFailed, Dialect, Event
from foveal.core.models.model import Model
from foveal.core.tokens.counter import Counter
from foveal.core.view.request import Fitted


class SummaryJob(NamedTuple):
    plan: Plan
    events: Sequence[Event]
    """Those of the range that count."""
    earlier: tuple[Compacted, ...]
    """Summaries that the range covers."""
    fingerprint: tuple[object, ...]
    """What the range looked like: see `compaction.plan.source`."""
    fitted: Fitted
    dialect: Dialect
    counter: Counter
    ratio: float
    model: Model
    after: Sequence[Event]
    """Those that came after the range."""
    elsewhere: set[str]
    """Names that are shown outside of the range."""

    @classmethod
    def of(cls, engine: Engine, plan: Plan, events: Sequence[Event], dialect: Dialect = "") -> Self:
        """`events` are those that count, from the beginning of the range or before."""
        plan = settled(plan, events)
        inside = [event for event in events if plan.first <= event.seq <= plan.last]
        return cls(
            plan=plan,
            events=inside,
            earlier=tuple(engine.summaries(plan)),
            fingerprint=source(engine.view, plan),
            fitted=Fitted.of(engine.view, tokens=engine.calibration.tokens(engine.total_units)),
            dialect=dialect or _dialect(inside),
            counter=engine.view.meter.counter,
            ratio=engine.calibration.ratio,
            model=engine.model,
            after=[event for event in events if event.seq > plan.last],
            elsewhere=engine.elsewhere(plan),
        )

    def talk(
        self, summarisers: Sequence[Summariser], *, prompt: str
    ) -> Generator[Ask, Draft | Failure, CompactionOutcome]:
        """What is said to the models until there is an outcome."""
        return dialogue(
            self.plan,
            self.events,
            writers=[_writer(summariser, self.model) for summariser in summarisers],
            counter=self.counter,
            ratio=self.ratio,
            prompt=prompt,
            shared_total=self.fitted.tokens,
            earlier=self.earlier,
            elsewhere=self.elsewhere,
            after=self.after,
            beside=[wire.original(fact) for fact in (*self.fitted.aside, *self.fitted.facts)],
        )

    def request(self, ask: Ask) -> SummaryRequest:
        """A request in the conversation's dialect."""
        if ask.form == "cold":
            return SummaryRequest.cold(ask, self.dialect)
        fitted, system = self.fitted, ""
        messages: list[dict[str, Any]]
        match self.dialect:
            case "anthropic":
                messages, system = fitted.to_anthropic(), fitted.system
            case "openai_responses":
                messages = fitted.to_responses()
            case _:
                messages = fitted.to_openai()
        return SummaryRequest.shared(ask, self.dialect, messages=messages, system=system, tools=fitted.tools)


def failed(plan: Plan, problem: str, outcome: CompactionOutcome | None = None) -> CompactionFailed:
    """That nothing came of a plan."""
    return CompactionFailed(
        first=plan.first,
        last=plan.last,
        problem=problem,
        by=outcome.by if outcome is not None else "",
        metrics=outcome.metrics if outcome is not None else UNSET,
        reason=plan.reason,
    )


def _writer(summariser: Summariser, own: Model) -> SummaryWriter:
    if summariser.model is None:
        return SummaryWriter(model=own, name=summariser.name, shares_cache=own.read_ratio < 1)
    return SummaryWriter(model=summariser.model, name=summariser.name)


def _dialect(events: Sequence[Event]) -> Dialect:
    """The dialect of the newest message that has one."""
    found: list[Dialect] = [getattr(event.fact, "dialect", "") for event in reversed(events)]
    return next((dialect for dialect in found if dialect), wire.wire("").dialect)
