"""Leases: session locks of processes on several machines, in a table of a PostgreSQL database.

1. A lease has an epoch, which rises each time a process takes it. The store compares the epoch whenever it writes,
   so a process that was paused or cut off cannot write after another has taken over. Time decides only how soon
   that can happen.
2. A process renews its leases every `renew_s` seconds, all in one statement. By the database's clock a lease ends
   `lease_s` seconds after its last renewal; by its own monotonic clock the process gives it up after `give_up_s`.
3. When a lease is lost, the block of `lock` is cancelled and `lock` raises `LeaseLost`. What the block still tries
   to write is refused, also if no other process has taken the lease yet.
4. A process that waits in `lock` is woken when another `lock` ends. It also polls, at the latest when the lease
   ends. Nothing waits for a lease of `try_lock`, so its release wakes none.
5. The row of a lease that was released, or has ended, more than `idle_s` seconds ago is removed, by any process
   that has leases. An epoch never returns, also if the row is inserted again: it is at least the id of the
   transaction that takes the lease, and a row is removed only if its epoch is below those of all later ones. So a
   process that was paused for a day cannot write with the epoch that it remembers.

Tasks of one process use an `asyncio.Lock` first, so a lease that the table gives to this process is not in use.
"""

from __future__ import annotations

import asyncio
import time
from asyncio import Task
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from hashlib import blake2b
from typing import Any, Final, NamedTuple
from uuid import uuid4
from weakref import WeakValueDictionary

import psycopg

from foveal.errors import LeaseLost, StoreError
from foveal.stores.postgres.connection import ConnectionLost, PostgresPool, SqlStatement, to_key
from foveal.stores.postgres.schema import STORE_MIGRATIONS, migrate

# ── Wake-ups ─────────────────────────────────────────────────────────────────────────────────────────────

CHANNEL: Final = "foveal"
MAX_TOPICS_PER_NOTIFICATION: Final = 400
"""PostgreSQL allows 8,000 bytes per notification; a hashed topic takes 17."""
FIRST_RECONNECT_DELAY_S: Final = 0.1
MAX_RECONNECT_DELAY_S: Final = 5.0
LISTEN_CHECK_INTERVAL_S: Final = 20.0
"""Seconds of silence after which the listening connection is checked."""
LISTEN_CHECK_TIMEOUT_S: Final = 5.0

Callback = Callable[[], None]


class PostgresWakeups:
    """Wake-ups between processes through LISTEN and NOTIFY: functions that are called for a topic.

    1. A wake-up is a hint that may be lost: a task that waits for one polls as well.
    2. Each process listens on one connection. When that was lost and is back, all subscribers are called.
    3. `notify` does not wait. Topics that arrive while a notification is being sent go out together with the next
       one, in a transaction of their own, because NOTIFY holds a lock of the whole server until its transaction has
       ended.
    4. A pooler in transaction mode passes no notifications on. Then tasks wake up when they poll.
    """

    def __init__(self, pool: PostgresPool, url: str, *, listens: bool = True) -> None:
        """`listens=False`: send and receive nothing, as if the notifications were lost."""
        self._pool = pool
        self._url = url
        self._listens = listens
        self._process = uuid4().hex[:8]
        self._callbacks: dict[str, list[Callback]] = {}
        self._pending: set[str] = set()
        self._sender: asyncio.Task[None] | None = None
        self._listener: asyncio.Task[None] | None = None
        self._is_listening = False
        self._closed = False

    async def notify(self, topic: str) -> None:
        """Call the subscribers of a topic in all processes soon; does not wait for it."""
        name = _hash(topic)
        self._call(name)
        if self._listens and not self._closed:
            self._pending.add(name)
            if self._sender is None:
                self._sender = asyncio.create_task(self._send())

    def subscribe(self, topic: str, callback: Callback) -> Callback:
        """Call `callback` in the event loop after each `notify`; return a function that ends this."""
        name = _hash(topic)
        self._callbacks.setdefault(name, []).append(callback)
        if self._listener is None and self._listens and not self._closed:
            self._listener = asyncio.create_task(self._listen())
        return lambda: self._unsubscribe(name, callback)

    async def close(self) -> None:
        """Send what is pending, then stop listening."""
        self._closed = True
        if self._sender is not None:
            await asyncio.wait([self._sender])
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.wait([self._listener])

    def _unsubscribe(self, name: str, callback: Callback) -> None:
        callbacks = self._callbacks.get(name, [])
        if callback in callbacks:
            callbacks.remove(callback)
        if not callbacks:
            self._callbacks.pop(name, None)

    def _call(self, name: str) -> None:
        loop = asyncio.get_running_loop()
        for callback in self._callbacks.get(name, ()):
            loop.call_soon(callback)

    # ── Sending ──────────────────────────────────────────────────────────────────────────────────────────

    async def _send(self) -> None:
        try:
            while self._pending:
                names = [
                    self._pending.pop() for _ in range(min(len(self._pending), MAX_TOPICS_PER_NOTIFICATION))
                ]
                payload = " ".join([self._process, *names])
                with suppress(StoreError):  # the others poll
                    statement = SqlStatement("SELECT pg_notify(%s, %s)", (CHANNEL, payload))
                    await self._pool.run(None, statement, durable=False)
        finally:
            self._sender = None

    # ── Listening ────────────────────────────────────────────────────────────────────────────────────────

    async def _listen(self) -> None:
        delay = FIRST_RECONNECT_DELAY_S
        while True:
            with suppress(psycopg.Error, OSError, TimeoutError):
                async with await self._connect() as connection:
                    delay, self._is_listening = FIRST_RECONNECT_DELAY_S, True
                    for name in list(self._callbacks):  # what came while no connection listened is lost
                        self._call(name)
                    await self._receive(connection)
            self._is_listening = False
            await asyncio.sleep(delay)
            delay = min(delay * 2, MAX_RECONNECT_DELAY_S)

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        connection = await psycopg.AsyncConnection.connect(
            self._url,
            autocommit=True,
            prepare_threshold=None,
            connect_timeout=round(LISTEN_CHECK_TIMEOUT_S),
            application_name="foveal wake-ups",
        )
        try:
            async with asyncio.timeout(LISTEN_CHECK_TIMEOUT_S):
                await connection.execute(f"LISTEN {CHANNEL}".encode())
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _receive(self, connection: psycopg.AsyncConnection[Any]) -> None:
        while True:
            async for notification in connection.notifies(timeout=LISTEN_CHECK_INTERVAL_S):
                process, *names = notification.payload.split()
                if process != self._process:  # its own subscribers were called by `notify`
                    for name in names:
                        self._call(name)
            async with asyncio.timeout(LISTEN_CHECK_TIMEOUT_S):
                await connection.execute("SELECT 1")


def _hash(topic: str) -> str:
    """Return a short name without text of a tenant; two topics with one name only wake a task in vain."""
    return blake2b(topic.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


# ── Leases ───────────────────────────────────────────────────────────────────────────────────────────────

LEASE_S: Final = 15.0
RENEW_S: Final = 5.0
GIVE_UP_S: Final = 12.0
LEASE_POLL_S: Final = 1.0
IDLE_S: Final = 3_600.0
MIN_LEASE_POLL_S: Final = 0.02
"""Added to the time that a lease still runs, so that it has ended when the next attempt arrives."""

MAX_REMOVED_ROWS: Final = 1_000
"""Rows that one statement removes."""

LOST_EPOCH: Final = -1
"""The epoch of a lost lease; epochs in the table are positive."""

Key = tuple[str, str]
"""Tenant and session."""


class LeaseTimes(NamedTuple):
    """The times of leases in seconds; tests use shorter ones. `renew` < `give_up` < `lease` < `idle`."""

    lease: float = LEASE_S
    renew: float = RENEW_S
    give_up: float = GIVE_UP_S
    poll: float = LEASE_POLL_S
    idle: float = IDLE_S
    """How long a lease was not used before its row is removed, and the time between two removals."""


LEASE_TIMES: Final = LeaseTimes()


class _Held:
    """A lease that this process holds, or held until it was lost."""

    def __init__(self, key: Key, epoch: int, renewed: float, task: Task[Any] | None) -> None:
        self.key = key
        self.epoch = epoch
        self.renewed = renewed
        """The monotonic time at which the last successful renewal was sent."""
        self.is_lost = False
        self._task = task

    def lose(self) -> None:
        if not self.is_lost:
            self.is_lost = True
            if self._task is not None:
                self._task.cancel()


class SessionLease:
    """A lease that is held until `release` is called."""

    def __init__(self, release: Callable[[], None]) -> None:
        self._release: Callable[[], None] | None = release

    def release(self) -> None:
        if self._release is not None:
            self._release()
            self._release = None


class SessionLeases:
    """The leases of one process, on sessions of all tenants."""

    def __init__(
        self, pool: PostgresPool, wakeups: PostgresWakeups, *, times: LeaseTimes = LEASE_TIMES
    ) -> None:
        self._pool = pool
        self._wakeups = wakeups
        self._times = times
        self._owner = uuid4().hex
        self._locks: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()
        self._held: dict[Key, _Held] = {}
        self._heartbeat: Task[None] | None = None
        self._background: set[Task[None]] = set()
        self._has_tables = False
        self._removed_at = time.monotonic()
        """When rows were removed last, or the process started."""

    def epoch(self, tenant: str, session: str) -> int | None:
        """Return the epoch of the lease that this process holds; None without one. After a loss it is an epoch that
        no lease has, until the block that used the lease has ended."""
        held = self._held.get((tenant, session))
        if held is None:
            return None
        return LOST_EPOCH if held.is_lost else held.epoch

    @asynccontextmanager
    async def lock(self, tenant: str, session: str) -> AsyncIterator[None]:
        """Wait for the lease and hold it for the duration of the block. Raises `LeaseLost` if it was lost."""
        key = tenant, session
        async with self._task_lock(key):
            held = await self._wait(key)
            try:
                try:
                    yield
                finally:
                    self._release(held)
            except asyncio.CancelledError:
                if held.is_lost and _uncancel():
                    raise LeaseLost(session) from None
                raise
            except BaseException:
                await _absorb_cancellation(held)
                raise
            await _absorb_cancellation(held)

    async def try_lock(self, tenant: str, session: str) -> SessionLease | None:
        """Return the lease, or None if it is held elsewhere."""
        key = tenant, session
        lock = self._task_lock(key)
        if lock.locked():
            return None
        await lock.acquire()  # returns at once: the lock is free
        held = None
        try:
            held, _ = await self._take(key, None)
        finally:
            if held is None:
                lock.release()
        if held is None:
            return None

        def release() -> None:
            self._release(held, wakes=False)
            lock.release()

        return SessionLease(release)

    async def unlocked(self, sessions: Sequence[Key]) -> list[Key]:
        """Return those of these sessions whose lease is held nowhere."""
        names = {
            (key[0], to_key(key[1])): key
            for key in sessions
            if not ((lock := self._locks.get(key)) and lock.locked())
        }
        if not names:
            return []
        tenants, keys = [tenant for tenant, _ in names], [name for _, name in names]
        await self._create_tables()
        (rows,) = await self._pool.run(None, SqlStatement(_FREE, (tenants, keys)), snapshot=True)
        return [names[tenant, name] for tenant, name in rows]

    async def close(self) -> None:
        """Release the leases that are still held."""
        for held in list(self._held.values()):
            self._release(held)
        while self._background:
            await asyncio.wait(self._background)
        if self._heartbeat is not None:
            self._heartbeat.cancel()
            await asyncio.wait([self._heartbeat])

    def _task_lock(self, key: Key) -> asyncio.Lock:
        return self._locks.setdefault(key, asyncio.Lock())

    # ── Taking ───────────────────────────────────────────────────────────────────────────────────────────

    async def _wait(self, key: Key) -> _Held:
        woken, task = asyncio.Event(), asyncio.current_task()
        held, _ = await self._take(key, task)
        if held is not None:
            return held
        unsubscribe = self._wakeups.subscribe(lease_topic(*key), woken.set)
        try:
            while True:
                woken.clear()
                held, remaining_s = await self._take(key, task)
                if held is not None:
                    return held
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(self._times.poll, remaining_s + MIN_LEASE_POLL_S)):
                        await woken.wait()
        finally:
            unsubscribe()

    async def _take(self, key: Key, task: Task[Any] | None) -> tuple[_Held | None, float]:
        """Return the lease if it is free, and otherwise how many seconds it still runs."""
        await self._create_tables()
        sent = time.monotonic()
        taking = asyncio.create_task(self._take_in_database(key))
        try:
            epoch, remaining_s = await asyncio.shield(taking)
        except asyncio.CancelledError:
            self._run_in_background(self._undo(key, taking))
            raise
        if epoch is None:
            return None, remaining_s
        held = self._held[key] = _Held(key, epoch, sent, task)
        if self._heartbeat is None:
            self._heartbeat = asyncio.create_task(self._beat())
        return held, 0.0

    async def _create_tables(self) -> None:
        if not self._has_tables:
            await migrate(self._pool, "store", STORE_MIGRATIONS)
            self._has_tables = True

    async def _take_in_database(self, key: Key) -> tuple[int | None, float]:
        """Return the epoch if the lease was free, and otherwise how many seconds it still runs."""
        until = time.monotonic() + self._pool.wait_s
        row = key[0], to_key(key[1])
        statements = (
            SqlStatement(_ADD, row),
            SqlStatement(_TAKE, (*row, self._owner, self._owner, self._times.lease, *row)),
            SqlStatement(_REMAINING, row),
        )
        while True:
            try:
                _, taken, ((remaining_s,),) = await self._pool.run(key[0], *statements)
            except ConnectionLost:  # a lease that this process has taken without knowing is taken again
                if time.monotonic() > until:
                    raise
                continue
            if taken or remaining_s > -self._times.idle or time.monotonic() > until:
                return (taken[0][0], 0.0) if taken else (None, max(0.0, float(remaining_s)))
            await asyncio.sleep(MIN_LEASE_POLL_S)  # another process removes the row

    async def _undo(self, key: Key, taking: Task[tuple[int | None, float]]) -> None:
        """Release what a cancelled call has taken."""
        with suppress(StoreError):
            epoch, _ = await taking
            if epoch is not None:
                await self._release_in_database(_Held(key, epoch, 0.0, None))

    # ── Releasing ────────────────────────────────────────────────────────────────────────────────────────

    def _release(self, held: _Held, *, wakes: bool = True) -> None:
        """Forget a lease at once and release it in the database soon: the caller does not wait for that."""
        if self._held.get(held.key) is held:
            del self._held[held.key]
            self._run_in_background(self._release_in_database(held, wakes=wakes))

    async def _release_in_database(self, held: _Held, *, wakes: bool = True) -> None:
        with suppress(StoreError):  # then it ends by time
            tenant, session = held.key
            statement = SqlStatement(_RELEASE, (tenant, to_key(session), held.epoch, self._owner))
            await self._pool.run(tenant, statement, durable=False)
        if wakes:
            await self._wakeups.notify(lease_topic(*held.key))

    def _run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # ── Renewing ─────────────────────────────────────────────────────────────────────────────────────────

    async def _beat(self) -> None:
        """Renew the leases while there are any, and give up those that could not be renewed in time. After a pause
        of the process, a renewal tells first whether another process has taken over."""
        renewal: Task[None] | None = None
        ticked = min(held.renewed for held in self._held.values()) if self._held else time.monotonic()
        patient_until = 0.0
        try:
            while self._held or renewal is not None:
                now = time.monotonic()
                if now - ticked > self._times.renew:
                    patient_until = now + self._times.renew
                ticked = now
                if now > patient_until:
                    self._give_up(now)
                if renewal is not None and renewal.done():
                    renewal = None
                if renewal is None and self._is_renewal_due(now):
                    renewal = asyncio.create_task(self._renew())
                if now - self._removed_at > self._times.idle:
                    self._removed_at = now
                    self._run_in_background(self.remove_idle())
                await asyncio.sleep(self._times.renew / 10)
        finally:
            self._heartbeat = None
            if renewal is not None:
                renewal.cancel()

    def _give_up(self, now: float) -> None:
        for held in list(self._held.values()):
            if now - held.renewed > self._times.give_up:
                held.lose()

    def _is_renewal_due(self, now: float) -> bool:
        return any(now - one.renewed >= self._times.renew for one in self._held.values() if not one.is_lost)

    async def _renew(self) -> None:
        held = [one for one in self._held.values() if not one.is_lost]
        sent = time.monotonic()
        try:
            statement, limit_s = self._renewal(held), self._times.renew
            (rows,) = await self._pool.run(None, statement, durable=False, statement_s=limit_s)
        except StoreError:
            return  # the next renewal may succeed; if none does, the leases are given up
        renewed = {(tenant, name, epoch) for tenant, name, epoch in rows}
        for one in held:
            if (one.key[0], to_key(one.key[1]), one.epoch) in renewed:
                one.renewed = sent
            elif self._held.get(one.key) is one:
                one.lose()

    def _renewal(self, held: Sequence[_Held]) -> SqlStatement:
        """Return one statement for all leases."""
        tenants, names = [one.key[0] for one in held], [to_key(one.key[1]) for one in held]
        epochs = [one.epoch for one in held]
        return SqlStatement(_RENEW, (self._times.lease, tenants, names, epochs, self._owner))

    # ── Removing ─────────────────────────────────────────────────────────────────────────────────────────

    async def remove_idle(self) -> None:
        """Remove the rows of leases that were not used for a long time; what cannot be removed now stays."""
        statement = SqlStatement(_REMOVE, (self._times.idle, MAX_REMOVED_ROWS))
        with suppress(StoreError):
            while len((await self._pool.run(None, statement, durable=False))[0]) == MAX_REMOVED_ROWS:
                await asyncio.sleep(0)


def _uncancel() -> bool:
    """Take back one cancellation of the current task; return whether no other is left."""
    task = asyncio.current_task()
    return task is not None and task.uncancel() == 0


async def _absorb_cancellation(held: _Held) -> None:
    """End the cancellation that the loss of a lease has requested, if the block ended without it."""
    task = asyncio.current_task()
    if held.is_lost and task is not None and task.cancelling():
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        if task.uncancel():
            raise asyncio.CancelledError


def lease_topic(tenant: str, session: str) -> str:
    """Return the topic of wake-ups for those who wait for a session."""
    return f"lease/{tenant}/{session}"


_ADD: Final = """INSERT INTO foveal.lease (tenant, name, epoch) VALUES (%s, %s, 0) ON CONFLICT DO NOTHING"""
# SKIP LOCKED: while a writer holds the row to compare its epoch, the lease is in use.
_TAKE: Final = """
    WITH free AS (
        SELECT tenant, name FROM foveal.lease WHERE tenant = %s AND name = %s
        AND (owner IS NULL OR owner = %s OR until < clock_timestamp()) FOR UPDATE SKIP LOCKED)
    UPDATE foveal.lease AS taken
    SET epoch = greatest(epoch + 1, pg_current_xact_id()::text::bigint),
        owner = %s, until = clock_timestamp() + %s * interval '1 second'
    FROM free WHERE taken.tenant = %s AND taken.name = %s RETURNING taken.epoch"""
# No row, or one without a time as earlier versions leave it, counts as idle.
_REMAINING: Final = """
    SELECT coalesce(max(extract(epoch FROM until - clock_timestamp())), '-Infinity')
    FROM foveal.lease WHERE tenant = %s AND name = %s"""
_FREE: Final = """
    SELECT asked.tenant, asked.name FROM unnest(%s::text[], %s::text[]) AS asked (tenant, name)
    LEFT JOIN foveal.lease ON lease.tenant = asked.tenant AND lease.name = asked.name
    WHERE lease.owner IS NULL OR lease.until < clock_timestamp()"""
_RELEASE: Final = """
    UPDATE foveal.lease SET owner = NULL, until = clock_timestamp()
    WHERE tenant = %s AND name = %s AND epoch = %s AND owner = %s"""
_RENEW: Final = """
    UPDATE foveal.lease SET until = clock_timestamp() + %s * interval '1 second'
    FROM unnest(%s::text[], %s::text[], %s::bigint[]) AS held (tenant, name, epoch)
    WHERE lease.tenant = held.tenant AND lease.name = held.name AND lease.epoch = held.epoch AND lease.owner = %s
    RETURNING lease.tenant, lease.name, lease.epoch"""
_REMOVE: Final = """
    DELETE FROM foveal.lease USING (
        SELECT tenant, name FROM foveal.lease
        WHERE coalesce(until, '-infinity') < clock_timestamp() - %s * interval '1 second'
        AND epoch < pg_snapshot_xmin(pg_current_snapshot())::text::bigint
        LIMIT %s FOR UPDATE SKIP LOCKED) AS idle
    WHERE lease.tenant = idle.tenant AND lease.name = idle.name RETURNING 1"""
