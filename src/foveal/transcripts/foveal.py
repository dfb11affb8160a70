"""Foveal's own format: a header line, then one event a line, as `codec` writes them.

    {"foveal":"session","v":1,"id":"demo","title":"A day's work"}
    {"seq":0,"fact":{"kind":"user_said","content":"Hello"}}

What was written comes back byte for byte, facts of later versions included. A file can hold several sessions.
Events keep their seq: a line that is not understood takes the place of the event that is missing there, and stands
at the end when none is missing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
from msgspec.structs import replace

from foveal.core.log.codec import decode, encode
from foveal.core.log.events import FORMAT, Event, Instructed, Noted
from foveal.errors import UnreadableEvent
from foveal.transcripts.jsonl import JsonLine
from foveal.transcripts.transcript import UNKNOWN, Transcript, TranscriptBuilder, as_text, words

NAME: Final = "foveal"
HEADER: Final = "session"
MOST_MISSING: Final = 10_000
"""A seq that jumps further is taken for a broken line."""


class FileHeader(msgspec.Struct, kw_only=True):
    foveal: str = HEADER
    v: int = FORMAT
    id: str
    title: str = ""


def write_events(events: Iterable[Event], session_id: str, title: str = "") -> Iterator[bytes]:
    """A session as lines, each with its newline."""
    header = FileHeader(id=session_id, title=title)
    try:
        yield msgspec.json.encode(header) + b"\n"
    except UnicodeEncodeError:  # a lone surrogate is not UTF-8, but JSON's own escapes can carry it
        yield json.dumps(msgspec.structs.asdict(header)).encode() + b"\n"
    for event in events:
        yield encode(_canonical(event)) + b"\n"


def _canonical(event: Event) -> Event:
    """The event as it will be when it was read: msgspec leaves a default out only if it is the very same object."""
    fact = event.fact
    if isinstance(fact, Instructed) and fact.role == "system":
        return Event(event.seq, replace(fact, role="system"), event.at)
    return event


def read(lines: Iterable[JsonLine], path: str, stem: str) -> Iterator[Transcript]:
    session: _SessionReader | None = None
    told = 0
    for line in lines:
        header = line.mapping() if b'"foveal"' in line.raw[:32] else None
        if header is None or header.get("foveal") != HEADER:
            session = session or _SessionReader(path)
            session.line(line)
            continue
        if session is not None:
            yield session.done(stem, told)
            told += 1
        session = _SessionReader(path)
        session.into.id, session.into.title = words(header.get("id")), words(header.get("title"))
    if session is not None:
        yield session.done(stem, told)


class _SessionReader:
    """One session as its lines come."""

    def __init__(self, path: str) -> None:
        self.into = TranscriptBuilder(NAME, path)
        self.first: int | None = None
        self.strange: list[bytes] = []

    def line(self, line: JsonLine) -> None:
        try:
            event = decode(line.raw)
        except (UnreadableEvent, RecursionError):
            self.strange.append(line.raw)
            return
        if isinstance(event.seq, int) and self._reach(event.seq):
            self.into.add(event.fact, at=event.at)
        else:
            self.strange.append(line.raw)

    def _reach(self, seq: int) -> bool:
        """Fill what is missing before `seq`; False when that is not a place for an event."""
        if self.first is None:
            self.first = max(0, seq - len(self.strange))
        gap = seq - self.first - len(self.into)
        if not 0 <= gap <= MOST_MISSING:
            return False
        for place in range(seq - gap, seq):
            if self.strange:
                self.into.keep(self.strange.pop(0))
            else:
                self.into.unknown += 1
                self.into.note("missing event", f"e{place} is not in the file")
        return True

    def done(self, stem: str, told: int) -> Transcript:
        for raw in self.strange:
            self.into.unknown += 1
            self.into.add(Noted(topic=UNKNOWN, text=as_text(raw)))
        return self.into.done(f"{stem}:{told}" if told else stem, first=self.first or 0)
