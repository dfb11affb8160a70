"""The eight laws over generated conversations, through `Context` as an agent uses it, and over raw logs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from foveal import Context, ContextOverflow, Report
from foveal.core.log import (
    Clipped,
    Event,
    ForeignSummary,
    Instructed,
    Masked,
    ModelSaid,
    Rewound,
    ToolReturned,
    UserSaid,
    encode,
    handle,
    text_of,
    unraw,
)
from foveal.core.tokens import MessageTokens
from foveal.core.view import advance, effective_events
from foveal.core.view.fold import fold
from foveal.core.view.view import View
from support.effort import examples
from support.histories import (
    CHECKS,
    DIALECTS,
    ESTIMATE,
    POLICIES,
    TOOLS,
    WINDOWS,
    InputMessage,
    Json,
    ScriptedHistory,
    branch_some,
    context,
    describe_view,
    encode_and_decode,
    flatten,
    foreign_summaries,
    logs,
    may_move_prefix,
    missing_texts,
    recount,
    render_log,
    scripted_histories,
    steer_some,
    strings,
    supersede_some,
    wire_bytes,
)
from support.report_checks import adds_up

few = examples(75, share=0.1)
policies = st.sampled_from(POLICIES)
windows = st.sampled_from(WINDOWS)


class Call(NamedTuple):
    """One request of an agent's loop."""

    taken: int
    """Messages of the history at this point."""
    request: list[Json] | None
    """None when it did not fit."""
    log: tuple[Event, ...]
    report: Report
    overflow: ContextOverflow | None


def loop(ctx: Context, story: ScriptedHistory, **beside: Any) -> Iterator[Call]:
    """Run a conversation as an agent does: fit the whole history so far before each utterance. Some messages are
    superseded or get a priority meanwhile, and some parts run in branches."""
    beside.setdefault("tools", TOOLS[story.dialect])
    for taken in story.calls:
        supersede_some(ctx)
        branch_some(ctx)
        steer_some(ctx)
        try:
            request, overflow = ctx.fit(story.messages[:taken], **beside), None
        except ContextOverflow as problem:
            request, overflow = None, problem
        yield Call(taken, request, ctx.log, ctx.report(), overflow)


# ── 1. Fits ──────────────────────────────────────────────────────────────────────────────────────────────


@few
@given(scripted_histories(), policies, windows)
def test_a_request_fits_or_an_error_says_by_how_much_it_does_not(
    story: ScriptedHistory, policy: Any, window: int
) -> None:
    for call in loop(context(window, policy), story):
        if call.overflow is not None:
            problem = call.overflow
            assert problem.needed > call.report.limit
            assert 0 < problem.floor <= problem.needed
            assert f"{problem.needed:,}" in str(problem)
            assert (problem.window, call.report.state) == (window, "over")
            continue
        assert call.request is not None
        assert call.report.used <= call.report.limit <= window - window // 10
        assert recount(call.request) <= call.report.used + 16  # 16: the opening line of the Anthropic dialect


@few
@given(scripted_histories(), policies, windows)
def test_tools_and_system_text_count_against_the_limit(
    story: ScriptedHistory, policy: Any, window: int
) -> None:
    tools = json.dumps(TOOLS[story.dialect], separators=(",", ":"))
    beside = ESTIMATE.count(tools) + ESTIMATE.count("rule " * 30)
    for call in loop(context(window, policy), story, system="rule " * 30):
        if call.request is not None:
            assert recount(call.request) + beside <= call.report.used + 16
            assert call.report.used <= call.report.limit
            assert call.report.totals["tools"] > 0
            assert call.report.totals["system"] > 0


# ── 2. Legal ─────────────────────────────────────────────────────────────────────────────────────────────


@few
@given(scripted_histories(), policies, windows)
def test_every_request_is_legal_in_its_dialect(story: ScriptedHistory, policy: Any, window: int) -> None:
    for call in loop(context(window, policy), story):
        if call.request is not None:
            assert CHECKS[story.dialect](call.request) == []


@few
@given(logs(), st.sampled_from(DIALECTS))
def test_every_log_renders_legally_in_every_dialect(drawn: tuple[Any, list[Event]], other: Any) -> None:
    own, log = drawn
    assert CHECKS[own](render_log(log, own)) == []
    assert CHECKS[other](render_log(log, other)) == []


# ── 3. Stable ────────────────────────────────────────────────────────────────────────────────────────────


@few
@given(scripted_histories(), policies, windows)
def test_a_longer_history_extends_the_request_unless_it_is_reduced(
    story: ScriptedHistory, policy: Any, window: int
) -> None:
    before: Call | None = None
    for call in loop(context(window, policy), story):
        if before is not None and before.request is not None and call.request is not None:
            late = any(before.taken <= at < call.taken for at in story.late)
            if not late and not may_move_prefix(call.log[len(before.log) :]):
                old = flatten(before.request)
                assert flatten(call.request)[: len(old)] == old
        before = call


@few
@given(scripted_histories(), policies, windows)
def test_the_same_history_gives_the_same_bytes_and_the_same_log(
    story: ScriptedHistory, policy: Any, window: int
) -> None:
    first, second = (list(loop(context(window, policy), story)) for _ in range(2))
    assert [c.request and wire_bytes(c.request) for c in first] == [
        c.request and wire_bytes(c.request) for c in second
    ]
    assert [call.log for call in first] == [call.log for call in second]


@few
@given(logs())
def test_the_same_log_renders_the_same_bytes_every_time(
    drawn: tuple[Any, list[Event]],
) -> None:
    dialect, log = drawn
    assert wire_bytes(render_log(log, dialect)) == wire_bytes(render_log(list(log), dialect))


@few
@given(logs())
def test_a_longer_log_extends_the_request_unless_a_change_is_recorded(
    drawn: tuple[Any, list[Event]],
) -> None:
    dialect, log = drawn
    for cut in range(1, len(log)):
        newer = tuple(log[cut : cut + 1])
        fact = newer[0].fact
        if may_move_prefix(newer) or isinstance(fact, Clipped | ToolReturned):
            continue
        old = flatten(render_log(log[:cut], dialect))
        assert flatten(render_log(log[: cut + 1], dialect))[: len(old)] == old


# ── 4. Lossless ──────────────────────────────────────────────────────────────────────────────────────────


@few
@given(scripted_histories(), policies, windows)
def test_no_event_is_changed_or_deleted(story: ScriptedHistory, policy: Any, window: int) -> None:
    lines: list[bytes] = []
    for call in loop(context(window, policy), story):
        now = [encode(event) for event in call.log]
        assert now[: len(lines)] == lines
        assert [event.seq for event in call.log] == list(range(len(call.log)))
        lines = now


@few
@given(scripted_histories(), policies, windows)
def test_every_placeholder_and_clip_names_the_event_with_the_whole_text(
    story: ScriptedHistory, policy: Any, window: int
) -> None:
    ctx = context(window, policy)
    for call in loop(ctx, story):
        if call.request is None:
            continue
        words = "\n".join(strings(call.request))
        for line in call.report.events:
            if line.level in ("clipped", "masked"):
                assert f": {line.handle}]" in words
                assert ctx.why(line.handle) == line


@few
@given(scripted_histories(), policies, windows)
def test_the_original_text_of_every_message_can_be_read(
    story: ScriptedHistory, policy: Any, window: int
) -> None:
    ctx = context(window, policy)
    for _ in loop(ctx, story):
        pass
    for event in ctx.log:
        fact = event.fact
        if isinstance(fact, UserSaid | ToolReturned | ModelSaid | Instructed) and isinstance(
            fact.content, str
        ):
            assert ctx.original(event.handle) == fact.content
    said = [beat.text for beat in story.script if isinstance(beat, InputMessage)]
    kept = [
        text_of(event.fact.content)
        for event in ctx.log
        if isinstance(event.fact, UserSaid) or (isinstance(event.fact, Instructed) and not event.fact.aside)
    ]
    assert kept == said


# ── 5. Idempotent ────────────────────────────────────────────────────────────────────────────────────────


@few
@given(scripted_histories(), policies, windows)
def test_fitting_twice_does_nothing_the_second_time(story: ScriptedHistory, policy: Any, window: int) -> None:
    ctx = context(window, policy)
    for call in loop(ctx, story):
        ctx._clock.now += 100_000  # type: ignore[union-attr]
        if call.request is None:
            continue
        again = ctx.fit(story.messages[: call.taken], tools=TOOLS[story.dialect])
        assert again == call.request
        assert ctx.log == call.log


@few
@given(scripted_histories(), policies, windows)
def test_an_overflow_raised_twice_is_the_same_and_records_nothing_new(
    story: ScriptedHistory, policy: Any, window: int
) -> None:
    ctx = context(window, policy)
    for call in loop(ctx, story):
        if call.overflow is None:
            continue
        with pytest.raises(ContextOverflow) as again:
            ctx.fit(story.messages[: call.taken], tools=TOOLS[story.dialect])
        assert str(again.value) == str(call.overflow)
        assert ctx.log == call.log


@few
@given(scripted_histories(turns=3, steps=6), policies, windows)
def test_nothing_is_masked_twice(story: ScriptedHistory, policy: Any, window: int) -> None:
    ctx = context(window, policy)
    for _ in loop(ctx, story):
        pass
    masks = [(m.target, m.part) for e in ctx.log if isinstance(e.fact, Masked) for m in e.fact.masks]
    assert len(masks) == len(set(masks))


# ── 6. Honest ────────────────────────────────────────────────────────────────────────────────────────────


@few
@given(scripted_histories(), policies, windows, st.lists(st.integers(1, 60_000), max_size=6))
def test_the_parts_of_the_report_add_up_and_are_marked_if_measured(
    story: ScriptedHistory, policy: Any, window: int, reported: list[int]
) -> None:
    ctx = context(window, policy)
    adds_up(ctx.report())
    measured = False
    reports = iter(reported)
    for call in loop(ctx, story):
        adds_up(call.report)
        assert call.report.measured is measured
        tokens = next(reports, None)
        if call.request is not None and tokens is not None:
            ctx.observe({"prompt_tokens": tokens, "completion_tokens": 5})
            measured = measured or tokens <= window
            adds_up(ctx.report())


@few
@given(scripted_histories(), policies, windows)
def test_the_report_says_how_every_event_is_shown(story: ScriptedHistory, policy: Any, window: int) -> None:
    for call in loop(context(window, policy), story):
        assert [line.handle for line in call.report.events] == [event.handle for event in call.log]
        for line, event in zip(call.report.events, call.log, strict=True):
            if isinstance(event.fact, UserSaid | ModelSaid | ToolReturned | Instructed):
                assert line.level in ("full", "clipped", "masked", "summarised", "dropped")
                assert (line.rule == "") == (line.level == "full")
        shown = sum(line.tokens for line in call.report.events)
        assert shown <= call.report.used + len(call.log)


# ── 7. Pinned ────────────────────────────────────────────────────────────────────────────────────────────


@few
@given(scripted_histories(), policies, windows)
def test_protected_messages_are_verbatim_in_every_request(
    story: ScriptedHistory, policy: Any, window: int
) -> None:
    ctx = context(window, policy)
    ctx.pin("never delete the archive")
    for call in loop(ctx, story):
        if call.request is None:
            continue
        assert any("never delete the archive" in word for word in strings(call.request))
        assert missing_texts(call.request, story, call.taken) == []


@few
@given(logs())
def test_instructions_and_pinned_steps_survive_every_recorded_reduction(
    drawn: tuple[Any, list[Event]],
) -> None:
    dialect, log = drawn
    view = fold(log, MessageTokens(ESTIMATE))
    counting = effective_events(log)
    replaced = {e.fact.replaces for e in counting if isinstance(e.fact, Instructed)}
    words = set(strings(render_log(log, dialect)))
    for event in counting:
        fact = event.fact
        if not isinstance(fact, Instructed) or fact.aside or fact.replaces is not None:
            continue
        if event.seq not in replaced and text_of(fact.content).strip():
            assert text_of(fact.content) in words
    for step in view.steps:
        if step.is_pinned:
            assert view.find(step.utterance.seq) is not None


# ── 8. Replay = live ─────────────────────────────────────────────────────────────────────────────────────


@few
@given(scripted_histories(), policies, windows)
def test_the_request_after_a_reload_is_the_request_before_it(
    story: ScriptedHistory, policy: Any, window: int
) -> None:
    for call in loop(context(window, policy), story):
        if call.request is not None:
            again = encode_and_decode(call.log)
            assert again == list(call.log)
            assert wire_bytes(render_log(again, story.dialect)) == wire_bytes(call.request)


@examples(100)
@given(logs())
@example(("openai_chat", [Event(0, UserSaid(content="a")), Event(1, Rewound(to=0))]))
def test_a_view_advanced_event_by_event_equals_the_folded_view(drawn: tuple[Any, list[Event]]) -> None:
    _, log = drawn
    view = View(MessageTokens(ESTIMATE))
    for at, event in enumerate(log):
        view = advance(view, event, log[: at + 1])
        if at % 3 == 0:
            assert view.units == sum(step.count(view.meter) for step in view.steps)
    assert describe_view(view) == describe_view(fold(log, MessageTokens(ESTIMATE)))


@few
@given(logs())
def test_a_log_written_as_lines_and_read_again_is_the_same_log(drawn: tuple[Any, list[Event]]) -> None:
    dialect, log = drawn
    again = encode_and_decode(log)
    assert again == log
    assert wire_bytes(render_log(again, dialect)) == wire_bytes(render_log(log, dialect))


# ── 15. Foreign state ────────────────────────────────────────────────────────────────────────────────────


@few
@given(scripted_histories(turns=6, steps=6), policies, windows)
def test_a_summary_of_the_provider_is_whole_and_in_place_in_every_request(
    story: ScriptedHistory, policy: Any, window: int
) -> None:
    for call in loop(context(window, policy), story):
        given = foreign_summaries(story.messages[: call.taken])
        if call.request is None or not given:
            continue
        sent = foreign_summaries(call.request)
        assert sent == given[len(given) - len(sent) :]
        assert sent[-1:] == given[-1:]
        newest = (
            len(call.request)
            - 1
            - next(at for at, message in enumerate(reversed(call.request)) if foreign_summaries([message]))
        )
        said = next(at for at in range(call.taken - 1, -1, -1) if foreign_summaries([story.messages[at]]))
        before = {word for word in strings(story.messages[:said]) if word.startswith("question ")}
        after = {
            word for word in strings(story.messages[said + 1 : call.taken]) if word.startswith("question ")
        }
        assert not (after - before) & set(strings(call.request[:newest]))


@few
@given(logs())
def test_a_summary_of_the_provider_survives_every_recorded_reduction(
    drawn: tuple[Any, list[Event]],
) -> None:
    dialect, log = drawn
    facts = [event.fact for event in effective_events(log)]
    summaries = [unraw(fact.native) for fact in facts if isinstance(fact, ForeignSummary)]
    sent = foreign_summaries(render_log(log, dialect))
    assert sent[-1:] == summaries[-1:]
    assert all(summary in summaries for summary in sent)


def test_a_handle_is_the_seq_of_its_event() -> None:
    assert [Event(n, UserSaid(content="")).handle for n in range(3)] == [handle(n) for n in range(3)]
