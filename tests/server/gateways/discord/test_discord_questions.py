"""Tools in a Discord channel: the question with its buttons, and who may answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from foveal.server.gateways import texts
from support.discord_scene import run, scene, without_footers
from support.discord_stand_in import CHANNEL, OWNER, Sent, mention_of_bot, until
from support.noting_tool import CALL, Notes

OTHER = 8


def find_asked(sent: list[Sent]) -> Sent | None:
    return next((one for one in sent if "May I use `note`?" in one.content), None)


@pytest.mark.parametrize(("button", "written"), [("Yes", ["buy milk"]), ("No", [])])
@run
async def test_a_call_waits_for_the_owner(tmp_path: Path, button: str, written: list[str]) -> None:
    notes = Notes()
    async with scene(tmp_path, CALL, "Done.", tools=[notes.tool()]) as here:
        await here.api.say("Write it down.")
        await until(lambda: find_asked(here.api.sent))
        asked = find_asked(here.api.sent)
        assert asked is not None
        assert '```\n{"text": "buy milk"}\n```' in asked.content
        found = {one["label"]: one for one in asked.buttons}
        assert (list(found), notes.written) == (["Yes", "No"], [])
        await here.api.press(found[button])
        await until(lambda: "Done." in without_footers(here.api.said()))
        assert notes.written == written
        await here.api.press(found["Yes"])
        await until(lambda: texts.ANSWERED_BEFORE in here.api.said())
        assert notes.written == written


@pytest.mark.parametrize("approvers", ["owners", "admins"])
@run
async def test_others_in_a_channel_are_told_in_private_that_they_cannot_answer(
    tmp_path: Path, approvers: str
) -> None:
    notes, settings = Notes(), {"discord.approvers": approvers, "discord.allowed": [OWNER]}
    async with scene(tmp_path, CALL, "Done.", tools=[notes.tool()], **settings) as here:
        code = await here.pairing.create_code("discord", now=here.service.runtime.clock())
        assert await here.pairing.claim("discord", code, OTHER, now=here.service.runtime.clock())
        await here.api.say("Write it down.", user=OTHER, guild=True, mentions=[mention_of_bot()])
        await until(lambda: find_asked(here.api.sent))
        asked = find_asked(here.api.sent)
        assert asked is not None
        assert asked.channel == CHANNEL

        def refusals() -> list[Sent]:
            return [one for one in here.api.sent if one.content.endswith("can answer.")]

        await here.api.press(asked.buttons[0], user=OTHER, guild=True)
        await until(refusals)
        assert here.api.callbacks[-1]["data"]["flags"] == 64, "only its user sees it"
        assert notes.written == []
        here.api.admins.add(OTHER)
        await here.api.press(asked.buttons[0], user=OTHER, guild=True)
        if approvers == "owners":
            await until(lambda: len(refusals()) == 2)
            assert notes.written == []
            await here.api.press(asked.buttons[0], user=OWNER, guild=True)
        await until(lambda: "Done." in without_footers(here.api.said(CHANNEL)))
        assert notes.written == ["buy milk"]
