"""Opening a long session from its newest point: which events the view still needs, and what it had counted.

A view that is restored from this shows the same bytes as one that was folded from the start. It is a cache of the
fold, never the truth: without it, or after a change of its form, the whole log is folded again.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from foveal.core.log.events import Compacted, Event, Instructed
from foveal.core.log.ranges import Ranges
from foveal.core.tokens.message_tokens import MessageTokens
from foveal.core.view.view import View


class CarriedState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a view knows beyond the events that it shows."""

    dropped_messages: int = 0
    notice_at: int | None = None
    results: int = 0
    turns: int = 0
    ordinals: dict[int, int] = {}
    """For each result in view, how many came before it."""
    places: dict[int, tuple[int, int]] = {}
    """Summaries and replaced instructions: where they stand, and how many messages that is."""
    covers: dict[int, Ranges] = {}
    """What summaries still stand for."""
    hidden_calls: tuple[tuple[str, int], ...] = ()
    """Calls in hidden steps that still wait for a result."""
    orphans: tuple[int, ...] = ()
    spared: tuple[int, ...] = ()
    undone: Ranges = ()


def carried(view: View) -> CarriedState:
    """What to keep beside the events that `needed` names."""
    shown = [slot for step in view.steps for slot in step.slots if slot.result is not None]
    moved = [step for step in view.steps if step.said.seq != step.seq and step is not view.notice]
    return CarriedState(
        dropped_messages=view.dropped_messages,
        notice_at=None if view.notice is None else view.notice.seq,
        results=view.results,
        turns=view.turns,
        ordinals={slot.result.seq: slot.ordinal for slot in shown if slot.result is not None},
        places={step.said.seq: (step.seq, step.messages) for step in moved},
        covers={step.said.seq: step.covers for step in moved if step.covers},
        hidden_calls=tuple(view.hidden_calls[-1_000:]),
        orphans=tuple(view.orphans[-100:]),
        spared=tuple(sorted(view.spared)),
        undone=view.undone,
    )


def needed(view: View) -> set[int]:
    """The events without which the view could not be restored."""
    seqs = set(view.seqs)
    seqs.update(shown.seq for shown in view.asides.values())
    seqs.update(step.pin for step in view.steps if step.pinned)
    if view.tools is not None:
        seqs.add(view.tools[0])
    for step in view.steps:
        for shown in step.shown():
            if shown.overlays:
                seqs.update(overlay.owner for overlay in shown.overlays.values())
            if shown.marked >= 0:
                seqs.add(shown.marked)
    return seqs


def restore(events: Iterable[Event], state: CarriedState, meter: MessageTokens) -> View:
    """The view again, from the events it needs."""
    view = View(meter)
    for event in events:
        place = state.places.get(event.seq)
        if place is None:
            view.advance(event)
        elif isinstance(event.fact, Compacted):
            covers = state.covers.get(event.seq)
            view.show_summary(event.seq, event.fact, place=place[0], messages=place[1], covers=covers)
        elif isinstance(event.fact, Instructed):
            view.show_instruction(event.seq, event.fact, place=place[0])
    for call_id, seq in state.hidden_calls:
        view.expect(call_id, seq)
    view.results, view.turns = state.results, state.turns
    for slot in (slot for step in view.steps for slot in step.slots):
        if slot.result is not None:
            slot.ordinal = state.ordinals.get(slot.result.seq, slot.ordinal)
    view.dropped_messages = state.dropped_messages
    if state.notice_at is not None:
        view.show_notice(state.notice_at)
    view.orphans = list(state.orphans)
    view.spared = set(state.spared)
    view.undone = state.undone
    return view
