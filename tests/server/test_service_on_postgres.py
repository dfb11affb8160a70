"""Tests of services of several processes on one PostgreSQL database."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from subprocess import PIPE
from typing import Any

import psycopg
import pytest

from foveal.config import load
from foveal.core.log import ModelSaid, UserSaid, text_of
from foveal.server import LiveSession, Service
from foveal.server.postgres_storage import PostgresStorage
from foveal.server.runtime import ANSWER_POLL_S, Runtime
from foveal.stores.postgres.leases import LeaseTimes
from foveal.testing import Scripted
from support import warm_start
from support.cutting_proxy import CuttingProxy
from support.gated_provider import GatedProvider, run
from support.paths import SUPPORT, TESTS
from support.postgres_service_process import BRIEF
from support.provided import provided
from support.service_databases import tables_with
from support.service_process import Echo
from support.waiting import DEADLINE_S
from support.warm_start import WarmProcess

SHORT = LeaseTimes(lease=4.0, renew=0.5, give_up=3.2, poll=0.3)
NEVER_S = 10_000.0
"""Longer than any test."""


@asynccontextmanager
async def member(
    url: str,
    provider: Scripted,
    *,
    listens: bool = True,
    times: LeaseTimes = SHORT,
    answer_poll_s: float = ANSWER_POLL_S,
) -> AsyncIterator[Service]:
    """Open a service as another process would: with a pool and leases of its own."""
    config = load(Path("/nowhere"), environ={}, user_folder=Path("/nowhere"))
    storage = PostgresStorage(url, times=times, listens=listens, connections=4)
    runtime = Runtime(
        config, storage, environment={}, answer_poll_s=answer_poll_s, make_provider=provided(provider)
    )
    service = Service(runtime)
    try:
        yield service
    finally:
        await service.close()


@asynccontextmanager
async def members(url: str, *providers: Scripted, **more: Any) -> AsyncIterator[list[Service]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(member(url, provider, **more)) for provider in providers]


async def spoken(live: LiveSession) -> list[str]:
    said = (event.fact for event in await live.events() if isinstance(event.fact, UserSaid | ModelSaid))
    return [text_of(fact.content) for fact in said]


async def demo(service: Service) -> LiveSession:
    return await service.tenant("default").ensure("demo")


@run
async def test_messages_through_two_processes_are_answered_once_and_in_order(service_url: str) -> None:
    async with members(service_url, Echo(), Echo()) as services:
        lives = [await demo(service) for service in services]

        async def send(n: int) -> str:
            turn = await lives[n % 2].submit(f"message {n}", key=f"k{n}")
            outcome = await turn.outcome()
            return outcome.text

        answers = await asyncio.gather(*(send(n) for n in range(12)))
        assert answers == [f"echo of message {n}" for n in range(12)]
        said = await spoken(lives[0])
        assert said[1::2] == [f"echo of {text}" for text in said[::2]]
        assert sorted(said[::2]) == sorted(f"message {n}" for n in range(12))
        assert await services[0].runtime.inbox.unfinished() == []


@pytest.mark.parametrize(("listens", "poll_s"), [(True, NEVER_S), (False, 0.3)])
@run
async def test_a_process_gets_the_answer_of_another_by_a_wake_up_or_by_polling(
    service_url: str, listens: bool, poll_s: float
) -> None:
    busy = GatedProvider("one", "two", "three")
    more: dict[str, Any] = {"times": SHORT._replace(poll=poll_s), "answer_poll_s": poll_s}
    async with members(service_url, busy, Scripted(), listens=listens, **more) as (first, second):
        here, there = await demo(first), await demo(second)
        one = await here.submit("1")
        await busy.asked_once.wait()
        two = await there.submit("2")
        three = await here.submit("3")
        await asyncio.sleep(0.3)  # `there` waits for the lease
        busy.gate.set()
        assert [(await turn.outcome()).text for turn in (one, two, three)] == ["one", "two", "three"]


@run
async def test_a_turn_whose_lease_was_lost_stops_and_its_reader_gets_the_other_answer(
    service_url: str,
) -> None:
    paused = GatedProvider("never stored")
    async with members(service_url, paused, Echo(), times=BRIEF) as (first, second):
        here, there = await demo(first), await demo(second)
        turn = await here.submit("1", key="k")
        await paused.asked_once.wait()
        leases: Any = first.runtime.locks
        leases._heartbeat.cancel()  # as if the process were paused
        other = await there.submit("2")
        assert (await other.outcome()).text == "echo of 2"
        paused.gate.set()
        outcome = await turn.outcome()
        assert (outcome.why, outcome.text) == ("answered", "echo of 1")
        assert await spoken(there) == ["1", "echo of 1", "2", "echo of 2"]
        paused.gate.set()
        again = await here.submit("3")
        assert (await again.outcome()).why == "answered"


@run
async def test_a_message_whose_answer_could_not_be_stored_is_answered_once_the_store_works(
    service_url: str,
) -> None:
    provider = GatedProvider("lost", "stored")
    async with member(service_url, provider) as service:
        live = await demo(service)
        turn = await live.submit("1", key="k")
        await provider.asked_once.wait()
        async with await psycopg.AsyncConnection.connect(service_url) as other:
            await other.execute("LOCK TABLE foveal.event IN EXCLUSIVE MODE")
            provider.gate.set()
            outcome = await turn.outcome()  # the lock is held until the turn has given up
            await other.rollback()
        assert (outcome.why, outcome.code, outcome.is_pending) == ("failed", "StoreUnusable", True)
        await live.wait_idle()
        again = await live.submit("1", key="k")
        assert (await again.outcome()).text == "stored"
        assert await spoken(live) == ["1", "stored"]


# ── Processes ────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def worker(url: str, name: str) -> Iterator[WarmProcess]:
    """A process that answers messages of `demo` slowly, and prints what it does."""
    command = [SUPPORT / "postgres_service_process.py", url, name]
    environment = os.environ | {"PYTHONPATH": str(TESTS)}
    with warm_start.start(command, stdout=PIPE, env=environment, encoding="utf-8") as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGCONT)
            process.kill()


def line(process: WarmProcess) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@run
async def test_a_stopped_process_that_continues_writes_nothing_after_the_takeover(service_url: str) -> None:
    with worker(service_url, "paused") as process:
        assert await asyncio.to_thread(line, process) == "asked"
        process.send_signal(signal.SIGSTOP)
        async with member(service_url, Echo(), times=BRIEF) as service:
            live = await demo(service)
            outcome = await asyncio.wait_for((await live.submit("second")).outcome(), DEADLINE_S)
            assert outcome.text == "echo of second"
            process.send_signal(signal.SIGCONT)
            assert await asyncio.to_thread(line, process) == "answered: echo of first of paused"
            said = await spoken(live)
            assert said == ["first of paused", "echo of first of paused", "second", "echo of second"]


@run
async def test_the_messages_of_a_killed_process_are_answered_by_another(
    service_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foveal.server.service.RECOVERY_INTERVAL_S", 0.3)
    with worker(service_url, "killed") as process:
        assert await asyncio.to_thread(line, process) == "asked"
        async with member(service_url, Echo(), times=BRIEF) as service:
            process.kill()
            live = await demo(service)
            recovery = asyncio.create_task(service._recover_periodically())
            async with asyncio.timeout(DEADLINE_S):
                while await service.runtime.inbox.unfinished():
                    await asyncio.sleep(0.05)
            recovery.cancel()
            assert await spoken(live) == ["first of killed", "echo of first of killed"]


# ── A database that cannot be reached ────────────────────────────────────────────────────────────────────


@run
async def test_the_reader_in_a_process_that_was_cut_off_gets_the_answer_of_the_other(
    service_url: str,
) -> None:
    cut_off = GatedProvider("never stored")
    with CuttingProxy(service_url) as proxy:
        async with (
            member(proxy.url, cut_off, times=BRIEF) as first,
            member(service_url, Echo(), times=BRIEF) as second,
        ):
            here, there = await demo(first), await demo(second)
            turn = await here.submit("1")
            await cut_off.asked_once.wait()
            proxy.swallow()
            other = await (await there.submit("2")).outcome()
            assert other.text == "echo of 2"
            cut_off.gate.set()
            proxy.restore()
            outcome = await turn.outcome()
            assert (outcome.why, outcome.text) == ("answered", "echo of 1")
            assert await spoken(there) == ["1", "echo of 1", "2", "echo of 2"]


@pytest.mark.long
@run
async def test_an_outage_longer_than_a_lease_loses_and_doubles_nothing(service_url: str) -> None:
    provider = GatedProvider("first answer", "second answer")
    with CuttingProxy(service_url) as proxy:
        async with member(proxy.url, provider, times=BRIEF) as service:
            live = await demo(service)
            turn = await live.submit("1")
            await provider.asked_once.wait()
            proxy.refuse()
            await asyncio.sleep(BRIEF.lease * 1.5)
            provider.gate.set()
            proxy.restore()
            outcome = await turn.outcome()
            assert outcome.why == "answered"
            assert await spoken(live) == ["1", outcome.text]
            assert await service.runtime.inbox.unfinished() == []


@run
async def test_a_message_is_stored_once_although_the_reply_to_its_commit_is_lost(service_url: str) -> None:
    with CuttingProxy(service_url) as proxy:
        async with member(proxy.url, Echo()) as service:
            live = await demo(service)
            for n in range(5):
                proxy.cut_next_commit()
                assert (await (await live.submit(f"{n}")).outcome()).text == f"echo of {n}"
            said = await spoken(live)
            assert said == [text for n in range(5) for text in (f"{n}", f"echo of {n}")]
            assert proxy.cut == 5


# ── memory ───────────────────────────────────────────────────────────────────────────────────────────────


def asked(provider: Scripted) -> str:
    """Return what the last request showed in front of the conversation."""
    return "\n".join(str(m["content"]) for m in provider.requests[-1].to_openai() if m["role"] == "system")


@run
async def test_what_one_server_remembers_another_one_uses_and_forgets(service_url: str) -> None:
    providers = [Scripted(*[f"Answer {n}." for n in range(9)]) for _ in range(2)]
    async with members(service_url, *providers) as (one, other):

        async def say(service: Service, session: str, text: str, *, tenant: str = "acme") -> None:
            live = await service.tenant(tenant).ensure(session, user="ada")
            assert (await (await live.submit(text)).outcome()).why == "answered"

        await say(one, "monday", "Remember that my name is Ada.")
        await say(one, "monday", "Remember that the deadline is 14 March.")
        await say(other, "tuesday", "Remember that the deadline moved to 2 April.")
        await say(one, "wednesday", "Hello.")
        assert "my name is Ada." in asked(providers[0])
        assert "2 April" in asked(providers[0])
        assert "14 March" not in asked(providers[0])

        await say(other, "tuesday", "Hello.", tenant="rival")
        assert "Ada" not in asked(providers[1])
        assert await other.tenant("rival").memory("ada").entries(all=True) == []

        for entry in await other.tenant("acme").memory("ada").entries():
            await other.tenant("acme").memory("ada").forget(entry.id)
        await say(one, "wednesday", "And now?")
        assert "Ada" not in asked(providers[0])


@run
async def test_an_erased_user_leaves_no_text_in_the_database(service_url: str) -> None:
    provider = Scripted(*["Noted."] * 9)
    async with members(service_url, provider) as (service,):
        tenant = service.tenant("acme")
        await tenant.memory("gil").remember("My dog is called Quetzalcoatl.")
        assert tables_with(service_url, "quetzalcoatl")
        live = await tenant.ensure("told", user="gil")
        await (await live.submit("Hello.")).outcome()
        assert "Quetzalcoatl" in asked(provider)
        assert await tenant.erase_user("gil") == (["told"], {})
    assert tables_with(service_url, "quetzalcoatl") == []
