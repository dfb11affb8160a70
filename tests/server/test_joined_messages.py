"""Messages that are pieces of one message: which ones is decided once and survives a crash."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from foveal.server import ChatMessage, ChatPlace, Chats
from support.service_databases import open_database

PLACE = ChatPlace(42)


def with_chats(place: Path | str, check: Callable[[Chats], Awaitable[None]]) -> None:
    async def run() -> None:
        async with open_database(place) as database:
            await check(Chats(database))

    asyncio.run(run())


async def join(chats: Chats, *keys: str) -> list[str]:
    return await chats.join_pieces("telegram", keys, place=PLACE, now=10.0)


def test_pieces_are_the_same_when_they_arrive_again(place: Path | str) -> None:
    async def check(chats: Chats) -> None:
        assert await join(chats, "a", "b") == ["a", "b"]
        assert await join(chats, "a", "b", "c") == ["a", "b"]  # after a crash before the message was stored
        assert await chats.find_message("telegram", "a") is None
        assert await join(chats, "c", "d") == ["c", "d"]

    with_chats(place, check)


def test_a_piece_alone_is_done_and_the_first_is_the_message(place: Path | str) -> None:
    async def check(chats: Chats) -> None:
        await join(chats, "a", "b")
        first = ChatMessage(key="a", place=PLACE, session="telegram-42", reply_to=5)
        await chats.record_message("telegram", first, now=11.0)
        stored = await chats.find_message("telegram", "a")
        assert stored == ChatMessage(key="a", place=PLACE, session="telegram-42", reply_to=5, at=11.0)
        assert await chats.undelivered("telegram", now=11.0) == [stored]
        second = await chats.find_message("telegram", "b")
        assert second is not None
        assert second.is_done
        assert await join(chats, "a", "b", "c") == ["a", "b"]

    with_chats(place, check)


def test_a_message_that_was_stored_alone_is_not_joined(place: Path | str) -> None:
    async def check(chats: Chats) -> None:
        await chats.record_message("telegram", ChatMessage(key="b", place=PLACE, session="s"), now=1.0)
        assert await join(chats, "a", "b", "c") == ["a", "c"]

    with_chats(place, check)


def test_a_piece_that_does_not_arrive_again_is_a_message_of_its_own(place: Path | str) -> None:
    async def check(chats: Chats) -> None:
        await join(chats, "a", "b", "c")
        assert await join(chats, "a", "b") == ["a", "b"]
        assert await chats.find_message("telegram", "c") is None

    with_chats(place, check)


def test_a_message_that_was_not_stored_keeps_its_pieces(place: Path | str) -> None:
    async def check(chats: Chats) -> None:
        await join(chats, "a", "b")
        await chats.record_message("telegram", ChatMessage(key="a", place=PLACE, session="s"), now=10.0)
        await chats.forget_message("telegram", "a")  # a crash came before it was stored
        assert await chats.find_message("telegram", "a") is None
        assert await join(chats, "a", "b") == ["a", "b"]

    with_chats(place, check)


def test_pieces_are_deleted_with_old_messages(place: Path | str) -> None:
    async def check(chats: Chats) -> None:
        await join(chats, "a", "b")
        await chats.record_message("telegram", ChatMessage(key="a", place=PLACE, session="s"), now=10.0)
        await chats.mark_done("telegram", "a", now=10.0 + 49 * 3600)
        assert await chats.find_message("telegram", "b") is None

    with_chats(place, check)
