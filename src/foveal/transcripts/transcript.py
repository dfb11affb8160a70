"""What a recorded conversation becomes: facts in the order in which they happened.

Positions inside a recording (the `last` of a compaction, the `to` of a rewind) count its facts from `first`, which
is 0 unless our own format says otherwise; `Recording.events` moves them to wherever the facts are appended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Final, TypeAlias

import msgspec
from msgspec.structs import replace

from foveal.core.log.events import (
    AnyFact,
    Clipped,
    Compacted,
    Dropped,
    Event,
    Instructed,
    Masked,
    Noted,
    Pinned,
    Reverted,
    Rewound,
    UserSaid,
    text_of,
)
from foveal.errors import FovealError

UNKNOWN: Final = "unknown line"
"""Topic of the notes that keep what was not understood."""
TITLE: Final = 80

Recorded: TypeAlias = tuple[AnyFact, float | None]
"""A fact, and when it happened in seconds since 1970, if that is known."""


class UnreadableTranscript(FovealError, ValueError):
    """A file that no reader of recordings can begin with; says which, where, and what would help."""

    def __init__(self, path: str, line: int, problem: str) -> None:
        super().__init__(f"{path}, line {line}: {problem}" if line else f"{path}: {problem}")
        self.path = path
        self.line = line
        self.problem = problem


class Transcript(msgspec.Struct, frozen=True, kw_only=True):
    """One conversation that was read from somewhere."""

    id: str
    source: str
    """The format's name."""
    facts: tuple[Recorded, ...]
    title: str = ""
    path: str = ""
    """The file it came from; "" for a stream."""
    model: str = ""
    """The model that spoke last, as far as the format tells."""
    unknown: int = 0
    """How many lines or items were not understood; each is among the facts as a note."""
    first: int = 0
    """The seq of the first fact, which positions in the facts count from."""

    def events(self, *, first: int = 0) -> Iterator[Event]:
        """The facts as events that begin with seq `first`; positions in them move along."""
        by = first - self.first
        for seq, (fact, at) in enumerate(self.facts, first):
            yield Event(seq, moved(fact, by=by) if by else fact, at)


def moved(fact: AnyFact, *, by: int) -> AnyFact:
    """The same fact where every seq is `by` higher."""
    match fact:
        case Clipped() | Reverted():
            return replace(fact, target=fact.target + by)
        case Pinned() if fact.target is not None:
            return replace(fact, target=fact.target + by)
        case Instructed() if fact.replaces is not None:
            return replace(fact, replaces=fact.replaces + by)
        case Rewound():
            return replace(fact, to=fact.to + by)
        case Compacted():
            return replace(fact, first=fact.first + by, last=fact.last + by)
        case Dropped():
            return replace(fact, ranges=tuple((low + by, high + by) for low, high in fact.ranges))
        case Masked():
            return replace(fact, masks=tuple(replace(mask, target=mask.target + by) for mask in fact.masks))
        case _:
            return fact


class TranscriptBuilder:
    """A recording in the making."""

    def __init__(self, source: str, path: str = "") -> None:
        self.source = source
        self.path = path
        self.facts: list[Recorded] = []
        self.unknown = 0
        self.id = ""
        self.title = ""
        self.model = ""

    def __len__(self) -> int:
        return len(self.facts)

    def add(self, *facts: AnyFact, at: float | None = None) -> None:
        self.facts += [(fact, at) for fact in facts]

    def note(self, topic: str, text: str, *, at: float | None = None) -> None:
        self.facts.append((Noted(text=text, topic=topic), at))

    def keep(self, raw: bytes | str) -> None:
        """Keep something that was not understood, as it came."""
        self.unknown += 1
        self.note(UNKNOWN, as_text(raw))

    def compact(self, summary: str, *, by: str, last: int | None = None, at: float | None = None) -> bool:
        """All that came so far (or up to `last`) is shown as this summary; False when there is nothing."""
        last = len(self.facts) - 1 if last is None else last
        if last < 0 or not summary:
            return False
        self.add(Compacted(first=0, last=last, summary=summary, by=by, reason="recorded"), at=at)
        return True

    def done(self, id: str, *, first: int = 0) -> Transcript:
        """The recording; `id` is for one that has not told its own."""
        return Transcript(
            id=self.id or id,
            source=self.source,
            facts=tuple(self.facts),
            title=self.title,
            path=self.path,
            model=self.model,
            unknown=self.unknown,
            first=first,
        )


def headline(facts: Iterable[Recorded]) -> str:
    """A title for what has none: how the user began."""
    for fact, _ in facts:
        if isinstance(fact, UserSaid):
            words = " ".join(text_of(fact.content)[: 4 * TITLE].split())
            if words and not words.startswith("<"):
                return words if len(words) <= TITLE else words[: TITLE - 1] + "…"
    return ""


def as_text(raw: bytes | str) -> str:
    """A line as text from which its bytes can be had again, with the same error handler."""
    return raw if isinstance(raw, str) else raw.decode("utf-8", "surrogateescape")


def moment(value: object) -> float | None:
    """An ISO date, or a number of seconds or milliseconds, in seconds since 1970."""
    if isinstance(value, str):
        try:
            told = datetime.fromisoformat(value)
            return (told if told.tzinfo else told.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError, OSError):
            return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e14:
        return None
    return value / 1_000 if value > 1e11 else float(value)


def words(value: object) -> str:
    """A text, "" for whatever is none."""
    return value if isinstance(value, str) else ""
