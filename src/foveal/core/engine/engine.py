"""Decide, do, record: the log, its view, and the loop that reduces until the next request fits.

`Context` and `Session` are two faces of this. It is synchronous and knows no clock: whoever calls it says what
time it is. The only way to change anything is `append`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence, Set
from operator import attrgetter
from typing import Final, cast

import msgspec
from msgspec.structs import replace

from foveal.core.compaction.health import TOPIC, CompactionHealth, measures
from foveal.core.compaction.plan import NoPlan, Plan
from foveal.core.compaction.plan import plan as plan_range
from foveal.core.compaction.writing import CompactionOutcome, ledger_summary
from foveal.core.engine.overflow import available, overflow, refilled, too_much_media
from foveal.core.log.events import (
    AnyFact,
    Clipped,
    Compacted,
    CompactionFailed,
    Dropped,
    Equipped,
    Event,
    Instructed,
    Masked,
    ModelSaid,
    Noted,
    Opened,
    Overflowed,
    Text,
    ToolReturned,
    Used,
    UserSaid,
)
from foveal.core.models.budget import Budget, Caps, reserve_for
from foveal.core.models.budget import plan as room
from foveal.core.models.cost import UsageTotals
from foveal.core.models.model import Model
from foveal.core.policies import Moment, Policy, decide, ladder
from foveal.core.reduction import repeated_lines
from foveal.core.reduction import truncation as clipping
from foveal.core.reduction.truncation import UNLIMITED, Limits, clip_parts
from foveal.core.tokens.calibration import Calibration
from foveal.core.tokens.counter import Counter
from foveal.core.tokens.message_tokens import MessageTokens
from foveal.core.view.checkpoint import CarriedState, carried, restore
from foveal.core.view.fold import advance, effective, fold
from foveal.core.view.view import View
from foveal.core.wire.overflow_errors import silent
from foveal.errors import ContextOverflow

_seq = attrgetter("seq")
ROUNDS: Final = 5_000
"""Reductions for one request, at the most: a policy that goes on for longer is not getting anywhere."""
EXACT_SPREAD: Final = 0.05
"""How far the ratio of a model may be from its family's when a real vocabulary counts; see `calibration`."""
ESTIMATE_SPREAD: Final = 0.1


class EngineState(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation as it was after event `seq`, without the events themselves."""

    seq: int
    carried: CarriedState
    calibration: Calibration
    accounts: UsageTotals
    unreduced: int
    record: CompactionHealth = CompactionHealth()


class Engine:
    """One conversation: its log, and everything that follows from it."""

    def __init__(
        self,
        model: Model,
        policy: Policy,
        caps: Caps,
        counter: Counter,
        *,
        log: Sequence[Event] = (),
        state: EngineState | None = None,
    ) -> None:
        """Without `state`, `log` is the whole log; with it, the events that the state needs, and all newer ones."""
        self.model = model
        self.policy = policy
        self.caps = caps
        self.log: list[Event] = list(log)
        """The events in memory."""
        self.accounts = UsageTotals()
        self.record = CompactionHealth()
        """How summaries and refusals went so far."""
        self.mover: Event | None = None
        """The first event since the last request that can have changed what that one showed."""
        self._settled: tuple[int, Budget] | None = None
        meter = MessageTokens(counter)
        spread = EXACT_SPREAD if counter.exact else ESTIMATE_SPREAD
        self.calibration = Calibration(ratio=model.token_ratio, spread=spread)
        self.unreduced = 0
        """Units of the whole conversation as it was said."""
        self.view: View
        if state is None:
            self.view = fold(self.log, meter)
            self._recount()
            for event in self.log:
                self._learn(event)
        else:
            self._resume(state, meter)
        self.next_seq = 1 + max(self.log[-1].seq if self.log else -1, -1 if state is None else state.seq)
        last = next((event for event in reversed(self.log) if isinstance(event.fact, Opened)), None)
        self.opened = last.fact if last is not None and isinstance(last.fact, Opened) else Opened(model="")
        self.opened_seq = last.seq if last is not None else -1
        self._limit()
        self._hard = self.budget().hard

    def state(self) -> EngineState:
        """What `Engine` needs, beside the events that the view needs, to go on from here."""
        return EngineState(
            seq=self.next_seq - 1,
            carried=carried(self.view),
            calibration=self.calibration,
            accounts=self.accounts,
            unreduced=self.unreduced,
            record=self.record,
        )

    def _resume(self, state: EngineState, meter: MessageTokens) -> None:
        old = bisect_right(self.log, state.seq, key=_seq)
        self.view = restore(self.log[:old], state.carried, meter)
        self.calibration, self.accounts = state.calibration, state.accounts
        self.unreduced, self.record = state.unreduced, state.record
        for event in self.log[old:]:
            self.view.advance(event)
            self._account(event)

    def since(self, seq: int) -> list[Event]:
        """The events from `seq` on."""
        return self.log[bisect_left(self.log, seq, key=_seq) :]

    def forget(self, wanted: Set[int]) -> None:
        """Keep only these events in memory."""
        self.log = [event for event in self.log if event.seq in wanted]
        self.view.meter.forget(wanted)

    def take(self, event: Event) -> None:
        """An event that somebody else recorded."""
        self.log.append(event)
        self.next_seq = event.seq + 1
        self.view.advance(event)
        self._account(event)

    # ── record ───────────────────────────────────────────────────────────────────────────────────────

    def append(self, fact: AnyFact, *, at: float | None = None, limits: Limits | None = None) -> Event:
        """Record one fact. A result that is longer than its limits is recorded whole, and then its clip;
        `limits` are this call's own and go before those of the tool and the policy."""
        event = Event(self.next_seq, fact, at)
        self.next_seq += 1
        self.log.append(event)
        before = self.view
        self.view = advance(self.view, event, self.log)
        if self.view is not before:
            self._recount()
            self._learn(event)
            self.mover = self.mover or event
        else:
            self._account(event)
            if isinstance(fact, ToolReturned):
                self._clip(event, fact, limits)
                if self.view.late[-1:] == [event.seq]:
                    self.mover = self.mover or event
        return event

    def _account(self, event: Event) -> None:
        fact = event.fact
        if self.mover is None and moves_prefix(event):
            self.mover = event
        if isinstance(fact, UserSaid | ModelSaid | ToolReturned | Instructed):
            self.unreduced += self.view.meter.message(event.seq, fact)
        elif isinstance(fact, Opened):
            self.opened, self.opened_seq = fact, event.seq
        self._learn(event)

    def _learn(self, event: Event) -> None:
        """What an event teaches about the provider, whether it still counts or not."""
        fact = event.fact
        self.record = self.record.after(fact)
        if isinstance(fact, Used):
            if not silent(prompt=fact.prompt, predicted=fact.predicted, window=self.model.window):
                self.calibration = self.calibration.observe(fact.units, fact.prompt)
            self.accounts = self.accounts.after(fact, self.model)
        elif isinstance(fact, Compacted | CompactionFailed):
            measured = measures(fact)
            self.accounts = self.accounts.with_summary(measured.cost, asked=measured.asked)
        if isinstance(fact, Overflowed | Used):
            self._limit()

    def _recount(self) -> None:
        """The past has changed: count again what there is of it; what was spent remains spent."""
        said = (UserSaid, ModelSaid, ToolReturned, Instructed)
        facts = ((event.seq, event.fact) for event in effective(self.log))
        self.unreduced = sum(
            self.view.meter.message(seq, fact) for seq, fact in facts if isinstance(fact, said)
        )

    def _clip(self, event: Event, fact: ToolReturned, call: Limits | None) -> None:
        found = self.view.find(event.seq)
        if found is None:
            return
        name = next((slot.call.name for slot in found[0].slots if slot.result is found[1]), fact.name)
        limits = self._limits(name, call)
        if self._refer(event, fact, limits) or limits == UNLIMITED:
            return
        for clipped in _clips(event, fact, limits, self.view.meter.counter, rule=f"{self.policy.name}: clip"):
            self.append(clipped, at=event.at)

    def _refer(self, event: Event, fact: ToolReturned, limits: Limits) -> bool:
        """Show lines that stand above already as references; not when the rest would have to be clipped anyway."""
        if not self.policy.refer or limits.lines or limits.bytes or self.view.late[-1:] == [event.seq]:
            return False
        rule = f"{self.policy.name}: seen"
        clips = list(
            repeated_lines.clips(self.view, event.seq, fact.content, saving=self.policy.refer, rule=rule)
        )
        if limits.tokens is not None and sum(clipped.kept_tokens for clipped in clips) > limits.tokens:
            return False
        for clipped in clips:
            self.append(clipped, at=event.at)
        return bool(clips)

    def _limits(self, tool: str, call: Limits | None) -> Limits:
        default = self.policy.clip or UNLIMITED
        limits = clipping.choose(default, per_tool=self.policy.clip_tools, tool=tool, call=call)
        if self.policy.clip_share < 1 and limits != UNLIMITED:
            most = int(self._hard * self.policy.clip_share)
            limits = replace(limits, tokens=most if limits.tokens is None else min(most, limits.tokens))
        return limits

    # ── decide ───────────────────────────────────────────────────────────────────────────────────────

    @property
    def fixed_units(self) -> int:
        return self.view.aside_units + self.view.tool_units

    @property
    def total_units(self) -> int:
        """Units of the whole request."""
        return self.view.units + self.fixed_units

    def _caps(self) -> Caps:
        """What the user allows, and what providers have been found to allow."""
        caps, record = self.caps, self.record
        if self.policy.max_history_tokens and not caps.max_history_tokens:
            caps = replace(caps, max_history_tokens=self.policy.max_history_tokens)
        if self.model.name in record.limits:  # what was kept for the answer was meant for a larger window
            wanted = max(reserve_for(self.model, caps), record.reserves.get(self.model.name, 0))
            caps = replace(caps, reserve=min(wanted, self.model.window // 4))
        if record.media_bytes:
            caps = replace(caps, max_media_bytes=min(caps.max_media_bytes, record.media_bytes))
        return caps

    def budget(self) -> Budget:
        """The room of the next request, by what is known now."""
        budget = room(
            self.model,
            self._caps(),
            self.calibration,
            warn=self.policy.warn,
            act=self.policy.act,
            act_tokens=self.policy.act_tokens,
            fixed=self.fixed_units,
            instructed=self.view.permanent_units,
        )
        self._hard = budget.hard
        return budget

    def settling(
        self, moment: Moment, *, at: float | None = None
    ) -> Generator[Plan, CompactionOutcome | None, Budget]:
        """Reduce until the next request fits, or raise `ContextOverflow`. Where a summary is wanted, its plan is
        yielded and the outcome taken: whoever drives this may ask a model, or write the ledger. Without new events
        since the last time this does nothing, whatever the clock says."""
        budget = self.budget()
        if self._settled == (self.next_seq, budget):
            return budget
        moment = replace(moment, paused=self.record.paused, refused=self.record.refused > 0)
        for _ in range(ROUNDS):
            wanted = decide(self.view, budget, moment, self.policy)
            if wanted is None:
                break
            if isinstance(wanted, Plan):
                outcome = yield wanted
                moment = replace(moment, compacted=True)
                if outcome is not None:
                    self.append(outcome, at=at)
            else:
                self.append(wanted, at=at)
            moment = replace(moment, cutting=True)
        if self.view.units > budget.hard or too_much_media(self.view, budget):
            raise overflow(self.view, budget, self.calibration, self.policy)
        if self.record.paused and not self.record.explained and self.view.units > budget.act:
            self.append(Noted(text=refilled(self.view, budget, self.calibration), topic=TOPIC), at=at)
        self._settled = (self.next_seq, budget)
        return budget

    def settle(
        self,
        moment: Moment,
        *,
        at: float | None = None,
        write: Callable[[Plan], CompactionOutcome | None] | None = None,
    ) -> Budget:
        """`settling`, with summaries by `write`, or else by the ledger from the log in memory."""
        work = self.settling(moment, at=at)
        answer: CompactionOutcome | None = None
        try:
            while True:
                answer = (write or self.ledger)(work.send(answer))
        except StopIteration as done:
            return cast(Budget, done.value)

    def ledger(self, plan: Plan) -> CompactionOutcome:
        """The summary of a range without a model."""
        return ledger_summary(
            plan,
            effective(self.log),
            counter=self.view.meter.counter,
            ratio=self.calibration.ratio,
            elsewhere=self.elsewhere(plan),
        )

    def elsewhere(self, plan: Plan) -> set[str]:
        """The names that are shown outside of a plan's range."""
        inside = {
            id(shown)
            for step in self.view.steps
            if plan.first <= step.seq <= plan.last and step.seq not in plan.keep
            for shown in step.shown()
        }
        return ladder.names_beside(self.view, inside)

    def plan(self, *, reason: str, focus: str = "") -> Plan | NoPlan:
        """The range that a summary would stand for now."""
        return plan_range(self.view, self.budget(), ladder.terms(self.policy), reason=reason, focus=focus)

    def summaries(self, plan: Plan) -> Iterator[Compacted]:
        """The summaries in view that a plan's range covers."""
        inside = {
            step.said.seq
            for step in self.view.summaries
            if all(plan.first <= low and high <= plan.last for low, high in step.covers)
        }
        for event in self.log:
            if event.seq in inside and isinstance(event.fact, Compacted):
                yield event.fact

    @property
    def max_tokens(self) -> int:
        """What the answer to the next request may take at the most."""
        free = self.model.window - self.calibration.upper(self.total_units) - self.budget().margin
        most = min(self.model.max_output, free)
        return max(1, min(most, self.record.trimmed) if self.record.trimmed else most)

    def refused_again(self, said: str) -> ContextOverflow:
        """The error when a provider goes on refusing what it is sent."""
        return overflow(self.view, self.budget(), self.calibration, self.policy, refused=said)

    def switch(self, model: Model) -> None:
        """Go on with another model."""
        self.model = model
        self.calibration = Calibration(ratio=model.token_ratio, spread=self.calibration.spread)
        self._limit()

    def _limit(self) -> None:
        """The model as it has turned out to be."""
        model, record = self.model, self.record
        window = min(model.window, record.limits.get(model.name, model.window))
        most = min(window, model.max_input, record.inputs.get(model.name, window))
        if (window, most) != (model.window, model.max_input):
            source = model.sources | {"window": "learned from a refused request"}
            self.model = replace(model, window=window, max_input=most, sources=source)

    def paid(self, first: int) -> list[AnyFact]:
        """What was recorded from `first` on up to the last summary that a model was paid for: to be kept, even when
        the request it was made for is not sent."""
        facts = [event.fact for event in self.since(first)]
        while facts and not (isinstance(last := facts[-1], Compacted) and measures(last).asked):
            facts.pop()
        return facts

    def take_back(self, seq: int) -> None:
        """Forget the reductions from `seq` on: the request they were made for will not be sent. Needs the whole
        log in memory."""
        if self.next_seq > seq:
            del self.log[bisect_left(self.log, seq, key=_seq) :]
            self.next_seq = seq
            self.view = fold(self.log, self.view.meter)
            self.view.meter.forget_from(seq)
            self.mover = self.mover if self.mover is not None and self.mover.seq < seq else None

    def available(self, budget: Budget) -> int:
        """Tokens that the request may have: what it is compared with."""
        return available(budget, self.calibration)


def _clips(
    event: Event, fact: ToolReturned, limits: Limits, counter: Counter, *, rule: str
) -> Iterable[Clipped]:
    """The clips that bring a result within its limits: one for plain text, one for each part otherwise."""
    if isinstance(fact.content, str):
        cut = clipping.clip(fact.content, limits, handle=event.handle, counter=counter)
        return [] if cut is None else [ladder.clipped(event.seq, -1, cut, rule=rule)]
    places = [place for place, part in enumerate(fact.content) if isinstance(part, Text)]
    texts = [part.text for part in fact.content if isinstance(part, Text)]
    cuts = clip_parts(texts, limits, handle=event.handle, counter=counter)
    return [
        ladder.clipped(event.seq, place, cut, rule=rule)
        for place, cut in zip(places, cuts, strict=True)
        if cut is not None
    ]


def moves_prefix(event: Event) -> bool:
    """A fact that can change what an earlier request had shown."""
    fact = event.fact
    if isinstance(fact, Clipped):
        return fact.rule == "squeeze"
    if isinstance(fact, Instructed):
        return fact.replaces is not None or fact.aside
    return isinstance(fact, Masked | Dropped | Compacted | Equipped)
