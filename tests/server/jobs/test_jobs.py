"""Tests of background jobs: run once across crashes, retried where that helps, no text left behind."""

from __future__ import annotations

import asyncio
import base64
import os
import pickle
import shutil
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from foveal.config import Config, load
from foveal.core.log import Compacted, ModelSaid, Noted, UserSaid, text_of
from foveal.core.view.request import Fitted
from foveal.errors import BadSetting, ProviderError, StoreUnusable
from foveal.ports import Reply, ReplyPiece
from foveal.server import LiveSession, Service
from foveal.server.jobs import JobWorker
from foveal.server.jobs.dbos_backend import DbosEngine
from foveal.server.jobs.queue import AttemptResult
from foveal.server.jobs.schedule_store import Schedule
from foveal.server.jobs.worker import WorkerTiming
from foveal.stores import SqliteStore
from foveal.testing import Answer, Scripted
from support.prompt_dbos import shorten_pauses
from support.started_worker import StartedWorker

QUICK: Final = WorkerTiming(
    poll_s=0.05, engine_poll_s=0.05, retry_delays_s=(0.01, 0.01), recovery_interval_s=0.2
)
DEADLINE: Final = 60.0
NOON: Final = 1_772_452_800.0
"""2026-03-02T12:00:00Z."""

shorten_pauses()


class Actor(Scripted):
    """A provider with a script for each prompt, which can wait."""

    def __init__(self, script: dict[str, list[Answer]], *, window: int = 0) -> None:
        super().__init__(window=window)
        self.script = script
        self.waits: dict[str, asyncio.Event] = {}
        self.prompts: list[str] = []

    async def send(self, request: Fitted, *, max_tokens: int) -> AsyncIterator[ReplyPiece | Reply]:
        prompt = [text_of(fact.content) for fact in request.facts if isinstance(fact, UserSaid)][-1]
        self.prompts.append(prompt)
        if prompt in self.waits:
            await self.waits[prompt].wait()
        answers = self.script.get(prompt)
        self._answers = [answers.pop(0) if answers else f"answer to {prompt}"]
        async for piece in super().send(request, max_tokens=max_tokens):
            yield piece


_actor: Actor | None = None


def make(name: str | None, **_: Any) -> Actor:
    assert _actor is not None
    return _actor


class Clock:
    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def opened(
    folder: Path,
    actor: Actor,
    *,
    config: Config | None = None,
    timing: WorkerTiming = QUICK,
    clock: Callable[[], float] = time.time,
) -> AsyncIterator[tuple[Service, JobWorker]]:
    global _actor
    _actor = actor
    environment = {"FOVEAL_PROVIDER": f"{__name__}:make"}
    config = config or Config(values={})
    async with (
        Service.open(config, folder=folder, environment=environment, clock=clock) as service,
        JobWorker.open(service, timing=timing) as work,
    ):
        yield service, work


async def until(met: Callable[[], Awaitable[bool] | bool], what: str = "it") -> None:
    """Wait until a condition is true."""
    deadline = time.monotonic() + DEADLINE
    while True:
        now = met()
        if now if isinstance(now, bool) else await now:
            return
        assert time.monotonic() < deadline, f"{what} did not happen within {DEADLINE:.0f} s"
        await asyncio.sleep(0.01)


async def wait_until_done(work: JobWorker) -> None:
    async def none_open() -> bool:
        return await work.queue.count() == 0

    await until(none_open, "the work")


async def conversation_lines(live: LiveSession) -> list[str]:
    """Return the messages of a session and the notes of schedules."""
    lines = []
    for event in await live.events():
        match event.fact:
            case UserSaid() as fact:
                lines.append(f"user: {text_of(fact.content)}")
            case ModelSaid() as fact:
                lines.append(f"model: {text_of(fact.content)}")
            case Noted(topic="schedule") as fact:
                lines.append(f"note: {fact.text}")
            case _:
                pass
    return lines


def jobs(folder: Path, what: str = "workflow_uuid, status, serialization") -> list[tuple[Any, ...]]:
    database = sqlite3.connect(folder / "work.db", timeout=DEADLINE)
    try:
        return database.execute(f"SELECT {what} FROM workflow_status").fetchall()
    finally:
        database.close()


@pytest.fixture(scope="module")
def set_up(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The engine's file after its first start, which takes DBOS more than a second."""

    async def no_attempt(id: str, number: int) -> AttemptResult:
        raise AssertionError("there is no job")

    async def main(path: Path) -> Path:
        engine = DbosEngine(no_attempt, retry_delays_s=(), poll_s=1.0)
        await engine.start(f"sqlite:///{path}", executor_id="foveal")
        await engine.stop()
        return path

    return asyncio.run(main(tmp_path_factory.mktemp("set-up") / "work.db"))


@pytest.fixture
def folder(tmp_path: Path, set_up: Path) -> Path:
    """The folder of a server without jobs."""
    made = tmp_path / "server"
    made.mkdir(mode=0o700)
    shutil.copy(set_up, made)
    return made


# ── Runs ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_run_is_submitted_once_and_its_text_is_not_in_the_engine_file(
    folder: Path,
) -> None:
    async def main() -> None:
        actor = Actor({})
        async with opened(folder, actor) as (service, work):
            for _ in range(3):
                await work.run("default", "news", "What is new?", key="k1")
            await wait_until_done(work)
            await work.run("default", "news", "What is new?", key="k1")
            await wait_until_done(work)
            live = await service.tenant("default").session("news")
            assert await conversation_lines(live) == ["user: What is new?", "model: answer to What is new?"]
            assert actor.prompts == ["What is new?"]
        assert {serialization for _, _, serialization in jobs(folder)} == {"portable_json"}
        files = list(folder.glob("work.db*"))
        assert all(b"What is new?" not in file.read_bytes() for file in files)
        assert all(file.stat().st_mode & 0o077 == 0 for file in files)

    asyncio.run(main())


def test_passing_failures_are_retried_and_others_end_with_one_note(folder: Path) -> None:
    async def main() -> None:
        rate = ProviderError("too many requests", code="rate")
        refused = ProviderError("the model refused", code="refused")
        actor = Actor(
            {"passing": [rate], "lasting": [rate] * 9, "hopeless": [refused], "one": [rate], "two": [rate]}
        )
        async with opened(folder, actor) as (service, work):
            tenant = service.tenant("default")
            for prompt in actor.script:
                session = "shared" if prompt in ("one", "two") else prompt
                await work.run("default", session, prompt, key=f"k-{prompt}")
            await wait_until_done(work)
            shared = await conversation_lines(await tenant.session("shared"))
            assert [line for line in shared if not line.startswith("model: ")] == ["user: one", "user: two"]
            assert shared[-1].startswith("model: ")
            assert await conversation_lines(await tenant.session("passing")) == [
                "user: passing",
                "model: answer to passing",
            ]
            assert await conversation_lines(await tenant.session("lasting")) == [
                "user: lasting",
                "note: background run (k-lasting): no answer after 3 attempts: too many requests",
            ]
            assert await conversation_lines(await tenant.session("hopeless")) == [
                "user: hopeless",
                "note: background run (k-hopeless): no answer: the model refused",
            ]
            counts = {prompt: actor.prompts.count(prompt) for prompt in ("hopeless", "lasting", "passing")}
            assert counts == {"hopeless": 1, "lasting": 3, "passing": 2}

    asyncio.run(main())


def test_a_run_waits_until_its_store_can_be_used(folder: Path) -> None:
    async def main() -> None:
        actor, store = Actor({}), folder / "tenants" / "default.db"
        store.parent.mkdir(mode=0o700)
        store.write_bytes(b"no database " * 400)
        async with opened(folder, actor, timing=QUICK._replace(retry_delays_s=(0.01,) * 100)) as (
            service,
            work,
        ):
            await work.run("default", "news", "What is new?", key="k")
            await until(lambda: any(status == "DELAYED" for _, status, _ in jobs(folder)))
            store.unlink()
            await wait_until_done(work)
            live = await service.tenant("default").session("news")
            assert await conversation_lines(live) == ["user: What is new?", "model: answer to What is new?"]

    asyncio.run(main())


@pytest.mark.parametrize("first", ["the work", "the turn"])
def test_an_interrupted_run_is_continued_by_the_next_worker(folder: Path, first: str) -> None:
    async def main() -> None:
        actor = Actor({})
        actor.waits["long"] = asyncio.Event()
        async with opened(folder, actor) as (service, work):
            await work.run("default", "news", "long", key="k")
            await until(lambda: actor.prompts == ["long"])
            if first == "the turn":
                await service.end_turns(grace=0.0)
        assert [status for _, status, _ in jobs(folder)] == ["PENDING"]
        actor.waits.clear()
        async with opened(folder, actor) as (service, work):
            await wait_until_done(work)
            live = await service.tenant("default").session("news")
            assert await conversation_lines(live) == ["user: long", "model: answer to long"]

    asyncio.run(main())


def test_a_busy_tenant_does_not_block_others_and_ended_jobs_are_deleted(
    folder: Path,
) -> None:
    async def main() -> None:
        actor = Actor({})
        gate = actor.waits["slow"] = asyncio.Event()
        async with opened(
            folder, actor, timing=QUICK._replace(cleanup_interval_s=0.0, ended_job_ttl_s=-60.0)
        ) as (_, work):
            for number in range(8):
                await work.run("many", f"s{number}", "slow", key="k")
            await until(lambda: len(actor.prompts) >= 4)
            await work.run("few", "s", "quick", key="k")
            await until(lambda: "quick" in actor.prompts, "the other tenant's run")
            assert actor.prompts.count("slow") == 4
            gate.set()
            await wait_until_done(work)
            assert actor.prompts.count("slow") == 8
            await until(lambda: jobs(folder) == [], "the sweep")

    asyncio.run(main())


def test_deleting_a_session_deletes_its_open_jobs(folder: Path) -> None:
    async def main() -> None:
        actor = Actor({"again": [ProviderError("no connection", code="connection")] * 50})
        actor.waits["running"] = asyncio.Event()
        patient = QUICK._replace(retry_delays_s=(3_600.0,))
        async with opened(folder, actor, timing=patient) as (service, work):
            tenant = service.tenant("default")
            await work.schedules.create(
                Schedule(name="daily", session="a", cron="0 9 * * *", prompt="daily"), now=time.time()
            )
            await work.run("default", "a", "running", key="k1")
            await work.run("default", "b", "again", key="k2")
            await until(lambda: set(actor.prompts) == {"running", "again"})
            await until(lambda: any(status == "DELAYED" for _, status, _ in jobs(folder)))
            for session in ("a", "b"):
                await tenant.delete(session)
            await wait_until_done(work)
            assert await work.schedules.list("default") == []
            assert await tenant.sessions() == []

    asyncio.run(main())


# ── Schedules ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_due_prompt_is_submitted_once_after_earlier_messages(tmp_path: Path, folder: Path) -> None:
    async def main() -> None:
        actor, clock = Actor({}), Clock()
        gate = actor.waits["hello"] = asyncio.Event()
        tables = [
            {
                "name": "daily",
                "session": "news",
                "cron": "0 9 * * *",
                "prompt": "What is new?",
                "tenant": "acme",
            },
            {"name": "never", "session": "news", "cron": "0 9 * * *", "prompt": "?", "missed": "skip"},
        ]
        config = load(tmp_path, flags={"schedule": tables}, environ={}, user_folder=tmp_path)
        async with opened(folder, actor, config=config, clock=clock) as (service, work):
            live = await service.tenant("acme").ensure("news")
            await live.submit("hello", key="k")
            await until(lambda: actor.prompts == ["hello"])
            clock.now += 3 * 86_400
            work.wake()

            async def noticed() -> bool:
                return (await work.schedules.get("acme", "daily")).result == "waiting"

            await until(noticed)
            gate.set()
            await wait_until_done(work)
            assert await conversation_lines(live) == [
                "user: hello",
                "model: answer to hello",
                "user: What is new?",
                "model: answer to What is new?",
            ]
            line = await work.schedules.get("acme", "daily")
            assert (line.last_due, line.result) == (clock.now - 3 * 3_600, "answered")
            assert (await work.schedules.get("default", "never")).last_due is None
            clock.now -= 86_400
            await work.poll()
            assert await work.queue.count() == 0

    asyncio.run(main())


def test_a_run_that_ends_at_its_limit_of_tool_calls_has_failed(tmp_path: Path, folder: Path) -> None:
    async def main() -> None:
        actor, clock = Actor({"look": [[("look", {})]]}), Clock()
        table = {"name": "daily", "session": "news", "cron": "0 9 * * *", "prompt": "look"}
        flags = {"schedule": [table], "max_tool_iterations": 1}
        config = load(tmp_path, flags=flags, environ={}, user_folder=tmp_path)
        async with opened(folder, actor, config=config, clock=clock) as (_, work):
            clock.now += 86_400
            work.wake()

            async def is_over() -> bool:
                return (await work.schedules.get("default", "daily")).result not in ("", "waiting")

            await until(is_over)
            assert (await work.schedules.get("default", "daily")).result == "failed"
            assert actor.prompts == ["look"]

    asyncio.run(main())


def test_an_invalid_configured_schedule_is_named_in_the_error(tmp_path: Path) -> None:
    async def main() -> None:
        tables = [{"name": "daily", "session": "news", "cron": "whenever", "prompt": "What is new?"}]
        config = load(tmp_path, flags={"schedule": tables}, environ={}, user_folder=tmp_path)
        with pytest.raises(BadSetting, match="schedule 'daily': cron = 'whenever' is not allowed"):
            async with opened(tmp_path / "server", Actor({}), config=config):
                pass

    asyncio.run(main())


# ── Summaries ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_needed_summary_is_written_in_the_background(folder: Path) -> None:
    async def main() -> None:
        actor = Actor({}, window=3_000)
        async with opened(folder, actor) as (service, work):
            live = await service.tenant("default").ensure("long")

            async def summarised() -> bool:
                return any(isinstance(event.fact, Compacted) for event in await live.events())

            for number in range(40):
                turn = await live.submit(f"message {number}: " + "many words of little weight " * 12)
                assert (await turn.outcome()).why == "answered"
                await wait_until_done(work)
                if await summarised():
                    break
            assert await summarised()
            assert len(jobs(folder)) >= 1

    asyncio.run(main())


# ── A damaged engine file ─────────────────────────────────────────────────────────────────────────────


def test_an_engine_file_that_is_no_database_is_refused_with_advice(tmp_path: Path) -> None:
    async def main() -> None:
        folder = tmp_path / "what? 100% #1"
        folder.mkdir()
        (folder / "work.db").write_bytes(b"no database " * 400)
        with pytest.raises(StoreUnusable, match=r"work\.db cannot be used .*move it away"):
            async with opened(folder, Actor({})):
                pass
        (folder / "work.db").rename(folder / "aside")
        async with opened(folder, Actor({})) as (_, work):
            assert work.is_active

    asyncio.run(main())


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_a_pickle_in_the_engine_file_is_never_loaded_and_its_run_is_given_up(folder: Path) -> None:
    async def main() -> None:
        actor, trap = Actor({}), folder / "trap"
        actor.waits["long"] = asyncio.Event()
        async with opened(folder, actor) as (_, work):
            await work.run("default", "news", "long", key="k")
            await until(lambda: actor.prompts == ["long"])
        evil = base64.b64encode(pickle.dumps(Evil(trap))).decode()
        database = sqlite3.connect(folder / "work.db")
        with database:
            database.execute("UPDATE workflow_status SET inputs = ?, serialization = 'py_pickle'", (evil,))
        database.close()
        async with opened(folder, actor, timing=QUICK._replace(cleanup_interval_s=0.0)) as (service, work):
            await wait_until_done(work)
            lines = await conversation_lines(await service.tenant("default").session("news"))
            notes = [line for line in lines if "note" in line]
            assert notes == ["note: background run (k): no answer: the server broke off each time"]
        assert not trap.exists()

    asyncio.run(main())


# ── Processes ─────────────────────────────────────────────────────────────────────────────────────────


def started(folder: Path, name: str) -> StartedWorker:
    worker = StartedWorker(folder, name)
    worker.wait_until_open()
    return worker


def wait(met: Callable[[], bool]) -> None:
    asyncio.run(until(met))


def open_jobs(folder: Path) -> int:
    database = sqlite3.connect(folder / "server" / "service.db", timeout=DEADLINE)
    try:
        return int(database.execute("SELECT count(*) FROM errands").fetchone()[0])
    finally:
        database.close()


def asked(folder: Path) -> int:
    path = folder / "asked"
    return len(path.read_text().splitlines()) if path.exists() else 0


def messages_of(folder: Path, tenant: str) -> dict[str, list[str]]:
    """Return the messages of each session of a tenant."""

    async def main() -> dict[str, list[str]]:
        async with SqliteStore(folder / "server" / "tenants" / f"{tenant}.db") as store:
            return {
                info.id: [
                    text_of(event.fact.content)
                    for event in await store.read(info.id)
                    if isinstance(event.fact, UserSaid | ModelSaid)
                ]
                for info in await store.sessions()
            }

    return asyncio.run(main())


def test_kill_9_loses_and_repeats_no_run_and_another_process_takes_over(tmp_path: Path, folder: Path) -> None:
    gate, failing = tmp_path / "gate", tmp_path / "failing"
    failing.write_text("do b1")
    gate.touch()
    first = started(tmp_path, "first")
    for tenant, key in (("default", "a1"), ("acme", "a2"), ("default", "a3")):
        first.ask(tenant, f"s-{key}", key)
    wait(lambda: asked(tmp_path) == 3)
    first.kill()  # while the model answers

    gate.unlink()
    second = started(tmp_path, "second")
    second.wait_for("working")
    third = started(tmp_path, "third")
    for number in range(12):
        third.ask("default", f"c{number % 4}", f"c-{number}")
    wait(lambda: open_jobs(tmp_path) < 9)
    second.ask("acme", "s-b1", "b1")
    wait(lambda: any(status == "DELAYED" for _, status, _ in jobs(folder)))
    assert not third.has_printed("working")
    gate.touch()
    second.ask("default", "s-b2", "b2")
    second.kill()  # in the middle of much work, between two attempts, and as soon as something is promised

    gate.unlink()
    failing.unlink()
    third.wait_for("working")
    wait(lambda: open_jobs(tmp_path) == 0)
    assert third.end() == 0

    messages = {**messages_of(tmp_path, "default"), **messages_of(tmp_path, "acme")}
    for key in ("a1", "a2", "a3", "b1", "b2"):
        prompt, answer = messages.pop(f"s-{key}")
        assert (prompt, answer.startswith("answered by ")) == (f"do {key}", True)
    for lane in range(4):
        assert messages[f"c{lane}"][::2] == [f"do c-{number}" for number in range(lane, 12, 4)]
    answers = [line for lines in messages.values() for line in lines[1::2]]
    assert len(answers) == 12
    assert {"answered by second", "answered by third"} >= set(answers)
    assert b"do c-" not in (folder / "work.db").read_bytes()
