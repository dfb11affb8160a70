"""The store on PostgreSQL when connections, processes and the server fail."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from subprocess import PIPE
from typing import Any

import psycopg
import pytest

from foveal.core.log import Erased, Event, Noted, UserSaid
from foveal.errors import BadSetting, Conflict, LeaseLost, StoreError, StoreUnusable
from foveal.ports import Checkpoint
from foveal.stores import open_store
from foveal.stores.postgres import store as store_module
from foveal.stores.postgres.connection import PROBE_INTERVAL_S, PostgresPool, translate_errors
from foveal.stores.postgres.schema import STORE_MIGRATIONS, grant, migrate
from foveal.stores.postgres.store import PostgresStore
from support import warm_start
from support.cutting_proxy import CommitFault, CuttingProxy
from support.effort import rest_in_soak
from support.paths import TESTS
from support.postgres_server import database_url, own_server
from support.store_contract import LONG_TEXT, log, said
from support.waiting import DEADLINE_S

WORKER = TESTS / "support" / "postgres_worker.py"
PROCESSES = 4
CHILD_TIMEOUT_S = 240
SOAK = bool(os.environ.get("FOVEAL_SOAK"))
STOPS = 5 if SOAK else 1
"""How often the server is stopped hard."""


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[PostgresStore]:
    options = {"connections": 3, "wait_s": 5.0, **options}
    async with PostgresStore(PostgresPool(url, **options), owns_pool=True) as store:
        yield store


@pytest.fixture
def proxy(store_url: str) -> Iterator[CuttingProxy]:
    with CuttingProxy(store_url) as proxy:
        yield proxy


# ── Lost connections ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("fault", ["reply_lost", "never_arrives", "arrives_late"])
def test_an_append_whose_commit_is_cut_is_stored_exactly_once(
    proxy: CuttingProxy, fault: CommitFault
) -> None:
    async def work() -> None:
        async with opened(proxy.url) as store:
            for first in range(0, 12, 2):
                if first % 4 == 0:
                    proxy.cut_next_commit(fault)
                await store.append("a", said(2, first=first))
            assert proxy.cut == 3
            await asyncio.sleep(2 * proxy.late_s)  # a late COMMIT must find nothing left to do
            assert await store.read("a") == said(12)

    run(work())


def test_an_append_whose_reply_is_lost_succeeds_even_if_another_writer_follows(
    proxy: CuttingProxy, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with opened(proxy.url) as store, opened(store_url) as other:
            await store.append("a", said(1))
            send = store._write

            async def send_and_lose(*statement: Any, **options: Any) -> tuple[bool, bool]:
                monkeypatch.undo()
                proxy.cut_next_commit()
                try:
                    return await send(*statement, **options)
                finally:
                    await other.append("a", log(Noted(text="of the other"), first=2))

            monkeypatch.setattr(store, "_write", send_and_lose)
            await store.append("a", said(1, first=1))
            assert await other.read("a") == [*said(2), *log(Noted(text="of the other"), first=2)]
            with pytest.raises(Conflict):
                await store.append("a", said(1, first=2))

    run(work())


def test_every_operation_survives_connections_that_an_administrator_ends(store_url: str) -> None:
    async def work() -> None:
        async with opened(store_url) as store:
            end = asyncio.create_task(_end_backends(store_url, times=12))
            seq = 0
            while not end.done():
                await store.append("a", said(1, first=seq))
                seq += 1
                assert len(await store.read("a", first=seq - 1)) == 1
                await store.keep_checkpoint("a", Checkpoint(seq=seq - 1, needed=(), state=b"s"))
                await store.rename("a", f"title {seq}")
                assert await store.search("a", "word", limit=1)
            await end
            assert await store.read("a") == said(seq)
            await store.erase("a")

    run(work())


async def _end_backends(url: str, *, times: int) -> None:
    connection = await psycopg.AsyncConnection.connect(url, autocommit=True)
    async with connection:
        for _ in range(times):
            await asyncio.sleep(0.03)
            await connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )


def test_a_refused_connection_is_a_clear_error_and_the_store_works_again_later(proxy: CuttingProxy) -> None:
    async def work() -> None:
        async with opened(proxy.url, wait_s=1.0) as store:
            await store.append("a", said(1))
            proxy.refuse()
            with pytest.raises(StoreUnusable, match="cannot be reached"):
                await store.append("a", said(1, first=1))
            with pytest.raises(StoreUnusable, match="cannot be reached"):
                await store.read("a")
            proxy.restore()
            await asyncio.sleep(PROBE_INTERVAL_S)  # until then, calls fail at once
            await store.append("a", said(1, first=1))
            assert await store.read("a") == said(2)

    run(work())


@pytest.mark.parametrize("fault", rest_in_soak(["drop_replies", "drop_requests", "swallow"], kept=2))
def test_a_network_that_loses_bytes_is_an_error_in_time_and_no_append_is_doubled(
    proxy: CuttingProxy, store_url: str, fault: str
) -> None:
    async def work() -> None:
        async with opened(store_url) as direct:  # creates the tables, without such limits
            await direct.append("a", said(1))
        options = {"wait_s": 1.5, "statement_s": 0.6, "reply_margin_s": 0.2}
        async with opened(proxy.url, **options) as store:
            assert await store.read("a") == said(1)
            getattr(proxy, fault)()
            with pytest.raises(StoreUnusable, match="unknown"):
                await asyncio.wait_for(store.append("a", said(1, first=1)), DEADLINE_S)
            proxy.restore()
            found = await store.read("a")
            assert found in (said(1), said(2))
            assert (found == said(2)) == (fault == "drop_replies")

    run(work())


@pytest.mark.long
def test_what_was_acknowledged_survives_a_server_that_is_stopped_hard() -> None:
    async def work(url: str, stop: Callable[[], None], start: Callable[[], None]) -> None:
        async with opened(url, wait_s=20.0) as store:
            acknowledged = 0
            for turn in range(STOPS + 1):
                restart = asyncio.create_task(_restart(stop, start)) if turn else None
                until = acknowledged + 40
                while acknowledged < until or (restart and not restart.done()):
                    await store.append("a", said(1, first=acknowledged))
                    acknowledged += 1
                if restart:
                    await restart
            assert await store.read("a") == said(acknowledged)

    with own_server() as server:
        run(work(server.url, lambda: server.stop("immediate"), server.start))


async def _restart(stop: Callable[[], None], start: Callable[[], None]) -> None:
    await asyncio.sleep(0.02)
    await asyncio.to_thread(stop)
    await asyncio.to_thread(start)


# ── Several processes ────────────────────────────────────────────────────────────────────────────────────


def test_exactly_one_of_several_processes_wins_each_seq_on_postgresql(store_url: str) -> None:
    count = 25
    commands = [[WORKER, store_url, f"process {nr}", count] for nr in range(PROCESSES)]
    children = [warm_start.start(command, stdout=PIPE, stderr=PIPE) for command in commands]
    try:
        answers = [child.communicate(timeout=CHILD_TIMEOUT_S) for child in children]
    finally:
        for child in children:
            child.kill()
            child.wait()
    assert [problem for _, problem in answers if problem] == []

    async def work() -> None:
        async with opened(store_url) as store:
            found = await store.read("a")
        assert [event.seq for event in found] == list(range(PROCESSES * count))
        for nr, (out, _) in enumerate(answers):
            assert {found[int(seq)].fact for seq in out.split()} == {Noted(text=f"process {nr}")}
            assert len(out.split()) == count

    run(work())


def test_a_writer_whose_lease_was_taken_over_writes_nothing(store_url: str) -> None:
    async def work() -> None:
        epochs: dict[str, int | None] = {}
        pool = PostgresPool(store_url)
        async with PostgresStore(pool, epoch_of=epochs.get, owns_pool=True) as store:
            await store.append("a", said(2))
            await _set_lease(pool, "a", 7)
            epochs["a"] = 7
            await store.append("a", said(1, first=2))
            before = await store.info("a")
            await _set_lease(pool, "a", 8)
            calls: list[Callable[[], Coroutine[Any, Any, None]]] = [
                lambda: store.append("a", said(1, first=3)),
                lambda: store.append("a", said(1, first=1)),
                lambda: store.keep_checkpoint("a", Checkpoint(seq=0, needed=(), state=b"")),
                lambda: store.rename("a", "of the old one"),
                lambda: store.erase("a"),
            ]
            for call in calls:
                with pytest.raises(LeaseLost):
                    await call()
            epochs["new"] = 3
            with pytest.raises(LeaseLost):
                await store.fork("a", "new", at=0)
            with pytest.raises(LeaseLost):
                await store.append("new", said(1))
            assert await store.sessions() == [before]
            assert await store.read("a") == said(3)

    run(work())


def test_the_holder_of_a_lease_takes_the_end_of_a_session_from_memory_for_a_moment(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "KNOWN_END_TTL_S", 60.0)  # this machine may be slow

    async def work() -> None:
        epochs: dict[str, int | None] = {"a": 7}
        pool = PostgresPool(store_url)
        async with (
            PostgresStore(pool, epoch_of=epochs.get, owns_pool=True) as store,
            opened(store_url) as other,
        ):
            await _set_lease(pool, "a", 7)
            await store.append("a", said(2))
            assert await store.read_new("a", first=2) == ([], False)
            await store.append("a", said(1, first=2))
            await other.append("a", said(1, first=3))  # a writer without a lease
            assert await store.read_new("a", first=3) == ([], False)
            with pytest.raises(Conflict):
                await store.append("a", said(1, first=3))
            assert await store.read_new("a", first=3) == (said(1, first=3), False)
            await other.append("a", said(1, first=4))
            assert await store.read_new("a", first=4) == ([], False)
            monkeypatch.setattr(store_module, "KNOWN_END_TTL_S", 0.0)
            assert await store.read_new("a", first=4) == (said(1, first=4), False)
            await other.append("a", said(1, first=5))
            monkeypatch.setattr(store_module, "KNOWN_END_TTL_S", 60.0)
            epochs["a"] = 8
            assert await store.read_new("a", first=5) == (said(1, first=5), False)
            epochs["a"] = None
            await other.append("a", said(1, first=6))
            assert await store.read_new("a", first=6) == (said(1, first=6), False)

    run(work())


async def _set_lease(pool: PostgresPool, session: str, epoch: int) -> None:
    async with pool.transaction("default") as connection:
        await connection.execute(
            "INSERT INTO foveal.lease VALUES ('default', %s, %s)"
            " ON CONFLICT (tenant, name) DO UPDATE SET epoch = excluded.epoch",
            (session, epoch),
        )


def test_a_takeover_waits_for_an_append_in_progress(store_url: str) -> None:
    async def work() -> None:
        pool = PostgresPool(store_url)
        async with PostgresStore(pool, epoch_of=lambda session: 1, owns_pool=True) as store:
            await _set_lease(pool, "a", 1)
            await store.append("a", said(1))
            async with pool.transaction("default") as holder:
                await holder.execute("SELECT 1 FROM foveal.session WHERE id = 'a' FOR UPDATE")
                append = asyncio.create_task(store.append("a", said(1, first=1)))
                await _until_blocked(store_url, 1)  # it holds the lease and waits for the session's row
                takeover = asyncio.create_task(_set_lease(pool, "a", 2))
                await _until_blocked(store_url, 2)
                assert not takeover.done()
            await asyncio.gather(append, takeover)
            with pytest.raises(LeaseLost):
                await store.append("a", said(1, first=2))
            assert await store.read("a") == said(2)

    run(work())


async def _until_blocked(url: str, count: int) -> None:
    """Wait until this many connections wait for a lock of another one."""
    sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    async with (
        asyncio.timeout(DEADLINE_S),
        await psycopg.AsyncConnection.connect(url, autocommit=True) as connection,
    ):
        while (await (await connection.execute(sql)).fetchall())[0][0] != count:
            await asyncio.sleep(0.01)


def test_a_text_that_is_erased_and_stored_again_at_the_same_time_is_never_missing(store_url: str) -> None:
    texts = [f"text {nr} {LONG_TEXT}" for nr in range(3)]
    choose = random.Random(5)

    async def writer(store: PostgresStore, nr: int) -> None:
        for turn in range(15 if SOAK else 5):
            events = log(*(UserSaid(content=choose.choice(texts)) for _ in range(2)))
            await store.append(f"{nr} {turn}", events)
            assert await store.read(f"{nr} {turn}") == events
            if choose.random() < 0.7:
                await store.erase(f"{nr} {turn}")

    async def work() -> None:
        async with opened(store_url, connections=6) as store, opened(store_url, connections=6) as other:
            await asyncio.gather(*(writer(store if nr % 2 else other, nr) for nr in range(6)))
            for info in await store.sessions():
                found = [event.fact for event in await store.read(info.id)]
                assert all(isinstance(fact, Erased) == info.erased for fact in found)
                await store.erase(info.id)
        with psycopg.connect(store_url) as connection:
            for table in ("blob", "cut"):
                assert connection.execute(f"SELECT count(*) FROM foveal.{table}".encode()).fetchone() == (0,)

    run(work())


# ── Errors that say what to do ───────────────────────────────────────────────────────────────────────────


def test_a_database_that_does_not_exist_or_refuses_the_user_is_a_clear_error(postgres_url: str) -> None:
    async def problem(url: str) -> str:
        with pytest.raises(StoreUnusable) as caught:
            async with open_store(url, timeout=1):
                pass
        return str(caught.value)

    async def work() -> None:
        assert "create the database first" in await problem(database_url(postgres_url, "missing"))
        unknown = database_url(
            postgres_url, postgres_url.partition("?")[0].rpartition("/")[2], user="stranger"
        )
        assert "create the role (`createuser`)" in (said_of_role := await problem(unknown))
        assert "create the database" not in said_of_role
        assert "cannot be reached" in await problem("postgresql://me:s3cret@127.0.0.1:1/db")
        for url in ("postgresql://me:s3cret@127.0.0.1:1/db", "postgresql://me:s3cret%zz@host/db"):
            assert "s3cret" not in await problem(url)

    run(work())


def test_a_read_only_database_is_a_clear_error(postgres_url: str) -> None:
    async def work() -> None:
        async with opened(postgres_url) as store:
            await store.append("a", said(1))
        _as_owner(postgres_url, "ALTER DATABASE {} SET default_transaction_read_only = on")
        async with opened(postgres_url) as store:
            assert await store.read("a") == said(1)
            with pytest.raises(StoreUnusable, match="read-only, perhaps a standby"):
                await store.append("a", said(1, first=1))

    run(work())


def test_a_row_that_stays_locked_is_a_clear_error(store_url: str) -> None:
    async def work() -> None:
        async with opened(store_url, statement_s=0.3) as store:
            await store.append("a", said(1))
            async with PostgresPool(store_url) as pool, pool.transaction("default") as holder:
                await holder.execute("SELECT 1 FROM foveal.session FOR UPDATE")
                with pytest.raises(StoreUnusable, match=r"took too long|locked by another process"):
                    await store.append("a", said(1, first=1))
            await store.append("a", said(1, first=1))

    run(work())


def test_a_role_without_rights_is_told_what_the_owner_must_run(postgres_url: str) -> None:
    _as_owner(postgres_url, "DROP ROLE IF EXISTS no_rights")
    _as_owner(postgres_url, "CREATE ROLE no_rights LOGIN")
    name = postgres_url.partition("?")[0].rpartition("/")[2]
    limited = database_url(postgres_url, name, user="no_rights")

    async def work() -> None:
        with pytest.raises(StoreUnusable, match="foveal database migrate"):
            async with opened(limited):
                pass
        async with PostgresPool(postgres_url) as pool:
            await migrate(pool, "store", STORE_MIGRATIONS)
            with pytest.raises(StoreUnusable, match="foveal database migrate"):
                async with opened(limited):
                    pass
            await grant(pool, "no_rights")
        async with opened(limited) as store:
            await store.append("a", said(1))
            assert await store.read("a") == said(1)

    try:
        run(work())
    finally:
        _as_owner(postgres_url, "DROP OWNED BY no_rights")
        _as_owner(postgres_url, "DROP ROLE no_rights")


def test_a_process_continues_when_its_tables_get_a_later_version(postgres_url: str) -> None:
    async def work() -> None:
        async with PostgresPool(postgres_url) as pool:
            await PostgresStore(pool, "alice").append("a", said(1))
            _as_owner(postgres_url, "UPDATE foveal.schema_version SET version = 99")
            await PostgresStore(pool, "bob").append("a", said(1))  # a tenant that it had not opened before

    run(work())


def test_tables_of_a_later_version_are_refused(postgres_url: str) -> None:
    async def work() -> None:
        async with opened(postgres_url):
            pass
        _as_owner(postgres_url, "UPDATE foveal.schema_version SET version = 99")
        with pytest.raises(StoreUnusable, match="later version of Foveal"):
            async with opened(postgres_url):
                pass

    run(work())


def test_tables_are_migrated_once_by_several_processes_at_the_same_time(postgres_url: str) -> None:
    async def work() -> None:
        async def open_and_append(nr: int) -> None:
            async with opened(postgres_url) as store:
                await store.append(str(nr), said(1))

        await asyncio.gather(*(open_and_append(nr) for nr in range(8)))

    run(work())


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (psycopg.errors.DiskFull("no space left"), "make room and try again"),
        (psycopg.errors.TooManyConnections("too many"), "max_connections"),
        (psycopg.errors.CannotConnectNow("starting"), "try again in a moment"),
        (psycopg.errors.AdminShutdown("ended"), "try again when it runs"),
        (psycopg.errors.DataCorrupted("bad page"), "restore a backup"),
        (psycopg.errors.IoError("could not read"), "server's disk"),
        (psycopg.errors.InvalidPassword("wrong"), "user and password"),
        (psycopg.errors.LockNotAvailable("locked"), "did not release them in time"),
        (psycopg.errors.DeadlockDetected("deadlock"), "try again"),
        (psycopg.errors.UndefinedTable("no event"), "foveal database migrate"),
        (psycopg.errors.ReadOnlySqlTransaction("no"), "name the primary"),
        (psycopg.OperationalError("server closed the connection"), "try again"),
        (psycopg.errors.InternalError_("bug"), "could not be used"),
    ],
)
def test_an_error_of_the_server_says_what_to_do(error: psycopg.Error, advice: str) -> None:
    with pytest.raises(StoreUnusable, match=advice), translate_errors("postgresql://host/db"):
        raise error


def test_a_value_that_is_too_large_is_an_error_of_the_call() -> None:
    with pytest.raises(StoreError, match="nothing was stored") as caught, translate_errors("name"):
        raise psycopg.errors.ProgramLimitExceeded("invalid memory alloc request size")
    assert not isinstance(caught.value, StoreUnusable)


def test_a_store_may_be_opened_by_several_calls_at_the_same_time(store_url: str) -> None:
    async def work() -> None:
        store = PostgresStore(PostgresPool(store_url), owns_pool=True)
        await asyncio.gather(*(store.append(str(nr), said(1)) for nr in range(20)))
        assert len(await store.sessions()) == 20
        await store.close()

    run(work())


def test_a_pool_belongs_to_one_event_loop(store_url: str) -> None:
    store = PostgresStore(PostgresPool(store_url), owns_pool=True)
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(store.append("a", said(1)))
        with pytest.raises(StoreError, match="event loop"):
            run(_read(store))
    finally:
        loop.run_until_complete(store.close())
        loop.close()
    with pytest.raises(StoreError, match="closed"):
        run(_read(store))


async def _read(store: PostgresStore) -> None:
    await store.read("a")


@pytest.mark.parametrize("tenant", ["", "a\0b", "a\\b", "x" * 1001])
def test_a_tenant_that_cannot_be_a_key_is_refused(tenant: str) -> None:
    with pytest.raises(BadSetting, match="tenant"):
        open_store("postgresql://host/db", tenant=tenant)


def test_a_cancelled_append_leaves_the_store_usable(store_url: str) -> None:
    async def work() -> None:
        async with opened(store_url) as store:
            await store.append("a", said(1))
            for _ in range(20):
                task = asyncio.create_task(store.append("a", [Event(1, Noted(text="x"), 1.0)]))
                await asyncio.sleep(random.random() * 0.002)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            assert [event.seq for event in await store.read("a")] in ([0], [0, 1])

    run(work())


def _as_owner(url: str, command: str) -> None:
    name = url.partition("?")[0].rpartition("/")[2]
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(command.format(name).encode())
