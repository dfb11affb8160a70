"""Compares a resent message history with the messages that are already recorded.

`Context.fit` receives the whole history on every call. `MessageHistory.diff` finds what is new and what was edited:

1. Messages are recognised by content; an object of a client library equals the dict that it sends.
2. A message that is still shown is compared with a private copy, so that an edit in place is noticed at once.
3. For a message that is no longer shown, the caller's own object replaces the copy: comparing it with itself is
   cheap, and a replaced object is noticed. If the caller makes new objects for every call, 1,024 such messages are
   compared per call, in turns.
4. An edited system message replaces the old one. Other fields around the same content, such as cache marks, are
   recorded as `Marked`. After any other edit, the history is new from the edited message on.
5. A caller that keeps a sliding window leaves out old messages; the rest is recognised, not recorded again.
6. After a restart, `adopt` recognises a history in the messages of a stored log.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from foveal.core.engine.origins import InputRange
from foveal.core.engine.stored_messages import (
    MESSAGE_FACTS,
    StoredMessages,
    marks_of,
    says_something,
    without_marks,
)
from foveal.core.log.events import (
    AnyFact,
    Event,
    Instructed,
    Marked,
    UserSaid,
)
from foveal.core.view.request import copy_json
from foveal.core.wire import MessageChunk, Wire, is_same_message, plain_json, without_nulls
from foveal.core.wire.common import encode_json

HIDDEN_MESSAGES_PER_CALL: Final = 1_024
"""Messages that are no longer shown and are compared in one call, if the caller makes new objects for each."""


class KnownMessages:
    """The messages recorded so far, oldest first."""

    def __init__(self) -> None:
        self.seq_before: list[int] = []
        """For each message, the seq of the last event that was recorded before it."""
        self._seq_last: list[int] = []
        """For each message, the seq of its last event. What follows it may be rewound, left out or no message."""
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
        self._gaps: dict[int, int] = {}
        """Where a sliding window has left messages out: the index of the message after them, and the seq before the
        first of them."""

    def __len__(self) -> int:
        return len(self.seq_before)

    def __getitem__(self, index: int) -> Any:
        return self._kept[index]

    def newest(self, count: int) -> list[Any]:
        """Return the newest messages, at most `count`."""
        return self._kept[-count:]

    def add(self, messages: Sequence[Any], *, seq_before: int, seq_last: int) -> None:
        """Add messages that were read together and recorded after the event `seq_before`, up to `seq_last`."""
        self.seq_before.extend([seq_before] * len(messages))
        self._seq_last.extend([seq_last] * len(messages))
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
        for column in (self.seq_before, self._seq_last, self._given, self._kept):
            del column[index:]
        self._recent = min(self._recent, index)
        self._shown_before = [shown for shown in self._shown_before if shown < index]
        self._gaps = {place: seq for place, seq in self._gaps.items() if place < index}

    def rewind_seq(self, index: int) -> int:
        """Return the seq to rewind to, so that the messages from `index` on no longer count."""
        return self._gaps.get(index, self.seq_before[index])

    def has_gap(self, index: int) -> bool:
        """Return whether messages in front of the one at `index` were left out."""
        return index in self._gaps

    def note_gap(self, index: int, seq_before: int) -> None:
        """Note that messages after the event `seq_before` were left out in front of the one at `index`."""
        self._gaps[index] = seq_before

    def remove(self, start: int, end: int) -> None:
        """Forget the messages from `start` to before `end`; those after them move up."""
        seq_before = self.rewind_seq(start)
        gaps = {_moved_up(at, start, end): seq for at, seq in self._gaps.items() if not start <= at < end}
        self._gaps = gaps | {start: seq_before}
        for column in (self.seq_before, self._seq_last, self._given, self._kept):
            del column[start:end]
        self._recent = _moved_up(self._recent, start, end)
        self._next_hidden = 0
        self._shown_before = [
            _moved_up(shown, start, end) for shown in self._shown_before if not start <= shown < end
        ]

    def left_out(self, given: Sequence[Any], start: int) -> int:
        """Return how many known messages from `start` on a sliding window may have left out: the rest of the known
        messages follows in `given`. 0 if it does not."""
        count = len(self)
        for first in range(max(start + 1, count + start - len(given)), count):
            if all(self._kept[first + at] == given[start + at] for at in range(count - first)):
                return first - start
        return 0

    def shared(self, given: Iterable[Any]) -> list[int]:
        """Return the indexes of the known messages that are among these."""
        keys = set(map(_as_json, given))
        return [index for index, message in enumerate(self._kept) if _as_json(message) in keys]

    def is_same(self, given: Sequence[Any], index: int) -> bool:
        """Return whether a given message is the known one, possibly in another form; then keep the new form."""
        kept, new = self._kept[index], given[index]
        if kept == new:
            return True
        if not is_same_message(kept, new):
            return False
        self.replace(index, new)
        return True

    def given_events(self, index: int, log: Sequence[Event]) -> list[Event]:
        """Return the events that record a message and those read together with it."""
        return [e for e in log[self.seq_before[index] + 1 : self._seq_last[index] + 1] if _is_given(e)]

    def is_prefix_of(self, given: list[Any]) -> bool:
        """Return whether `given` begins with all known messages."""
        count, recent = len(self), self._recent
        if len(given) < count:
            return False
        if count and given[count - 1] is self._given[count - 1]:
            return self._begins(given)
        if given[recent:count] != self._kept[recent:count]:
            return False
        shown = self._shown_before
        if list(map(given.__getitem__, shown)) != list(map(self._kept.__getitem__, shown)):
            return False
        start, end = self._next_hidden, min(recent, self._next_hidden + HIDDEN_MESSAGES_PER_CALL)
        self._next_hidden = end if end < recent else 0
        return given[start:end] == self._kept[start:end]

    def _begins(self, given: list[Any]) -> bool:
        """Return whether `given`, which is not shorter, begins with all known messages; fast if the hidden ones are
        the same objects."""
        # Two lists of one length are compared without a look at objects that are the same. A slice would touch each
        # of thousands of them, which takes longer than the comparison.
        count = len(self._kept)
        try:
            self._kept += given[count:]
            return self._kept == given
        finally:
            del self._kept[count:]

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


def _as_json(message: Any) -> bytes:
    return encode_json(without_nulls(plain_json(message)))


def _moved_up(index: int, start: int, end: int) -> int:
    """Return where an index is after the items from `start` to before `end` were taken out."""
    return index if index <= start else max(start, index - (end - start))


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
    left_out: tuple[int, int] | None = None
    """First and last seq of known messages that a sliding window has left out; `start` counts without them."""
    is_unrelated: bool = False
    """Whether nothing that was said before is in the history: it belongs to another conversation."""
    diverged: int = 0
    """Recorded messages that the history leaves, if it does so before the newest of the user's: it may belong to
    another conversation that began in the same way."""


class Adopted(NamedTuple):
    """What a history has in common with a stored log."""

    marks: list[Marked]
    """Fields around messages that have changed since."""
    rest: Sequence[Event] = ()
    """Messages of the log that the history does not have there."""
    left_out: tuple[int, int] | None = None
    """First and last seq of messages that a sliding window has left out since."""
    is_unrelated: bool = False
    """Whether nothing that was said before is in the history."""
    is_diverged: bool = False
    """Whether the history leaves the log before its newest user message."""


class MessageHistory:
    """The known messages of one conversation, and where edited system messages were recorded."""

    def __init__(self) -> None:
        self.known: KnownMessages = KnownMessages()
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
        start = known.chunk_start(index)
        left_out = self._left_out(given, start, log)
        if left_out is not None:
            return _change(wire, start + len(known) - left_out, replaced, given)._replace(
                left_out=(known.seq_before[start] + 1, known.seq_before[left_out])
            )
        return _change(wire, start, replaced, given)._replace(
            is_unrelated=self._is_unrelated(given, start, log), diverged=self._diverged(given, start, log)
        )

    def _left_out(self, given: list[Any], start: int, log: Sequence[Event]) -> int | None:
        """Return the index of the first known message after those that a sliding window has left out; None if the
        history was edited, or if what is left says too little: another conversation may have the same. System
        messages are never taken as left out."""
        known = self.known
        count = known.left_out(given, start)
        if not count or known.chunk_start(start + count) != start + count:
            return None
        if not self._say_something(range(start + count, len(known)), log):
            return None
        left = log[known.seq_before[start] + 1 : known.seq_before[start + count] + 1]
        has_instruction = any(isinstance(event.fact, Instructed) and _is_given(event) for event in left)
        return None if has_instruction else start + count

    def is_edit_after_gap(self, change: HistoryChange) -> bool:
        """Return whether the first edited message follows messages that a sliding window has left out: these may
        be back."""
        return change.left_out is None and change.start < len(self.known) and self.known.has_gap(change.start)

    def _is_unrelated(self, given: list[Any], start: int, log: Sequence[Event]) -> bool:
        known = self.known
        if start == len(known):
            return False
        firsts = (log[seq + 1].fact for seq in known.seq_before[:start])
        return all(isinstance(fact, Instructed) for fact in firsts) and not self._has_any(given[start:], log)

    def _diverged(self, given: list[Any], start: int, log: Sequence[Event]) -> int:
        known = self.known
        later = (event for index in range(start + 1, len(known)) for event in known.given_events(index, log))
        if not any(isinstance(event.fact, UserSaid) for event in later) or self._has_any(given[start:], log):
            return 0
        return len(known) - start

    def _has_any(self, given: Iterable[Any], log: Sequence[Event]) -> bool:
        """Return whether known messages that say something are among these."""
        return self._say_something(self.known.shared(given), log)

    def _say_something(self, indexes: Iterable[int], log: Sequence[Event]) -> bool:
        events = (event for index in indexes for event in self.known.given_events(index, log))
        return says_something(event.fact for event in events)

    def remove(self, change: HistoryChange) -> None:
        """Forget the messages that a sliding window has left out."""
        if change.left_out is None:
            return
        first, last = change.left_out
        start = bisect_left(self.known.seq_before, first - 1)
        end = bisect_left(self.known.seq_before, last)
        self.known.remove(start, end)
        self._instruction_seqs = {
            _moved_up(index, start, end): seq for index, seq in self._instruction_seqs.items()
        }

    def adopt(self, given: list[Any], wire: Wire, said: Sequence[Event]) -> Adopted:
        """Recognise a history in what a stored log has said: its beginning, or all that a sliding window has
        left."""
        stored = StoredMessages(said)
        chunks, taken, matched = _as_recorded(given, wire, stored)
        marks = self._adopt_chunks(given, chunks[:matched], stored, 0)
        after_gap = stored.end_of_left_out(chunks[matched:], taken)
        if not after_gap:
            rest = stored.events[taken:]
            new = chunks[matched:]
            is_unrelated, is_diverged = stored.is_unrelated(taken, new), stored.is_diverged(taken, new)
            return Adopted(marks, rest, is_unrelated=is_unrelated, is_diverged=is_diverged)
        left = stored.events[taken].seq, stored.events[after_gap].seq - 1
        gap = len(self.known)
        count = len(stored.events) - after_gap
        marks += self._adopt_chunks(given, _with_facts(chunks[matched:], count), stored, after_gap)
        self.known.note_gap(gap, left[0] - 1)
        return Adopted(marks, left_out=left)

    def _adopt_chunks(
        self, given: list[Any], chunks: Sequence[MessageChunk], stored: StoredMessages, first: int
    ) -> list[Marked]:
        """Add messages that the stored events from `first` on record. Return the fields around them that have
        changed since."""
        marks: list[Marked] = []
        for chunk in chunks:
            index = len(self.known)
            held = stored.events[first : first + len(chunk.facts)]
            seq_before = held[0].seq - 1 if held else (stored.events[first - 1].seq if first else -1)
            self.known.add(
                given[index : index + chunk.messages],
                seq_before=seq_before,
                seq_last=held[-1].seq if held else seq_before,
            )
            for event, fact in zip(held, chunk.facts, strict=True):
                newest = stored.newest(event)
                if newest is not event:
                    self._instruction_seqs[index] = newest.seq
                if marks_of(newest.fact) != marks_of(fact):
                    marks.append(Marked(target=newest.seq, marks=marks_of(fact)))
            first += len(held)
        return marks

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
        old = self.known.given_events(index, log)
        if chunk.messages != 1 or len(old) != len(chunk.facts):
            return []
        pairs = list(zip(old, chunk.facts, strict=True))
        if any(without_marks(event.fact) != without_marks(fact) for event, fact in pairs):
            return []
        return [Marked(target=event.seq, marks=marks_of(fact)) for event, fact in pairs]

    def inputs_of(self, seq: int, log: Sequence[Event]) -> InputRange | None:
        """Return the known messages that were read together with an event; None if it records none of them."""
        replaced = next((index for index, newest in self._instruction_seqs.items() if newest == seq), -1)
        index = bisect_left(self.known.seq_before, seq) - 1 if replaced < 0 else replaced
        given = self.known.given_events(index, log) if index >= 0 else []
        if replaced < 0 and all(event.seq != seq for event in given):
            return None
        first = self.known.chunk_start(index)
        end = bisect_right(self.known.seq_before, self.known.seq_before[index])
        return InputRange(first, end, len(given))

    def note_replaced(self, replaced: ReplacedMessage, event: Event) -> None:
        """Note that `event` records the newer version of a message."""
        if isinstance(event.fact, Instructed):
            self._instruction_seqs[replaced.position] = event.seq
        self.known.replace(replaced.position, replaced.message)

    def truncate(self, index: int) -> None:
        """Forget the messages from `index` on."""
        self.known.truncate(index)
        self._instruction_seqs = {i: seq for i, seq in self._instruction_seqs.items() if i < index}


def _is_given(event: Event) -> bool:
    """Return whether an event records a message of the history, and not text beside it or a newer version."""
    fact = event.fact
    if isinstance(fact, Instructed):
        return not fact.is_beside_history
    return isinstance(fact, MESSAGE_FACTS)


def _as_recorded(given: list[Any], wire: Wire, stored: StoredMessages) -> tuple[list[MessageChunk], int, int]:
    """Return a history as chunks, how many stored events it begins with, and the number of chunks up to there.

    Items of OpenAI Responses that are read together may have come one after the other, in requests of their own.
    """
    chunks = list(wire.read(given))
    taken, matched = stored.common_beginning(chunks)
    while matched < len(chunks) and chunks[matched].messages > 1:
        start = sum(chunk.messages for chunk in chunks[:matched])
        for end in range(start + 1, start + chunks[matched].messages):
            parts = list(wire.read(given[start:end]))
            after, found = stored.common_beginning(parts, taken)
            if parts and found == len(parts):
                rest = list(wire.read(given, end))
                chunks[matched:] = [*parts, *rest]
                matched += found
                taken, found = stored.common_beginning(rest, after)
                matched += found
                break
        else:
            break
    return chunks, taken, matched


def _with_facts(chunks: Sequence[MessageChunk], count: int) -> list[MessageChunk]:
    """Return the first chunks, as many as have `count` facts."""
    ends = accumulate(len(chunk.facts) for chunk in chunks)
    return [chunk for chunk, end in zip(chunks, ends, strict=True) if end <= count]


def _change(wire: Wire, start: int, replaced: list[ReplacedMessage], given: list[Any]) -> HistoryChange:
    before = [message for message in replaced if message.position < start]
    return HistoryChange(start, before, list(wire.read(given, start)), given[start:])
