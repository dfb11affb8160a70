"""Laws of a cut of `economy`, over generated conversations in small windows.

1. A cut that is undone leaves no trace in the view.
2. A view that is restored from a checkpoint equals the folded one: with masks, replaced records and undone cuts.
3. Whatever is not shown whole can be read by its handle, and `why` names an event that hid it.
4. What stays is legal: every call has its result.
5. The words about a cut count what it changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveal import Context, ContextOverflow
from foveal.core.compaction.health import CutCounts
from foveal.core.compaction.plan import plan_forced
from foveal.core.log import (
    AnyFact,
    Call,
    Clipped,
    Compacted,
    Dropped,
    Event,
    ForeignSummary,
    Mask,
    Masked,
    ModelSaid,
    Reverted,
    ToolReturned,
    UserSaid,
)
from foveal.core.log.ranges import is_within
from foveal.core.policies.ladder.cut import summary_terms
from foveal.core.tokens import MessageTokens
from foveal.core.view.checkpoint import ViewCheckpoint, needed_seqs, restore_view, take_checkpoint
from foveal.core.view.fold import effective_events, fold
from foveal.core.view.steps import hidden_ranges
from foveal.core.view.view import View
from foveal.core.wire.event_text import readable_text
from support.effort import examples
from support.histories import (
    CHECKS,
    DIALECTS,
    ESTIMATE,
    TOOLS,
    Json,
    ModelMessage,
    Script,
    ScriptedHistory,
    ToolResult,
    context,
    describe_view,
    long_text,
    make_script,
    render_log,
    steer_some,
    supersede_some,
    user,
    wire_bytes,
    write_script,
)

POLICIES: Final[tuple[Any, ...]] = (
    "economy",
    {"preset": "economy", "keep_last": 1, "target": 0.3, "early_tokens": 400},
)
WINDOWS: Final = (1_500, 3_000, 8_000)
few = examples(60, share=0.1)


def long_loop(seed: int, turns: int, steps: int) -> Script:
    """Return a conversation with long results, arguments and answers: work for every rung of a cut."""
    rng = Random(seed)
    script: Script = []
    for message in make_script(seed, turns, steps, 40):
        if isinstance(message, ModelMessage) and rng.random() < 0.3:
            message = message._replace(text=long_text(rng, 40))
        elif isinstance(message, ToolResult) and rng.random() < 0.5:
            message = message._replace(text=f"result {len(script)}\n{long_text(rng, 40)}")
        script.append(message)
    return script


stories = st.builds(
    write_script,
    st.builds(long_loop, st.integers(0, 2**32), st.integers(1, 5), st.integers(3, 12)),
    st.sampled_from(DIALECTS),
)
policies, windows = st.sampled_from(POLICIES), st.sampled_from(WINDOWS)


def requests(ctx: Context, story: ScriptedHistory) -> Iterator[int]:
    """Run a conversation in which some messages are superseded or get a priority, and yield after each request how
    many events there were before it."""
    for taken in story.calls:
        supersede_some(ctx)
        steer_some(ctx)
        seen = len(ctx.log)
        try:
            ctx.fit(story.messages[:taken], tools=TOOLS[story.dialect])
        except ContextOverflow:
            continue
        yield seen


def new_cuts(ctx: Context, seen: int) -> list[Event]:
    """Return the cuts since there were `seen` events."""
    return [event for event in ctx.log[seen:] if isinstance(event.fact, Compacted) and event.fact.masks]


def folded(log: Any) -> View:
    return fold(list(log), MessageTokens(ESTIMATE))


# ── 1. Undo ──────────────────────────────────────────────────────────────────────────────────────────────


@few
@given(stories, policies, windows)
def test_the_view_after_a_cut_is_undone_is_the_view_before_it(
    story: ScriptedHistory, policy: Any, window: int
) -> None:
    ctx = context(window, policy)
    for seen in requests(ctx, story):
        for cut in new_cuts(ctx, seen):
            before, with_cut = ctx.log[: cut.seq], ctx.log[: cut.seq + 1]
            undone = [*with_cut, Event(len(with_cut), Reverted(target=cut.seq))]
            assert describe_view(folded(undone)) == describe_view(folded(before))
            rendered = (wire_bytes(render_log(log, story.dialect)) for log in (undone, before))
            assert len(set(rendered)) == 1


# ── 2. Checkpoints ───────────────────────────────────────────────────────────────────────────────────────


def assert_restores(log: list[Event]) -> None:
    view = folded(log)
    state = msgspec.json.decode(msgspec.json.encode(take_checkpoint(view)), type=ViewCheckpoint)
    needed = needed_seqs(view)
    events = [event for event in effective_events(log) if event.seq in needed]
    restored = restore_view(events, state, MessageTokens(ESTIMATE))
    shown, again = ([(s.seq, s.kind, s.covers, list(s.facts())) for s in v.steps] for v in (view, restored))
    assert again == shown
    assert (restored.units, list(restored.unmasked_results)) == (view.units, list(view.unmasked_results))
    assert list(restored.media) == list(view.media)
    assert (restored.superseded, restored.superseded_since) == (view.superseded, view.superseded_since)


@few
@given(stories, policies, windows, st.randoms(use_true_random=False))
def test_a_restored_checkpoint_equals_the_fold(
    story: ScriptedHistory, policy: Any, window: int, rng: Random
) -> None:
    ctx = context(window, policy)
    for seen in requests(ctx, story):
        if not new_cuts(ctx, seen):
            continue
        log = list(ctx.log)
        assert_restores(log)
        undone = rng.choice([event for event in log if isinstance(event.fact, Compacted)])
        assert_restores([*log, Event(len(log), Reverted(target=undone.seq))])


# ── 3. Accounted for ─────────────────────────────────────────────────────────────────────────────────────


def hides(reduction: Event, seq: int) -> bool:
    """Return whether a reduction changes or hides an event."""
    match reduction.fact:
        case Clipped(target=target):
            return target == seq
        case Masked(masks=masks):
            return any(mask.target == seq for mask in masks)
        case Compacted(masks=masks) as fact:
            return any(mask.target == seq for mask in masks) or is_within(seq, hidden_ranges(fact))
        case Dropped() as fact:
            return is_within(seq, hidden_ranges(fact))
        case ForeignSummary():
            return seq < reduction.seq
        case _:
            return False


@few
@given(stories, policies, windows)
def test_what_is_not_shown_whole_is_reachable_and_says_what_hid_it(
    story: ScriptedHistory, policy: Any, window: int
) -> None:
    ctx = context(window, policy)
    if not sum(len(new_cuts(ctx, seen)) for seen in requests(ctx, story)):
        return
    view = folded(ctx.log)
    statuses = {status.handle: status for status in ctx.report().events}
    for event in effective_events(ctx.log):
        fact = event.fact
        status = statuses[event.handle]
        if not isinstance(fact, UserSaid | ModelSaid | ToolReturned) or status.level in ("full", "-"):
            continue
        assert ctx.why(event.handle) == status
        if event.seq in view.orphan_results or status.rule == "its call is not shown":
            continue
        by = ctx.log[int(status.by[1:])]
        assert hides(by, event.seq), (status, by.handle)
        found = view.find(event.seq)
        is_passed = found is not None and found[0].kind == "passed"
        is_masked = found is not None and found[1].level == "masked" and not is_passed
        assert (status.level == "masked") == is_masked
        if text := readable_text(fact).strip():
            answer = ctx.recall("recall_read", {"handle": event.handle})
            assert text.split("\n")[0].strip()[:20].strip() in answer or "\x1b" in text or "\u202e" in text


# ── 4. Legal ─────────────────────────────────────────────────────────────────────────────────────────────


@few
@given(stories, policies, windows)
def test_what_a_cut_leaves_is_legal_in_every_dialect(
    story: ScriptedHistory, policy: Any, window: int
) -> None:
    ctx = context(window, policy)
    for seen in requests(ctx, story):
        if new_cuts(ctx, seen):
            for dialect in DIALECTS:
                assert CHECKS[dialect](render_log(ctx.log, dialect)) == []


# ── 5. Words ─────────────────────────────────────────────────────────────────────────────────────────────


@few
@given(stories, policies, windows)
def test_the_counts_of_a_cut_are_what_it_changed(story: ScriptedHistory, policy: Any, window: int) -> None:
    ctx = context(window, policy)
    for seen in requests(ctx, story):
        for cut in new_cuts(ctx, seen):
            assert isinstance(cut.fact, Compacted)
            changed = [
                shown
                for step in folded(ctx.log[: cut.seq + 1]).steps
                for shown in step.shown_messages()
                if any(overlay.owner == cut.seq for overlay in (shown.overlays or {}).values())
            ]
            results = sum(isinstance(shown.fact, ToolReturned) for shown in changed)
            assert CutCounts.of(cut.fact) == (results, len(changed) - results)


# ── Single cases ─────────────────────────────────────────────────────────────────────────────────────────


def read_step(number: int, lines: int) -> list[Json]:
    """Return a call and its result as messages of the chat dialect."""
    function = {"name": "read", "arguments": json.dumps({"path": f"m{number}.py"})}
    call = {"id": f"c{number}", "type": "function", "function": function}
    text = "\n".join(f"line {line} of m{number}: value_{number}_{line}" for line in range(lines))
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"c{number}", "content": text},
    ]


def thoughts(count: int, *, listed: bool) -> list[Json]:
    """Return calls with long texts beside them: as plain texts, or as lists of parts."""
    messages: list[Json] = []
    for number in range(count):
        text = " ".join(
            f"Sentence {line} of thought {number} names value_{number}_{line}." for line in range(55)
        )
        called, returned = read_step(100 + number, 1)
        content = [{"type": "text", "text": text}] if listed else text
        messages += [{**called, "content": content}, returned]
    return messages


def cut_after_thoughts(*, listed: bool, lines: int = 10) -> Context:
    """Return a context with one cut, which hides results and shortens the thoughts before them."""
    ctx = context(8_000)
    messages = [{"role": "user", "content": "Look at the files."}, *thoughts(5, listed=listed)]
    for number in range(20):
        messages += read_step(number, lines)
        ctx.fit(messages)
        if new_cuts(ctx, 0):
            return ctx
    raise AssertionError("no cut")


@pytest.mark.parametrize("listed", [True, False])
def test_a_long_text_beside_a_call_is_shortened_before_steps_go(listed: bool) -> None:
    ctx = cut_after_thoughts(listed=listed)
    (cut,) = new_cuts(ctx, 0)
    said = [ctx.why(event.handle) for event in ctx.log if isinstance(event.fact, ModelSaid)]
    shortened = [status.by for status in said if status.level == "masked"]
    assert isinstance(cut.fact, Compacted)
    assert shortened == [cut.handle] * CutCounts.of(cut.fact).shortened
    assert shortened


def masked_result(ctx: Context, cut: Event) -> Event:
    assert isinstance(cut.fact, Compacted)
    targets = {mask.target for mask in cut.fact.masks}
    return next(e for e in ctx.log if e.seq in targets and isinstance(e.fact, ToolReturned))


def test_a_kept_call_is_shown_whole_and_its_result_is_masked_by_the_cut() -> None:
    ctx = cut_after_thoughts(listed=True)
    (cut,) = new_cuts(ctx, 0)
    result = masked_result(ctx, cut)
    call = ctx.why(result.seq - 1)
    assert (call.kind, call.level, call.by) == ("model_said", "full", "")
    assert (ctx.why(result.seq).level, ctx.why(result.seq).by) == ("masked", cut.handle)


def test_to_expand_a_masked_result_or_the_cut_shows_it_again() -> None:
    for target in ("result", "cut"):
        ctx = cut_after_thoughts(listed=True)
        (cut,) = new_cuts(ctx, 0)
        result = masked_result(ctx, cut)
        ctx.expand(result.handle if target == "result" else cut.handle)
        assert ctx.why(result.seq).level == "full"
        assert ctx.why(result.seq - 1).level == "full"


def test_a_forced_record_replaces_the_record_of_a_masked_result_in_a_kept_step() -> None:
    calls = (Call(id="a", name="read", arguments="{}"), Call(id="b", name="read", arguments="{}"))
    masks = (Mask(target=2, text="[foveal: read; whole text: e2]"),)
    facts: list[AnyFact] = [
        UserSaid(content="Fix it."),
        ModelSaid(content=calls),
        ToolReturned(call_id="a", content="line\n" * 900),
        Compacted(first=2, last=2, summary="[foveal: record]\n" + "The bound is wrong.\n" * 90, masks=masks),
        UserSaid(content="And now?"),
    ]
    log = [Event(seq, fact) for seq, fact in enumerate(facts)]
    ctx = context(3_000)
    budget, terms = ctx._engine.budget(), summary_terms(ctx._engine.policy)
    plan = plan_forced(folded(log), budget, terms, target=0, shrink=True)
    assert plan is not None
    made = Compacted(first=plan.first, last=plan.last, keep=plan.keep, summary="[foveal: shorter]")
    assert [step.utterance.seq for step in folded([*log, Event(5, made)]).summaries] == [5]


def test_a_record_is_not_written_again_if_nothing_else_goes() -> None:
    ctx = context(6_000)
    for number in range(90):
        ctx.append(user(f"Question {number}: " + f"word{number} " * 60))
        ctx.fit()
        ctx.append({"role": "assistant", "content": f"Answer {number}."})
    made = [event for event in ctx.log if isinstance(event.fact, Compacted) and event.fact.reason != "room"]
    assert made
    for event in made:
        before, after = (folded(ctx.log[: event.seq + more]) for more in (0, 1))
        kept = [[step.seq for step in view.steps if step.kind != "summary"] for view in (before, after)]
        assert kept[0] != kept[1], event.handle
