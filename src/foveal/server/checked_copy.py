"""Copy of tables and sessions, page by page, compared with what the target has.

1. Events and rows are copied in pages of about `PAGE_BYTES`, so memory does not grow with their number.
2. Tables are compared row by row, sessions event by event.
3. Rows keep their ids, because clients know turns by a hash of the message's id. The counters that give out new ids
   are moved too, so that no id is given out twice.
4. A session that the target lacks, or has in part, is appended to. Events that are there are compared first. Title
   and times become those of the source.
5. A session that was erased in the source since an earlier run is erased in the target too, if it has the same
   events apart from their text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from foveal.core.log.codec import encode
from foveal.core.log.events import Erased, Event, kind
from foveal.core.wire.safe_print import counted
from foveal.errors import Conflict, StoreError, StoreUnusable, UnknownSession
from foveal.ports import Checkpoint, SessionInfo
from foveal.server.databases import Database, RowValues, Transaction

# ── Pages and progress ───────────────────────────────────────────────────────────────────────────────────

PAGE_BYTES: Final = 4 << 20
"""Bytes of a page that the copy aims at."""
MAX_PAGE_STORED_BYTES: Final = 512 << 10
"""Bytes of a page's events as they are stored, compressed; a larger event has a page of its own."""
FIRST_PAGE_ITEMS: Final = 4
MAX_PAGE_ITEMS: Final = 256


class PageSize:
    """The number of items of the next page; it follows the size of the items before."""

    def __init__(self) -> None:
        self.items: int = FIRST_PAGE_ITEMS

    def adapt(self, items: int, size_bytes: int) -> None:
        """Set the next page's number of items after a page of `items` that had `size_bytes`."""
        fitting = items * PAGE_BYTES // max(size_bytes, 1)
        # At most double: the next items may be larger than those before.
        self.items = max(1, min(fitting, self.items * 2, MAX_PAGE_ITEMS))


def fitting_items(stored_bytes: Sequence[int]) -> int:
    """Return how many of the next items are read at once, at least one, by the bytes that each takes in its store.

    `PageSize` knows only the items before: a large one after many small ones must not be read with many others."""
    return max(1, sum(total <= MAX_PAGE_STORED_BYTES for total in accumulate(stored_bytes)))


class CopyProgress:
    """What was compared and copied so far; calls `report` after each page."""

    def __init__(self, report: Callable[[CopyProgress], None] = lambda progress: None) -> None:
        self._report = report
        self.place: str = ""
        """The tenant or the table that is being copied."""
        self.tenants = 0
        self.sessions = 0
        """Sessions that are complete in the target and equal to the source."""
        self.events: int = 0
        """Events that were compared."""
        self.new_events: int = 0
        """Those of them that this run has copied."""
        self.rows: Counter[str] = Counter()
        """Rows of the service that were compared, by table."""
        self.new_rows: int = 0

    def begin(self, place: str) -> None:
        self.place = place
        self._report(self)

    def count_events(self, compared: int, new: int) -> None:
        self.events += compared
        self.new_events += new
        self._report(self)

    def count_rows(self, table: str, compared: int, new: int) -> None:
        self.rows[table] += compared
        self.new_rows += new
        self._report(self)


# ── Tables ───────────────────────────────────────────────────────────────────────────────────────────

MAX_IDS_SKIPPED_AT_ONCE: Final = 200_000


class TableCopySpec(NamedTuple):
    """A table: the columns that identify a row, and the others. Columns that are not named have their defaults."""

    name: str
    key: Sequence[str]
    others: Sequence[str]
    has_counter: bool = False
    """Whether the database gives out the ids in the key, each only once."""


def _table(name: str, key: str, others: str, *, has_counter: bool = False) -> TableCopySpec:
    return TableCopySpec(name, key.split(), others.split(), has_counter)


TOKENS_TABLE: Final = _table("tokens", "id", "hash tenant label created revoked memory role")
OTHER_TABLES: Final = (
    _table("rooms", "tenant session", "model agent person"),
    _table("memory_sessions", "tenant person session", ""),
    # Without the reservations, whose requests run on the old server.
    _table("spending", "tenant scope key start", "nanodollars tokens"),
    _table(
        "inbox",
        "id",
        "tenant session key kind content dialect at state since why problem sort",
        has_counter=True,
    ),
    _table("chat_places", "face chat topic", "number moved_from"),
    _table(
        "chat_messages", "face key", "chat session state at topic reply_to parts author place_name piece_of"
    ),
    _table("chat_notices", "face chat topic notice", "at"),
    _table("chat_questions", "face id", "session key tool text at until state"),
    _table("pairing_codes", "face code", "until"),
    _table("pairing_misses", "id", "face user at"),
    _table("paired", "face user", "since"),
    _table(
        "schedules",
        "tenant name",
        "session cron zone prompt missed enabled source following due result agent",
    ),
    # Without `taken`: the engine of the target has none of the jobs.
    _table("errands", "place", "id tenant session key kind prompt schedule at agent", has_counter=True),
    # Without `id`, which counts in each database: the target keeps its own rows.
    _table("audit", "key", "at tenant actor action object outcome address"),
    _table(
        "daily_usage",
        "tenant day person model",
        "calls input cache_read cache_write output dollars unpriced",
    ),
    _table("heads", "tenant digest session", "seq turn words stale"),
    _table("beside", "tenant session name", "words"),
    _table("learned_limits", "upstream model features kind tokens teller", "at"),
    _table("browser_logins", "id", "token until"),
)


class ServiceTables(NamedTuple):
    """The service's tables in a database of one of the two kinds."""

    database: Database
    is_sqlite: bool

    def column(self, table: TableCopySpec, name: str) -> str:
        """Return a column as SQL names it: in SQLite the id of a wrong pairing code is the row's own."""
        is_row_id = self.is_sqlite and (table.name, name) == ("pairing_misses", "id")
        return "rowid" if is_row_id else f'"{name}"'

    def columns(self, table: TableCopySpec, names: Sequence[str]) -> str:
        return ", ".join(self.column(table, name) for name in names)


async def copy_table(
    table: TableCopySpec,
    source: ServiceTables,
    target: ServiceTables,
    target_name: str,
    progress: CopyProgress,
) -> None:
    """Copy and compare the rows of a table; raises `StoreError` at the first difference."""
    progress.begin(table.name)
    if not await _has_table(source, table):
        return
    size, after = PageSize(), None
    while rows := await _read_page(source, table, after, size.items):
        found, new = await _write_page(target, table, rows)
        _compare(table, target_name, rows, found)
        progress.count_rows(table.name, len(rows), new)
        size.adapt(len(rows), sum(_size(value) for row in rows for value in row))
        after = rows[-1][: len(table.key)]
    if table.has_counter:
        await _move_counter(target, table, await _read_counter(source, table))


async def check_table(
    table: TableCopySpec, source: ServiceTables, target: ServiceTables, target_name: str
) -> None:
    """Raise `StoreError` if the target has a row with the key of a row of the source and another value."""
    if not await _has_table(source, table):
        return
    size, after = PageSize(), None
    while rows := await _read_page(source, table, after, size.items):
        found = await target.database.read(partial(_fetch_rows, target, table, rows))
        keys = {row[: len(table.key)] for row in found}
        _compare(table, target_name, [row for row in rows if row[: len(table.key)] in keys], found)
        size.adapt(len(rows), sum(_size(value) for row in rows for value in row))
        after = rows[-1][: len(table.key)]


async def _has_table(tables: ServiceTables, table: TableCopySpec) -> bool:
    """Return whether the table exists: a file of an earlier version may lack it."""
    if not tables.is_sqlite:
        return True
    sql = "SELECT 1 FROM (SELECT name FROM sqlite_schema UNION SELECT name FROM sqlite_temp_schema) WHERE name = ?"
    return bool(await tables.database.read(lambda db: db.fetch(sql, table.name)))


async def _read_page(
    tables: ServiceTables, table: TableCopySpec, after: RowValues | None, limit: int
) -> list[RowValues]:
    """Return the rows after a key, in the order of keys."""
    keys = tables.columns(table, table.key)
    where = "" if after is None else f"WHERE ({keys}) > ({_marks(len(table.key))})"
    sql = f"""SELECT {tables.columns(table, (*table.key, *table.others))} FROM {table.name}
        {where} ORDER BY {keys} LIMIT ?"""
    return await tables.database.read(lambda db: db.fetch(sql, *(after or ()), limit))


async def _write_page(
    tables: ServiceTables, table: TableCopySpec, rows: Sequence[RowValues]
) -> tuple[list[RowValues], int]:
    """Insert the rows that are missing; return the rows that then have these keys, and how many were missing."""
    columns = tables.columns(table, (*table.key, *table.others))
    insert = f"INSERT INTO {table.name} ({columns}) VALUES ({_marks(len(rows[0]))}) ON CONFLICT DO NOTHING"

    async def act(db: Transaction) -> tuple[list[RowValues], int]:
        before = await _fetch_rows(tables, table, rows, db)
        if len(before) == len(rows):
            return before, 0
        await db.execute_many(insert, rows)
        return await _fetch_rows(tables, table, rows, db), len(rows) - len(before)

    return await tables.database.write(act, durable=False, repeatable=True)


async def _fetch_rows(
    tables: ServiceTables, table: TableCopySpec, rows: Sequence[RowValues], db: Transaction
) -> list[RowValues]:
    """Return the rows that have the keys of these rows."""
    columns, keys = tables.columns(table, (*table.key, *table.others)), tables.columns(table, table.key)
    of_keys = f"({keys}) IN (VALUES {', '.join([f'({_marks(len(table.key))})'] * len(rows))})"
    values = [value for row in rows for value in row[: len(table.key)]]
    return await db.fetch(f"SELECT {columns} FROM {table.name} WHERE {of_keys}", *values)


def _compare(
    table: TableCopySpec, target_name: str, rows: Sequence[RowValues], found: Sequence[RowValues]
) -> None:
    by_key = {row[: len(table.key)]: row for row in found}
    for row in rows:
        key = row[: len(table.key)]
        other = by_key.get(key)
        if other != row:
            what = f"the row with {_describe(table.key, key)} {_difference(table, row, other)}"
            raise StoreError(
                f"the table {table.name} of {target_name} differs from the source: {what}. It was left as it is:"
                " copy to an empty target"
            )


def _difference(table: TableCopySpec, row: RowValues, other: RowValues | None) -> str:
    if other is None:
        return "is missing, because another row has a value that may occur only once"
    names = (*table.key, *table.others)
    differing = [name for name, one, two in zip(names, row, other, strict=True) if one != two]
    return f"has another value in {', '.join(differing)}"  # not the values: some are secrets


def _describe(names: Sequence[str], values: RowValues) -> str:
    shown = (value.hex() if isinstance(value, bytes) else repr(value) for value in values)
    return ", ".join(f"{name} {value}" for name, value in zip(names, shown, strict=True))


def _marks(count: int) -> str:
    return ", ".join("?" * count)


def _size(value: Any) -> int:
    return len(value) if isinstance(value, str | bytes) else 8


# ── Counters ─────────────────────────────────────────────────────────────────────────────────────────────


async def _read_counter(tables: ServiceTables, table: TableCopySpec) -> int:
    """Return the greatest id that the table's counter has given out; 0 if none."""
    rows = await tables.database.read(lambda db: _fetch_counter(db, tables, table))
    return int(rows[0][0] or 0) if rows else 0


async def _fetch_counter(db: Transaction, tables: ServiceTables, table: TableCopySpec) -> list[RowValues]:
    if tables.is_sqlite:
        return await db.fetch("SELECT seq FROM sqlite_sequence WHERE name = ?", table.name)
    sql = "SELECT last_value FROM pg_sequences WHERE schemaname = 'foveal' AND sequencename = ?"
    return await db.fetch(sql, _sequence(table))


async def _move_counter(tables: ServiceTables, table: TableCopySpec, last: int) -> None:
    """Let the counter continue after `last`, unless it is further."""
    present = await _read_counter(tables, table)
    while present < last:
        count = min(last - present, MAX_IDS_SKIPPED_AT_ONCE)
        await tables.database.write(partial(_skip_ids, tables, table, count))
        present += count


async def _skip_ids(tables: ServiceTables, table: TableCopySpec, count: int, db: Transaction) -> None:
    if not tables.is_sqlite:
        # Not `setval`, which needs a right that servers do not need.
        sql = "SELECT max(nextval(?::regclass)) FROM generate_series(1, ?)"
        await db.fetch(sql, f"foveal.{_sequence(table)}", count)
    elif not await db.execute("UPDATE sqlite_sequence SET seq = seq + ? WHERE name = ?", count, table.name):
        await db.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", table.name, count)


def _sequence(table: TableCopySpec) -> str:
    return f"{table.name}_{table.key[0]}_seq"


# ── Sessions ─────────────────────────────────────────────────────────────────────────────────────────────

SESSIONS_PER_PAGE: Final = 200


class CopiedStore(Protocol):
    """The part of a store that a copy reads."""

    async def read(self, session: str, *, first: int = 0, last: int | None = None) -> list[Event]: ...

    async def stored_bytes(self, session: str, *, first: int, last: int) -> list[int]:
        """Return the bytes that each event of a range takes in the store."""
        ...

    async def checkpoint(self, session: str) -> Checkpoint | None: ...

    async def sessions(
        self,
        *,
        limit: int | None = None,
        before: tuple[float, str] | None = None,
        with_erased: bool = True,
        memories: bool = False,
    ) -> list[SessionInfo]: ...

    async def close(self) -> None: ...


class SessionTarget(Protocol):
    """The part of a store that a copy writes, and reads back."""

    async def read(self, session: str, *, first: int = 0, last: int | None = None) -> list[Event]: ...

    async def checkpoint(self, session: str) -> Checkpoint | None: ...

    async def append(self, session: str, events: Sequence[Event]) -> None: ...

    async def info(self, session: str) -> SessionInfo: ...

    async def restore_info(self, info: SessionInfo) -> None:
        """Set the title, the times and the erasure of a session."""
        ...

    async def keep_checkpoint(self, session: str, checkpoint: Checkpoint) -> None: ...

    async def erase(self, session: str) -> None: ...

    async def close(self) -> None: ...


async def copy_sessions(
    source: CopiedStore, target: SessionTarget, target_name: str, progress: CopyProgress
) -> None:
    """Copy and compare all sessions and memories of a tenant; raises `StoreError` at the first difference."""
    size = PageSize()
    for memories in (False, True):
        before: tuple[float, str] | None = None
        while page := await source.sessions(limit=SESSIONS_PER_PAGE, before=before, memories=memories):
            for info in page:
                await _SessionCopy(source, target, target_name, info, size, progress).run()
                progress.sessions += not memories
            before = page[-1].active, page[-1].id


class _SessionCopy:
    def __init__(
        self,
        source: CopiedStore,
        target: SessionTarget,
        target_name: str,
        info: SessionInfo,
        size: PageSize,
        progress: CopyProgress,
    ) -> None:
        self._source = source
        self._target = target
        self._target_name = target_name
        self._info = info
        self._size = size
        self._progress = progress

    async def run(self) -> None:
        existing = await self._existing()
        present = existing.events if existing else 0
        if present > self._info.events:
            raise self._difference(f"it has {counted(present, 'event')}, the source {self._info.events:,}")
        if existing and self._info.erased and not existing.erased:
            await self._erase(present)
        async for events in self._source_pages(self._info.events):
            await self._copy_page(events, present)
        await self._copy_info()
        await self._copy_checkpoint()

    async def _copy_page(self, events: Sequence[Event], present: int) -> None:
        id, first, last = self._info.id, events[0].seq, events[-1].seq
        new = [event for event in events if event.seq >= present]
        if first < present:  # compared before anything is appended to a session with other content
            there = await self._target.read(id, first=first, last=min(last, present - 1))
            self._compare(events[: len(events) - len(new)], there)
        if new:
            try:
                await self._target.append(id, new)
            except Conflict as problem:
                raise StoreError(
                    f"{self._place} is written by another process ({problem}): end it and run the copy again"
                ) from problem
            self._compare(new, await self._target.read(id, first=new[0].seq, last=last))
        self._progress.count_events(len(events), len(new))

    async def _erase(self, present: int) -> None:
        """Erase the target's session if it has the source's events, of which the source has erased the text."""
        async for events in self._source_pages(present):
            there = await self._target.read(self._info.id, first=events[0].seq, last=events[-1].seq)
            self._compare(events, [Event(event.seq, _erased(event), event.at) for event in there])
        await self._target.erase(self._info.id)

    async def _source_pages(self, end: int) -> AsyncIterator[list[Event]]:
        start = 0
        while start < end:
            last = min(start + self._size.items, end) - 1
            sizes = await self._source.stored_bytes(self._info.id, first=start, last=last)
            last = min(last, start + fitting_items(sizes) - 1)
            events = await self._source.read(self._info.id, first=start, last=last)
            if [event.seq for event in events] != list(range(start, last + 1)):
                raise StoreUnusable(
                    f"session {self._info.id!r} of the source has {counted(self._info.events, 'event')}, but"
                    f" not all of {start} to {last} can be read: it is damaged; restore a backup"
                )
            yield events
            self._size.adapt(len(events), sum(len(encode(event)) for event in events))
            start = last + 1

    def _compare(self, expected: Sequence[Event], found: Sequence[Event]) -> None:
        if len(expected) != len(found):
            raise self._difference(
                f"{len(found):,} of {counted(len(expected), 'event')} were read from event {expected[0].seq} on"
            )
        for one, other in zip(expected, found, strict=True):
            if encode(one) != encode(other):
                raise self._difference(f"event {one.seq} is another than that of the source")

    async def _copy_info(self) -> None:
        wanted = msgspec.structs.replace(self._info, bytes=0)
        if await self._target_info() != wanted:
            await self._target.restore_info(self._info)
            if (found := await self._target_info()) != wanted:
                raise self._difference(f"title, times, length or erasure are {found} instead of {wanted}")

    async def _copy_checkpoint(self) -> None:
        id = self._info.id
        kept = await self._source.checkpoint(id)
        # A checkpoint that was written after the list of sessions was read may include later events.
        if kept is not None and kept.seq < self._info.events and kept != await self._target.checkpoint(id):
            await self._target.keep_checkpoint(id, kept)
            if kept != await self._target.checkpoint(id):
                raise self._difference("its checkpoint is another than that of the source")

    async def _existing(self) -> SessionInfo | None:
        try:
            return await self._target.info(self._info.id)
        except UnknownSession:
            return None

    async def _target_info(self) -> SessionInfo:
        """Return what the target knows of the session, without its size, which depends on the store."""
        return msgspec.structs.replace(await self._target.info(self._info.id), bytes=0)

    @property
    def _place(self) -> str:
        return f"session {self._info.id!r} in {self._target_name}"

    def _difference(self, what: str) -> StoreError:
        return StoreError(
            f"{self._place} differs from the source: {what}. What it has was left as it is: copy to an empty target"
        )


def _erased(event: Event) -> Erased:
    return event.fact if isinstance(event.fact, Erased) else Erased(was=kind(event.fact))
