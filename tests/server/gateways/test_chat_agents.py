"""Which agent of the configuration answers in a chat: the key of the bot, and `/new NAME`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from foveal.config import BadConfig, Config, load
from foveal.server import ChatPlace, Pairing, Service
from foveal.server.gateways import texts
from foveal.server.gateways.chat_sessions import ChatSessions
from foveal.server.gateways.incoming import IncomingMessage
from foveal.testing import Scripted
from support.gated_provider import run

CONFIG = """
prompt = "For all."
telegram.agent = "writer"
[agents.writer]
prompt = "Write."
[agents.reviewer]
prompt = "Review."
window = 20000
"""


@asynccontextmanager
async def opened(folder: Path, text: str = CONFIG) -> AsyncIterator[Service]:
    (folder / "foveal.toml").write_text(text)
    config = load(folder, environ={}, user_folder=folder, project=False)

    def speaking(config: Config, _: str | None, **__: Any) -> Scripted:
        agent = {"For all.": "", "Write.": "writer", "Review.": "reviewer"}[config.get("prompt")]
        return Scripted(*(f"{agent} {n}" for n in range(9)))

    async with Service.open(
        config, folder=folder / "served", environment={}, make_provider=speaking
    ) as service:
        yield service


def chats_of(service: Service, platform: str = "telegram") -> ChatSessions:
    pairing = Pairing(service.runtime.database)
    return ChatSessions(service, pairing, platform=platform, allowed=frozenset({42}), footer=False)


class User:
    def __init__(self, service: Service, platform: str = "telegram") -> None:
        self.chats = chats_of(service, platform)
        self.count = 0

    async def says(self, text: str) -> str:
        """Send a text and return the only reply."""
        self.count += 1
        message = IncomingMessage(key=f"k{self.count}", place=ChatPlace(42), user=42, text=text)
        (reply,) = [reply async for reply in (await self.chats.accept(message)).replies]
        return reply.text


@run
async def test_new_sessions_of_a_bot_have_its_agent(tmp_path: Path) -> None:
    async with opened(tmp_path) as service:
        assert await User(service).says("Hello.") == "writer 0"
        live = await service.tenant("telegram").session("telegram-42")
        assert live.agent_name == "writer"
        assert (await live.events())[1].fact.content.endswith("Write.")  # type: ignore[union-attr]
        assert await User(service, "discord").says("Hello.") == "0"


@run
async def test_a_conversation_keeps_its_agent_when_the_bot_gets_another(tmp_path: Path) -> None:
    async with opened(tmp_path) as service:
        await User(service).says("Hello.")
    async with opened(tmp_path, CONFIG.replace('agent = "writer"', 'agent = "reviewer"')) as service:
        user = User(service)
        user.count = 1
        assert await user.says("And now?") == "writer 0"
        await user.says("/new")
        assert await user.says("Hello.") == "reviewer 0"


@run
async def test_new_chooses_an_agent_for_one_conversation(tmp_path: Path) -> None:
    async with opened(tmp_path) as service:
        user = User(service)
        assert await user.says("/new reviewer") == texts.new_session(agent="reviewer")
        assert await user.says("Hello.") == "reviewer 0"
        assert await user.says("/new") == texts.NEW_SESSION
        assert await user.says("Hello.") == "writer 0"
        assert await user.says("/new record reviewer") == texts.new_session(carry="record", agent="reviewer")
        live = await service.tenant("telegram").session("telegram-42-3")
        assert (live.agent_name, (await live.report()).window) == ("reviewer", 20_000)


@run
async def test_new_names_the_agents_if_it_does_not_know_a_word(tmp_path: Path) -> None:
    async with opened(tmp_path) as service:
        answer = await User(service).says("/new nobody")
        assert answer.endswith("/new NAME chooses an agent: writer, reviewer.")


@run
async def test_a_chat_is_told_that_its_agent_was_removed(tmp_path: Path) -> None:
    async with opened(tmp_path) as service:
        await User(service).says("/new reviewer")
    async with opened(tmp_path, CONFIG.partition("[agents.reviewer]")[0]) as service:
        user = User(service)
        user.count = 1
        assert "the agent 'reviewer', which the configuration no longer has" in await user.says("Hello.")
        assert await user.says("/new") == texts.NEW_SESSION
        assert await user.says("Hello.") == "writer 0"


@pytest.mark.parametrize("line", ["telegram.agent = 'nobody'", "discord.agent = 'nobody'"])
def test_an_unknown_agent_of_a_bot_is_an_error_of_the_configuration(tmp_path: Path, line: str) -> None:
    (tmp_path / "foveal.toml").write_text(f"{line}\n[agents.writer]\nprompt = 'Write.'\n")
    with pytest.raises(BadConfig, match=r"agent = 'nobody' is not allowed: one of writer"):
        load(tmp_path, environ={}, user_folder=tmp_path, project=False)
