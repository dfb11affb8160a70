"""Delivery of answers to Telegram: order, outages, parts, closed topics, refused tokens, webhooks."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from foveal.server import Pairing
from foveal.server.chat_records import CHAT_MESSAGE_TTL_S, Chats
from foveal.server.gateways import texts
from foveal.server.gateways.delivery import (
    CLOSED_NOTICE_INTERVAL_S,
    MIN_ORPHAN_AGE_S,
    REDELIVERY_PAUSES_S,
    SEND_PAUSES_S,
)
from foveal.testing import Scripted
from support.effort import rest_in_soak
from support.gated_provider import GatedProvider, run
from support.telegram_bot import USER, Bot, running_bot, texts_of
from support.telegram_stand_in import NAME, BotApi, Fault, Json
from support.telegram_users import GENERAL
from support.waiting import until

FORUM = -100
ATTEMPTS = len(SEND_PAUSES_S) + 1
LONG_ANSWER = "\n\n".join(f"Part {number}: " + "word " * 700 for number in range(3))


class FailingApi(BotApi):
    """Fails for messages to the chats in `broken`, and for all messages after the first `limit`."""

    def __init__(self) -> None:
        super().__init__()
        self.broken: set[int] = set()
        self.limit: int | None = None

    async def _sendMessage(self, method: str, parameters: Json) -> Json:
        if parameters["chat_id"] in self.broken or self.limit == len(self.messages):
            raise Fault(502, "Bad Gateway")
        return await super()._sendMessage(method, parameters)


async def delivered(bot: Bot) -> None:
    """Wait until every answer is delivered."""
    chats = Chats(bot.service.runtime.database)
    while bot.gateway.health().owed or await chats.undelivered("telegram", now=bot.clock()):
        await asyncio.sleep(0.01)


# ── order and outages ────────────────────────────────────────────────────────────────────────────────────


@run
async def test_after_an_outage_all_answers_arrive_in_order_without_a_restart(tmp_path: Path) -> None:
    provider = GatedProvider("One.", "Two.", "Three.")
    async with running_bot(tmp_path, provider) as bot:
        for text in ("First.", "Second.", "Third."):
            bot.api.hear(text, user=USER)
        await bot.api.taken()
        async with bot.api.outage("refused"):
            provider.gate.set()
            await bot.waited(REDELIVERY_PAUSES_S[-1], times=2)
        assert texts_of(await bot.api.said(3)) == ["One.", "Two.", "Three."]
        await delivered(bot)


@run
async def test_owed_answers_are_sent_when_the_bot_connects_again(tmp_path: Path) -> None:
    api = FailingApi()
    async with api, Bot(tmp_path, api, Scripted("One.", "Two.")) as bot:
        bot.later.clear()
        api.broken = {USER}
        api.hear("First.", user=USER)
        await bot.waited(REDELIVERY_PAUSES_S[0])
        api.hear("Second.", user=USER)
        await bot.waited(REDELIVERY_PAUSES_S[1])
        api.broken = set()
        async with api.outage("bad gateway"):
            await bot.waited(2.0, times=3)
        assert texts_of(await api.said(2)) == ["One.", "Two."]
        await delivered(bot)


@run
async def test_a_page_of_a_proxy_is_not_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running_bot(tmp_path, "One.") as bot:
        async with bot.api.outage("bad gateway"):
            await bot.waited(2.0)
            problem = bot.gateway.connection.problem
        assert problem == "answers with an error (NetworkError: Telegram answers with the status 502)"
    noted = [record for record in caplog.records if record.name.startswith("telegram")]
    assert [record.getMessage() for record in noted] == []


@run
async def test_an_answer_is_sent_again_after_growing_pauses(tmp_path: Path) -> None:
    async with running_bot(tmp_path, "One.") as bot:
        bot.api.fail("sendMessage", *[Fault(502, "Bad Gateway")] * (ATTEMPTS * 8))
        bot.api.hear("Hello.", user=USER)
        assert texts_of(await bot.api.said(1)) == ["One."]
        assert [pause for pause in bot.pauses if pause >= 60] == [*REDELIVERY_PAUSES_S, *[1_800.0] * 2]


@run
async def test_only_the_answers_of_a_place_that_fails_wait(tmp_path: Path) -> None:
    api, provider = FailingApi(), Scripted("One.", "Two.", "Three.")
    async with api, Bot(tmp_path, api, provider, **{"telegram.allowed": [USER, 43]}) as bot:
        bot.later.clear()
        api.broken = {USER}
        api.hear("Hello.", user=USER)
        await bot.waited(REDELIVERY_PAUSES_S[0])
        api.hear("Hello.", user=43)
        assert texts_of(await api.said(1)) == ["Two."]
        api.hear("Are you there?", user=USER)
        await until(lambda: bot.gateway.health().owed == 2)
        api.broken = set()
        bot.later.set()
        assert texts_of(await api.said(3)) == ["Two.", "One.", "Three."]


@run
async def test_the_output_of_a_command_does_not_wait(tmp_path: Path) -> None:
    async with running_bot(tmp_path, "One.") as bot:
        bot.later.clear()
        bot.api.fail("sendMessage", *[Fault(502, "Bad Gateway")] * ATTEMPTS)
        bot.api.hear("Hello.", user=USER)
        await bot.waited(REDELIVERY_PAUSES_S[0])
        bot.api.hear("/tokens", user=USER)
        said = await bot.api.said(2)  # the success of the first message causes the second
        assert [text.startswith("🟢 Context") for text in texts_of(said)] == [True, False]


@run
async def test_what_a_command_changed_is_told_after_the_answer_before_it(tmp_path: Path) -> None:
    provider = GatedProvider(*("One. " + "word " * 300 for _ in range(12)))
    async with running_bot(tmp_path, provider) as bot:
        provider.gate.set()
        for number in range(4):
            bot.api.hear("Tell me more.", user=USER)
            await bot.api.said(number + 1)
        provider.gate.clear()
        for text in ("One more.", "/compact", "/undo", "And another."):
            bot.api.hear(text, user=USER)
        await bot.api.said(6)  # that both commands wait
        provider.gate.set()
        said = [text[:12] for text in texts_of(await bot.api.said(10))[4:]]
        waits = texts.AFTER_ANSWER[:12]
        assert said == [waits, waits, "One. word wo", "🗜 Summarised", "↩️ I took ba", "One. word wo"]


@run
async def test_after_a_restart_owed_answers_come_before_new_ones(tmp_path: Path) -> None:
    api = FailingApi()
    async with api:
        api.limit = 0
        async with Bot(tmp_path, api, Scripted("One.", "Two.")) as bot:
            api.hear("First.", user=USER)
            api.hear("Second.", user=USER)
            await bot.waited(REDELIVERY_PAUSES_S[0])
            await api.taken()
            await until(lambda: bot.gateway.health().owed == 2)
        api.limit = None
        api.hear("Third.", user=USER)
        async with Bot(tmp_path, api, Scripted("Three.")):
            assert texts_of(await api.said(3)) == ["One.", "Two.", "Three."]


@run
async def test_after_two_days_an_answer_is_given_up_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    api = FailingApi()
    async with api, Bot(tmp_path, api, Scripted("One.", "Two.")) as bot:
        bot.later.clear()
        api.limit = 0
        api.hear("Hello.", user=USER)
        await bot.waited(REDELIVERY_PAUSES_S[0])
        bot.seconds_passed = CHAT_MESSAGE_TTL_S + 1
        bot.later.set()
        await until(lambda: bot.gateway.health().given_up)
        api.limit = None
        api.hear("Hello again.", user=USER)
        assert texts_of(await api.said(1)) == ["Two."]
        assert "1 undelivered answers were given up after two days" in caplog.text
        await delivered(bot)


@run
async def test_an_answer_that_another_server_left_is_delivered_after_some_minutes(tmp_path: Path) -> None:
    async with running_bot(tmp_path, "One.") as bot:
        bot.api.hear("Hello.", user=USER)
        await bot.api.said(1)
        await delivered(bot)
        await bot.service.runtime.database.write(
            lambda db: db.execute("UPDATE chat_messages SET state = 'open', parts = 0")
        )
        await bot.gateway._delivery.deliver_all()
        assert bot.gateway.health().owed == 0  # the other server may be sending it
        bot.seconds_passed = MIN_ORPHAN_AGE_S
        await bot.gateway._delivery.deliver_all()
        assert texts_of(await bot.api.said(2)) == ["One.", "One."]


# ── parts and places ─────────────────────────────────────────────────────────────────────────────────────


@run
async def test_a_restart_continues_with_the_part_that_was_not_delivered(tmp_path: Path) -> None:
    api = FailingApi()
    async with api:
        api.limit = 2
        async with Bot(tmp_path, api, Scripted(LONG_ANSWER)) as bot:
            bot.later.clear()
            api.hear("Hello.", user=USER)
            await bot.waited(REDELIVERY_PAUSES_S[0])
        api.limit = None
        async with Bot(tmp_path, api, Scripted()):
            said = await api.said(3)
        assert [text.partition(":")[0] for text in texts_of(said)] == ["Part 0", "Part 1", "Part 2"]


@run
async def test_an_answer_goes_to_the_topic_of_its_message_as_a_reply_after_a_restart(tmp_path: Path) -> None:
    async with BotApi() as api:
        gated = GatedProvider()
        async with Bot(tmp_path, api, gated):
            update = api.hear(f"@{NAME} hello", user=USER, chat=FORUM, topic=7)
            await gated.asked_once.wait()
            await api.taken()
        async with Bot(tmp_path, api, Scripted("One.")):
            (said,) = await api.said(1)
        assert (said["chat"]["id"], said["message_thread_id"]) == (FORUM, 7)
        assert said["reply_parameters"]["message_id"] == update["message"]["message_id"]


@run
async def test_an_answer_to_the_topic_general_is_sent_without_a_topic(tmp_path: Path) -> None:
    async with running_bot(tmp_path, "One.", "Two.") as bot:
        bot.api.open_topic(FORUM, GENERAL)
        live = await bot.service.tenant("telegram").ensure(f"telegram-{FORUM}.{GENERAL}")
        await (await live.submit("Greet.", key="schedule-1")).outcome()
        (said,) = await bot.api.said(1)
        assert (said["chat"]["id"], "message_thread_id" in said) == (FORUM, False)
        bot.api.hear(f"@{NAME} hello", user=USER, chat=FORUM, topic=GENERAL)
        assert [said["chat"]["id"] for said in await bot.api.said(2)] == [FORUM] * 2


class RefusingApi(BotApi):
    """Refuses messages to the forum while `refusal` is set."""

    refusal = ""

    async def _sendMessage(self, method: str, parameters: Json) -> Json:
        if self.refusal and parameters["chat_id"] == FORUM:
            raise Fault(400, self.refusal)
        return await super()._sendMessage(method, parameters)


def ask_in_topic(api: BotApi, text: str) -> None:
    api.hear(f"@{NAME} {text}", user=USER, chat=FORUM, topic=7)


async def refused(bot: Bot, count: int) -> None:
    """Wait until a place has refused this many answers."""
    await until(lambda: bot.gateway.health().refused >= count)


@pytest.mark.parametrize(
    ("refusal", "cause"),
    rest_in_soak(
        [
            (
                "Bad Request: not enough rights to send text messages to the chat",
                "the bot may not write there",
            ),
            ("Bad Request: TOPIC_CLOSED", "the topic is closed"),
            ("Bad Request: CHAT_WRITE_FORBIDDEN", "the bot may not write there"),
        ]
    ),
)
def test_answers_to_a_closed_place_are_told_each_hour_and_sent_when_it_opens(
    refusal: str, cause: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @run
    async def check() -> None:
        answers = ("One.", "Two.", "Three.", "Four.")
        async with RefusingApi() as api, Bot(tmp_path, api, Scripted(*answers)) as bot:
            bot.later.clear()
            api.refusal = refusal
            told = f"in Group / Topic: {cause}. I try again for 2 days."
            ask_in_topic(api, "First")
            (notice,) = await api.said(1)
            assert notice["chat"]["id"] == USER
            assert f"⚠️ I cannot send 1 answer {told}" in notice["text"]
            ask_in_topic(api, "Second")
            await refused(bot, 2)
            assert (len(api.messages), bot.gateway.health().owed) == (1, 0)
            bot.seconds_passed = CLOSED_NOTICE_INTERVAL_S + 1
            ask_in_topic(api, "Third")
            assert f"⚠️ I cannot send 3 answers {told}" in (await api.said(2))[1]["text"]
            api.refusal = ""
            ask_in_topic(api, "Fourth")
            assert texts_of(await api.said(6))[2:] == list(answers)
            await delivered(bot)
            assert bot.gateway.health().refused == 3

    check()
    assert caplog.text.count(f"answers to telegram-{FORUM}.7 cannot be sent: {cause}") == 2


@run
async def test_answers_to_a_closed_place_are_sent_after_a_restart(tmp_path: Path) -> None:
    async with RefusingApi() as api:
        api.refusal = "Bad Request: TOPIC_CLOSED"
        async with Bot(tmp_path, api, Scripted("One.", "Two.")) as bot:
            bot.later.clear()
            for count, text in enumerate(("First", "Second"), 1):
                ask_in_topic(api, text)
                await refused(bot, count)
        async with Bot(tmp_path, api, Scripted()) as bot:
            bot.later.clear()
            await refused(bot, 1)
            assert len(api.messages) == 1, "told before the restart"
        api.refusal = ""
        async with Bot(tmp_path, api, Scripted()) as bot:
            assert texts_of(await api.said(3))[1:] == ["One.", "Two."]
            await delivered(bot)


@run
async def test_after_a_restart_the_author_is_told_with_the_name_of_the_topic(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"telegram.allowed": [7, USER]}
    async with FailingApi() as api:
        api.broken = {FORUM}
        async with Bot(tmp_path, api, Scripted("One."), **settings) as bot:
            bot.later.clear()
            api.open_topic(FORUM, 7, "Plans")
            ask_in_topic(api, "First")
            await bot.waited(REDELIVERY_PAUSES_S[0])
        api.broken = set()
        api.close_topic(FORUM, 7)
        async with Bot(tmp_path, api, Scripted(), **settings) as bot:
            bot.later.clear()
            (notice,) = await api.said(1)
            assert notice["chat"]["id"] == USER
            assert notice["text"].startswith(
                "⚠️ I cannot send 1 answer in Group / Plans: the topic is closed."
            )


@run
async def test_the_output_of_a_command_in_a_closed_topic_goes_to_its_user(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "foveal.gateways")
    async with running_bot(tmp_path) as bot:
        bot.api.open_topic(FORUM, 7)
        bot.api.close_topic(FORUM, 7)
        bot.api.hear(f"/help@{NAME}", user=USER, chat=FORUM, topic=7)
        (said,) = await bot.api.said(1)
        assert (said["chat"]["id"], "message_thread_id" in said) == (USER, False)
        begin = "↪️ I cannot reply where you wrote to me, because the topic is closed. So here it is:\n\nWrite to me"
        assert said["text"].startswith(begin)
    assert "could not be sent and was sent to its user in private: the topic is closed" in caplog.text


@run
async def test_answers_to_a_deleted_topic_stay_on_the_server(tmp_path: Path) -> None:
    async with RefusingApi() as api, Bot(tmp_path, api, Scripted("One.")) as bot:
        bot.later.clear()
        api.refusal = "Bad Request: message thread not found"
        ask_in_topic(api, "First")
        (notice,) = await api.said(1)
        assert notice["text"].endswith("the topic was deleted. The session on the server has what I wrote.")
        await delivered(bot)
        assert bot.gateway.health().refused == 1
        assert (await bot.messages(f"telegram-{FORUM}.7"))[1] == "One."


@run
async def test_the_output_of_a_command_shows_that_a_place_is_open(tmp_path: Path) -> None:
    async with RefusingApi() as api, Bot(tmp_path, api, Scripted("One.")) as bot:
        bot.later.clear()
        api.refusal = "Bad Request: TOPIC_CLOSED"
        ask_in_topic(api, "First")
        await bot.waited(REDELIVERY_PAUSES_S[0])
        api.refusal = ""
        api.hear(f"/help@{NAME}", user=USER, chat=FORUM, topic=7)
        assert texts_of(await api.said(3))[2] == "One."


@run
async def test_without_an_allow_list_only_the_paired_user_who_wrote_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings: dict[str, Any] = {"telegram.allowed": []}
    async with RefusingApi() as api, Bot(tmp_path, api, Scripted("One."), **settings) as bot:
        bot.later.clear()
        pairing = Pairing(bot.service.runtime.database)
        for user in (7, USER):
            code = await pairing.create_code("telegram", now=bot.clock())
            assert await pairing.claim("telegram", code, user, now=bot.clock())
        api.refusal = "Bad Request: TOPIC_CLOSED"
        ask_in_topic(api, "First")
        assert [said["chat"]["id"] for said in await api.said(1)] == [USER]
        bot.seconds_passed = CLOSED_NOTICE_INTERVAL_S + 1
        api.fail("sendMessage", Fault(400, api.refusal), Fault(403, "Forbidden: bot was blocked by the user"))
        ask_in_topic(api, "Second")
        await until(lambda: "no user could be told" in caplog.text)
        assert len(api.messages) == 1


@run
async def test_of_the_allow_list_the_author_is_told_else_another_user(tmp_path: Path) -> None:
    async with running_bot(tmp_path, "One.", **{"telegram.allowed": [7, USER]}) as bot:
        bot.api.close_topic(FORUM, 7)
        never_started = Fault(403, "Forbidden: bot can't initiate conversation with a user")
        bot.api.fail("sendMessage", Fault(400, "Bad Request: TOPIC_CLOSED"), never_started)
        bot.api.hear(f"@{NAME} hello", user=USER, chat=FORUM, topic=7)
        assert [said["chat"]["id"] for said in await bot.api.said(1)] == [7]


# ── tokens and webhooks ──────────────────────────────────────────────────────────────────────────────────


def log_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "foveal.gateways"]


@pytest.mark.parametrize("method", ["getMe", "getUpdates"])
def test_a_refused_token_is_tried_again_and_logged_once(
    method: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="foveal.gateways")

    @run
    async def check() -> None:
        async with BotApi() as api:
            api.fail(method, *[Fault(401, "Unauthorized")] * 12)
            async with Bot(tmp_path, api, Scripted("One.")) as bot:
                await bot.waited(300.0)
                health = bot.gateway.health()
                assert (health.status, health.last_error) == (
                    "refused",
                    "Telegram does not accept TELEGRAM_BOT_TOKEN",
                )
                api.hear("Hello.", user=USER)
                assert texts_of(await api.said(1)) == ["One."]
                assert bot.gateway.health().status == "listening"
                assert bot.pauses[:3] == [1.0, 2.0, 4.0]

    check()
    first = [] if method == "getMe" else ["listening to Telegram"]
    assert log_of(caplog) == [
        *first,
        "Telegram does not accept TELEGRAM_BOT_TOKEN: the bot receives no messages and retries until it works",
        "listening to Telegram again",
    ]


HOOK = "https://user:secret@hooks.example.org:8443/bot/secret?key=secret"
HOOK_PROBLEM = (
    "Telegram sends the bot's messages to a webhook at hooks.example.org "
    '(telegram.webhook = "delete" lets the bot delete it)'
)


@pytest.mark.parametrize("is_set_later", [False, True])
def test_a_webhook_is_named_and_not_deleted(
    is_set_later: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @run
    async def check() -> None:
        async with BotApi() as api:
            api.webhook = "" if is_set_later else HOOK
            async with Bot(tmp_path, api, Scripted("One.")) as bot:
                if is_set_later:
                    await api.taken()
                    api.webhook = HOOK
                    api.hear("For the webhook.", user=USER)
                    api.updates.clear()
                await bot.waited(2.0)
                health = bot.gateway.health()
                assert (health.status, health.last_error) == ("refused", HOOK_PROBLEM)
                assert (api.webhook, [name for name, _ in api.calls if "Webhook" in name]) == (HOOK, [])
                api.webhook = ""
                api.hear("Hello.", user=USER)
                assert texts_of(await api.said(1)) == ["One."]

    check()
    assert caplog.text.count(HOOK_PROBLEM) == 1
    assert "secret" not in caplog.text


@run
async def test_a_webhook_is_deleted_if_the_configuration_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with BotApi() as api:
        api.webhook = HOOK
        settings: dict[str, Any] = {"telegram.webhook": "delete"}
        async with Bot(tmp_path, api, Scripted("One."), **settings):
            api.hear("Hello.", user=USER)
            assert texts_of(await api.said(1)) == ["One."]
    assert "the bot's webhook at hooks.example.org is deleted, as telegram.webhook says" in caplog.text
    assert "secret" not in caplog.text
