"""Rows of the overview, with figures that are computed once per version of a session.

1. Figures are kept for the `MAX_KEPT_FIGURES` sessions used last. Of a store's session that has grown, only the new
   events are read.
2. Of a long session the newest `MAX_ROW_EVENTS` events are read, of a long file its end: their rows are `partial`,
   and `incomplete` names their sessions until `complete` has read the rest.
3. Work stops at a deadline. Rows that it did not get to are `partial` too, and `unfinished` names their sessions.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

from foveal.core.wire.safe_print import one_line
from foveal.errors import FovealError
from foveal.inspector.sessions.figures import SessionFigures
from foveal.inspector.sessions.source import SessionRow
from foveal.recall.archive import TranscriptSource
from foveal.recall.archive.listing import ListedSession, SessionList
from foveal.recall.archive.source import SessionDetails, SessionLog
from foveal.recall.archive.transcript_source import (
    MAX_TAIL_BYTES,
    MAX_TRANSCRIPT_BYTES,
    read_tail,
    transcript_place,
)

MAX_ROW_EVENTS: Final = 2_000
MAX_KEPT_FIGURES: Final = 2_000
"""Sessions whose figures stay in memory."""
MAX_ROWS_WORK_S: Final = 0.7
"""Time for which one page computes figures."""
_PART_EVENTS: Final = 500
"""Events that are read at once for a row."""


class VersionFigures(NamedTuple):
    """Figures of a session as of a version."""

    version: tuple[float, ...]
    figures: SessionFigures
    is_partial: bool


class SessionRows:
    """Makes rows of listed sessions; for one task at a time."""

    def __init__(self, sessions: SessionList, *, window: int = 0) -> None:
        """`window` is that of Foveal's own sessions, if it is not the model's."""
        self.unfinished: dict[str, None] = {}
        """Handles of the sessions whose last row has no figures."""
        self.incomplete: dict[str, None] = {}
        """Handles of the sessions whose last row has figures of a part."""
        self._sessions = sessions
        self._window = window
        self._known: OrderedDict[str, VersionFigures] = OrderedDict()

    async def rows(self, listed: Sequence[ListedSession]) -> tuple[SessionRow, ...]:
        """Return the rows of these sessions, without those that cannot be read."""
        until = time.monotonic() + MAX_ROWS_WORK_S
        rows = [await self._row(each, computes=time.monotonic() < until) for each in listed]
        return tuple(row for row in rows if row is not None)

    async def finish(self) -> None:
        """Compute figures of unfinished rows; each counts as a change of its session."""
        until = time.monotonic() + MAX_ROWS_WORK_S
        while self.unfinished and time.monotonic() < until:
            listed = self._sessions.get(next(iter(self.unfinished)))
            self.unfinished.pop(next(iter(self.unfinished)))
            if listed is not None and await self._row(listed, computes=True) is not None:
                self._sessions.note_change(listed.entry)

    async def compute_whole(self, listed: ListedSession) -> VersionFigures:
        """Return the figures of all events of a session. Other tasks may call the other methods meanwhile."""
        entry, source = listed
        details = await source.describe(entry)
        figures = self._new_figures(details)
        if _is_first_of_file(listed):
            is_whole = await asyncio.to_thread(
                _add_tail, figures, listed.path, details.kind, max_bytes=MAX_TRANSCRIPT_BYTES
            )
            return VersionFigures(entry.version, figures, not is_whole)
        await _add_log(figures, await source.open(entry), 0)
        return VersionFigures(entry.version, figures, is_partial=False)

    def complete(self, listed: ListedSession, known: VersionFigures) -> None:
        """Use the figures of all events of a session; that counts as a change of it."""
        self._keep(listed.entry.handle, known)
        self._sessions.note_change(listed.entry)

    def figures(self, handle: str) -> SessionFigures | None:
        """Return the figures of a session, as far as they are known."""
        known = self._known.get(handle)
        return None if known is None else known.figures

    async def _row(self, listed: ListedSession, *, computes: bool) -> SessionRow | None:
        handle = listed.entry.handle
        known = self._known.get(handle)
        try:
            details = await listed.source.describe(listed.entry)
            if known is None or known.version != listed.entry.version:
                if not computes:
                    self.unfinished[handle] = None
                    return bare_row(self._sessions, listed, details)
                known = await self._compute(listed, details, known)
                if known.is_partial:
                    self.incomplete[handle] = None
        except (FovealError, OSError) as problem:
            self._sessions.add_problem(problem)
            return None
        self._keep(handle, known)
        row = bare_row(self._sessions, listed, details, origin=known.figures.origin)
        return known.figures.fill(row, is_partial=known.is_partial)

    def _keep(self, handle: str, known: VersionFigures) -> None:
        self._known[handle] = known
        self._known.move_to_end(handle)
        self.unfinished.pop(handle, None)
        if len(self._known) > MAX_KEPT_FIGURES:
            self._known.popitem(last=False)

    async def _compute(
        self, listed: ListedSession, details: SessionDetails, known: VersionFigures | None
    ) -> VersionFigures:
        entry, source = listed
        figures = self._new_figures(details)
        if _is_first_of_file(listed):
            if known is not None and not known.is_partial and entry.size > MAX_TAIL_BYTES:
                return VersionFigures(entry.version, known.figures, is_partial=True)
            is_whole = await asyncio.to_thread(_add_tail, figures, listed.path, details.kind)
            return VersionFigures(entry.version, figures, not is_whole)
        log = await source.open(entry)
        first, is_partial = max(0, log.end - MAX_ROW_EVENTS), log.end > MAX_ROW_EVENTS
        if known is not None and log.is_append_only and first <= known.figures.next_seq <= log.end:
            figures, first, is_partial = known.figures, known.figures.next_seq, known.is_partial
        await _add_log(figures, log, first)
        return VersionFigures(entry.version, figures, is_partial)

    def _new_figures(self, details: SessionDetails) -> SessionFigures:
        window = self._window if details.kind == "foveal" else details.window
        return SessionFigures(model=details.model, window=window)


def _is_first_of_file(listed: ListedSession) -> bool:
    return isinstance(listed.source, TranscriptSource) and not transcript_place(listed.entry.key)[1]


def _add_tail(figures: SessionFigures, path: str, format: str, *, max_bytes: int = MAX_TAIL_BYTES) -> bool:
    """Add the newest events of a file, and return whether these are all."""
    tail = read_tail(path, format, max_bytes=max_bytes)
    for event in tail.events:
        figures.add(event)
    return tail.is_whole


async def _add_log(figures: SessionFigures, log: SessionLog, first: int) -> None:
    for start in range(first, log.end, _PART_EVENTS):
        for event in await log.skim(range(start, min(start + _PART_EVENTS, log.end))):
            figures.add(event)


def bare_row(
    sessions: SessionList, listed: ListedSession, details: SessionDetails, *, origin: str = ""
) -> SessionRow:
    """Return a row with what is known without the events."""
    entry = listed.entry
    return SessionRow(
        key=entry.handle,
        title=details.title or one_line(entry.name, width=120),
        format=details.kind,
        model=details.model,
        active=entry.active,
        created=details.created or 0.0,
        events=details.events or 0,
        bytes=entry.size,
        origin=sessions.origin_key(listed, details, origin),
        place=listed.path,
        writable=False,
        partial=True,
    )
