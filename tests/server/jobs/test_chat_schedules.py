"""Schedules of chats: they follow their chat to its next session."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from foveal.config import load
from foveal.core.log import UserSaid, text_of
from foveal.server import ChatPlace, Chats, Pairing, Service
from foveal.server.gateways.chat_sessions import ChatSessions, PendingAnswer
from foveal.server.gateways.incoming import IncomingMessage
from foveal.server.jobs import JobWorker
from foveal.server.jobs.queue import JobQueue
from foveal.server.jobs.schedule_store import Schedule, ScheduleStore
from foveal.server.jobs.worker import WorkerTiming
from foveal.server.live_session import LiveSession
from foveal.server.pairing import ChatPlatform
from foveal.server.turns import Turn
from foveal.testing import Scripted
from support.effort import rest_in_soak
from support.prompt_dbos import shorten_pauses
from support.provided import provided
from support.service_databases import open_database

NOON = 1_772_452_800.0
"""2026-03-02T12:00:00Z."""
PLACES: list[tuple[ChatPlatform, ChatPlace]] = [
    ("telegram", ChatPlace(42)),
    ("telegram", ChatPlace(-100, 7)),
    ("telegram", ChatPlace(-100)),
    ("discord", ChatPlace(5_001)),
]


def daily(session: str, tenant: str) -> Schedule:
    return Schedule(name="daily", session=session, cron="0 9 * * *", prompt="The news?", tenant=tenant)


@pytest.mark.parametrize(("platform", "chat"), PLACES)
def test_a_due_run_is_for_the_session_that_the_chat_is_in(
    place: Path | str, platform: ChatPlatform, chat: ChatPlace
) -> None:
    async def check() -> None:
        async with open_database(place) as database:
            chats, store, jobs = Chats(database), ScheduleStore(database), JobQueue(database)
            first = await chats.session(platform, chat)
            await store.create(daily(first, platform), now=NOON)
            second = await chats.start_next_session(platform, chat, session=first)
            await store.queue_due_runs(now=NOON + 86_400)
            assert [job.session for job in await jobs.untaken()] == [second]
            await chats.start_next_session(platform, chat, session=second)
            await store.queue_run_now(platform, "daily", now=NOON)
            assert [job.session for job in await jobs.untaken()] == [second, f"{first}-3"]

    asyncio.run(check())


def test_schedules_of_other_sessions_stay_in_their_session(place: Path | str) -> None:
    async def check() -> None:
        async with open_database(place) as database:
            chats, store, jobs = Chats(database), ScheduleStore(database), JobQueue(database)
            await chats.start_next_session("telegram", ChatPlace(42), session="telegram-42")
            for session, tenant in (
                ("news", "telegram"),
                ("acme-42-7", "acme"),
                ("telegram-9-4", "telegram"),
            ):
                await store.create(daily(session, tenant), now=NOON)
                await store.queue_run_now(tenant, "daily", now=NOON)
                await store.delete(tenant, "daily")
            assert sorted(job.session for job in await jobs.untaken()) == [
                "acme-42-7",
                "news",
                "telegram-9-4",
            ]

    asyncio.run(check())


@pytest.mark.parametrize("chat", rest_in_soak([ChatPlace(-100, 7), ChatPlace(42)]))
def test_after_new_the_answer_and_replies_to_it_share_a_session(tmp_path: Path, chat: ChatPlace) -> None:
    shorten_pauses()

    async def check() -> None:
        config = load(tmp_path, flags={}, environ={}, user_folder=tmp_path / "no-config")
        provider = Scripted("Hello.", "Rain.", "Yes, rain.")
        async with Service.open(
            config, folder=tmp_path / "served", environment={}, make_provider=provided(provider)
        ) as service:
            pairing = Pairing(service.runtime.database)
            chats = ChatSessions(service, pairing, platform="telegram", allowed=frozenset({42}), footer=False)
            answers: asyncio.Queue[PendingAnswer] = asyncio.Queue()

            async def ended(live: LiveSession, turn: Turn) -> None:
                if (answer := await chats.unrequested_answer(live, turn)) is not None:
                    answers.put_nowait(answer)

            service.tenant("telegram").add_turn_listener(ended)

            async def say(key: str, text: str) -> list[str]:
                message = IncomingMessage(key=f"telegram-{key}", place=chat, user=42, text=text)
                return [reply.text async for reply in (await chats.accept(message)).replies]

            await say("1", "Hello.")
            first = await Chats(service.runtime.database).session("telegram", chat)
            async with JobWorker.open(service, timing=WorkerTiming(poll_s=0.05, engine_poll_s=0.05)) as work:
                now = service.runtime.clock()
                await work.schedules.create(daily(first, "telegram"), now=now)
                await say("2", "/new")
                await work.schedules.queue_run_now("telegram", "daily", now=now)
                answer = await asyncio.wait_for(answers.get(), 60)
            message = answer.message
            assert message is not None
            assert (message.place, message.session) == (chat, f"{first}-2")
            assert [reply.text async for reply in answer.replies] == ["⏰ `daily`\n\nRain."]
            assert await say("3", "Really?") == ["Yes, rain."]
            live = await service.tenant("telegram").session(f"{first}-2")
            facts = [event.fact for event in await live.events()]
            asked = [text_of(fact.content) for fact in facts if isinstance(fact, UserSaid)]
            assert asked == ["The news?", "Really?"]

    asyncio.run(check())
