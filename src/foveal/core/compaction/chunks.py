"""Quoted transcript, split into chunks that fit a summariser's window.

1. Every line of a message is quoted with `> `; only the bracketed lines that name the speaker are not. So no text
   can end the quotation or pass for another speaker's.
2. Images are mentioned but not shown. Signatures of thinking are left out, and so are rules and instructions,
   which stay in the request anyway.
3. `split_transcript` reduces in one pass: long results are masked to their skeletons, oldest first; what is still
   long is clipped; what then does not fit is split between steps. When it is split, all events are masked and
   clipped in the same way, so that where a chunk ends does not depend on what follows it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from typing import Final, NamedTuple

from msgspec.structs import replace

from foveal.core.log.events import (
    DIALOGUE_TYPES,
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
from foveal.core.wire.event_text import transcript_entry

MASK_RESULTS_ABOVE_UNITS: Final = 200
"""Units above which a result is worth masking."""
MAX_SKELETON_CHARS: Final = 300
"""Limit of a skeleton."""
MIN_CLIPPED_UNITS: Final = 120
"""No text is clipped to less, unless a single step exceeds a whole chunk."""
_MIN_CHARS_PER_UNIT: Final = 4
"""Most texts have fewer characters per unit."""
_MESSAGE_SHARE: Final = 8
"""In a transcript that is split, a message takes at most 1/8 of a chunk."""


class TranscriptChunk(NamedTuple):
    """A part of the transcript that fits the window."""

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


def quote_transcript(events: Sequence[Event], *, keep: Set[int] = frozenset()) -> str:
    """Return the whole transcript, whatever its length."""
    return "\n\n".join(_quote(event, keep) for event in events if _is_message(event))


def newest_for_chunks(
    events: Sequence[Event],
    *,
    room: int,
    chunks: int,
    counter: Counter,
    keep: Set[int] = frozenset(),
    sizer: TranscriptSizer | None = None,
) -> Sequence[Event]:
    """Return the newest events, as many as `chunks` of `room` units can hold: nothing else of a history that is
    much longer needs to be quoted and counted. A `sizer` keeps what was quoted for `split_transcript`."""
    most = room * chunks
    chars = (sum(map(len, _texts(_content(event)))) for event in events if _is_message(event))
    if sum(chars) <= most * _MIN_CHARS_PER_UNIT:
        return events
    sizer, units = sizer or TranscriptSizer(room, counter, keep), 0
    for at in range(len(events) - 1, -1, -1):
        if _is_message(events[at]):
            units += _units(sizer.mask([sizer.entry(events[at])], target=None))
        if units > most:
            return events[at:]
    return events


def split_transcript(
    events: Sequence[Event],
    *,
    room: int,
    counter: Counter,
    keep: Set[int] = frozenset(),
    sizer: TranscriptSizer | None = None,
) -> list[TranscriptChunk]:
    """Return the transcript in chunks of at most `room` units, a single one if it can be made to fit.

    Events in `keep` are marked as staying in the conversation. A `sizer` for the same room, counter and `keep` has
    what was quoted already."""
    sizer = sizer or TranscriptSizer(room, counter, keep)
    entries = [sizer.entry(event) for event in events if _is_message(event)]
    if not entries:
        return []
    reduced = sizer.mask(entries, target=_units(entries) - room)
    if _units(reduced) > room:
        level = _common_limit([entry.units for entry in reduced], room)
        if level >= MIN_CLIPPED_UNITS:
            reduced = [sizer.clip(entry, level) for entry in reduced]
    if _units(reduced) <= room:
        return [_chunk(reduced)]
    masked = sizer.mask(entries, target=None)
    return [sizer.fit(part) for part in sizer.split(masked)]


def _is_message(event: Event) -> bool:
    return type(event.fact) in DIALOGUE_TYPES


def _units(entries: Sequence[_Entry]) -> int:
    return sum(entry.units for entry in entries)


def _chunk(entries: Sequence[_Entry]) -> TranscriptChunk:
    text = "\n\n".join(entry.text for entry in entries)
    return TranscriptChunk(text, _units(entries), tuple(entry.event for entry in entries))


class TranscriptSizer:
    """Quotes, masks, clips and splits events for one size of chunk; each is quoted whole and as a skeleton once."""

    def __init__(self, room: int, counter: Counter, keep: Set[int]) -> None:
        self.room = room
        self.counter = counter
        self.keep = keep
        self._entries: dict[int, _Entry] = {}
        self._skeletons: dict[int, _Entry] = {}

    def entry(self, event: Event) -> _Entry:
        """Return an event as recorded, clipped only if it is certainly larger than half a chunk."""
        known = self._entries.get(event.seq)
        if known is None:
            limit = max(MIN_CLIPPED_UNITS, self.room // 2)
            is_huge = _is_certainly_larger(event, limit)
            content = _clip_content(event, limit, self.counter) if is_huge else None
            known = self._entries[event.seq] = self._entry(event, content)
        return known

    def _entry(self, event: Event, content: Content | None) -> _Entry:
        text = _quote(event, self.keep, content)
        return _Entry(event, text, self.counter.count(text) + 1)

    def mask(self, entries: Sequence[_Entry], *, target: int | None) -> list[_Entry]:
        """Replace long results by skeletons, oldest first, until `target` units are saved; None for all."""
        reduced: list[_Entry] = []
        saved = 0
        for entry in entries:
            fact = entry.event.fact
            is_wanted = target is None or saved < target
            if is_wanted and isinstance(fact, ToolReturned) and entry.units > MASK_RESULTS_ABOVE_UNITS:
                skeleton = self._skeleton(entry, fact)
                saved += max(0, entry.units - skeleton.units)
                entry = min(entry, skeleton, key=lambda entry: entry.units)
            reduced.append(entry)
        return reduced

    def _skeleton(self, entry: _Entry, fact: ToolReturned) -> _Entry:
        known = self._skeletons.get(entry.event.seq)
        if known is None:
            known = self._skeletons[entry.event.seq] = self._entry(entry.event, _skeleton_text(entry, fact))
        return known

    def clip(self, entry: _Entry, limit: int) -> _Entry:
        """Return an entry of at most `limit` units: its texts clipped, or its quotation cut in the middle."""
        if entry.units <= limit:
            return entry
        fact = entry.event.fact
        if not (isinstance(fact, ToolReturned) and "[foveal: masked" in entry.text[:200]):
            entry = self._entry(entry.event, _clip_content(entry.event, limit * 3 // 4, self.counter))
        if entry.units <= limit:
            return entry
        text = _cut_middle(entry.text, limit, handle(entry.event.seq), self.counter)
        return _Entry(entry.event, text, self.counter.count(text) + 1)

    def split(self, entries: Sequence[_Entry]) -> Iterator[list[_Entry]]:
        """Yield groups of whole steps; where a group ends depends only on it and on the step after it."""
        limit = max(MIN_CLIPPED_UNITS, self.room // _MESSAGE_SHARE)
        group: list[_Entry] = []
        size = 0
        for step in _steps(entries):
            clipped = [self.clip(entry, limit) for entry in step]
            units = _units(clipped)
            if group and size + units > self.room:
                yield group
                group, size = [], 0
            group += clipped
            size += units
        if group:
            yield group

    def fit(self, entries: Sequence[_Entry]) -> TranscriptChunk:
        """Return a chunk of these entries; a single step that is larger than the room is cut in its middle."""
        chunk = _chunk(entries)
        if chunk.units <= self.room:
            return chunk
        level = _common_limit([entry.units for entry in entries], self.room)
        chunk = _chunk([self.clip(entry, max(level, 40)) for entry in entries])
        if chunk.units <= self.room:
            return chunk
        handles = f"{handle(chunk.first)} to {handle(chunk.last)}"
        text = _cut_middle(chunk.text, self.room, handles, self.counter)
        return chunk._replace(text=text, units=self.counter.count(text))


def _steps(entries: Sequence[_Entry]) -> Iterator[list[_Entry]]:
    """Yield each message with the results that directly follow it."""
    step: list[_Entry] = []
    for entry in entries:
        if step and not isinstance(entry.event.fact, ToolReturned):
            yield step
            step = []
        step.append(entry)
    if step:
        yield step


def _common_limit(sizes: Sequence[int], room: int) -> int:
    """Return the largest limit per text with which all texts together fit into the room."""
    left = room
    ordered = sorted(sizes)
    for index, size in enumerate(ordered):
        share = left // (len(ordered) - index)
        if size > share:
            return share
        left -= size
    return ordered[-1] if ordered else room


# ── One event ────────────────────────────────────────────────────────────────────────────────────────────


def _quote(event: Event, keep: Set[int], content: Content | None = None) -> str:
    fact = event.fact
    assert isinstance(fact, UserSaid | ModelSaid | ToolReturned)
    speaker, _, text = transcript_entry(
        fact if content is None else replace(fact, content=content)
    ).partition("]")
    return f"[{event.handle} {speaker[1:]}{', stays' if event.seq in keep else ''}]{text}"


def _content(event: Event) -> Content:
    fact = event.fact
    assert isinstance(fact, UserSaid | ModelSaid | ToolReturned)
    return fact.content


def _texts(content: Content) -> list[str]:
    texts = (part for part in parts(content) if isinstance(part, Text | Call))
    return [part.text if isinstance(part, Text) else part.arguments for part in texts]


def _is_certainly_larger(event: Event, limit: int) -> bool:
    """Return whether an event exceeds `limit` units, judged by its characters: about 4 to a unit at most."""
    return sum(map(len, _texts(_content(event)))) > 4 * limit


def _clip_content(event: Event, limit: int, counter: Counter) -> Content:
    """Return the content of an event with each of its texts clipped to a share of the limit."""
    content = _content(event)
    limits = truncation.Limits(strategy="smart", tokens=max(16, limit // max(1, len(_texts(content)))))

    def clip(text: str) -> str:
        clipped = truncation.clip(text, limits, handle=event.handle, counter=counter)
        return text if clipped is None else truncation.join_pieces(text, clipped.pieces)

    if isinstance(content, str):
        return clip(content)
    return tuple(
        replace(part, text=clip(part.text)) if isinstance(part, Text)
        else replace(part, arguments=clip(part.arguments)) if isinstance(part, Call)
        else part
        for part in content
    )  # fmt: skip


def _skeleton_text(entry: _Entry, fact: ToolReturned) -> str:
    what = f"result of {fact.name}" if fact.name else "result"
    text = text_of(fact.content)
    return placeholder.placeholder(
        text,
        what=what[:100],
        handle=entry.event.handle,
        tokens=entry.units,
        skeleton=placeholder.skeleton(text, MAX_SKELETON_CHARS),
    )


def _cut_middle(text: str, room: int, handles: str, counter: Counter) -> str:
    """Return the beginning and the end of a quotation, cut so that every line is still quoted."""
    note = f"\n[… left out here; whole text: {handles} …]\n"
    half = max(0, (room - counter.count(note) - 4) // 2)
    end = text[len(text) - counter.tail(text, half) :].partition("\n")[2] if half else ""
    return text[: counter.head(text, half)] + note + end
