"""Compaction: what a log with summaries means, which ranges are chosen, and what requests contain afterwards.

What the fold makes of overlapping summaries is compared with a reference that looks at every event separately.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, takewhile
from random import Random
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from foveal import Context, ContextOverflow, NotCompacted
from foveal.core.compaction import Plan, SummaryRequest
from foveal.core.compaction.health import read_metrics
from foveal.core.compaction.plan import (
    MAX_KEPT_OPEN_STEPS,
    MAX_REMAINING_SHARE,
    MIN_RANGE_UNITS,
    NoPlan,
    RangeTerms,
    plan_range,
    resolve_plan,
)
from foveal.core.engine import Engine, resolve_settings
from foveal.core.log import (
    AnyFact,
    Call,
    Compacted,
    CompactionFailed,
    Event,
    ForeignSummary,
    Instructed,
    ModelSaid,
    Noted,
    Pinned,
    Reverted,
    Text,
    Thinking,
    ToolReturned,
    UserSaid,
    raw,
    text_of,
)
from foveal.core.policies import Moment, ladder, policy
from foveal.core.policies.ladder.cut import find_trigger, turns_since_summary
from foveal.core.tokens import MessageTokens
from foveal.core.tokens.counter import counter
from foveal.core.view import advance, effective_events
from foveal.core.view.fold import fold
from foveal.core.view.steps import Step, hidden_ranges
from foveal.core.view.view import View
from foveal.errors import UnknownHandle
from support.effort import examples, some_cases
from support.histories import (
    CHECKS,
    DIALECTS,
    ESTIMATE,
    TOOLS,
    InputMessage,
    Json,
    ScriptedHistory,
    call_message,
    context,
    describe_view,
    encode_and_decode,
    events_of,
    flatten,
    log_of,
    make_script,
    may_move_prefix,
    missing_texts,
    plain_model,
    recount,
    render_log,
    result_message,
    scripted_histories,
    strings,
    user,
    wire_bytes,
    write_script,
)

some = examples(20)
few = examples(10)
SUMMARISING: Final = ("handoff", "sliding-summary", "recent-summary", "confirm", "economy")
presets = st.sampled_from(SUMMARISING)
windows = st.sampled_from((1_500, 3_000, 8_000))
QUIET_KINDS: Final = ("pin", "pin_event", "note", "use", "snapshot", "aside", "open")
"""Kinds of inserted facts that hide no message."""
GOOD: Final = """<summary>
## Goal
Do what was asked.
## Decisions
- none
## State
Half of it is done.
## Next
The other half.
## Dead ends
-
</summary>"""


def write(request: SummaryRequest) -> str:
    """A summariser that returns a valid summary."""
    return GOOD


def numbered(facts: Sequence[AnyFact]) -> list[Event]:
    return [Event(seq, fact) for seq, fact in enumerate(facts)]


def folded(log: Sequence[Event]) -> View:
    return fold(log, MessageTokens(ESTIMATE))


def said(view: View) -> list[str]:
    """Return the texts of the steps in a view."""
    return [text_of(step.utterance.as_shown().content) for step in view.steps]


def kept_seqs(view: View) -> set[int]:
    return {shown.seq for step in view.steps if step.kind != "summary" for shown in step.shown_messages()}


# ── What a log with many summaries means ──────────────────────────────────────────────────────────────


def overlapping(seed: int, messages: int, summaries: int) -> list[Event]:
    """Return a log of messages, some with results, and summaries of random earlier ranges, which may overlap."""
    dice = Random(seed)
    facts: list[AnyFact] = []
    left = [dice.randrange(messages + 1) for _ in range(summaries)]
    before: list[tuple[int, int]] = []
    for number in range(messages + 1):
        for _ in range(left.count(number)):
            if facts:
                facts.append(_random_summary(dice, len(facts), before))
        if dice.random() < 0.5:
            facts.append(UserSaid(content=f"request {number}"))
        else:
            calls = tuple(
                Call(id=f"c{number}.{n}", name="t", arguments="{}") for n in range(dice.randint(0, 2))
            )
            facts.append(ModelSaid(content=(Text(text=f"answer {number}"), *calls)))
            facts += [ToolReturned(call_id=call.id, content=f"result {call.id}") for call in calls]
    return numbered(facts)


def _random_summary(dice: Random, there: int, before: list[tuple[int, int]]) -> Compacted:
    first = dice.randrange(there)
    last = dice.randrange(first, there)
    if before and dice.random() < 0.3:  # the same range again
        first, last = dice.choice(before)
    before.append((first, last))
    keep = tuple(seq for seq in range(first, last + 1) if dice.random() < 0.15)
    return Compacted(first=first, last=last, summary=f"summary at {there}", keep=keep)


logs_with_summaries = st.builds(overlapping, st.integers(0, 2**32), st.integers(1, 12), st.integers(0, 5))


def newest_cover(log: Sequence[Event], seq: int, *, at: int = -1) -> Event | None:
    """The reference: return the newest summary recorded after an event that covers and does not keep it."""
    for event in reversed(log):
        fact = event.fact
        if not isinstance(fact, Compacted) or event.seq <= max(seq, at):
            continue
        if fact.first <= seq <= fact.last and seq not in fact.keep:
            return event
    return None


def shown_by_reference(log: Sequence[Event]) -> tuple[list[int], set[int]]:
    """The reference: return the messages and the summaries that are shown."""
    messages, summaries = [], set()
    for event in log:
        if isinstance(event.fact, UserSaid | ModelSaid) and newest_cover(log, event.seq) is None:
            messages.append(event.seq)
        if isinstance(event.fact, Compacted) and _is_shown(log, event):
            summaries.add(event.seq)
    return messages, summaries


def _is_shown(log: Sequence[Event], event: Event) -> bool:
    """Return whether an event in the range of a summary has no newer cover."""
    assert isinstance(event.fact, Compacted)
    mine = [
        seq
        for seq in range(event.fact.first, event.fact.last + 1)
        if seq not in event.fact.keep and newest_cover(log, seq, at=event.seq) is None
    ]
    messages = [seq for seq in mine if isinstance(log[seq].fact, UserSaid | ModelSaid | Compacted)]
    return bool(messages)


def has_summary_of_nothing(log: Sequence[Event]) -> bool:
    """Return whether the log has a summary that hides no message, so that it replaces nothing shown."""
    for event in log:
        if isinstance(event.fact, Compacted):
            spans = hidden_ranges(event.fact)
            inside = [e for e in log if any(a <= e.seq <= b for a, b in spans)]
            if not any(isinstance(e.fact, UserSaid | ModelSaid) for e in inside):
                return True
    return False


@examples(50)
@given(logs_with_summaries)
def test_the_newest_of_overlapping_summaries_covers_an_event(
    log: list[Event],
) -> None:
    view = folded(log)
    messages, _ = shown_by_reference(log)
    assert [step.seq for step in view.steps if step.kind != "summary"] == messages
    for event in log:
        if isinstance(event.fact, UserSaid | ModelSaid):
            cover, owner = view.cover_of(event.seq), newest_cover(log, event.seq)
            hidden = event.seq not in messages
            assert hidden == (owner is not None)
            if owner is not None:
                assert cover is not None
                assert cover.owner == owner.seq


@examples(50)
@given(logs_with_summaries)
def test_a_summary_is_shown_until_newer_ones_cover_its_whole_range(log: list[Event]) -> None:
    if has_summary_of_nothing(log):
        return
    view = folded(log)
    shown = {step.utterance.seq for step in view.summaries}
    _, wanted = shown_by_reference(log)
    assert wanted <= shown
    for step in view.summaries:
        alone = [seq for low, high in step.covers for seq in range(low, high + 1)]
        assert alone
        assert all(newest_cover(log, seq, at=step.utterance.seq) is None for seq in alone)
    for event in log:
        if isinstance(event.fact, UserSaid | ModelSaid):
            owner = newest_cover(log, event.seq)
            assert owner is None or owner.seq in shown, "what is hidden is covered by a summary that is shown"


@examples(50)
@given(logs_with_summaries, st.randoms(use_true_random=False))
def test_undoing_summaries_in_any_order_equals_the_log_without_them(log: list[Event], dice: Random) -> None:
    summaries = [event.seq for event in log if isinstance(event.fact, Compacted)]
    gone = dice.sample(summaries, dice.randint(0, len(summaries)))
    undone = [*log, *(Event(len(log) + n, Reverted(target=seq)) for n, seq in enumerate(gone))]
    without = [Event(e.seq, Noted(text="")) if e.seq in gone else e for e in log]
    assert describe_view(folded(undone)) == describe_view(folded(without))
    view = folded(log)
    for at in range(len(log), len(undone)):
        view = advance(view, undone[at], undone[: at + 1])
    assert describe_view(view) == describe_view(folded(without))


@examples(35)
@given(logs_with_summaries)
def test_a_view_advanced_through_summaries_equals_a_fold_of_the_log(log: list[Event]) -> None:
    view = View(MessageTokens(ESTIMATE))
    for at, event in enumerate(log):
        view = advance(view, event, log[: at + 1])
        assert view.units == sum(step.count(view.meter) for step in view.steps)
    assert describe_view(view) == describe_view(folded(encode_and_decode(log)))


def test_a_summary_of_the_end_of_another_follows_it() -> None:
    facts: list[AnyFact] = [UserSaid(content=f"m{n}") for n in range(6)]
    older, newer = Compacted(first=0, last=4, summary="older"), Compacted(first=2, last=4, summary="newer")
    assert said(folded(numbered([*facts, older, newer]))) == ["older", "newer", "m5"]


def test_a_summary_without_messages_in_its_range_is_not_shown() -> None:
    log = numbered([Instructed(content="rule"), Pinned(text="no"), Compacted(first=0, last=1, summary="S")])
    assert said(folded(log)) == ["rule", "Pinned rule: no"]
    assert said(folded(numbered([Compacted(first=0, last=0, summary="S")]))) == []


def test_a_summary_recorded_late_leaves_the_events_after_its_range() -> None:
    facts: list[AnyFact] = [UserSaid(content=f"m{n}") for n in range(6)]
    log = numbered([*facts, Compacted(first=1, last=2, summary="S"), UserSaid(content="m7")])
    assert said(folded(log)) == ["m0", "S", "m3", "m4", "m5", "m7"]
    ahead = numbered([*facts[:3], Compacted(first=1, last=99, summary="S"), UserSaid(content="later")])
    assert said(folded(ahead)) == ["m0", "S", "later"]


def test_kept_and_pinned_steps_precede_the_summary_of_their_range() -> None:
    facts: list[AnyFact] = [UserSaid(content=f"m{n}") for n in range(5)]
    made = Compacted(first=0, last=4, summary="S", keep=(1,))
    assert said(folded(numbered([*facts, Pinned(target=2), made]))) == ["m1", "m2", "S"]


def test_undoing_an_unknown_summary_or_one_twice_changes_nothing() -> None:
    facts: list[AnyFact] = [UserSaid(content=f"m{n}") for n in range(4)]
    log = [*facts, Compacted(first=0, last=1, summary="S")]
    once = said(folded(numbered([*log, Reverted(target=4)])))
    assert once == ["m0", "m1", "m2", "m3"]
    assert said(folded(numbered([*log, Reverted(target=4), Reverted(target=4)]))) == once
    assert said(folded(numbered([*log, Reverted(target=99)]))) == ["S", "m2", "m3"]


def test_undoing_an_outer_summary_shows_the_inner_one_again() -> None:
    facts: list[AnyFact] = [UserSaid(content=f"m{n}") for n in range(6)]
    inner, outer = Compacted(first=1, last=2, summary="inner"), Compacted(first=0, last=4, summary="outer")
    log = numbered([*facts, inner, outer])
    assert said(folded(log)) == ["outer", "m5"]
    assert said(folded([*log, Event(8, Reverted(target=7))])) == ["m0", "inner", "m3", "m4", "m5"]
    assert said(folded([*log, Event(8, Reverted(target=6))])) == ["outer", "m5"]


# ── Which range is chosen ─────────────────────────────────────────────────────────────────────────────


def engine_of(
    log: Sequence[Event], window: int = 4_000, preset: Any = "recent-summary", **how: Any
) -> Engine:
    made = resolve_settings(
        plain_model(window), policy=preset, tokenizer=ESTIMATE, reserve=window // 10, **how
    )
    return Engine(made, log=log)


def planned(engine: Engine, reason: str = "tokens") -> Plan:
    made = engine.plan_summary(reason=reason)
    assert isinstance(made, Plan), made
    return made


def stays(made: Plan, seq: int) -> bool:
    return not made.first <= seq <= made.last or seq in made.keep


def turns_of(turns: int, *, steps: int = 1, size: int = 20, start: int = 0) -> list[AnyFact]:
    """Return turns, each a request, calls with their results, and an answer."""
    facts: list[AnyFact] = []
    for turn in range(start, start + turns):
        facts.append(UserSaid(content=f"request {turn}: look at file_{turn}.py"))
        facts += call_loop(steps, size=size, name=f"t{turn}")
        facts.append(ModelSaid(content=f"file_{turn}.py is fine"))
    return facts


def call_loop(
    steps: int, *, size: int = 20, name: str = "c", thinking: tuple[int, ...] = ()
) -> list[AnyFact]:
    """Return a loop of calls; the steps in `thinking` begin with thinking."""
    facts: list[AnyFact] = []
    for step in range(steps):
        call = Call(id=f"{name}.{step}", name="read", arguments=f'{{"path": "src/{name}_{step}.py"}}')
        thought = (Thinking(native=raw({"type": "thinking"}), text="Hm."),) if step in thinking else ()
        facts.append(ModelSaid(content=(*thought, call)))
        body = "\n".join(f"line {n} of src/{name}_{step}.py" for n in range(size))
        facts.append(ToolReturned(call_id=call.id, content=body))
    return facts


TERMS: Final = (
    RangeTerms(rule="test"),
    RangeTerms(rule="test", tail=0.0, keep_task=False, retain_user_share=0.25, retain_user_tokens=20_000),
    RangeTerms(rule="test", keep_messages=10, max_summaries=1),
    RangeTerms(rule="test", tail=0.5, keep_task=False),
)


def thinks(step: Step) -> bool:
    content = step.utterance.fact.content
    return not isinstance(content, str) and any(isinstance(part, Thinking) for part in content)


@examples(50)
@given(
    st.builds(
        log_of,
        st.integers(0, 2**32),
        st.sampled_from(DIALECTS),
        st.integers(1, 5),
        st.integers(0, 6),
        st.sampled_from((QUIET_KINDS, (*QUIET_KINDS[2:], "pin", "compact"))),
    ),
    st.sampled_from(TERMS),
    st.sampled_from(("tokens", "turns", "hand")),
    windows,
)
def test_a_plan_keeps_what_must_stay_and_cuts_only_where_it_is_safe(
    drawn: tuple[Any, list[Event]], terms: RangeTerms, reason: str, window: int
) -> None:
    dialect, log = drawn
    engine = engine_of(log, window)
    budget = engine.budget()
    view = folded(log)
    before, units = list(view.steps), view.units
    made = plan_range(view, budget, terms, reason=reason)
    if isinstance(made, NoPlan):
        assert made.floor <= units
        return
    assert made.first <= made.last < len(log)
    assert list(made.keep) == sorted(set(made.keep))
    assert 0 < made.room <= budget.hard
    assert made.before > MIN_RANGE_UNITS
    fact = Compacted(first=made.first, last=made.last, keep=made.keep, summary="S")
    latest = view.latest_user
    opened = [step.seq for step in reversed(before) if step.has_open_call][:MAX_KEPT_OPEN_STEPS]
    stay = [step.seq for step in before if step.kind in ("instructed", "pinned") or step.is_pinned]
    pairs = {step.seq: [shown.seq for shown in step.shown_messages()] for step in before}

    after = folded([*log, Event(len(log), fact)])
    left = {step.seq: step for step in after.steps if step.kind != "summary"}
    for seq in [*stay, *opened, *([latest.seq] if latest is not None else []), before[-1].seq]:
        if seq == before[-1].seq and (before[-1].kind == "summary" or reason == "turns"):
            continue  # the answer that ends the last turn of the range
        assert seq in left, "what must stay was taken"
    for seq, step in left.items():
        assert [shown.seq for shown in step.shown_messages()] == pairs[seq], "results stay with their calls"
    hidden = [s for s in before if s.kind in ("user", "model") and s.seq not in left]
    gone = {s.utterance.seq for s in view.summaries} | {
        s.utterance.seq for s in before if s.kind == "summary"
    }
    gone -= {step.utterance.seq for step in after.summaries}
    merged = sum(s.count(after.meter) for s in before if s.kind == "summary" and s.utterance.seq in gone)
    assert made.before == sum(step.count(after.meter) for step in hidden) + merged
    summary = next(step for step in after.summaries if step.utterance.seq == len(log))
    assert after.units == units - made.before + after.units_of(summary)
    assert CHECKS[dialect](render_log([*log, Event(len(log), fact)], dialect)) == []
    for at, step in enumerate(before):
        if step.seq in left and step.seq not in made.keep and step.slots and not thinks(step):
            loop = list(takewhile(lambda s: s.kind == "model" and bool(s.slots), reversed(before[:at])))
            if any(map(thinks, loop)):
                assert any(s.seq in left for s in loop if thinks(s)), (
                    "a loop that began with thinking was cut"
                )


def test_a_wider_summary_replaces_one_over_a_pinned_step() -> None:
    facts = turns_of(8)
    old = Compacted(first=0, last=7, summary="old")
    engine = engine_of(
        numbered([*facts, Pinned(target=0), old]), 4_000, policy("recent-summary", max_summaries=1)
    )
    engine.append(engine.write_ledger(planned(engine)))
    assert len(engine.view.summaries) == 1


def test_a_pinned_summary_survives_the_merge_of_the_others() -> None:
    facts = [
        *turns_of(4),
        Compacted(first=4, last=7, summary="keep me"),
        Pinned(target=16),
        *turns_of(8, start=4),
    ]
    engine = engine_of(numbered(facts), 4_000, policy("recent-summary", max_summaries=1))
    engine.append(engine.write_ledger(planned(engine)))
    assert "keep me" in said(engine.view)


def test_a_log_that_is_empty_or_all_tail_is_not_compacted() -> None:
    for facts in ([], [UserSaid(content="hi")], [UserSaid(content="x " * 900)], call_loop(1, size=300)):
        assert isinstance(engine_of(numbered(facts)).plan_summary(reason="hand"), NoPlan)


def test_a_range_smaller_than_a_frame_is_not_worth_a_summary() -> None:
    facts: list[AnyFact] = [
        UserSaid(content="a"),
        ModelSaid(content="b"),
        UserSaid(content="c"),
        ModelSaid(content="d"),
    ]
    refused = engine_of(numbered(facts)).plan_summary(reason="hand")
    assert isinstance(refused, NoPlan)
    assert "worth a summary" in refused.explain(1.0)


def test_a_range_must_be_larger_than_the_last_summary() -> None:
    facts = turns_of(6)
    long = "\n".join(f"point {n} of the record" for n in range(400))
    made = Compacted(first=0, last=5, summary=long, keep=(0,))
    log = numbered([*facts, made, *turns_of(3, start=6)])
    engine = engine_of(log, 20_000)
    view = engine.view
    removable = view.units - view.units_of(view.summaries[0])
    assert removable < view.units_of(view.summaries[0])
    assert isinstance(engine.plan_summary(reason="hand"), NoPlan)
    assert isinstance(
        engine_of(numbered([*facts, *turns_of(3, start=6)]), 20_000).plan_summary(reason="hand"), Plan
    )


def test_a_floor_larger_than_the_room_is_reported_with_its_size() -> None:
    log = numbered([*turns_of(4), UserSaid(content="word " * 5_000), ModelSaid(content="yes")])
    engine = engine_of(log, 4_000)
    refused = engine.plan_summary(reason="hand")
    assert isinstance(refused, NoPlan)
    assert refused.floor > engine.budget().hard
    assert f"{refused.floor:,} tokens" in refused.explain(1.0)
    assert f"{engine.budget().hard:,}" in refused.explain(1.0)
    assert f"{2 * refused.floor:,} tokens" in refused.explain(2.0)


def test_a_single_request_with_a_long_loop_is_compacted_after_the_request() -> None:
    facts = [Instructed(content="rule"), UserSaid(content="the task"), *call_loop(40)]
    engine = engine_of(numbered(facts), 6_000)
    made = planned(engine)
    assert made.first == 2
    assert 1 not in range(made.first, made.last + 1)
    engine.append(engine.write_ledger(made))
    assert said(engine.view)[:2] == ["rule", "the task"]
    assert engine.view.units <= engine.budget().act


def test_a_loop_that_began_with_thinking_is_cut_only_at_thinking() -> None:
    for thinking in ((0,), (0, 25), (0, 38), tuple(range(40))):
        log = numbered([UserSaid(content="the task"), *call_loop(40, thinking=thinking)])
        made = engine_of(log, 6_000).plan_summary(reason="tokens")
        if thinking == (0,):
            assert isinstance(made, NoPlan), "the whole loop needs its first thinking"
            continue
        assert isinstance(made, Plan)
        after = made.last + 1
        fact = log[after].fact
        assert isinstance(fact, ModelSaid)
        assert any(isinstance(part, Thinking) for part in fact.content)


@pytest.mark.parametrize("reason", ["tokens", "hand", "turns"])
def test_a_loop_is_not_cut_between_its_thinking_and_an_open_call(reason: str) -> None:
    """An open call that follows the last removed step is what is left of its loop, so its thinking must stay."""
    facts: list[AnyFact] = [
        UserSaid(content="the task"),
        *call_loop(1, size=60, name="old"),
        ModelSaid(content=(Call(id="waiting", name="run", arguments="{}"),)),
        *call_loop(2, size=150, name="new", thinking=(0,)),
        ModelSaid(content=(Call(id="running", name="run", arguments="{}"),)),
        UserSaid(content="Is it?") if reason == "turns" else ModelSaid(content="It is running."),
    ]
    log = numbered(facts)
    view = folded(log)
    budget = engine_of(log, 1_500).budget()
    made = plan_range(view, budget, RangeTerms(rule="test"), reason=reason)
    assert isinstance(made, Plan)
    old, waiting, thinking = 1, 3, 4
    assert any(map(thinks, (step for step in view.steps if step.seq == thinking)))
    assert not stays(made, old)
    assert stays(made, waiting)
    assert stays(made, thinking)
    assert made.last < thinking


def test_an_open_call_stays_and_gets_its_late_result() -> None:
    calls = tuple(Call(id=f"job{n}", name="run", arguments="{}") for n in range(3))
    facts = [
        UserSaid(content="the task"),
        ModelSaid(content=calls),
        ToolReturned(call_id="job0", content="zero"),
        ToolReturned(call_id="job2", content="two"),
        *turns_of(6),
    ]
    engine = engine_of(numbered(facts), 4_000)
    made = planned(engine)
    assert all(stays(made, seq) for seq in (1, 2, 3))
    engine.append(engine.write_ledger(made))
    engine.append(ToolReturned(call_id="job1", content="one, at last"))
    step = next(step for step in engine.view.steps if step.seq == 1)
    assert [text_of(fact.content) for fact in step.facts()][1:] == ["zero", "one, at last", "two"]
    for dialect in DIALECTS:
        assert CHECKS[dialect](render_log(engine.log, dialect)) == []


def test_an_open_call_at_the_start_keeps_only_itself() -> None:
    opened = ModelSaid(content=(Call(id="job", name="run", arguments="{}"),))
    waiting = planned(engine_of(numbered([UserSaid(content="t"), opened, *turns_of(8)]), 4_000))
    assert stays(waiting, 1)
    assert waiting.last > 12
    resolved = ToolReturned(call_id="job", content="done")
    done = planned(engine_of(numbered([UserSaid(content="t"), opened, resolved, *turns_of(8)]), 4_000))
    assert not stays(done, 1)
    assert not stays(done, 2)
    outside = planned(engine_of(numbered([UserSaid(content="t"), opened, *turns_of(8), resolved]), 4_000))
    assert not stays(outside, 1)


def test_only_the_newest_open_calls_are_kept() -> None:
    opened = [
        ModelSaid(content=(Call(id=f"job{n}", name="run", arguments="{}"),))
        for n in range(MAX_KEPT_OPEN_STEPS + 1)
    ]
    engine = engine_of(numbered([UserSaid(content="t"), *opened, *turns_of(8)]), 4_000)
    made = planned(engine)
    assert [seq for seq in range(1, MAX_KEPT_OPEN_STEPS + 2) if stays(made, seq)] == list(
        range(2, MAX_KEPT_OPEN_STEPS + 2)
    )
    engine.append(engine.write_ledger(made))
    units = engine.view.units
    late = engine.append(ToolReturned(call_id="job0", content="given up"))
    assert engine.view.units == units
    assert engine.view.orphan_results == []
    assert [fact for event in engine.log if event.seq == late.seq for fact in [event.fact]]


def test_calls_with_reused_ids_stay_with_their_own_results() -> None:
    facts: list[AnyFact] = [UserSaid(content="t")]
    for n in range(12):
        facts.append(ModelSaid(content=(Call(id="same", name="read", arguments=f'{{"n": {n}}}'),)))
        facts.append(ToolReturned(call_id="same", content=f"result {n} " * 40))
    engine = engine_of(numbered(facts), 2_000)
    engine.append(engine.write_ledger(planned(engine)))
    for step in engine.view.steps:
        if step.slots:
            assert [shown.seq for shown in step.shown_messages()] == [step.seq, step.seq + 1]


def test_a_tail_larger_than_its_share_is_reduced() -> None:
    small = RangeTerms(rule="test", tail=0.25)
    log = numbered([UserSaid(content="t"), *call_loop(6, size=60)])
    engine = engine_of(log, 3_000)
    made = plan_range(engine.view, engine.budget(), small, reason="tokens")
    assert isinstance(made, Plan)
    assert made.last == len(log) - 3, "all but the newest step"


def test_a_plan_leaves_the_request_well_below_its_trigger() -> None:
    engine = engine_of(numbered([UserSaid(content="t"), *call_loop(40)]), 6_000)
    made = planned(engine)
    assert engine.view.units - made.before + made.room <= engine.budget().act * MAX_REMAINING_SHARE


def test_summaries_are_merged_only_when_there_are_too_many() -> None:
    engine = engine_of([], 4_000, {"preset": "recent-summary", "max_summaries": 3})
    ends: list[tuple[int, int]] = []
    for turn in range(40):
        for fact in turns_of(1, start=turn):
            engine.append(fact)
        count = len(engine.view.summaries)
        engine.reduce_to_fit(Moment())
        newest = [event for event in engine.log if isinstance(event.fact, Compacted)][-1:]
        for event in newest:
            assert isinstance(event.fact, Compacted)
            if (event.fact.first, event.fact.last) not in ends:
                merges = count >= 3
                assert merges == any(event.fact.first <= low for low, _ in ends[-1:])
                ends.append((event.fact.first, event.fact.last))
        assert len(engine.view.summaries) <= 3
    assert len(ends) > 6


def test_the_counts_of_a_plan_come_from_the_log() -> None:
    log = numbered(turns_of(6))
    engine = engine_of(log, 4_000)
    made = resolve_plan(planned(engine), effective_events(log))
    within = [e for e in log if made.first <= e.seq <= made.last]
    inside = [e for e in within if e.seq not in made.keep]
    assert (made.turns, made.events) == (len(events_of(within, UserSaid)), len(inside))


# ── When: tokens, turns, once per trigger ─────────────────────────────────────────────────────────────


def compactions(log: Sequence[Event]) -> list[Event]:
    return events_of(log, Compacted)


def test_a_summary_is_due_one_unit_above_the_threshold() -> None:
    engine = engine_of(numbered(turns_of(3)), 4_000)
    budget, terms = engine.budget(), ladder.summary_terms(engine.policy)
    at = replace(budget, act=engine.view.units)
    assert find_trigger(engine.view, at, terms) == ""
    assert find_trigger(engine.view, replace(at, act=engine.view.units - 1), terms) == "tokens"


def test_the_sixth_request_after_a_summary_triggers_the_next_with_overlap() -> None:
    ctx = context(60_000, "sliding-summary")
    messages: list[Json] = []
    when: list[int] = []
    for turn in range(1, 18):
        messages.append(user(f"request {turn}"))
        before = len(compactions(ctx.log))
        ctx.fit(messages)
        if len(compactions(ctx.log)) > before:
            when.append(turn)
        messages += [
            call_message(f"c{turn}"),
            result_message(f"c{turn}", f"result {turn}: " + "words and words " * 40),
        ]
        ctx.fit(messages)
        assert len(compactions(ctx.log)) - before == (when[-1:] == [turn]), "only a new turn is a trigger"
        messages.append({"role": "assistant", "content": f"answer {turn}"})
    assert when == [6, 11, 16]
    requests = {
        int(text_of(e.fact.content).split()[1]): e.seq for e in ctx.log if isinstance(e.fact, UserSaid)
    }
    first, second, third = (event.fact for event in compactions(ctx.log))
    assert isinstance(first, Compacted)
    assert isinstance(second, Compacted)
    assert isinstance(third, Compacted)
    assert (first.reason, second.reason) == ("turns", "turns")
    assert (first.first, first.last) == (requests[1] + 1, requests[6] - 1)
    assert (second.first, second.last) == (requests[4], requests[11] - 1)
    assert (third.first, third.last) == (requests[9], requests[16] - 1)
    assert [read_metrics(fact).turns for fact in (first, second, third)] == [4, 7, 7]
    view = fold(ctx.log, MessageTokens(ESTIMATE))
    spans = [(step.covers[0][0], step.covers[-1][1]) for step in view.summaries]
    assert spans == [
        (first.first, requests[4] - 1),
        (second.first + 1, requests[9] - 1),
        (third.first + 1, third.last),
    ], "each stands for what the next does not read again, without the requests, which stay"


def test_a_history_that_ends_with_the_fifth_answer_is_summarised_whole() -> None:
    ctx = context(60_000, "sliding-summary")
    messages: list[Json] = []
    for turn in range(1, 6):
        messages += [user(f"request {turn}"), {"role": "assistant", "content": f"answer {turn} " * 60}]
        request = ctx.fit(messages)
        assert len(compactions(ctx.log)) == (turn == 5)
    (made,) = (event.fact for event in compactions(ctx.log))
    assert isinstance(made, Compacted)
    assert (made.reason, made.last) == ("turns", len(messages))
    assert user("request 5") in request
    assert CHECKS["openai_chat"](request) == []


def test_turns_are_counted_from_the_end_of_the_last_summary() -> None:
    facts = turns_of(3)
    assert turns_since_summary(folded(numbered(facts[:1]))) == 0
    assert turns_since_summary(folded(numbered(facts[:-1]))) == 2, "the third turn has no answer yet"
    assert turns_since_summary(folded(numbered(facts))) == 3
    made = Compacted(first=0, last=7, summary="S")
    assert turns_since_summary(folded(numbered([*facts, made]))) == 1
    assert turns_since_summary(folded(numbered([*facts, made, *turns_of(2, start=3)]))) == 3


def test_five_turns_that_are_too_small_wait_for_more() -> None:
    ctx = context(60_000, "sliding-summary")
    messages: list[Json] = []
    for turn in range(1, 9):
        messages += [user(f"{turn}?"), {"role": "assistant", "content": f"{turn}."}]
    ctx.fit(messages)
    assert compactions(ctx.log) == []
    messages += [user("more"), {"role": "assistant", "content": "word " * 300}, user("and now?")]
    ctx.fit(messages)
    assert len(compactions(ctx.log)) == 1


def loop(ctx: Context, story: ScriptedHistory, **beside: Any) -> Iterator[tuple[int, list[Json] | None]]:
    for taken in story.calls:
        try:
            yield taken, ctx.fit(story.messages[:taken], tools=TOOLS[story.dialect], **beside)
        except ContextOverflow:
            yield taken, None


long_stories = scripted_histories(turns=8, steps=6, max_lines=60)


@few
@given(long_stories, presets, windows)
def test_one_trigger_causes_at_most_one_summary(story: ScriptedHistory, preset: str, window: int) -> None:
    ctx = context(window, preset)
    known = 0
    for taken, request in loop(ctx, story):
        new = events_of(ctx.log[known:], Compacted, CompactionFailed)
        assert len([event for event in new if event.fact.reason != "room"]) <= 1  # type: ignore[union-attr]
        known = len(ctx.log)
        if request is not None:
            assert ctx.fit(story.messages[:taken], tools=TOOLS[story.dialect]) == request
            assert len(ctx.log) == known


@pytest.mark.parametrize("preset", ["handoff", "recent-summary"])
def test_a_summary_is_not_followed_by_another_at_the_next_call(preset: str) -> None:
    ctx = context(8_000, preset)
    messages = [user("the task, please")]
    at: list[int] = []
    for n in range(120):
        messages += [
            call_message(f"c{n}"),
            result_message(f"c{n}", "\n".join(f"{n}.{k} of path_{n}/f_{k}.py" for k in range(12))),
        ]
        before = len(compactions(ctx.log))
        ctx.fit(messages)
        at += [n] * (len(compactions(ctx.log)) - before)
    assert len(at) >= 2
    assert all(b - a >= 5 for a, b in pairwise(at))


# ── What requests contain afterwards ──────────────────────────────────────────────────────────────────


@examples(20)
@given(long_stories, presets, windows, st.booleans())
@example(
    story=write_script(make_script(21352, 3, 4, 29), "gemini"), preset="handoff", window=1_500, asking=False
)
def test_requests_after_compactions_are_legal_and_keep_what_must_stay(
    story: ScriptedHistory, preset: str, window: int, asking: bool
) -> None:
    ctx = context(window, preset, summarise=write if asking else None)
    ctx.pin("never delete the archive")
    for taken, request in loop(ctx, story):
        if request is None:
            continue
        report = ctx.report()
        assert CHECKS[story.dialect](request) == []
        assert report.used <= report.limit
        assert recount(request) <= report.used + 16
        assert any("never delete the archive" in word for word in strings(request))
        assert missing_texts(request, story, taken) == []


@few
@given(long_stories, presets, windows)
@example(story=write_script(make_script(9355, 5, 6, 9), "openai_responses"), preset="handoff", window=1_500)
@example(story=write_script(make_script(537425047, 4, 3, 26), "bedrock"), preset="confirm", window=1_500)
def test_the_prefix_moves_only_where_a_reduction_is_recorded(
    story: ScriptedHistory, preset: str, window: int
) -> None:
    ctx = context(window, preset, summarise=write)
    before: tuple[int, list[Json], int] | None = None
    for taken, request in loop(ctx, story):
        if request is None:
            before = None
            continue
        if before is not None:
            late = any(before[0] <= at < taken for at in story.late)
            if not late and not may_move_prefix(ctx.log[before[2] :]):
                old = flatten(before[1])
                assert flatten(request)[: len(old)] == old
        before = (taken, request, len(ctx.log))


@few
@given(long_stories, presets, windows, st.booleans())
def test_a_reloaded_log_renders_the_same_bytes_after_compactions(
    story: ScriptedHistory, preset: str, window: int, asking: bool
) -> None:
    ctx = context(window, preset, summarise=write if asking else None)
    for _, request in loop(ctx, story):
        if request is not None:
            again = encode_and_decode(ctx.log)
            assert wire_bytes(render_log(again, story.dialect)) == wire_bytes(request)


@few
@given(long_stories, presets, windows)
def test_the_original_of_every_summarised_event_is_available(
    story: ScriptedHistory, preset: str, window: int
) -> None:
    ctx = context(window, preset)
    for _ in loop(ctx, story):
        pass
    said_there = [beat.text for beat in story.script if isinstance(beat, InputMessage)]
    kept = [
        text_of(event.fact.content)
        for event in ctx.log
        if isinstance(event.fact, UserSaid) or (isinstance(event.fact, Instructed) and not event.fact.aside)
    ]
    assert kept == said_there
    for line in ctx.report().events:
        if line.level == "summarised":
            standing = [*compactions(ctx.log), *events_of(ctx.log, ForeignSummary)]
            assert line.by in [event.handle for event in standing]
            assert ctx.original(line.handle) is not None


def grown(ctx: Context, turns: int, *, start: int = 0, messages: list[Json] | None = None) -> list[Json]:
    """Return a conversation of so many turns, fitted after each step."""
    messages = [] if messages is None else messages
    for turn in range(start, start + turns):
        messages.append(user(f"request {turn}: look at file_{turn}.py"))
        ctx.fit(messages)
        body = "\n".join(f"line {n} of file_{turn}.py" for n in range(30))
        messages += [call_message(f"c{turn}"), result_message(f"c{turn}", body)]
        ctx.fit(messages)
        messages.append({"role": "assistant", "content": f"file_{turn}.py is fine"})
    return messages


def test_long_requests_are_clipped_to_20_000_tokens_together_and_none_is_left_out() -> None:
    ctx = context(128_000, "handoff")
    messages: list[Json] = [{"role": "system", "content": "rule"}]
    for n in range(40):
        messages += [
            user(f"request {n} " + "about this and that " * 500),
            {"role": "assistant", "content": "ok"},
        ]
    messages.append(user("the latest"))
    request = ctx.fit(messages)
    texts = [message["content"] for message in request]
    assert texts[0] == "rule"
    assert texts[-1] == "the latest"
    retained = [message for message in request[1:-1] if message["role"] == "user"]
    assert 12_000 < recount(retained) <= 20_000
    assert [message["content"].split()[1] for message in retained] == [str(n) for n in range(40)]


def test_requests_beyond_their_share_are_named_and_the_first_and_the_newest_stay() -> None:
    ctx = context(16_000, "handoff")
    messages: list[Json] = []
    for n in range(60):
        messages += [
            user(f"request {n} " + "about this and that " * 30),
            {"role": "assistant", "content": f"answer {n} " + "of some length " * 60},
        ]
    messages.append(user("the latest"))
    request = ctx.fit(messages)
    texts = [message["content"] for message in request]
    summary = next(text for text in texts if text.startswith("[foveal: record"))
    said = {e.handle: text_of(e.fact.content) for e in ctx.log if isinstance(e.fact, UserSaid)}
    shown = [name for name, text in said.items() if text in texts]
    assert len(shown) < len(said)
    assert shown[0] == next(iter(said))
    assert shown[1:] == list(said)[-len(shown) + 1 :]
    assert all(name in summary for name in said if name not in shown)


def test_in_a_small_window_retained_requests_take_at_most_a_quarter() -> None:
    ctx = context(8_000, "handoff")
    messages: list[Json] = []
    for n in range(60):
        messages += [
            user(f"request {n} " + "about this and that " * 20),
            {"role": "assistant", "content": "ok"},
        ]
        ctx.fit(messages)
    assert compactions(ctx.log)
    report = ctx.report()
    assert report.used <= report.limit


def test_recent_summary_keeps_the_last_ten_messages_verbatim() -> None:
    ctx = context(8_000, "recent-summary")
    messages: list[Json] = [user("the task")]
    while not compactions(ctx.log):
        n = len(messages)
        messages += [call_message(f"c{n}"), result_message(f"c{n}", f"result {n} " * 60)]
        request = ctx.fit(messages)
    assert request[-10:] == messages[-10:]


@pytest.mark.long
def test_at_most_max_summaries_are_shown_side_by_side() -> None:
    for most in some_cases((1, 2, 3), every=2):
        ctx = context(6_000, {"preset": "recent-summary", "max_summaries": most}, summarise=write)
        messages: list[Json] = []
        counts = set()
        for turn in range(50):
            messages = grown(ctx, 1, start=turn, messages=messages)
            counts.add(len(fold(ctx.log, MessageTokens(ESTIMATE)).summaries))
        assert max(counts) == most
        assert ctx.report().used <= ctx.report().limit


def test_a_merged_summary_reuses_chunks_and_never_reads_summaries() -> None:
    seen: list[str] = []

    def writer(request: SummaryRequest) -> str:
        if request.form == "cold":  # the shared form says that a summary above is kept elsewhere
            seen.append("\n".join(strings(request.messages)))
        asked.append(request.form)
        return GOOD.replace("Half of it", f"Round {'and again ' * len(asked)}of it")

    asked: list[str] = []
    ctx = context(6_000, {"preset": "recent-summary", "max_summaries": 2}, summarise=writer)
    messages: list[Json] = []
    for turn in range(60):
        messages = grown(ctx, 1, start=turn, messages=messages)
    made = [event.fact for event in compactions(ctx.log)]
    merges = [f for n, f in enumerate(made) if isinstance(f, Compacted) and len(f.chunks) > 1 and n > 1]
    assert merges
    assert seen
    chunks = [chunk for fact in made if isinstance(fact, Compacted) for chunk in fact.chunks]
    for fact in merges:
        assert isinstance(fact, Compacted)
        assert set(fact.chunks[:2]) <= set(chunks[: chunks.index(fact.chunks[-1])])
    for words in seen:
        assert "[foveal: record of" not in words, "a summary was read into the next one"
        assert "[foveal: end of the record" not in words


def test_a_summary_is_requested_after_the_cached_part_of_the_last_request() -> None:
    """In a small window the whole request and a summary do not fit together; and what is new was never sent, so
    it is not cached. The request for the summary ends with the range that the summary replaces."""
    asked: list[tuple[SummaryRequest, list[Json]]] = []
    sent: list[Json] = []

    def writer(request: SummaryRequest) -> str:
        asked.append((request, sent))
        return GOOD

    ctx = Context("gpt-4.1", window=24_000, reserve=4_000, policy="economy", summarise=writer)
    messages: list[Json] = [{"role": "system", "content": "Be brief. " * 3_000}, user("Find the parts.")]
    for step in range(20):
        body = "\n".join(f"line {n} of part {step}" for n in range(40 + step % 7 * 60))
        messages += [call_message(f"c{step}"), result_message(f"c{step}", body)]
        sent = ctx.fit(messages)
    assert len(asked) >= 3
    assert {request.form for request, _ in asked} == {"shared"}
    for request, before in asked:
        assert request.messages[:-1] == before[: len(request.messages) - 1]
        assert len(request.messages) - 1 <= len(before)


def test_a_request_for_a_summary_leaves_a_tenth_free_until_usage_was_reported() -> None:
    """A provider may count a tenth more than Foveal, and nothing has told it yet."""
    asked: list[SummaryRequest] = []

    def writer(request: SummaryRequest) -> str:
        asked.append(request)
        return GOOD

    window = 12_000
    ctx = Context("gpt-4.1", window=window, reserve=1_000, policy="economy", summarise=writer)
    messages: list[Json] = [user("Find the parts.")]
    for step in range(30):
        body = "\n".join(f"line {n} of part {step}" for n in range(40 + step % 7 * 40))
        messages += [call_message(f"c{step}"), result_message(f"c{step}", body)]
        ctx.fit(messages)
    assert len(asked) > 3
    count = counter("auto", model="gpt-4.1").count
    for request in asked:
        taken = sum(count(text) for text in strings(request.messages)) + request.max_tokens
        assert taken <= window * 0.9


def test_kept_messages_keep_their_other_fields() -> None:
    ctx = context(4_000, "recent-summary")
    first = {"role": "user", "name": "zoë", "content": [{"type": "text", "text": "the task"}]}
    messages: list[Json] = [first]
    messages = grown(ctx, 12, messages=messages)
    latest = {"role": "user", "name": "zoë", "content": "and now?"}
    request = ctx.fit([*messages, latest])
    assert compactions(ctx.log)
    assert first in request
    assert request[-1] == latest


def test_the_report_lists_the_summaries_in_view_with_their_metrics() -> None:
    ctx = context(6_000, "recent-summary", summarise=write)
    grown(ctx, 20)
    report = ctx.report()
    made = {event.handle: event.fact for event in compactions(ctx.log)}
    assert report.summaries
    for summary in report.summaries:
        fact = made[summary.handle]
        assert isinstance(fact, Compacted)
        assert summary.measures == read_metrics(fact)
        assert (summary.by, summary.reason) == (fact.by, "tokens")
        assert 0 < summary.measures.after < summary.measures.before
        assert summary.measures.turns > 0
        assert summary.measures.events > 0
        assert summary.measures.asked == 1
        assert summary.handle in str(report)


# ── Undo, rewind, expand ──────────────────────────────────────────────────────────────────────────────


def test_undoing_a_summary_after_later_turns_shows_the_originals() -> None:
    ctx = context(60_000, "recent-summary")
    messages = grown(ctx, 6)
    whole = ctx.fit(messages)
    made = ctx.compact()
    assert "[foveal: record of" in str(ctx.fit(messages))
    messages = grown(ctx, 1, start=6, messages=messages)
    assert ctx.undo(made) == made
    request = ctx.fit(messages)
    assert request == messages
    assert request[: len(whole)] == whole


def test_two_summaries_are_undone_in_either_order() -> None:
    for order in ((0, 1), (1, 0)):
        ctx = context(60_000, "recent-summary")
        messages = grown(ctx, 6)
        made = [ctx.compact()]
        messages = grown(ctx, 6, start=6, messages=messages)
        made.append(ctx.compact())
        assert ctx.fit(messages) != messages
        for which in order:
            ctx.undo(made[which])
        assert ctx.fit(messages) == messages


def test_an_expanded_range_is_shown_until_the_next_user_message() -> None:
    ctx = context(20_000, "recent-summary")
    messages = grown(ctx, 8)
    made = ctx.compact()
    before = ctx.fit(messages)
    assert before != messages
    ctx.expand(made)
    shown = ctx.fit(messages)
    assert [message for message in shown if "[foveal: record" not in str(message)] == messages
    assert wire_bytes(render_log(encode_and_decode(ctx.log), "openai_chat")) == wire_bytes(shown)
    messages += [call_message("more"), result_message("more", "still the same turn")]
    assert ctx.fit(messages)[: len(shown)] == shown
    messages.append(user("and now?"))
    after = ctx.fit(messages)
    assert after[: len(before)] == before
    assert wire_bytes(render_log(encode_and_decode(ctx.log), "openai_chat")) == wire_bytes(after)


def test_one_event_of_a_summary_is_expanded_with_its_whole_step() -> None:
    ctx = context(20_000, "recent-summary")
    messages = grown(ctx, 8)
    ctx.compact()
    result = next(e for e in ctx.log if isinstance(e.fact, ToolReturned) and e.fact.call_id == "c2")
    ctx.expand(result.handle)
    request = ctx.fit(messages)
    assert [m for m in request if m.get("tool_call_id") == "c2"] == [
        m for m in messages if m.get("tool_call_id") == "c2"
    ]
    assert not any(m.get("tool_call_id") == "c1" for m in request)
    assert CHECKS["openai_chat"](request) == []


def test_a_refused_expansion_records_nothing() -> None:
    ctx = context(4_000, "recent-summary")
    messages = grown(ctx, 40)
    request = ctx.fit(messages)
    before = ctx.log
    merged = max(compactions(ctx.log), key=lambda e: e.fact.last - e.fact.first)  # type: ignore[union-attr]
    with pytest.raises(UnknownHandle, match="nothing to expand"):
        ctx.expand(ctx.log[0].handle)
    with pytest.raises(UnknownHandle, match="no event has the handle"):
        ctx.expand("e99999")
    with pytest.raises(ContextOverflow, match="cannot be shown whole"):
        ctx.expand(merged.handle)
    assert ctx.log == before
    assert ctx.fit(messages) == request


def test_a_compaction_leaves_an_expanded_range_shown() -> None:
    ctx = context(20_000, "recent-summary")
    messages = grown(ctx, 8)
    first = ctx.compact()
    messages = grown(ctx, 8, start=8, messages=messages)
    ctx.expand(first)
    second = ctx.compact()
    request = ctx.fit(messages)
    assert wire_bytes(render_log(encode_and_decode(ctx.log), "openai_chat")) == wire_bytes(request)
    assert messages[2] in request, "the expanded range is still shown"
    messages.append(user("and now?"))
    request = ctx.fit(messages)
    shown = {step.utterance.seq for step in fold(ctx.log, MessageTokens(ESTIMATE)).summaries}
    assert {f"e{seq}" for seq in shown} == {first, second}
    assert messages[2] not in request
    assert CHECKS["openai_chat"](request) == []


@pytest.mark.filterwarnings("ignore::foveal.errors.HistoryDiverged")
def test_a_rewind_past_a_compaction_shows_the_originals() -> None:
    ctx = context(60_000, "recent-summary")
    messages = grown(ctx, 6)
    ctx.compact()
    ctx.fit(messages)
    edited = [*messages[:8], user("something else instead")]
    assert ctx.fit(edited) == edited


def test_rewound_messages_never_enter_a_summary() -> None:
    seen: list[str] = []

    def writer(request: SummaryRequest) -> str:
        seen.append(str(request.messages))
        return GOOD

    for summarise in (None, writer):
        ctx = context(60_000, "recent-summary", summarise=summarise)
        messages = grown(ctx, 3)
        ctx.fit(
            [*messages, user("my password is hunter2"), {"role": "assistant", "content": "I see hunter2"}]
        )
        messages = grown(ctx, 6, start=3, messages=messages)
        ctx.compact()
        assert "hunter2" not in str(ctx.fit(messages))
    assert seen
    assert "hunter2" not in "".join(seen)


@pytest.mark.filterwarnings("ignore::foveal.errors.HistoryDiverged")
def test_a_summary_of_edited_messages_is_not_shown() -> None:
    ctx = context(6_000, "recent-summary")
    messages = grown(ctx, 16)
    messages.append(user("the colour shall be mauve_17"))
    messages = grown(ctx, 16, start=16, messages=messages)
    place = next(n for n, m in enumerate(messages) if "mauve_17" in str(m))
    said_so = next(e for e in ctx.log if isinstance(e.fact, UserSaid) and "mauve_17" in str(e.fact.content))
    assert ctx.why(said_so.handle).level == "full"
    assert "mauve_17" in str(ctx.fit(messages))
    request = ctx.fit([*messages[:place], user("the colour shall be teal_18")])
    assert "mauve_17" not in str(request)
    assert "teal_18" in str(request)
    assert "file_30.py" not in str(request), "and nothing that came after it"


@few
@given(long_stories, presets, windows, st.integers(0, 2**16))
def test_undoing_summaries_of_a_conversation_equals_the_log_without_them(
    story: ScriptedHistory, preset: str, window: int, seed: int
) -> None:
    ctx = context(window, preset)
    for _ in loop(ctx, story):
        pass
    made = compactions(ctx.log)
    dice = Random(seed)
    gone = dice.sample(made, dice.randint(0, len(made)))
    log = list(ctx.log)
    undone = [*log, *(Event(len(log) + n, Reverted(target=e.seq)) for n, e in enumerate(gone))]
    without = [Event(e.seq, Noted(text="")) if e in gone else e for e in log]
    assert describe_view(folded(undone)) == describe_view(folded(without))
    assert CHECKS[story.dialect](render_log(undone, story.dialect)) == []


# ── Manual compaction ─────────────────────────────────────────────────────────────────────────────────


def test_a_manual_compaction_works_below_every_threshold_and_policy() -> None:
    for preset in (*SUMMARISING, "recent", "rolling", {"preset": "handoff", "mode": "off"}):
        ctx = context(100_000, preset)
        messages = grown(ctx, 5)
        made = ctx.compact()
        fact = ctx.log[int(made[1:])].fact
        assert isinstance(fact, Compacted)
        assert fact.reason == "hand"
        assert recount(ctx.fit(messages)) < recount(messages)


def test_a_manual_compaction_of_nothing_fails_and_records_nothing() -> None:
    ctx = context(8_000, "handoff")
    for messages in ([], [user("hi")]):
        ctx.fit(messages)
        log = ctx.log
        with pytest.raises(NotCompacted, match="nothing was summarised"):
            ctx.compact()
        assert ctx.log == log


def test_a_manual_compaction_with_too_large_a_floor_reports_it() -> None:
    ctx = context(4_000, "recent-summary")
    messages = grown(ctx, 3)
    with pytest.raises(ContextOverflow):
        ctx.fit([*messages, user("word " * 5_000)])
    with pytest.raises(NotCompacted, match="what must stay takes") as problem:
        ctx.compact()
    assert problem.value.floor > 4_000


def test_when_the_newest_answer_is_what_must_stay_the_advice_says_so() -> None:
    ctx = context(4_000, "recent-summary")
    ctx.append(user("tell me all"), {"role": "assistant", "content": "word " * 5_000})
    with pytest.raises(NotCompacted, match=r"newest message alone takes [\d,]+ and can be summarised once"):
        ctx.compact()


def test_a_second_manual_compaction_has_nothing_left() -> None:
    ctx = context(100_000, "handoff")
    grown(ctx, 5)
    ctx.compact()
    with pytest.raises(NotCompacted):
        ctx.compact()


def test_the_focus_reaches_the_model_once_outside_the_transcript() -> None:
    seen: list[SummaryRequest] = []

    def writer(request: SummaryRequest) -> str:
        seen.append(request)
        return GOOD

    ctx = context(100_000, "handoff", summarise=writer)
    grown(ctx, 5)
    ctx.compact("the port number 8731")
    assert (
        sum(text.count("the port number 8731") for request in seen for text in strings(request.messages)) == 1
    )


# ── Useless summarisers ───────────────────────────────────────────────────────────────────────────────


def inflated(request: SummaryRequest) -> str:
    return GOOD.replace("Half of it", "words and words " * 20_000)


def broken(request: SummaryRequest) -> str:
    raise ConnectionError("connection refused")


USELESS: Final[dict[str, Any]] = {
    "nothing": lambda request: "",
    "blanks": lambda request: "  \n\t ",
    "garbage": lambda request: "\x00\ufffd{]}<<" * 50,
    "only thoughts": lambda request: "<think>hm</think>",
    "cut off": lambda request: GOOD.removesuffix("</summary>"),
    "an inflated one": inflated,
    "no rules": lambda request: GOOD,
    "headings only": lambda request: (
        "<summary>\n## Goal\n## Decisions\n## State\n## Next\n## Dead ends\n</summary>"
    ),
    "lies": lambda request: GOOD.replace("Half of it", "All of lib/invented_module.py"),
    "an error": broken,
    "a number": lambda request: 17,
    "None": lambda request: None,
}


FAILURES: Final = (
    'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\nValueError: E_BROKEN_7731',
    "error: E_BROKEN_7731 cannot link libmirror",
)


def with_open_error(seed: int) -> tuple[list[Json], list[int]]:
    """Return a conversation in which one command failed and was not run again."""
    dice = Random(seed)
    messages: list[Json] = [{"role": "system", "content": "You are careful."}]
    calls: list[int] = []
    turns = dice.randint(6, 14)
    failing = dice.randrange(turns)
    for turn in range(turns):
        messages.append(user(f"request {turn}: mind rule_{turn}"))
        for step in range(dice.randint(1, 4)):
            calls.append(len(messages))
            name = f"c{turn}.{step}"
            messages.append(call_message(name, command=f"cat src/part_{turn}_{step}.py"))
            lines = (f"{n}: part_{turn}_{step} line" for n in range(dice.randint(1, 40)))
            messages.append(result_message(name, "\n".join(lines)))
        if turn == failing:
            calls.append(len(messages))
            messages.append(call_message("bad", command="make release"))
            text = "building…\n" * dice.randint(0, 20)
            messages.append(result_message("bad", text + dice.choice(FAILURES)))
        if dice.random() < 0.8:
            calls.append(len(messages))
            messages.append({"role": "assistant", "content": f"turn {turn} is done"})
    messages.append(user("and what is left to do?"))
    calls.append(len(messages))
    return messages, calls


@examples(15)
@given(
    st.integers(0, 2**32),
    st.sampled_from(sorted(USELESS)),
    st.sampled_from(("handoff", "sliding-summary", "recent-summary", "economy")),
    st.sampled_from((3_000, 4_000, 6_000)),
)
def test_with_a_useless_summariser_rules_the_latest_request_and_open_errors_are_in_the_next_request(
    seed: int, useless: str, preset: str, window: int
) -> None:
    messages, calls = with_open_error(seed)
    ctx = context(window, preset, summarise=USELESS[useless])
    ctx.pin("never delete the archive")
    for taken in calls:
        words = "\n".join(strings(ctx.fit(messages[:taken])))
        assert "You are careful." in words
        assert "never delete the archive" in words
        latest = next(m["content"] for m in reversed(messages[:taken]) if m["role"] == "user")
        assert latest in words
        if any("E_BROKEN_7731" in str(m) for m in messages[:taken]):
            telling = "make release" if preset == "economy" else "E_BROKEN_7731"
            assert telling in words
        assert "lib/invented_module.py" not in words


def test_an_error_that_ends_with_an_exit_code_is_quoted_with_its_message() -> None:
    ctx = context(20_000, "handoff")
    messages = [user("make a release"), call_message("bad", command="make release")]
    messages.append(result_message("bad", "building…\nE_BROKEN_7731: cannot link libmirror\nexit code: 2"))
    messages = grown(ctx, 6, messages=messages)
    ctx.compact()
    assert "  | E_BROKEN_7731: cannot link libmirror" in "\n".join(strings(ctx.fit(messages)))


@pytest.mark.parametrize("useless", sorted(USELESS))
def test_every_reply_of_a_summariser_leads_to_a_smaller_outcome(useless: str) -> None:
    ctx = context(20_000, "recent-summary", summarise=USELESS[useless])
    messages = grown(ctx, 8)
    before = recount(ctx.fit(messages))
    name = ctx.compact()
    made = ctx.log[int(name[1:])].fact
    assert isinstance(made, Compacted)
    assert made.by == "ledger" or useless in ("no rules", "lies", "headings only")
    assert read_metrics(made).asked >= 1
    assert recount(ctx.fit(messages)) < before


def test_a_draft_of_headings_alone_is_rejected() -> None:
    ctx = context(20_000, "recent-summary", summarise=USELESS["headings only"])
    grown(ctx, 8)
    name = ctx.compact()
    made = ctx.log[int(name[1:])].fact
    assert isinstance(made, Compacted)
    assert made.by == "ledger"
