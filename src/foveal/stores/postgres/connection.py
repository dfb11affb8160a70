"""Pool of connections to a PostgreSQL database: transactions, timeouts, errors.

1. A process has one `PostgresPool` per database, used by one event loop.
2. All state belongs to a transaction: the tenant, the timeouts and the durability are set with `SET LOCAL`, and no
   statement is prepared. So a pooler such as PgBouncer may stand between, in transaction mode too.
3. `transaction` takes a connection and begins; `run` sends fixed statements, BEGIN and COMMIT in one round trip. A
   connection that breaks at BEGIN is replaced: BEGIN is the check of a pooled connection.
4. No wait for the server is endless: a connection on which no reply arrives in time is cut.
5. A call waits up to `MAX_POOL_WAIT_S` for a database that is away. Once that has failed, further calls fail at
   once until the database is reached again.
6. Errors of psycopg become `StoreError`s that say what to do; they never contain the password.
7. PostgreSQL allows no NUL and only short keys: `to_text` and `to_key` write any text. Ordinary text is stored as
   it is, so that it can be read in `psql`.

Errors of psycopg as `StoreError`s that say what to do.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import psycopg
import zstandard
from psycopg import conninfo, sql
from psycopg.pq import Conninfo, TransactionStatus
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout

from foveal.errors import StoreError, StoreUnusable, UnreadableEvent

_ADVICE: Final[dict[str, str]] = {
    "28P01": "refused the password of this user: check the URL's user and password",
    "28000": "refused this user: check the URL's user, and the server's pg_hba.conf",
    "3D000": "does not exist: create the database first (`createdb`), or check the URL",
    "53100": "could not grow, its disk is full: make room and try again; nothing was half written",
    "53200": "is out of memory: try again, or give the database server more",
    "53300": "has no connection left: raise the server's max_connections, or allow fewer per process",
    "25006": "is read-only, perhaps a standby: name the primary in the URL, or end its read-only mode",
    "57P01": "was shut down, or an administrator ended the connection: try again when it runs",
    "57P02": "was stopped after a crash of one of its processes: try again when it runs",
    "57P03": "is starting up or shutting down: try again in a moment",
    "57P04": "was dropped: restore it from a backup, or check the URL",
    "57014": "took too long for an operation: try again; if it happens often, the database is overloaded",
    "55P03": "has rows locked by another process, which did not release them in time: try again",
    "40P01": "ended one of two operations that waited for each other: try again",
    "40001": "was changed by another process at the same time: try again",
    "25P03": "ended a transaction in which nothing happened for too long: try again",
    "42501": "does not permit this: let the owner run `foveal database migrate URL --grant ROLE` with this role",
    "42P01": "lacks a table: run `foveal database migrate` with the role that owns the database",
    "3F000": "lacks Foveal's tables: run `foveal database migrate` with the role that owns the database",
    "58030": "could not read or write its disk: check the database server's disk and log",
    "58P01": "lacks a file of its own: check the database server's disk and log, and restore a backup",
    "XX001": "is damaged: copy its folder away, then restore a backup",
    "XX002": "has a damaged index: run REINDEX on it, and check the server's disk",
}
"""What to do, by SQLSTATE; the words after the name of the database."""

_NO_ROLE: Final = "has no such user: create the role (`createuser`), or check the URL's user"
_UNREACHABLE: Final = "cannot be reached: check that the server runs, and the host and port of the URL"
_UNKNOWN_ROLE: Final = re.compile(r'(?:role|user) ".{1,63}" does not exist|no such user')
"""As PostgreSQL says it, and PgBouncer."""
_LOST: Final = "ended the connection, or the network did: try again"
_LOSS_STATES: Final = ("57P01", "57P02", "57P04", "57P05", "25P03")
"""States after which the server has closed the connection, beside class 08."""


class ConnectionLost(StoreUnusable):
    """The connection broke during a transaction; `outcome_unknown` when COMMIT may have been carried out."""

    def __init__(self, message: str, *, outcome_unknown: bool = False) -> None:
        super().__init__(message)
        self.outcome_unknown = outcome_unknown


class TransactionUndone(StoreUnusable):
    """The server has undone the transaction because of a concurrent one: it can be run again."""


class BlobMissing(StoreError):
    """An append refers to a blob that was erased meanwhile; nothing was stored."""


@contextmanager
def translate_errors(name: str, *, connecting: bool = False, committing: bool = False) -> Iterator[None]:
    """Raise errors of psycopg and zstd as `StoreError`s; `name`: the database without its password.

    psycopg's error is not kept as the cause, because it refers to the URL with its password."""
    try:
        yield
    except psycopg.Error as problem:
        raise _translate(name, problem, connecting=connecting, committing=committing) from None
    except UnicodeEncodeError:
        raise StoreError("the id and title of a session must be valid Unicode; nothing was stored") from None
    except (zstandard.ZstdError, UnreadableEvent) as problem:
        raise StoreUnusable(f"{name} is damaged: an event in it cannot be read ({problem})") from problem


def _translate(name: str, problem: psycopg.Error, *, connecting: bool, committing: bool) -> StoreError:
    state = problem.sqlstate or ""
    reason = " ".join(f"{state} {problem}".split())
    if connecting:
        return StoreUnusable(f"{name} {_ADVICE.get(state) or _advice_from_text(reason)} ({reason})")
    if _is_connection_loss(problem):
        unknown = "; whether the last operation was carried out is unknown" if committing else ""
        return ConnectionLost(
            f"{name} {_ADVICE.get(state, _LOST)}{unknown} ({reason})", outcome_unknown=committing
        )
    if state in ("40P01", "40001"):
        return TransactionUndone(f"{name} {_ADVICE[state]} ({reason})")
    if state == "23503":  # the foreign key of `cut` is the only one
        return BlobMissing(f"{name}: a text was erased while it was stored again ({reason}): try again")
    if state == "54000":  # program_limit_exceeded
        return StoreError(f"{name} cannot hold a value of this size ({reason}); nothing was stored")
    return StoreUnusable(f"{name} {_ADVICE.get(state, 'could not be used')} ({reason})")


def _is_connection_loss(problem: psycopg.Error) -> bool:
    """Return whether the connection broke; libpq's own errors have no SQLSTATE."""
    if not isinstance(problem, psycopg.OperationalError) or isinstance(
        problem, psycopg.errors.PipelineAborted
    ):
        return False
    state = problem.sqlstate
    return state is None or state.startswith("08") or state in _LOSS_STATES


def _advice_from_text(reason: str) -> str:
    """While connecting, libpq gives the server's error as text without its SQLSTATE."""
    if _UNKNOWN_ROLE.search(reason):
        return _NO_ROLE
    for words, state in (
        ("password authentication failed", "28P01"),
        ("no password supplied", "28P01"),
        ("no pg_hba.conf entry", "28000"),
        ("does not exist", "3D000"),
        ("too many clients", "53300"),
        ("remaining connection slots", "53300"),
        ("starting up", "57P03"),
        ("shutting down", "57P03"),
    ):
        if words in reason:
            return _ADVICE[state]
    return _UNREACHABLE


MAX_KEY_BYTES: Final = 1_000
"""Longest text that is a key as it is; an index of PostgreSQL holds keys of at most 2,704 bytes."""
_KEY_START_CHARS: Final = 200
_ESCAPED: Final = re.compile(r"\\(.)")


def to_text(value: str) -> str:
    """Return a text without NUL: a NUL becomes `\\0`, and a backslash is doubled."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise StoreError("the id and title of a session must be valid Unicode; nothing was stored") from None
    return value.replace("\\", "\\\\").replace("\0", "\\0")


def from_text(text: str) -> str:
    """Return the value that `to_text` was given."""
    if "\\" not in text:
        return text
    return _ESCAPED.sub(lambda found: "\0" if found[1] == "0" else found[1], text)


def to_key(value: str) -> str:
    """Return a text that identifies the value and fits into an index: of a long one, its start and its digest."""
    text = to_text(value)
    data = text.encode()
    if len(data) <= MAX_KEY_BYTES:
        return text
    # `\#` occurs in no other key, because `to_text` writes only `\\` and `\0`.
    return f"{text[:_KEY_START_CHARS]}\\#{blake2b(data, digest_size=32).hexdigest()}"


Connection: TypeAlias = psycopg.AsyncConnection[tuple[Any, ...]]
Rows: TypeAlias = list[tuple[Any, ...]]
T = TypeVar("T")

logging.getLogger("psycopg.pool").addHandler(logging.NullHandler())  # else it prints each attempt to connect

_PARAMETER: Final = re.compile("[A-Za-z_]{1,40}")
MAX_CONNECTIONS: Final = 10
"""Connections of one process, unless the pool is made with another number."""
MAX_CONNECT_S: Final = 5
MAX_POOL_WAIT_S: Final = 10.0
"""Longest wait for a free connection, and for a database that cannot be reached."""
PROBE_INTERVAL_S: Final = 0.2
"""Time between two attempts to reach a database that could not be reached; calls in between fail at once."""
MAX_STATEMENT_S: Final = 10.0
MAX_LOCK_WAIT_S: Final = 3.0
MAX_IDLE_IN_TRANSACTION_S: Final = 10.0
REPLY_MARGIN_S: Final = 5.0
"""How much longer than the server's own limit for a statement the client waits for its reply: only a lost network
or server exceeds it."""


class SqlStatement(NamedTuple):
    """An SQL statement and its values."""

    sql: str
    values: Sequence[object] | Mapping[str, object] = ()
    is_large: bool = False
    """Whether its values or rows have many bytes: it is then sent in binary form, which needs more steps."""


class TransactionOptions(NamedTuple):
    """How a transaction runs."""

    tenant: str | None
    """The tenant whose rows it sees; None for work of the service that may see all of them."""
    durable: bool = True
    """Whether COMMIT waits for the disk."""
    snapshot: bool = False
    """Whether all statements see one state of the database, and none writes."""
    statement_s: float = MAX_STATEMENT_S
    lock_s: float = MAX_LOCK_WAIT_S

    @property
    def begin(self) -> str:
        return "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY" if self.snapshot else "BEGIN"

    @property
    def settings(self) -> dict[str, str]:
        """The settings of the transaction, by name."""
        found = {
            "search_path": "foveal",
            "foveal.tenant": self.tenant or "",
            "foveal.all_tenants": "on" if self.tenant is None else "off",
            "statement_timeout": f"{round(self.statement_s * 1000)}ms",
            "lock_timeout": f"{round(self.lock_s * 1000)}ms",
            "idle_in_transaction_session_timeout": f"{round(MAX_IDLE_IN_TRANSACTION_S * 1000)}ms",
        }
        return found if self.durable else {**found, "synchronous_commit": "off"}


class WatchedConnection(psycopg.AsyncConnection[tuple[Any, ...]]):
    """A connection that is cut when the server does not reply.

    The timeouts of the server do not help when its replies are lost on the way."""

    reply_s: float = MAX_STATEMENT_S + REPLY_MARGIN_S

    async def wait(self, gen: Any, *arguments: Any, **options: Any) -> Any:
        timer = asyncio.get_running_loop().call_later(self.reply_s, _shut_down, self.pgconn.socket)
        try:
            return await super().wait(gen, *arguments, **options)
        finally:
            timer.cancel()


def _shut_down(descriptor: int) -> None:
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as shared:
        shared.shutdown(socket.SHUT_RDWR)


class PostgresPool:
    """Connections to one database, for one event loop; opens with `open`, `async with` or the first transaction."""

    def __init__(
        self,
        url: str,
        *,
        connections: int = MAX_CONNECTIONS,
        wait_s: float = MAX_POOL_WAIT_S,
        statement_s: float = MAX_STATEMENT_S,
        reply_margin_s: float = REPLY_MARGIN_S,
    ) -> None:
        """`url`: `postgresql://user:password@host:port/database`; `wait_s`: longest wait for a connection;
        `statement_s`: longest statement, unless a transaction sets another limit."""
        self._url = url
        self.name: Final = describe_url(url)
        """Host, port and database, without user and password."""
        self.current_components: Final[set[str]] = set()
        """Components of the schema whose tables this process has found or brought to its version."""
        self.wait_s: Final = wait_s
        self._connections = connections
        self._statement_s = statement_s
        self._reply_margin_s = reply_margin_s
        self._pool: AsyncConnectionPool[WatchedConnection] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening = asyncio.Lock()
        self._closed = False
        self._outage: StoreError | None = None
        """Why the database could not be reached; None while it can be."""
        self._next_probe = 0.0

    async def __aenter__(self) -> PostgresPool:
        await self.open()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect once, so that a wrong URL or password is an error now; opening twice is allowed."""
        if self._pool is None:
            await self._check_reachable()
        await self._opened()

    async def close(self) -> None:
        """Close all connections; later calls raise `StoreError`. Closing twice is allowed."""
        self._closed = True
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()

    @asynccontextmanager
    async def transaction(
        self,
        tenant: str | None,
        *,
        durable: bool = True,
        snapshot: bool = False,
        statement_s: float | None = None,
        lock_s: float = MAX_LOCK_WAIT_S,
    ) -> AsyncIterator[Connection]:
        """Run the block in a transaction that is undone when it raises.

        Raises `ConnectionLost` with `outcome_unknown` if the connection breaks during COMMIT."""
        options = TransactionOptions(tenant, durable, snapshot, statement_s or self._statement_s, lock_s)
        async with self._connection() as first:
            connection = await self._begin(first, options)
            try:
                with translate_errors(self.name):
                    yield connection
                with translate_errors(self.name, committing=not snapshot):
                    await connection.commit()
            finally:
                await _roll_back(connection)
                if connection is not first:
                    await self._give_back(connection)

    async def run(
        self,
        tenant: str | None,
        *statements: SqlStatement,
        durable: bool = True,
        snapshot: bool = False,
        repeatable: bool = False,
        statement_s: float | None = None,
    ) -> list[Rows]:
        """Run statements as one transaction, in one round trip; return the rows of each.

        If the connection breaks, a snapshot is tried again, and so is what is `repeatable`: running it twice is the
        same as running it once. Other statements raise `ConnectionLost` with `outcome_unknown`. A transaction that
        the server has undone, because of a deadlock for example, is tried again too."""
        options = TransactionOptions(tenant, durable, snapshot, statement_s or self._statement_s)
        until = time.monotonic() + self.wait_s
        while True:
            try:
                async with self._connection() as connection:
                    return await self._send(connection, options, statements)
            except ConnectionLost:
                if not (snapshot or repeatable) or time.monotonic() > until:
                    raise
            except TransactionUndone:
                if time.monotonic() > until:
                    raise

    async def _send(
        self, connection: WatchedConnection, options: TransactionOptions, statements: Sequence[SqlStatement]
    ) -> list[Rows]:
        connection.reply_s = options.statement_s + self._reply_margin_s
        send = _send_binary if any(statement.is_large for statement in statements) else _send_text
        try:
            with translate_errors(self.name, committing=not options.snapshot):
                return await send(connection, options, statements)
        finally:
            await _roll_back(connection)

    async def _begin(self, first: WatchedConnection, options: TransactionOptions) -> WatchedConnection:
        """Begin on `first`, or on another connection if that one has broken."""
        connection, until = first, time.monotonic() + self.wait_s
        while True:
            connection.reply_s = options.statement_s + self._reply_margin_s
            try:
                with translate_errors(self.name):
                    await connection.execute(_begin_text(options))
                return connection
            except BaseException as problem:
                if connection is not first:
                    await self._give_back(connection)
                if not isinstance(problem, ConnectionLost) or time.monotonic() > until:
                    raise
            connection = await self._take()

    # ── Connections ──────────────────────────────────────────────────────────────────────────────────────

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[WatchedConnection]:
        connection = await self._take()
        try:
            yield connection
        finally:
            await self._give_back(connection)

    async def _take(self) -> WatchedConnection:
        pool = await self._opened()
        if self._outage is not None:
            await self._probe(self._outage)
        try:
            return await pool.getconn()
        except PoolTimeout:
            await self._check_reachable()
            raise StoreUnusable(
                f"{self.name}: all {self._connections} connections of this process were in use for"
                f" {self.wait_s:g} s: try again, or allow more connections"
            ) from None
        except PoolClosed:
            raise self._closed_error() from None

    async def _give_back(self, connection: WatchedConnection) -> None:
        pool = self._pool
        if pool is None:
            await connection.close()
        else:
            await pool.putconn(connection)

    async def _opened(self) -> AsyncConnectionPool[WatchedConnection]:
        if self._closed:
            raise self._closed_error()
        if self._pool is None:
            async with self._opening:
                if self._pool is None:
                    self._pool = await self._open_pool()
        if self._loop is not asyncio.get_running_loop():
            raise StoreError(
                f"{self.name}: a pool belongs to the event loop that opened it; make one per loop"
            )
        return self._pool

    async def _open_pool(self) -> AsyncConnectionPool[WatchedConnection]:
        self._loop = asyncio.get_running_loop()
        pool: AsyncConnectionPool[WatchedConnection] = AsyncConnectionPool(
            self._url,
            connection_class=WatchedConnection,
            kwargs=_connect_options(),
            min_size=1,
            max_size=self._connections,
            open=False,
            timeout=self.wait_s,
            reconnect_timeout=self.wait_s,
            name=self.name,
        )
        await pool.open()
        return pool

    async def _check_reachable(self) -> None:
        """Connect once and raise the error that this gives."""
        if self._closed:
            raise self._closed_error()
        try:
            with translate_errors(self.name, connecting=True):
                connection = await psycopg.AsyncConnection.connect(self._url, **_connect_options())
                await connection.close()
        except StoreError as problem:
            self._outage, self._next_probe = problem, time.monotonic() + PROBE_INTERVAL_S
            raise
        self._outage = None

    async def _probe(self, outage: StoreError) -> None:
        """Raise the error of an outage unless the database can be reached again; one call at a time tries it."""
        now = time.monotonic()
        if now < self._next_probe:
            raise type(outage)(str(outage))
        self._next_probe = now + MAX_CONNECT_S + PROBE_INTERVAL_S
        await self._check_reachable()

    def _closed_error(self) -> StoreError:
        return StoreError(f"the store {self.name} is closed: open it again to use it")


async def _send_text(
    connection: WatchedConnection, options: TransactionOptions, statements: Sequence[SqlStatement]
) -> list[Rows]:
    """Send everything as one message, with the values as literals: half the work of `_send_binary`."""
    writer = psycopg.AsyncClientCursor(connection)
    texts = [writer.mogrify(statement.sql, statement.values) for statement in statements]
    cursor = await connection.execute("; ".join([_begin_text(options), *texts, "COMMIT"]).encode())
    cursor.nextset()  # of BEGIN
    results: list[Rows] = []
    for _ in statements:
        cursor.nextset()
        results.append(await cursor.fetchall() if cursor.description else [])
    return results


async def _send_binary(
    connection: WatchedConnection, options: TransactionOptions, statements: Sequence[SqlStatement]
) -> list[Rows]:
    """Send everything without waiting for the replies in between, with the values and rows in binary form."""
    async with connection.pipeline():
        await connection.execute(options.begin)
        await connection.execute(_settings_text(options))
        cursors = [await connection.execute(s.sql, s.values, binary=True) for s in statements]
        await connection.execute("COMMIT")
    return [await cursor.fetchall() if cursor.description else [] for cursor in cursors]


@lru_cache(maxsize=4096)
def _begin_text(options: TransactionOptions) -> str:
    return f"{options.begin}; {_settings_text(options)}"


def _settings_text(options: TransactionOptions) -> str:
    settings = (
        sql.SQL("set_config({}, {}, true)").format(name, value) for name, value in options.settings.items()
    )
    return sql.SQL("SELECT {}").format(sql.SQL(", ").join(settings)).as_string()


async def _roll_back(connection: WatchedConnection) -> None:
    """Undo what was not committed; a connection that cannot do that is closed."""
    if connection.pgconn.transaction_status == TransactionStatus.IDLE or connection.closed:
        return
    try:
        await connection.rollback()
    except psycopg.Error:
        await connection.close()


def _connect_options() -> dict[str, Any]:
    return {
        "autocommit": True,  # `BEGIN` and `COMMIT` are sent explicitly
        "prepare_threshold": None,
        "connect_timeout": MAX_CONNECT_S,
        "tcp_user_timeout": 10_000,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "application_name": "foveal",
    }


def describe_url(url: str) -> str:
    """Return host, port and database of a URL, without user and password; raises `StoreUnusable`."""
    try:
        parts = conninfo.conninfo_to_dict(url)
    except psycopg.Error:
        # The message of libpq may repeat a part of the password.
        if unknown := _unknown_parameter(url):
            raise StoreUnusable(
                f"the database's URL cannot be read: PostgreSQL has no parameter {unknown!r}"
            ) from None
        raise StoreUnusable(
            "the database's URL cannot be read: write postgresql://user:password@host:port/database, with special"
            " characters of the password percent-encoded"
        ) from None
    host = parts.get("host") or "localhost"
    port = f":{parts['port']}" if parts.get("port") else ""
    return f"postgresql://{host}{port}/{parts.get('dbname') or parts.get('user') or ''}"


def _unknown_parameter(url: str) -> str:
    """Return the first name after the question mark that libpq does not know, "" if there is none. A question mark
    in front of an at sign may belong to the password, so what follows it is not repeated."""
    query = url.partition("?")[2]
    if "@" in query:
        return ""
    known = {option.keyword.decode() for option in Conninfo.get_defaults()} | {"ssl"}
    names = (pair.partition("=")[0] for pair in query.split("&"))
    return next((name for name in names if _PARAMETER.fullmatch(name) and name not in known), "")


__all__ = [
    "MAX_CONNECTIONS",
    "Connection",
    "ConnectionLost",
    "PostgresPool",
    "Rows",
    "SqlStatement",
    "describe_url",
]
