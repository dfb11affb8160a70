"""What the chat shows of an answer that was stopped: the text that the session stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from foveal.config import load
from foveal.core.log import ModelSaid, UserSaid, text_of
from foveal.ports import Reply, ReplyPiece
from foveal.server import ChatPlace, Pairing, Service
from foveal.server.gateways import texts
from foveal.server.gateways.chat_sessions import ChatSessions
from foveal.server.gateways.incoming import IncomingMessage
from foveal.testing import Scripted
from support.gated_provider import run
from support.provided import provided

SECRET = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKL"


class Unfinished(Scripted):
    """Streams some pieces and does not end."""

    def __init__(self, *pieces: str) -> None:
        super().__init__()
        self.pieces = pieces
        self.streamed = asyncio.Event()

    async def send(self, request: Any, *, max_tokens: int) -> AsyncIterator[ReplyPiece | Reply]:
        for piece in self.pieces:
            yield ReplyPiece(text=piece)
        self.streamed.set()
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("pieces", "shown", "stored"),
    [
        (("One, two", ", three"), f"One, two, three\n\n{texts.STOPPED}", ["One, two, three"]),
        (("The key is ", SECRET), "The key is [foveal: redacted", ["The key is [foveal: redacted"]),
        ((), texts.STOPPED, []),
    ],
)
def test_a_stopped_answer_is_shown_as_it_was_stored(
    tmp_path: Path, pieces: tuple[str, ...], shown: str, stored: list[str]
) -> None:
    @run
    async def check() -> None:
        provider = Unfinished(*pieces)
        config = load(tmp_path, flags={}, environ={}, user_folder=tmp_path / "no-config")
        async with Service.open(
            config, folder=tmp_path / "served", environment={}, make_provider=provided(provider)
        ) as service:
            chats = chats_of(service)
            answer = (await chats.accept(said("telegram-1", "Count."))).replies
            await provider.streamed.wait()
            await asyncio.sleep(0.05)  # the pieces are read
            stopping = (await chats.accept(said("telegram-2", "/stop"))).replies
            assert [reply.text async for reply in stopping] == ["Stopping."]
            (reply,) = [reply async for reply in answer]
            assert reply.text.startswith(shown)
            assert reply.text.endswith(texts.STOPPED)
            assert SECRET not in reply.text
            live = await service.tenant("telegram").session("telegram-42")
            facts = [event.fact for event in await live.events()]
            assert [
                text_of(fact.content)[: len(stored[0])] for fact in facts if isinstance(fact, ModelSaid)
            ] == stored
            assert [text_of(fact.content) for fact in facts if isinstance(fact, UserSaid)] == ["Count."]

    check()


@run
async def test_a_stopped_answer_is_shown_after_a_crash_too(tmp_path: Path) -> None:
    provider = Unfinished("One, two")
    config = load(tmp_path, flags={}, environ={}, user_folder=tmp_path / "no-config")
    async with Service.open(
        config, folder=tmp_path / "served", environment={}, make_provider=provided(provider)
    ) as service:
        chats = chats_of(service)
        await chats.accept(said("telegram-1", "Count."))  # its answer is not delivered
        await provider.streamed.wait()
        await asyncio.sleep(0.05)
        await chats.accept(said("telegram-2", "/stop"))
        await (await service.tenant("telegram").session("telegram-42")).wait_idle()
    async with Service.open(config, folder=tmp_path / "served", environment={}) as service:
        (late,) = await chats_of(service).undelivered()
        assert [reply.text async for reply in late.replies] == [f"One, two\n\n{texts.STOPPED}"]


def said(key: str, text: str) -> IncomingMessage:
    return IncomingMessage(key=key, place=ChatPlace(42), user=42, text=text)


def chats_of(service: Service) -> ChatSessions:
    pairing = Pairing(service.runtime.database)
    return ChatSessions(service, pairing, platform="telegram", allowed=frozenset({42}), footer=False)
