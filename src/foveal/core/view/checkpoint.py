"""Checkpoint of a view: opens a long session without folding its whole log.

A checkpoint consists of the events that the view still needs (`needed_seqs`) and of what it had counted in the
others (`ViewCheckpoint`). A view that is restored from it shows the same bytes as one that was folded from the
start. The checkpoint is a cache of the fold: without it, or after a change of its format, the whole log is folded
again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

import msgspec

from foveal.core.log.events import Compacted, Event, Instructed
from foveal.core.log.ranges import Ranges
from foveal.core.tokens.message_tokens import MessageTokens
from foveal.core.view.dropped import DroppedMessages, RangesWithCounts
from foveal.core.view.view import View
from foveal.core.wire.bound_thinking import ThinkingBinding

_MAX_HIDDEN_CALLS: Final = 1_000
_MAX_ORPHANS: Final = 100


class ViewCheckpoint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a view knows beyond the events that it shows. The field names are stored data."""

    dropped_messages: int = 0
    dropped_ranges: RangesWithCounts = ()
    """First and last seq of each dropped range, and the number of messages."""
    names_ranges: bool = False
    """Whether the notice names these ranges."""
    dropped_users: tuple[int, ...] = ()
    """Dropped user messages that the notice names one by one."""
    older_dropped_users: RangesWithCounts = ()
    """Ranges of those that it only counts."""
    unnamed_results: tuple[int, ...] = ()
    """Late results of hidden steps that nothing names yet."""
    notice_at: int | None = None
    results: int = 0
    turns: int = 0
    ordinals: dict[int, int] = {}
    """For each result in view, how many came before it."""
    places: dict[int, tuple[int, int]] = {}
    """For summaries and replaced instructions: their place in the view, and how many messages they stand for."""
    pins: dict[int, int] = {}
    """For the same: the event that pinned each; it names an event that they have replaced since."""
    covers: dict[int, Ranges] = {}
    """The ranges that each summary still stands for."""
    tied: tuple[int, ...] = ()
    """The events of steps that share their place with another one, in the order of the view; -1 is the notice. The
    order depends on the reductions that moved them there."""
    hidden_calls: tuple[tuple[str, int], ...] = ()
    """Calls in hidden steps that still wait for a result."""
    orphans: tuple[int, ...] = ()
    spared: tuple[int, ...] = ()
    """Results whose mask was reverted."""
    undone: Ranges = ()
    """Ranges of reverted summaries."""
    whole: dict[int, int] = {}
    """Steps that a pin shows as they were said, and that pin."""
    calls: dict[str, int] = {}
    """How often the model has called each tool."""
    thinking_from: int = -1
    """The event before which thinking is left out; -1 in checkpoints that were written before it was recorded."""
    thinking_model: str = ""
    """The model of the conversation."""
    binds_thinking: bool = False
    """Whether it binds thinking to what comes before it."""
    has_refused_thinking: bool = False
    """Whether a provider has refused thinking."""

    def __post_init__(self) -> None:
        if self.dropped_messages != sum(messages for _, _, messages in self.dropped_ranges):
            raise ValueError("written before ranges were recorded: the log must be folded again")
        places = [place for place, _ in self.places.values()]
        if not self.tied and len({*places, self.notice_at}) <= len(places):
            raise ValueError("written before the order of ties was recorded: the log must be folded again")


def take_checkpoint(view: View) -> ViewCheckpoint:
    """Return what to store beside the events that `needed_seqs` names."""
    results = [
        (slot.result.seq, slot.ordinal)
        for step in view.steps
        for slot in step.slots
        if slot.result is not None
    ]
    at_place = Counter(step.seq for step in view.steps)
    tied = [step for step in view.steps if at_place[step.seq] > 1]
    moved = [step for step in view.steps if step.utterance.seq != step.seq and step is not view.notice]
    return ViewCheckpoint(
        dropped_messages=view.dropped.messages,
        dropped_ranges=view.dropped.ranges,
        names_ranges=view.dropped.names_ranges,
        dropped_users=view.dropped.users,
        older_dropped_users=view.dropped.older_users,
        unnamed_results=tuple(view.unnamed_results[-_MAX_ORPHANS:]),
        notice_at=None if view.notice is None else view.notice.seq,
        results=view.result_count,
        turns=view.turn_count,
        ordinals=dict(results),
        places={step.utterance.seq: (step.seq, step.message_count) for step in moved},
        pins={step.utterance.seq: step.pin_seq for step in moved if step.is_pinned},
        covers={step.utterance.seq: step.covers for step in moved if step.covers},
        tied=tuple(max(step.utterance.seq, -1) for step in tied),
        hidden_calls=tuple(view.hidden_open_calls[-_MAX_HIDDEN_CALLS:]),
        orphans=tuple(view.orphan_results[-_MAX_ORPHANS:]),
        spared=tuple(sorted(view.reverted_masks)),
        undone=view.reverted_summaries,
        whole=dict(view.whole_steps),
        calls=dict(view.tool_use.calls),
        thinking_from=view.thinking.start,
        thinking_model=view.thinking.binding.model,
        binds_thinking=view.thinking.is_bound,
        has_refused_thinking=view.thinking.was_refused,
    )


def needed_seqs(view: View) -> set[int]:
    """Return the events without which the view cannot be restored."""
    seqs = set(view.seqs)
    seqs.update(shown.seq for shown in view.asides.values())
    seqs.update(step.pin_seq for step in view.steps if step.is_pinned)
    seqs.update(view.superseded_since.values())
    seqs.update(since for _, since in view.priorities.values())
    seqs.update(view.unreadable)
    seqs.update(seq for seq, _ in view.open_branches)
    if view.tools is not None:
        seqs.add(view.tools[0])
    seqs.update(loaded.seq for loaded in view.tool_use.loaded)
    for step in view.steps:
        for shown in step.shown_messages():
            if shown.overlays:
                seqs.update(overlay.owner for overlay in shown.overlays.values())
            if shown.marked_by >= 0:
                seqs.add(shown.marked_by)
            if shown.again_since >= 0:
                seqs.add(shown.again_since)
    return seqs


def restore_view(events: Iterable[Event], state: ViewCheckpoint, meter: MessageTokens) -> View:
    """Return the view that the checkpoint was taken of, from the events that it needs."""
    view = View(
        meter,
        reverted_masks=frozenset(state.spared),
        reverted_summaries=state.undone,
        whole_steps=state.whole,
        thinking_from=max(0, state.thinking_from),
    )
    view.thinking.begin_restoring()
    for event in events:
        place = state.places.get(event.seq)
        if isinstance(event.fact, Compacted):
            view.apply_masks(event.seq, event.fact)
            if event.fact.takes_item_back:
                view.note_unreadable(event.seq)
            if place is not None:  # else a newer summary has replaced it, and only its masks are still shown
                covers = state.covers.get(event.seq)
                view.show_summary(event.seq, event.fact, place=place[0], messages=place[1], covers=covers)
        elif place is None:
            view.advance(event)
        elif isinstance(event.fact, Instructed):
            view.show_instruction(event.seq, event.fact, place=place[0])
    for seq, pin_seq in state.pins.items():
        view.pin_step(seq, pin_seq)
    for call_id, seq in state.hidden_calls:
        view.expect_result(call_id, seq)
    view.restore_counts(
        result_count=state.results,
        turn_count=state.turns,
        dropped=DroppedMessages(
            state.dropped_ranges,
            names_ranges=state.names_ranges,
            users=state.dropped_users,
            older_users=state.older_dropped_users,
        ),
        unnamed_results=state.unnamed_results,
        ordinals=state.ordinals,
        orphan_results=state.orphans,
    )
    if state.calls:
        view.tool_use.restore_calls(state.calls)
    if state.notice_at is not None:
        view.show_notice(state.notice_at, owner=state.notice_at)
    if state.tied:
        view.sort_tied(state.tied)
    view.thinking.end_restoring(
        ThinkingBinding(state.thinking_model, state.binds_thinking),
        start=state.thinking_from,
        was_refused=state.has_refused_thinking,
    )
    return view
