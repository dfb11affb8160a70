"""Messages are answered in the order in which they were stored, in the background or not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from foveal.config import load
from foveal.core.log import ModelSaid, UserSaid, text_of
from foveal.server import LiveSession, Service
from foveal.server.inbox import UnansweredMessages
from foveal.server.jobs.queue import Job, JobQueue
from foveal.server.jobs.schedule_store import ScheduleStore
from foveal.server.jobs.worker import JobRunner
from foveal.testing import Scripted
from support.gated_provider import GatedProvider, run
from support.provided import provided


@asynccontextmanager
async def opened(tmp_path: Path, provider: Scripted) -> AsyncIterator[Service]:
    config = load(tmp_path, environ={}, user_folder=tmp_path / "empty")
    async with Service.open(
        config,
        folder=tmp_path / "served",
        environment={},
        clock=lambda: 1_000.0,
        make_provider=provided(provider),
    ) as service:
        yield service


async def spoken(live: LiveSession) -> list[str]:
    facts = (event.fact for event in await live.events())
    return [text_of(fact.content) for fact in facts if isinstance(fact, UserSaid | ModelSaid)]


def job(key: str, *, at: float = 0.0, schedule: str = "", session: str = "demo") -> Job:
    return Job(
        tenant="default", session=session, key=key, kind="run", prompt=f"{key}?", at=at, schedule=schedule
    )


@run
async def test_a_background_message_is_answered_before_one_that_was_stored_later(tmp_path: Path) -> None:
    async with opened(tmp_path, Scripted("1", "2", "3")) as service:
        live = await service.tenant("default").ensure("demo")
        queue = JobQueue(service.runtime.database)
        background = job("background")
        await queue.add(background)  # acknowledged; no worker has seen it yet
        await queue.add(job("scheduled", schedule="daily"))
        turn = await live.submit("foreground?", key="foreground")
        assert (await turn.outcome()).text == "3"
        await live.wait_idle()
        runner = JobRunner(service, queue, ScheduleStore(service.runtime.database), max_attempts=1)
        assert await runner.attempt(background.id, 0) == "done"
        expected = ["background?", "1", "scheduled?", "2", "foreground?", "3"]
        assert await spoken(live) == expected


@run
async def test_other_sessions_and_summaries_stay_in_the_queue(tmp_path: Path) -> None:
    async with opened(tmp_path, Scripted("1", "2")) as service:
        live = await service.tenant("default").ensure("demo")
        queue = JobQueue(service.runtime.database)
        await queue.add(job("elsewhere", session="other"))
        await queue.add(Job(tenant="default", session="demo", key="prepare", kind="prepare", at=0.0))
        await (await live.submit("foreground?")).outcome()
        assert await spoken(live) == ["foreground?", "1"]


@run
async def test_messages_and_jobs_count_once_until_they_are_answered(tmp_path: Path) -> None:
    provider = GatedProvider("1", "2", "3")
    async with opened(tmp_path, provider) as service:
        inbox, queue = service.runtime.inbox, JobQueue(service.runtime.database)
        assert await inbox.unanswered() == UnansweredMessages(0, None)
        live = await service.tenant("default").ensure("demo")
        await queue.add(job("background", at=400.0))
        await queue.add(job("elsewhere", at=300.0, session="other"))
        await queue.add(Job(tenant="default", session="demo", key="prepare", kind="prepare", at=0.0))
        assert await inbox.unanswered() == UnansweredMessages(2, 300.0)
        turn = await live.submit("foreground?")
        assert await inbox.unanswered() == UnansweredMessages(3, 300.0)
        provider.gate.set()
        await turn.outcome()
        await live.wait_idle()
        assert (await inbox.unanswered()).number == 2  # the worker has not ended the job that was answered


@run
async def test_a_start_with_many_unanswered_sessions_resumes_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foveal.server.service.MAX_RECOVERING", 2)
    monkeypatch.setattr("foveal.server.service.BACKLOG_INTERVAL_S", 0.01)
    provider = GatedProvider(*["answered"] * 8)
    async with opened(tmp_path, provider) as service:
        inbox, tenant = service.runtime.inbox, service.tenant("default")
        for number in range(8):
            await tenant.ensure(f"s{number}")
            await inbox.put("default", f"s{number}", key="k", message=UserSaid(content="hello?"), now=0.0)
        assert await service.recover() == 2
        assert sum(live.is_busy for live in service.live_sessions) == 2
        provider.gate.set()
        while (await inbox.unanswered()).number:
            await asyncio.sleep(0.01)
            await service.recover()
        assert [await spoken(await tenant.session(f"s{number}")) for number in range(8)] == [
            ["hello?", "answered"]
        ] * 8
