"""The engine: the log, its view, and the loop that reduces until a request fits.

1. `append` is the only way to change anything: it records a fact and advances the view.
2. `reduce_to_fit` asks the policy for reductions and records them until the next request fits.
3. The engine is synchronous and has no clock: the caller passes the time.

`Context` and `Session` are built on it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from copy import copy
from operator import attrgetter
from typing import Final, Self, cast

import msgspec
from msgspec.structs import replace

from foveal.core.compaction.health import (
    COMPACTION_TOPIC,
    CompactionHealth,
    CompactionOutcome,
    read_metrics,
    summariser_failures,
)
from foveal.core.compaction.kept_messages import sentences_of
from foveal.core.compaction.ledger.range_facts import LedgerIndex
from foveal.core.compaction.plan import NoPlan, Plan, plan_range, read_range
from foveal.core.compaction.summary import SummarySource, ledger_summary
from foveal.core.engine import branches
from foveal.core.engine.beside_range import NamesAhead, likely_names_outside, newest_hidden, summaries_in
from foveal.core.engine.overflow import (
    MAX_RESENDS,
    BudgetTerms,
    ProviderLimits,
    available_tokens,
    check_irreducible,
    overflow_error,
    refill_note,
    refused_request,
    silent_overflow_reason,
    whole_overflow_error,
)
from foveal.core.engine.prefix import may_move_prefix
from foveal.core.engine.reviews import (
    HOOK_TOPIC,
    MAX_REVIEWS,
    NO_ROOM,
    CutSizes,
    ProposedCut,
    Wish,
    propose,
)
from foveal.core.engine.settings import EngineSettings, clips_within, result_limits
from foveal.core.engine.state import AwaitedAnswer, EngineState, PastCalls
from foveal.core.engine.unreadable_summaries import RecordWriter, Unreadable, refused_as_unreadable
from foveal.core.log.events import (
    BUDGET_SOURCE,
    DIALOGUE_TYPES,
    MEMORY_SOURCE,
    AnyFact,
    BranchEnded,
    Call,
    Clipped,
    Compacted,
    CompactionFailed,
    Dropped,
    Event,
    Expanded,
    Instructed,
    Noted,
    Opened,
    Overflowed,
    Pinned,
    Reverted,
    Rewound,
    Steered,
    Text,
    ThinkingLeftOut,
    ToolReturned,
    Used,
    parse_handle,
    parts,
    text_of,
)
from foveal.core.models.budget import Budget, Caps, reserve_for
from foveal.core.models.cost import UsageTotals
from foveal.core.models.model import Model, first_calibration
from foveal.core.models.spending import (
    BudgetStatus,
    SpendingLimit,
    budget_statuses,
    check_budgets,
    estimate_request,
    left_text,
)
from foveal.core.policies import Moment, Policy, decide, ladder
from foveal.core.policies.ladder.mask import exceeds_media_limits
from foveal.core.policies.moment import Decision
from foveal.core.reduction import repeated_lines, unchanged_answers
from foveal.core.reduction.truncation import UNLIMITED, Limits
from foveal.core.tokens.calibration import NEVER_MEASURED, Calibration
from foveal.core.tokens.message_tokens import COUNTED_TYPES, CountedFact, MessageTokens
from foveal.core.view.checkpoint import restore_view, take_checkpoint
from foveal.core.view.fold import EffectiveLog, effective_events, fold, needs_refold
from foveal.core.view.view import View
from foveal.core.wire.overflow_errors import recognise_overflow, refused_encryption, refused_thinking

_seq = attrgetter("seq")
MAX_REDUCTIONS: Final = 5_000
"""Reductions for one request; a policy that needs more makes no progress."""
PREPARED_PART: Final = 4
"""From this part of the level at which a policy acts, each request reads some events for the next ledger. Most
conversations end before that."""
MAX_SEARCHED_ROOMS: Final = 2
"""In a history longer than this many rooms, new results are not searched for repeated lines: most of what they
could refer to will be hidden."""


class Engine:
    """One conversation: its log and everything derived from it."""

    def __init__(
        self,
        settings: EngineSettings,
        *,
        log: Sequence[Event] = (),
        state: EngineState | None = None,
        view: View | None = None,
    ) -> None:
        """Without `state`, `log` is the whole log; with it, the events that the state needs and all newer ones.
        With an empty `view`, `apply` takes the events of a stored log one after the other."""
        model, policy, caps, counter = settings
        self.model: Model = model
        """The model, with the limits learned from its provider."""
        self.policy: Policy = policy
        self.caps: Caps = caps
        self.log: list[Event] = list(log)
        """The events in memory."""
        self._effective: list[Event] | None = None
        """Those of them that are effective, if they are known."""
        self.all_effective: bool = not self.log and state is None
        """Whether all events of the log, not only those in memory, are known to be effective."""
        self.usage_totals: UsageTotals = UsageTotals()
        self.compaction_health: CompactionHealth = CompactionHealth()
        self.provider_limits: ProviderLimits = ProviderLimits()
        self.prefix_mover: Event | None = None
        """The first event since the last request that can have changed what that request showed."""
        self._answer = AwaitedAnswer()
        self._fitted_at: tuple[int, Budget] | None = None
        """The next seq and the budget when the request last fitted."""
        self.ledger_index: LedgerIndex = LedgerIndex(
            sentences_of=lambda seq, text: sentences_of(self.view, seq, text)
        )
        self._names_ahead = NamesAhead()
        self.past_calls: PastCalls = PastCalls()
        self._learned = first_calibration(model, counter)
        """The calibration with the anchor at the newest report."""
        self._anchored: tuple[int, Calibration] | None = None
        """The next seq, and the calibration with the anchor at the request of that time."""
        self.unreduced_units: int = 0
        """Units of the whole conversation without reductions."""
        self._budget: tuple[BudgetTerms, Budget] | None = None
        """The last budget, and what it was made of."""
        self._expected_units = 0
        """About how many units the view will have when all messages that came at once are recorded."""
        if view is not None:
            self.view: View = view
        elif state is None:
            self._fold(MessageTokens(counter))
            for event in self.log:
                self._learn(event, self._units(event))
        else:
            self._resume(state, MessageTokens(counter, state.counts))
        self.next_seq: int = 1 + max(self.log[-1].seq if self.log else -1, -1 if state is None else state.seq)
        opened = ((event.fact, event.seq) for event in reversed(self.log) if isinstance(event.fact, Opened))
        self.opened: Opened
        self.opened_seq: int
        self.opened, self.opened_seq = next(opened, (Opened(model=""), -1))
        self._apply_learned_limits()
        self._hard_limit = self.budget().hard

    def state(self) -> EngineState:
        """Return what another `Engine` needs, beside the events that the view needs, to continue from here."""
        return EngineState(
            seq=self.next_seq - 1,
            view=take_checkpoint(self.view),
            calibration=self._learned,
            usage_totals=self.usage_totals,
            unreduced_units=self.unreduced_units,
            past_calls=self.past_calls,
            record=msgspec.to_builtins(self.compaction_health) | msgspec.to_builtins(self.provider_limits),
        )

    def _resume(self, state: EngineState, meter: MessageTokens) -> None:
        old = bisect_right(self.log, state.seq, key=_seq)
        self.view = restore_view(self.log[:old], state.view, meter)
        self._learned, self.usage_totals = state.calibration, state.usage_totals
        self.unreduced_units, self.past_calls = state.unreduced_units, state.past_calls
        self.compaction_health, self.provider_limits = state.compaction_health(), state.provider_limits()
        for event in self.log[old:]:
            self.view.advance(event)
            self._account(event)

    def events_from(self, seq: int) -> list[Event]:
        """Return the events in memory from `seq` on."""
        return self.log[bisect_left(self.log, seq, key=_seq) :]

    @property
    def effective_log(self) -> Sequence[Event]:
        """The effective events in memory."""
        if self._effective is None:
            self._effective = effective_events(self.log)
        return self._effective

    def keep_in_memory(self, seqs: Set[int]) -> None:
        """Keep only these events in memory."""
        self.log = [event for event in self.log if event.seq in seqs]
        self._effective = None
        self.view.meter.keep_only(seqs)
        self.ledger_index.keep_only(seqs)

    def apply(self, event: Event, *, is_effective: bool = True) -> None:
        """Take over a stored event; one that is not effective only tells about the provider and about costs."""
        self.next_seq = event.seq + 1
        if is_effective:
            self.log.append(event)
            self._effective = None
            self.view.advance(event)
        else:
            self.all_effective = False
        self._account(event, is_effective=is_effective)
        self._answer.is_outdated_by(event.fact)

    def memory_facts(self, text: str) -> list[AnyFact]:
        """Return the fact after which requests show this text of a memory; none if they show it already."""
        held = self.view.memory
        shown = "" if held is None else text_of(held.utterance.fact.content)
        if text == shown:
            return []
        replaces = None if held is None else held.utterance.seq
        return [Instructed(content=text, source=MEMORY_SOURCE, replaces=replaces)]

    def request_sent(self) -> None:
        """Note that a request was sent: from here on, `prefix_mover` is about the next one."""
        self.prefix_mover = None
        self._answer.request_sent()

    def forget_prefix_mover(self) -> None:
        """Count the prefix as not moved: nothing is known of the last request."""
        self.prefix_mover = None

    def take_over_request(self, other: Engine, mover: Event | None) -> None:
        """Set what is known of the last request, and the event that has moved the prefix since. For an engine that
        replaces another one: the log alone does not say which of its events came after that request."""
        self.prefix_mover = mover
        self._answer = other._answer
        self._answer.mark_outdated()

    # ── Recording ────────────────────────────────────────────────────────────────────────────────────

    def append(self, fact: AnyFact, *, at: float | None = None, limits: Limits | None = None) -> Event:
        """Record one fact. A tool result that exceeds its limits is recorded whole, followed by a `Clipped` fact; a
        summary is followed by the failures of summarisers that should have written it, and the end of a branch by
        its fold. The last result of a step that calls `branch` or `return` is followed by what that asks for.
        `limits` apply to this call only and take precedence over those of the tool and the policy."""
        event = Event(self.next_seq, fact, at)
        fold = self._branch_fold(fact) if isinstance(fact, BranchEnded) else None
        folded_again = self.take_over(event)
        self._names_ahead.note(event)
        if isinstance(fact, ToolReturned) and not folded_again:
            self._clip(event, fact, limits)
            if self.view.late_results[-1:] == [event.seq]:
                self.prefix_mover = self.prefix_mover or event
            for asked in branches.asked_for(self.view, event):
                self.append(asked, at=at)
        if fold is not None:
            self.append(fold, at=at)
        if isinstance(fact, Compacted):
            for failure in summariser_failures(fact):
                self.append(failure, at=at)
        thinking = self.view.thinking
        if self._answer.is_outdated_by(fact) and thinking.is_bound and event.seq in thinking.seqs:
            self.append(ThinkingLeftOut(), at=at)
        return event

    def take_over(self, event: Event) -> bool:
        """Take over the next event of a log that is whole in memory, as it is: nothing follows from it. Return
        whether the log was folded again, because the event changes which earlier ones are effective."""
        self.next_seq = event.seq + 1
        self.log.append(event)
        if needs_refold(event.fact, self.view):
            self.all_effective = False
            self._fold(self.view.meter)
            self._learn(event, self._units(event))
            self.prefix_mover = self.prefix_mover or event
            return True
        self.view.advance(event)
        if self._effective is not None:
            self._effective.append(event)
        self._account(event)
        return False

    @contextmanager
    def recording(self, facts: Iterable[AnyFact]) -> Iterator[None]:
        """Announce facts that are appended one after the other while it is entered. If they are more than can be
        shown, their results are not searched for repeated lines."""
        chars = sum(len(text_of(fact.content)) for fact in facts if isinstance(fact, ToolReturned))
        self._expected_units = self.view.units + chars // repeated_lines.CHARS_PER_UNIT
        try:
            yield
        finally:
            self._expected_units = 0

    def _branch_fold(self, ended: BranchEnded) -> Compacted | None:
        terms, last = ladder.summary_terms(self.policy), self.next_seq - 1
        return branches.branch_fold(
            self.view, ended, self.budget(), terms, last=last, ratio=self.calibration.ratio
        )

    def _account(self, event: Event, *, is_effective: bool = True) -> None:
        fact = event.fact
        if self.prefix_mover is None and may_move_prefix(fact):
            self.prefix_mover = event
        units = self._units(event)
        if is_effective:
            self.unreduced_units += units
        if isinstance(fact, Opened):
            self.opened, self.opened_seq = fact, event.seq
        self._learn(event, units)

    def _units(self, event: Event) -> int:
        """Return the units of a message in full; 0 for another event."""
        fact = event.fact
        return (
            self.view.meter.message(event.seq, cast(CountedFact, fact)) if type(fact) in COUNTED_TYPES else 0
        )

    def _learn(self, event: Event, units: int) -> None:
        """Update what events say about the provider and about costs, even if a rewind has taken them back. `units`
        is the size of a message."""
        fact = event.fact
        self.compaction_health = self.compaction_health.after(fact)
        self.past_calls = self.past_calls.after(event, units=units)
        self.usage_totals = self.usage_totals.after(event, self.model)
        if type(fact) in DIALOGUE_TYPES:
            return
        self.provider_limits = self.provider_limits.after(fact)
        self._learned = _calibrate(self._learned, event, window=self.model.window)
        if isinstance(fact, Compacted | CompactionFailed):
            metrics = read_metrics(fact)
            self.usage_totals = self.usage_totals.with_summary(
                metrics.cost, asked=metrics.asked, tokens=metrics.input + metrics.output, at=event.at
            )
        if isinstance(fact, Overflowed | Used):
            self._apply_learned_limits()

    def _fold(self, meter: MessageTokens) -> None:
        """Fold the log, and count its effective messages; usage and costs stay as they are."""
        effective = EffectiveLog.of(self.log)
        self.view, self._effective = effective.view(meter), effective.events
        self.unreduced_units = sum(map(self._units, effective.events))

    def _clip(self, event: Event, fact: ToolReturned, call_limits: Limits | None) -> None:
        found = self.view.find(event.seq)
        if found is None:
            return
        name = next((slot.call.name for slot in found[0].all_slots if slot.result is found[1]), fact.name)
        limits = result_limits(self.policy, name, call_limits, hard_limit=self._hard_limit)
        if (call := self.unchanged_call(event)) is not None:
            if len(self.log) == self.next_seq:  # else a session looks for it in its store
                older = (other for other in reversed(self.effective_log) if other.seq < event.seq)
                self.show_again(event, call, older)
            return
        if self._refer_to_repeated_lines(event, fact, limits) or limits == UNLIMITED:
            return
        clips = clips_within(limits, event, fact, self.view.meter.counter, rule=f"{self.policy.name}: clip")
        for clipped in clips:
            self.append(clipped, at=event.at)

    def unchanged_call(self, event: Event) -> Call | None:
        """Return the call that a result answers by referring to an earlier result; None for every other event."""
        if not isinstance(event.fact, ToolReturned) or not unchanged_answers.is_unchanged_answer(event.fact):
            return None
        return unchanged_answers.call_of(self.view, event.seq)

    def show_again(self, event: Event, call: Call, older: Iterable[Event]) -> bool:
        """Show the earlier result that an answer to `call` refers to in the place of this answer, within the limits
        of a new result, unless it is shown already. `older` are the effective events before it, the newest first.
        Return whether the earlier result is among them."""
        original = unchanged_answers.earlier_result(older, call)
        if original is None:
            return False
        fact, answer = cast(ToolReturned, original.fact), cast(ToolReturned, event.fact)
        levels = unchanged_answers.levels_of(self.view, original.seq)
        if "full" in levels or any(not isinstance(part, Text) for part in parts(fact.content)):
            return True  # `expand` shows media
        limits = result_limits(self.policy, call.name, None, hard_limit=self._hard_limit)
        text, counter = text_of(fact.content), self.view.meter.counter
        said = replace(fact, content=text if isinstance(answer.content, str) else (Text(text=text),))
        rule, clips = f"{self.policy.name}: clip", []
        if limits != UNLIMITED:
            clips = list(clips_within(limits, original, said, counter, rule=rule))
        if clips and "clipped" in levels:
            return True  # it would be clipped again
        tokens, lines = counter.count(text), text.count("\n") + 1
        again = Clipped(
            target=event.seq,
            pieces=(text,),
            kept_tokens=tokens,
            total_tokens=tokens,
            kept_lines=lines,
            total_lines=lines,
            strategy="again",
            rule=f"{self.policy.name}: unchanged",
            again=original.seq,
        )
        self.append(again, at=event.at)
        for clipped in clips:
            self.append(replace(clipped, target=event.seq), at=event.at)
        return True

    def _refer_to_repeated_lines(self, event: Event, fact: ToolReturned, limits: Limits) -> bool:
        """Show lines that occur above already as references, unless the rest would have to be clipped anyway."""
        if (
            not self.policy.refer
            or limits.lines
            or limits.bytes
            or self.view.late_results[-1:] == [event.seq]
            or max(self.view.units, self._expected_units) > MAX_SEARCHED_ROOMS * self._hard_limit
        ):
            return False
        rule = f"{self.policy.name}: seen"
        saving = self.policy.refer
        found = repeated_lines.reference_clips(self.view, event.seq, fact.content, saving=saving, rule=rule)
        clips = list(found)
        if limits.tokens is not None and sum(clipped.kept_tokens for clipped in clips) > limits.tokens:
            return False
        for clipped in clips:
            self.append(clipped, at=event.at)
        return bool(clips)

    @property
    def calibration(self) -> Calibration:
        """What is known of the provider's counting of requests like the current one."""
        if not self._learned.needs_anchoring:
            return self._learned
        if self._anchored is None or self._anchored[0] != self.next_seq:
            anchored = _anchor_at_view(self._learned, self.view, units=self.total_units)
            self._anchored = (self.next_seq, anchored)
        return self._anchored[1]

    # ── Deciding ─────────────────────────────────────────────────────────────────────────────────────

    @property
    def fixed_units(self) -> int:
        """Units of the tools and of the system text beside the messages."""
        return self.view.aside_units + self.view.tool_units

    @property
    def total_units(self) -> int:
        """Units of the whole request."""
        return self.view.units + self.fixed_units

    def set_reserve(self, tokens: int | None) -> None:
        """Keep this many tokens free for the next answers; None: as many as the model may write."""
        self.caps = replace(self.caps, reserve=tokens)

    def set_limit(self, limits: tuple[SpendingLimit, ...]) -> None:
        """Allow the next requests to spend this much."""
        self.caps = replace(self.caps, limit=limits)

    def spending(self, *, at: float | None) -> tuple[BudgetStatus, ...]:
        """Return the state of the spending limits before the next request, the one with the least left first."""
        if not self.caps.limit:
            return ()
        tokens, reserve = self.calibration.tokens(self.total_units), reserve_for(self.model, self.caps)
        estimate = estimate_request(self.model, tokens, self.usage_totals, reserve=reserve)
        return budget_statuses(self.caps.limit, self.usage_totals, estimate, at=at)

    def budget_facts(self, *, at: float | None) -> list[AnyFact]:
        """Return the fact that tells the model how much is left, at the end of the next request; none if it is not
        to be told, or was told the same before."""
        text = left_text(self.spending(at=at)) if self.caps.tell_budget else ""
        facts = (step.utterance.fact for step in reversed(self.view.permanent_steps))
        told = (fact for fact in facts if isinstance(fact, Instructed) and fact.source == BUDGET_SOURCE)
        newest = next(told, None)
        if not text or (newest is not None and text_of(newest.content) == text):
            return []
        return [Instructed(content=text, source=BUDGET_SOURCE)]

    def check_spending(self, *, at: float | None, sends: bool = True) -> None:
        """Raise `BudgetExceeded` if the next request would exceed a spending limit. Without `sends`, raise it only
        if nothing is left: then no summary is written for it either."""
        advice = "raise it with `set_limit` or send a smaller request"
        period_advice = f"{advice}, or wait for the next period"
        name, statuses = self.model.name, self.spending(at=at)
        price = f'pass `foveal.model("{name}", input_price=…, output_price=…)`, or set a limit in tokens'
        check_budgets(
            statuses, name, at=at, advice=advice, price_advice=price, period_advice=period_advice, sends=sends
        )

    def budget(self) -> Budget:
        """Return the token budget of the next request by what is known now."""
        known = BudgetTerms(
            self.policy,
            self.model,
            self.caps,
            self.provider_limits,
            self.calibration,
            self.fixed_units,
            self.view.permanent_units,
        )
        if self._budget is None or self._budget[0] != known:
            self._budget = known, known.plan()
        budget = self._budget[1]
        self._hard_limit = budget.hard
        return budget

    def reduction_steps(
        self, moment: Moment, *, at: float | None = None, is_reviewed: bool = False
    ) -> Generator[Plan | ProposedCut, CompactionOutcome | Wish | None, Budget]:
        """Reduce until the next request fits, or raise `ContextOverflow`.

        Where the policy wants a summary, its plan is yielded and the outcome is sent back: the caller decides
        whether a model or the ledger writes it. With `is_reviewed`, each of the first reductions is yielded before
        it is made, and the wish of the caller's hook is sent back. Does nothing without new events, whatever the
        clock says."""
        budget = self.budget()
        is_known = self._fitted_at is None and self.past_calls.is_reduced and self._fits(budget)
        if not moment.agreed and (is_known or self._fitted_at == (self.next_seq, budget)):
            return budget
        moment = self._begin_reducing(moment, budget)
        reviews, focus = MAX_REVIEWS if is_reviewed else 0, ""
        for _ in range(MAX_REDUCTIONS):
            reduction = decide(self.view, budget, moment, self.policy)
            if isinstance(reduction, Plan) and not reduction.focus and self.compaction_health.focus:
                reduction = replace(reduction, focus=self.compaction_health.focus)
            if reviews and _can_be_reviewed(reduction):
                reviews -= 1
                proposed = self._propose(reduction, budget, moment)
                wish = yield proposed
                assert isinstance(wish, Wish)
                if wish.focus == focus or not isinstance(reduction, Plan):
                    wish = wish._replace(focus="")  # recorded before, or nothing is written
                self._record_wish(proposed, wish, moment.keep, at=at)
                focus = wish.focus or focus
                if wish.veto and not proposed.is_forced:
                    break
                if not moment.keep.issuperset(wish.keep):
                    moment = replace(moment, keep=moment.keep.union(wish.keep))
                    continue
                if isinstance(reduction, Plan) and focus:
                    reduction = replace(reduction, focus=focus)
            if reduction is None:
                # What is left may have more tokens per unit than what was cut.
                before, budget = budget, self.budget() if moment.cutting else budget
                if budget == before or self.view.units <= budget.hard:
                    break
                continue
            if isinstance(reduction, Plan):
                outcome = yield reduction
                assert not isinstance(outcome, Wish)
                failed = reduction.reason == "room" and not isinstance(outcome, Compacted)
                moment = replace(moment, compacted=True, record_failed=moment.record_failed or failed)
                if outcome is not None:
                    self.append(outcome, at=at)
            else:
                for fact in reduction if isinstance(reduction, tuple) else (reduction,):
                    self.append(fact, at=at)
            moment = replace(moment, cutting=True)
        self._end_reducing(budget, has_cut=moment.cutting, at=at)
        return budget

    def _begin_reducing(self, moment: Moment, budget: Budget) -> Moment:
        """Check what no reduction can change, read ahead for the record; return the moment to decide in."""
        if not moment.may_exceed:
            check_irreducible(self.view, budget, self.calibration, self.policy)
        if self.policy.compact and (self.policy.every_turns or self.view.units > budget.act // PREPARED_PART):
            self.ledger_index.prepare_newest(self.log, newest_hidden(self.view))
            self._names_ahead.read_some(self.view)
        refused = self.provider_limits.refusals > 0
        paused = self.compaction_health.is_paused and not moment.agreed
        return replace(moment, paused=paused, refused=refused)

    def _end_reducing(self, budget: Budget, *, has_cut: bool, at: float | None) -> None:
        """Check that the request fits, and record why summaries pause if that was not said yet."""
        if self.policy.refer:
            self.view.line_index.catch_up(is_quiet=not has_cut)
        self._check_size(budget)
        health = self.compaction_health
        if health.is_paused and not health.explained and self.view.units > budget.act:
            note = refill_note(self.view, budget, self.calibration)
            self.append(Noted(text=note, topic=COMPACTION_TOPIC), at=at)
        self._fitted_at = (self.next_seq, budget)

    def reduce_to_fit(
        self,
        moment: Moment,
        *,
        at: float | None = None,
        write: Callable[[Plan], CompactionOutcome | None] | None = None,
        review: Callable[[ProposedCut], Wish] | None = None,
    ) -> Budget:
        """Run `reduction_steps` with summaries by `write`, or else by the ledger from the log in memory, and with a
        `review` of each cut, if there is one."""
        steps = self.reduction_steps(moment, at=at, is_reviewed=review is not None)
        answer: CompactionOutcome | Wish | None = None
        try:
            while True:
                asked = steps.send(answer)
                if isinstance(asked, Plan):
                    answer = (write or self.write_ledger)(asked)
                else:
                    assert review is not None
                    answer = review(asked)
        except StopIteration as done:
            return cast(Budget, done.value)

    def _propose(self, reduction: Decision, budget: Budget, moment: Moment) -> ProposedCut:
        """Return a reduction as a hook sees it."""
        assert reduction is not None
        assert not isinstance(reduction, Reverted)
        tokens = self.calibration.tokens
        return propose(
            self.view,
            reduction,
            moment=moment,
            model=self.model,
            sizes=CutSizes(tokens(self.total_units), self.available_tokens(budget), self.calibration.ratio),
            is_forced=not self._fits(budget),
        )

    def _record_wish(
        self, proposed: ProposedCut, wish: Wish, kept: frozenset[int], *, at: float | None
    ) -> None:
        """Record what a hook asked for. What it asked for before in the same cut, and is hidden all the same, could
        not be kept."""
        if wish.problem:
            text = f"the hook failed, so the cut was made without it: {wish.problem}"
            self.append(Noted(text=text, topic=HOOK_TOPIC), at=at)
            return
        hidden = {seq for event in proposed.events if (seq := parse_handle(event.handle)) is not None}
        lost = hidden & kept & set(wish.keep)
        keep = tuple(seq for seq in wish.keep if seq not in kept or seq in lost)
        refused = NO_ROOM if lost or (wish.veto and proposed.is_forced) else ""
        if not (keep or wish.focus or wish.veto):
            return
        fact = Steered(
            by="hook", keep=keep, focus=wish.focus, veto=wish.veto, refused=refused, reason=proposed.reason
        )
        if not (self.log and self.log[-1].fact == fact):
            self.append(fact, at=at)

    def check_fits(
        self, log: Sequence[Event], facts: Sequence[AnyFact], *, reduces: bool = True
    ) -> list[Event]:
        """Return the reductions with which a request would fit with `facts` after `log`, the whole log. Raises
        `ContextOverflow` if none would; with `reduces=False`, if the request would not fit before any further
        reduction. Changes nothing."""
        first = len(log)
        events = [*log, *(Event(seq, fact) for seq, fact in enumerate(facts, first))]
        try:
            trial = copy(self)._restart(events)
            if reduces:
                trial.reduce_to_fit(Moment(keeps_expansions=True))
            else:
                trial._check_size(trial.budget())
            return trial.log[first + len(facts) :]
        finally:
            self.view.meter.forget_from(first)  # other events will get the seqs of the trial
            self.ledger_index.forget_from(first)

    def _fits(self, budget: Budget) -> bool:
        return self.view.units <= budget.hard and not exceeds_media_limits(self.view, budget)

    def _check_size(self, budget: Budget) -> None:
        """Raise `ContextOverflow` if the request does not fit."""
        if not self._fits(budget):
            raise overflow_error(self.view, budget, self.calibration, self.policy)

    def check_whole_fits(self) -> None:
        """Raise `ContextOverflow` if the request would not fit with nothing reduced."""
        budget = self.budget()
        if self.unreduced_units > budget.hard:
            raise whole_overflow_error(self.unreduced_units, budget, self.calibration)

    def _restart(self, log: list[Event]) -> Self:
        """Replace the log and fold it again; what was learned from the provider stays."""
        self.log = log
        self._effective, self.all_effective = None, False
        self.next_seq = len(log)
        self.view = fold(log, self.view.meter)
        self._anchored = None
        return self

    # ── Summaries ────────────────────────────────────────────────────────────────────────────────────

    def write_ledger(self, plan: Plan, events: Sequence[Event] | None = None) -> CompactionOutcome:
        """Return the summary of a range without a model; `events` are those that count, if not all are in
        memory."""
        effective = self.effective_log if events is None else events
        has_drops = events is not None or self.view.has_drops
        resolved, inside, after = read_range(plan, effective, self.ledger_index, has_drops=has_drops)
        return ledger_summary(
            SummarySource(
                plan=resolved,
                events=inside,
                after=after,
                earlier=summaries_in(self.view, self.log, plan),
                elsewhere=likely_names_outside(self.view, plan, self.ledger_index),
                counter=self.view.meter.counter,
                ratio=self.calibration.ratio,
                index=self.ledger_index,
            )
        )

    def facts_instead(self, unreadable: Unreadable, log: Sequence[Event]) -> list[AnyFact]:
        """Return what to record instead of what the model cannot read. `log` is the whole log."""
        if not unreadable.items and not unreadable.leaves_out_thinking:
            return []
        terms = ladder.summary_terms(self.policy)
        room = min(terms.summary_tokens, int(self.budget().hard * terms.summary_share))
        return RecordWriter(self.view, room, self.calibration.ratio).facts(unreadable, log)

    def plan_summary(self, *, reason: str, focus: str = "") -> Plan | NoPlan:
        """Return the range that a summary would replace now."""
        terms = ladder.summary_terms(self.policy)
        budget, focus = self.budget(), focus or self.compaction_health.focus
        with self.view.holding(ladder.high_steps(self.view, budget, self.policy)):
            return plan_range(self.view, budget, terms, reason=reason, focus=focus)

    def paid_facts(self, first: int) -> list[AnyFact]:
        """Return the facts from `first` up to the last summary that a model was paid for, with its failures. They
        are kept even when the request that they were recorded for is not sent."""
        facts = [event.fact for event in self.events_from(first)]
        while facts and not _is_paid(facts[-1]):
            facts.pop()
        return facts

    def discard_from(self, seq: int) -> None:
        """Discard the reductions from `seq` on, because the request that they were recorded for is not sent.
        Needs the whole log in memory."""
        if self.next_seq > seq:
            del self.log[bisect_left(self.log, seq, key=_seq) :]
            self._effective = None
            self.next_seq = seq
            self.view = fold(self.log, self.view.meter)
            self.view.meter.forget_from(seq)
            self.ledger_index.forget_from(seq)
            self._anchored = None
            self.past_calls = replace(self.past_calls, is_reduced=False)
            if self.prefix_mover is not None and self.prefix_mover.seq >= seq:
                self.prefix_mover = None

    # ── The model's limits ───────────────────────────────────────────────────────────────────────────

    @property
    def max_tokens(self) -> int:
        """Most tokens that the answer to the next request may take.

        At least the reserve, which every request leaves free: a doubt about the size of the request must not
        silence the model."""
        calibration, total, budget = self.calibration, self.total_units, self.budget()
        expected = calibration.tokens(total)
        needed = max(calibration.upper(total), expected + budget.margin)
        kept = min(budget.reserve, self.model.window - expected)
        most = min(self.model.max_output, max(kept, self.model.window - needed))
        return max(1, min(most, self.provider_limits.max_answer or most))

    def available_tokens(self, budget: Budget) -> int:
        """Return the tokens that a request may take."""
        return available_tokens(budget, self.calibration)

    def refusal(self, error: object, *, sent: int) -> Overflowed | ThinkingLeftOut | Unreadable | None:
        """Return what follows from a provider's refusal of a request of `sent` tokens: as too large, because of its
        thinking, or because of encrypted content. None if the error is about something else, or if there is
        nothing to leave out. Raises `ContextOverflow` after `MAX_RESENDS` refusals of the size in a row."""
        problem = refused_thinking(error)
        if problem is not None:
            # Before the first refusal, a proxy may have sent the client's own bytes, with all thinking.
            steps, sent_all = self.view.steps, not self.view.thinking.was_refused
            has_thinking = any(step.has_thinking or (sent_all and step.has_said_thinking) for step in steps)
            return ThinkingLeftOut(problem=problem) if has_thinking else None
        problem = refused_encryption(error)
        if problem is not None:
            return refused_as_unreadable(self.view, model=self.model.name, problem=problem)
        found = recognise_overflow(error)
        if found is None:
            return None
        if self.provider_limits.refusals >= MAX_RESENDS:
            raise overflow_error(
                self.view, self.budget(), self.calibration, self.policy, refusal=found.message
            )
        return refused_request(
            found,
            model=self.model.name,
            sent=sent,
            estimate=self.calibration.tokens(self.total_units),
            media_bytes=sum(part.size for part in self.view.media.values()),
        )

    def switch_model(self, model: Model) -> None:
        """Continue with another model. Needs the whole log in memory."""
        self.model = model
        self._learned = first_calibration(model, self.view.meter.counter)
        self._anchored = None
        for event in self.log:
            self._learned = _calibrate(self._learned, event, window=model.window)
        self._apply_learned_limits()

    def _apply_learned_limits(self) -> None:
        self.model = self.provider_limits.limit_model(self.model)


def _can_be_reviewed(reduction: Decision) -> bool:
    """Return whether a reduction hides anything that was shown: the end of an expansion is no cut, and the notice
    for a late result hides nothing."""
    if reduction is None or isinstance(reduction, Reverted):
        return False
    return not (isinstance(reduction, Dropped) and reduction.reason == "late")


def _calibrate(calibration: Calibration, event: Event, *, window: int) -> Calibration:
    """Return what is known of the provider's counting after one more event. Reports of other models are ignored,
    so the log gives the same calibration whenever it is folded."""
    fact = event.fact
    if isinstance(fact, Reverted):
        return calibration.reverted(fact.target, event.seq)
    shows_again = isinstance(fact, Rewound | Expanded) or (isinstance(fact, Pinned) and fact.whole)
    if shows_again or may_move_prefix(fact):
        return calibration.reduced(event.seq)
    if not isinstance(fact, Used) or silent_overflow_reason(
        prompt=fact.prompt, predicted=fact.predicted, window=window
    ):
        return calibration
    return calibration.observe(
        fact.units,
        fact.prompt,
        model=fact.model,
        until=fact.until,
        unreduced=fact.unreduced,
        predicted=fact.predicted,
        seq=event.seq,
    )


def _anchor_at_view(calibration: Calibration, view: View, *, units: int) -> Calibration:
    """Return the calibration with the anchor at the request of a view, which takes `units` in all."""
    # The span of a summary's seq measures the events around it. A summary is often larger than these, so their
    # error would grow with every further summary: it counts as text that was not measured.
    shown = (
        (NEVER_MEASURED if step.covers else step.utterance.seq, view.units_of(step)) for step in view.steps
    )
    return calibration.anchored(units, shown)


def _is_paid(fact: AnyFact) -> bool:
    """Return whether a fact records what a model was paid for, or the failure of one."""
    if isinstance(fact, CompactionFailed):
        return bool(fact.cause)
    return isinstance(fact, Compacted) and read_metrics(fact).asked > 0
