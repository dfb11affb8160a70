"""Several processes and machines share a memory: nothing is lost, and nothing is stored by half."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import support.memory_worker
from foveal import Context, Memory, Session
from foveal.core.log.events import UserSaid
from foveal.core.tokens.counter import Estimate
from foveal.stores import SqliteStore, open_store
from support import warm_start
from support.memory_worker import entry

PER_WORKER = 12
WORKER = Path(support.memory_worker.__file__)


def work_until_killed(path: str, *kind: str) -> dict[str, list[str]]:
    """Run three writers at the same time, kill them in the middle, and return what each one said it had kept."""
    workers = {
        name: warm_start.start([WORKER, path, name, *kind], stdout=subprocess.PIPE, encoding="utf-8")
        for name in "abc"
    }
    said: dict[str, list[str]] = {}
    for name, worker in workers.items():
        assert worker.stdout is not None
        said[name] = [worker.stdout.readline().strip() for _ in range(PER_WORKER)]
    for name, worker in workers.items():
        worker.kill()  # in the middle of an entry
        said[name] += (worker.communicate()[0] or "").split("\n")[:-1]
    return said


def check_kept(said: dict[str, list[str]], kept: list[str]) -> None:
    """Nothing that was said to be kept is missing, and of each writer at most the one in the middle is more."""
    for name, texts in said.items():
        own = [text for text in kept if text.startswith(f"Worker {name}")]
        assert own == [entry(name, number) for number in range(len(own))]
        assert own[: len(texts)] == texts
        assert len(own) <= len(texts) + 1
    assert len(kept) == sum(len([text for text in kept if f"Worker {name}" in text]) for name in "abc")


def test_processes_that_are_killed_lose_nothing_that_they_have_remembered(tmp_path: Path) -> None:
    path = str(tmp_path / "a.db")
    said = work_until_killed(path)

    async def read() -> list[str]:
        async with SqliteStore(path) as store:
            return [one.text for one in await Memory("ada", store=store).entries()]

    check_kept(said, asyncio.run(read()))


def test_processes_that_are_killed_lose_no_file_that_they_have_written(tmp_path: Path) -> None:
    path = str(tmp_path / "a.db")
    said = work_until_killed(path, "files")

    async def read() -> list[str]:
        async with SqliteStore(path) as store:
            return [*(await Memory("ada", store=store).files.texts()).values()]

    check_kept(said, asyncio.run(read()))


def test_machines_share_a_memory_on_postgresql_and_tenants_do_not(store_url: str) -> None:
    async def run() -> None:
        async with (
            open_store(store_url, tenant="acme") as one,
            open_store(store_url, tenant="acme") as two,
            open_store(store_url, tenant="other") as foreign,
        ):
            here, there = (Memory("ada", store=store, counting=Estimate()) for store in (one, two))
            await asyncio.gather(
                *(
                    memory.remember(f"Fact {n} of {id(memory)} is in box {n}.")
                    for n in range(5)
                    for memory in (here, there)
                )
            )
            assert len(await here.entries(all=True)) == 10
            assert await here.entries() == await there.entries()
            rule = await here.remember("Never push to main.")
            session = await Session.open(two, "demo", model="gpt-4.1", memory=there)
            await session.append(UserSaid(content="Hello."))
            assert "Never push to main." in str((await session.fit()).to_openai())
            ctx = Context("gpt-4.1", memory=there)
            assert "Never push to main." in str(await ctx.afit([{"role": "user", "content": "Hello."}]))
            await here.forget(rule.id)
            assert "Never push to main." not in str((await session.fit()).to_openai())
            assert "Never push to main." not in str(await ctx.afit([{"role": "user", "content": "Hello."}]))
            assert await Memory("ada", store=foreign, counting=Estimate()).entries(all=True) == []
            await here.erase()
            assert await there.entries(all=True) == []
            assert len(await two.sessions()) == 1

    asyncio.run(run())
