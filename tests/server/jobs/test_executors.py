"""Tests of several executors on one PostgreSQL: each job is answered once, whatever happens to an executor."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import psycopg
import pytest

from foveal.core.log import ModelSaid, UserSaid, text_of
from foveal.errors import StoreUnusable
from foveal.server.databases.postgres_database import PostgresDatabase
from foveal.server.jobs.dbos_backend import ENGINE_SCHEMA, DbosEngine, migrate_engine_tables
from foveal.server.jobs.queue import AttemptResult, EngineJob, Job, JobQueue
from foveal.server.jobs.schedule_store import ScheduleStore
from foveal.server.jobs.worker import DatabaseExecutor, ExecutorTiming
from foveal.stores.postgres.connection import PostgresPool
from foveal.stores.postgres.store import PostgresStore
from support import postgres_server, warm_start
from support.cutting_proxy import CommitFault, CuttingProxy
from support.effort import rest_in_soak
from support.started_worker import DEADLINE, StartedWorker

SOAK: Final = bool(os.environ.get("FOVEAL_SOAK"))


class Cluster:
    """Executors of one database, in one folder that their models share."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        self.workers: dict[str, StartedWorker] = {}

    def start(self, *names: str, **environment: str) -> list[StartedWorker]:
        made = [StartedWorker(self.folder, name, self.url, environment=environment) for name in names]
        self.workers |= {worker.name: worker for worker in made}
        for worker in made:
            worker.wait_until_open()
        return made

    def kill(self, name: str) -> None:
        self.workers.pop(name).kill()

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            return connection.execute(sql.encode()).fetchall()

    def asked(self) -> list[tuple[str, str]]:
        """The name of the process and the prompt, for each request to the model."""
        path = self.folder / "asked"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in lines]

    def open_jobs(self) -> int:
        return int(self.rows("SELECT count(*) FROM foveal.errands")[0][0])

    def wait(self, met: Callable[[], bool]) -> float:
        """Wait until a condition is true; return the seconds that it took."""
        began = time.monotonic()
        while not met():
            assert time.monotonic() - began < DEADLINE, f"not within {DEADLINE} s; asked {self.asked()}"
            time.sleep(0.02)
        return time.monotonic() - began

    def conversations(self, tenant: str) -> dict[str, list[str]]:
        """The messages of each session of a tenant, as the log has them."""

        async def main() -> dict[str, list[str]]:
            async with PostgresPool(self.url) as pool:
                store = PostgresStore(pool, tenant)
                return {
                    info.id: [
                        text_of(event.fact.content)
                        for event in await store.read(info.id)
                        if isinstance(event.fact, UserSaid | ModelSaid)
                    ]
                    for info in await store.sessions()
                }

        return asyncio.run(main())

    def check_answered_once(self, tenant: str, prompts: dict[str, list[str]]) -> None:
        """Check that the sessions have these prompts, in order, each followed by one answer."""
        found = self.conversations(tenant)
        assert {session: lines[::2] for session, lines in found.items()} == prompts
        answers = [line for lines in found.values() for line in lines[1::2]]
        assert all(line.startswith("answered by ") for line in answers)
        assert len(answers) == sum(map(len, prompts.values()))

    def check_runs(self, runs: dict[str, list[str]]) -> None:
        """Check that the times of each schedule rise and that each has one prompt in the log."""
        found = self.conversations("default")
        for name, keys in runs.items():
            assert keys == sorted(set(keys))
            prompts = [line for line in found[name] if line == f"do {name}"]
            assert len(prompts) in (len(keys), len(keys) - 1)  # the newest may wait in the inbox

    # ── Between tests ────────────────────────────────────────────────────────────────────────────────

    def reset(self) -> None:
        """Have all executors run, and a model without history."""
        self.start(*(name for name in NAMES if name not in self.workers))
        for file in ("gate", "failing", "asked"):
            (self.folder / file).unlink(missing_ok=True)

    @property
    def gate(self) -> Path:
        """The file that makes the model wait."""
        return self.folder / "gate"


NAMES: Final = ("first", "second", "third") if SOAK else ("first", "second")
PAUSED_JOBS: Final = 8 if SOAK else 4
KILLED_JOBS: Final = 6 if SOAK else 4


@contextmanager
def opened_cluster(folder: Path) -> Iterator[Cluster]:
    url = postgres_server.fresh_database()
    made = Cluster(folder, url)
    try:
        yield made
    finally:
        for worker in made.workers.values():
            worker.kill()
        postgres_server.drop_database(url)


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with opened_cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Cluster:
    shared_cluster.reset()
    return shared_cluster


def test_a_tenant_with_many_jobs_does_not_delay_another(cluster: Cluster) -> None:
    cluster.gate.touch()
    for number in range(200 if SOAK else 15):
        cluster.workers[NAMES[number % len(NAMES)]].ask("many", f"s{number}", f"m{number}")
    cluster.wait(lambda: len(cluster.asked()) == 4)
    time.sleep(0.5)
    assert len(cluster.asked()) == 4  # over all executors
    cluster.workers["first"].ask("few", "s", "quick")
    cluster.gate.unlink()
    cluster.wait(lambda: any(prompt == "do quick" for _, prompt in cluster.asked()))
    before = [prompt for _, prompt in cluster.asked()].index("do quick")
    assert before <= 12
    cluster.wait(lambda: cluster.open_jobs() == 0)


def test_a_job_whose_beginning_was_not_confirmed_starts_again(cluster: Cluster) -> None:
    cluster.gate.touch()
    for number in range(5):
        cluster.workers["first"].ask("lost", f"s{number}", f"l{number}")
    cluster.wait(lambda: len(cluster.asked()) == 4)
    changed = cluster.rows(
        f"""UPDATE {ENGINE_SCHEMA}.workflow_status SET status = 'PENDING', owner_xid = 'lost',
        executor_id = (SELECT id FROM foveal.executors LIMIT 1)
        WHERE status = 'ENQUEUED' RETURNING workflow_uuid"""
    )
    assert len(changed) == 1
    cluster.gate.unlink()
    cluster.wait(lambda: cluster.open_jobs() == 0)
    cluster.check_answered_once("lost", {f"s{number}": [f"do l{number}"] for number in range(5)})


def test_the_engine_has_no_text_and_no_pickles(cluster: Cluster) -> None:
    cluster.workers["second"].ask("text", "s", "canary")
    cluster.wait(lambda: cluster.open_jobs() == 0)
    tables = cluster.rows(f"SELECT tablename FROM pg_tables WHERE schemaname = '{ENGINE_SCHEMA}'")
    rows = [
        row for (table,) in tables for row in cluster.rows(f"SELECT t::text FROM {ENGINE_SCHEMA}.{table} t")
    ]
    assert rows
    assert not [row for row in rows if "canary" in row[0]]
    kinds = cluster.rows(f"SELECT DISTINCT serialization FROM {ENGINE_SCHEMA}.workflow_status")
    assert kinds == [("portable_json",)]


def test_an_executor_that_was_paused_answers_nothing_twice(cluster: Cluster) -> None:
    cluster.gate.touch()
    for number in range(PAUSED_JOBS):
        cluster.workers["first"].ask(f"pause-{number % 2}", f"s{number}", f"p{number}")
    cluster.wait(lambda: len(cluster.asked()) == PAUSED_JOBS)
    paused = cluster.workers[Counter(name for name, _ in cluster.asked()).most_common(1)[0][0]]
    paused.pause()
    begun = {prompt for name, prompt in cluster.asked() if name == paused.name}
    cluster.wait(lambda: begun <= {prompt for name, prompt in cluster.asked() if name != paused.name})
    cluster.gate.unlink()
    cluster.wait(lambda: cluster.open_jobs() == 0)
    paused.resume()
    paused.ask("pause-0", "after", "last")
    cluster.wait(lambda: cluster.open_jobs() == 0)
    others = {f"s{number}": [f"do p{number}"] for number in range(PAUSED_JOBS)}
    cluster.check_answered_once(
        "pause-0", {"after": ["do last"], **{key: others[key] for key in others if int(key[1:]) % 2 == 0}}
    )
    cluster.check_answered_once("pause-1", {key: others[key] for key in others if int(key[1:]) % 2})


@pytest.mark.soak  # the paused executor above is taken over in the same way; `test_jobs.py` kills one
def test_kill_9_loses_and_repeats_no_job(cluster: Cluster) -> None:
    cluster.gate.touch()
    for number in range(KILLED_JOBS):
        worker = cluster.workers[NAMES[number % len(NAMES)]]
        worker.ask(f"kill-{number % 2}", f"s{number}", f"k{number}")
    cluster.wait(lambda: len(cluster.asked()) == KILLED_JOBS)
    victim = Counter(name for name, _ in cluster.asked()).most_common(1)[0][0]
    cluster.kill(victim)
    cluster.gate.unlink()
    cluster.wait(lambda: cluster.open_jobs() == 0)
    for tenant in range(2):
        prompts = {f"s{number}": [f"do k{number}"] for number in range(tenant, KILLED_JOBS, 2)}
        cluster.check_answered_once(f"kill-{tenant}", prompts)
    asked = Counter(prompt for _, prompt in cluster.asked())
    assert set(asked.values()) <= {1, 2}


def test_a_new_release_continues_the_jobs_of_the_one_before(cluster: Cluster) -> None:
    cluster.gate.touch()
    for number in range(5):
        cluster.workers["second"].ask("stop", f"s{number}", f"r{number}")
    cluster.wait(lambda: len(cluster.asked()) == 4)
    for name in NAMES:  # while four turns run and a job waits
        assert cluster.workers.pop(name).stop() == 0
    cluster.gate.unlink()
    cluster.start("second", JOB_RELEASE="later")
    cluster.wait(lambda: cluster.open_jobs() == 0)
    cluster.check_answered_once("stop", {f"s{number}": [f"do r{number}"] for number in range(5)})


@pytest.mark.soak  # `test_schedule.py` shows that several executors make one job of each time
def test_each_time_of_a_schedule_runs_once(tmp_path: Path) -> None:
    names = ["north", "south"]
    (tmp_path / "schedules").write_text(f"{time.time()} {' '.join(names)}")
    with opened_cluster(tmp_path) as cluster:
        cluster.start(*NAMES)

        def runs(name: str) -> list[str]:
            sql = f"SELECT key FROM foveal.inbox WHERE session = '{name}' ORDER BY id"
            return [key for (key,) in cluster.rows(sql)]

        cluster.wait(lambda: all(len(runs(name)) >= 1 for name in names))
        cluster.kill("second")
        enough = 30 if SOAK else 2
        cluster.wait(lambda: all(len(runs(name)) >= enough for name in names))
        for worker in cluster.workers.values():
            assert worker.end() == 0
        cluster.workers.clear()
        cluster.check_runs({name: runs(name) for name in names})


@pytest.mark.soak
def test_with_the_times_of_a_server_recovery_takes_at_most_45_seconds(tmp_path: Path) -> None:
    with opened_cluster(tmp_path) as cluster:
        cluster.start(*NAMES, JOB_TIMING="production")
        for round, act in enumerate(("kill", "pause")):
            (tmp_path / "asked").unlink(missing_ok=True)
            cluster.gate.touch()
            for number in range(24):
                cluster.workers["first"].ask(f"{act}-{number % 6}", f"s{number}", f"{act}{number}")
            cluster.wait(lambda: len(cluster.asked()) == 24)
            counts = Counter(name for name, _ in cluster.asked() if name != "first")
            victim = cluster.workers[counts.most_common(1)[0][0]]
            victim.kill() if act == "kill" else victim.pause()
            cluster.gate.unlink()
            assert cluster.wait(lambda: cluster.open_jobs() == 0) <= 45, round
            if act == "kill":
                del cluster.workers[victim.name]
            else:
                victim.resume()
                time.sleep(10)
            for tenant in range(6):
                prompts = {f"s{number}": [f"do {act}{number}"] for number in range(tenant, 24, 6)}
                cluster.check_answered_once(f"{act}-{tenant}", prompts)


# ── Executors without processes ──────────────────────────────────────────────────────────────────────────


def test_an_executor_is_dead_when_it_left_or_was_silent_and_others_had_time_to_write(
    service_url: str,
) -> None:
    async def main() -> None:
        async with PostgresPool(service_url) as pool:
            database = PostgresDatabase(pool)
            silent = DatabaseExecutor(database, ExecutorTiming(heartbeat_s=60.0))
            lively = DatabaseExecutor(database, ExecutorTiming(heartbeat_s=1.0, silent_s=0.3))
            assert await silent.enter()
            await asyncio.sleep(0.3)
            assert await lively.enter()
            ids = (silent.id, lively.id, "unknown")
            assert await lively.dead(ids) == ["unknown"]
            while await lively.dead(ids) != [silent.id, "unknown"]:
                await asyncio.sleep(0.05)
            assert await silent.dead(ids) == ["unknown"]
            await lively.leave()
            assert await silent.dead(ids) == [lively.id, "unknown"]
            await silent.leave()

    asyncio.run(main())


@pytest.mark.parametrize("fault", ["reply_lost", "never_arrives"])
def test_a_server_starts_and_queues_a_job_though_connections_break_during_commit(
    postgres_url: str, fault: CommitFault
) -> None:
    async def main(proxy: CuttingProxy) -> None:
        async with PostgresPool(proxy.url) as pool:
            database = PostgresDatabase(pool)
            executor, schedules = DatabaseExecutor(database, ExecutorTiming()), ScheduleStore(database)
            queue = JobQueue(database)
            job = Job(tenant="default", session="s", key="k", kind="run", prompt="do it", at=1.0)
            proxy.cut_next_commit(fault)
            await queue.count()  # creates the tables
            proxy.cut_next_commit(fault)
            assert await executor.enter()
            proxy.cut_next_commit(fault)
            await schedules.set_configured([], now=1.0)
            proxy.cut_next_commit(fault)
            assert await queue.add(job)
            proxy.cut_next_commit(fault)
            await queue.mark_taken([job.id])
            assert await queue.untaken() == []
            proxy.cut_next_commit(fault)
            await schedules.end_job(job, "answered")
            assert await queue.count() == 0
            assert proxy.cut == 6
            await executor.leave()

    with CuttingProxy(postgres_url) as proxy:
        asyncio.run(main(proxy))


@pytest.mark.parametrize("ahead_s", rest_in_soak([-3_600, 3_600]))
def test_executors_correct_the_clock_of_their_machine(service_url: str, ahead_s: float) -> None:
    async def main() -> None:
        async with PostgresPool(service_url) as pool:
            executor = DatabaseExecutor(
                PostgresDatabase(pool), ExecutorTiming(), clock=lambda: time.time() + ahead_s
            )
            await executor.enter()
            assert abs(executor.clock_correction_s + ahead_s) < 10
            await executor.leave()

    asyncio.run(main())


def test_a_role_that_may_not_create_tables_runs_jobs(postgres_url: str) -> None:
    role = f"app_{uuid4().hex[:8]}"
    done: list[str] = []

    async def attempt(id: str, number: int) -> AttemptResult:
        done.append(id)
        return "done"

    async def main(url: str) -> None:
        engine = DbosEngine(attempt, retry_delays_s=(), poll_s=0.05)
        await engine.start(url, executor_id="one")
        try:
            await engine.add([EngineJob("tenant/run", "job")])
            while not done:
                await asyncio.sleep(0.02)
        finally:
            await engine.stop()

    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN".encode())
        url = postgres_server.database_url(postgres_url, connection.info.dbname, user=role)
        try:
            with pytest.raises(StoreUnusable, match="foveal database migrate"):
                asyncio.run(main(url))
            assert migrate_engine_tables(postgres_url, role=role).before == 0
            asyncio.run(main(url))
            assert done == ["job"]
        finally:
            connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


def test_a_server_without_jobs_does_not_load_the_engine(tmp_path: Path) -> None:
    # Forked processes have imported the engine, so they forget it and the server, which alone imports it.
    program = tmp_path / "without_jobs.py"
    program.write_text("""
import asyncio, sys
from pathlib import Path
ENGINE = ("dbos", "sqlalchemy")
for name in [*sys.modules]:
    if name.partition(".")[0] in ENGINE or f"{name}.".startswith("foveal.server."):
        del sys.modules[name]
for name, module in sys.modules.items():
    if name.startswith("foveal."):
        for value in vars(module).values():
            owner = getattr(value, "__module__", None) or getattr(value, "__name__", "")
            assert not str(owner).startswith((*ENGINE, "foveal.server.jobs.dbos_backend")), name
from foveal.config import Config
from foveal.server import Service
from foveal.server.jobs import JobWorker

async def main():
    async with Service.open(Config(values={}), folder=Path(sys.argv[1]), environment={}) as service:
        async with JobWorker.open(service) as worker:
            await worker.poll()
            assert worker.is_active
    assert not {"dbos", "sqlalchemy"} & set(sys.modules)

asyncio.run(main())
""")
    done = warm_start.run([program, tmp_path / "served"], timeout=DEADLINE)
    assert (done.returncode, done.stderr) == (0, b"")
