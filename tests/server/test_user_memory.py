"""The memory of a session's user in the service: searched by the model, heard once, and copied with a fork."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from foveal.config import load
from foveal.core.log.events import ToolReturned, UserSaid, text_of
from foveal.server import LiveSession, Service
from foveal.server.inbox import SessionSetup
from foveal.testing import Scripted
from support.gated_provider import run
from support.provided import provided


@asynccontextmanager
async def opened(folder: Path, *answers: Any) -> AsyncIterator[tuple[Service, Scripted]]:
    provider = Scripted(*answers)
    config = load(folder, environ={}, user_folder=folder / "none")
    async with Service.open(
        config, folder=folder / "served", environment={}, make_provider=provided(provider)
    ) as service:
        yield service, provider


async def ask(live: LiveSession, text: str) -> None:
    assert (await (await live.submit(text)).outcome()).why == "answered"


@run
async def test_the_search_of_the_model_covers_the_users_memory_and_no_other(tmp_path: Path) -> None:
    answers = [f"The answer to question {n} is {n * 7}. " * 40 for n in range(8)]
    search = [("recall_search", {"query": "staging port"})]
    async with opened(tmp_path, *answers, *["No summary."] * 3, search, "Found.") as (service, _):
        tenant = service.tenant("default")
        await tenant.memory("ada").remember("The staging port is 8081.")
        await tenant.memory("bob").remember("The staging port is 9999.")
        live = await tenant.create("demo", SessionSetup(user="ada"))
        for n in range(8):
            await ask(live, f"Question {n}?")
        await live.compact()
        await ask(live, "Where is it?")
        results = [text_of(e.fact.content) for e in await live.events() if isinstance(e.fact, ToolReturned)]
    assert len(results) == 1
    assert "[memory m0" in results[0]
    assert "8081" in results[0]
    assert "9999" not in results[0]


@run
async def test_a_fork_belongs_to_the_same_user(tmp_path: Path) -> None:
    async with opened(tmp_path, "One.", "Two.") as (service, provider):
        tenant = service.tenant("default")
        live = await tenant.create("demo", SessionSetup(user="ada"))
        await ask(live, "Remember that I like tea.")
        fork = await tenant.fork("demo", "other")
        assert fork.user == "ada"
        await ask(fork, "Hello.")
        assert "- [m0] I like tea." in str(provider.requests[-1].to_openai())


@run
async def test_a_session_shows_its_users_memory_before_the_first_turn_after_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path, "One.") as (service, _):
        await ask(
            await service.tenant("default").create("demo", SessionSetup(user="ada")),
            "Remember that I like tea.",
        )
    async with opened(tmp_path, "Two.") as (service, _):
        live = await service.tenant("default").session("demo")
        assert "- [m0] I like tea." in str((await live.session.fit()).to_openai())


@run
async def test_messages_that_are_only_stored_are_not_heard(tmp_path: Path) -> None:
    async with opened(tmp_path, "One.") as (service, _):
        tenant = service.tenant("default")
        live = await tenant.create("demo", SessionSetup(user="ada"))
        await live.append(UserSaid(content="Remember that I like tea."))
        assert await tenant.memory("ada").entries() == []


@run
async def test_requests_of_a_user_without_entries_are_the_same_as_without_a_memory(tmp_path: Path) -> None:
    async with opened(tmp_path, "One.", "One.") as (service, provider):
        tenant = service.tenant("default")
        await ask(await tenant.create("with", SessionSetup(user="ada")), "Hello.")
        await ask(await tenant.create("without"), "Hello.")
        one, other = provider.requests
        assert one.to_openai() == other.to_openai()
