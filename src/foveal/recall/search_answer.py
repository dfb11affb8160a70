"""Answer of a recall search: excerpts and order of the messages found.

1. Messages are added by score while there is room; a message that does not fit is skipped. Those that contain an
   identifier of the query come before those with similar ones.
2. A short message is quoted whole, a long one where it contains most of the words, and where it contains those that
   are not there. Of a message that the model still sees, only a few words are quoted.
3. Neighbours are grouped in the order of the log, and the best group comes first.
4. The evidence is often beside the words of the query (the answer after a question, the next remark on the same
   subject), so a hit adds to the scores of the messages around it, less with each step of distance.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from foveal.core.log.events import Event
from foveal.core.tokens.counter import Counter
from foveal.core.wire.event_text import (
    RECALL_PREFIX,
    event_title,
    inline,
    is_dialogue,
    quote_lines,
    search_text,
)
from foveal.core.wire.query_match import (
    best_window,
    count_identifiers,
    missing_terms,
    next_line_start,
    query_identifiers,
    query_terms,
)
from foveal.ports import Hit

NEIGHBOUR_REACH_EVENTS: Final = 8
"""Events before and after a hit that get a part of its score."""
NEIGHBOUR_DECAY: Final = 0.8
"""Factor by which that part shrinks with each event of distance."""
TOP_HITS_FIRST: Final = 1
"""Number of best hits that rank above all other messages, even without other hits around them."""
WHOLE_MESSAGE_DIVISOR: Final = 4
"""A message is quoted whole if it takes at most a quarter of the answer."""
EXCERPT_DIVISOR: Final = 8
"""The excerpt of a longer message takes an eighth of the answer; a third of that if it is only beside a match."""
_MIN_EXCERPT_TOKENS: Final = 60
_VISIBLE_EXCERPT_TOKENS: Final = 30
_MIN_ROOM_TOKENS: Final = 40
PART_BREAK: Final = "\n[…]\n"
"""Stands between two parts of a message."""


def spread_scores(
    hits: Sequence[Hit],
    *,
    reach: int = NEIGHBOUR_REACH_EVENTS,
    decay: float = NEIGHBOUR_DECAY,
    first: int = TOP_HITS_FIRST,
) -> list[tuple[int, float]]:
    """Return hits and the events around them with their scores, best first.

    A message near a hit gains from its score. Of equal scores, the newer event comes first.

    Args:
        hits: The hits of a search.
        reach: Events before and after a hit that gain from it.
        decay: Factor by which the gain shrinks with each event of distance.
        first: Number of best hits that rank above all other messages.

    Examples:
        ```python
        from foveal.ports import Hit
        from foveal.recall import spread_scores

        assert spread_scores([Hit(seq=4, score=2.0)], reach=0) == [(4, 4.0)]
        ```
    """
    scores: dict[int, float] = {}
    for hit in sorted(hits, key=lambda hit: hit.seq):
        for near in range(max(0, hit.seq - reach), hit.seq + reach + 1):
            scores[near] = scores.get(near, 0.0) + hit.score * decay ** abs(near - hit.seq)
    highest = max(scores.values(), default=0.0)
    for hit in hits[:first]:
        scores[hit.seq] += highest
    return sorted(scores.items(), key=lambda item: (-item[1], -item[0]))


class FoundMessage(NamedTuple):
    """A message of the answer; `text` is its block in the answer."""

    seq: int
    score: float
    identifiers: int
    """Identifiers of the query that the message contains."""
    text: str
    tokens: int


class SearchAnswer:
    """Collects messages for the answer to a query, best first, within `tokens`."""

    def __init__(self, query: str, hits: Iterable[Hit], *, counter: Counter, tokens: int, limit: int) -> None:
        self._query = query
        self._words = query_terms(query)
        self._identifiers = query_identifiers(query)
        self._matched = {hit.seq for hit in hits}
        self._counter = counter
        self._tokens = tokens
        self._room = tokens - counter.count(self._head(1_000, 1_000))
        self._limit = limit
        self._blocks: list[FoundMessage] = []
        self._seen: set[str] = set()

    @property
    def is_full(self) -> bool:
        """Whether no further message can be added."""
        return self._room < _MIN_ROOM_TOKENS or len(self._blocks) >= self._limit

    def count_identifiers(self, event: Event) -> int:
        """Return how many identifiers of the query a message contains."""
        return count_identifiers(search_text(event.fact), self._identifiers)

    def add_if_fits(self, event: Event, score: float, *, visible: bool) -> None:
        """Add the message if it is searchable, not yet in the answer, and fits."""
        text = search_text(event.fact)
        beside = event.seq not in self._matched
        if self.is_full or not text.strip() or text in self._seen or (beside and not is_dialogue(event.fact)):
            return
        block = self._block(event, text, visible=visible, beside=beside)
        cost = self._counter.count(block) + 2
        if cost <= self._room:
            self._seen.add(text)
            self._room -= cost
            identifiers = count_identifiers(text, self._identifiers)
            self._blocks.append(FoundMessage(event.seq, score, identifiers, block, cost))

    def text(self) -> str:
        """Return the answer; drops the last messages if the joined text exceeds the tokens."""
        while True:
            head = self._head(len(self._blocks), sum(block.seq in self._matched for block in self._blocks))
            answer = "\n\n".join(
                [head, *("\n".join(block.text for block in group) for group in self._groups())]
            )
            if not self._blocks or self._counter.count(answer) <= self._tokens:
                return answer
            self._blocks.pop()

    def _head(self, messages: int, matched: int) -> str:
        query = inline(self._query)
        if not messages:
            advice = "try other words, names or numbers that stood in the text"
            return f'{RECALL_PREFIX}nothing found for "{query}"; {advice}]'
        beside = f" and {messages - matched:,} beside them" if messages > matched else ""
        return (
            f'{RECALL_PREFIX}{matched:,} messages for "{query}"{beside}, best group first; '
            'quoted text begins with "> "; more of a message: recall_read with its handle]'
        )

    def _block(self, event: Event, text: str, *, visible: bool, beside: bool) -> str:
        if visible:
            shown, which = self._excerpt(text, whole=_VISIBLE_EXCERPT_TOKENS, limit=_VISIBLE_EXCERPT_TOKENS)
        else:
            limit = self._tokens // (3 * EXCERPT_DIVISOR if beside else EXCERPT_DIVISOR)
            shown, which = self._excerpt(
                text, whole=self._tokens // WHOLE_MESSAGE_DIVISOR, limit=max(_MIN_EXCERPT_TOKENS, limit)
            )
        notes = [event_title(event), *which, *(["beside a match"] if beside else [])]
        notes += ["already visible to you"] if visible else []
        return f"[{'; '.join(notes)}]\n{PART_BREAK.join(map(quote_lines, shown))}"

    def _excerpt(self, text: str, *, whole: int, limit: int) -> tuple[list[str], list[str]]:
        """Return the whole text, or the most relevant parts of it and a note that names their lines."""
        if len(text) <= 12 * whole and self._counter.count(text) <= whole:
            return [text], []
        spans = self._choose_spans(text, limit)
        lines = dict.fromkeys(
            f"{_line_at(text, start):,}-{_line_at(text, end - 1):,}" for start, end in spans
        )
        note = f"from lines {', '.join(lines)} of {_line_at(text, len(text)):,}"
        return [text[start:end] for start, end in spans], [note]

    def _choose_spans(self, text: str, limit: int) -> list[tuple[int, int]]:
        """Return the span of `limit` tokens with the best match; two of half as many if the text has other words of
        the query elsewhere."""
        best = self._choose_span(text, self._words, limit)
        is_short = limit < 2 * _MIN_EXCERPT_TOKENS
        if is_short or not missing_terms(text, self._words, start=best[0], end=best[1]):
            return [best]
        first = self._choose_span(text, self._words, limit // 2)
        missing = missing_terms(text, self._words, start=first[0], end=first[1])
        second = self._choose_span(text, missing, limit // 2)
        if second[0] < first[1] and first[0] < second[1]:
            return [best]
        return sorted((first, second))

    def _choose_span(self, text: str, words: frozenset[str], limit: int) -> tuple[int, int]:
        """Return the span of `limit` tokens that has the match after its first quarter, or the end of the text."""
        look, match = 8 * limit, best_window(text, words, width=2 * limit)
        before = self._counter.tail(text[max(0, match - look) : match], limit // 4)
        start = next_line_start(text, match - before, before)
        end = start + self._counter.head(text[start : start + look], limit)
        if end < len(text):
            return start, end
        return max(0, len(text) - self._counter.tail(text[-look:], limit)), end

    def _groups(self) -> list[list[FoundMessage]]:
        """Return blocks at most 3 seqs apart as groups, each in the order of the log; the best group first.

        A message with an identifier of the query is in no group with its neighbours, which have others."""
        groups: list[list[FoundMessage]] = []
        for block in sorted(self._blocks, key=lambda block: (block.identifiers, block.seq)):
            last = groups[-1][-1] if groups else None
            if last and last.identifiers == block.identifiers and block.seq - last.seq <= 3:
                groups[-1].append(block)
            else:
                groups.append([block])
        return sorted(
            groups,
            key=lambda group: (
                -group[0].identifiers,
                -max(block.score for block in group),
                -group[0].seq,
            ),
        )


def _line_at(text: str, at: int) -> int:
    """Return the number of the line of a character, counted from 1."""
    return text.count("\n", 0, at) + 1
