"""The conversation as quoted data, in pieces that a writer's window holds.

Every line that somebody said stands behind `> `; only the lines in brackets, which tell who said it, do not. So no
text can end the quotation or pass for somebody else's. Pictures are told of and not shown, signatures of thoughts
are left out, and so are rules and instructions: they stay in the request whatever happens.

`chunks` finds the size in one pass: long results are masked to their skeletons, oldest first; what is still long is
clipped; and what then does not fit is split between steps. When it is split, everything is masked and clipped
alike, so that where a piece ends depends on nothing that comes after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from typing import Final, NamedTuple

from msgspec.structs import replace

from foveal.core.log.events import (
    Call,
    Content,
    Event,
    ModelSaid,
    Text,
    ToolReturned,
    UserSaid,
    handle,
    parts,
    text_of,
)
from foveal.core.reduction import placeholder, truncation
from foveal.core.tokens.counter import Counter
from foveal.core.wire.event_text import tell

LONG: Final = 200
"""Units from which on a result is worth masking."""
SKELETON: Final = 300
"""Characters of a skeleton."""
SHORTEST: Final = 120
"""Units below which nothing is clipped, unless it has a piece for itself."""
_PIECE: Final = 8
"""Of a conversation that is split, no message takes more than this part of a piece."""


class SourceChunk(NamedTuple):
    """One piece of the conversation."""

    text: str
    units: int
    events: tuple[Event, ...]

    @property
    def first(self) -> int:
        return self.events[0].seq

    @property
    def last(self) -> int:
        return self.events[-1].seq


class _Entry(NamedTuple):
    event: Event
    text: str
    units: int


def source(events: Sequence[Event], *, keep: Set[int] = frozenset()) -> str:
    """The whole transcript, however long."""
    return "\n\n".join(_quoted(event, keep) for event in events if _told(event))


def chunks(
    events: Sequence[Event], *, room: int, counter: Counter, keep: Set[int] = frozenset()
) -> list[SourceChunk]:
    """The transcript in pieces of at most `room` units, a single one if it can be made to fit; events in `keep` are
    marked as staying."""
    sizer = _Sizer(room, counter, keep)
    entries = [sizer.entry(event) for event in events if _told(event)]
    if not entries:
        return []
    fitted = sizer.masked(entries, enough=sum(entry.units for entry in entries) - room)
    if _units(fitted) > room:
        level = _level([entry.units for entry in fitted], room)
        fitted = [sizer.clipped(entry, level) for entry in fitted] if level >= SHORTEST else fitted
    if _units(fitted) <= room:
        return [_chunk(fitted)]
    alike = sizer.masked(entries, enough=None)
    return [sizer.piece(part) for part in sizer.split(alike)]


def _told(event: Event) -> bool:
    return isinstance(event.fact, UserSaid | ModelSaid | ToolReturned)


def _units(entries: Sequence[_Entry]) -> int:
    return sum(entry.units for entry in entries)


def _chunk(entries: Sequence[_Entry]) -> SourceChunk:
    text = "\n\n".join(entry.text for entry in entries)
    return SourceChunk(text, _units(entries), tuple(entry.event for entry in entries))


class _Sizer:
    def __init__(self, room: int, counter: Counter, keep: Set[int]) -> None:
        self.room = room
        self.counter = counter
        self.keep = keep
        self._skeletons: dict[int, _Entry] = {}

    def entry(self, event: Event) -> _Entry:
        """An event as it was said, unless it is beyond all measure."""
        most = max(SHORTEST, self.room // 2)
        return self._entry(event, _shortened(event, most, self.counter) if _enormous(event, most) else None)

    def _entry(self, event: Event, content: Content | None) -> _Entry:
        text = _quoted(event, self.keep, content)
        return _Entry(event, text, self.counter.count(text) + 1)

    def masked(self, entries: Sequence[_Entry], *, enough: int | None) -> list[_Entry]:
        """Long results as skeletons, the oldest first, until `enough` units are saved; None for all."""
        done: list[_Entry] = []
        saved = 0
        for entry in entries:
            fact = entry.event.fact
            wanted = enough is None or saved < enough
            if wanted and isinstance(fact, ToolReturned) and entry.units > LONG:
                short = self._skeleton(entry, fact)
                saved += max(0, entry.units - short.units)
                entry = min(entry, short, key=lambda entry: entry.units)
            done.append(entry)
        return done

    def _skeleton(self, entry: _Entry, fact: ToolReturned) -> _Entry:
        known = self._skeletons.get(entry.event.seq)
        if known is None:
            known = self._skeletons[entry.event.seq] = self._entry(entry.event, _skeleton(entry, fact))
        return known

    def clipped(self, entry: _Entry, most: int) -> _Entry:
        """An entry of at most `most` units: its texts clipped, or the whole of it cut."""
        if entry.units <= most:
            return entry
        fact = entry.event.fact
        if not (isinstance(fact, ToolReturned) and "[foveal: masked" in entry.text[:200]):
            entry = self._entry(entry.event, _shortened(entry.event, most * 3 // 4, self.counter))
        if entry.units <= most:
            return entry
        text = _cut(entry.text, most, handle(entry.event.seq), self.counter)
        return _Entry(entry.event, text, self.counter.count(text) + 1)

    def split(self, entries: Sequence[_Entry]) -> Iterator[list[_Entry]]:
        """Pieces of whole steps; where one ends depends only on what is in it and on the step after it."""
        most = max(SHORTEST, self.room // _PIECE)
        piece: list[_Entry] = []
        size = 0
        for step in _steps(entries):
            step = [self.clipped(entry, most) for entry in step]
            units = _units(step)
            if piece and size + units > self.room:
                yield piece
                piece, size = [], 0
            piece += step
            size += units
        if piece:
            yield piece

    def piece(self, entries: Sequence[_Entry]) -> SourceChunk:
        """One piece; a single step that is larger than the room is cut in its middle."""
        made = _chunk(entries)
        if made.units <= self.room:
            return made
        level = _level([entry.units for entry in entries], self.room)
        made = _chunk([self.clipped(entry, max(level, 40)) for entry in entries])
        if made.units <= self.room:
            return made
        whole = f"{handle(made.first)} to {handle(made.last)}"
        text = _cut(made.text, self.room, whole, self.counter)
        return made._replace(text=text, units=self.counter.count(text))


def _steps(entries: Sequence[_Entry]) -> Iterator[list[_Entry]]:
    """An utterance and what directly answers it."""
    step: list[_Entry] = []
    for entry in entries:
        if step and not isinstance(entry.event.fact, ToolReturned):
            yield step
            step = []
        step.append(entry)
    if step:
        yield step


def _level(sizes: Sequence[int], room: int) -> int:
    """The most that each may take so that all together take no more than the room."""
    left = room
    ordered = sorted(sizes)
    for place, size in enumerate(ordered):
        share = left // (len(ordered) - place)
        if size > share:
            return share
        left -= size
    return ordered[-1] if ordered else room


# ── one event ──


def _quoted(event: Event, keep: Set[int], content: Content | None = None) -> str:
    fact = event.fact
    assert isinstance(fact, UserSaid | ModelSaid | ToolReturned)
    who, _, said = tell(fact if content is None else replace(fact, content=content)).partition("]")
    return f"[{event.handle} {who[1:]}{', stays' if event.seq in keep else ''}]{said}"


def _content(event: Event) -> Content:
    fact = event.fact
    assert isinstance(fact, UserSaid | ModelSaid | ToolReturned)
    return fact.content


def _texts(content: Content) -> list[str]:
    said = (part for part in parts(content) if isinstance(part, Text | Call))
    return [part.text if isinstance(part, Text) else part.arguments for part in said]


def _enormous(event: Event, most: int) -> bool:
    """It is not even worth counting: no text of so many characters takes fewer units."""
    return sum(map(len, _texts(_content(event)))) > 4 * most


def _shortened(event: Event, most: int, counter: Counter) -> Content:
    """The content with each of its texts clipped to a share."""
    content = _content(event)
    limits = truncation.Limits(strategy="smart", tokens=max(16, most // max(1, len(_texts(content)))))

    def short(text: str) -> str:
        cut = truncation.clip(text, limits, handle=event.handle, counter=counter)
        return text if cut is None else truncation.shown(text, cut.pieces)

    if isinstance(content, str):
        return short(content)
    return tuple(
        replace(part, text=short(part.text)) if isinstance(part, Text)
        else replace(part, arguments=short(part.arguments)) if isinstance(part, Call)
        else part
        for part in content
    )  # fmt: skip


def _skeleton(entry: _Entry, fact: ToolReturned) -> str:
    what = f"result of {fact.name}" if fact.name else "result"
    return placeholder.placeholder(
        text_of(fact.content), what=what[:100], handle=entry.event.handle, tokens=entry.units, room=SKELETON
    )


def _cut(text: str, room: int, whole: str, counter: Counter) -> str:
    """Beginning and end of a quotation, cut so that every line is still quoted."""
    note = f"\n[… left out here; whole text: {whole} …]\n"
    half = max(0, (room - counter.count(note) - 4) // 2)
    end = text[len(text) - counter.tail(text, half) :].partition("\n")[2] if half else ""
    return text[: counter.head(text, half)] + note + end
