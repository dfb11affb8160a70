"""Background work: done once whatever happens, tried again when that helps, and nobody's words left behind."""

from __future__ import annotations

import asyncio
import base64
import os
import pickle
import select
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest

from foveal.config import Config, load
from foveal.core.log import Compacted, ModelSaid, Noted, UserSaid, text_of
from foveal.core.view import Fitted
from foveal.errors import BadSetting, ProviderError, StoreUnusable
from foveal.ports import Reply, ReplyPiece
from foveal.server import LiveSession, Service
from foveal.server.jobs import JobWorker, Schedule, WorkerPace
from foveal.stores import SqliteStore
from foveal.testing import Answer, Scripted
from support.paths import SUPPORT

QUICK: Final = WorkerPace(look=0.05, poll=0.05, pauses=(0.01, 0.01))
DEADLINE: Final = 60.0
NOON: Final = 1_772_452_800.0
"""2026-03-02T12:00:00Z."""


class Actor(Scripted):
    """Answers each prompt from a script of its own, and waits where it is told to."""

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
    pace: WorkerPace = QUICK,
    clock: Callable[[], float] = time.time,
) -> AsyncIterator[tuple[Service, JobWorker]]:
    global _actor
    _actor = actor
    environment = {"FOVEAL_PROVIDER": f"{__name__}:make"}
    config = config or Config(values={})
    async with (
        Service.open(config, folder=folder, environment=environment, clock=clock) as service,
        JobWorker.open(service, pace=pace) as work,
    ):
        yield service, work


async def until(met: Callable[[], Awaitable[bool] | bool], what: str = "it") -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + DEADLINE
    while True:
        now = met()
        if now if isinstance(now, bool) else await now:
            return
        assert time.monotonic() < deadline, f"{what} did not happen within {DEADLINE:.0f} s"
        await asyncio.sleep(0.01)


async def done(work: JobWorker) -> None:
    async def none_open() -> bool:
        return await work.errands.count() == 0

    await until(none_open, "the work")


async def talk(room: LiveSession) -> list[str]:
    """Who said what, and the notes of schedules."""
    lines = []
    for event in await room.events():
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
    """A worker's file as its first start leaves it: DBOS takes more than a second for that."""

    async def main(folder: Path) -> Path:
        async with opened(folder, Actor({})):
            return folder / "work.db"

    return asyncio.run(main(tmp_path_factory.mktemp("set-up")))


@pytest.fixture
def folder(tmp_path: Path, set_up: Path) -> Path:
    """The folder of a server that had nothing to do so far."""
    made = tmp_path / "server"
    made.mkdir(mode=0o700)
    shutil.copy(set_up, made)
    return made


# ── runs ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_run_is_said_once_however_often_it_is_asked_for_and_its_words_are_not_in_the_worker_s_file(
    folder: Path,
) -> None:
    async def main() -> None:
        actor = Actor({})
        async with opened(folder, actor) as (service, work):
            for _ in range(3):
                await work.run("default", "news", "What is new?", key="k1")
            await done(work)
            await work.run("default", "news", "What is new?", key="k1")
            await done(work)
            room = await service.tenant("default").room("news")
            assert await talk(room) == ["user: What is new?", "model: answer to What is new?"]
            assert actor.prompts == ["What is new?"]
        assert {serialization for _, _, serialization in jobs(folder)} == {"portable_json"}
        files = list(folder.glob("work.db*"))
        assert all(b"What is new?" not in file.read_bytes() for file in files)
        assert all(file.stat().st_mode & 0o077 == 0 for file in files)

    asyncio.run(main())


def test_a_failure_that_may_pass_is_tried_again_and_others_end_with_one_note(folder: Path) -> None:
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
            await done(work)
            shared = await talk(await tenant.room("shared"))
            assert [line for line in shared if not line.startswith("model: ")] == ["user: one", "user: two"]
            assert shared[-1].startswith("model: ")
            assert await talk(await tenant.room("passing")) == ["user: passing", "model: answer to passing"]
            assert await talk(await tenant.room("lasting")) == [
                "user: lasting",
                "note: background run (k-lasting): no answer after 3 attempts: too many requests",
            ]
            assert await talk(await tenant.room("hopeless")) == [
                "user: hopeless",
                "note: background run (k-hopeless): no answer: the model refused",
            ]
            counts = {prompt: actor.prompts.count(prompt) for prompt in ("hopeless", "lasting", "passing")}
            assert counts == {"hopeless": 1, "lasting": 3, "passing": 2}

    asyncio.run(main())


def test_a_run_whose_store_cannot_be_used_is_said_when_it_can(folder: Path) -> None:
    async def main() -> None:
        actor, store = Actor({}), folder / "tenants" / "default.db"
        store.parent.mkdir(mode=0o700)
        store.write_bytes(b"no database " * 400)
        async with opened(folder, actor, pace=QUICK._replace(pauses=(0.01,) * 100)) as (service, work):
            await work.run("default", "news", "What is new?", key="k")
            await until(lambda: any(status == "DELAYED" for _, status, _ in jobs(folder)))
            store.unlink()
            await done(work)
            room = await service.tenant("default").room("news")
            assert await talk(room) == ["user: What is new?", "model: answer to What is new?"]

    asyncio.run(main())


@pytest.mark.parametrize("first", ["the work", "the turn"])
def test_a_run_that_was_broken_off_is_taken_up_by_the_next_worker(folder: Path, first: str) -> None:
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
            await done(work)
            room = await service.tenant("default").room("news")
            assert await talk(room) == ["user: long", "model: answer to long"]

    asyncio.run(main())


def test_a_tenant_with_much_to_do_does_not_hold_up_another_and_what_has_ended_is_swept_out(
    folder: Path,
) -> None:
    async def main() -> None:
        actor = Actor({})
        gate = actor.waits["slow"] = asyncio.Event()
        async with opened(folder, actor, pace=QUICK._replace(sweep=0.0, kept=-60.0)) as (_, work):
            for number in range(12):
                await work.run("many", f"s{number}", "slow", key="k")
            await until(lambda: len(actor.prompts) >= 4)
            await work.run("few", "s", "quick", key="k")
            await until(lambda: "quick" in actor.prompts, "the other tenant's run")
            assert actor.prompts.count("slow") == 4
            gate.set()
            await done(work)
            assert actor.prompts.count("slow") == 12
            await until(lambda: jobs(folder) == [], "the sweep")

    asyncio.run(main())


def test_a_session_that_is_deleted_takes_its_open_work_with_it(folder: Path) -> None:
    async def main() -> None:
        actor = Actor({"again": [ProviderError("no connection", code="connection")] * 50})
        actor.waits["running"] = asyncio.Event()
        patient = QUICK._replace(pauses=(3_600.0,))
        async with opened(folder, actor, pace=patient) as (service, work):
            tenant = service.tenant("default")
            await work.timetable.create(
                Schedule(name="daily", session="a", cron="0 9 * * *", prompt="daily"), now=time.time()
            )
            await work.run("default", "a", "running", key="k1")
            await work.run("default", "b", "again", key="k2")
            await until(lambda: set(actor.prompts) == {"running", "again"})
            await until(lambda: any(status == "DELAYED" for _, status, _ in jobs(folder)))
            for session in ("a", "b"):
                await tenant.delete(session)
            await done(work)
            assert await work.timetable.lines("default") == []
            assert await tenant.sessions() == []

    asyncio.run(main())


# ── schedules ────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_due_is_said_once_in_its_session_after_what_was_said_before(
    tmp_path: Path, folder: Path
) -> None:
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
            room = await service.tenant("acme").ensure("news")
            await room.say("hello", key="k")
            await until(lambda: actor.prompts == ["hello"])
            clock.now += 3 * 86_400
            work.nudge()

            async def noticed() -> bool:
                return (await work.timetable.line("acme", "daily")).result == "waiting"

            await until(noticed)
            gate.set()
            await done(work)
            assert await talk(room) == [
                "user: hello",
                "model: answer to hello",
                "user: What is new?",
                "model: answer to What is new?",
            ]
            line = await work.timetable.line("acme", "daily")
            assert (line.due, line.result) == (clock.now - 3 * 3_600, "answered")
            assert (await work.timetable.line("default", "never")).due is None
            clock.now -= 86_400
            await work.step()
            assert await work.errands.count() == 0

    asyncio.run(main())


def test_a_schedule_of_the_configuration_that_means_nothing_is_named(tmp_path: Path) -> None:
    async def main() -> None:
        tables = [{"name": "daily", "session": "news", "cron": "whenever", "prompt": "What is new?"}]
        config = load(tmp_path, flags={"schedule": tables}, environ={}, user_folder=tmp_path)
        with pytest.raises(BadSetting, match="schedule 'daily': cron = 'whenever' is not allowed"):
            async with opened(tmp_path / "server", Actor({}), config=config):
                pass

    asyncio.run(main())


# ── summaries ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_summary_that_will_be_needed_soon_is_written_in_the_background(folder: Path) -> None:
    async def main() -> None:
        actor = Actor({}, window=3_000)
        async with opened(folder, actor) as (service, work):
            room = await service.tenant("default").ensure("long")

            async def summarised() -> bool:
                return any(isinstance(event.fact, Compacted) for event in await room.events())

            for number in range(40):
                turn = await room.say(f"message {number}: " + "many words of little weight " * 12)
                assert (await turn.outcome()).why == "answered"
                await done(work)
                if await summarised():
                    break
            assert await summarised()
            assert len(jobs(folder)) >= 1

    asyncio.run(main())


# ── what others may do to the worker's file ──────────────────────────────────────────────────────────────────


def test_a_file_that_is_no_database_is_refused_with_advice_and_left_as_it_is(tmp_path: Path) -> None:
    async def main() -> None:
        folder = tmp_path / "what? 100% #1"
        folder.mkdir()
        (folder / "work.db").write_bytes(b"no database " * 400)
        with pytest.raises(StoreUnusable, match=r"work\.db cannot be used .*moved away"):
            async with opened(folder, Actor({})):
                pass
        (folder / "work.db").rename(folder / "aside")
        async with opened(folder, Actor({})) as (_, work):
            assert work.at_work

    asyncio.run(main())


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_a_pickle_in_the_worker_s_file_is_never_read_and_its_run_is_given_up(folder: Path) -> None:
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
        async with opened(folder, actor, pace=QUICK._replace(sweep=0.0)) as (service, work):
            await done(work)
            notes = [
                line for line in await talk(await service.tenant("default").room("news")) if "note" in line
            ]
            assert notes == ["note: background run (k): no answer: the server broke off each time"]
        assert not trap.exists()

    asyncio.run(main())


# ── processes ────────────────────────────────────────────────────────────────────────────────────────────────


class Process:
    """A process that has a part in the work of a folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self._heard = b""
        program = SUPPORT / "job_process.py"
        self._process = subprocess.Popen(
            [sys.executable, str(program), str(folder), name], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.hear("open")

    def hear(self, line: str) -> None:
        """Wait until it has said something."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + DEADLINE
        while f"{line}\n".encode() not in self._heard:
            assert time.monotonic() < deadline, f"{line!r} was not said, only {self._heard!r}"
            if select.select([self._process.stdout], [], [], 1.0)[0]:
                said = os.read(self._process.stdout.fileno(), 65_536)
                assert said, f"it ended before it said {line!r}"
                self._heard += said

    def ask(self, tenant: str, session: str, key: str) -> None:
        """Ask for a run, and wait until it is promised."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{tenant} {session} {key}\n".encode())
        self._process.stdin.flush()
        self.hear(f"stored {key}")

    def has_said(self, line: str) -> bool:
        return f"{line}\n".encode() in self._heard

    def kill(self) -> None:
        self._process.kill()
        self._close()

    def end(self) -> int:
        """Let it end as it should."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._close()

    def _close(self) -> int:
        code = self._process.wait(DEADLINE)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
        return code


def wait(met: Callable[[], bool]) -> None:
    asyncio.run(until(met))


def open_errands(folder: Path) -> int:
    database = sqlite3.connect(folder / "server" / "service.db", timeout=DEADLINE)
    try:
        return int(database.execute("SELECT count(*) FROM errands").fetchone()[0])
    finally:
        database.close()


def asked(folder: Path) -> int:
    path = folder / "asked"
    return len(path.read_text().splitlines()) if path.exists() else 0


def said(folder: Path, tenant: str) -> dict[str, list[str]]:
    """What was said in each session of a tenant."""

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


def test_kill_9_at_any_point_loses_no_run_and_does_none_twice_and_another_process_goes_on(
    tmp_path: Path, folder: Path
) -> None:
    gate, failing = tmp_path / "gate", tmp_path / "failing"
    failing.write_text("do b1")
    gate.touch()
    first = Process(tmp_path, "first")
    for tenant, key in (("default", "a1"), ("acme", "a2"), ("default", "a3")):
        first.ask(tenant, f"s-{key}", key)
    wait(lambda: asked(tmp_path) == 3)
    first.kill()  # while the model answers

    gate.unlink()
    second = Process(tmp_path, "second")
    second.hear("working")
    third = Process(tmp_path, "third")
    for number in range(20):
        third.ask("default", f"c{number % 4}", f"c-{number}")
    wait(lambda: open_errands(tmp_path) < 15)
    second.ask("acme", "s-b1", "b1")
    wait(lambda: any(status == "DELAYED" for _, status, _ in jobs(folder)))
    assert not third.has_said("working")
    gate.touch()
    second.ask("default", "s-b2", "b2")
    second.kill()  # in the middle of much work, between two attempts, and as soon as something is promised

    gate.unlink()
    failing.unlink()
    third.hear("working")
    wait(lambda: open_errands(tmp_path) == 0)
    assert third.end() == 0

    talks = {**said(tmp_path, "default"), **said(tmp_path, "acme")}
    for key in ("a1", "a2", "a3", "b1", "b2"):
        prompt, answer = talks.pop(f"s-{key}")
        assert (prompt, answer.startswith("answered by ")) == (f"do {key}", True)
    for lane in range(4):
        assert talks[f"c{lane}"][::2] == [f"do c-{number}" for number in range(lane, 20, 4)]
    answers = [line for talk in talks.values() for line in talk[1::2]]
    assert len(answers) == 20
    assert {"answered by second", "answered by third"} >= set(answers)
    assert b"do c-" not in (folder / "work.db").read_bytes()
