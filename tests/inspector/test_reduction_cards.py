"""Cards of reductions: before and after, cost, and when they pay."""

from __future__ import annotations

from foveal.core.compaction.health import CompactionMetrics
from foveal.core.log.events import (
    AnyFact,
    Call,
    Clipped,
    Compacted,
    CompactionFailed,
    Dropped,
    Event,
    Mask,
    Masked,
    ModelSaid,
    Opened,
    Reverted,
    ToolReturned,
    UserSaid,
    raw,
)
from foveal.inspector.timeline.builder import InspectedSettings, TimelineBuilder
from foveal.inspector.timeline.timeline import ReductionCard

LONG = "the parser reads a line and keeps its number " * 400


def cards(*facts: AnyFact) -> tuple[ReductionCard, ...]:
    builder = TimelineBuilder(InspectedSettings(id="demo"))
    builder.add(Event(seq, fact, seq * 10.0) for seq, fact in enumerate(facts))
    return builder.document().reductions


def begin() -> list[AnyFact]:
    return [
        Opened(model="gpt-5", policy="economy"),
        UserSaid(content="Fix the parser."),
        ModelSaid(content=(Call(id="c1", name="read", arguments='{"path": "src/parser.py"}'),)),
        ToolReturned(call_id="c1", content=LONG, name="read"),
        ModelSaid(content="It is fixed. " * 500),
        UserSaid(content="And now the tests."),
    ]


def test_a_mask_says_what_it_saved_and_when_it_pays() -> None:
    mask = Masked(masks=(Mask(target=3, text="[masked]"),), reason="price", rule="economy: mask")
    (card,) = cards(*begin(), mask)
    assert (card.seq, card.kind, card.rule, card.why) == (
        6,
        "masked",
        "economy: mask",
        "a smaller request costs less",
    )
    assert (card.keys, card.count, card.first, card.last) == (("e3",), 1, 3, 3)
    assert card.before - card.after > 3_000
    assert card.behind > 1_000
    # (w − r) / r = (1 − 0.1) / 0.1 = 9 for gpt-5, whose cache is written at the input price.
    assert card.pays_after == -(-9 * card.behind // (card.before - card.after))
    assert card.undone == -1


def test_a_reduction_that_was_taken_back_says_by_what() -> None:
    mask = Masked(masks=(Mask(target=3, text="[masked]"),), reason="price")
    dropped = Dropped(ranges=((2, 4),), reason="room", rule="drop")
    undone, in_force = cards(*begin(), mask, Reverted(target=6), dropped)
    assert (undone.undone, in_force.undone) == (7, -1)
    assert (in_force.kind, in_force.first, in_force.last, in_force.count) == ("dropped", 2, 4, 3)


def test_a_summary_says_who_wrote_it_and_what_was_checked() -> None:
    metrics = CompactionMetrics(
        events=4, before=4_000, after=40, asked=1, cost=0.01, seconds=2.5, score=0.9, checks=("too long",)
    )
    written = Compacted(
        first=1, last=4, summary="It was fixed.", by="gpt-5-mini", reason="tokens", metrics=raw(metrics)
    )
    (card,) = cards(*begin(), written)
    assert (card.by, card.chars, card.cost, card.seconds, card.score) == ("gpt-5-mini", 13, 0.01, 2.5, 0.9)
    assert card.checks == ("too long",)
    assert card.checked
    assert "omissions" in card.unchecked
    (ledger,) = cards(
        *begin(), Compacted(first=1, last=4, summary="It was fixed.", by="ledger", reason="room")
    )
    assert ledger.cost == 0.0
    assert ledger.checked != card.checked
    (recorded,) = cards(*begin(), Compacted(first=1, last=4, summary="It was fixed.", reason="recorded"))
    assert (recorded.checked, recorded.unchecked) == ((), ("everything: another program wrote it",))
    assert recorded.cost is None  # unknown: the other program does not tell


def test_a_failed_summary_says_why() -> None:
    (card,) = cards(
        *begin(), CompactionFailed(first=1, last=4, problem="the model did not answer", reason="tokens")
    )
    assert (card.kind, card.problem, card.pays_after) == (
        "compaction_failed",
        "the model did not answer",
        None,
    )


def test_a_clip_on_arrival_has_no_card() -> None:
    clip = Clipped(target=7, pieces=((0, 10), "[…]"), rule="clip")
    facts = [
        *begin(),
        ModelSaid(content=(Call(id="c2", name="read", arguments="{}"),)),
        ToolReturned(call_id="c2", content=LONG),
        clip,
    ]
    assert cards(*facts) == ()
    later = [*facts, ModelSaid(content="x"), clip]
    assert [card.kind for card in cards(*later)] == ["clipped"]
    assert len(cards(*later, Clipped(target=7, pieces=((0, len(LONG)),)))) == 1  # shows the text again


def test_a_cut_says_what_it_did_with_numbers_that_add_up() -> None:
    metrics = raw(CompactionMetrics(events=3, before=4_000, after=40))
    keep, masks = (2,), (Mask(target=3, text="[masked]"), Mask(target=2, part=0, text="{}"))
    cut = Compacted(
        first=2, last=4, keep=keep, masks=masks, summary="x", by="ledger", reason="price", metrics=metrics
    )
    (card,) = cards(*begin(), cut)
    assert card.did == (
        "hid 1 result, shortened 1 message and removed 1 step (4,000 tokens), with a record of 40 tokens"
    )
    assert (card.count, card.keys) == (3, ("e4", "e2", "e3"))
    assert card.before > card.after
    (summary,) = cards(*begin(), Compacted(first=1, last=4, summary="It was fixed.", by="ledger"))
    assert summary.did == ""
