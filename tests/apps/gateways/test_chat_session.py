"""A chat with a session behind it, in whichever app: who may talk, what is said, and what happens once only."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from foveal.apps.gateways import texts
from foveal.apps.gateways.chat_session import Button, ChannelMessage, ChatSessions
from foveal.config import load
from foveal.core.compaction import CompactionMeasures
from foveal.core.log import Compacted, Event, ModelSaid, UserSaid, text_of
from foveal.errors import ProviderError
from foveal.server import GUESSES, ChatMessage, Chats, Pairing, Service, chat_of, session_of
from foveal.server.pairing import WINDOW
from foveal.testing import Scripted
from support.gated_provider import Gated, run

USER = 42
SECRET = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKL"


@asynccontextmanager
async def opened(folder: Path, provider: Scripted, **settings: Any) -> AsyncIterator[Service]:
    config = load(folder, flags=settings, environ={}, user_folder=folder / "nobody")
    async with Service.open(config, folder=folder / "served", environment={}) as service:
        service.ground._providers[""] = provider
        yield service


def talking(service: Service, **more: Any) -> ChatSessions:
    more = {"face": "telegram", "allowed": frozenset({USER})} | more
    return ChatSessions(service, Pairing(service.ground.database), **more)


async def all_of(saying: AsyncGenerator[ChannelMessage, None]) -> list[ChannelMessage]:
    return [says async for says in saying]


async def tell(
    talk: ChatSessions, text: str, *, key: str = "", user: int = USER, chat: int = USER
) -> ChannelMessage:
    """Say something, and what the only answer is."""
    tell.count += 1  # type: ignore[attr-defined]
    key = key or f"telegram-{tell.count}"  # type: ignore[attr-defined]
    (says,) = await all_of(talk.heard(chat=chat, user=user, key=key, text=text))
    return says


tell.count = 0  # type: ignore[attr-defined]


async def spoken(service: Service, session: str = "telegram-42") -> list[str]:
    room = await service.tenant("telegram").room(session)
    said = (e.fact for e in await room.events() if isinstance(e.fact, UserSaid | ModelSaid))
    return [text_of(fact.content) for fact in said]


def long_turns(count: int) -> list[str]:
    return [f"Answer {n}: " + " ".join(f"word{n}x{i}" for i in range(150)) for n in range(count)]


# ── messages ─────────────────────────────────────────────────────────────────────────────────────────────


@run
async def test_a_message_is_answered_with_a_footer_that_has_the_numbers_of_the_report(tmp_path: Path) -> None:
    async with opened(tmp_path, Scripted("Hello to you.")) as service:
        talk = talking(service)
        says = await tell(talk, "Hello.")
        report = await (await service.tenant("telegram").room("telegram-42")).report()
        share = report.used / report.window * 100
        footer = f"📊 Context: {report.used:,}/{report.window:,} ({share:.1f}%)"
        assert says == ChannelMessage(text="Hello to you.", footer=footer)
        assert await spoken(service) == ["Hello.", "Hello to you."]


@run
async def test_the_footer_can_be_left_out(tmp_path: Path) -> None:
    async with opened(tmp_path, Scripted("Hello to you.")) as service:
        assert await tell(talking(service, footer=False), "Hello.") == ChannelMessage(text="Hello to you.")


@run
async def test_neither_the_session_nor_its_title_keeps_a_key(tmp_path: Path) -> None:
    async with opened(tmp_path, Scripted("I see.")) as service:
        await tell(talking(service), f"My key is {SECRET}")
        (info,) = await service.tenant("telegram").sessions()
        assert info.title.startswith("My key is [foveal: redacted")
        assert SECRET not in str(await spoken(service))


@run
async def test_stop_ends_a_turn_that_nobody_in_the_chat_asked_for(tmp_path: Path) -> None:
    provider = Gated("One.")
    async with opened(tmp_path, provider) as service:
        room = await service.tenant("telegram").ensure("telegram-42")
        turn = await room.say("Scheduled.", key="schedule-1")
        await provider.asked_once.wait()
        assert (await tell(talking(service), "/stop")).text == "Stopping."
        assert (await turn.outcome()).why == "stopped"


@run
async def test_each_chat_has_a_session_of_its_own(tmp_path: Path) -> None:
    provider = Scripted("One.", "Two.")
    async with opened(tmp_path, provider) as service:
        talk = talking(service)
        await tell(talk, "The word is plum.", chat=1)
        await tell(talk, "What is the word?", chat=-1002)
        assert "plum" not in str(provider.asked[1].to_openai())
        assert await spoken(service, "telegram-1") == ["The word is plum.", "One."]
        assert await spoken(service, "telegram--1002") == ["What is the word?", "Two."]


@run
async def test_the_same_key_runs_once_and_says_nothing_when_it_was_answered(tmp_path: Path) -> None:
    provider = Scripted("One.", "Two.")
    async with opened(tmp_path, provider) as service:
        talk = talking(service)
        await tell(talk, "Hello.", key="telegram-1")
        assert await all_of(talk.heard(chat=42, user=42, key="telegram-1", text="Hello.")) == []
        assert await all_of(talking(service).heard(chat=42, user=42, key="telegram-1", text="Hello.")) == []
        assert len(provider.asked) == 1


@run
async def test_a_message_that_comes_again_while_it_is_answered_is_answered_once(tmp_path: Path) -> None:
    provider = Gated("One.")
    async with opened(tmp_path, provider) as service:
        talk = talking(service)
        first = await talk.take(chat=42, user=42, key="telegram-1", text="Hello.")
        second = await talk.take(chat=42, user=42, key="telegram-1", text="Hello.")
        provider.gate.set()
        assert [len(await all_of(saying)) for saying in (first, second)] == [1, 0]


@run
async def test_messages_are_stored_at_once_and_answered_in_their_order(tmp_path: Path) -> None:
    provider = Gated("One.", "Two.")
    async with opened(tmp_path, provider) as service:
        talk = talking(service)
        first = await talk.take(chat=42, user=42, key="telegram-1", text="First.")
        second = await talk.take(chat=42, user=42, key="telegram-2", text="Second.")
        waiting = await service.ground.desk.waiting()
        assert waiting == [("telegram", "telegram-42", 2)]
        provider.gate.set()
        answers = await asyncio.gather(all_of(first), all_of(second))
        assert [[says.text for says in answer] for answer in answers] == [["One."], ["Two."]]
        assert await spoken(service) == ["First.", "One.", "Second.", "Two."]


@run
async def test_an_answer_that_was_not_delivered_is_delivered_by_the_next_process_and_then_no_more(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path, Scripted("The answer.")) as service:
        await talking(service).take(chat=-7, user=42, key="telegram-1", text="Hello.")
        room = await service.tenant("telegram").room("telegram--7")
        await (await room.say("", key="telegram-1")).outcome()
    provider = Scripted()
    async with opened(tmp_path, provider) as service:
        talk = talking(service)
        ((chat, saying),) = await talk.undelivered()
        assert await talk.undelivered() == []  # somebody is about to
        (says,) = await all_of(saying)
        assert (chat, says.text, provider.asked) == (-7, "The answer.", [])
        assert says.footer.startswith("📊 Context: ")
        assert await talking(service).undelivered() == []


@run
async def test_an_answer_that_nobody_took_to_the_end_is_still_owed(tmp_path: Path) -> None:
    async with opened(tmp_path, Scripted("The answer.")) as service:
        talk = talking(service)
        saying = await talk.take(chat=42, user=42, key="telegram-1", text="Hello.")
        assert (await anext(saying)).text == "The answer."
        await saying.aclose()  # sending it did not work
        ((_, again),) = await talk.undelivered()
        assert [says.text for says in await all_of(again)] == ["The answer."]
        assert await talk.undelivered() == []


@run
async def test_what_was_owed_to_a_deleted_session_is_forgotten(tmp_path: Path) -> None:
    async with opened(tmp_path, Scripted("The answer.")) as service:
        saying = await talking(service).take(chat=42, user=42, key="telegram-1", text="Hello.")
        await anext(saying)
        await saying.aclose()
        await service.tenant("telegram").delete("telegram-42")
        ((_, late),) = await talking(service).undelivered()
        assert await all_of(late) == []
        assert await talking(service).undelivered() == []


@run
async def test_a_chat_whose_session_was_deleted_goes_on_in_a_new_one(tmp_path: Path) -> None:
    async with opened(tmp_path, Scripted("One.", "Two.")) as service:
        talk = talking(service)
        await tell(talk, "Hello.")
        await service.tenant("telegram").delete("telegram-42")
        assert (await tell(talk, "And now?")).text == "Two."
        assert await spoken(service, "telegram-42-2") == ["And now?", "Two."]


@run
async def test_a_turn_that_nobody_in_the_chat_asked_for_is_told_there(tmp_path: Path) -> None:
    async with opened(tmp_path, Scripted("Good morning.", "Hello.", "Elsewhere.")) as service:
        talk = talking(service)
        tenant = service.tenant("telegram")
        room = await tenant.ensure("telegram--7-2")
        turn = await room.say("Say good morning.", key="schedule-1")
        told = await talk.unasked(room, turn)
        assert told is not None
        assert (told[0], [says.text for says in await all_of(told[1])]) == (-7, ["Good morning."])
        asked = await room.say("Hello.", key="telegram-9")
        await asked.outcome()
        assert await talk.unasked(room, asked) is None
        other = await tenant.ensure("notes")
        assert await talk.unasked(other, await other.say("x")) is None


# ── who may talk ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("text", ["Hello.", "/help", "/context", "/new", "/compact", "/pair", "/start"])
def test_a_stranger_hears_one_sentence_whatever_he_says_and_nothing_is_stored(
    tmp_path: Path, text: str
) -> None:
    @run
    async def test() -> None:
        async with opened(tmp_path, Scripted()) as service:
            says = await tell(talking(service), text, user=666)
            assert says == ChannelMessage(text=texts.stranger("telegram", 666))
            assert await service.tenant("telegram").sessions() == []

    test()


@run
async def test_nobody_may_talk_when_nobody_is_allowed(tmp_path: Path) -> None:
    async with opened(tmp_path, Scripted()) as service:
        talk = talking(service, allowed=frozenset())
        assert not await talk.may(USER)
        assert (await tell(talk, "Hello.")).text == texts.stranger("telegram", USER)


@run
async def test_a_stranger_with_a_code_is_paired_for_good_and_the_code_is_used_up(tmp_path: Path) -> None:
    async with opened(tmp_path, Scripted("Hello.")) as service:
        talk = talking(service)
        code = await Pairing(service.ground.database).offer("telegram", now=service.ground.clock())
        assert (await tell(talk, "/pair WRONGONE", user=7)).text == texts.NOT_PAIRED
        assert (await tell(talk, f"/pair {code}", user=7)).text == texts.PAIRED
        assert (await tell(talk, f"/pair {code}", user=8)).text == texts.NOT_PAIRED
        assert (await tell(talk, "Hello.", user=7, chat=7)).text == "Hello."
        assert (await tell(talking(service, face="discord"), "x", user=7)).text == texts.stranger(
            "discord", 7
        )


@run
async def test_after_too_many_wrong_codes_it_is_said_how_long_to_wait(tmp_path: Path) -> None:
    async with opened(tmp_path, Scripted()) as service:
        talk = talking(service)
        now = service.ground.clock()
        service.ground.clock = lambda: now
        for _ in range(GUESSES):
            assert (await tell(talk, "/pair WRONGONE", user=7)).text == texts.NOT_PAIRED
        now += 61
        code = await Pairing(service.ground.database).offer("telegram", now=now)
        told = (await tell(talk, f"/pair {code}", user=7)).text
        assert told == texts.locked_out("telegram", 7, seconds=WINDOW - 61)
        assert "in 59 minutes" in told
        assert "(7) to `telegram.allowed`" in told


@run
async def test_a_stranger_presses_buttons_in_vain(tmp_path: Path) -> None:
    async with opened(tmp_path, Scripted("One.")) as service:
        talk = talking(service)
        await tell(talk, "Hello.")
        (says,) = await all_of(talk.pressed(chat=42, user=666, action="compact"))
        assert says.text == texts.stranger("telegram", 666)


@run
async def test_what_has_no_words_is_answered_kindly(tmp_path: Path) -> None:
    async with opened(tmp_path, Scripted()) as service:
        talk = talking(service)
        assert [s.text for s in await all_of(talk.wordless(user=USER))] == [texts.TEXT_ONLY]
        assert [s.text for s in await all_of(talk.wordless(user=6))] == [texts.stranger("telegram", 6)]


# ── commands ─────────────────────────────────────────────────────────────────────────────────────────────


@run
async def test_the_context_card_adds_up_and_never_enters_the_conversation(tmp_path: Path) -> None:
    provider = Scripted("Hello to you.", "Yes.")
    async with opened(tmp_path, provider) as service:
        talk = talking(service)
        await tell(talk, "Hello.")
        room = await service.tenant("telegram").room("telegram-42")
        report, last = await room.report(), room.session.last
        card = (await tell(talk, "/context")).text
        rows = {m[1]: int(m[2].replace(",", "")) for m in re.finditer(r"^([a-z]+) +([\d,]+) ", card, re.M)}
        assert rows.pop("window") == sum(rows.values()) == report.window
        assert rows == {name: tokens for name, tokens in report.totals.items() if tokens}
        assert f"{report.used:,}/{report.window:,}" in card
        assert room.session.last == last
        await tell(talk, "Again.")
        assert "Context" not in str(provider.asked[1].to_openai())


@run
async def test_the_tokens_card_says_what_was_used_so_far(tmp_path: Path) -> None:
    async with opened(tmp_path, Scripted("Hello to you.")) as service:
        talk = talking(service)
        await tell(talk, "Hello.")
        usage = await (await service.tenant("telegram").room("telegram-42")).usage()
        card = (await tell(talk, "/tokens")).text
        assert f"read {usage.input:,} tokens" in card
        assert f"written {usage.output:,}" in card
        assert "Turns: 1 so far" in card


@run
async def test_commands_of_a_chat_without_words_say_so(tmp_path: Path) -> None:
    async with opened(tmp_path, Scripted()) as service:
        talk = talking(service)
        for text in ("/context", "/tokens", "/undo", "/compact", "/new"):
            assert (await tell(talk, text)).text == texts.EMPTY
        assert (await tell(talk, "/stop")).text == texts.IDLE
        assert await service.tenant("telegram").sessions() == []


@run
async def test_compact_says_before_and_after_and_undo_takes_it_back(tmp_path: Path) -> None:
    async with opened(tmp_path, Scripted(*long_turns(12)), window=8_000) as service:
        talk = talking(service)
        for n in range(12):
            await tell(talk, f"Question {n}?")
        room = await service.tenant("telegram").room("telegram-42")
        before = (await room.report()).used
        says = await tell(talk, "/compact the numbers")
        after = (await room.report()).used
        assert after < before
        assert f"{before:,} → {after:,} tokens" in says.text
        assert says.footer == texts.footer(await room.report())
        undone = await tell(talk, "/undo")
        assert undone.text.startswith("↩️ Took back a summary")
        assert (await room.report()).used == before


@run
async def test_a_second_compact_says_that_there_is_nothing_to_summarise(tmp_path: Path) -> None:
    async with opened(tmp_path, Scripted("One.")) as service:
        talk = talking(service)
        await tell(talk, "Hello.")
        assert (await tell(talk, "/compact")).text.startswith("Nothing was summarised: ")
        assert await tell(talk, "/undo") == ChannelMessage(text=texts.not_undone(""))
        assert await tell(talk, "/undo frog") == ChannelMessage(text=texts.not_undone("frog"))


@run
async def test_compact_and_undo_wait_for_nobody_while_an_answer_is_written(tmp_path: Path) -> None:
    provider = Gated("One.")
    async with opened(tmp_path, provider) as service:
        talk = talking(service)
        saying = await talk.take(chat=42, user=42, key="telegram-1", text="Hello.")
        await provider.asked_once.wait()
        assert (await tell(talk, "/compact", key="a")).text == texts.BUSY
        assert (await tell(talk, "/undo", key="b")).text == texts.BUSY
        provider.gate.set()
        assert [says.text for says in await all_of(saying)] == ["One."]


@run
async def test_stop_ends_the_turn_that_runs_and_the_next_one_follows(tmp_path: Path) -> None:
    provider = Gated("One.", "Two.")
    async with opened(tmp_path, provider) as service:
        talk = talking(service)
        first = await talk.take(chat=42, user=42, key="telegram-1", text="First.")
        second = await talk.take(chat=42, user=42, key="telegram-2", text="Second.")
        await provider.asked_once.wait()
        stopping = await tell(talk, "/stop", key="telegram-3")
        assert stopping.text == "Stopping. Messages that still wait for an answer: 1."
        assert [says.text for says in await all_of(first)] == [texts.STOPPED]
        provider.gate.set()
        assert [says.text for says in await all_of(second)] == ["One."]
        await (await service.tenant("telegram").room("telegram-42")).at_rest()
        assert (await tell(talk, "/stop", key="telegram-4")).text == texts.IDLE


@run
async def test_new_begins_another_session_for_what_comes_next_and_keeps_the_old_one(tmp_path: Path) -> None:
    provider = Scripted("One.", "Two.", "Three.")
    async with opened(tmp_path, provider) as service:
        talk = talking(service)
        await tell(talk, "The word is plum.")
        assert (await tell(talk, "/new", key="n")).text.startswith("🆕")
        assert await all_of(talk.heard(chat=42, user=42, key="n", text="/new")) == []  # a replay
        await tell(talk, "What is the word?")
        assert "plum" not in str(provider.asked[1].to_openai())
        assert await spoken(service, "telegram-42-2") == ["What is the word?", "Two."]
        assert await spoken(service, "telegram-42") == ["The word is plum.", "One."]
        await tell(talking(service), "Still?")
        assert await spoken(service, "telegram-42-2") == ["What is the word?", "Two.", "Still?", "Three."]


@run
async def test_help_names_every_command_and_an_unknown_one_is_not_sent_to_the_model(tmp_path: Path) -> None:
    provider = Scripted("A path.", "Lines.")
    async with opened(tmp_path, provider) as service:
        talk = talking(service)
        told = (await tell(talk, "/help")).text
        lines = told.partition("\n\n")[2].splitlines()
        assert [re.split(r"\W+", line)[1] for line in lines] == list(texts.COMMANDS)
        assert "/pair CODE – let this account talk to the bot" in lines
        assert (await tell(talk, "/start")).text == (await tell(talk, "/HELP")).text == told
        assert (await tell(talk, "/frobnicate now")).text == texts.unknown("/frobnicate")
        assert provider.asked == []
        assert (await tell(talk, "/etc/passwd is what?")).text == "A path."
        assert (await tell(talk, "/usr\nis a folder")).text == "Lines."


def test_a_summary_by_code_alone_is_said_in_words() -> None:
    metrics = msgspec.Raw(msgspec.json.encode(CompactionMeasures(asked=2)))
    by_model = Compacted(first=0, last=1, summary="x", by="openai/gpt-4.1")
    for fact, told in (
        (by_model, "🗜 Summarised by openai/gpt-4.1: 200 → 100 tokens (50% less). /undo takes it back."),
        (replace(by_model, by="ledger"), "🗜 Summarised by code alone: 200 → 100 tokens"),
        (
            replace(by_model, by="ledger", metrics=metrics),
            "(the model's text did not pass the checks): 200 →",
        ),
    ):
        assert told in texts.compacted(Event(seq=5, fact=fact), before=200, after=100)


@run
async def test_a_saving_is_told_only_if_there_is_one(tmp_path: Path) -> None:
    async with opened(tmp_path, Scripted("Hello to you.")) as service:
        await tell(talking(service), "Hello.")
        room = await service.tenant("telegram").room("telegram-42")
        report, usage = await room.report(), await room.usage()
    for saved, told in ((None, ""), (-0.0008, ""), (0.0, ""), (0.0008, ", saved $0.0008")):
        card = texts.tokens(replace(report, spent=0.03, saved=saved), usage)
        assert card.endswith(f"Cost: $0.03{told}")


# ── a window that fills up ───────────────────────────────────────────────────────────────────────────────


@run
async def test_the_warning_comes_once_with_a_button_that_compacts_and_an_old_button_answers_kindly(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path, Scripted(*long_turns(40)), window=8_000) as service:
        talk = talking(service)
        room = await service.tenant("telegram").ensure("telegram-42")
        warned = []
        while (state := (await room.report()).state) == "ok" or len(warned) < 2:
            warned.append(await tell(talk, "Go on."))
            assert len(warned) < 40
            if (await room.report()).state != "ok" and state != "ok":
                break
        loud = [says for says in warned if says.buttons]
        assert len(loud) == 1
        assert loud[0].buttons == (Button("Compact now", "compact"),)
        assert "⚠️ The context is getting full" in loud[0].footer
        before = (await room.report()).used
        (says,) = await all_of(talk.pressed(chat=42, user=42, action="compact"))
        after = await room.report()
        assert f"{before:,} → {after.used:,} tokens" in says.text
        assert after.state == "ok"
        (says,) = await all_of(talk.pressed(chat=42, user=42, action="compact"))
        assert says.text == texts.unneeded(after)
        (says,) = await all_of(talk.pressed(chat=42, user=42, action="from:another-version"))
        assert says.text == texts.OLD
        undone = await tell(talk, "/undo")
        report = await room.report()
        assert (report.used, report.state) == (before, "warn")
        assert undone.footer == f"{texts.footer(report)}\n{texts.warning(report)}"
        assert undone.buttons == loud[0].buttons


@run
async def test_a_summary_that_was_written_for_an_answer_is_told_below_it(tmp_path: Path) -> None:
    async with opened(tmp_path, Scripted(*long_turns(60)), window=8_000) as service:
        talk = talking(service)
        for _ in range(60):
            says = await tell(talk, "Go on.")
            if "summarised" in says.footer.partition("📊")[0]:
                break
        assert re.search(
            r"🗜 Older turns were summarised: [\d,]+ → [\d,]+ tokens. /undo takes it back.", says.footer
        )


@run
async def test_a_summary_that_was_written_between_two_answers_is_told_below_the_next_one_and_no_more(
    tmp_path: Path,
) -> None:
    async def later(*_: object) -> None:
        """Nobody writes summaries by himself here."""

    async with opened(tmp_path, Scripted(*long_turns(60)), window=8_000) as service:
        service.ground.later = later
        talk = talking(service)
        room = await service.tenant("telegram").ensure("telegram-42")
        while (written := await room.prepare()) is None:
            assert "🗜" not in (await tell(talk, "Go on.")).footer
        assert (await tell(talk, "And on.")).footer.splitlines()[0] == texts.reduced([written])[0]
        assert "🗜" not in (await tell(talk, "And on.")).footer


@run
async def test_what_was_asked_for_or_taken_back_is_not_told_again(tmp_path: Path) -> None:
    async def later(*_: object) -> None:
        """Nobody writes summaries by himself here."""

    async with opened(tmp_path, Scripted(*long_turns(60)), window=16_000) as service:
        service.ground.later = later
        talk = talking(service)
        for _ in range(8):
            await tell(talk, "Go on.")
        await tell(talk, "/compact")
        assert "🗜" not in (await tell(talk, "Go on.")).footer
        room = await service.tenant("telegram").room("telegram-42")
        while await room.prepare() is None:
            await tell(talk, "Go on.")
        await tell(talk, "/undo")
        assert "🗜" not in (await tell(talk, "Go on.")).footer


@run
async def test_where_nothing_is_summarised_without_consent_the_warning_is_a_question(tmp_path: Path) -> None:
    settings = {"window": 8_000, "context.policy": "confirm"}
    async with opened(tmp_path, Scripted(*long_turns(60)), **settings) as service:
        talk = talking(service)
        for _ in range(60):
            says = await tell(talk, "Go on.")
            if says.buttons:
                break
        assert says.footer.endswith(" tokens. Summarise old turns?")
        (says,) = await all_of(talk.pressed(chat=42, user=42, action=says.buttons[0].action))
        assert says.text.startswith("🗜 Summarised")


@run
async def test_a_message_that_is_larger_than_the_window_is_answered_with_numbers_and_the_chat_goes_on(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path, Scripted("Hello to you."), window=4_000) as service:
        talk = talking(service)
        says = await tell(talk, "word " * 8_000)
        assert re.match(r"❌ No answer: context needs [\d,]+ tokens but [\d,]+ are available", says.text)
        assert (await tell(talk, "Hello.")).text == "Hello to you."


# ── failures ─────────────────────────────────────────────────────────────────────────────────────────────


@run
async def test_a_failure_becomes_a_reply_without_its_secrets_and_can_be_tried_again_once(
    tmp_path: Path,
) -> None:
    provider = Scripted(ProviderError(f"429 for key {SECRET}", code="rate"), "Now it works.")
    async with opened(tmp_path, provider) as service:
        talk = talking(service)
        says = await tell(talk, "Hello.")
        assert says.text == f"❌ No answer: {texts.SORTS['rate']}."
        (button,) = says.buttons
        assert button.label == "Try again"
        answers = [all_of(talk.pressed(chat=42, user=42, action=button.action)) for _ in range(2)]
        told = [says.text for answer in await asyncio.gather(*answers) for says in answer]
        assert sorted(told) == ["Now it works.", texts.OLD]
        (late,) = await all_of(talk.pressed(chat=42, user=42, action=button.action))
        assert late.text == texts.OLD
        (other,) = await all_of(talk.pressed(chat=42, user=42, action="again:t999"))
        assert other.text == texts.OLD
        assert len(provider.asked) == 2
        assert await spoken(service) == ["Hello.", "Now it works."]


@pytest.mark.parametrize(
    "problem",
    [
        ProviderError(f"refused: {SECRET}", code="refused"),
        RuntimeError(SECRET),
        ValueError(f"Bearer {SECRET}"),
    ],
)
def test_the_words_of_a_failure_never_hold_a_key(tmp_path: Path, problem: Exception) -> None:
    @run
    async def test() -> None:
        async with opened(tmp_path, Scripted(problem)) as service:
            says = await tell(talking(service), "Hello.")
            assert says.text.startswith("❌ No answer: ")
            assert SECRET not in str(says)
            assert SECRET[-12:] not in str(says)

    test()


@run
async def test_a_message_that_cannot_be_stored_is_answered_with_that(tmp_path: Path) -> None:
    async with opened(tmp_path, Scripted()) as service:
        talk = talking(service)
        await service.ground.database.close()
        says = await tell(talk, "Hello.")
        assert says.text.startswith(f"{texts.NOT_STORED}: ")


@run
async def test_an_empty_answer_is_said_to_be_one(tmp_path: Path) -> None:
    async with opened(tmp_path, Scripted("  ")) as service:
        assert (await tell(talking(service), "Hello.")).text == texts.SILENT


# ── chats ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_session_knows_its_chat_and_other_sessions_have_none() -> None:
    for chat in (42, -1001234567890, 2**53):
        for number in (1, 2, 17):
            assert chat_of("telegram", session_of("telegram", chat, number)) == chat
    for other in ("telegram-", "telegram-x", "discord-42", "telegram-42-x", "telegram-42-2-3", "notes", ""):
        assert chat_of("telegram", other) is None


@run
async def test_messages_are_forgotten_after_two_days(tmp_path: Path) -> None:
    async with opened(tmp_path, Scripted()) as service:
        chats = Chats(service.ground.database)
        day = 86_400.0
        await chats.begin("telegram", ChatMessage(key="old", chat=1, session="telegram-1"), now=0.0)
        await chats.begin("telegram", ChatMessage(key="new", chat=1, session="telegram-1"), now=1.5 * day)
        assert [m.key for m in await chats.open("telegram", now=1.9 * day)] == ["old", "new"]
        assert [m.key for m in await chats.open("telegram", now=2.1 * day)] == ["new"]
        assert await chats.open("discord", now=2.1 * day) == []
        await chats.end("telegram", "new", now=2.2 * day)
        assert await chats.message("telegram", "old") is None
        assert await chats.once("telegram", "new", chat=1, now=2.2 * day) is False


@run
async def test_leaving_a_session_twice_leaves_it_once(tmp_path: Path) -> None:
    async with opened(tmp_path, Scripted()) as service:
        chats = Chats(service.ground.database)
        first = await chats.session("discord", 5)
        assert await chats.leave("discord", 5, session=first) == "discord-5-2"
        assert await chats.leave("discord", 5, session=first) == "discord-5-2"
        assert await chats.session("discord", 5) == "discord-5-2"
