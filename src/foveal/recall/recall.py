"""Tools for the model: look back into the log, at whatever is no longer in view.

    recall_search(query)          the messages that have words of the query, and those beside them
    recall_read(handle, ...)      a part of one event by lines, head, tail or grep; or of a range of events

    library = InMemoryLibrary(events)                 # or a session
    look = Recall(library)
    tools = [*mine, *recall.tools("openai_chat")]     # offer them
    answer = await look.call(name, arguments)         # and answer them

What a tool answers:

1. It is never longer than `tokens`, and says what it left out and how to get that.
2. It never raises for what a model asked: a bad handle, range, pattern or JSON gets an answer that helps.
3. The log is quoted in it (see `text`): nothing that was once said can pass for a line of ours.
4. It is not found again: these calls and their answers are passed over by the search.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Protocol

from foveal.core.log.events import AnyFact, Clipped, Dropped, Erased, Event, Masked, handle, kind
from foveal.core.tokens.counter import Counter, counter
from foveal.core.wire.event_text import MARK, READ, SEARCH, inline, readable, title
from foveal.errors import BadSetting
from foveal.ports import Hit
from foveal.recall.excerpts import ALL, Excerpt, Wanted, count, excerpt
from foveal.recall.recall_tools import handles, values, wanted, whole
from foveal.recall.search_results import SearchAnswer, spread

if TYPE_CHECKING:
    from foveal.stores.sqlite.full_text import TextIndex

LEAST: Final = 200
MOST: Final = 16_000
"""Tokens that an answer may be allowed."""
HITS: Final = 300
"""Hits of the index that are looked at for one search."""
CANDIDATES: Final = 400
"""Messages that are considered for one answer; they are read `_BATCH` at a time."""
EVENTS: Final = 200
"""Events of a range that are read at once."""
_BATCH: Final = 40
_seq = attrgetter("seq")


class Library(Protocol):
    """The log of one conversation, as far as looking back needs it."""

    async def search(self, query: str, limit: int) -> list[Hit]:
        """Events that have words of the query, best first."""
        ...

    async def pick(self, seqs: Sequence[int]) -> list[Event]:
        """These events, ascending; those that do not exist are left out."""
        ...

    def visible(self, seq: int) -> bool:
        """Whether the model sees this event whole in its current view."""
        ...

    @property
    def last(self) -> int:
        """The newest seq, -1 when there is none."""
        ...


class InMemoryLibrary:
    """A library over a list of events in the order of their seqs; what is appended to the list later is found too.

    The index is made by the first search, in memory.
    """

    def __init__(self, events: Sequence[Event], *, visible: Callable[[int], bool] = lambda _: False) -> None:
        self._events = events
        self._visible = visible
        self._index: TextIndex | None = None

    async def search(self, query: str, limit: int) -> list[Hit]:
        from foveal.stores.sqlite.full_text import searchable

        index = self._index = self._index or _private_index()
        new = self._events[bisect_left(self._events, index.indexed(0) + 1, key=_seq) :]
        index.add(0, ((event.seq, searchable(event)) for event in new))
        return index.search(0, query, limit)

    async def pick(self, seqs: Sequence[int]) -> list[Event]:
        found = []
        for seq in sorted(set(seqs)):
            at = bisect_left(self._events, seq, key=_seq)
            if at < len(self._events) and self._events[at].seq == seq:
                found.append(self._events[at])
        return found

    def visible(self, seq: int) -> bool:
        return self._visible(seq)

    @property
    def last(self) -> int:
        return self._events[-1].seq if self._events else -1


def _private_index() -> TextIndex:
    """An index of our own; only now is apsw needed."""
    import apsw

    from foveal.stores.sqlite.full_text import TextIndex

    index = TextIndex(apsw.Connection(":memory:"))
    index.create()
    return index


class Recall:
    """The two tools over one library."""

    def __init__(self, library: Library, *, tokens: int = 2_000, counting: Counter | None = None) -> None:
        if not LEAST <= tokens <= MOST:
            raise BadSetting("tokens", tokens, f"from {LEAST} to {MOST:,}")
        self._library = library
        self._tokens = tokens
        self._counter = counting or counter()

    async def call(self, name: str, arguments: str | Mapping[str, Any]) -> str:
        """Answer a call as the model made it."""
        given = values(arguments)
        if isinstance(given, str):
            return _sorry(given)
        if name == SEARCH:
            return await self._search(given)
        if name == READ:
            return await self._read(given)
        return _sorry(f"there is no tool {inline(name)}; there are {SEARCH} and {READ}")

    async def search(self, query: str, *, limit: int | None = None) -> str:
        """The messages that have words of the query, and those beside them."""
        hits = await self._library.search(query, HITS)
        answer = SearchAnswer(
            query, hits, counter=self._counter, tokens=self._tokens, limit=limit or CANDIDATES
        )
        ranked = [(seq, score) for seq, score in spread(hits) if seq <= self._library.last][:CANDIDATES]
        for at in range(0, len(ranked), _BATCH):
            batch = dict(ranked[at : at + _BATCH])
            events = {event.seq: event for event in await self._library.pick(sorted(batch))}
            for seq, score in batch.items():
                if seq in events:
                    answer.offer(events[seq], score, visible=self._library.visible(seq))
            if answer.full:
                break
        return answer.text()

    async def read(self, first: int, last: int, lines: Wanted = ALL) -> str:
        """A part of one event, or of each event of a range."""
        events = await self._library.pick(range(first, min(last, first + EVENTS - 1) + 1))
        if not events:
            return _sorry(self._missing(first, last))
        if last == first:
            return self._one(events[0], lines)
        return self._many([event for event in events if readable(event.fact)], last, lines)

    async def _search(self, given: Mapping[str, Any]) -> str:
        query, limit = given.get("query"), whole(given.get("limit"))
        if not isinstance(query, str) or not query.strip():
            return _sorry(f'{SEARCH} needs a query: {{"query": "words, names or numbers to look for"}}')
        if isinstance(limit, str):
            return _sorry(f"limit {limit}")
        return await self.search(query, limit=limit)

    async def _read(self, given: Mapping[str, Any]) -> str:
        which, lines = handles(given.get("handle")), wanted(given)
        if isinstance(which, str):
            return _sorry(which)
        if isinstance(lines, str):
            return _sorry(lines)
        return await self.read(*which, lines)

    def _missing(self, first: int, last: int) -> str:
        asked = handle(first) if first == last else f"{handle(first)}-{handle(last)}"
        newest = self._library.last
        return f"there is no {asked}: the log " + (
            f"goes from e0 to e{newest}" if newest >= 0 else "is empty"
        )

    def _one(self, event: Event, lines: Wanted) -> str:
        text = readable(event.fact)
        if not text:
            return _sorry(f"{title(event)}: {_wordless(event.fact)}")
        found = excerpt(text, lines, counter=self._counter, tokens=self._tokens - 120)
        return _framed(self._about(event, text, found), found, f'{READ}(handle="{event.handle}"')

    def _about(self, event: Event, text: str, found: Excerpt) -> str:
        size = f"{count(text):,} lines, {len(text):,} characters"
        return f"{title(event)}; {size}; {found.shows}"

    def _many(self, events: Sequence[Event], last: int, lines: Wanted) -> str:
        """A fair share of each: what one event leaves over goes to those after it."""
        room, told, next_seq = self._tokens - 80, [], last + 1
        for place, event in enumerate(events):
            share = max(_EACH, room // (len(events) - place))
            if share > room:
                next_seq = event.seq
                break
            text = readable(event.fact)
            found = excerpt(text, lines, counter=self._counter, tokens=share - 50)
            if found.body:
                told.append(_framed(self._about(event, text, found), found, ""))
                room -= self._counter.count(told[-1]) + 2
        newest = min(last, self._library.last)
        if next_seq > last and events and newest >= events[0].seq + EVENTS:
            next_seq = events[0].seq + EVENTS
        if next_seq <= newest:
            told.append(f'{MARK}go on with {READ}(handle="e{next_seq}-e{newest}")]')
        return "\n\n".join(told) or _sorry(
            "nothing in this range can be read" + (" or matches" if lines.grep else "")
        )


_EACH: Final = 120
"""Tokens that an event of a range gets at least."""


def _framed(about: str, found: Excerpt, call: str) -> str:
    """The numbered lines between a line that says what they are and one that says how to go on."""
    lines = [f"{MARK}{about}]", *([found.body] if found.body else [])]
    if found.more and call:
        lines.append(f"{MARK}more with {call}, {found.more})]")
    return "\n".join(lines)


def _sorry(problem: str) -> str:
    return f"{MARK}{problem}]"


def _wordless(fact: AnyFact) -> str:
    """Why there is nothing to read, and what to read instead."""
    match fact:
        case Erased():
            return f"its text ({inline(fact.was)}) was erased for good"
        case Masked():
            return (
                "it hid "
                + ", ".join(sorted({handle(mask.target) for mask in fact.masks})[:20])
                + ": read those"
            )
        case Clipped():
            return f"it shortened {handle(fact.target)}: read that"
        case Dropped():
            ranges = (f"{handle(first)}-{handle(last)}" for first, last in fact.ranges[:20])
            return f"it hid {', '.join(ranges)}: read those"
        case _:
            return f"this is a record of sort {inline(kind(fact))}, without text"
