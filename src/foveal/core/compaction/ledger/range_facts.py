"""Facts about a range of events, kept from one ledger to the next.

1. `LedgerIndex.of(event)` and `words_of(event)` read an event once and cache the answer by its seq.
2. `RangeFacts` is a fold over the facts of consecutive events. The index keeps the folds of the latest ranges: a
   ledger of a range that has grown at its end continues the fold of the ledger before.
3. What a ledger says never depends on what is cached. An index is not needed, it only saves time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import Final

from foveal.core.compaction.ledger.allocation import ItemSizes
from foveal.core.compaction.ledger.call_outcome import ToolAction, has_failed
from foveal.core.compaction.ledger.call_reader import FileKeys
from foveal.core.compaction.ledger.event_facts import (
    EventFacts,
    EventWords,
    ModelFacts,
    ToolCallFacts,
    UserFacts,
    read_facts,
    read_words,
)
from foveal.core.compaction.ledger.files_and_commands import CommandHistory, FileHistory
from foveal.core.compaction.ledger.unresolved_errors import FailureHistory
from foveal.core.log.events import Event, ToolReturned
from foveal.core.tokens.counter import Counter

MAX_RANGES_KEPT: Final = 4
"""Ranges whose folds an index keeps, the latest ones."""
MAX_PREPARED_AT_ONCE: Final = 16
"""Events that are read before a ledger needs them: the messages of one or two turns."""
MAX_WORDS_KEPT: Final = 480
"""Events whose names and lines an index keeps: the latest. A ledger quotes from the newest part of its range."""


class RangeFacts:
    """What the sections of a ledger tell about consecutive events, kept up to date as events are added."""

    def __init__(self, index: LedgerIndex, *, keys: FileKeys | None = None) -> None:
        self.events: list[Event] = []
        self.keys = keys or FileKeys()
        self.requests: list[tuple[Event, UserFacts]] = []
        self.answered_at = -1
        """Seq of the latest message that ended a turn."""
        self.said: list[Event] = []
        """Messages of the model with a text."""
        self.planned: list[tuple[int, ToolCallFacts]] = []
        """Calls of planning tools."""
        self.files = FileHistory(self.keys)
        self.commands = CommandHistory()
        self.failures = FailureHistory(self.keys)
        self.by_result: dict[int, ToolAction] = {}
        """Calls by the seq of their result."""
        self._open: dict[str, tuple[int, ToolCallFacts]] = {}
        """Calls without a result, by their id."""
        self._replaced: list[tuple[int, ToolCallFacts]] = []
        """Calls without a result whose id another call has taken."""
        self._index = index

    def extend(self, events: Iterable[Event]) -> None:
        """Add the events that follow."""
        for event in events:
            self.events.append(event)
            if isinstance(event.fact, ToolReturned):
                self._add_result(event, event.fact)
                continue
            facts = self._index.of(event)
            if isinstance(facts, ModelFacts):
                self._add_message(event, facts)
            elif isinstance(facts, UserFacts):
                self.requests.append((event, facts))

    def _add_message(self, event: Event, facts: ModelFacts) -> None:
        if facts.ends_turn:
            self.answered_at = event.seq
        if facts.has_text:
            self.said.append(event)
        for call in facts.calls:
            if call.is_plan:
                self.planned.append((event.seq, call))
            if before := self._open.pop(call.call.id, None):
                self._replaced.append(before)
            self._open[call.call.id] = event.seq, call

    def _add_result(self, event: Event, result: ToolReturned) -> None:
        """Add the call that a result belongs to: the latest one before it that has its id."""
        called = self._open.pop(result.call_id, None)
        if called is None:
            return
        seq, call = called
        failed = self._index.has_failed(event.seq, result, seq, call)
        action = self.by_result[event.seq] = ToolAction(seq, call, result, event.seq, failed)
        self.files.add(action)
        self.commands.add(action)
        self.failures.add(action)

    def open_calls(self) -> list[ToolAction]:
        """Return the calls without a result, newest first."""
        calls = sorted((*self._replaced, *self._open.values()), key=lambda called: called[0])
        return [
            ToolAction(seq, call, result=None, result_seq=seq, has_failed=False)
            for seq, call in reversed(calls)
        ]


class LedgerIndex:
    """Caches what ledgers read in events. The key is the seq, so no text is read twice."""

    def __init__(self, known: LedgerIndex | None = None) -> None:
        """Start empty, or with what another index has read in events."""
        self._facts: dict[int, EventFacts] = dict(known._facts) if known else {}
        self._words: dict[int, EventWords] = dict(known._words) if known else {}
        self._failed: dict[tuple[int, int], bool] = dict(known._failed) if known else {}
        """Whether a result reports a failure, by its seq and the seq of its call."""
        self._ranges: dict[int, RangeFacts] = {}
        """Folds by the seq of their first event; the one that was used last is the last one."""
        self._sizes: ItemSizes | None = None

    def of(self, event: Event) -> EventFacts:
        """Return the facts of an event."""
        if event.seq not in self._facts:
            self._facts[event.seq] = read_facts(event)
        return self._facts[event.seq]

    def words_of(self, event: Event) -> EventWords:
        """Return the names and lines of a result or of a message's calls."""
        words = self._words.get(event.seq)
        if words is None:
            words = self._words[event.seq] = read_words(event)
            if len(self._words) > MAX_WORDS_KEPT:
                del self._words[next(iter(self._words))]
        return words

    def has_failed(self, seq: int, result: ToolReturned, called_at: int, call: ToolCallFacts) -> bool:
        """Return whether the result at `seq` reports a failure of its call."""
        failed = self._failed.get((seq, called_at))
        if failed is None:
            failed = self._failed[seq, called_at] = has_failed(result, call.command, call.touched)
        return failed

    def item_sizes(self, counter: Counter) -> ItemSizes:
        """Return the sizes of items in units of a counter."""
        if self._sizes is None or self._sizes.counter is not counter:
            self._sizes = ItemSizes(counter)
        return self._sizes

    def prepare(self, event: Event) -> None:
        """Read an event now, so that the next ledger need not."""
        self.of(event)
        self.words_of(event)

    def prepare_newest(self, events: Sequence[Event]) -> None:
        """Read the newest of these events. Of many at once, the others are read only if a ledger needs them."""
        for event in events[-MAX_PREPARED_AT_ONCE:]:
            self.prepare(event)

    def range_facts(self, events: Sequence[Event]) -> RangeFacts:
        """Return the facts about these events, which are consecutive effective events of the log."""
        known = self._ranges.pop(events[0].seq, None) if events else None
        done = len(known.events) if known else 0
        if known is None or known.events != events[:done]:
            known, done = RangeFacts(self), 0
        known.extend(events[done:])
        if events:
            self._ranges[events[0].seq] = known
        if len(self._ranges) > MAX_RANGES_KEPT:
            del self._ranges[next(iter(self._ranges))]
        return known

    def facts_after(self, facts: RangeFacts, events: Iterable[Event]) -> RangeFacts:
        """Return the facts about the events after a range, with the same files under the same names."""
        later = RangeFacts(self, keys=FileKeys(facts.keys))
        later.extend(events)
        return later

    def keep_only(self, seqs: Set[int]) -> None:
        """Keep only what was read in these events."""
        self._facts = {seq: facts for seq, facts in self._facts.items() if seq in seqs}
        self._words = {seq: words for seq, words in self._words.items() if seq in seqs}
        self._failed = {key: failed for key, failed in self._failed.items() if key[0] in seqs}
        self._ranges = {}

    def forget_from(self, seq: int) -> None:
        """Forget the events from `seq` on, because other events will get these seqs."""
        self._facts = {known: facts for known, facts in self._facts.items() if known < seq}
        self._words = {known: words for known, words in self._words.items() if known < seq}
        self._failed = {key: failed for key, failed in self._failed.items() if max(key) < seq}
        self._ranges = {first: facts for first, facts in self._ranges.items() if facts.events[-1].seq < seq}
