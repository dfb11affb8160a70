"""Records the history that a caller passes in: what is new, edited, left out, or of another conversation.

1. `recognise` compares a history with what is recorded (`history_diff`).
2. `record` writes the difference into the log: new messages, replaced ones, a rewind after an edit, a drop of what
   a sliding window has left out.
3. What was left out and comes back is shown again, not recorded again: the drop is reverted.
4. A history that shares nothing with the recorded one begins a new conversation: a rewind to the beginning that
   keeps no reductions.
5. The pins that were made in a conversation go with it, unless its caller announces another one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from foveal.core.engine.branches import joined_ranges
from foveal.core.engine.engine import Engine
from foveal.core.engine.history_diff import (
    Adopted,
    HistoryChange,
    MessageHistory,
)
from foveal.core.engine.origins import Origin, OriginTracer
from foveal.core.engine.stored_messages import MESSAGE_FACTS, StoredMessages
from foveal.core.log.events import (
    LEFT_OUT_BY_CALLER,
    AnyFact,
    Compacted,
    Dropped,
    Event,
    Instructed,
    Pinned,
    Reverted,
    Rewound,
    ThinkingLeftOut,
)
from foveal.core.log.ranges import intersect_ranges, is_within
from foveal.core.view.fold import effective_events
from foveal.core.view.steps import ProviderMessage
from foveal.core.wire import Wire
from foveal.core.wire.bound_thinking import is_bound_utterance
from foveal.errors import HistoryDiverged, UnrelatedConversation

MAX_NEWEST_MESSAGES: Final = 64
"""Recorded messages that a wire sees before those that follow them."""
LEFT_OUT_RULE: Final = "caller: left out of the messages that were passed in"


class GivenHistory:
    """The history of one conversation as its caller passes it in, and its place in the log."""

    def __init__(self, engine: Engine, record: Callable[[AnyFact], Event]) -> None:
        """`record` appends a fact to the log of the engine."""
        self._engine = engine
        self._record = record
        self._messages = messages = MessageHistory()
        self._tracer = OriginTracer(lambda seq: messages.inputs_of(seq, engine.log), messages.known)
        self._is_loaded = bool(_stored_messages(engine.log))
        """Whether the log has messages in which no history was recognised yet."""
        self.conversation_start: int = _conversation_start(engine.log)
        """The first event of the current conversation."""
        self.messages_before = 0
        """Messages of the conversation before this one."""
        self._has_left_pins = False
        """Whether pins went with that conversation."""

    def __len__(self) -> int:
        return len(self._messages.known)

    def recognise(self, given: list[Any], wire: Wire) -> HistoryChange:
        """Return how a history differs from what is recorded. In a loaded log, its beginning is found first, and
        the rest of that log is rewound."""
        adopted = self._adopt(given, wire) if self._is_loaded else None
        change = self._messages.diff(given, wire, self._engine.log)
        if self._messages.is_edit_after_gap(change) and self._take_back(given, wire):
            change = self._messages.diff(given, wire, self._engine.log)
        if adopted is None:
            return change
        diverged = len(adopted.rest) if adopted.is_diverged else 0
        return change._replace(is_unrelated=adopted.is_unrelated, diverged=diverged)

    def following(self, messages: Sequence[Any], wire: Wire) -> HistoryChange:
        """Return messages that follow the recorded ones as a change. The wire sees the newest of these as well: a
        result without an id answers a call there."""
        known = self._messages.known
        newest = known.newest(MAX_NEWEST_MESSAGES)
        chunks = list(wire.read([*newest, *messages], len(newest)))
        return HistoryChange(len(known), [], chunks, messages)

    def record(self, change: HistoryChange) -> UserWarning | None:
        """Record a change. Return the warning that another conversation began, or may have begun."""
        messages = self._messages
        if change.replaced or change.left_out is not None or change.start < len(messages.known):
            self._tracer.clear()
        for replaced in change.replaced:
            messages.note_replaced(replaced, self._record(replaced.fact))
        if change.left_out is not None:
            self._record_left_out(change.left_out)
            messages.remove(change)
        is_edited = change.left_out is None and change.start < len(messages.known)
        if is_edited:
            to = messages.known.rewind_seq(change.start)
            self._leave(to, is_unrelated=change.is_unrelated, is_diverged=bool(change.diverged))
            messages.truncate(change.start)
        with self._engine.recording(fact for chunk in change.chunks for fact in chunk.facts):
            self._record_messages(change)
        if is_edited and self._engine.view.thinking.is_bound and _thinks(change):
            self._record(ThinkingLeftOut())  # it was produced behind other messages
        if change.is_unrelated:  # one message was rather edited
            is_told = self.messages_before > 1 or self._has_left_pins
            return UnrelatedConversation(self.messages_before) if is_told else None
        return HistoryDiverged(change.start, change.diverged) if change.diverged else None

    def _record_messages(self, change: HistoryChange) -> None:
        index = 0
        for chunk in change.chunks:
            seq_before = self._engine.next_seq - 1
            for fact in chunk.facts:
                self._record(fact)
            if self._is_loaded:  # appended; the next whole history is found in the log
                continue
            self._messages.known.add(
                change.messages[index : index + chunk.messages],
                seq_before=seq_before,
                seq_last=self._engine.next_seq - 1,
            )
            index += chunk.messages

    def begin_conversation(self) -> None:
        """Take all messages out of view; the next history is that of another conversation."""
        events = effective_events(self._engine.log)
        said = [event for event in events if isinstance(event.fact, MESSAGE_FACTS)]
        first = next((event.seq for event in said if not _is_beside(event)), None)
        if first is not None:
            self._begin_conversation(first - 1)
        self._is_loaded = False
        self._messages.truncate(0)
        self._tracer.clear()

    def origins(self, wire: Wire, fitted: Sequence[ProviderMessage]) -> list[Origin]:
        """Return the origin of each message of the request that the view was rendered as."""
        return self._tracer.trace(self._engine.view, wire, fitted)

    # ── Copies of the messages ───────────────────────────────────────────────────────────────────────

    def share_copies(self, start: int) -> None:
        """Use the rendered messages as the copies of the messages from `start` on, where both are equal."""
        self._messages.known.share_copies(start, self._rendered_step)

    def _rendered_step(self, seq: int) -> Sequence[Any] | None:
        found = self._engine.view.find(seq)
        return None if found is None else found[0].rendered

    def release_hidden(self, events: Sequence[Event]) -> None:
        """Drop the copies of messages that `events` hide."""
        view = self._engine.view
        for event in events:
            fact = event.fact
            if isinstance(fact, Dropped | Compacted):
                ranges = fact.ranges if isinstance(fact, Dropped) else ((fact.first, fact.last),)
                for first, last in ranges:
                    self._messages.known.release_hidden(first, last, lambda seq: view.find(seq) is not None)

    # ── Recording ────────────────────────────────────────────────────────────────────────────────────

    def _adopt(self, given: list[Any], wire: Wire) -> Adopted:
        """Find a history in a loaded log, and record what differs."""
        adopted = self._messages.adopt(given, wire, _stored_messages(self._engine.log))
        self._is_loaded = False
        for mark in adopted.marks:
            self._record(mark)
        if adopted.left_out is not None:
            self._record_left_out(adopted.left_out)
        if adopted.rest:
            self._leave(
                adopted.rest[0].seq - 1, is_unrelated=adopted.is_unrelated, is_diverged=adopted.is_diverged
            )
        return adopted

    def _take_back(self, given: list[Any], wire: Wire) -> bool:
        """Show again what a sliding window has left out, if the history has it again; return whether it has."""
        log = self._engine.log
        returned = StoredMessages(_given(effective_events(log))).returned(list(wire.read(given)))
        if not returned:
            return False
        for seq, fact in _left_out_drops(effective_events(log)).items():
            if intersect_ranges(fact.ranges, returned):
                self._record(Reverted(target=seq))
        self._tracer.clear()
        self._messages.truncate(0)
        self._adopt(given, wire)
        return True

    def _record_left_out(self, span: tuple[int, int]) -> None:
        self._record(Dropped(ranges=(span,), reason=LEFT_OUT_BY_CALLER, rule=LEFT_OUT_RULE))

    def _leave(self, to: int, *, is_unrelated: bool, is_diverged: bool) -> None:
        """Take all messages after `to` out of view. What follows may be said by another user: then the pins made
        since go as well."""
        pins = self._pins_after(to) if is_unrelated or is_diverged else []
        self._has_left_pins = bool(pins)
        self._begin_conversation(to) if is_unrelated else self._rewind(to)
        for pin in pins:
            self._record(Reverted(target=pin.seq))

    def _pins_after(self, seq: int) -> list[Event]:
        effective = effective_events(self._engine.log)
        return [event for event in effective if event.seq > seq and isinstance(event.fact, Pinned)]

    def _rewind(self, to: int) -> None:
        show_dropped = self._has_room_for_dropped(to)
        self._record(Rewound(to=to, keep_state=True, keep_reductions=True, show_dropped=show_dropped))

    def _begin_conversation(self, to: int) -> None:
        """Take all messages after `to` out of view. Pins, tools and the system text stay."""
        said = self._engine.log[max(self.conversation_start, to + 1) :]
        self.messages_before = len(_said(said))
        self._record(Rewound(to=to, keep_state=True))
        self.conversation_start = self._engine.next_seq

    def _has_room_for_dropped(self, to: int) -> bool:
        """Return whether the whole history up to `to` takes less than half of what triggers a reduction, so that
        dropped steps can be shown again."""
        engine = self._engine
        events = effective_events(engine.log[: to + 1])
        messages = ((event.seq, event.fact) for event in events if isinstance(event.fact, MESSAGE_FACTS))
        units = sum(engine.view.meter.message(seq, fact) for seq, fact in messages)
        return units < engine.budget().act // 2


def _thinks(change: HistoryChange) -> bool:
    return any(is_bound_utterance(fact) for chunk in change.chunks for fact in chunk.facts)


def _is_beside(event: Event) -> bool:
    """Return whether an event is system text beside the messages, or what a memory holds."""
    return isinstance(event.fact, Instructed) and (event.fact.aside or event.fact.is_memory)


def _stored_messages(log: Sequence[Event]) -> list[Event]:
    """Return the messages of a log that a caller still has: not rewound, not left out by its sliding window, and
    not brought back by `join`. A summary of the provider that the model cannot read is still in its history."""
    events = effective_events([event for event in log if not _takes_item_back(event)])
    left_out = tuple(span for fact in _left_out_drops(events).values() for span in fact.ranges)
    return [event for event in _given(events) if not is_within(event.seq, left_out)]


def _given(events: Sequence[Event]) -> list[Event]:
    joined = joined_ranges(events)
    return [event for event in _said(events) if not is_within(event.seq, joined)]


def _takes_item_back(event: Event) -> bool:
    return isinstance(event.fact, Compacted) and event.fact.takes_item_back


def _said(events: Sequence[Event]) -> list[Event]:
    return [event for event in events if isinstance(event.fact, MESSAGE_FACTS) and not _is_beside(event)]


def _left_out_drops(events: Sequence[Event]) -> dict[int, Dropped]:
    """Return, by seq, the drops that record what a sliding window has left out."""
    drops = ((event.seq, event.fact) for event in events if isinstance(event.fact, Dropped))
    return {seq: fact for seq, fact in drops if fact.reason == LEFT_OUT_BY_CALLER}


def _conversation_start(log: Sequence[Event]) -> int:
    """Return the seq after the last rewind that began a new conversation, 0 without one."""
    starts = (
        e.seq + 1 for e in reversed(log) if isinstance(e.fact, Rewound) and _begins_conversation(e.fact)
    )
    return next(starts, 0)


def _begins_conversation(fact: Rewound) -> bool:
    return fact.keep_state and not fact.keep_reductions
