"""Delivery of answers to Discord: order, outages, parts, closed threads, refused tokens."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from foveal.server.gateways import texts
from foveal.server.gateways.delivery import SEND_PAUSES_S
from support.discord_scene import Gated, Scene, run, scene, server, without_footers
from support.discord_stand_in import BOT, DM, TOKEN, Json, mention_of_bot, until

ATTEMPTS = len(SEND_PAUSES_S) + 1
LONG_ANSWER = "\n\n".join(f"Part {number}: " + "word " * 350 for number in range(3))


async def delivered(here: Scene) -> None:
    """Wait until every answer is delivered."""
    while await here.undelivered():
        await asyncio.sleep(0.01)


@run
async def test_an_undelivered_answer_is_delivered_later_without_a_restart(tmp_path: Path) -> None:
    async with scene(tmp_path, "One.") as here:
        here.api.failures = [(503, {}, {})] * ATTEMPTS
        await here.api.say("Hello.")
        await until(lambda: not here.api.failures)
        await asyncio.sleep(0.1)
        assert here.api.sent == []
        here.later.set()
        await until(lambda: here.api.sent)
        assert without_footers(here.api.said()) == ["One."]


@run
async def test_the_next_answer_of_a_place_comes_after_the_undelivered_one(tmp_path: Path) -> None:
    async with scene(tmp_path, "One.", "Two.") as here:
        here.api.failures = [(503, {}, {})] * ATTEMPTS
        await here.api.say("Hello.")
        await until(lambda: not here.api.failures)
        await asyncio.sleep(0.1)
        await here.api.say("And now?")
        await until(lambda: len(here.api.sent) == 2)
        assert without_footers(here.api.said()) == ["One.", "Two."]
        await delivered(here)


@run
async def test_owed_answers_are_sent_when_the_bot_connects_again(tmp_path: Path) -> None:
    provider = Gated("One.", "Two.")
    async with scene(tmp_path, provider=provider) as here:
        await here.api.say("First.")
        await here.api.say("Second.")
        await until(lambda: provider.requests)
        async with here.api.outage("refused"):
            provider.gate.set()
            await asyncio.sleep(0.4)
        await until(lambda: len(here.api.sent) == 2)
        assert without_footers(here.api.said()) == ["One.", "Two."]
        await delivered(here)


@run
async def test_a_message_whose_acceptance_was_not_seen_is_shown_once(tmp_path: Path) -> None:
    async with scene(tmp_path, LONG_ANSWER) as here:
        async with here.api.outage("lost replies"):
            await here.api.say("Hello.")
            await until(lambda: here.api.sent)
        await until(lambda: len(here.api.sent) >= 3)
        await delivered(here)
        assert [text.partition(":")[0] for text in here.api.said()] == ["Part 0", "Part 1", "Part 2"]


@run
async def test_a_restart_continues_with_the_part_that_was_not_delivered(tmp_path: Path) -> None:
    async with server(tmp_path, LONG_ANSWER) as here:
        thread = await here.api.open_thread("Plans")
        async with here.bot(grace_s=0.0):
            here.api.failures = [None, *[(503, {}, {})] * 100]
            message = await here.api.say(f"<@{BOT}> hello", channel=thread, mentions=[mention_of_bot()])
            await until(lambda: len(here.api.failures) <= 100 - ATTEMPTS)
        assert len(here.api.sent) == 1
        here.api.failures = []
        async with here.bot():
            await delivered(here)
        assert [text.partition(":")[0] for text in here.api.said(thread)] == ["Part 0", "Part 1", "Part 2"]
        replies = [sent.body.get("message_reference", {}).get("message_id") for sent in here.api.sent]
        assert [str(reply) for reply in replies] == [message["id"], "None", "None"]


@run
async def test_answers_to_an_archived_thread_are_told_and_sent_when_it_opens(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    archived: tuple[int, Json, dict[str, str]] = (
        400,
        {"code": 50083, "message": "This thread is archived"},
        {},
    )
    async with scene(tmp_path, "One.", "Two.", "Three.") as here:
        thread = await here.api.open_thread("Plans")
        for text in ("First", "Second"):
            here.api.failures = [archived]
            await here.api.say(f"<@{BOT}> {text}", channel=thread, mentions=[mention_of_bot()])
            await until(lambda: not here.api.failures)
            await until(lambda: here.api.said())
        await here.api.say(f"<@{BOT}> Third", channel=thread, mentions=[mention_of_bot()])
        await until(lambda: here.api.said(thread))
        (notice,) = here.api.said(DM)
        assert "I cannot send 1 answer in `guild / Plans`: the thread is archived." in notice
        await delivered(here)
        assert without_footers(here.api.said(thread)) == ["One.", "Two.", "Three."]
    assert caplog.text.count(f"answers to discord-{thread} cannot be sent: the thread is archived") == 1


@pytest.mark.parametrize("problem", ["token", "login", "intent"])
def test_a_refused_bot_connects_when_it_is_accepted_again(
    problem: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="foveal.gateways")

    @run
    async def check() -> None:
        async with server(tmp_path, "Here I am.") as here:
            here.api.refused_logins = 3 if problem == "login" else 0
            here.api.refusals = [{"token": 4004, "intent": 4014}[problem]] * 3 if problem != "login" else []
            async with here.starting() as gateway:
                while gateway.health().status != "refused":
                    await asyncio.sleep(0.001)
                assert gateway.health().last_error.startswith("Discord ")
                await until(lambda: here.api.identified)
                await here.api.say("Hello?")
                await until(lambda: here.api.sent)
                assert gateway.health().status == "listening"
                assert gateway.health().last_update is not None
            assert without_footers(here.api.said()) == ["Here I am."]

    check()
    messages = [record.getMessage() for record in caplog.records if record.name == "foveal.gateways"]
    assert [text for text in messages if "retries" in text or "listening" in text][1:] == [
        "listening to Discord again"
    ]
    assert TOKEN not in caplog.text


@run
async def test_answers_to_a_user_who_took_no_messages_are_offered_when_they_return(tmp_path: Path) -> None:
    refusal = (403, {"code": 50_007, "message": "Cannot send messages to this user"}, dict[str, str]())
    async with scene(tmp_path, "One.", "Two.") as here:
        here.api.failures.append(refusal)
        await here.api.say("Hello.")
        await until(lambda: not here.api.failures)
        await delivered(here)
        await here.api.say("I am back.")
        await until(lambda: len(here.api.sent) == 2)
        offer, answer = here.api.sent
        assert offer.content == texts.kept_answers(1)
        assert without_footers([answer.content]) == ["Two."]
        await here.api.press(offer.buttons[0])
        await until(lambda: len(here.api.sent) == 3)
        assert without_footers([here.api.sent[2].content]) == ["One."]
