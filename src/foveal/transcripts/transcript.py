"""A recorded conversation: facts in order, with their times.

Positions inside a transcript (the `last` of a compaction, the `to` of a rewind) count its facts from `first`, which
is 0 unless Foveal's own format says otherwise; `Transcript.events` shifts them to where the facts are appended.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from foveal.core.log.events import (
    AnyFact,
    BranchEnded,
    Clipped,
    Compacted,
    CompactionFailed,
    Dropped,
    Event,
    Expanded,
    Instructed,
    Marked,
    Mask,
    Masked,
    Noted,
    Pinned,
    Prioritised,
    Reverted,
    Rewound,
    Steered,
    Superseded,
    Text,
    UserSaid,
    parts,
)
from foveal.core.redaction import scrub
from foveal.errors import FovealError
from foveal.transcripts.jsonl import JsonLine

UNKNOWN_LINE_TOPIC: Final = "unknown line"
"""Topic of the notes that hold lines which the reader did not understand."""
API_ERROR_TOPIC: Final = "api error"
"""Topic of the notes with errors of the provider that a program showed to its user."""
_TAGGED_BLOCK: Final = re.compile(r"\s*<([a-z][\w-]*)>.*?</\1>", re.DOTALL)
MAX_DERIVED_TITLE_CHARS: Final = 80

TimedFact: TypeAlias = tuple[AnyFact, float | None]
"""A fact and its time in seconds since 1970, None if unknown."""


class UnreadableTranscript(FovealError, ValueError):
    """A file is not a transcript; names the file, the line and the problem.

    Examples:
        ```python
        from pathlib import Path

        from foveal.transcripts import UnreadableTranscript, read

        Path("notes.jsonl").write_text("no JSON")
        try:
            list(read("notes.jsonl"))
        except UnreadableTranscript as error:
            assert error.path == "notes.jsonl"
        ```
    """

    def __init__(self, path: str, line: int, problem: str) -> None:
        super().__init__(f"{path}, line {line}: {problem}" if line else f"{path}: {problem}")
        self.path = path
        """The file."""
        self.line = line
        """The number of the line; 0 for the whole file."""
        self.problem = problem
        """What is wrong, in words."""


class Transcript(msgspec.Struct, frozen=True, kw_only=True):
    """One conversation read from a file or stream.

    Examples:
        ```python
        import foveal
        from foveal.transcripts import Transcript

        facts = ((foveal.UserSaid(content="Why is CI red?"), None),)
        recording = Transcript(id="demo", source="mine", facts=facts)
        assert [event.seq for event in recording.events(first=10)] == [10]
        ```
    """

    id: str
    """The id of the conversation."""
    source: str
    """The format's name."""
    facts: tuple[TimedFact, ...]
    """The facts in order, each with its time."""
    title: str = ""
    """The title; "" if there is none."""
    path: str = ""
    """The file; "" for a stream."""
    model: str = ""
    """The model that answered last, if the format names it."""
    unknown: int = 0
    """Number of lines or items that were not understood; each is among the facts as a note."""
    first: int = 0
    """The seq of the first fact; positions in the facts count from it."""
    parent: str = ""
    """The id of the session that started this one as a sub-agent."""
    window: int = 0
    """Tokens in the model's window, if the format records them; else 0."""

    def events(self, *, first: int = 0) -> Iterator[Event]:
        """Yield the facts as events, with their positions shifted accordingly.

        Args:
            first: The seq of the first event.
        """
        by = first - self.first
        for seq, (fact, at) in enumerate(self.facts, first):
            yield Event(seq, shift_seqs(fact, by=by) if by else fact, at)


def shift_seqs(fact: AnyFact, *, by: int) -> AnyFact:
    """Return the fact with every seq in it `by` higher."""
    match fact:
        case Clipped():
            sources = tuple(source + by for source in fact.sources)
            again = fact.again + by if fact.again >= 0 else -1
            return replace(fact, target=fact.target + by, sources=sources, again=again)
        case Reverted() | Marked() | Prioritised():
            return replace(fact, target=fact.target + by)
        case BranchEnded():
            keep = tuple(seq + by for seq in fact.keep)
            return replace(fact, branch=fact.branch + by, keep=keep)
        case Superseded():
            return replace(fact, target=fact.target + by, by=fact.by + by)
        case Steered() if fact.keep:
            return replace(fact, keep=tuple(seq + by for seq in fact.keep))
        case Pinned() if fact.target is not None:
            return replace(fact, target=fact.target + by)
        case Instructed() if fact.replaces is not None:
            return replace(fact, replaces=fact.replaces + by)
        case Rewound():
            return replace(fact, to=fact.to + by)
        case Compacted():
            keep = tuple(seq + by for seq in fact.keep)
            masks = _shift_masks(fact.masks, by)
            return replace(fact, first=fact.first + by, last=fact.last + by, keep=keep, masks=masks)
        case CompactionFailed() | Expanded():
            return replace(fact, first=fact.first + by, last=fact.last + by)
        case Dropped():
            ranges = tuple((low + by, high + by) for low, high in fact.ranges)
            return replace(fact, ranges=ranges, users=tuple(seq + by for seq in fact.users))
        case Masked():
            return replace(fact, masks=_shift_masks(fact.masks, by))
        case _:
            return fact


def _shift_masks(masks: tuple[Mask, ...], by: int) -> tuple[Mask, ...]:
    return tuple(replace(mask, target=mask.target + by) for mask in masks)


class TranscriptFormat(NamedTuple):
    """How one product records conversations."""

    name: str
    """As it is called in `Transcript.source` and in the `format` option."""
    matches: Callable[[Mapping[str, Any], str], bool]
    """Whether a JSON object, whose `type` is the second argument, is a line of this format."""
    read: Callable[[Iterable[JsonLine], str, str], Iterator[Transcript]]
    """Reads the lines of a file; takes its path, and its name without suffix as the default id."""


class TranscriptBuilder:
    """Collects the facts of a transcript."""

    def __init__(self, source: str, path: str = "") -> None:
        self.source = source
        self.path = path
        self.facts: list[TimedFact] = []
        self.unknown: int = 0
        self.id: str = ""
        self.title: str = ""
        self.model: str = ""
        self.parent: str = ""
        self.window: int = 0

    def __len__(self) -> int:
        return len(self.facts)

    def describe(
        self,
        *,
        id: str | None = None,
        title: str | None = None,
        model: str | None = None,
        parent: str | None = None,
        window: int | None = None,
    ) -> None:
        """Set the given fields of the transcript."""
        self.window = self.window if window is None else window
        self.parent = self.parent if parent is None else parent
        self.id = self.id if id is None else id
        self.title = self.title if title is None else title
        self.model = self.model if model is None else model

    def add(self, *facts: AnyFact, at: float | None = None) -> None:
        """Append facts of the same time."""
        self.facts += [(fact, at) for fact in facts]

    def note(self, topic: str, text: str, *, at: float | None = None) -> None:
        """Append a note, which no model sees."""
        self.facts.append((Noted(text=text, topic=topic), at))

    def extend(self, facts: Iterable[TimedFact]) -> None:
        """Append facts with their times."""
        self.facts += facts

    def add_unknown(self, raw: bytes | str) -> None:
        """Append a line that was not understood, unchanged, as a note."""
        self.add(self.unknown_note(raw))

    def add_missing(self, text: str) -> None:
        """Append a note in the place of an event that the file lacks; it counts as unknown."""
        self.unknown += 1
        self.note("missing event", text)

    def unknown_note(self, raw: bytes | str) -> Noted:
        """Count a line that was not understood, and return its note, which the caller appends."""
        self.unknown += 1
        return Noted(text=decode_line(raw), topic=UNKNOWN_LINE_TOPIC)

    def compact(self, summary: str, *, by: str, last: int | None = None, at: float | None = None) -> bool:
        """Show all facts so far (or up to `last`) as a summary; False if there are none, or no summary."""
        last = len(self.facts) - 1 if last is None else last
        if last < 0 or not summary:
            return False
        self.add(Compacted(first=0, last=last, summary=summary, by=by, reason="recorded"), at=at)
        return True

    def build(self, id: str, *, first: int = 0) -> Transcript:
        """Return the transcript; `id` is used if the file names none."""
        return Transcript(
            id=self.id or id,
            source=self.source,
            facts=tuple(self.facts),
            title=self.title,
            path=self.path,
            model=self.model,
            unknown=self.unknown,
            first=first,
            parent=self.parent,
            window=self.window,
        )


def derive_title(facts: Iterable[TimedFact]) -> str:
    """Return the start of the first user message without secrets, as a title for a transcript without one."""
    for fact, _ in facts:
        if isinstance(fact, UserSaid):
            for part in parts(fact.content):
                text = _without_tagged_blocks(part.text) if isinstance(part, Text) else ""
                if text and not text.startswith("<"):
                    return _shorten(scrub(text))  # cut before, a part of a secret would not be recognised
    return ""


def _without_tagged_blocks(text: str) -> str:
    """Return a text without the blocks `<tag>…</tag>` that a client puts before the user's words."""
    while block := _TAGGED_BLOCK.match(text):
        text = text[block.end() :]
    return text.lstrip()


def _shorten(text: str) -> str:
    title = " ".join(text[: 4 * MAX_DERIVED_TITLE_CHARS].split())
    return title if len(title) <= MAX_DERIVED_TITLE_CHARS else title[: MAX_DERIVED_TITLE_CHARS - 1] + "…"


def decode_line(raw: bytes | str) -> str:
    """Decode a line; encoding it with `surrogateescape` gives the same bytes again."""
    return raw if isinstance(raw, str) else raw.decode("utf-8", "surrogateescape")


def parse_time(value: object) -> float | None:
    """Return an ISO date, or a number of seconds or milliseconds, as seconds since 1970."""
    if isinstance(value, str):
        try:
            parsed = datetime.fromisoformat(value)
            return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError, OSError):
            return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e14:
        return None
    return value / 1_000 if value > 1e11 else float(value)


def text_or_empty(value: object) -> str:
    """Return the value if it is a string, else ""."""
    return value if isinstance(value, str) else ""
