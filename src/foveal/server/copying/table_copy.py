"""Copy of the service's tables between databases, compared row by row.

Rows keep their ids, because clients know turns by a hash of the message's id. The counters that give out new ids
are moved too, so that no id is given out twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from foveal.errors import StoreError
from foveal.server.copying.progress import CopyProgress, PageSize
from foveal.server.databases import Database, Transaction
from foveal.server.databases.database import RowValues

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
