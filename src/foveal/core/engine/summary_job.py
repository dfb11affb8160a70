"""A summary to write: the plan, and everything that a model needs for it."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence, Set
from functools import partial
from typing import Any, Final, NamedTuple, Self

from msgspec import UNSET
from msgspec.structs import replace

from foveal.core import wire
from foveal.core.compaction.health import CompactionOutcome
from foveal.core.compaction.ledger.range_facts import LedgerIndex
from foveal.core.compaction.plan import Plan, range_fingerprint, read_range
from foveal.core.compaction.summariser import Summariser, SummaryRequest
from foveal.core.compaction.summariser_protocol import Draft, DraftFailure, DraftRequest, SummaryWriter
from foveal.core.compaction.summary import SummarySource
from foveal.core.compaction.summary_dialogue import summary_dialogue
from foveal.core.engine.beside_range import likely_names_outside, names_outside, summaries_in
from foveal.core.engine.engine import Engine
from foveal.core.log.events import (
    Compacted,
    CompactionFailed,
    Dialect,
    Event,
    UserSaid,
)
from foveal.core.models.model import Model
from foveal.core.view.request import Fitted
from foveal.core.view.view import View

UNREPORTED_MARGIN: Final = 0.1
"""Share of the window by which a provider may count more than Foveal, before its first report of usage."""


class SummaryJob(NamedTuple):
    """A snapshot of the conversation: the summary can be written while the conversation continues."""

    source: SummarySource
    """What the ledger is written from."""
    names_outside: Set[str]
    """Names that are shown outside of the range: all, because a model's draft may have any of them."""
    fingerprint: tuple[object, ...]
    """The state of the range: see `range_fingerprint`."""
    fitted: Fitted
    """The conversation's request."""
    prefix: Fitted
    """The part of it up to the end of the range, which the provider has in its cache: what follows the range may
    not have been sent yet."""
    dialect: Dialect
    model: Model
    earlier_shown: tuple[int, tuple[int, ...]]
    """Where the first summary that is shown begins, or else the range, and the messages that are shown between."""

    @property
    def plan(self) -> Plan:
        return self.source.plan

    @classmethod
    def of(cls, engine: Engine, plan: Plan, events: Sequence[Event], dialect: Dialect = "") -> Self:
        """Return the job for a plan; `events` are the effective ones, from the beginning of the range or before."""
        plan, inside, after = read_range(plan, events)
        fitted = Fitted.of(engine.view, tokens=engine.calibration.tokens(engine.total_units))
        prefix = _prefix(engine, plan, fitted)
        source = SummarySource(
            plan=plan,
            events=inside,
            after=after,
            earlier=summaries_in(engine.view, engine.log, plan),
            elsewhere=likely_names_outside(engine.view, plan, engine.ledger_index),
            counter=engine.view.meter.counter,
            ratio=engine.calibration.ratio,
            index=LedgerIndex(engine.ledger_index),  # a copy, since the conversation continues
            shared_total=prefix.tokens,
            margin=_margin(engine),
        )
        return cls(
            source=source,
            names_outside=names_outside(engine.view, plan),
            fingerprint=range_fingerprint(engine.view, plan),
            fitted=fitted,
            prefix=prefix,
            dialect=dialect or _dialect_of(inside),
            model=engine.model,
            earlier_shown=_shown_since_first_summary(engine.view, plan.first),
        )

    def dialogue(
        self, summarisers: Sequence[Summariser], *, prompt: str
    ) -> Generator[DraftRequest, Draft | DraftFailure, CompactionOutcome]:
        """Return the dialogue with the summarisers that ends with an outcome."""
        shown = [wire.original_text(fact) for fact in (*self.fitted.aside, *self.fitted.facts)]
        before = list(self._said_before())
        source = replace(self.source, elsewhere=self.names_outside, before=before, beside=shown)
        writers = [_writer(summariser, self.model) for summariser in summarisers]
        outcome = yield from summary_dialogue(source, writers, prompt=prompt)
        if isinstance(outcome, Compacted) and outcome.native is not UNSET:
            # A provider reads nothing in front of its own summary, so no earlier summary may stay there.
            first, kept = self.earlier_shown
            dialect = outcome.dialect or self.dialect
            return replace(outcome, first=first, keep=(*kept, *outcome.keep), dialect=dialect)
        return outcome

    def _said_before(self) -> Iterator[Event]:
        """Yield the user's messages that the request shows unchanged before the range; a summary is none."""
        for fact, seq in zip(self.fitted.facts, self.fitted.seqs, strict=True):
            if isinstance(fact, UserSaid) and 0 <= seq < self.plan.first:
                yield Event(seq, fact)

    def request(self, draft_request: DraftRequest) -> SummaryRequest:
        """Return the request for a draft in the conversation's dialect."""
        dialect = draft_request.dialect or self.dialect
        if draft_request.form == "cold":
            return SummaryRequest.cold(draft_request, dialect)
        prefix, system = self.prefix, ""
        messages: list[dict[str, Any]]
        match dialect:
            case "anthropic":
                messages, system = prefix.to_anthropic(), prefix.system
            case "bedrock":
                messages, system = prefix.to_bedrock(), prefix.system
            case "gemini":
                messages, system = prefix.to_gemini(), prefix.system
            case "openai_responses":
                messages = prefix.to_responses()
            case _:
                messages = prefix.to_openai()
        shared = partial(SummaryRequest.shared, binds_thinking=prefix.binds_thinking)
        build = SummaryRequest.native if draft_request.form == "native" else shared
        request = build(draft_request, dialect, messages=messages, system=system, tools=prefix.tools)
        return replace(request, prefix=prefix, instruction=draft_request.text)


def failed_compaction(
    plan: Plan | Compacted, problem: str, outcome: CompactionOutcome | None = None
) -> CompactionFailed:
    """Return the fact that no summary was recorded for a plan; `outcome` was written but is not used."""
    return CompactionFailed(
        first=plan.first,
        last=plan.last,
        problem=problem,
        by=outcome.by if outcome is not None else "",
        metrics=outcome.metrics if outcome is not None else UNSET,
        reason=plan.reason,
    )


def _margin(engine: Engine) -> float:
    """Return the share of the window to leave free. A conversation's request that is refused is sent again with
    less, but a summary that is refused was asked for in vain: it is careful until a provider has reported usage."""
    measured = engine.budget().margin / engine.model.window
    return measured if engine.calibration.seen else max(measured, UNREPORTED_MARGIN)


def _prefix(engine: Engine, plan: Plan, fitted: Fitted) -> Fitted:
    """Return the part of a request that ends with the range of a plan."""
    steps = engine.view.steps
    count = next(
        (n for n in range(len(steps), 0, -1) if plan.first <= steps[n - 1].seq <= plan.last), len(steps)
    )
    units = sum(step.count(engine.view.meter) for step in steps[count:])
    facts = sum(1 + len(step.all_slots) for step in steps[:count])
    return replace(
        fitted,
        facts=fitted.facts[:facts],
        seqs=fitted.seqs[:facts],
        tokens=engine.calibration.tokens(engine.total_units - units),
    )


def _shown_since_first_summary(view: View, first: int) -> tuple[int, tuple[int, ...]]:
    begins = min((low for step in view.summaries for low, _ in step.covers), default=first)
    steps = (step for step in view.steps if begins <= step.seq < first and step.kind in ("user", "model"))
    return min(begins, first), tuple(shown.seq for step in steps for shown in step.shown_messages())


def _writer(summariser: Summariser, own: Model) -> SummaryWriter:
    if summariser.model is None:  # the conversation's own model: it has the conversation in its cache
        return SummaryWriter(
            model=own,
            name=summariser.name,
            shares_cache=own.read_ratio < 1,
            is_native=summariser.native,
            dialect=summariser.dialect,
        )
    return SummaryWriter(model=summariser.model, name=summariser.name)


def _dialect_of(events: Sequence[Event]) -> Dialect:
    """Return the dialect of the newest message that has one."""
    found: list[Dialect] = [getattr(event.fact, "dialect", "") for event in reversed(events)]
    return next((dialect for dialect in found if dialect), wire.wire_for("").dialect)
