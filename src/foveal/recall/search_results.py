"""What a search answers: which messages, how much of each, and in which order.

1. Evidence often stands beside the words that were asked for (the answer after a question, the next remark on the
   same subject), so a hit lends its score to the messages around it, less and less with the distance.
2. Messages are taken by score while there is room; one that does not fit is passed over for the next.
3. A short message is quoted whole, a long one where it has most of the words; one that the model still sees is only
   named, with its first words.
4. Neighbours stand together in the order of the log, and the best group comes first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from foveal.core.log.events import Event
from foveal.core.tokens.counter import Counter
from foveal.core.wire.event_text import (
    MARK,
    around,
    dialogue,
    findable,
    inline,
    line_start,
    quoted,
    telling,
    title,
)
from foveal.ports import Hit

REACH: Final = 8
"""How many events before and after a hit get something of its score."""
DECAY: Final = 0.8
"""What remains of it with each step."""
FIRST: Final = 1
"""So many of the best hits come before all others, however lonely they are."""
WHOLE: Final = 4
"""A message that takes at most this part (a quarter) of the answer is quoted whole."""
PART: Final = 8
"""Of a longer one, so much (an eighth) is quoted; a third of that if it only stands beside a match."""
_LEAST: Final = 60
_NAMED: Final = 30
_TINY: Final = 40


def spread(
    hits: Sequence[Hit], *, reach: int = REACH, decay: float = DECAY, first: int = FIRST
) -> list[tuple[int, float]]:
    """Hits and the events around them, the best first; of equals, the newer first."""
    scores: dict[int, float] = {}
    for hit in sorted(hits, key=lambda hit: hit.seq):
        for near in range(max(0, hit.seq - reach), hit.seq + reach + 1):
            scores[near] = scores.get(near, 0.0) + hit.score * decay ** abs(near - hit.seq)
    most = max(scores.values(), default=0.0)
    for hit in hits[:first]:
        scores[hit.seq] += most
    return sorted(scores.items(), key=lambda item: (-item[1], -item[0]))


class FoundMessage(NamedTuple):
    """One message of the answer."""

    seq: int
    score: float
    text: str
    tokens: int


class SearchAnswer:
    """An answer to a query that is being filled, best message first."""

    def __init__(self, query: str, hits: Iterable[Hit], *, counter: Counter, tokens: int, limit: int) -> None:
        self._query = query
        self._words = telling(query)
        self._matched = {hit.seq for hit in hits}
        self._counter = counter
        self._tokens = tokens
        self._room = tokens - counter.count(self._head(1_000, 1_000))
        self._limit = limit
        self._blocks: list[FoundMessage] = []
        self._seen: set[str] = set()

    @property
    def full(self) -> bool:
        return self._room < _TINY or len(self._blocks) >= self._limit

    def offer(self, event: Event, score: float, *, visible: bool) -> None:
        """Take the message in, if it can be found, is not there yet and fits."""
        text = findable(event.fact)
        beside = event.seq not in self._matched
        if self.full or not text.strip() or text in self._seen or (beside and not dialogue(event.fact)):
            return
        told = self._told(event, text, visible=visible, beside=beside)
        cost = self._counter.count(told) + 2
        if cost <= self._room:
            self._seen.add(text)
            self._room -= cost
            self._blocks.append(FoundMessage(event.seq, score, told, cost))

    def text(self) -> str:
        """The whole answer, within its tokens."""
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
            return f'{MARK}nothing found for "{query}"; try other words, names or numbers that stood in the text]'
        beside = f" and {messages - matched:,} beside them" if messages > matched else ""
        return (
            f'{MARK}{matched:,} messages for "{query}"{beside}, best group first; '
            'quoted text begins with "> "; more of a message: recall_read with its handle]'
        )

    def _told(self, event: Event, text: str, *, visible: bool, beside: bool) -> str:
        if visible:
            shown, which = self._shown(text, whole=_NAMED, most=_NAMED)
        else:
            most = self._tokens // (3 * PART if beside else PART)
            shown, which = self._shown(text, whole=self._tokens // WHOLE, most=max(_LEAST, most))
        notes = [title(event), *which, *(["beside a match"] if beside else [])]
        notes += ["already visible to you"] if visible else []
        return f"[{'; '.join(notes)}]\n{quoted(shown)}"

    def _shown(self, text: str, *, whole: int, most: int) -> tuple[str, list[str]]:
        """The text, or the part of it that matters, and then which part that is."""
        if len(text) <= 12 * whole and self._counter.count(text) <= whole:
            return text, []
        start, end = self._stretch(text, most)
        first = text.count("\n", 0, start) + 1
        last = first + text.count("\n", start, end - 1)
        lines = text.count("\n", max(start, end - 1)) + last
        return text[start:end], [f"from lines {first:,}-{last:,} of {lines:,}"]

    def _stretch(self, text: str, most: int) -> tuple[int, int]:
        """So many tokens of the text, what matters in their second quarter; or the end, if that comes first."""
        look, match = 8 * most, around(text, self._words, width=2 * most)
        before = self._counter.tail(text[max(0, match - look) : match], most // 4)
        start = line_start(text, match - before, before)
        end = start + self._counter.head(text[start : start + look], most)
        if end < len(text):
            return start, end
        return max(0, len(text) - self._counter.tail(text[-look:], most)), end

    def _groups(self) -> list[list[FoundMessage]]:
        """Blocks that stand close together in the log, in its order; the group with the best score first."""
        groups: list[list[FoundMessage]] = []
        for block in sorted(self._blocks):
            if groups and block.seq - groups[-1][-1].seq <= 3:
                groups[-1].append(block)
            else:
                groups.append([block])
        return sorted(groups, key=lambda group: (-max(block.score for block in group), -group[0].seq))
