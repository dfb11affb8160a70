"""Notices of the bots: with one reply, once a day, also after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

from foveal.config import load
from foveal.core.log import Instructed
from foveal.server import ChatPlace, Chats, Pairing, Service
from foveal.server.chat_records import CHAT_MESSAGE_TTL_S
from foveal.server.gateways.chat_sessions import ChatSessions
from foveal.server.gateways.incoming import IncomingMessage
from foveal.server.gateways.model_text import NOTICE_INTERVAL_S, with_notices
from foveal.server.gateways.outgoing import ChannelMessage
from foveal.server.tenants import CHAT_SYSTEM_PROMPT, DEFAULT_SYSTEM_PROMPT
from foveal.testing import Scripted
from support.gated_provider import run
from support.provided import provided

PLACE = ChatPlace(42)


@run
async def test_a_notice_comes_with_the_last_reply_only() -> None:
    async def replies() -> AsyncGenerator[ChannelMessage, None]:
        yield ChannelMessage(text="⚠️ The next request needs more.", is_last=False)
        yield ChannelMessage(text="Here it is.", footer="🟢 Context")

    found = [(reply.text, reply.footer) async for reply in with_notices(replies(), ["📎 Cut."])]
    assert found == [("⚠️ The next request needs more.", ""), ("Here it is.", "📎 Cut.\n🟢 Context")]


def test_an_explanation_is_not_repeated_after_a_restart(tmp_path: Path) -> None:
    async def ask(number: int) -> str:
        config = load(tmp_path, flags={}, environ={}, user_folder=tmp_path / "no-config")
        async with Service.open(
            config, folder=tmp_path / "served", environment={}, make_provider=provided(Scripted("An answer."))
        ) as service:
            pairing = Pairing(service.runtime.database)
            chats = ChatSessions(service, pairing, platform="telegram", allowed=[42], footer=False)
            message = IncomingMessage(
                key=f"telegram-{number}", place=PLACE, user=42, text="Hello.", unread=("stickers",)
            )
            (reply,) = [reply async for reply in (await chats.accept(message)).replies]
            return reply.footer

    assert asyncio.run(ask(1)) == "I do not read stickers. I read text and text files."
    assert asyncio.run(ask(2)) == ""


@run
async def test_a_notice_is_due_again_after_its_interval_and_when_it_is_forgotten(tmp_path: Path) -> None:
    config = load(tmp_path, flags={}, environ={}, user_folder=tmp_path / "no-config")
    async with Service.open(config, folder=tmp_path / "served", environment={}) as service:
        chats = Chats(service.runtime.database)

        async def untold(now: float, *notices: str) -> list[str]:
            return await chats.untold_notices(
                "telegram", PLACE, notices, now=now, interval_s=NOTICE_INTERVAL_S
            )

        assert await untold(1.0, "a", "b", "a") == ["a", "b"]
        assert await untold(2.0, "b", "c") == ["c"]
        assert await untold(1.0 + NOTICE_INTERVAL_S, "a", "c") == ["a"]
        await chats.forget_notice("telegram", PLACE, "b")
        assert await untold(3.0, "b") == ["b"]
        await chats.mark_done("telegram", "none", now=2.0 + NOTICE_INTERVAL_S + CHAT_MESSAGE_TTL_S)
        rows = await service.runtime.database.read(lambda db: db.fetch("SELECT notice FROM chat_notices"))
        assert rows == []


@run
async def test_a_session_of_a_chat_explains_the_lines_of_the_bot_whatever_creates_it(tmp_path: Path) -> None:
    config = load(tmp_path, flags={}, environ={}, user_folder=tmp_path / "no-config")
    async with Service.open(
        config, folder=tmp_path / "served", environment={}, make_provider=provided(Scripted())
    ) as service:
        prompts = []
        for tenant, session in (
            ("telegram", "telegram-42"),
            ("telegram", "notes"),
            ("default", "telegram-42"),
        ):
            live = await service.tenant(tenant).ensure(session, title="a schedule")
            prompts += [e.fact.content for e in await live.events() if isinstance(e.fact, Instructed)]
        assert prompts == [CHAT_SYSTEM_PROMPT, DEFAULT_SYSTEM_PROMPT, DEFAULT_SYSTEM_PROMPT]
