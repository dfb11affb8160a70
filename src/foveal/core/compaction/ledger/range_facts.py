"""Facts about a range of events, kept from one ledger to the next.

1. `LedgerIndex.of(event)` and `words_of(event)` read an event once and cache the answer by its seq.
2. `RangeFacts` is a fold over the facts of consecutive events. The index keeps the folds of the latest ranges: a
   ledger of a range that has grown at its end continues the fold of the ledger before.
3. What a ledger says never depends on what is cached. An index is not needed, it only saves time.
4. A fold of a long range does not need its texts: `release_texts` keeps those that a ledger may still quote.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence, Set
from itertools import islice
from operator import attrgetter
from typing import Final

from foveal.core.compaction.ledger.allocation import ItemSizes
from foveal.core.compaction.ledger.call_reader import FileKeys
from foveal.core.compaction.ledger.event_facts import (
    EventFacts,
    EventWords,
    ModelFacts,
    SentenceReader,
    ToolAction,
    ToolCallFacts,
    UserFacts,
    has_failed,
    quotable_text,
    read_facts,
    read_words,
)
from foveal.core.compaction.ledger.files_and_commands import CallHistory, FileHistory
from foveal.core.compaction.ledger.unresolved_errors import FailureHistory
from foveal.core.compaction.standing.statements import question_in
from foveal.core.log.events import Event, ModelSaid, Superseded, ToolReturned, text_of
from foveal.core.reduction.result_digest import digest_lines
from foveal.core.tokens.counter import Counter

MAX_RANGES_KEPT: Final = 4
"""Ranges whose folds an index keeps, the latest ones."""
MAX_PREPARED_AT_ONCE: Final = 16
"""New events that are read before a ledger needs them: the messages of one or two turns."""
MAX_OLDER_PREPARED_AT_ONCE: Final = 2
"""Older events that are read in addition, where many came at once: those of a first request."""
MAX_WORDS_KEPT: Final = 1_200
"""Events whose names and lines an index keeps, or a quarter more: the latest. A ledger quotes from the newest part
of its range, and reads the names of what stays behind it."""
_MAX_CALL_DISTANCE: Final = 16
"""Events before a result among which its call is looked for when it is prepared."""
_seq = attrgetter("seq")
MAX_EVENTS_QUOTED: Final = 150
"""Results that a ledger reads for lines and names to quote, and as many messages with calls: the newest."""
MAX_MESSAGES_TOLD: Final = 60
"""Messages of the model that a ledger looks at for a plan and for its last words, at most: the newest."""
_SPARE: Final = 2
"""How many times as many texts are kept: some of the newest events stay visible and are not quoted."""
_RELEASED_RESULT: Final = ToolReturned(call_id="", content="")
_RELEASED_MESSAGE: Final = ModelSaid(content="")


class RangeFacts:
    """What the sections of a ledger tell about consecutive events, kept up to date as events are added."""

    def __init__(self, index: LedgerIndex, *, keys: FileKeys | None = None) -> None:
        self.events: list[Event] = []
        self.keys: FileKeys = keys or FileKeys()
        self.requests: list[tuple[Event, UserFacts]] = []
        self.questions: dict[int, str] = {}
        """Questions of the agent that messages of the user answer, by the seq of the answer."""
        self.superseded: dict[int, int] = {}
        """Messages that the user has declared replaced, each with the later one."""
        self.answered_at: int = -1
        """Seq of the latest message that ended a turn."""
        self.said: list[Event] = []
        """Messages of the model with a text."""
        self.planned: list[tuple[int, ToolCallFacts]] = []
        """Calls of planning tools."""
        self.files: FileHistory = FileHistory(self.keys)
        self.commands: CallHistory = CallHistory()
        self.failures: FailureHistory = FailureHistory(self.keys)
        self.by_result: dict[int, ToolAction] = {}
        """Calls by the seq of their result."""
        self._open: dict[str, tuple[int, ToolCallFacts]] = {}
        """Calls without a result, by their id."""
        self._replaced: list[tuple[int, ToolCallFacts]] = []
        """Calls without a result whose id another call has taken."""
        self._results_with_text: deque[int] = deque()
        """Places of results in `events`."""
        self._messages_with_text: deque[int] = deque()
        """Places of messages of the model in `events`."""
        self._released_said = 0
        self._index = index

    def extend(self, events: Iterable[Event]) -> None:
        """Add the events that follow."""
        for event in events:
            place = len(self.events)
            self.events.append(event)
            if isinstance(event.fact, ToolReturned):
                self._results_with_text.append(place)
                self._add_result(event, event.fact)
                continue
            if isinstance(event.fact, Superseded):
                self.superseded[event.fact.target] = event.fact.by
                continue
            facts = self._index.of(event)
            if isinstance(facts, ModelFacts):
                self._messages_with_text.append(place)
                self._add_message(event, facts)
            elif isinstance(facts, UserFacts):
                self.requests.append((event, facts))
                self._add_question(event.seq)

    def _add_question(self, seq: int) -> None:
        """Add the question of the agent that the message at `seq` follows, if there is one."""
        asked = self.said[-1].fact if self.said and self.said[-1].seq == self.answered_at else None
        question = question_in(text_of(asked.content)) if isinstance(asked, ModelSaid) else ""
        if question:
            self.questions[seq] = question

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

    def release_texts(self) -> None:
        """Forget the texts of results and of the model's messages that are too old to be quoted; facts stay."""
        while len(self._results_with_text) > _SPARE * MAX_EVENTS_QUOTED:
            place = self._results_with_text.popleft()
            event = self.events[place]
            self.by_result.pop(event.seq, None)
            self.events[place] = Event(event.seq, _RELEASED_RESULT, event.at)
        while len(self._messages_with_text) > _SPARE * MAX_EVENTS_QUOTED:
            place = self._messages_with_text.popleft()
            event = self.events[place]
            self.events[place] = Event(event.seq, _RELEASED_MESSAGE, event.at)
        while len(self.said) - self._released_said > _SPARE * MAX_MESSAGES_TOLD:
            event = self.said[self._released_said]
            self.said[self._released_said] = Event(event.seq, _RELEASED_MESSAGE, event.at)
            self._released_said += 1
        self.commands.release_texts()
        self.failures.release_texts()

    def has_texts_beside(self, keep: Set[int]) -> bool:
        """Return whether all texts that a ledger may quote are there if the events of `keep` stay visible."""
        for places, wanted in (
            (self._results_with_text, MAX_EVENTS_QUOTED),
            (self._messages_with_text, MAX_EVENTS_QUOTED),
        ):
            kept = sum(self.events[place].seq in keep for place in places)
            if len(places) >= _SPARE * wanted and len(places) - kept < wanted:
                return False
        told = self.said[self._released_said :]
        kept = sum(event.seq in keep for event in told)
        return not self._released_said or len(told) - kept >= MAX_MESSAGES_TOLD

    def newest_results(self, *, keep: Set[int]) -> dict[int, Event]:
        """Return the results that a ledger may quote, by their seq: the newest without the events of `keep`."""
        places = (place for place in reversed(self._results_with_text) if self.events[place].seq not in keep)
        newest = (self.events[place] for place in islice(places, MAX_EVENTS_QUOTED))
        return {event.seq: event for event in newest}

    def open_calls(self) -> list[ToolAction]:
        """Return the calls without a result, newest first."""
        calls = sorted((*self._replaced, *self._open.values()), key=lambda called: called[0])
        return [
            ToolAction(seq, call, result=None, result_seq=seq, has_failed=False)
            for seq, call in reversed(calls)
        ]


class LedgerIndex:
    """Caches what ledgers read in events. The key is the seq, so no text is read twice."""

    def __init__(
        self, known: LedgerIndex | None = None, *, sentences_of: SentenceReader | None = None
    ) -> None:
        """Start empty, or with what another index has read in events. `sentences_of` reads messages of the user."""
        self._sentences_of = sentences_of
        self._facts: dict[int, EventFacts] = dict(known._facts) if known else {}
        self._words: dict[int, EventWords] = dict(known._words) if known else {}
        self._digests: dict[int, str] = dict(known._digests) if known else {}
        self._prepared: tuple[int, int] | None = None
        """The seqs of the oldest and the newest event that were prepared, with all between them."""
        self._failed: dict[tuple[int, int], bool] = dict(known._failed) if known else {}
        """Whether a result reports a failure, by its seq and the seq of its call."""
        self._ranges: dict[int, RangeFacts] = {}
        """Folds by the seq of their first event; the one that was used last is the last one."""
        self._sizes: ItemSizes | None = None

    def of(self, event: Event) -> EventFacts:
        """Return the facts of an event."""
        if event.seq not in self._facts:
            self._facts[event.seq] = read_facts(event, self._sentences_of)
        return self._facts[event.seq]

    def words_of(self, event: Event) -> EventWords:
        """Return the names and lines of a result or of a message's calls."""
        words = self._words.get(event.seq)
        if words is None:
            words = self._words[event.seq] = read_words(event)
            if len(self._words) > MAX_WORDS_KEPT * 5 // 4:
                self._words = {seq: self._words[seq] for seq in sorted(self._words)[-MAX_WORDS_KEPT:]}
        return words

    def digest_of(self, event: Event) -> str:
        """Return the most telling line of the digest of a result; "" if it has none."""
        digest = self._digests.get(event.seq)
        if digest is None:
            digest = next(digest_lines(quotable_text(event)), "")
            self._digests = {} if len(self._digests) >= MAX_WORDS_KEPT else self._digests
            self._digests[event.seq] = digest
        return digest

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

    def prepare_newest(self, events: Sequence[Event], since: int = -1) -> None:
        """Read the new ones of these events, the log so far. Of many at once, a few more are read each time, the
        newest first and none before `since`, so that a ledger that comes later finds them read."""
        if not events:
            return
        end = len(events)
        low, high = self._prepared or (-1, -1)
        new = end
        while new > max(0, end - MAX_PREPARED_AT_ONCE) and events[new - 1].seq > high:
            new -= 1
        # If many came at once, there is a gap between these and those that were prepared before.
        if self._prepared is None or (new and events[new - 1].seq > high):
            low = events[new].seq
        first = end
        if low > since:
            older = bisect_left(events, low, key=_seq)
            first = max(0, older - MAX_OLDER_PREPARED_AT_ONCE, end - MAX_WORDS_KEPT)
            for place in range(first, older):
                self._prepare_with_call(events, place)
        for place in range(new, end):
            self._prepare_with_call(events, place)
        self._prepared = min(low, events[first].seq if first < end else low), events[-1].seq

    def _prepare_with_call(self, events: Sequence[Event], place: int) -> None:
        """Read an event and, for a result, whether it reports a failure of its call."""
        event = events[place]
        self.prepare(event)
        result = event.fact
        if not isinstance(result, ToolReturned):
            return
        for other in reversed(events[max(0, place - _MAX_CALL_DISTANCE) : place]):
            facts = self.of(other)
            if isinstance(facts, ModelFacts):
                for call in facts.calls:
                    if call.call.id == result.call_id:
                        self.has_failed(event.seq, result, other.seq, call)
                        return

    def range_facts(self, events: Sequence[Event]) -> RangeFacts:
        """Return the facts about these events, which are consecutive effective events of the log."""
        known = self._ranges.pop(events[0].seq, None) if events else None
        done = len(known.events) if known else 0
        if known is None or known.events != events[:done]:
            known, done = RangeFacts(self), 0
        known.extend(events[done:])
        if events:
            self._keep_range(events[0].seq, known)
        return known

    def _keep_range(self, first: int, facts: RangeFacts) -> None:
        self._ranges[first] = facts
        if len(self._ranges) > MAX_RANGES_KEPT:
            del self._ranges[next(iter(self._ranges))]

    def known_events(self, first: int, last: int, *, keep: Set[int]) -> Sequence[Event]:
        """Return the events of the fold that begins at `first`, for a ledger of a range from there to `last`; some
        have no text any more. None of them if that ledger cannot continue the fold: it needs all events."""
        known = self._ranges.get(first)
        if known is not None and (known.events[-1].seq > last or not known.has_texts_beside(keep)):
            del self._ranges[first]
            known = None
        return known.events if known is not None else ()

    def extend_range(self, first: int, events: Sequence[Event]) -> Sequence[Event]:
        """Continue the fold that begins at `first` with the events that follow it, and release texts; return all of
        its events. A long range is folded in parts in this way."""
        facts = self._ranges.pop(first, None) or RangeFacts(self)
        facts.extend(events)
        facts.release_texts()
        self._keep_range(first, facts)
        for event in events:
            self._facts.pop(event.seq, None)
        self._failed = {} if len(self._failed) > MAX_WORDS_KEPT else self._failed
        return facts.events

    def facts_after(self, facts: RangeFacts, events: Iterable[Event]) -> RangeFacts:
        """Return the facts about the events after a range, with the same files under the same names."""
        later = RangeFacts(self, keys=FileKeys(facts.keys))
        later.extend(events)
        return later

    def keep_only(self, seqs: Set[int]) -> None:
        """Keep only what was read in these events, the folds without old texts, and words within their limit."""
        self._facts = {seq: facts for seq, facts in self._facts.items() if seq in seqs}
        self._failed = {key: failed for key, failed in self._failed.items() if key[0] in seqs}
        for facts in self._ranges.values():
            facts.release_texts()

    def forget_from(self, seq: int) -> None:
        """Forget the events from `seq` on, because other events will get these seqs."""
        self._facts = {known: facts for known, facts in self._facts.items() if known < seq}
        self._words = {known: words for known, words in self._words.items() if known < seq}
        self._digests = {known: digest for known, digest in self._digests.items() if known < seq}
        if self._prepared is not None and self._prepared[1] >= seq:
            self._prepared = (self._prepared[0], seq - 1) if self._prepared[0] < seq else None
        self._failed = {key: failed for key, failed in self._failed.items() if max(key) < seq}
        self._ranges = {first: facts for first, facts in self._ranges.items() if facts.events[-1].seq < seq}
