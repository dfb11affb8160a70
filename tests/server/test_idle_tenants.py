"""Tenants and sessions that are not used are closed, and opened again when they are."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from foveal.config import load
from foveal.core.log import ModelSaid, Noted, UserSaid, text_of
from foveal.server import LiveSession, Service
from foveal.server.recently_used import RecentlyUsed
from foveal.testing import Scripted
from support.gated_provider import GatedProvider, run
from support.provided import provided
from support.waiting import until

TENANTS = 4
"""How many are used meanwhile: more than stay open."""
MANY_TENANTS = 12


@pytest.fixture(autouse=True)
def few_stay_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foveal.server.service.MAX_IDLE_TENANTS", 2)
    monkeypatch.setattr("foveal.server.runtime.MAX_IDLE_SESSIONS", 2)
    monkeypatch.setattr("foveal.stores.sqlite.store_files.MAX_IDLE_FILES", 2)


@asynccontextmanager
async def opened(tmp_path: Path, provider: Any) -> AsyncIterator[Service]:
    config = load(tmp_path, environ={}, user_folder=tmp_path / "empty")
    async with Service.open(
        config, folder=tmp_path / "served", environment={}, make_provider=provided(provider)
    ) as service:
        yield service


async def use_others(service: Service, *, count: int = TENANTS) -> None:
    for number in range(count):
        await service.tenant(f"other-{number}").ensure("demo")


async def spoken(live: LiveSession) -> list[str]:
    facts = (event.fact for event in await live.events())
    return [text_of(fact.content) for fact in facts if isinstance(fact, UserSaid | ModelSaid)]


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.long
@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="the system has no /proc")
@run
async def test_tenants_that_were_used_once_keep_neither_threads_nor_descriptors(tmp_path: Path) -> None:
    async with opened(tmp_path, Scripted()) as service:
        await use_others(service, count=MANY_TENANTS)
        await asyncio.sleep(0.1)  # connections are closed in the background
        threads, files = threading.active_count(), open_files()
        for _ in range(3):
            await use_others(service, count=MANY_TENANTS)
        gc.collect()
        await until(
            lambda: threading.active_count() <= threads + 8
        )  # connections are closed in the background
        await until(lambda: open_files() <= files + 8)
        assert len(service._tenants) <= 4
        assert len(service.live_sessions) <= 4


@run
async def test_a_session_is_continued_after_it_was_closed(tmp_path: Path) -> None:
    async with opened(tmp_path, Scripted("First.", "Second.")) as service:
        turn = await (await service.tenant("default").ensure("demo")).submit("One?")
        await turn.outcome()
        await use_others(service)
        gc.collect()
        assert "default" not in service._tenants
        live = await service.tenant("default").session("demo")
        await (await live.submit("Two?")).outcome()
        assert await spoken(live) == ["One?", "First.", "Two?", "Second."]


@run
async def test_a_session_whose_turn_runs_is_not_closed(tmp_path: Path) -> None:
    provider = GatedProvider("Done.")
    async with opened(tmp_path, provider) as service:
        turn = await (await service.tenant("default").ensure("demo")).submit("Work.")
        await use_others(service)
        gc.collect()
        live = await service.tenant("default").session("demo")
        assert live.turn(turn.id) is turn
        provider.gate.set()
        assert (await turn.outcome()).text == "Done."


@run
async def test_a_tenant_that_is_used_elsewhere_stays_the_same(tmp_path: Path) -> None:
    ended: list[str] = []

    async def listener(live: LiveSession, turn: Any) -> None:
        ended.append(live.id)

    async with opened(tmp_path, Scripted("Hello.")) as service:
        tenant = service.tenant("telegram")
        tenant.add_turn_listener(listener)
        await use_others(service)
        gc.collect()
        assert service.tenant("telegram") is tenant
        live = await service.tenant("telegram").ensure("chat")
        await (await live.submit("Hi.")).outcome()
        await live.wait_idle()
        assert ended == ["chat"]


@run
async def test_a_kept_session_sees_what_was_written_while_its_file_was_closed(tmp_path: Path) -> None:
    async with opened(tmp_path, Scripted()) as service:
        tenant = service.tenant("default")
        live = await tenant.ensure("demo")
        await live.append(Noted(text="own"))
        await use_others(service)
        async with opened(tmp_path, Scripted()) as other:
            await (await other.tenant("default").session("demo")).append(Noted(text="of another process"))
        await live.append(Noted(text="own again"))
        notes = [event.fact.text for event in await live.events() if isinstance(event.fact, Noted)]
        assert notes == ["own", "of another process", "own again"]


def test_the_least_recently_used_value_that_is_not_busy_leaves() -> None:
    busy = {"a"}
    used = RecentlyUsed[str, str](2, is_busy=busy.__contains__)
    assert [used.add(name, name) for name in "abcb"] == [[], [], ["b"], ["c"]]
    assert used.values() == ["a", "b"]
    assert used.get("a") == "a"
    busy.clear()
    assert used.remove_oldest() == ["b"]
    assert used.add("d", "d") == []
    used.discard("a")
    assert (used.values(), len(used), used.get("a")) == (["d"], 1, None)
