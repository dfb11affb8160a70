"""Chat sessions of the bots: access, messages, commands, buttons, undelivered answers."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from foveal.config import load
from foveal.core.compaction.health import CompactionMetrics
from foveal.core.log import Clipped, Compacted, Event, Mask, ModelSaid, UserSaid, text_of
from foveal.core.log.events import UNREADABLE, ForeignSummary, Noted, Reverted, raw
from foveal.errors import ProviderError, UnknownHandle
from foveal.server import (
    MAX_WRONG_CODES,
    ChatMessage,
    ChatPlace,
    Chats,
    LiveSession,
    Pairing,
    Service,
    chat_session_id,
    find_place,
)
from foveal.server.audit import AuditFilter
from foveal.server.gateways import texts
from foveal.server.gateways.chat_commands import find_reduction, reduction_notes
from foveal.server.gateways.chat_sessions import ChatSessions
from foveal.server.gateways.incoming import EDITS, IncomingMessage
from foveal.server.gateways.outgoing import Button, ChannelMessage
from foveal.server.inbox import schedule_key
from foveal.server.pairing import WRONG_CODE_WINDOW_S
from foveal.testing import Scripted
from support.gated_provider import GatedProvider, run
from support.provided import provided

USER = 42
SECRET = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKL"


@asynccontextmanager
async def open_service(folder: Path, provider: Scripted, **settings: Any) -> AsyncIterator[Service]:
    config = load(folder, flags=settings, environ={}, user_folder=folder / "no-config")
    async with Service.open(
        config, folder=folder / "served", environment={}, make_provider=provided(provider)
    ) as service:
        yield service


def open_chats(service: Service, **more: Any) -> ChatSessions:
    more = {"platform": "telegram", "allowed": frozenset({USER})} | more
    return ChatSessions(service, Pairing(service.runtime.database), **more)


async def collect(replies: AsyncGenerator[ChannelMessage, None]) -> list[ChannelMessage]:
    return [message async for message in replies]


async def accept(
    chats: ChatSessions, *, chat: int, user: int, key: str, text: str
) -> AsyncGenerator[ChannelMessage, None]:
    message = IncomingMessage(key=key, place=ChatPlace(chat), user=user, text=text)
    return (await chats.accept(message)).replies


async def handle(chats: ChatSessions, **message: Any) -> AsyncGenerator[ChannelMessage, None]:
    async for reply in await accept(chats, **message):
        yield reply


async def press(
    chats: ChatSessions, *, chat: int, user: int, action: str
) -> AsyncGenerator[ChannelMessage, None]:
    answer = await chats.press_button(place=ChatPlace(chat), user=user, action=action)
    async for reply in answer.replies:
        yield reply


async def send(
    chats: ChatSessions, text: str, *, key: str = "", user: int = USER, chat: int = USER
) -> ChannelMessage:
    """Send a text and return the only reply."""
    send.count += 1  # type: ignore[attr-defined]
    key = key or f"telegram-{send.count}"  # type: ignore[attr-defined]
    (message,) = await collect(handle(chats, chat=chat, user=user, key=key, text=text))
    return message


send.count = 0  # type: ignore[attr-defined]


async def messages_of(service: Service, session: str = "telegram-42") -> list[str]:
    live = await service.tenant("telegram").session(session)
    said = (e.fact for e in await live.events() if isinstance(e.fact, UserSaid | ModelSaid))
    return [text_of(fact.content) for fact in said]


def long_turns(count: int) -> list[str]:
    return [f"Answer {n}: " + " ".join(f"word{n}x{i}" for i in range(150)) for n in range(count)]


# ── messages ─────────────────────────────────────────────────────────────────────────────────────────────


@run
async def test_the_footer_of_an_answer_has_the_numbers_of_the_report(tmp_path: Path) -> None:
    async with open_service(tmp_path, Scripted("Hello to you.")) as service:
        chats = open_chats(service)
        message = await send(chats, "Hello.")
        report = await (await service.tenant("telegram").session("telegram-42")).report()
        share = report.used / report.window * 100
        footer = f"🟢 Context: {report.used:,}/{report.window:,} ({share:.1f} %)"
        assert message == ChannelMessage(text="Hello to you.", footer=footer, is_answer=True)
        assert await messages_of(service) == ["Hello.", "Hello to you."]


@run
async def test_the_footer_can_be_turned_off(tmp_path: Path) -> None:
    async with open_service(tmp_path, Scripted("Hello to you.")) as service:
        message = await send(open_chats(service, footer=False), "Hello.")
        assert message == ChannelMessage(text="Hello to you.", is_answer=True)


@run
async def test_session_and_title_contain_no_secret(tmp_path: Path) -> None:
    async with open_service(tmp_path, Scripted("I see.")) as service:
        await send(open_chats(service), f"My key is {SECRET}")
        (info,) = await service.tenant("telegram").sessions()
        assert info.title.startswith("My key is [foveal: redacted")
        assert SECRET not in str(await messages_of(service))


@run
async def test_stop_ends_the_turn_of_a_schedule(tmp_path: Path) -> None:
    provider = GatedProvider("One.")
    async with open_service(tmp_path, provider) as service:
        session = await service.tenant("telegram").ensure("telegram-42")
        turn = await session.submit("Scheduled.", key="schedule-1")
        await provider.asked_once.wait()
        assert (await send(open_chats(service), "/stop")).text == "Stopping."
        assert (await turn.outcome()).why == "stopped"


@run
async def test_each_chat_has_its_own_session(tmp_path: Path) -> None:
    provider = Scripted("One.", "Two.")
    async with open_service(tmp_path, provider) as service:
        chats = open_chats(service)
        await send(chats, "The word is plum.", chat=1)
        await send(chats, "What is the word?", chat=-1002)
        assert "plum" not in str(provider.requests[1].to_openai())
        assert await messages_of(service, "telegram-1") == ["The word is plum.", "One."]
        assert await messages_of(service, "telegram--1002") == ["What is the word?", "Two."]


@run
async def test_a_key_runs_once_and_gets_no_second_reply(tmp_path: Path) -> None:
    provider = Scripted("One.", "Two.")
    async with open_service(tmp_path, provider) as service:
        chats = open_chats(service)
        await send(chats, "Hello.", key="telegram-1")
        assert await collect(handle(chats, chat=42, user=42, key="telegram-1", text="Hello.")) == []
        assert (
            await collect(handle(open_chats(service), chat=42, user=42, key="telegram-1", text="Hello."))
            == []
        )
        assert len(provider.requests) == 1


@run
async def test_a_message_repeated_during_its_turn_is_answered_once(tmp_path: Path) -> None:
    provider = GatedProvider("One.")
    async with open_service(tmp_path, provider) as service:
        chats = open_chats(service)
        first = await accept(chats, chat=42, user=42, key="telegram-1", text="Hello.")
        second = await accept(chats, chat=42, user=42, key="telegram-1", text="Hello.")
        provider.gate.set()
        assert [len(await collect(replies)) for replies in (first, second)] == [1, 0]


@run
async def test_messages_are_stored_at_once_and_answered_in_order(tmp_path: Path) -> None:
    provider = GatedProvider("One.", "Two.")
    async with open_service(tmp_path, provider) as service:
        chats = open_chats(service)
        first = await accept(chats, chat=42, user=42, key="telegram-1", text="First.")
        second = await accept(chats, chat=42, user=42, key="telegram-2", text="Second.")
        waiting = await service.runtime.inbox.unfinished()
        assert waiting == [("telegram", "telegram-42", 2)]
        provider.gate.set()
        answers = await asyncio.gather(collect(first), collect(second))
        assert [[message.text for message in answer] for answer in answers] == [["One."], ["Two."]]
        assert await messages_of(service) == ["First.", "One.", "Second.", "Two."]


@run
async def test_the_next_process_delivers_an_undelivered_answer_once(
    tmp_path: Path,
) -> None:
    async with open_service(tmp_path, Scripted("The answer.")) as service:
        await accept(open_chats(service), chat=-7, user=42, key="telegram-1", text="Hello.")
        session = await service.tenant("telegram").session("telegram--7")
        await (await session.submit("Hello.", key="telegram-1")).outcome()
    provider = Scripted()
    async with open_service(tmp_path, provider) as service:
        chats = open_chats(service)
        ((replies, found, _),) = await chats.undelivered()
        assert await chats.undelivered() == []  # the delivery has begun
        (message,) = await collect(replies)
        assert found is not None
        assert (found.place, message.text, provider.requests) == (ChatPlace(-7), "The answer.", [])
        assert message.footer.startswith("🟢 Context: ")
        assert await open_chats(service).undelivered() == []


@run
async def test_an_answer_whose_sending_fails_stays_undelivered(tmp_path: Path) -> None:
    async with open_service(tmp_path, Scripted("The answer.")) as service:
        chats = open_chats(service)
        replies = await accept(chats, chat=42, user=42, key="telegram-1", text="Hello.")
        assert (await anext(replies)).text == "The answer."
        await replies.aclose()  # sending it did not work
        ((again, _, _),) = await chats.undelivered()
        assert [message.text for message in await collect(again)] == ["The answer."]
        assert await chats.undelivered() == []


@run
async def test_a_message_that_a_crash_kept_from_being_stored_is_answered_when_it_comes_again(
    tmp_path: Path,
) -> None:
    async with open_service(tmp_path, Scripted("The answer.")) as service:
        sent = {"chat": 42, "user": 42, "key": "telegram-1", "text": "Hello."}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LiveSession, "submit", crash)
            replies = await accept(open_chats(service), **sent)
        assert [message.text for message in await collect(replies)] == [f"{texts.NOT_STORED}."]
        chats = open_chats(service)
        assert await chats.undelivered() == []
        assert [message.text for message in await collect(handle(chats, **sent))] == ["The answer."]


async def crash(*_: object, **__: object) -> None:
    raise RuntimeError("the process ends here")


@run
async def test_undelivered_answers_of_a_deleted_session_are_dropped(tmp_path: Path) -> None:
    async with open_service(tmp_path, Scripted("The answer.")) as service:
        replies = await accept(open_chats(service), chat=42, user=42, key="telegram-1", text="Hello.")
        await anext(replies)
        await replies.aclose()
        await service.tenant("telegram").delete("telegram-42")
        assert await open_chats(service).undelivered() == []


@run
async def test_a_chat_whose_session_was_deleted_gets_a_new_one(tmp_path: Path) -> None:
    async with open_service(tmp_path, Scripted("One.", "Two.")) as service:
        chats = open_chats(service)
        await send(chats, "Hello.")
        await service.tenant("telegram").delete("telegram-42")
        assert (await send(chats, "And now?")).text == "Two."
        assert await messages_of(service, "telegram-42-2") == ["And now?", "Two."]


@run
async def test_the_answer_of_a_scheduled_turn_goes_to_its_chat(tmp_path: Path) -> None:
    async with open_service(tmp_path, Scripted("Good morning.", "Hello.", "Elsewhere.")) as service:
        chats = open_chats(service)
        tenant = service.tenant("telegram")
        session = await tenant.ensure("telegram--7-2")
        turn = await session.submit("Say good morning.", key=schedule_key("morning", "2026-01-01T08:00:00Z"))
        expected = await chats.unrequested_answer(session, turn)
        assert expected is not None
        assert expected.message is not None
        said = [message.text for message in await collect(expected.replies)]
        assert (expected.message.place, said) == (ChatPlace(-7), ["⏰ `morning`\n\nGood morning."])
        asked = await session.submit("Hello.", key="telegram-9")
        await asked.outcome()
        assert await chats.unrequested_answer(session, asked) is None
        other = await tenant.ensure("notes")
        assert await chats.unrequested_answer(other, await other.submit("x")) is None


# ── access ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("text", ["Hello.", "/help", "/context", "/new", "/compact", "/pair", "/start"])
def test_without_access_every_input_gets_one_sentence_and_is_not_stored(tmp_path: Path, text: str) -> None:
    @run
    async def test() -> None:
        async with open_service(tmp_path, Scripted()) as service:
            message = await send(open_chats(service), text, user=666)
            assert message == ChannelMessage(text=texts.no_access("telegram", 666))
            assert await service.tenant("telegram").sessions() == []

    test()


@run
async def test_with_an_empty_allow_list_no_user_has_access(tmp_path: Path) -> None:
    async with open_service(tmp_path, Scripted()) as service:
        chats = open_chats(service, allowed=frozenset())
        assert not await chats.is_allowed(USER)
        assert (await send(chats, "Hello.")).text == texts.no_access("telegram", USER)


@run
async def test_a_code_pairs_one_user_permanently(tmp_path: Path) -> None:
    async with open_service(tmp_path, Scripted("Hello.")) as service:
        chats = open_chats(service)
        code = await Pairing(service.runtime.database).create_code("telegram", now=service.runtime.clock())
        assert (await send(chats, "/pair WRONGONE", user=7)).text == texts.NOT_PAIRED
        assert (await send(chats, f"/pair {code}", user=7)).text == texts.PAIRED
        assert (await send(chats, f"/pair {code}", user=8)).text == texts.NOT_PAIRED
        (login,) = await service.runtime.audit.page(AuditFilter(user="7"), limit=9)
        assert (login.actor, login.action, login.tenant) == ("pairing code", "login", "telegram")
        assert (await send(chats, "Hello.", user=7, chat=7)).text == "Hello."
        assert (await send(open_chats(service, platform="discord"), "x", user=7)).text == texts.no_access(
            "discord", 7
        )


@run
async def test_after_too_many_wrong_codes_the_reply_says_how_long_to_wait(tmp_path: Path) -> None:
    async with open_service(tmp_path, Scripted()) as service:
        chats = open_chats(service)
        now = service.runtime.clock()
        service.runtime.clock = lambda: now
        for _ in range(MAX_WRONG_CODES):
            assert (await send(chats, "/pair WRONGONE", user=7)).text == texts.NOT_PAIRED
        now += 61
        code = await Pairing(service.runtime.database).create_code("telegram", now=now)
        expected = (await send(chats, f"/pair {code}", user=7)).text
        assert expected == texts.locked_out("telegram", 7, seconds=WRONG_CODE_WINDOW_S - 61)
        assert "in 59 minutes" in expected
        assert "(7) to `telegram.allowed`" in expected


@run
async def test_buttons_do_nothing_for_a_user_without_access(tmp_path: Path) -> None:
    async with open_service(tmp_path, Scripted("One.")) as service:
        chats = open_chats(service)
        await send(chats, "Hello.")
        (message,) = await collect(press(chats, chat=42, user=666, action="compact"))
        assert message.text == texts.no_access("telegram", 666)


@run
async def test_content_that_is_not_read_is_named_each_time_and_explained_once_a_day(tmp_path: Path) -> None:
    async with open_service(tmp_path, Scripted()) as service:
        now = [0.0]
        service.runtime.clock = lambda: now[0]
        chats = open_chats(service)

        async def explain(user: int, *kinds: str) -> list[str]:
            message = IncomingMessage(key="k", place=ChatPlace(user), user=user, text="", unread=kinds)
            return [reply.text for reply in await collect((await chats.accept(message)).replies)]

        explained = ["I do not read stickers. I read text and text files."]
        assert await explain(USER, "stickers") == explained
        assert await explain(USER, "stickers") == ["I do not read stickers."]
        both = "I do not read stickers.\nI do not read polls. I read text and text files."
        assert await explain(USER, "stickers", "polls") == [both]
        assert len(await explain(USER, EDITS)) == 1
        assert await explain(USER, EDITS) == []
        now[0] = 86_400.0
        assert await explain(USER, "stickers") == explained
        assert await explain(6, "stickers") == [texts.no_access("telegram", 6)]


# ── commands ─────────────────────────────────────────────────────────────────────────────────────────────


@run
async def test_context_adds_up_and_does_not_enter_the_conversation(tmp_path: Path) -> None:
    provider = Scripted("Hello to you.", "Yes.")
    async with open_service(tmp_path, provider) as service:
        chats = open_chats(service)
        await send(chats, "Hello.")
        session = await service.tenant("telegram").session("telegram-42")
        report, last = await session.report(), session.session.last
        card = (await send(chats, "/context")).text
        rows = {m[1]: int(m[2].replace(",", "")) for m in re.finditer(r"^([a-z]+) +([\d,]+) ", card, re.M)}
        assert rows.pop("window") == sum(rows.values()) == report.window
        assert rows == {name: tokens for name, tokens in report.totals.items() if tokens}
        assert f"{report.used:,}/{report.window:,}" in card
        assert session.session.last == last
        await send(chats, "Again.")
        assert "Context" not in str(provider.requests[1].to_openai())


@run
async def test_context_warns_of_statements_that_are_shown_nowhere(tmp_path: Path) -> None:
    async with open_service(tmp_path, Scripted("Good.", "Good.", "Good.")) as service:
        chats = open_chats(service)
        await send(chats, "We ship to Bolivia first. The `budget` is 12,450.50 EUR.")
        await send(chats, "Hello.")
        assert "nowhere" not in (await send(chats, "/context")).text
        session = await service.tenant("telegram").session("telegram-42")
        (said, _) = [one.handle for one in await session.session.statements()]
        await session.session.drop(said)
        assert (await send(chats, "/context")).text.endswith(
            "\n⚠️ There is no room for 2 things that you said. Tell me again what still holds:"
            "\n• `We ship to Bolivia first.`\n• `The 'budget' is 12,450.50 EUR.`"
        )


@run
async def test_tokens_shows_the_usage_so_far(tmp_path: Path) -> None:
    async with open_service(tmp_path, Scripted("Hello to you.")) as service:
        chats = open_chats(service)
        await send(chats, "Hello.")
        usage = await (await service.tenant("telegram").session("telegram-42")).usage()
        card = (await send(chats, "/tokens")).text
        assert f"read {usage.input:,} tokens" in card
        assert f"written {usage.output:,}" in card
        assert "Turns: 1 so far" in card


@run
async def test_commands_of_a_chat_without_words_say_so(tmp_path: Path) -> None:
    async with open_service(tmp_path, Scripted()) as service:
        chats = open_chats(service)
        for text in ("/context", "/tokens", "/undo", "/compact", "/new"):
            assert (await send(chats, text)).text == texts.NO_MESSAGES
        assert (await send(chats, "/stop")).text == texts.IDLE
        assert await service.tenant("telegram").sessions() == []


@run
async def test_compact_says_before_and_after_and_undo_takes_it_back(tmp_path: Path) -> None:
    async with open_service(tmp_path, Scripted(*long_turns(9)), window=8_000) as service:
        chats = open_chats(service)
        for n in range(9):
            await send(chats, f"Question {n}?")
        session = await service.tenant("telegram").session("telegram-42")
        before = (await session.report()).used
        message = await send(chats, "/compact the numbers")
        after = (await session.report()).used
        assert after < before
        assert f"{before:,} → {after:,} tokens" in message.text
        assert message.footer == texts.footer(await session.report())
        undone = await send(chats, "/undo")
        assert undone.text.startswith("↩️ I took back a summary")
        assert (
            abs((await session.report()).used - before) <= 1
        )  # the calibration rounds after a change of tools


@run
async def test_undo_warns_of_a_summary_that_the_model_cannot_read(tmp_path: Path) -> None:
    async with open_service(tmp_path, Scripted("One.")) as service:
        chats = open_chats(service)
        await send(chats, "Hello.")
        session = await service.tenant("telegram").session("telegram-42")
        item = ForeignSummary(native=raw({"type": "compaction"}), dialect="openai_responses")
        (stored,) = await session.append(item)
        rule = f"gpt-5 cannot read {stored.handle}"
        await session.append(
            Compacted(first=stored.seq, last=stored.seq, summary="", reason=UNREADABLE, rule=rule)
        )
        assert f"⚠️ {rule}, and the next request has it again" in (await send(chats, "/undo")).text


@run
async def test_compact_and_undo_with_nothing_to_do_say_so(tmp_path: Path) -> None:
    async with open_service(tmp_path, Scripted("One.")) as service:
        chats = open_chats(service)
        await send(chats, "Hello.")
        assert (await send(chats, "/compact")).text.startswith("I left everything as it is: ")
        assert (await send(chats, "/undo")).text == texts.nothing_to_undo("")
        assert (await send(chats, "/undo frog")).text == texts.nothing_to_undo("frog")


@run
async def test_stop_ends_the_running_turn_and_the_next_one_runs(tmp_path: Path) -> None:
    provider = GatedProvider("One.", "Two.")
    async with open_service(tmp_path, provider) as service:
        chats = open_chats(service)
        first = await accept(chats, chat=42, user=42, key="telegram-1", text="First.")
        second = await accept(chats, chat=42, user=42, key="telegram-2", text="Second.")
        await provider.asked_once.wait()
        stopping = await send(chats, "/stop", key="telegram-3")
        assert stopping.text == "Stopping. Another message waits for an answer."
        assert [message.text for message in await collect(first)] == [texts.STOPPED]
        provider.gate.set()
        assert [message.text for message in await collect(second)] == ["One."]
        await (await service.tenant("telegram").session("telegram-42")).wait_idle()
        assert (await send(chats, "/stop", key="telegram-4")).text == texts.IDLE


@run
async def test_new_with_a_word_carries_a_record_over(tmp_path: Path) -> None:
    provider = Scripted("One.", "Two.", "Three.")
    async with open_service(tmp_path, provider) as service:
        chats = open_chats(service)
        await send(chats, "Never say plum.")
        assert (await send(chats, "/new everything", key="x")).text == texts.BAD_CARRY
        assert (await send(chats, "/new Record", key="n")).text.startswith("🆕")
        await send(chats, "What is the rule?")
        first, *rest = provider.requests[1].to_openai()
        assert first["role"] == "system"
        assert "Never say plum." not in first["content"]
        assert [message["role"] for message in rest] == ["user", "user"]
        assert "> Never say plum." in rest[0]["content"]
        assert await messages_of(service, "telegram-42") == ["Never say plum.", "One."]


@run
async def test_new_starts_another_session_and_keeps_the_old_one(tmp_path: Path) -> None:
    provider = Scripted("One.", "Two.", "Three.")
    async with open_service(tmp_path, provider) as service:
        chats = open_chats(service)
        await send(chats, "The word is plum.")
        assert (await send(chats, "/new", key="n")).text.startswith("🆕")
        assert await collect(handle(chats, chat=42, user=42, key="n", text="/new")) == []  # a replay
        await send(chats, "What is the word?")
        assert "plum" not in str(provider.requests[1].to_openai())
        assert await messages_of(service, "telegram-42-2") == ["What is the word?", "Two."]
        assert await messages_of(service, "telegram-42") == ["The word is plum.", "One."]
        await send(open_chats(service), "Still?")
        assert await messages_of(service, "telegram-42-2") == [
            "What is the word?",
            "Two.",
            "Still?",
            "Three.",
        ]


@run
async def test_help_lists_all_commands_and_unknown_ones_are_not_sent(tmp_path: Path) -> None:
    provider = Scripted("A path.", "Lines.")
    async with open_service(tmp_path, provider) as service:
        chats = open_chats(service)
        expected = (await send(chats, "/help")).text
        lines = expected.partition("\n\n")[2].splitlines()
        assert [re.split(r"\W+", line)[1] for line in lines] == list(texts.BOT_COMMANDS)
        assert "/pair CODE – connect this account with me" in lines
        assert (await send(chats, "/start")).text == (await send(chats, "/HELP")).text == expected
        assert (await send(chats, "/frobnicate now")).text == texts.unknown_command("/frobnicate")
        assert provider.requests == []
        assert (await send(chats, "/etc/passwd is what?")).text == "A path."
        assert (await send(chats, "/usr\nis a folder")).text == "Lines."


def test_the_reply_names_the_writer_of_the_summary() -> None:
    metrics = msgspec.Raw(msgspec.json.encode(CompactionMetrics(asked=2)))
    by_model = Compacted(first=0, last=1, summary="x", by="openai/gpt-4.1")
    for fact, expected in (
        (by_model, "🗜 Summarised by openai/gpt-4.1: 200 → 100 tokens (50 % less). /undo e5 takes it back."),
        (replace(by_model, by="ledger"), "🗜 Summarised without a model: 200 → 100 tokens"),
        (
            replace(by_model, by="ledger", metrics=metrics),
            "(the model's text did not pass the checks): 200 →",
        ),
    ):
        assert expected in texts.compacted([Event(seq=5, fact=fact)], before=200, after=100)


@run
async def test_a_saving_or_a_loss_is_shown_only_if_there_is_one(tmp_path: Path) -> None:
    async with open_service(tmp_path, Scripted("Hello to you.")) as service:
        await send(open_chats(service), "Hello.")
        session = await service.tenant("telegram").session("telegram-42")
        report, usage = await session.report(), await session.usage()
    shown = "; saved about $0.0008 against sending everything with an ideal cache"
    lost = "; about $0.24 more than sending everything with an ideal cache"
    for saved, expected in ((None, ""), (-0.0008, ""), (0.0, ""), (0.0008, shown), (-0.24, lost)):
        card = texts.tokens(replace(report, spent=0.03, unknown_calls=0, saved=saved), usage)
        assert card.endswith(f"Cost: $0.03{expected}")


@run
async def test_a_warning_says_when_old_turns_are_summarised(tmp_path: Path) -> None:
    async with open_service(tmp_path, Scripted("Hello to you.")) as service:
        await send(open_chats(service), "Hello.")
        report = await (await service.tenant("telegram").session("telegram-42")).report()
    report = replace(report, window=1_000, used=700, act=750, limit=900)
    takes = "⚠️ Our conversation fills 70.0 % of the context window. I summarise older messages"
    full = "⚠️ The context window is full: 70.0 %, and a request may take at most 90.0 %."
    for state, expected in (
        (
            "warn",
            f"{takes} as soon as it pays off, at the latest before a request would take more than 90.0 %.",
        ),
        (
            "act",
            f"{takes} as soon as it pays off, at the latest before a request would take more than 90.0 %.",
        ),
        ("over", f"{full} I summarise older messages before the next answer."),
    ):
        assert texts.warning(replace(report, state=state)) == expected


def test_a_note_says_why_a_summary_was_made_before_the_window_was_full() -> None:
    metrics = msgspec.Raw(msgspec.json.encode(CompactionMetrics(before=900, after=100)))
    for reason, why in (("tokens", ""), ("price", " to make further answers cheaper")):
        fact = Compacted(first=0, last=1, summary="x", reason=reason, metrics=metrics)
        expected = f"🗜 I summarised older messages{why}: 900 → 100 tokens. /undo e5 takes it back."
        assert reduction_notes([Event(seq=5, fact=fact)]) == [expected]


def test_a_note_about_a_cut_says_what_it_hid() -> None:
    metrics = msgspec.Raw(msgspec.json.encode(CompactionMetrics(before=900, after=100)))
    masks = (Mask(target=2, text="x"), Mask(target=4, text="x"), Mask(target=1, part=0, text="x"))
    cut = Compacted(first=1, last=4, keep=(1, 3), masks=masks, summary="x", reason="price", metrics=metrics)
    assert reduction_notes([Event(seq=5, fact=cut)]) == [
        "🗜 I hid 2 older results and shortened 1 long message to make further answers cheaper: "
        "900 → 100 tokens. /undo e5 takes it back."
    ]


def test_summaries_of_one_cut_are_one_line_and_so_are_clips() -> None:
    def summary(seq: int, first: int, last: int, **sizes: int) -> Event:
        metrics = msgspec.Raw(msgspec.json.encode(CompactionMetrics(**sizes)))
        return Event(seq=seq, fact=Compacted(first=first, last=last, summary="x", metrics=metrics))

    inner, outer = summary(80, 0, 9, before=1_221, after=106), summary(81, 0, 20, before=1_183, after=397)
    beside = summary(82, 21, 30, before=500, after=100)
    clips = [
        Event(seq=seq, fact=Clipped(target=target, pieces=(), kept_tokens=kept, total_tokens=3_000))
        for seq, target, kept in ((93, 1, 900), (94, 1, 377), (95, 2, 377))  # text 1 was clipped twice
    ]
    assert reduction_notes([inner, *clips, outer]) == [
        "🗜 I summarised older messages: 2,298 → 397 tokens. /undo e81 takes it back.",
        "✂️ I clipped 2 long texts to 754 of 6,000 tokens. /undo e95 takes it back.",
    ]
    assert reduction_notes([outer, beside])[0].startswith(
        "🗜 I summarised older messages: 1,683 → 497 tokens. "
    )


def test_one_reduction_is_what_one_line_tells() -> None:
    def clip(target: int, rule: str = "economy: no consent") -> Clipped:
        return Clipped(target=target, pieces=(), rule=rule)

    asked = Compacted(first=0, last=1, summary="x", reason="hand")
    facts = [
        UserSaid(content="a"),
        *(clip(0), clip(0)),  # e1, e2: for the first answer
        ModelSaid(content="b"),
        *(asked, asked),  # e4, e5: /compact
        Noted(text="between"),
        asked,  # e7: another /compact
        clip(0),  # e8: made before the next message, and told with its answer
        UserSaid(content="c"),
        *(clip(9), Compacted(first=0, last=3, summary="x"), clip(0, "detail"), clip(0)),  # e10 to e13
        ModelSaid(content="d"),
    ]
    log = [Event(seq=seq, fact=fact) for seq, fact in enumerate(facts)]

    def found(name: str = "") -> list[str]:
        return [event.handle for event in find_reduction(log, name)]

    assert found() == found("e8") == ["e8", "e10", "e13"]
    assert found("e1") == ["e1", "e2"]
    assert (found("e4"), found("e7"), found("e11")) == (["e4", "e5"], ["e7"], ["e11"])
    log.append(Event(seq=15, fact=Reverted(target=13)))
    assert found() == ["e12"]
    with pytest.raises(UnknownHandle):
        found("frog")


@run
async def test_less_than_a_turn_is_not_about_zero_turns(tmp_path: Path) -> None:
    async with open_service(tmp_path, Scripted("Hello to you.")) as service:
        await send(open_chats(service), "Hello.")
        session = await service.tenant("telegram").session("telegram-42")
        report, usage = await session.report(), await session.usage()
    for left, expected in ((0, "less than one turn"), (3, "about 3")):
        card = texts.tokens(replace(report, turns_left=left), usage)
        assert f"Turns: 1 so far, {expected} until older messages must be shortened" in card
    assert "Turns: 1 so far\n" in texts.tokens(replace(report, turns_left=None), usage)


# ── a window that fills up ───────────────────────────────────────────────────────────────────────────────


@run
async def test_one_warning_with_a_compact_button_and_a_reply_to_old_buttons(
    tmp_path: Path,
) -> None:
    async with open_service(tmp_path, Scripted(*long_turns(40)), window=8_000) as service:
        chats = open_chats(service)
        session = await service.tenant("telegram").ensure("telegram-42")
        warned = []
        while (state := (await session.report()).state) == "ok" or len(warned) < 2:
            warned.append(await send(chats, "Go on."))
            assert len(warned) < 40
            if (await session.report()).state != "ok" and state != "ok":
                break
        loud = [message for message in warned if message.buttons]
        assert len(loud) == 1
        assert loud[0].buttons == (Button("Compact now", "compact"),)
        used = re.search(
            r"\(([\d.]+ %)\)\n⚠️ Our conversation fills ([\d.]+ %) of the context window", loud[0].footer
        )
        assert used is not None
        assert used[1] == used[2], "footer and warning show the same number"
        report = await session.report()
        limit = report.percent(report.limit)
        when = f"as soon as it pays off, at the latest before a request would take more than {limit}."
        assert f"I summarise older messages {when}" in loud[0].footer
        before = (await session.report()).used
        (message,) = await collect(press(chats, chat=42, user=42, action="compact"))
        after = await session.report()
        assert f"{before:,} → {after.used:,} tokens" in message.text
        assert after.state == "ok"
        (message,) = await collect(press(chats, chat=42, user=42, action="compact"))
        assert message.text == texts.compaction_not_needed(after)
        (message,) = await collect(press(chats, chat=42, user=42, action="from:another-version"))
        assert message.text == texts.OLD_BUTTON
        undone = await send(chats, "/undo")
        report = await session.report()
        assert abs(report.used - before) <= 1
        assert report.state == "warn"
        assert undone.footer == f"{texts.footer(report)}\n{texts.warning(report)}"
        assert undone.buttons == loud[0].buttons


@run
async def test_a_summary_written_for_an_answer_is_noted_below_it(tmp_path: Path) -> None:
    async with open_service(tmp_path, Scripted(*long_turns(60)), window=8_000) as service:
        chats = open_chats(service)
        for _ in range(60):
            message = await send(chats, "Go on.")
            if message.footer.startswith("🗜"):
                break
        assert re.search(
            r"🗜 I summarised older messages: [\d,]+ → [\d,]+ tokens. /undo e\d+ takes it back.",
            message.footer,
        )


@run
async def test_a_background_summary_is_noted_once_below_the_next_answer(
    tmp_path: Path,
) -> None:
    async def later(*_: object) -> None:
        """Write no summaries in the background."""

    async with open_service(tmp_path, Scripted(*long_turns(60)), window=8_000) as service:
        service.runtime.delegate_summaries(later)
        chats = open_chats(service)
        session = await service.tenant("telegram").ensure("telegram-42")
        while (written := await session.prepare()) is None:
            assert "🗜" not in (await send(chats, "Go on.")).footer
        assert (await send(chats, "And on.")).footer.splitlines()[0] == reduction_notes([written])[0]
        assert "🗜" not in (await send(chats, "And on.")).footer


@run
async def test_undo_names_a_summary_that_no_answer_has_reported_and_repeats_no_warning(
    tmp_path: Path,
) -> None:
    async def later(*_: object) -> None:
        """Write no summaries in the background."""

    async with open_service(tmp_path, Scripted(*long_turns(60)), window=8_000) as service:
        service.runtime.delegate_summaries(later)
        chats = open_chats(service)
        session = await service.tenant("telegram").ensure("telegram-42")
        footer = ""
        while (written := await session.prepare()) is None:
            footer = (await send(chats, "Go on.")).footer
        assert "⚠️" in footer, "warned of before"
        undone = await send(chats, "/undo")
        when = f"({written.handle}, made since the last answer)"
        assert undone.text == f"↩️ I took back a summary {when}: the model sees it all again."
        assert (undone.footer, undone.buttons) == (texts.footer(await session.report()), ())


@run
async def test_requested_and_undone_summaries_are_not_noted(tmp_path: Path) -> None:
    async def later(*_: object) -> None:
        """Write no summaries in the background."""

    async with open_service(tmp_path, Scripted(*long_turns(60)), window=16_000) as service:
        service.runtime.delegate_summaries(later)
        chats = open_chats(service)
        for _ in range(8):
            await send(chats, "Go on.")
        await send(chats, "/compact")
        assert "🗜" not in (await send(chats, "Go on.")).footer
        session = await service.tenant("telegram").session("telegram-42")
        while await session.prepare() is None:
            await send(chats, "Go on.")
        await send(chats, "/undo")
        assert "🗜" not in (await send(chats, "Go on.")).footer


@run
async def test_an_answer_notes_a_summary_that_is_undone_before_the_answer_is_sent(tmp_path: Path) -> None:
    async def later(*_: object) -> None:
        """Write no summaries in the background."""

    async with open_service(tmp_path, Scripted(*long_turns(60)), window=16_000) as service:
        service.runtime.delegate_summaries(later)
        chats, footer, handle_of = open_chats(service), "", re.compile(r"/undo (e\d+) takes it back")
        live = await service.tenant("telegram").ensure("telegram-42")
        while not any(isinstance(event.fact, Compacted) for event in await live.events()):
            replies = await accept(
                chats, chat=USER, user=USER, key=f"telegram-{len(await live.events())}", text="Go on."
            )
            await live.wait_idle()
            if any(isinstance(event.fact, Compacted) for event in await live.events()):
                undone = await send(chats, "/undo")
            (answer,) = await collect(replies)
            footer = answer.footer
        noted = handle_of.search(footer)
        assert noted
        assert f"({noted[1]}" in undone.text


@run
async def test_a_message_larger_than_the_window_fails_and_the_chat_continues(
    tmp_path: Path,
) -> None:
    async with open_service(tmp_path, Scripted("Hello to you."), window=4_000) as service:
        chats = open_chats(service)
        message = await send(chats, "word " * 8_000)
        assert re.fullmatch(
            r"❌ Sorry, I have no answer: your message takes [\d,]+ tokens, and a whole request may take at most "
            r"[\d,]+\. It stays in our conversation, and from your next message on the model sees a part of it\. "
            r"If you would rather send it in parts, or as a text file, of which the model reads the beginning, "
            r"take it out first\.",
            message.text,
        )
        assert (await send(chats, "Hello.")).text == "Hello to you."


# ── failures ─────────────────────────────────────────────────────────────────────────────────────────────


@run
async def test_a_failure_is_a_reply_without_secrets_and_can_be_retried_once(
    tmp_path: Path,
) -> None:
    provider = Scripted(ProviderError(f"429 for key {SECRET}", code="rate"), "Now it works.")
    async with open_service(tmp_path, provider) as service:
        chats = open_chats(service)
        message = await send(chats, "Hello.")
        assert message.text == f"❌ Sorry, I have no answer: {texts.PROVIDER_FAILURES['rate']}."
        (button,) = message.buttons
        assert button.label == "Try again"
        answers = [collect(press(chats, chat=42, user=42, action=button.action)) for _ in range(2)]
        expected = [message.text for answer in await asyncio.gather(*answers) for message in answer]
        assert sorted(expected) == ["Now it works.", texts.OLD_BUTTON]
        (late,) = await collect(press(chats, chat=42, user=42, action=button.action))
        assert late.text == texts.OLD_BUTTON
        (other,) = await collect(press(chats, chat=42, user=42, action="again:t999"))
        assert other.text == texts.OLD_BUTTON
        assert len(provider.requests) == 2
        assert await messages_of(service) == ["Hello.", "Now it works."]


@pytest.mark.parametrize(
    "problem",
    [
        ProviderError(f"refused: {SECRET}", code="refused"),
        RuntimeError(SECRET),
        ValueError(f"Bearer {SECRET}"),
    ],
)
def test_error_replies_contain_no_secret(tmp_path: Path, problem: Exception) -> None:
    @run
    async def test() -> None:
        async with open_service(tmp_path, Scripted(problem)) as service:
            message = await send(open_chats(service), "Hello.")
            assert message.text.startswith("❌ Sorry, I have no answer: ")
            assert SECRET not in str(message)
            assert SECRET[-12:] not in str(message)

    test()


@run
async def test_a_message_that_cannot_be_stored_is_reported(tmp_path: Path) -> None:
    async with open_service(tmp_path, Scripted()) as service:
        chats = open_chats(service)
        await service.runtime.database.close()
        message = await send(chats, "Hello.")
        assert message.text.startswith(f"{texts.NOT_STORED}: ")


@run
async def test_an_empty_answer_is_reported(tmp_path: Path) -> None:
    async with open_service(tmp_path, Scripted("  ")) as service:
        assert (await send(open_chats(service), "Hello.")).text == texts.EMPTY_ANSWER


# ── chats ────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_chat_is_found_by_the_session_id() -> None:
    for place in (ChatPlace(42), ChatPlace(-1001234567890), ChatPlace(2**53), ChatPlace(-1001, 7)):
        for number in (1, 2, 17):
            assert find_place("telegram", chat_session_id("telegram", place, number)) == place
    for other in ("telegram-", "telegram-x", "discord-42", "telegram-42-x", "telegram-42-2-3", "notes", ""):
        assert find_place("telegram", other) is None


@run
async def test_answers_are_given_up_and_messages_forgotten_after_two_days(tmp_path: Path) -> None:
    async with open_service(tmp_path, Scripted()) as service:
        chats, day = Chats(service.runtime.database), 86_400.0
        for key, now in (("old", 0.0), ("new", 1.5 * day)):
            message = ChatMessage(key=key, place=ChatPlace(1), session="telegram-1")
            await chats.record_message("telegram", message, now=now)
        assert [m.key for m in await chats.undelivered("telegram", now=1.9 * day)] == ["old", "new"]
        assert [m.key for m in await chats.undelivered("telegram", now=2.1 * day)] == ["new"]
        assert await chats.undelivered("discord", now=2.1 * day) == []
        assert await chats.give_up_expired("discord", now=2.1 * day) == 0
        assert [await chats.give_up_expired("telegram", now=2.1 * day) for _ in range(2)] == [1, 0]
        await chats.mark_done("telegram", "new", now=2.2 * day)
        assert await chats.record_command("telegram", "old", place=ChatPlace(1), now=2.2 * day) is False
        await chats.mark_done("telegram", "new", now=4.3 * day)
        assert await chats.find_message("telegram", "old") is None
        assert await chats.record_command("telegram", "new", place=ChatPlace(1), now=4.3 * day) is False


@run
async def test_starting_the_next_session_twice_starts_it_once(tmp_path: Path) -> None:
    async with open_service(tmp_path, Scripted()) as service:
        chats = Chats(service.runtime.database)
        place = ChatPlace(5)
        first = await chats.session("discord", place)
        assert await chats.start_next_session("discord", place, session=first) == "discord-5-2"
        assert await chats.start_next_session("discord", place, session=first) == "discord-5-2"
        assert await chats.session("discord", place) == "discord-5-2"


@run
async def test_a_delivered_answer_is_no_error_if_it_cannot_be_recorded(tmp_path: Path) -> None:
    trigger = (
        "CREATE TRIGGER fails BEFORE UPDATE OF state ON chat_messages BEGIN SELECT RAISE(ABORT, 'no'); END"
    )
    async with open_service(tmp_path, Scripted("One.", "Two.")) as service:
        chats = open_chats(service)
        await send(chats, "Hello.")
        with closing(sqlite3.connect(tmp_path / "served" / "service.db")) as database:
            database.execute(trigger)
        assert (await send(chats, "And now?")).text == "Two."
        assert await chats.undelivered() == []  # it is not sent again by this process
