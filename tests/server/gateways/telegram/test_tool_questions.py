"""Tools in a Telegram chat: the question with its buttons, who may answer, expiry and restarts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from foveal.agent.tool import ToolOutput
from foveal.core.log import ToolReturned, text_of
from foveal.server.gateways import texts
from foveal.server.tenants import CHAT_DENIAL
from foveal.testing import Scripted
from support.gated_provider import run
from support.noting_tool import CALL, Notes
from support.telegram_bot import USER, Bot, texts_of
from support.telegram_stand_in import NAME, BotApi, Json

BOB = 43
GROUP = -100


def bot_with(folder: Path, api: BotApi, notes: Notes, *answers: Any, **settings: Any) -> Bot:
    return Bot(folder, api, Scripted(*answers), tools=[notes.tool()], **settings)


def buttons(message: Json) -> dict[str, str]:
    """Return the actions of the buttons of a message, by their labels."""
    rows = message.get("reply_markup", {}).get("inline_keyboard", [])
    return {button["text"]: button["callback_data"] for row in rows for button in row}


async def results(bot: Bot, session: str = "telegram-42") -> list[str]:
    live = await bot.service.tenant("telegram").session(session)
    return [text_of(e.fact.content) for e in await live.events() if isinstance(e.fact, ToolReturned)]


def alerts(api: BotApi) -> list[str]:
    return [call["text"] for name, call in api.calls if name == "answerCallbackQuery" and "text" in call]


@pytest.mark.parametrize(
    ("button", "written", "reply", "result"),
    [
        ("Yes", ["buy milk"], "✅ Fine, I use note.", "written"),
        ("No", [], "🚫 Fine, I do without note.", CHAT_DENIAL),
    ],
)
@run
async def test_a_call_waits_for_the_owner_and_shows_all_that_it_gets(
    tmp_path: Path, button: str, written: list[str], reply: str, result: str
) -> None:
    notes = Notes()
    async with BotApi() as api, bot_with(tmp_path, api, notes, CALL, "Done.") as bot:
        api.hear("Write it down.", user=USER)
        (asked,) = await api.said(1)
        assert asked["text"] == (
            'May I use note? This is what it gets:\n\n{"text": "buy milk"}\n\n'
            "Only the owner of this bot can answer. Without an answer in 10 minutes, I do without it."
        ).join(["🔐 ", ""])
        assert {entity["type"] for entity in asked["entities"]} == {"code", "pre"}
        assert notes.written == []
        api.press(buttons(asked)[button], user=USER, message=asked)
        said = texts_of(await api.said(3))
        assert sorted(said[1:]) == sorted([reply, "Done."])
        assert (notes.written, await results(bot)) == (written, [result])
        removed = [call for name, call in api.calls if name == "editMessageReplyMarkup"]
        assert [call["message_id"] for call in removed] == [asked["message_id"]]


@run
async def test_hidden_characters_are_marked_and_long_arguments_are_split_and_never_cut(
    tmp_path: Path,
) -> None:
    secret = "a\u200bb\u202ec ``` " + "x" * 9_000 + " end"
    notes = Notes()
    async with BotApi() as api, bot_with(tmp_path, api, notes, [("note", {"text": secret})], "Done.") as bot:
        api.hear("Write it down.", user=USER)
        await api.until(lambda: bool(api.messages and buttons(api.messages[-1])))
        said = list(api.messages)
        whole = "".join(message["text"] for message in said)
        assert "\u200b" not in whole
        assert "\u202e" not in whole
        assert whole.count("x") >= 9_000
        assert "```" in whole, "what is shown does not end its frame"
        assert [bool(buttons(message)) for message in said] == [*[False] * (len(said) - 1), True]
        api.press(buttons(said[-1])["Yes"], user=USER, message=said[-1])
        await api.said(len(said) + 2)
        assert notes.written == [secret]
        assert len(await results(bot)) == 1


@run
async def test_what_is_too_long_to_be_shown_is_not_run(tmp_path: Path) -> None:
    notes, long = Notes(), [("note", {"text": "x" * 30_000})]
    async with BotApi() as api, bot_with(tmp_path, api, notes, long, "Done.") as bot:
        api.hear("Write it down.", user=USER)
        assert texts_of(await api.said(1)) == ["Done."]
        assert (notes.written, await results(bot)) == ([], [CHAT_DENIAL])


@run
async def test_others_cannot_answer_and_the_buttons_stay(tmp_path: Path) -> None:
    notes = Notes()
    async with BotApi() as api, bot_with(tmp_path, api, notes, CALL, "Done.") as bot:
        code = await bot.pair_code()
        api.hear(f"/pair {code}", user=BOB)
        await api.said(1)
        api.hear(f"@{NAME} write it down", user=BOB, chat=GROUP)
        asked = (await api.said(2))[1]
        assert asked["chat"]["id"] == GROUP
        for user in (BOB, 99):
            api.press(buttons(asked)["Yes"], user=user, message=asked)
        await api.until(lambda: len(alerts(api)) == 2)
        assert alerts(api)[0] == "Only the owner of this bot can answer."
        assert not [name for name, _ in api.calls if name == "editMessageReplyMarkup"]
        assert notes.written == []
        api.press(buttons(asked)["Yes"], user=USER, message=asked)
        await api.said(4)
        assert notes.written == ["buy milk"]


@run
async def test_administrators_answer_in_their_group_if_that_is_set(tmp_path: Path) -> None:
    notes, settings = Notes(), {"telegram.approvers": "admins"}
    async with (
        BotApi() as api,
        bot_with(tmp_path, api, notes, CALL, "Done.", CALL, "Two.", **settings) as bot,
    ):
        api.hear(f"/pair {await bot.pair_code()}", user=BOB)
        await api.said(1)
        api.hear(f"@{NAME} write it down", user=BOB, chat=GROUP)
        asked = (await api.said(2))[1]
        api.press(buttons(asked)["Yes"], user=BOB, message=asked)
        await api.until(lambda: len(alerts(api)) == 1)
        assert "an administrator of this group" in alerts(api)[0]
        api.admins.add(BOB)
        api.press(buttons(asked)["Yes"], user=BOB, message=asked)
        await api.said(4)
        assert notes.written == ["buy milk"]


@run
async def test_in_the_private_chat_of_another_user_the_owner_is_asked(tmp_path: Path) -> None:
    notes = Notes()
    async with BotApi() as api, bot_with(tmp_path, api, notes, CALL, "Done.") as bot:
        api.hear(f"/pair {await bot.pair_code()}", user=BOB)
        await api.said(1)
        api.hear("Write it down.", user=BOB)
        _, asked, told = await api.said(3)
        assert (asked["chat"]["id"], told["chat"]["id"]) == (USER, BOB)
        assert "in the chat telegram-43?" in asked["text"]
        assert told["text"].startswith("⏳ I would like to use note and have asked the owner of this bot.")
        api.press(buttons(asked)["Yes"], user=USER, message=asked)
        said = await api.said(5)
        assert {message["chat"]["id"]: texts_of([message])[0] for message in said[3:]} == {
            USER: "✅ Fine, I use note.",
            BOB: "Done.",
        }


@run
async def test_a_question_expires_and_the_chat_is_told(tmp_path: Path) -> None:
    notes = Notes()
    settings = {"server.approval_minutes": 3}
    async with BotApi() as api, bot_with(tmp_path, api, notes, CALL, "Done.", **settings) as bot:
        api.hear("Write it down.", user=USER)
        (asked,) = await api.said(1)
        assert "Without an answer in 3 minutes" in asked["text"]
        bot.seconds_passed = 181.0
        said = texts_of(await api.said(3))
        assert sorted(said[1:]) == ["Done.", "⌛ Nobody answered within 3 minutes, so I did not use note."]
        api.press(buttons(asked)["Yes"], user=USER, message=asked)
        assert texts_of(await api.said(4))[3] == texts.ANSWERED_BEFORE
        assert (notes.written, await results(bot)) == ([], [CHAT_DENIAL])


@run
async def test_a_button_counts_once_however_often_it_is_pressed(tmp_path: Path) -> None:
    notes = Notes()
    async with BotApi() as api, bot_with(tmp_path, api, notes, CALL, "Done.") as bot:
        api.hear("Write it down.", user=USER)
        (asked,) = await api.said(1)
        for button in ("Yes", "No", "Yes"):
            api.press(buttons(asked)[button], user=USER, message=asked)
        said = texts_of(await api.said(5))
        assert said.count(texts.ANSWERED_BEFORE) == 2
        assert len(await results(bot)) == 1
        assert len(notes.written) <= 1


@run
async def test_of_two_servers_one_answer_counts(tmp_path: Path) -> None:
    notes = Notes()
    async with BotApi() as api, bot_with(tmp_path, api, notes, CALL, "Done.") as one:
        other = bot_with(tmp_path, api, notes)
        api.hear("Write it down.", user=USER)
        (asked,) = await api.said(1)
        async with other:
            id = buttons(asked)["Yes"].partition(":")[2]
            questions = (one.service.runtime.questions, other.service.runtime.questions)
            counted = await asyncio.gather(*(q.answer("telegram", id, yes=True) for q in questions))
            assert sorted(counted) == [False, True]
            await api.said(2)
        assert notes.written == ["buy milk"]


@pytest.mark.parametrize("pressed", ["before the restart", "after it"])
@run
async def test_a_question_survives_a_restart(tmp_path: Path, pressed: str) -> None:
    notes = Notes()
    async with BotApi() as api:
        async with bot_with(tmp_path, api, notes, CALL) as bot:
            api.hear("Write it down.", user=USER)
            (asked,) = await api.said(1)
            bot.service.runtime.begin_closing()
        if pressed == "before the restart":
            api.press(buttons(asked)["Yes"], user=USER, message=asked)
        async with bot_with(tmp_path, api, notes, "Done.") as bot:
            if pressed == "after it":
                await bot.service.recover()
                api.press(buttons(asked)["Yes"], user=USER, message=asked)
            await api.until(lambda: "Done." in texts_of(api.messages))
            assert notes.written == ["buy milk"]
            assert await results(bot) == ["written"]
        assert sum("May I use" in message["text"] for message in api.messages) == 1


@run
async def test_a_question_that_expired_while_no_server_ran_is_said(tmp_path: Path) -> None:
    notes = Notes()
    async with BotApi() as api:
        async with bot_with(tmp_path, api, notes, CALL) as bot:
            api.hear("Write it down.", user=USER)
            (asked,) = await api.said(1)
            bot.service.runtime.begin_closing()
        later = bot_with(tmp_path, api, notes, "Done.")
        later.seconds_passed = 3_600.0
        async with later:
            api.press(buttons(asked)["Yes"], user=USER, message=asked)
            await api.until(lambda: "Done." in texts_of(api.messages))
            await api.until(lambda: any(text.startswith("⌛") for text in texts_of(api.messages)))
            assert notes.written == []


@run
async def test_stop_ends_the_question(tmp_path: Path) -> None:
    notes = Notes()
    async with BotApi() as api, bot_with(tmp_path, api, notes, CALL, "Done."):
        api.hear("Write it down.", user=USER)
        (asked,) = await api.said(1)
        api.hear("/stop", user=USER)
        await api.said(3)
        api.press(buttons(asked)["Yes"], user=USER, message=asked)
        assert texts_of(await api.said(4))[3] == texts.ANSWERED_BEFORE
        assert notes.written == []


@run
async def test_the_question_of_an_erased_user_is_gone(tmp_path: Path) -> None:
    notes = Notes()
    async with BotApi() as api, bot_with(tmp_path, api, notes, CALL, "Done.") as bot:
        api.hear("Write it down.", user=USER)
        await api.said(1)
        await bot.service.tenant("telegram").erase_user(str(USER))
        database = bot.service.runtime.database
        assert await database.read(lambda db: db.fetch("SELECT * FROM chat_questions")) == []
        sql = "SELECT author, place_name FROM chat_messages"
        assert await database.read(lambda db: db.fetch(sql)) == [(0, "")]


@run
async def test_of_a_long_result_the_model_sees_a_part_and_can_look_up_the_rest(tmp_path: Path) -> None:
    notes, result = Notes(), "\n".join(f"line {number} of the page" for number in range(20_000))
    tool = replace(notes.tool(), run=lambda given: _returned(result), needs_approval=False)
    async with BotApi() as api, Bot(tmp_path, api, Scripted(CALL, "Done."), tools=[tool]) as bot:
        api.hear("Write it down.", user=USER)
        await api.said(1)
        assert await results(bot) == [result], "the session has all of it"
        last = bot.provider.requests[-1]
        assert last.tokens < 12_000
        (shown,) = [text_of(fact.content) for fact in last.facts if isinstance(fact, ToolReturned)]
        assert "line 0 of" in shown
        assert "[foveal: " in shown
        assert len(last.tools or ()) > 1, "with tools that look it up"


async def _returned(text: str) -> ToolOutput:
    return ToolOutput(content=text)


@run
async def test_without_tools_the_model_gets_none(tmp_path: Path) -> None:
    async with BotApi() as api, Bot(tmp_path, api, Scripted("Done.")) as bot:
        api.hear("Hello.", user=USER)
        await api.said(1)
        assert not bot.provider.requests[0].tools
