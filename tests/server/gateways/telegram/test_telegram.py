"""The Telegram bot: the real library against a stand-in of the Bot API over real HTTP."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveal.config import load
from foveal.errors import BadSetting, ProviderError
from foveal.server import ChatPlace, Chats, Pairing, Service
from foveal.server.gateways import texts
from foveal.server.gateways.delivery import SEND_PAUSES_S
from foveal.server.gateways.gateway import base_url, connection_states
from foveal.server.gateways.telegram import telegram
from foveal.server.gateways.telegram.send import REFUSED_PART, FormattedText, format_markdown
from foveal.testing import Scripted
from support.gated_provider import GatedProvider, run
from support.serve_process import Server, serving
from support.telegram_bot import USER, Bot, running_bot, texts_of
from support.telegram_stand_in import NAME, TOKEN, BotApi, Fault, HangUp, Json

ATTEMPTS = len(SEND_PAUSES_S) + 1


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def no_access(user: int) -> str:
    return texts.no_access("telegram", user).replace("`", "")


# ── answers ──────────────────────────────────────────────────────────────────────────────────────────────


@run
async def test_a_message_is_answered_in_its_chat_with_a_footer(tmp_path: Path) -> None:
    async with running_bot(tmp_path, "Hello **to** you.") as bot:
        bot.api.hear("Hello.", user=USER)
        (said,) = await bot.api.said(1)
        report = await (await bot.service.tenant("telegram").session("telegram-42")).report()
        assert said["text"] == f"Hello to you.\n\n{texts.footer(report)}"
        assert said["chat"]["id"] == USER
        assert said["entities"] == [{"type": "bold", "offset": 6, "length": 2}]
        assert "reply_markup" not in said
        assert await bot.messages() == ["Hello.", "Hello **to** you."]


@run
async def test_the_commands_are_registered(tmp_path: Path) -> None:
    async with running_bot(tmp_path) as bot:
        await bot.api.taken()
        ((method, parameters),) = bot.api.calls
        listed = {entry["command"]: entry["description"] for entry in parameters["commands"]}
        assert (method, listed) == ("setMyCommands", texts.BOT_COMMANDS)


@run
async def test_somebody_types_while_the_model_thinks(tmp_path: Path) -> None:
    provider = GatedProvider("One.")
    async with running_bot(tmp_path, provider) as bot:
        bot.api.hear("Hello.", user=USER)
        await bot.api.until(lambda: bot.api.typed > 0)
        assert bot.api.messages == []
        provider.gate.set()
        assert texts_of(await bot.api.said(1)) == ["One."]


@run
async def test_an_update_is_acknowledged_when_its_words_are_stored_not_when_they_are_answered(
    tmp_path: Path,
) -> None:
    provider = GatedProvider("One.", "Two.")
    async with running_bot(tmp_path, provider) as bot:
        bot.api.hear("First.", user=USER)
        bot.api.hear("Second.", user=USER)
        await bot.api.taken()
        assert await bot.service.runtime.inbox.unfinished() == [("telegram", "telegram-42", 2)]
        assert bot.api.messages == []
        provider.gate.set()
        assert texts_of(await bot.api.said(2)) == ["One.", "Two."]
        assert await bot.messages() == ["First.", "One.", "Second.", "Two."]


@run
async def test_a_long_answer_comes_in_pieces_with_code_kept_whole(tmp_path: Path) -> None:
    code = "```python\n" + "\n".join(f"print({n})  # 😀" for n in range(150)) + "\n```"
    answer = "\n\n".join(["Word " * 500, code, "Word " * 900])
    async with running_bot(tmp_path, answer) as bot:
        bot.api.hear("Hello.", user=USER)
        await bot.api.until(lambda: any("🟢" in message["text"] for message in bot.api.messages))
        said = bot.api.messages
        assert len(said) == 4
        whole = [e for message in said for e in message.get("entities", []) if e["type"] == "pre"]
        assert [entity["language"] for entity in whole] == ["python"]
        assert "".join(texts_of(said)).count("Word") == 1_400
        assert "".join(texts_of(said)).count("print(") == 150


@run
async def test_the_turn_of_a_schedule_is_sent_to_its_chat(tmp_path: Path) -> None:
    async with running_bot(tmp_path, "Good morning.", "Not for a chat.", "Hello.") as bot:
        tenant = bot.service.tenant("telegram")
        await (await (await tenant.ensure("telegram--7")).submit("Greet.", key="schedule-1")).outcome()
        (said,) = await bot.api.said(1)
        assert (said["chat"]["id"], texts_of([said])) == (-7, ["Good morning."])
        await (await (await tenant.ensure("notes")).submit("Note.", key="schedule-2")).outcome()
        bot.api.hear("Hello.", user=USER)
        assert texts_of(await bot.api.said(2)) == ["Good morning.", "Hello."]


@run
async def test_a_failure_becomes_a_reply_with_a_button_to_try_again(tmp_path: Path) -> None:
    async with running_bot(tmp_path, ProviderError("no route", code="connection"), "Here I am.") as bot:
        bot.api.hear("Hello.", user=USER)
        (failed,) = await bot.api.said(1)
        assert failed["text"] == f"❌ Sorry, I have no answer: {texts.PROVIDER_FAILURES['connection']}."
        ((button,),) = failed["reply_markup"]["inline_keyboard"]
        bot.api.press(button["callback_data"], user=USER, message=failed)
        assert texts_of(await bot.api.said(2))[1] == "Here I am."


# ── who and where ────────────────────────────────────────────────────────────────────────────────────────


@run
async def test_a_stranger_hears_how_to_pair_and_with_a_code_he_is_one_no_more(tmp_path: Path) -> None:
    async with running_bot(tmp_path, "Welcome.") as bot:
        bot.api.hear("Hello.", user=7)
        bot.api.hear(None, user=7, **bot.api.sticker())
        bot.api.hear("/context", user=7)
        assert texts_of(await bot.api.said(3)) == [no_access(7)] * 3
        code = await Pairing(bot.service.runtime.database).create_code(
            "telegram", now=bot.service.runtime.clock()
        )
        bot.api.hear(f"/pair {code}", user=7)
        bot.api.hear("Hello again.", user=7)
        assert sorted(texts_of(await bot.api.said(5))[3:]) == sorted([texts.PAIRED, "Welcome."])
        assert await bot.messages("telegram-7") == ["Hello again.", "Welcome."]


@run
async def test_a_stranger_who_shouts_is_not_heard_any_more_and_others_are(tmp_path: Path) -> None:
    async with running_bot(tmp_path, "Hello.") as bot:
        for _ in range(50):
            bot.api.hear("Hey!", user=7)
        bot.api.hear("Hello.", user=USER)
        await bot.api.until(lambda: any(message["chat"]["id"] == USER for message in bot.api.messages))
        await bot.api.taken()
        assert (
            1 <= sum(message["chat"]["id"] == 7 for message in bot.api.messages) <= 30
        )  # of 50, if it is slow


@run
async def test_commands_answer_in_the_chat_and_a_group_is_answered_as_a_reply_in_its_topic(
    tmp_path: Path,
) -> None:
    async with running_bot(tmp_path, "Hello, group.") as bot:
        update = bot.api.hear(
            f"@{NAME} hello",
            user=USER,
            chat=-100,
            entities=[{"type": "mention", "offset": 0, "length": len(NAME) + 1}],
            message_thread_id=5,
            is_topic_message=True,
        )
        (said,) = await bot.api.said(1)
        assert said["reply_parameters"]["message_id"] == update["message"]["message_id"]
        assert said["message_thread_id"] == 5
        heard = '[foveal: message from "A" (id 42)]\nhello'
        assert await bot.messages("telegram--100.5") == [heard, "Hello, group."]
        bot.api.hear(f"/context@{NAME}", user=USER, chat=-100, topic=5)
        card = (await bot.api.said(2))[1]
        assert card["entities"][0]["type"] == "pre"
        assert "window" in card["text"]


# ── a window that fills up ───────────────────────────────────────────────────────────────────────────────


@run
async def test_the_compact_button_works_once_for_users_with_access(tmp_path: Path) -> None:
    answers = [" ".join(f"word{n}x{i}" for i in range(150)) for n in range(40)]
    async with running_bot(tmp_path, *answers, window=8_000) as bot:
        said: list[Json] = []
        while not said or "reply_markup" not in said[-1]:
            bot.api.hear("Go on.", user=USER)
            said = await bot.api.said(len(said) + 1)
        warning = said[-1]
        assert (
            "of the context window. I summarise older messages as soon as it pays off, at " in warning["text"]
        )
        ((button,),) = warning["reply_markup"]["inline_keyboard"]
        assert button["text"] == "Compact now"
        session = await bot.service.tenant("telegram").session("telegram-42")
        before = (await session.report()).used
        bot.api.press(button["callback_data"], user=666, message=warning)
        await bot.api.taken()
        await bot.api.until(lambda: any(name == "answerCallbackQuery" for name, _ in bot.api.calls))
        alert = next(given for name, given in bot.api.calls if name == "answerCallbackQuery")
        assert alert["text"] == no_access(666)
        assert (await session.report()).used == before
        bot.api.press(button["callback_data"], user=USER, message=warning)
        card = (await bot.api.said(len(said) + 1))[-1]
        after = await session.report()
        assert f"{before:,} → {after.used:,} tokens" in card["text"]
        edited = [given for name, given in bot.api.calls if name == "editMessageReplyMarkup"]
        assert [given["message_id"] for given in edited] == [warning["message_id"]]
        bot.api.press(button["callback_data"], user=USER, message=warning)
        assert (await bot.api.said(len(said) + 2))[-1]["text"] == texts.compaction_not_needed(after)


@run
async def test_a_button_of_an_inaccessible_message_gets_an_explanation(tmp_path: Path) -> None:
    async with running_bot(tmp_path) as bot:
        bot.api.press("compact", user=USER, message=None)
        await bot.api.until(lambda: any(name == "answerCallbackQuery" for name, _ in bot.api.calls))
        assert dict(bot.api.calls)["answerCallbackQuery"]["text"] == texts.OLD_BUTTON


# ── what comes twice, and what does not arrive ───────────────────────────────────────────────────────────


@run
async def test_an_update_that_arrives_twice_runs_once(tmp_path: Path) -> None:
    async with running_bot(tmp_path, "One.", "Two.") as bot:
        update = bot.api.hear("Hello.", user=USER)
        await bot.api.said(1)
        await bot.api.taken()
        bot.api.give(update)
        await bot.api.taken()
        bot.api.hear("More.", user=USER)
        assert texts_of(await bot.api.said(2)) == ["One.", "Two."]
        assert await bot.messages() == ["Hello.", "One.", "More.", "Two."]


@run
async def test_a_restart_answers_open_messages_once(tmp_path: Path) -> None:
    async with BotApi() as api:
        gated = GatedProvider()
        async with Bot(tmp_path, api, gated) as bot:
            update = api.hear("Hello.", user=USER)
            await gated.asked_once.wait()
            await api.taken()
        api.give(update)  # as if it had not been acknowledged
        async with Bot(tmp_path, api, Scripted("One.", "Two.")) as bot:
            await api.taken()
            await api.said(1)
            api.hear("More.", user=USER)
            assert texts_of(await api.said(2)) == ["One.", "Two."]
            assert await bot.messages() == ["Hello.", "One.", "More.", "Two."]


@run
async def test_sending_is_retried_and_then_the_answer_is_kept(
    tmp_path: Path,
) -> None:
    async with running_bot(tmp_path, "One.", "Two.") as bot:
        bot.api.fail("sendMessage", HangUp(), Fault(502, "Bad Gateway"))
        bot.api.hear("Hello.", user=USER)
        assert texts_of(await bot.api.said(1)) == ["One."]
        assert bot.pauses == [1.0, 2.0]
        bot.api.fail("sendMessage", *(Fault(500, "Internal Server Error") for _ in range(ATTEMPTS)))
        bot.api.hear("Hello?", user=USER)
        assert texts_of(await bot.api.said(2)) == ["One.", "Two."]
        assert bot.pauses == [1.0, 2.0, 1.0, 2.0, 4.0, 8.0, 60.0]
        assert await bot.messages() == ["Hello.", "One.", "Hello?", "Two."]


@run
async def test_an_undelivered_answer_is_delivered_after_the_next_start(
    tmp_path: Path,
) -> None:
    async with BotApi() as api:
        api.fail("sendMessage", *(HangUp() for _ in range(ATTEMPTS)))
        async with Bot(tmp_path, api, Scripted("The answer.")):
            api.hear("Hello.", user=USER)
            await api.until(lambda: not api._faults["sendMessage"])
        provider = Scripted()
        async with Bot(tmp_path, api, provider):
            assert texts_of(await api.said(1)) == ["The answer."]
            assert provider.requests == []
        async with Bot(tmp_path, api, Scripted("Two.")):
            api.hear("More.", user=USER)
            assert texts_of(await api.said(2)) == ["The answer.", "Two."]


@run
async def test_an_answer_that_is_ready_at_shutdown_is_delivered(tmp_path: Path) -> None:
    provider = GatedProvider("One.")
    async with BotApi() as api:
        async with Bot(tmp_path, api, provider, grace_s=60.0):
            api.hear("Hello.", user=USER)
            await provider.asked_once.wait()
            provider.gate.set()
        assert texts_of(api.messages) == ["One."]


@run
async def test_the_bot_waits_as_long_as_a_429_says(tmp_path: Path) -> None:
    async with running_bot(tmp_path, "One.") as bot:
        bot.api.fail("sendMessage", Fault(429, "Too Many Requests: retry after 7", retry_after=7))
        bot.api.fail("getUpdates", Fault(429, "Too Many Requests: retry after 3", retry_after=3))
        bot.api.hear("Hello.", user=USER)
        assert texts_of(await bot.api.said(1)) == ["One."]
        assert sorted(bot.pauses) == [3.0, 7.0]


@run
async def test_a_refused_text_is_sent_plain_and_then_replaced(
    tmp_path: Path,
) -> None:
    async with running_bot(tmp_path, "Hello **you**.", "Hello **again**.") as bot:
        bot.api.fail("sendMessage", Fault(400, "Bad Request: can't parse entities"))
        bot.api.hear("Hello.", user=USER)
        (said,) = await bot.api.said(1)
        assert texts_of([said]) == ["Hello you."]
        assert "entities" not in said
        refusal = Fault(400, "Bad Request: message text is empty")
        bot.api.fail("sendMessage", refusal, refusal)
        bot.api.hear("Hello.", user=USER)
        assert texts_of(await bot.api.said(2))[1] == REFUSED_PART


async def leave_answers(bot: Bot, count: int) -> None:
    """Let the user block the bot while it writes answers."""
    bot.api.blocking.add(USER)
    chats = Chats(bot.service.runtime.database)
    for number in range(1, count + 1):
        bot.api.hear("Hello.", user=USER)
        while len(bot.provider.requests) < number or await chats.undelivered("telegram", now=bot.clock()):
            await asyncio.sleep(0.01)
    bot.api.blocking.clear()


@run
async def test_answers_to_a_user_who_had_blocked_the_bot_are_offered_when_they_return(tmp_path: Path) -> None:
    async with running_bot(tmp_path, "One.", "Two.", "Three.", "Four.") as bot:
        await leave_answers(bot, 2)
        bot.api.hear("I am back.", user=USER)
        offer, answer = await bot.api.said(2)
        assert offer["text"] == "While I could not write to you, 2 answers were left. Shall I show them?"
        assert texts_of([answer]) == ["Three."]
        ((button,),) = offer["reply_markup"]["inline_keyboard"]
        assert button["text"] == "Show them"
        bot.api.press(button["callback_data"], user=USER, message=offer)
        assert texts_of(await bot.api.said(4))[2:] == ["One.", "Two."]
        bot.api.press(button["callback_data"], user=USER, message=offer)
        assert texts_of(await bot.api.said(5))[4:] == [texts.NOTHING_KEPT]
        bot.api.hear("And?", user=USER)
        assert texts_of(await bot.api.said(6))[5:] == ["Four."], "it is not offered again"
        assert bot.pauses == []


@run
async def test_what_was_kept_survives_a_restart_and_is_offered_once_a_day(tmp_path: Path) -> None:
    async with BotApi() as api:
        async with Bot(tmp_path, api, Scripted("One.")) as bot:
            await leave_answers(bot, 1)
        async with Bot(tmp_path, api, Scripted("Two.", "Three.", "Four.")) as bot:
            for count, expected in ((2, ["While", "Two."]), (3, ["Three."])):
                api.hear("Hello.", user=USER)
                said = texts_of(await api.said(count))[-len(expected) :]
                assert [text.partition(" ")[0] for text in said] == expected
            bot.seconds_passed += 90_000.0
            api.hear("Hello.", user=USER)
            assert texts_of(await api.said(5))[3].endswith("Shall I show it?")


@run
async def test_what_was_kept_is_bounded_and_erased_with_its_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foveal.server.chat_records.MAX_KEPT_ANSWERS", 3)
    async with running_bot(tmp_path, "One.", "Two.", "Three.", "Four.", "Five.", "Six.") as bot:
        await leave_answers(bot, 4)
        chats, now = Chats(bot.service.runtime.database), bot.clock()
        kept = await chats.kept_answers("telegram", ChatPlace(USER), now=now)
        assert len(kept) == 3
        week_later = now + 7 * 86_400.0 + 60.0
        assert await chats.kept_answers("telegram", ChatPlace(USER), now=week_later) == []
        await bot.service.tenant("telegram").erase_user(str(USER))
        assert await chats.kept_answers("telegram", ChatPlace(USER), now=now) == []
        bot.api.hear("Hello.", user=USER)
        assert len(await bot.api.said(1)) == 1
        assert "Shall I" not in bot.api.messages[0]["text"]


@run
async def test_a_group_that_became_a_supergroup_is_answered_there(tmp_path: Path) -> None:
    async with running_bot(tmp_path, "One.") as bot:
        bot.api.fail(
            "sendMessage", Fault(400, "Bad Request: group chat was upgraded", migrate_to_chat_id=-1009)
        )
        bot.api.hear(f"@{NAME} Hello.", user=USER, chat=-9)
        assert [message["chat"]["id"] for message in await bot.api.said(1)] == [-1009]


@run
async def test_an_unreadable_update_does_not_block_others(tmp_path: Path) -> None:
    async with running_bot(tmp_path, "One.") as bot:
        bot.api.give({"message": {"nonsense": True}})
        bot.api.give({"something_new": {}})
        bot.api.give({"callback_query": {"id": "1"}})
        bot.api.hear("Hello.", user=USER)
        assert texts_of(await bot.api.said(1)) == ["One."]


@run
async def test_the_bot_retries_until_telegram_can_be_reached_and_logs_it_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="foveal.gateways")
    async with BotApi() as api:
        api.fail("getMe", HangUp(), Fault(502, "Bad Gateway"))
        api.fail("getUpdates", HangUp(), Fault(409, "Conflict: terminated by other getUpdates request"))
        api.hear("Hello.", user=USER)
        async with Bot(tmp_path, api, Scripted("One.")) as bot:
            assert texts_of(await api.said(1)) == ["One."]
            assert bot.pauses == [1.0, 2.0, 1.0, 2.0]
    retries = "the bot retries until it works"
    assert [record.getMessage() for record in caplog.records if record.name == "foveal.gateways"] == [
        f"Telegram cannot be reached: {retries}",
        "listening to Telegram again",
        f"Telegram cannot be reached: {retries}",
        "listening to Telegram again",
    ]


@run
async def test_after_stop_listening_only_accepted_messages_are_answered(tmp_path: Path) -> None:
    provider = GatedProvider("One.", "Two.")
    async with BotApi() as api:
        async with Bot(tmp_path, api, provider, grace_s=60.0) as bot:
            api.hear("Hello.", user=USER)
            await provider.asked_once.wait()
            await bot.gateway.stop_listening()
            api.hear("More.", user=USER)
            provider.gate.set()
            assert texts_of(await api.said(1)) == ["One."]
        async with Bot(tmp_path, api, provider) as bot:
            assert texts_of(await api.said(2)) == ["One.", "Two."]
            assert await bot.messages() == ["Hello.", "One.", "More.", "Two."]


@run
async def test_the_connection_state_is_reported_in_words(tmp_path: Path) -> None:
    async def state(bot: Bot) -> str:
        return (
            await connection_states(
                [bot.gateway], pair=lambda platform: f"`foveal pair {platform}`", seconds=60.0
            )
        )[0]

    async with BotApi() as api:
        async with Bot(tmp_path, api, Scripted(), **{"telegram.allowed": []}) as bot:
            assert await state(bot) == "Telegram on, but no user has access yet: `foveal pair telegram`"
            pairing = Pairing(bot.service.runtime.database)
            code = await pairing.create_code("telegram", now=0.0)
            assert await pairing.claim("telegram", code, 7, now=0.0)
            assert await state(bot) == "Telegram on (1 user with access, others by `foveal pair telegram`)"
        api.fail("getMe", *(Fault(401, "Unauthorized") for _ in range(50)))  # also when it is tried again
        async with Bot(tmp_path, api, Scripted()) as bot:
            assert await state(bot) == "Telegram does not accept TELEGRAM_BOT_TOKEN"
    assert await connection_states([], pair=str) == [
        "Telegram off (TELEGRAM_BOT_TOKEN is not set)",
        "Discord off (DISCORD_BOT_TOKEN is not set)",
    ]


# ── the token ────────────────────────────────────────────────────────────────────────────────────────────


@run
async def test_no_log_contains_the_token(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with BotApi() as api:
        api.fail("getMe", HangUp())
        api.fail("sendMessage", Fault(500, f"for {TOKEN}"), Fault(400, f'Bad Request: {TOKEN}: "canary"'))
        api.hear("Hello, canary.", user=USER)
        async with Bot(tmp_path, api, Scripted("One.")):
            await api.said(1)
        api.fail("getMe", Fault(401, "Unauthorized"))
        async with Bot(tmp_path, api, Scripted("One.")):
            await asyncio.wait_for(_logged(caplog, "does not accept TELEGRAM_BOT_TOKEN"), 60)
    assert TOKEN not in caplog.text
    assert TOKEN.partition(":")[2] not in caplog.text
    assert "canary" not in caplog.text


async def _logged(caplog: pytest.LogCaptureFixture, text: str) -> None:
    while text not in caplog.text:
        await asyncio.sleep(0.01)


@run
async def test_a_bot_needs_a_token(tmp_path: Path) -> None:
    config = load(tmp_path, flags={}, environ={}, user_folder=tmp_path / "no-config")
    async with Service.open(config, folder=tmp_path / "served", environment={}) as service:
        pairing = Pairing(service.runtime.database)
        with pytest.raises(BadSetting, match="TELEGRAM_BOT_TOKEN"):
            async with telegram(service, pairing, config, {}):
                pass


@pytest.mark.parametrize("base", ["http://example.com", "http://127.0.0.1.example.com", "http://[::1"])
def test_the_token_is_sent_only_over_https_or_locally(tmp_path: Path, base: str) -> None:
    config = load(tmp_path, flags={"telegram.base_url": base}, environ={}, user_folder=tmp_path / "no-config")
    with pytest.raises(BadSetting, match=r"telegram.base_url = .* https"):
        base_url(config, "telegram")


@pytest.mark.parametrize("base", ["https://example.com/bots", "http://127.0.0.1:81", "http://[::1]:81"])
def test_base_url_may_be_https_or_local(tmp_path: Path, base: str) -> None:
    config = load(tmp_path, flags={"telegram.base_url": base}, environ={}, user_folder=tmp_path / "no-config")
    assert base_url(config, "telegram") == base


# ── markup ───────────────────────────────────────────────────────────────────────────────────────────────


def shown(drawn: FormattedText) -> list[tuple[str, str]]:
    units = drawn.text.encode("utf-16-le")
    return [
        (entity.type, units[2 * entity.offset : 2 * (entity.offset + entity.length)].decode("utf-16-le"))
        for entity in drawn.entities
    ]


def test_markdown_becomes_text_and_entities() -> None:
    drawn = format_markdown(
        "# A 😀 title\nText **bold *both*** ~~gone~~ `x_y` [site](https://a.example/?a=1&b=2).\n\n"
        "- one\n- two\n  1. deep\n\n> said\n\n```py\nprint('<b>')\n```\n| a | b |\n|---|---|\n| 1 | 2 |\n\n---\nEnd"
    )
    assert drawn.text == (
        "A 😀 title\n\nText bold both gone x_y site.\n\n• one\n• two\n  1. deep\n\nsaid\n\nprint('<b>')\n\n"
        "a | b\n--+--\n1 | 2\n\n———\n\nEnd"
    )
    assert shown(drawn) == [
        ("bold", "A 😀 title"),
        ("bold", "bold both"),
        ("italic", "both"),
        ("strikethrough", "gone"),
        ("code", "x_y"),
        ("text_link", "site"),
        ("blockquote", "said"),
        ("pre", "print('<b>')"),
        ("pre", "a | b\n--+--\n1 | 2"),
    ]
    assert [entity.url for entity in drawn.entities if entity.url] == ["https://a.example/?a=1&b=2"]
    assert [entity.language for entity in drawn.entities if entity.language] == ["py"]


@pytest.mark.parametrize(
    "text",
    [
        "<b>x</b> &lt; &copy",
        "snake_case_name * 2 * 3",
        "a_b [x] (y) !{z} #1 +2 =3 |4| .5",
        "@everyone /start",
    ],
)
def test_text_without_markdown_is_unchanged(text: str) -> None:
    assert format_markdown(text) == FormattedText(text.replace("&lt;", "<"))


def test_a_link_outside_the_web_is_written_out() -> None:
    drawn = format_markdown("[a](ftp://x) [b](tg://user?id=1) ![c](https://x.example/c.png)")
    assert drawn.text == "a (ftp://x) b (tg://user?id=1) c"
    assert shown(drawn) == [("text_link", "c")]


def test_characters_that_cannot_be_sent_are_left_out() -> None:
    assert format_markdown("a\0b \ud83d c") == FormattedText("ab ? c")


@given(st.text(alphabet="ab*_`~[](){}<>&#-+|>!\\/ \n😀1.\u0301", max_size=200))
def test_entities_lie_inside_the_text_and_no_letter_is_lost(text: str) -> None:
    drawn = format_markdown(text)
    units = len(drawn.text.encode("utf-16-le")) // 2
    for entity in drawn.entities:
        assert entity.offset >= 0
        assert 0 < entity.length <= units - entity.offset
    assert drawn.text.count("😀") == text.count("😀") or "](" in text or "]" in text


# ── a crash ──────────────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def killed_server(folder: Path, api: BotApi) -> AsyncIterator[Server]:
    """Run `foveal serve` in a process; the first request to its model kills it."""
    running = serving(
        folder=folder / "served",
        settings={"telegram.allowed": [USER], "telegram.base_url": api.url},
        environment={"TELEGRAM_BOT_TOKEN": TOKEN},
        provider="support.telegram_stand_in:killing_provider",
    )
    server = await asyncio.to_thread(running.__enter__)
    try:
        yield server
    finally:
        await asyncio.to_thread(running.__exit__, None, None, None)


@run
async def test_when_a_server_is_killed_another_answers_its_message_once(tmp_path: Path) -> None:
    async with BotApi() as api, killed_server(tmp_path, api) as server:
        await api.until(lambda: bool(api.asked))
        async with Bot(tmp_path, api, Scripted("One.", "Two.")) as bot:
            await bot.waited(5.0)
            update = api.hear("Hello.", user=USER)
            assert await asyncio.to_thread(server.wait) == -9
            assert texts_of(await api.said(1)) == ["One."]
            await api.taken()
            api.give(update)  # Telegram may send it again, whether it was acknowledged or not
            await api.taken()
            api.hear("More.", user=USER)
            assert texts_of(await api.said(2)) == ["One.", "Two."]
            assert await bot.messages() == ["Hello.", "One.", "More.", "Two."]
            assert TOKEN not in server.output
