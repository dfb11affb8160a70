"""Foveal's transcript format: a header line, then one event per line.

    {"foveal":"session","v":1,"id":"demo","title":"A day's work"}
    {"seq":0,"fact":{"kind":"user_said","content":"Hello"}}

1. Events are written by `codec` and come back byte for byte, including facts of later versions.
2. A file can hold several sessions.
3. Events keep their seq: a line that is not understood takes the place of a missing event, or comes last if no
   event is missing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from foveal.core.log.codec import decode, encode
from foveal.core.log.events import FORMAT, Event, Instructed
from foveal.errors import UnreadableEvent
from foveal.transcripts.jsonl import JsonLine
from foveal.transcripts.transcript import Transcript, TranscriptBuilder, TranscriptFormat, text_or_empty

HEADER_KIND: Final = "session"
MAX_MISSING_EVENTS: Final = 10_000
"""A line whose seq leaves a larger gap counts as damaged."""


class FileHeader(msgspec.Struct, kw_only=True):
    """First line of a session."""

    foveal: str = HEADER_KIND
    v: int = FORMAT
    id: str
    title: str = ""


def write_events(events: Iterable[Event], session_id: str, title: str = "") -> Iterator[bytes]:
    """Yield a session as lines of Foveal's format, each with its newline.

    Args:
        events: The events of the session.
        session_id: The id in the header line.
        title: The title in the header line.

    Examples:
        ```python
        import foveal
        from foveal.transcripts import write_events

        lines = list(write_events(foveal.Context("gpt-4.1").log, "demo", "A short session"))
        ```
    """
    header = FileHeader(id=session_id, title=title)
    try:
        yield msgspec.json.encode(header) + b"\n"
    except UnicodeEncodeError:  # a lone surrogate has no UTF-8 form, but a JSON escape
        yield json.dumps(msgspec.structs.asdict(header)).encode() + b"\n"
    for event in events:
        yield encode(_canonical(event)) + b"\n"


def _canonical(event: Event) -> Event:
    """Return the event as it is after reading: msgspec omits a default only if it is the identical object."""
    fact = event.fact
    if isinstance(fact, Instructed) and fact.role == "system":
        return Event(event.seq, replace(fact, role="system"), event.at)
    return event


def _matches(value: Mapping[str, Any], kind: str) -> bool:
    fact = value.get("fact")
    is_event = "seq" in value and isinstance(fact, Mapping) and "kind" in fact
    return value.get("foveal") == HEADER_KIND or is_event


def _read(lines: Iterable[JsonLine], path: str, stem: str) -> Iterator[Transcript]:
    session: _ExportedSession | None = None
    number = 0
    for line in lines:
        header = line.parse_object() if b'"foveal"' in line.raw[:32] else None
        if header is None or header.get("foveal") != HEADER_KIND:
            session = session or _ExportedSession(path)
            session.add_line(line)
            continue
        if session is not None:
            yield session.build(stem, number)
            number += 1
        session = _ExportedSession(path)
        session.add_header(header)
    if session is not None:
        yield session.build(stem, number)


class _ExportedSession:
    """Builds the transcript of one session from its lines."""

    def __init__(self, path: str) -> None:
        self.builder = TranscriptBuilder(FOVEAL.name, path)
        self.first: int | None = None
        self.unreadable: list[bytes] = []

    def add_header(self, header: Mapping[str, Any]) -> None:
        """Take the id and title of the session from its first line."""
        self.builder.describe(id=text_or_empty(header.get("id")))
        self.builder.describe(title=text_or_empty(header.get("title")))

    def add_line(self, line: JsonLine) -> None:
        """Add the event of a line."""
        try:
            event = decode(line.raw)
        except (UnreadableEvent, RecursionError):
            self.unreadable.append(line.raw)
            return
        if isinstance(event.seq, int) and self._fill_gap(event.seq):
            self.builder.add(event.fact, at=event.at)
        else:
            self.unreadable.append(line.raw)

    def _fill_gap(self, seq: int) -> bool:
        """Add notes for the events that are missing before `seq`; False if no event can have this seq here."""
        if self.first is None:
            self.first = max(0, seq - len(self.unreadable))
        gap = seq - self.first - len(self.builder)
        if not 0 <= gap <= MAX_MISSING_EVENTS:
            return False
        for missing in range(seq - gap, seq):
            if self.unreadable:
                self.builder.add_unknown(self.unreadable.pop(0))
            else:
                self.builder.add_missing(f"e{missing} is not in the file")
        return True

    def build(self, stem: str, number: int) -> Transcript:
        for raw in self.unreadable:
            self.builder.add_unknown(raw)
        return self.builder.build(f"{stem}:{number}" if number else stem, first=self.first or 0)


FOVEAL: Final = TranscriptFormat("foveal", _matches, _read)
