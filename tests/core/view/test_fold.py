"""The fold: how each kind of event changes the view."""

from __future__ import annotations

from typing import Any

import pytest

from foveal import Context
from foveal.core.log import (
    AnyFact,
    Call,
    Clipped,
    Compacted,
    Dropped,
    Equipped,
    Event,
    Instructed,
    Mark,
    Marked,
    Mask,
    Masked,
    ModelSaid,
    Noted,
    Pinned,
    Reverted,
    Rewound,
    SnapshotTaken,
    Text,
    ToolReturned,
    Unknown,
    Used,
    UserSaid,
    raw,
    text_of,
)
from foveal.core.tokens import MessageTokens
from foveal.core.view import advance, effective_events
from foveal.core.view.checkpoint import ViewCheckpoint, needed_seqs, restore_view, take_checkpoint
from foveal.core.view.dropped import DroppedMessages
from foveal.core.view.fold import effective_rewinds, fold, reductions_for_fork
from foveal.core.view.steps import NO_RESULT, ShownMessage
from foveal.core.view.view import View
from support.effort import rest_in_soak, seconds
from support.histories import ESTIMATE, describe_view


def log(*facts: AnyFact) -> list[Event]:
    return [Event(seq, fact) for seq, fact in enumerate(facts)]


def folded(*facts: AnyFact) -> View:
    return fold(log(*facts), MessageTokens(ESTIMATE))


def shown(view: View) -> list[str]:
    """Return all messages in view as short texts."""
    return [text_of(fact.content) or "·" for step in view.steps for fact in step.facts()]


def call(*ids: str) -> ModelSaid:
    return ModelSaid(content=tuple(Call(id=name, name="f", arguments="{}") for name in ids))


def returned(call_id: str, text: str = "") -> ToolReturned:
    return ToolReturned(call_id=call_id, content=text or call_id.upper())


TALK = (UserSaid(content="one"), call("a"), returned("a"), UserSaid(content="two"), call("b"), returned("b"))


def test_a_step_is_an_utterance_with_all_of_its_results() -> None:
    view = folded(UserSaid(content="go"), call("a", "b"), returned("b"), returned("a"))
    assert [(step.seq, step.kind, step.message_count) for step in view.steps] == [
        (0, "user", 1),
        (1, "model", 3),
    ]
    assert shown(view) == ["go", "·", "A", "B"]


def test_a_mask_shows_its_recorded_text() -> None:
    view = folded(*TALK, Masked(masks=(Mask(target=2, text="[gone: e2]"),), rule="r"))
    assert shown(view) == ["one", "·", "[gone: e2]", "two", "·", "B"]
    assert list(view.unmasked_results) == [5]


def test_a_clip_shows_its_recorded_pieces_and_a_mask_replaces_it() -> None:
    facts = (call("a"), returned("a", "0123456789"), Clipped(target=1, pieces=((0, 2), "[…]", (8, 10))))
    assert shown(folded(*facts)) == ["·", "01[…]89"]
    assert shown(folded(*facts, Masked(masks=(Mask(target=1, text="[m]"),)))) == ["·", "[m]"]


def test_a_clip_of_one_part_leaves_the_other_parts() -> None:
    parts = (Text(text="0123456789"), Text(text="second"))
    view = folded(
        call("a"), ToolReturned(call_id="a", content=parts), Clipped(target=1, pieces=((0, 2), "…"), part=0)
    )
    assert shown(view) == ["·", "01…\nsecond"]


def dropped_notice(messages: int) -> str:
    """The notice of drops that do not name their ranges."""
    return DroppedMessages(((0, 0, messages),)).notice()


def test_dropped_steps_leave_a_notice_that_counts_messages() -> None:
    view = folded(*TALK, Dropped(ranges=((0, 1),)))
    assert shown(view) == [dropped_notice(3), "two", "·", "B"]
    assert view.dropped.messages == 3


def counted_on_the_way(*facts: AnyFact) -> tuple[int, int]:
    """Return the units of a view that was counted after every event, and those of the same log folded at once."""
    events, view = log(*facts), View(MessageTokens(ESTIMATE))
    for at, event in enumerate(events):
        view = advance(view, event, events[: at + 1])
        assert view.units > 0
    return view.units, folded(*facts).units


def test_a_notice_is_counted_again_when_an_earlier_drop_is_taken_back() -> None:
    said = [UserSaid(content=f"message {number}") for number in range(1_200)]
    first, second = Dropped(ranges=((0, 1_100),)), Dropped(ranges=((1_101, 1_105),))
    counted, folded_at_once = counted_on_the_way(*said, first, second, Reverted(target=1_200))
    assert counted == folded_at_once


def test_a_message_is_counted_again_when_its_marks_change() -> None:
    marks = (Mark(part=-1, extra=raw({"cache_control": {"type": "ephemeral", "note": "long " * 60}})),)
    counted, folded_at_once = counted_on_the_way(UserSaid(content="a"), Marked(target=0, marks=marks))
    assert counted == folded_at_once


def test_a_part_is_counted_again_when_its_marks_change() -> None:
    meter, extra = (
        MessageTokens(ESTIMATE),
        raw({"cache_control": {"type": "ephemeral", "note": "long " * 60}}),
    )
    message = ShownMessage(0, UserSaid(content=(Text(text="a"),)))
    assert message.part_units(meter, 0) == 1
    message.mark(1, (Mark(part=0, extra=extra),))
    assert message.part_units(meter, 0) == 1 + meter.extra_units(extra)


def test_two_drops_leave_one_notice_with_the_sum_at_the_first_place() -> None:
    view = folded(*TALK, Dropped(ranges=((1, 1),)), Dropped(ranges=((4, 4),)))
    assert shown(view) == ["one", dropped_notice(4), "two"]


def test_a_drop_of_what_is_not_there_changes_nothing() -> None:
    before = folded(*TALK)
    after = folded(*TALK, Dropped(ranges=((90, 99),)))
    assert shown(after) == shown(before)
    assert after.dropped.messages == 0


def test_a_compaction_shows_its_summary_instead_of_its_steps() -> None:
    view = folded(*TALK, Compacted(first=0, last=2, summary="In short."))
    assert shown(view) == ["In short.", "two", "·", "B"]
    assert view.cover_of(1).level == "summarised"  # type: ignore[union-attr]


def test_a_wider_compaction_replaces_a_summary_and_a_narrower_does_not() -> None:
    first = Compacted(first=0, last=2, summary="S1")
    assert shown(folded(*TALK, first, Compacted(first=0, last=3, summary="S2"))) == ["S2", "·", "B"]
    assert shown(folded(*TALK, first, Compacted(first=1, last=3, summary="S2"))) == ["S1", "S2", "·", "B"]


def test_instructions_and_pinned_steps_stay_inside_every_range() -> None:
    facts = (
        Instructed(content="sys"),
        *TALK,
        Pinned(target=1),
        Pinned(text="rule"),
        Dropped(ranges=((0, 9),)),
    )
    view = folded(*facts)
    assert shown(view)[0] == "sys"
    assert "one" in shown(view)
    assert "Pinned rule: rule" in shown(view)
    assert "two" not in shown(view)


def test_reverting_a_revert_restores_the_reduction() -> None:
    masked = Masked(masks=(Mask(target=2, text="[m]"),))
    assert shown(folded(*TALK, masked, Reverted(target=6))) == shown(folded(*TALK))
    again = folded(*TALK, masked, Reverted(target=6), Reverted(target=7))
    assert shown(again) == shown(folded(*TALK, masked))


def test_a_rewind_hides_everything_after_its_target() -> None:
    masked = Masked(masks=(Mask(target=2, text="[m]"),))
    assert shown(folded(*TALK, masked, Rewound(to=3))) == ["one", "·", "A", "two"]
    kept = folded(*TALK, masked, Rewound(to=3, keep_reductions=True))
    assert shown(kept) == ["one", "·", "[m]", "two"]


def test_a_reverted_rewind_shows_the_rewound_and_the_new_messages() -> None:
    facts = (*TALK, Rewound(to=0), UserSaid(content="anew"))
    assert shown(folded(*facts)) == ["one", "anew"]
    assert shown(folded(*facts, Reverted(target=6))) == [*shown(folded(*TALK)), "anew"]


def test_only_rewinds_that_count_are_effective() -> None:
    inner, outer = (*TALK, Rewound(to=3)), Rewound(to=0)
    assert [e.seq for e in effective_rewinds(log(*inner))] == [6]
    assert [e.seq for e in effective_rewinds(log(*inner, outer))] == [7]
    assert [e.seq for e in effective_rewinds(log(*inner, outer, Reverted(target=7)))] == [6]
    assert effective_rewinds(log(*inner, Reverted(target=6))) == []
    assert shown(folded(*inner, outer, Reverted(target=7))) == shown(folded(*inner))


def test_after_a_rewind_the_latest_user_message_is_shown_again() -> None:
    hidings = (Compacted(first=0, last=3, summary="short"), Dropped(ranges=((0, 3),)))
    for hiding in hidings:
        facts = (
            *TALK,
            UserSaid(content="three"),
            hiding,
            Rewound(to=3, keep_state=True, keep_reductions=True),
        )
        assert "two" in shown(folded(*facts)), hiding
        assert "two" in shown(folded(*facts, UserSaid(content="anew"))), hiding


def test_a_rewind_into_a_rewound_range_shows_the_view_of_that_time() -> None:
    facts = (*TALK, Rewound(to=0), UserSaid(content="anew"), Rewound(to=3))
    assert shown(folded(*facts)) == ["one", "·", "A", "two"]
    assert [event.seq for event in effective_events(log(*facts))] == [0, 1, 2, 3]


@pytest.mark.parametrize("preset", rest_in_soak(["economy", "rolling", "recent", "recent-summary"], every=2))
def test_a_fork_shows_what_a_rewind_that_keeps_reductions_shows(preset: Any) -> None:
    ctx = Context("gpt-4.1", window=6_000, reserve=500, policy=preset, tokenizer="estimate")
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Begin."}]
    for step in range(30):
        if step % 7 == 6:
            messages.append({"role": "user", "content": f"Request {step}."})
        asked = {"id": f"c{step}", "type": "function", "function": {"name": "read", "arguments": "{}"}}
        text = "\n".join(f"line {n} of result {step}" for n in range(20 + step * 7 % 60))
        messages += [
            {"role": "assistant", "content": f"Step {step}.", "tool_calls": [asked]},
            {"role": "tool", "tool_call_id": f"c{step}", "content": text},
        ]
        ctx.fit(messages)
    whole, compared = list(ctx.log), 0
    for event in whole:
        if not isinstance(event.fact, ToolReturned):
            continue
        at = event.seq
        users = [e.seq for e in whole[: at + 1] if isinstance(e.fact, UserSaid)]
        taken = reductions_for_fork(whole[at + 1 :], at=at, latest_user=users[-1])
        forked = [*whole[: at + 1], *(Event(at + 1 + n, fact) for n, fact in enumerate(taken))]
        rewound = [*whole, Event(len(whole), Rewound(to=at, keep_reductions=True))]
        # The notice of a fork names only events that the fork has.
        texts, expected = (
            [text for text in shown(fold(events, MessageTokens(ESTIMATE))) if "older messages" not in text]
            for events in (forked, rewound)
        )
        assert texts == expected
        compared += bool(taken)
    assert compared > 5


def test_a_fork_takes_over_reverts_and_no_reduction_that_was_reverted() -> None:
    facts: list[AnyFact] = [
        UserSaid(content="Begin."),
        call("a"),
        returned("a", "text"),
        UserSaid(content="Go on."),
    ]
    mask = Masked(masks=(Mask(target=2, text="[placeholder]"),))
    later = log(*facts, mask, Reverted(target=4), UserSaid(content="More."), mask)
    assert reductions_for_fork(later[4:], at=3, latest_user=3) == [mask]
    assert reductions_for_fork(later[5:7], at=4, latest_user=3) == [Reverted(target=4)]
    beyond = [Masked(masks=(Mask(target=2, text="[a]"), Mask(target=9, text="[b]")))]
    beyond_log = [Event(10, fact) for fact in beyond]
    assert reductions_for_fork(beyond_log, at=3, latest_user=3) == [
        Masked(masks=(Mask(target=2, text="[a]"),))
    ]


def test_a_replaced_instruction_keeps_the_place_of_the_old_one() -> None:
    view = folded(Instructed(content="old"), *TALK, Instructed(content="new", replaces=0))
    assert shown(view)[0] == "new"
    assert view.find(0) is None
    assert view.find(7) is not None


def test_only_a_rewind_that_keeps_reductions_keeps_a_replaced_instruction() -> None:
    facts = (Instructed(content="old"), *TALK, Instructed(content="new", replaces=0))
    assert shown(folded(*facts, Rewound(to=1, keep_reductions=True)))[0] == "new"
    assert shown(folded(*facts, Rewound(to=1)))[0] == "old"


def test_a_newer_system_text_replaces_the_older_one_of_its_source() -> None:
    view = folded(
        Instructed(content="one", aside=True),
        Instructed(content="file", aside=True, source="AGENTS.md"),
        Instructed(content="two", aside=True),
    )
    assert [text_of(shown.fact.content) for shown in view.asides.values()] == ["two", "file"]
    assert view.steps == []


def test_facts_that_are_never_sent_change_nothing_that_is_shown() -> None:
    silent: tuple[AnyFact, ...] = (
        Noted(text="n"),
        Used(input=1),
        SnapshotTaken(data=raw({})),
        Unknown(kind="x", raw=raw({})),
    )
    assert shown(folded(*TALK, *silent)) == shown(folded(*TALK))


def test_a_late_result_goes_into_its_step_and_is_noted_as_late() -> None:
    view = folded(UserSaid(content="go"), call("a"), UserSaid(content="?"), returned("a"))
    assert shown(view) == ["go", "·", "A", "?"]
    assert view.late_results == [3]


def test_a_late_result_of_a_hidden_call_stays_hidden_and_is_no_orphan() -> None:
    view = folded(
        UserSaid(content="go"), call("a"), UserSaid(content="?"), Dropped(ranges=((1, 1),)), returned("a")
    )
    assert shown(view) == ["go", dropped_notice(1), "?"]
    assert view.orphan_results == []


def test_an_open_call_has_a_fixed_result_until_its_own_arrives() -> None:
    assert shown(folded(call("a"))) == ["·", NO_RESULT]
    assert shown(folded(call("a"), returned("a"))) == ["·", "A"]


def test_tools_are_those_that_were_offered_last() -> None:
    view = folded(Equipped(tools=raw([1])), Equipped(tools=raw([2])))
    assert view.tools is not None
    assert view.tools[0] == 1


def test_only_non_empty_results_are_numbered() -> None:
    view = folded(call("a", "b", "c"), returned("a"), ToolReturned(call_id="b", content=""), returned("c"))
    assert [slot.ordinal for slot in view.steps[0].slots] == [0, -1, 1]
    assert view.result_count == 2


def test_units_are_the_sum_of_all_steps_after_every_event() -> None:
    facts: list[AnyFact] = [
        Instructed(content="sys"), *TALK, Masked(masks=(Mask(target=3, text="[m]"),)), Dropped(ranges=((1, 1),)),
        Compacted(first=4, last=5, summary="S"), Pinned(text="rule"), Instructed(content="new", replaces=0),
        Reverted(target=7), Rewound(to=5), UserSaid(content="again"),
    ]  # fmt: skip
    view = View(MessageTokens(ESTIMATE))
    events = log(*facts)
    for at, event in enumerate(events):
        view = advance(view, event, events[: at + 1])
        assert view.units == sum(step.count(view.meter) for step in view.steps)
    assert describe_view(view) == describe_view(fold(events, MessageTokens(ESTIMATE)))


@pytest.mark.long
def test_folding_takes_time_in_proportion_to_the_log() -> None:
    def taken(count: int) -> float:
        events = log(*(UserSaid(content="x") if n % 2 else ModelSaid(content="y") for n in range(count)))
        return seconds(lambda: fold(events, MessageTokens(ESTIMATE)))

    assert taken(24_000) < 32 * taken(3_000)  # in proportion it is 8, quadratic it would be 64


@pytest.mark.parametrize("part", [5, -1])
def test_a_reduction_of_a_part_that_is_not_there_does_no_harm(part: int) -> None:
    facts: tuple[Any, ...] = (call("a"), returned("a", "0123456789"))
    for odd in (
        Masked(masks=(Mask(target=99, text="x", part=part),)),
        Clipped(target=99, pieces=((0, 1),), part=part),
        Pinned(target=99),
        Reverted(target=99),
        Compacted(first=50, last=60, summary="S"),
    ):
        assert shown(folded(*facts, odd)) == shown(folded(*facts))


def test_a_pinned_instruction_that_was_replaced_is_pinned_after_a_checkpoint() -> None:
    events = log(
        Instructed(content="Be brief."),
        UserSaid(content="one"),
        Instructed(content="Be very brief.", replaces=0),
        Pinned(target=2),
        Instructed(content="Be as brief as possible.", replaces=2),
    )
    view = fold(events, MessageTokens(ESTIMATE))
    needed = needed_seqs(view)
    kept = [event for event in events if event.seq in needed]
    restored = restore_view(kept, take_checkpoint(view), MessageTokens(ESTIMATE))
    assert [step.is_pinned for step in view.steps] == [True, False]
    assert describe_view(restored) == describe_view(view)


@pytest.mark.parametrize(
    ("hidden", "newest"),
    [((1, 1), Dropped(ranges=((2, 3),))), ((1, 2), Compacted(first=1, last=1, summary="T"))],
    ids=["a summary that moved", "a new summary"],
)
def test_a_summary_and_the_notice_keep_their_order_after_a_checkpoint(
    hidden: tuple[int, int], newest: AnyFact
) -> None:
    said = [ModelSaid(content=text) for text in ("zero", "one", "two", "three", "four")]
    events = log(*said, Dropped(ranges=(hidden,)), Compacted(first=0, last=3, summary="S"), newest)
    view = fold(events, MessageTokens(ESTIMATE))
    assert view.notice is not None
    assert [step.kind for step in view.steps if step.seq == view.notice.seq] == ["summary", "notice"]
    needed = needed_seqs(view)
    kept = [event for event in events if event.seq in needed]
    restored = restore_view(kept, take_checkpoint(view), MessageTokens(ESTIMATE))
    assert shown(restored) == shown(view)


def test_a_checkpoint_without_the_order_of_a_summary_and_the_notice_is_refused() -> None:
    with pytest.raises(ValueError, match="folded again"):
        ViewCheckpoint(notice_at=3, places={7: (3, 2)})
    ViewCheckpoint(notice_at=2, places={7: (3, 2)})


def test_user_messages_beyond_the_named_ones_stay_counted_when_a_summary_covers_the_newest() -> None:
    dropped = DroppedMessages()
    for seq in range(60):
        fact = Dropped(ranges=((seq * 2, seq * 2),), names_ranges=True, users=(seq * 2,))
        dropped.add(fact, 1)
    assert "e118 and 20 more between e0 and e38" in dropped.notice()
    dropped.cover(39, 118)
    assert "Messages of the user among them: 20 more between e0 and e38." in dropped.notice()
