"""Soak of the bots: each message is answered once and in order, under kills and outages.

A real server process with a scripted model talks to a stand-in of Telegram or Discord. FOVEAL_SOAK=1 sends 1,000
messages to 20 chats; the log says how many duplicates there were, which the Bot API cannot prevent.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from support.discord_stand_in import DiscordApi
from support.gateway_soak import (
    SoakAnswer,
    SoakPlan,
    SoakRun,
    check_answers,
    check_soak,
    run_soak,
    soak_plan,
)
from support.gateway_soak_apps import DiscordSoak, TelegramSoak, discord_places, telegram_places
from support.telegram_stand_in import BotApi

LOG: Final = logging.getLogger(__name__)

TELEGRAM_FAULTS: Final = {
    "kill": 1,
    "kill after acceptance": 1,
    "cut": 1,
    "refused": 1,
    "hang": 1,
    "bad gateway": 1,
    "rate limit": 1,
}
MANY_TELEGRAM_FAULTS: Final = {
    "kill": 15,
    "kill after acceptance": 10,
    "cut": 15,
    "refused": 8,
    "hang": 6,
    "bad gateway": 8,
    "rate limit": 6,
    "unauthorised": 3,
}
DISCORD_FAULTS: Final = {"kill": 1, "disconnect": 1, "refused": 1, "unavailable": 1, "lost replies": 1}
MANY_DISCORD_FAULTS: Final = {
    "kill": 5,
    "kill after acceptance": 5,
    "disconnect": 8,
    "refused": 4,
    "hang": 4,
    "unavailable": 6,
    "lost replies": 6,
}


async def soak_telegram(plan: SoakPlan, folder: Path, *, wait_s: float) -> None:
    async with BotApi() as api:
        run = await run_soak(plan, folder / "served", TelegramSoak(api), wait_s=wait_s)
    LOG.info("%s", await check_soak(run))


async def soak_discord(plan: SoakPlan, folder: Path, *, wait_s: float, quiet_s: float) -> None:
    async with DiscordApi() as api:
        run = await run_soak(plan, folder / "served", DiscordSoak(api), wait_s=wait_s, quiet_s=quiet_s)
    LOG.info("%s", await check_soak(run))


@pytest.mark.soak  # `test_telegram_delivery.py` has the outages, `test_telegram.py` the kill and the rate limit
def test_telegram_messages_under_kills_and_outages_are_answered_once_and_in_order(tmp_path: Path) -> None:
    places = telegram_places(5)
    plan = soak_plan(17, messages=22, places=places, faults=TELEGRAM_FAULTS, fault_s=0.5, pause_s=0.1)
    asyncio.run(soak_telegram(plan, tmp_path, wait_s=60))


@pytest.mark.soak  # `test_discord_delivery.py` has the outages, `test_discord.py` the kill
def test_discord_messages_under_outages_are_answered_once_and_in_order(tmp_path: Path) -> None:
    places = discord_places(4)
    plan = soak_plan(17, messages=20, places=places, faults=DISCORD_FAULTS, fault_s=0.3, pause_s=0.1)
    asyncio.run(soak_discord(plan, tmp_path, wait_s=60, quiet_s=3))


@pytest.mark.soak
@pytest.mark.parametrize("seed", [1, 2])
def test_a_thousand_telegram_messages_are_answered_once_and_in_order(tmp_path: Path, seed: int) -> None:
    faults, places = MANY_TELEGRAM_FAULTS, telegram_places(20)
    plan = soak_plan(seed, messages=1_000, places=places, faults=faults, fault_s=20.0, pause_s=0.2)
    asyncio.run(soak_telegram(plan, tmp_path, wait_s=300))


@pytest.mark.soak
def test_a_thousand_discord_messages_are_answered_once_and_in_order(tmp_path: Path) -> None:
    faults, places = MANY_DISCORD_FAULTS, discord_places(20)
    plan = soak_plan(3, messages=1_000, places=places, faults=faults, fault_s=20.0, pause_s=0.2)
    asyncio.run(soak_discord(plan, tmp_path, wait_s=300, quiet_s=5))


# ── the check ────────────────────────────────────────────────────────────────────────────────────────────


class RecordedAnswers(TelegramSoak):
    """Answers of a run that did not take place."""

    def __init__(self, *answers: SoakAnswer) -> None:
        self._answers = list(answers)

    def answers(self, start: int = 0) -> list[SoakAnswer]:
        return self._answers[start:]


def accepted(text: str, *, chat: int = 41, at: float = 0.0, is_reply_lost: bool = False) -> SoakAnswer:
    return SoakAnswer((chat, None), text, at, is_reply_lost)


@pytest.mark.parametrize(
    ("answers", "problems", "duplicates"),
    [
        ([accepted("m0001-1"), accepted("m0002-1")], [], {}),
        (
            [accepted("m0002-1"), accepted("m0001-1")],
            ["(41, None): not in order: ['m0002-1', 'm0001-1']"],
            {},
        ),
        ([accepted("m0001-1")], ["(41, None): not answered: ['m0002-1']"], {}),
        (
            [accepted("m0001-1"), accepted("m0001-1"), accepted("m0002-1")],
            ["(41, None): m0001-1 was sent again without a cause"],
            {},
        ),
        ([accepted("m0001-1", is_reply_lost=True), accepted("m0001-1"), accepted("m0002-1")], [], {"cut": 1}),
        ([accepted("m0001-1", at=99.9), accepted("m0001-1"), accepted("m0002-1")], [], {"kill": 1}),
        (
            [accepted("m0001-1"), accepted("m0002-1"), accepted("m0003-1", chat=42)],
            ["(42, None): parts of other places: ['m0003-1']"],
            {},
        ),
        (
            [accepted("m0001-1"), accepted("An error."), accepted("m0002-1")],
            ["(41, None): unexpected message 'An error.'"],
            {},
        ),
    ],
)
def test_the_check_finds_what_is_wrong(
    tmp_path: Path, answers: list[SoakAnswer], problems: list[str], duplicates: dict[str, int]
) -> None:
    run = SoakRun(SoakPlan([], []), tmp_path, RecordedAnswers(*answers), kills=[100.0])
    counted = Counter[str]()
    assert check_answers(run, {(41, None): ["m0001", "m0002"]}, counted) == problems
    assert counted == duplicates
