"""Reading the events of a session, page by page, with their large texts.

A page is one transaction. If the session is erased between two of them, the events are read again, so that no
reader sees a part of a session erased and a part not. Work that takes longer than an event loop may
wait runs in threads.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar

from foveal.core.log.events import Event
from foveal.errors import StoreUnusable
from foveal.stores.compression import CutText, LinePacker, to_events
from foveal.stores.postgres import sql_statements as statements
from foveal.stores.postgres.connection import PostgresPool, Rows, SqlStatement, translate_errors
from foveal.stores.postgres.sql_statements import SessionName
from foveal.stores.search_words import Tokenizer

T = TypeVar("T")

MAX_INLINE_WORK_BYTES: Final = 64 << 10
"""Bytes that are processed on the event loop; more of them go to a thread."""


class _OfThread(threading.local):
    """The objects of one thread, made when it first needs them."""

    def __init__(self) -> None:
        self.packer = LinePacker()
        self.tokenizer = Tokenizer()


_of_thread: Final = _OfThread()


def packer() -> LinePacker:
    """Return the current thread's packer."""
    return _of_thread.packer


def tokenizer() -> Tokenizer:
    """Return the current thread's tokenizer."""
    return _of_thread.tokenizer


async def outside_loop(size: int, work: Callable[[], T]) -> T:
    """Run `work`, which processes `size` bytes; in a thread if these are many."""
    return work() if size <= MAX_INLINE_WORK_BYTES else await asyncio.to_thread(work)


MAX_PAGE_EVENTS: Final = 1_000
_MAX_ATTEMPTS: Final = 5
"""Attempts to read a session that is erased meanwhile."""


class EventPage(NamedTuple):
    """Events of a session, with its state when they were read."""

    key: int
    head: int
    erasures: int
    events: list[Event]


class _ErasedMeanwhile(Exception):
    pass


async def read_range(pool: PostgresPool, session: SessionName, seqs: range) -> EventPage | None:
    """Return the events in a range of seqs; None if there is no such session."""
    for _ in range(_MAX_ATTEMPTS):
        try:
            return await _read_pages(pool, session, seqs)
        except _ErasedMeanwhile:
            continue
    raise _damaged(pool)


async def _read_pages(pool: PostgresPool, session: SessionName, seqs: range) -> EventPage | None:
    events: list[Event] = []
    start, erasures = seqs.start, None
    while True:
        last = min(start + MAX_PAGE_EVENTS, seqs.stop) - 1
        page = await _read_page(pool, session, statements.events_between(session, start, last))
        if page is None:
            return None
        if erasures not in (None, page.erasures):
            raise _ErasedMeanwhile
        erasures = page.erasures
        events += page.events
        start = last + 1
        if start >= min(seqs.stop, page.head):
            return page._replace(events=events)


async def pick(pool: PostgresPool, session: SessionName, seqs: Sequence[int]) -> EventPage | None:
    """Return single events, ascending; None if there is no such session."""
    for _ in range(_MAX_ATTEMPTS):
        try:
            return await _read_page(pool, session, statements.events_at(session, seqs))
        except _ErasedMeanwhile:
            continue
    raise _damaged(pool)


async def _read_page(pool: PostgresPool, session: SessionName, query: SqlStatement) -> EventPage | None:
    (rows,) = await pool.run(session.tenant, query, snapshot=True)
    if not rows:
        return None
    key, head, erasures = rows[0][:3]
    found = [row[3:] for row in rows if row[3] is not None]
    with_cuts = {seq: cuts for seq, _, cuts, _ in found if cuts}
    cuts: Rows = []
    blobs: Rows = []
    if with_cuts:
        cuts, blobs = await pool.run(
            session.tenant, *statements.cuts_of(session.tenant, key, list(with_cuts)), snapshot=True
        )
        if len(cuts) != sum(with_cuts.values()):
            raise _ErasedMeanwhile
    size = sum(len(row[3]) for row in found) + sum(len(body) for _, body in blobs)

    def unpack() -> list[Event]:
        texts = {digest: packer().decompress_blob(body) for digest, body in blobs}
        cuts_of: dict[int, list[CutText]] = defaultdict(list)
        for seq, place, digest in cuts:
            cuts_of[seq].append(CutText(place, texts[digest]))
        return to_events(packer(), ((seq, at, body) for seq, at, _, body in found), cuts_of)

    with translate_errors(pool.name):
        return EventPage(key, head, erasures, await outside_loop(size, unpack))


def _damaged(pool: PostgresPool) -> StoreUnusable:
    return StoreUnusable(
        f"{pool.name}: a session was changed each time it was read, or lacks texts: try again; if it happens again,"
        " restore a backup"
    )
