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
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Final, NamedTuple

from msgspec.structs import replace

from foveal.core.log.events import (
    REDUCTIONS,
    AnyFact,
    Compacted,
    CompactionFailed,
    Event,
    Noted,
    Opened,
    Overflowed,
    ThinkingLeftOut,
    Used,
)
from foveal.core.models.cost import UsageTotals
from foveal.core.models.model import Model, model
from foveal.core.redaction import scrub
from foveal.core.wire.safe_print import one_line
from foveal.errors import BadSetting, FovealError
from foveal.inspector.sessions.source import MAX_ROW_SHARES, SessionRow
from foveal.recall.archive import TranscriptSource
from foveal.recall.archive.listing import ListedSession, SessionList
from foveal.recall.archive.source import SessionDetails, SessionLog
from foveal.recall.archive.transcript_source import (
    MAX_TAIL_BYTES,
    MAX_TRANSCRIPT_BYTES,
    read_tail,
    transcript_place,
)
from foveal.transcripts.transcript import API_ERROR_TOPIC

MAX_ROW_EVENTS: Final = 2_000
MAX_KEPT_FIGURES: Final = 2_000
"""Sessions whose figures stay in memory."""
MAX_ROWS_WORK_S: Final = 0.7
"""Time for which one page computes figures."""
_PART_EVENTS: Final = 500
"""Events that are read at once for a row."""
MAX_ROW_ERROR_CHARS: Final = 200
_TURN_TOPIC: Final = "turn"
"""Topic of the agent's note about a turn that ended early."""


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


# ── Figures ──────────────────────────────────────────────────────────────────────────────────────────────


class SessionFigures:
    """What the events of one session add up to; each event is added once, in order."""

    def __init__(self, *, model: str = "", window: int = 0) -> None:
        """`model` answers until the log names another; `window` overrides what is known of the models."""
        self.model = model
        self.origin = ""
        """The session that this one continues, as the log names it: `id`, or `id@seq` for a fork."""
        self.next_seq = 0
        self._given_window = window
        self._recorded_window = 0
        self._totals = UsageTotals()
        self._shares = array("d")
        self._reductions = 0
        self._error = ""
        self._error_at = 0.0
        self._times: tuple[float, ...] = ()

    def add(self, event: Event) -> None:
        """Add the next event."""
        self.next_seq = event.seq + 1
        if event.at is not None:
            self._times = (self._times[0] if self._times else event.at, event.at)
        fact = event.fact
        match fact:
            case Opened():
                from foveal.core.engine.settings import recorded_window  # loads the engine

                self.model = fact.model or self.model
                self.origin = fact.origin or self.origin
                self._recorded_window = recorded_window(fact) or 0
            case Used():
                self._note_model(fact)
            case Compacted() | CompactionFailed():
                from foveal.core.compaction.health import read_metrics  # loads the engine

                metrics = read_metrics(fact)
                tokens = metrics.input + metrics.output
                self._totals = self._totals.with_summary(
                    metrics.cost, asked=metrics.asked, tokens=tokens, at=event.at
                )
            case _:
                pass
        self._totals = self._totals.after(event, _known_model(self.model) or _unpriced())
        self._reductions += isinstance(fact, REDUCTIONS)
        if failure := _failure(fact):
            self._error, self._error_at = failure, event.at or 0.0

    def _note_model(self, used: Used) -> None:
        self.model = used.model or self.model
        window = self.window
        if window:
            self._shares.append(used.prompt / window)

    @property
    def window(self) -> int:
        """Tokens in the window of the newest model; 0 if that is unknown."""
        known = _known_model(self.model)
        return self._given_window or self._recorded_window or (known.window if known is not None else 0)

    def fill(self, row: SessionRow, *, is_partial: bool) -> SessionRow:
        """Return the row with these figures."""
        totals = self._totals
        prompts = totals.input + totals.cache_read + totals.cache_write
        return replace(
            row,
            model=self.model or row.model,
            window=self.window,
            used=totals.last.prompt if totals.last is not None else 0,
            shares=tuple(round(share, 4) for share in _thinned(self._shares)),
            requests=totals.calls,
            reported=totals.reported,
            spent=totals.spent if totals.reported else None,
            unknown_calls=totals.unknown_calls,
            cache_share=round(totals.cache_read / prompts, 4) if prompts else None,
            reductions=self._reductions,
            error=self._error,
            error_at=self._error_at,
            events=row.events or (0 if is_partial else self.next_seq),
            times=self._times,
            created=row.created or (self._times[0] if self._times and not is_partial else 0.0),
            partial=is_partial,
        )


@cache
def _unpriced() -> Model:
    """Return what stands for a model without a name: usage is summed, prices are unknown."""
    return model("unknown")


@lru_cache(maxsize=256)
def _known_model(name: str) -> Model | None:
    try:
        return model(name)
    except BadSetting:
        return None


def _failure(fact: AnyFact) -> str:
    """Return the failure that an event reports, "" for any other."""
    match fact:
        case Overflowed():
            text = fact.problem or "a request was too large for the provider"
        case ThinkingLeftOut():
            text = fact.problem
        case CompactionFailed():
            text = f"{'a summariser failed' if fact.cause else 'no summary was written'}: {fact.problem}"
        case Noted(topic=topic) if topic in (_TURN_TOPIC, API_ERROR_TOPIC):
            text = fact.text
        case _:
            return ""
    return one_line(scrub(text), width=MAX_ROW_ERROR_CHARS)


def _thinned(shares: array[float]) -> list[float]:
    """Return at most `MAX_ROW_SHARES` values, evenly chosen, with the first and the last one."""
    count = len(shares)
    if count <= MAX_ROW_SHARES:
        return list(shares)
    return [shares[place * (count - 1) // (MAX_ROW_SHARES - 1)] for place in range(MAX_ROW_SHARES)]
