"""Compares a resent message history with the messages that are already recorded.

`Context.fit` receives the whole history on every call. `MessageHistory.diff` finds what is new and what was edited:

1. Messages are recognised by content; an object of a client library equals the dict that it sends.
2. A message that is still shown is compared with a private copy, so that an edit in place is noticed at once.
3. For a message that is no longer shown, the caller's own object replaces the copy: comparing it with itself is
   cheap, and a replaced object is noticed. Of a long history, 1,024 such messages are compared per call, in turns.
4. An edited system message replaces the old one. Other fields around the same content, such as cache marks, are
   recorded as `Marked`. After any other edit, the history is new from the edited message on.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from foveal.core.log.events import (
    AnyFact,
    AnyPart,
    Call,
    Event,
    Instructed,
    Mark,
    Marked,
    ModelSaid,
    Text,
    ToolReturned,
    UserSaid,
    parts,
)
from foveal.core.view.request import copy_json
from foveal.core.wire import MessageChunk, Wire, plain_json

MESSAGE_FACTS: Final = (Instructed, UserSaid, ModelSaid, ToolReturned)
HIDDEN_MESSAGES_PER_CALL: Final = 1_024
"""Messages that are no longer shown and are compared in one call."""


class KnownMessages:
    """The messages recorded so far, oldest first."""

    def __init__(self) -> None:
        self.seq_before: list[int] = []
        """For each message, the seq of the last event that was recorded before it."""
        self._given: list[Any] = []
        """The caller's own objects."""
        self._kept: list[Any] = []
        """A copy of each message, or the caller's object once the message is hidden."""
        self._recent = 0
        """Index from which on all messages are shown."""
        self._shown_before: list[int] = []
        """Indexes of the messages before that which are shown."""
        self._next_hidden = 0
        """Index of the hidden message that the next call compares first."""

    def __len__(self) -> int:
        return len(self.seq_before)

    def add(self, messages: Sequence[Any], *, seq_before: int) -> None:
        """Add messages that were read together and recorded after the event `seq_before`."""
        self.seq_before.extend([seq_before] * len(messages))
        self._given.extend(messages)
        self._kept.extend(map(copy_json, messages))

    def replace(self, index: int, message: Any) -> None:
        """Replace a message by its newer version."""
        self._given[index] = message
        self._kept[index] = copy_json(message)

    def share_copies(self, start: int, written: Callable[[int], Sequence[Any] | None]) -> None:
        """Use the message written for the provider as the copy where both are equal, to save memory; `written`
        returns what was written for the step of an event."""
        for index in range(start, len(self)):
            for message in written(self.seq_before[index] + 1) or ():
                if message == self._kept[index]:
                    self._kept[index] = message
                    break

    def chunk_start(self, index: int) -> int:
        """Return the index of the first message that was read together with the one at `index`."""
        return bisect_left(self.seq_before, self.seq_before[index]) if index < len(self) else index

    def truncate(self, index: int) -> None:
        """Forget the messages from `index` on."""
        for column in (self.seq_before, self._given, self._kept):
            del column[index:]
        self._recent = min(self._recent, index)
        self._shown_before = [shown for shown in self._shown_before if shown < index]

    def is_same(self, given: Sequence[Any], index: int) -> bool:
        """Return whether a given message is the known one, possibly in another form; then keep the new form."""
        kept, new = self._kept[index], given[index]
        if kept == new:
            return True
        if _without_nulls(plain_json(kept)) != _without_nulls(plain_json(new)):
            return False
        self.replace(index, new)
        return True

    def end_seq(self, index: int, log_end: int) -> int:
        """Return the seq before which the events of a message end."""
        after = bisect_right(self.seq_before, self.seq_before[index])
        return self.seq_before[after] + 1 if after < len(self) else log_end

    def is_prefix_of(self, given: list[Any]) -> bool:
        """Return whether `given` begins with all known messages."""
        count, recent = len(self), self._recent
        if len(given) < count or given[recent:count] != self._kept[recent:count]:
            return False
        if not all(self._kept[index] == given[index] for index in self._shown_before):
            return False
        start, end = self._next_hidden, min(recent, self._next_hidden + HIDDEN_MESSAGES_PER_CALL)
        self._next_hidden = end if end < recent else 0
        return given[start:end] == self._kept[start:end]

    def release_hidden(self, first: int, last: int, is_shown: Callable[[int], bool]) -> None:
        """Drop the copies of messages whose events lie in `first` to `last` and are not shown any more."""
        low, high = (bisect_left(self.seq_before, seq - 1) for seq in (first, last + 1))
        older = [*self._shown_before, *range(self._recent, high)]
        for index in older:
            if low <= index < high and not is_shown(self.seq_before[index] + 1):
                self._kept[index] = self._given[index]
        self._shown_before = [index for index in older if self._has_copy(index)]
        self._recent = max(self._recent, high)

    def _has_copy(self, index: int) -> bool:
        return self._kept[index] is not self._given[index]


def _without_nulls(value: Any) -> Any:
    """Return a JSON value without empty fields: a library's object dumps fields that it does not have as null."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None and item != []}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


# ── Comparing ────────────────────────────────────────────────────────────────────────────────────────────


class ReplacedMessage(NamedTuple):
    """A known message that came with other fields or, for a system message, with another text."""

    position: int
    fact: AnyFact
    """What to record for it."""
    message: Any


class HistoryChange(NamedTuple):
    """How a history differs from the known messages."""

    start: int
    """Index of the first message that is new or was edited."""
    replaced: list[ReplacedMessage]
    """Replaced messages before that."""
    chunks: list[MessageChunk]
    """The messages from `start` on, as facts."""
    messages: Sequence[Any]
    """The messages from `start` on."""


class MessageHistory:
    """The known messages of one conversation, and where edited system messages were recorded."""

    def __init__(self) -> None:
        self.known = KnownMessages()
        self._instruction_seqs: dict[int, int] = {}
        """For an edited system message, by its index: the event with its newest text."""

    def diff(self, given: list[Any], wire: Wire, log: Sequence[Event]) -> HistoryChange:
        """Return what is new or different in a history. Nothing is recorded yet."""
        known = self.known
        if known.is_prefix_of(given):
            return _change(wire, len(known), [], given)
        replaced: list[ReplacedMessage] = []
        end, index = min(len(known), len(given)), 0
        while index < end:
            if not known.is_same(given, index):
                facts = self._new_instruction(given, index, wire, log) or self._new_marks(
                    given, index, wire, log
                )
                if not facts:
                    break
                replaced += [ReplacedMessage(index, fact, given[index]) for fact in facts]
            index += 1
        return _change(wire, known.chunk_start(index), replaced, given)

    def _new_instruction(
        self, given: list[Any], index: int, wire: Wire, log: Sequence[Event]
    ) -> list[AnyFact]:
        """Return the fact by which an edited system message replaces the old one, or nothing if it is not one."""
        old = self._instruction_seqs.get(index, self.known.seq_before[index] + 1)
        if not isinstance(log[old].fact, Instructed):
            return []
        facts = next(wire.read(given, index)).facts
        fact = facts[0] if len(facts) == 1 else None
        return [replace(fact, replaces=old)] if isinstance(fact, Instructed) else []

    def _new_marks(self, given: list[Any], index: int, wire: Wire, log: Sequence[Event]) -> list[AnyFact]:
        """Return the facts for a message with the same content but other fields, or nothing if it was edited."""
        chunk = next(wire.read(given, index))
        first, end = self.known.seq_before[index] + 1, self.known.end_seq(index, len(log))
        old = [event for event in log[first:end] if isinstance(event.fact, MESSAGE_FACTS)]
        if chunk.messages != 1 or len(old) != len(chunk.facts):
            return []
        pairs = list(zip(old, chunk.facts, strict=True))
        if any(_without_marks(event.fact) != _without_marks(fact) for event, fact in pairs):
            return []
        return [Marked(target=event.seq, marks=_marks(fact)) for event, fact in pairs]

    def note_replaced(self, replaced: ReplacedMessage, event: Event) -> None:
        """Note that `event` records the newer version of a message."""
        if isinstance(event.fact, Instructed):
            self._instruction_seqs[replaced.position] = event.seq
        self.known.replace(replaced.position, replaced.message)

    def truncate(self, index: int) -> None:
        """Forget the messages from `index` on."""
        self.known.truncate(index)
        self._instruction_seqs = {i: seq for i, seq in self._instruction_seqs.items() if i < index}


def _change(wire: Wire, start: int, replaced: list[ReplacedMessage], given: list[Any]) -> HistoryChange:
    before = [message for message in replaced if message.position < start]
    return HistoryChange(start, before, list(wire.read(given, start)), given[start:])


# ── Marks ────────────────────────────────────────────────────────────────────────────────────────────────


def _without_marks(fact: AnyFact) -> AnyFact:
    """Return a message with its content only, without any other fields."""
    assert isinstance(fact, MESSAGE_FACTS)
    content = tuple(_part_without_marks(part) for part in parts(fact.content))
    bare = replace(fact, content=content, extra=UNSET, dialect="")
    return replace(bare, listed=False) if isinstance(bare, ModelSaid) else bare


def _part_without_marks(part: AnyPart) -> AnyPart:
    return replace(part, extra=UNSET) if isinstance(part, Text | Call) else part


def _marks(fact: AnyFact) -> tuple[Mark, ...]:
    """Return the other fields of a message and of each of its parts."""
    assert isinstance(fact, MESSAGE_FACTS)
    inner = (
        Mark(part=i, extra=p.extra) for i, p in enumerate(parts(fact.content)) if isinstance(p, Text | Call)
    )
    return (Mark(part=-1, extra=fact.extra), *(mark for mark in inner if mark.extra is not UNSET))
