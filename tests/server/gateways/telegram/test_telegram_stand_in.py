"""The stand-in of the Bot API behaves as Telegram documents; the client is the real library."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from telegram import Bot as TelegramClient
from telegram import Message, MessageEntity, ReplyParameters, Update
from telegram.error import BadRequest, Conflict, InvalidToken, NetworkError, RetryAfter, TimedOut
from telegram.request import HTTPXRequest

from support.gated_provider import run
from support.telegram_stand_in import (
    CHAT_BURST,
    GROUP_MESSAGES_PER_MINUTE,
    MAX_ENTITIES,
    NAME,
    TOKEN,
    BotApi,
    Fault,
    Hang,
    Json,
    LostReply,
    OutageKind,
)
from support.telegram_users import GENERAL, external_reply, origin, units
from support.waiting import DEADLINE_S

USER = 42
GROUP = -100
PLANS = 7


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("PTB_TIMEDELTA", "1")  # without it the library warns


@asynccontextmanager
async def connected(**options: Any) -> AsyncIterator[tuple[BotApi, TelegramClient]]:
    async with BotApi(**options) as api:
        polling, sending = HTTPXRequest(read_timeout=DEADLINE_S), HTTPXRequest(read_timeout=DEADLINE_S)
        client = TelegramClient(
            TOKEN,
            base_url=f"{api.url}/bot",
            base_file_url=f"{api.url}/file/bot",
            request=sending,
            get_updates_request=polling,
        )
        async with client:
            yield api, client


def received(update: Json) -> Message:
    """Return the message of an update as the library reads it."""
    message = Update.de_json(update, None).effective_message
    assert message is not None
    return message


# ── what users send ──────────────────────────────────────────────────────────────────────────────────────


@run
async def test_a_message_of_a_topic_replies_to_the_creation_of_the_topic() -> None:
    async with BotApi() as api:
        message = received(api.hear("Hello", user=USER, chat=GROUP, topic=PLANS))
        assert (message.message_thread_id, message.is_topic_message, message.chat.is_forum) == (
            PLANS,
            True,
            True,
        )
        assert message.reply_to_message is not None
        assert message.reply_to_message.forum_topic_created is not None


@run
async def test_the_topic_general_is_not_named_and_a_reply_in_it_has_a_thread_that_is_no_topic() -> None:
    async with BotApi() as api:
        first = api.hear("Hello", user=USER, chat=GROUP, topic=GENERAL)
        message = received(first)
        assert (message.message_thread_id, message.is_topic_message, message.chat.is_forum) == (
            None,
            None,
            True,
        )
        reply = received(api.hear("Yes", user=8, chat=GROUP, topic=GENERAL, reply_to=first))
        assert (reply.message_thread_id, reply.is_topic_message) == (message.message_id, None)


@run
async def test_members_of_a_group_have_names() -> None:
    async with BotApi() as api:
        api.names[8] = "Ada"
        message = received(api.hear("Hello", user=8, chat=GROUP))
        assert message.from_user is not None
        assert (message.from_user.id, message.from_user.first_name) == (8, "Ada")


@run
async def test_a_reply_contains_the_answered_message_and_the_quote() -> None:
    async with BotApi() as api:
        first = api.hear("😀 one two", user=8, chat=GROUP)
        reply = received(api.hear("Why?", user=USER, chat=GROUP, reply_to=first, quote="two"))
        assert reply.reply_to_message is not None
        assert reply.reply_to_message.text == "😀 one two"
        assert reply.quote is not None
        assert (reply.quote.text, reply.quote.position) == ("two", units("😀 one "))
        elsewhere = received(api.hear("And this?", user=USER, **external_reply("from afar")))
        assert elsewhere.external_reply is not None
        assert elsewhere.quote is not None
        assert elsewhere.quote.text == "from afar"


@pytest.mark.parametrize("kind", ["user", "hidden_user", "chat", "channel"])
@run
async def test_a_forwarded_message_has_an_origin(kind: str) -> None:
    async with BotApi() as api:
        message = received(api.hear("News", user=USER, forward=origin(kind)))
        assert message.forward_origin is not None
        assert message.forward_origin.type == kind


@run
async def test_an_album_is_several_messages_with_one_name_and_date() -> None:
    async with BotApi() as api:
        sent = [
            api.hear(text, user=USER, album="a", **api.photo(b"png" * 99)) for text in (f"@{NAME} look", None)
        ]
        first, second = map(received, sent)
        assert (first.media_group_id, first.date) == (second.media_group_id, second.date)
        assert (first.text, first.caption, second.caption) == (None, f"@{NAME} look", None)
        assert [entity.type for entity in first.caption_entities] == [MessageEntity.MENTION]
        sizes = [photo.width for photo in first.photo]
        assert len(sizes) == 3
        assert sizes == sorted(sizes)


@run
async def test_a_long_text_is_split_at_utf_16_units_into_messages_of_one_moment() -> None:
    async with BotApi() as api:
        text = "a" + "😀" * 4_100
        pasted = [received(update) for update in api.paste(text, user=USER)]
        assert "".join(message.text or "" for message in pasted) == text
        assert [units(message.text or "") for message in pasted] == [4_095, 4_096, 10]
        assert len({message.date for message in pasted}) == 1
        ids = [message.message_id for message in pasted]
        assert ids == list(range(ids[0], ids[0] + 3))
        assert received(api.hear("More", user=USER)).date > pasted[0].date


@run
async def test_other_messages_are_read_by_the_library() -> None:
    async with BotApi() as api:
        assert received(api.hear(None, user=USER, **api.voice())).voice is not None
        assert received(api.hear(None, user=USER, **api.sticker())).sticker is not None
        place = api.hear(None, user=USER, **api.location(live_s=900))
        moved = api.move(place, 1.0, 2.0)
        assert "edited_message" in moved
        location = received(moved).location
        assert location is not None
        assert (location.latitude, location.longitude, location.live_period) == (
            1.0,
            2.0,
            timedelta(seconds=900),
        )
        edited = received(api.edit(api.hear("Hello", user=USER), f"@{NAME} hullo"))
        assert (edited.text, edited.edit_date is None) == (f"@{NAME} hullo", False)


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────


@run
async def test_a_file_can_be_downloaded_up_to_20_megabytes() -> None:
    async with connected() as (api, client):
        small = received(api.hear("Read", user=USER, **api.document("a.txt", b"text"))).document
        large = received(api.hear("Read", user=USER, **api.document("b.bin", b"", size=20_000_001))).document
        assert small is not None
        assert large is not None
        file = await client.get_file(small.file_id)
        assert bytes(await file.download_as_bytearray()) == b"text"
        with pytest.raises(BadRequest, match="ile is too big"):
            await client.get_file(large.file_id)


# ── updates ──────────────────────────────────────────────────────────────────────────────────────────────


@run
async def test_updates_are_repeated_until_a_later_offset_and_their_ids_have_gaps() -> None:
    async with connected() as (api, client):
        for text in ("One", "Two", "Three"):
            api.hear(text, user=USER)
        first = [update.update_id for update in await client.get_updates()]
        assert first == [update.update_id for update in await client.get_updates()]
        assert first[1] > first[0] + 1
        assert [u.update_id for u in await client.get_updates(offset=first[1])] == first[1:]
        assert [u.update_id for u in await client.get_updates(offset=-1)] == first[2:]
        assert await client.get_updates(offset=first[2] + 1) == ()


@run
async def test_updates_of_other_kinds_are_not_kept() -> None:
    async with connected() as (api, client):
        await client.get_updates(allowed_updates=["message"])
        update = api.hear("One", user=USER)
        api.edit(update, "Two")
        assert [u.update_id for u in await client.get_updates()] == [update["update_id"]]


@run
async def test_a_second_reader_ends_the_request_of_the_first() -> None:
    async with connected() as (api, client):
        first = asyncio.create_task(client.get_updates(timeout=50))
        await api.until(lambda: len(api.asked) == 1)
        api.hear("One", user=USER)
        api.updates.clear()
        second = asyncio.create_task(client.get_updates(timeout=50))
        with pytest.raises(Conflict, match="terminated by other getUpdates"):
            await first
        second.cancel()


@run
async def test_a_webhook_must_be_deleted_before_updates_are_read() -> None:
    async with connected() as (api, client):
        api.webhook = "https://bot.example/hook"
        assert (await client.get_webhook_info()).url == api.webhook
        with pytest.raises(Conflict, match="webhook is active"):
            await client.get_updates()
        await client.delete_webhook()
        assert await client.get_updates() == ()


# ── what the bot sends ───────────────────────────────────────────────────────────────────────────────────


@run
async def test_closed_and_missing_topics_are_refused() -> None:
    async with connected() as (api, client):
        api.open_topic(GROUP, PLANS)
        sent = await client.send_message(GROUP, "Hello", message_thread_id=PLANS)
        assert (sent.message_thread_id, sent.is_topic_message) == (PLANS, True)
        for missing in (8, GENERAL):
            with pytest.raises(BadRequest, match="essage thread not found"):
                await client.send_message(GROUP, "Hello", message_thread_id=missing)
        api.close_topic(GROUP, PLANS)
        with pytest.raises(BadRequest, match=r"(?i)topic_closed"):
            await client.send_message(GROUP, "Hello", message_thread_id=PLANS)
        api.delete_topic(GROUP, PLANS)
        with pytest.raises(BadRequest, match="essage thread not found"):
            await client.send_message(GROUP, "Hello", message_thread_id=PLANS)


@run
async def test_a_reply_goes_to_the_topic_of_the_answered_message() -> None:
    async with connected() as (api, client):
        asked = received(api.hear("Hello", user=USER, chat=GROUP, topic=PLANS))
        sent = await client.send_message(GROUP, "Hi", reply_parameters=ReplyParameters(asked.message_id))
        assert sent.message_thread_id == PLANS
        with pytest.raises(BadRequest, match="essage to be replied not found"):
            await client.send_message(GROUP, "Hi", reply_parameters=ReplyParameters(1))


@run
async def test_lengths_are_utf_16_units_and_only_a_hundred_entities_count() -> None:
    async with connected() as (api, client):
        entities = [MessageEntity("bold", place, 1) for place in range(MAX_ENTITIES + 1)]
        await client.send_message(USER, "😀" * 2_048, entities=entities)
        assert len(api.messages[0]["entities"]) == MAX_ENTITIES
        with pytest.raises(BadRequest, match="too long"):
            await client.send_message(USER, "😀" * 2_048 + "a")


@run
async def test_an_expired_callback_query_is_refused() -> None:
    async with connected() as (api, client):
        fresh = api.press("x", user=USER, message=None)["callback_query"]
        old = api.press("x", user=USER, message=None, expired=True)["callback_query"]
        assert await client.answer_callback_query(fresh["id"])
        with pytest.raises(BadRequest, match="uery is too old"):
            await client.answer_callback_query(old["id"])


@run
async def test_messages_that_follow_too_fast_get_429() -> None:
    async with connected(rate_limited=True) as (api, client):
        for _ in range(CHAT_BURST):
            await client.send_message(USER, "Hello")
        with pytest.raises(RetryAfter):
            await client.send_message(USER, "Hello")
        await client.send_message(USER + 1, "Hello")
        now = asyncio.get_running_loop().time()
        api._sent_at[GROUP] = [now - 50] * GROUP_MESSAGES_PER_MINUTE
        with pytest.raises(RetryAfter) as refused:
            await client.send_message(GROUP, "Hello")
        assert refused.value.retry_after == timedelta(seconds=10)


# ── failures ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("kind", "error", "accepted"),
    [
        ("refused", NetworkError, 0),
        ("hang", TimedOut, 0),
        ("bad gateway", NetworkError, 0),
        ("unauthorised", InvalidToken, 0),
        ("rate limit", RetryAfter, 0),
        ("lost replies", NetworkError, 1),
    ],
)
@run
async def test_during_an_outage_all_calls_fail(
    kind: OutageKind, error: type[Exception], accepted: int
) -> None:
    async with connected() as (api, client):
        waiting = asyncio.create_task(client.get_updates(timeout=50))
        await api.until(lambda: len(api.asked) == 1)
        async with api.outage(kind):
            with pytest.raises(error):
                await client.send_message(USER, "Hello", read_timeout=0.5 if kind == "hang" else None)
        with pytest.raises((NetworkError, InvalidToken, RetryAfter)):
            await waiting
        assert len(api.messages) == len(api.lost_replies) == accepted
        await client.send_message(USER, "Hello")
        assert len(api.messages) == accepted + 1


@run
async def test_single_calls_fail_as_planned() -> None:
    async with connected() as (api, client):
        api.fail("sendMessage", Hang(), LostReply(), Fault(502, "Bad Gateway"))
        for error, read_timeout in ((TimedOut, 0.5), (NetworkError, None), (NetworkError, None)):
            with pytest.raises(error):
                await client.send_message(USER, "Hello", read_timeout=read_timeout)
        sent = await client.send_message(USER, "Hello")
        assert [message["message_id"] for message in api.messages] == [*api.lost_replies, sent.message_id]
