"""Tools with which the model searches and reads the whole log.

    recall_search(query)          messages that contain words of the query, and the messages beside them
    recall_read(handle, ...)      a part of one event by lines, head, tail or grep; or of a range of events

    library = InMemoryLibrary(events)                     # or a session
    recall = Recall(library)
    schemas = [*own, *foveal.recall.tools("openai_chat")] # offer the tools to the model
    answer = await recall.call(name, arguments)           # answer its calls

Contract of an answer:

1. It is never longer than `tokens`, and says what it left out and how to get that.
2. `call` never raises for what a model passes: a bad handle, range, pattern or JSON gets an answer that says so.
3. Text of the log is quoted (see `event_text`), so that it cannot pass for a line of the answer itself.
4. A search does not find earlier recall calls and their answers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence, Set
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from foveal.core.log.events import AnyFact, Clipped, Dropped, Erased, Event, Masked, Superseded, handle, kind
from foveal.core.tokens.counter import Counter, counter
from foveal.core.wire.event_text import (
    RECALL_PREFIX,
    RECALL_READ,
    RECALL_SEARCH,
    event_title,
    inline,
    quote_lines,
    readable_text,
)
from foveal.core.wire.tool_schemas import parse_arguments
from foveal.errors import BadSetting
from foveal.memory.memory import Memory
from foveal.ports import Hit
from foveal.recall.excerpts import ALL_LINES, Excerpt, LineSelection, count_lines, excerpt
from foveal.recall.schemas import parse_count, parse_handles, parse_selection
from foveal.recall.search_answer import SearchAnswer, spread_scores

if TYPE_CHECKING:
    from foveal.stores.sqlite.full_text import FullTextIndex

MIN_ANSWER_TOKENS: Final = 200
MAX_ANSWER_TOKENS: Final = 16_000
"""Range of the `tokens` setting."""
MAX_SEARCH_HITS: Final = 300
"""Hits that one search takes from the index."""
MAX_CANDIDATE_MESSAGES: Final = 400
"""Messages that one search considers; they are read `_READ_BATCH_EVENTS` at a time."""
MAX_MEMORY_HITS: Final = 10
"""Entries of each memory that one search shows."""
MEMORY_DIVISOR: Final = 4
"""Entries of memories take at most a quarter of an answer."""
MAX_RANGE_EVENTS: Final = 200
"""Events of a range that one answer covers."""
_READ_BATCH_EVENTS: Final = 40
_MIN_EVENT_TOKENS: Final = 120
"""Minimum share of an event in a range."""
_seq = attrgetter("seq")


class Library(Protocol):
    """What recall needs of the log of one conversation.

    A `Session` and an `InMemoryLibrary` are libraries.

    Examples:
        ```python
        import foveal

        library: foveal.recall.Library = foveal.recall.InMemoryLibrary([])
        assert library.last == -1
        ```
    """

    async def search(self, query: str, limit: int) -> list[Hit]:
        """Return the events that contain words of the query, best first.

        Args:
            query: Any text.
            limit: Most events to return.
        """
        ...

    async def pick(self, seqs: Sequence[int]) -> list[Event]:
        """Return these events, ascending.

        Args:
            seqs: The seqs. Those that do not exist are left out.
        """
        ...

    def visible(self, seq: int) -> bool:
        """Return whether the model sees the whole event in its current view.

        Args:
            seq: The seq of the event.
        """
        ...

    @property
    def last(self) -> int:
        """The newest seq, -1 if there is none."""
        ...


@runtime_checkable
class BranchedLibrary(Library, Protocol):
    """A library that knows which events are no part of the conversation any more."""

    async def left_behind(self) -> Set[int]:
        """Return the seqs of what was rewound or replaced."""
        ...


class _CurrentBranch:
    """A library without what was left behind: it may be what another user said after the same beginning."""

    def __init__(self, library: BranchedLibrary) -> None:
        self._library = library

    async def search(self, query: str, limit: int) -> list[Hit]:
        behind = await self._library.left_behind()
        return [hit for hit in await self._library.search(query, limit) if hit.seq not in behind]

    async def pick(self, seqs: Sequence[int]) -> list[Event]:
        behind = await self._library.left_behind()
        return await self._library.pick([seq for seq in seqs if seq not in behind])

    def visible(self, seq: int) -> bool:
        return self._library.visible(seq)

    @property
    def last(self) -> int:
        return self._library.last


class InMemoryLibrary:
    """A library over a list of events, ascending by seq.

    A search also finds events appended to the list later. The first search creates the index, in memory. The
    methods are those of `Library`.

    Args:
        events: The events.
        visible: Returns whether the model sees an event whole. By default it sees none.
        apart: Returns whether an event belongs to another conversation, or to a branch that was left: it is
            neither found nor read. By default none does.

    Examples:
        ```python
        import foveal

        events = [foveal.Event(0, foveal.UserSaid(content="The ticket is OPS-17."))]
        recall = foveal.Recall(foveal.recall.InMemoryLibrary(events))
        assert "OPS-17" in await recall.search("ticket")
        ```
    """

    def __init__(
        self,
        events: Sequence[Event],
        *,
        visible: Callable[[int], bool] = lambda _: False,
        apart: Callable[[int], bool] = lambda _: False,
    ) -> None:
        self._events = events
        self._visible = visible
        self._apart = apart
        self._index: FullTextIndex | None = None

    async def search(self, query: str, limit: int) -> list[Hit]:
        from foveal.stores.search_words import searchable_text
        from foveal.stores.sqlite.full_text import index_in_memory  # loads apsw, which reading does not need

        index = self._index = self._index or index_in_memory()
        new = self._events[bisect_left(self._events, index.last_indexed(0) + 1, key=_seq) :]
        index.add(0, ((event.seq, searchable_text(event)) for event in new if not self._apart(event.seq)))
        return [hit for hit in index.search(0, query, limit) if not self._apart(hit.seq)]

    async def pick(self, seqs: Sequence[int]) -> list[Event]:
        found = []
        for seq in sorted(seq for seq in set(seqs) if not self._apart(seq)):
            at = bisect_left(self._events, seq, key=_seq)
            if at < len(self._events) and self._events[at].seq == seq:
                found.append(self._events[at])
        return found

    def visible(self, seq: int) -> bool:
        return self._visible(seq)

    @property
    def last(self) -> int:
        return self._events[-1].seq if self._events else -1


class Recall:
    """Answers the calls of both recall tools for one library.

    Args:
        library: The log to search: a `Session`, or an `InMemoryLibrary`.
        tokens: Most tokens of an answer, from 200 to 16,000.
        counting: Counts the tokens. None uses the counter `"auto"`.
        session: The session that the calls suggested in an answer name, where one tool reads several sessions.
            `""` names none.
        memories: The memories that a search covers too.

    Raises:
        BadSetting: `tokens` is out of range.

    Examples:
        ```python
        import foveal

        async with foveal.stores.MemoryStore() as store:
            session = await foveal.Session.open(store, "demo", model="gpt-4.1")
            await session.append(foveal.UserSaid(content="The ticket is OPS-17."))
            answer = await foveal.Recall(session).call("recall_search", '{"query": "ticket"}')
        ```
    """

    def __init__(
        self,
        library: Library,
        *,
        tokens: int = 2_000,
        counting: Counter | None = None,
        session: str = "",
        memories: Sequence[Memory] = (),
    ) -> None:
        if not MIN_ANSWER_TOKENS <= tokens <= MAX_ANSWER_TOKENS:
            raise BadSetting("tokens", tokens, f"from {MIN_ANSWER_TOKENS} to {MAX_ANSWER_TOKENS:,}")
        self._library = _CurrentBranch(library) if isinstance(library, BranchedLibrary) else library
        self._tokens = tokens
        self._counter = counting or counter()
        self._memories = memories
        self._read_call = f'{RECALL_READ}(session="{session}", ' if session else f"{RECALL_READ}("

    async def call(self, name: str, arguments: str | Mapping[str, Any]) -> str:
        """Answer a tool call of the model.

        It raises nothing for what a model passes: a bad handle, range, pattern or JSON gets an answer that says
        so.

        Args:
            name: `recall_search` or `recall_read`.
            arguments: The arguments as the model wrote them: JSON text or a mapping.
        """
        given = parse_arguments(arguments)
        if isinstance(given, str):
            return _problem_answer(given)
        if name == RECALL_SEARCH:
            return await self._search(given)
        if name == RECALL_READ:
            return await self._read(given)
        return _problem_answer(
            f"there is no tool {inline(name)}; there are {RECALL_SEARCH} and {RECALL_READ}"
        )

    async def search(self, query: str, *, limit: int | None = None) -> str:
        """Return the messages that contain words of the query, with their neighbours.

        Args:
            query: Any text.
            limit: Most messages to show. None shows as many as fit.
        """
        remembered = await self._search_memories(query)
        room = self._tokens - (self._counter.count(remembered) + 2 if remembered else 0)
        hits = await self._library.search(query, MAX_SEARCH_HITS)
        answer = SearchAnswer(
            query, hits, counter=self._counter, tokens=room, limit=limit or MAX_CANDIDATE_MESSAGES
        )
        await add_messages(answer, self._library, hits)
        return f"{remembered}\n\n{answer.text()}" if remembered else answer.text()

    async def _search_memories(self, query: str) -> str:
        """Return the entries of memories that have words of the query, in a quarter of the answer; "" for none."""
        room, lines = self._tokens // MEMORY_DIVISOR, list[str]()
        for memory in self._memories:
            for entry in await memory.search(query, limit=MAX_MEMORY_HITS):
                line = f"[memory {entry.id}; {entry.kind}]\n{quote_lines(entry.text)}"
                cost = self._counter.count(line) + 1
                if cost <= room:
                    lines.append(line)
                    room -= cost
                    memory.note_use(entry.id)
        return "\n".join(lines)

    async def read(self, first: int, last: int, lines: LineSelection = ALL_LINES) -> str:
        """Return a part of one event, or of each event of a range.

        Args:
            first: The first seq.
            last: The last seq, included.
            lines: Which lines to show. By default all, as far as they fit.
        """
        events = await self._library.pick(range(first, min(last, first + MAX_RANGE_EVENTS - 1) + 1))
        if not events:
            return _problem_answer(self._missing(first, last))
        if last == first:
            return self._read_event(events[0], lines)
        return self._read_range([event for event in events if readable_text(event.fact)], last, lines)

    async def _search(self, given: Mapping[str, Any]) -> str:
        query, limit = given.get("query"), parse_count(given.get("limit"))
        if not isinstance(query, str) or not query.strip():
            return _problem_answer(
                f'{RECALL_SEARCH} needs a query: {{"query": "words, names or numbers to look for"}}'
            )
        if isinstance(limit, str):
            return _problem_answer(f"limit {limit}")
        return await self.search(query, limit=limit)

    async def _read(self, given: Mapping[str, Any]) -> str:
        seqs, lines = parse_handles(given.get("handle")), parse_selection(given)
        if isinstance(seqs, str):
            return _problem_answer(seqs)
        if isinstance(lines, str):
            return _problem_answer(lines)
        return await self.read(*seqs, lines)

    def _missing(self, first: int, last: int) -> str:
        requested = handle(first) if first == last else f"{handle(first)}-{handle(last)}"
        newest = self._library.last
        if last <= newest:
            return f"{requested} is no part of the conversation any more: it was taken back or replaced"
        return f"there is no {requested}: the log " + (
            f"goes from e0 to e{newest}" if newest >= 0 else "is empty"
        )

    def _read_event(self, event: Event, lines: LineSelection) -> str:
        text = readable_text(event.fact)
        if not text:
            return _problem_answer(f"{event_title(event)}: {_why_without_text(event.fact)}")
        found = excerpt(text, lines, counter=self._counter, tokens=self._tokens - 120)
        return _frame(
            self._description(event, text, found), found, f'{self._read_call}handle="{event.handle}"'
        )

    def _description(self, event: Event, text: str, found: Excerpt) -> str:
        size = f"{count_lines(text):,} lines, {len(text):,} characters"
        return f"{event_title(event)}; {size}; {found.shows}"

    def _read_range(self, events: Sequence[Event], last: int, lines: LineSelection) -> str:
        """Give each event an equal share of the tokens; what an event does not use goes to those after it."""
        room, blocks, next_seq = self._tokens - 80, [], last + 1
        for number, event in enumerate(events):
            share = max(_MIN_EVENT_TOKENS, room // (len(events) - number))
            if share > room:
                next_seq = event.seq
                break
            text = readable_text(event.fact)
            found = excerpt(text, lines, counter=self._counter, tokens=share - 50)
            if found.body:
                blocks.append(_frame(self._description(event, text, found), found, ""))
                room -= self._counter.count(blocks[-1]) + 2
        newest = min(last, self._library.last)
        if next_seq > last and events and newest >= events[0].seq + MAX_RANGE_EVENTS:
            next_seq = events[0].seq + MAX_RANGE_EVENTS
        if next_seq <= newest:
            blocks.append(f'{RECALL_PREFIX}go on with {self._read_call}handle="e{next_seq}-e{newest}")]')
        return "\n\n".join(blocks) or _problem_answer(
            "nothing in this range can be read" + (" or matches" if lines.grep else "")
        )


async def add_messages(answer: SearchAnswer, library: Library, hits: Sequence[Hit]) -> None:
    """Add the hits of a search and the messages beside them to an answer, best first, while there is room."""
    ranked = [(seq, score) for seq, score in spread_scores(hits) if seq <= library.last]
    for at in range(0, min(len(ranked), MAX_CANDIDATE_MESSAGES), _READ_BATCH_EVENTS):
        batch = dict(ranked[at : min(at + _READ_BATCH_EVENTS, MAX_CANDIDATE_MESSAGES)])
        events = {event.seq: event for event in await library.pick(sorted(batch))}
        found = [events[seq] for seq in batch if seq in events]
        for event in sorted(found, key=answer.count_identifiers, reverse=True):
            answer.add_if_fits(event, batch[event.seq], visible=library.visible(event.seq))
        if answer.is_full:
            break


def _frame(about: str, found: Excerpt, call: str) -> str:
    """Return the numbered lines between a line that describes them and a line that says how to read on."""
    lines = [f"{RECALL_PREFIX}{about}]", *([found.body] if found.body else [])]
    if found.more and call:
        lines.append(f"{RECALL_PREFIX}more with {call}, {found.more})]")
    return "\n".join(lines)


def _problem_answer(problem: str) -> str:
    return f"{RECALL_PREFIX}{problem}]"


def _why_without_text(fact: AnyFact) -> str:
    """Return why an event has no text, and which events to read instead."""
    match fact:
        case Erased():
            return f"its text ({inline(fact.was)}) was erased for good"
        case Masked():
            return (
                "it hid "
                + ", ".join(sorted({handle(mask.target) for mask in fact.masks})[:20])
                + ": read those"
            )
        case Clipped() if fact.again >= 0:
            return f"it shows {handle(fact.again)} again: read that"
        case Clipped():
            return f"it shortened {handle(fact.target)}: read that"
        case Superseded():
            return f"it says that {handle(fact.by)} replaces {handle(fact.target)}: read those"
        case Dropped():
            ranges = (f"{handle(first)}-{handle(last)}" for first, last in fact.ranges[:20])
            return f"it hid {', '.join(ranges)}: read those"
        case _:
            return f"this is a record of sort {inline(kind(fact))}, without text"
