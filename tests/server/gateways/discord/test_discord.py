"""The Discord bot: the real discord.py against a local stand-in of Discord."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from foveal.errors import BadSetting, ProviderError
from foveal.server.gateways import texts
from foveal.server.gateways.delivery import SEND_PAUSES_S
from foveal.server.gateways.discord.send import DISCORD_MESSAGE_LIMIT, REFUSED_DISCORD_PART, discord_parts
from foveal.server.gateways.gateway import connection_states
from foveal.server.gateways.incoming import MAX_UNKNOWN_USER_REPLIES_PER_MINUTE
from foveal.server.gateways.outgoing import ChannelMessage
from support.discord_scene import Gated, run, scene, server, without_footers
from support.discord_stand_in import (
    BOT,
    CHANNEL,
    DM,
    GUILD,
    OWNER,
    ROLE,
    TOKEN,
    DiscordApi,
    bot,
    mention_of_bot,
    until,
)
from support.serve_process import Server, serving

OTHER_USER = 8
ATTEMPTS = len(SEND_PAUSES_S) + 1
SUMMARY = "## Task\n\nCount words.\n\n## State\n\nAll of them are counted."


# ── messages ─────────────────────────────────────────────────────────────────────────────────────────────


@run
async def test_a_direct_message_is_answered_with_footer_and_typing_status(
    tmp_path: Path,
) -> None:
    provider = Gated("Hello to you.")
    async with scene(tmp_path, provider=provider) as here:
        await here.api.say("Hello.")
        await until(lambda: here.api.typing == [DM])
        provider.gate.set()
        await until(lambda: here.api.sent)
        (said,) = here.api.said()
        report = await (await here.service.tenant("discord").session(f"discord-{DM}")).report()
        assert said == f"Hello to you.\n-# {texts.footer(report)}"
        assert await here.user_messages() == ["Hello."]


@run
async def test_in_a_channel_only_mentions_replies_and_commands_are_answered(tmp_path: Path) -> None:
    async with scene(tmp_path, "One.", "Two.", "Three.") as here:
        me = {"mentions": [mention_of_bot()]}
        await here.api.say("nothing for you", guild=True)
        await here.api.say("/shrug", guild=True)
        await here.api.say(f"<@{BOT}>, tell <@{BOT}> a joke", guild=True, **me)
        await until(lambda: len(here.api.said(CHANNEL)) == 1)
        answered = {"message_id": "1", "channel_id": str(CHANNEL), "guild_id": str(GUILD)}
        theirs = here.api.new_message("One.", CHANNEL, bot())
        await here.api.say(
            "go on", guild=True, type=19, message_reference=answered, referenced_message=theirs
        )
        await until(lambda: len(here.api.said(CHANNEL)) == 2)
        await here.api.say("/context", guild=True)
        await until(lambda: len(here.api.said(CHANNEL)) == 3)
        await here.api.say(f"again <@!{BOT}>", guild=True, **me)
        await until(lambda: len(here.api.said(CHANNEL)) == 4)
        await here.api.say(f"<@&{ROLE}> and again", guild=True, mention_roles=[str(ROLE)])
        await until(lambda: len(here.api.said(CHANNEL)) == 5)
        heard = [f"tell @user{BOT} a joke", "go on", "again", "and again"]
        told = await here.user_messages(f"discord-{CHANNEL}")
        assert [text.splitlines()[-1] for text in told] == heard
        assert all(sent.body["message_reference"]["message_id"] for sent in here.api.sent)


@run
async def test_messages_of_bots_webhooks_and_discord_are_ignored(tmp_path: Path) -> None:
    async with scene(tmp_path, "Hello.") as here:
        await here.api.say("I am a bot", author=bot() | {"id": "55"})
        await here.api.say("I am you", author=bot() | {"bot": False})
        await here.api.say("I am a webhook", webhook_id="66")
        await here.api.say("", type=7)
        await here.api.say("I am a person")
        await until(lambda: here.api.sent)
        assert await here.user_messages() == ["I am a person"]
        assert without_footers(here.api.said()) == ["Hello."]


@run
async def test_each_channel_has_its_own_session(tmp_path: Path) -> None:
    async with scene(tmp_path, "One.", "Two.") as here:
        await here.api.say("here")
        await until(lambda: len(here.api.sent) == 1)
        await here.api.say(f"<@{BOT}> there", guild=True, mentions=[mention_of_bot()])
        await until(lambda: len(here.api.sent) == 2)
        assert await here.sessions() == [f"discord-{CHANNEL}", f"discord-{DM}"]
        heard = '[foveal: message from "user7" (id 7)]\nthere'
        assert await here.user_messages(f"discord-{CHANNEL}") == [heard]


@run
async def test_messages_of_a_channel_are_stored_and_answered_in_order(
    tmp_path: Path,
) -> None:
    long = "\n\n".join(f"paragraph {number} " + "x" * 1_500 for number in range(3))
    async with scene(tmp_path, long, "second", "third") as here:
        for text in ("a", "b", "c"):
            await here.api.say(text)
        await until(lambda: len(here.api.sent) == 5)
        assert await here.user_messages() == ["a", "b", "c"]
        assert [text.split()[0] for text in here.api.said()] == [*["paragraph"] * 3, "second", "third"]


@run
async def test_stop_does_not_wait_for_the_answer_that_it_stops(tmp_path: Path) -> None:
    provider = Gated("never said")
    async with scene(tmp_path, provider=provider) as here:
        await here.api.say("Count to a million.")
        await until(lambda: provider.requests)
        await here.api.say("/stop")
        await until(lambda: len(here.api.sent) == 2)
        assert sorted(without_footers(here.api.said())) == ["Stopping.", texts.STOPPED]


@run
async def test_a_message_that_arrives_twice_is_answered_once(tmp_path: Path) -> None:
    async with scene(tmp_path, "One.", "Two.") as here:
        message = await here.api.say("Hello.")
        await here.api.again(message)
        await until(lambda: here.api.sent)
        await here.api.again(message)
        await here.api.say("And now?")
        await until(lambda: len(here.api.sent) == 2)
        assert without_footers(here.api.said()) == ["One.", "Two."]
        assert await here.user_messages() == ["Hello.", "And now?"]


@run
async def test_messages_during_a_lost_connection_are_answered_after_it(
    tmp_path: Path,
) -> None:
    async with scene(tmp_path, "One.", "Two.") as here:
        await here.api.drop()
        await here.api.say("Are you there?")
        await until(lambda: here.api.sent)
        assert (here.api.resumed, len(here.api.identified)) == (1, 1)
        assert without_footers(here.api.said()) == ["One."]


@run
async def test_unpaired_surrogates_in_an_answer_are_replaced(tmp_path: Path) -> None:
    async with scene(tmp_path, "One \ud800\0.", "Two.", "Three.") as here:
        for number, text in enumerate(("\0", "\u202e\u200b", "👨‍👩‍👧" * 300), 1):
            await here.api.say(text)
            await until(lambda number=number: len(here.api.sent) == number)
        assert without_footers(here.api.said()) == ["One \ufffd\0.", "Two.", "Three."]


@run
async def test_replies_to_a_user_without_access_are_limited(tmp_path: Path) -> None:
    async with scene(tmp_path, "Hello.") as here:
        for _ in range(10 * MAX_UNKNOWN_USER_REPLIES_PER_MINUTE):
            await here.api.say("Let me in!", user=OTHER_USER)
        await here.api.say("Hello.")
        await until(lambda: here.api.said())
        await until(lambda: len(here.api.said(DM + OTHER_USER)) >= MAX_UNKNOWN_USER_REPLIES_PER_MINUTE)
    assert (
        len(here.api.said(DM + OTHER_USER)) < 5 * MAX_UNKNOWN_USER_REPLIES_PER_MINUTE
    )  # a few more, if this machine is very slow


@run
async def test_a_mention_without_text_is_answered_with_the_help(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        await here.api.say(f"<@{BOT}>", guild=True, mentions=[mention_of_bot()])
        await until(lambda: here.api.sent)
        assert here.api.said(CHANNEL) == [texts.help_text()]


# ── who may ──────────────────────────────────────────────────────────────────────────────────────────────


@run
async def test_users_without_access_get_one_sentence_and_are_not_stored(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        place = DM + OTHER_USER
        picture = {"id": "1", "filename": "a", "size": 1, "url": "http://x/a", "proxy_url": "http://x/a"}
        for number, said in enumerate(("Hello.", "/context", "/new", "")):
            await here.api.say(said, user=OTHER_USER, attachments=[] if said else [picture])
            await until(lambda number=number: len(here.api.sent) == number + 1)
        assert set(here.api.said(place)) == {texts.no_access("discord", OTHER_USER)}
        assert await here.sessions() == []


@run
async def test_a_pairing_code_gives_access(tmp_path: Path) -> None:
    async with scene(tmp_path, "Welcome.") as here:
        place = DM + OTHER_USER
        code = await here.pairing.create_code("discord", now=here.service.runtime.clock())
        await here.api.say("/pair 23456789", user=OTHER_USER)
        await until(lambda: len(here.api.sent) == 1)
        await here.api.say(f"/pair {code}", user=OTHER_USER)
        await until(lambda: len(here.api.sent) == 2)
        await here.api.say("Hello.", user=OTHER_USER)
        await until(lambda: len(here.api.sent) == 3)
        assert without_footers(here.api.said(place)) == [texts.NOT_PAIRED, texts.PAIRED, "Welcome."]


@run
async def test_with_an_empty_allow_list_no_user_has_access(tmp_path: Path) -> None:
    async with scene(tmp_path, **{"discord.allowed": []}) as here:
        await here.api.say("Hello.")
        await until(lambda: here.api.sent)
        assert here.api.said() == [texts.no_access("discord", OWNER)]


# ── answers ──────────────────────────────────────────────────────────────────────────────────────────────


@run
async def test_an_answer_mentions_no_user_and_shows_no_previews(tmp_path: Path) -> None:
    async with scene(tmp_path, "@everyone <@8> look at https://example.org") as here:
        await here.api.say("Hello.")
        await until(lambda: here.api.sent)
        await here.api.slash("context")
        await until(lambda: len(here.api.sent) == 2)
        assert [sent.body["allowed_mentions"] for sent in here.api.sent] == [{"parse": []}] * 2
        assert [sent.body["flags"] & 4 for sent in here.api.sent] == [4, 4]


def test_a_long_answer_is_split_and_keeps_its_code_and_footer() -> None:
    code = "```python\n" + "\n".join(f"line_{number} = {number}" for number in range(200)) + "\n```"
    said = discord_parts(
        ChannelMessage(text=f"Before.\n\n{code}\n\n{'😀' * 1_500}", footer="🟢 Context: 1/2 (50.0 %)")
    )
    assert all(len(piece.encode("utf-16-le")) // 2 <= DISCORD_MESSAGE_LIMIT for piece in said)
    assert all(piece.count("```") % 2 == 0 for piece in said)
    assert said[-1].endswith("\n-# 🟢 Context: 1/2 (50.0 %)")


def test_a_footer_that_does_not_fit_becomes_its_own_message() -> None:
    assert discord_parts(ChannelMessage(text="x" * DISCORD_MESSAGE_LIMIT, footer="one\ntwo")) == [
        "x" * DISCORD_MESSAGE_LIMIT,
        "-# one\n-# two",
    ]


@run
async def test_a_failure_becomes_a_reply_without_secrets_and_a_button_asks_again(tmp_path: Path) -> None:
    problem = ProviderError("503 for key sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789", code="server")
    async with scene(tmp_path, problem, problem, "Now it works.") as here:
        await here.api.say("Hello.")
        for number in (1, 2):
            await until(lambda number=number: len(here.api.sent) == number)
            failed = here.api.sent[-1]
            assert without_footers([failed.content]) == [texts.no_answer("", code="server")]
            assert [button["label"] for button in failed.buttons] == ["Try again"]
            await here.api.press(failed.buttons[0])
        await until(lambda: len(here.api.sent) == 3)
        assert without_footers(here.api.said())[2] == "Now it works."
        assert await here.user_messages() == ["Hello."]


# ── commands and buttons ─────────────────────────────────────────────────────────────────────────────────


@run
async def test_the_commands_are_registered_and_work_as_application_commands(tmp_path: Path) -> None:
    async with scene(tmp_path, "Hello.") as here:
        await until(lambda: here.api.commands)
        listed = {command["name"]: command for command in here.api.commands}
        assert list(listed) == list(texts.BOT_COMMANDS)
        needed = {name: entry["required"] for name in listed for entry in listed[name].get("options", [])}
        optional = dict.fromkeys(("compact", "new", "undo", "memory", "forget"), False)
        assert needed == {**optional, "remember": True, "pair": True}
        assert listed["pair"]["description"] == "connect this account with me"
        await here.api.slash("undo", name="e5")
        await until(lambda: len(here.api.sent) == 1)
        await here.api.say("Hello.")
        await until(lambda: len(here.api.sent) == 2)
        await here.api.slash("tokens")
        await until(lambda: len(here.api.sent) == 3)
        nothing, _, tokens = here.api.sent
        assert (nothing.way, nothing.content) == ("followup", texts.NO_MESSAGES)
        assert (tokens.way, tokens.content.partition(":")[0]) == ("followup", "🟢 Context")
        assert [callback["type"] for callback in here.api.callbacks] == [5, 5]
        assert await here.user_messages() == ["Hello."]


@run
async def test_users_without_access_are_answered_in_private(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        await here.api.slash("context", user=OTHER_USER, guild=True)
        await until(lambda: len(here.api.sent) == 1)
        await here.api.press({"custom_id": "foveal:compact"}, user=OTHER_USER, guild=True)
        await until(lambda: len(here.api.sent) == 2)
        assert set(here.api.said(CHANNEL)) == {texts.no_access("discord", OTHER_USER)}
        assert [callback["data"]["flags"] for callback in here.api.callbacks] == [64, 64]
        assert await here.sessions() == []


@run
async def test_the_pair_command_is_answered_in_private(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        code = await here.pairing.create_code("discord", now=here.service.runtime.clock())
        await here.api.slash("pair", user=OTHER_USER, guild=True, code=code)
        await until(lambda: here.api.sent)
        assert here.api.said(CHANNEL) == [texts.PAIRED]
        assert here.api.callbacks[0]["data"]["flags"] == 64
        assert await here.pairing.is_paired("discord", OTHER_USER)


@run
async def test_the_compact_button_works_even_after_a_restart(tmp_path: Path) -> None:
    words = " ".join(f"word{number}" for number in range(230))  # no rest of such a message is waited for
    window = {"window": 6_000, "reserve": 500, "tokenizer": "estimate"}
    async with server(tmp_path, *["Noted."] * 9, SUMMARY, **window) as here:
        async with here.bot():
            for number in range(1, 10):
                await here.api.say(words)
                await until(lambda number=number: len(here.api.sent) == number)
        assert [bool(sent.buttons) for sent in here.api.sent] == [False] * 8 + [True]
        (button,) = next(sent.buttons for sent in here.api.sent if sent.buttons)
        assert button["label"] == "Compact now"
        async with here.bot():
            before = len(here.api.sent)
            await here.api.press(button)
            await until(lambda: len(here.api.sent) > before)
            assert here.api.said()[-1].startswith("🗜 Summarised")


# ── trouble ──────────────────────────────────────────────────────────────────────────────────────────────


@run
async def test_a_failed_message_is_sent_again_and_shown_once(tmp_path: Path) -> None:
    busy = {"message": "You are being rate limited.", "retry_after": 0.01, "global": False}
    async with scene(tmp_path, "One.") as here:
        here.api.failures = [(503, {}, {}), (429, busy, {"Via": "1.1 here"}), (503, {}, {})]
        await here.api.say("Hello.")
        await until(lambda: here.api.sent)
        assert without_footers(here.api.said()) == ["One."]


@run
async def test_an_undelivered_answer_is_delivered_after_the_next_start(
    tmp_path: Path,
) -> None:
    async with server(tmp_path, "One.", "Two.") as here:
        async with here.bot():
            here.api.failures = [(503, {}, {})] * ATTEMPTS
            await here.api.say("Hello.")
            await until(lambda: not here.api.failures)
        assert here.api.sent == []
        async with here.bot():
            await until(lambda: here.api.sent)
            await here.api.say("And now?")
            await until(lambda: len(here.api.sent) == 2)
        assert without_footers(here.api.said()) == ["One.", "Two."]
        assert await here.user_messages() == ["Hello.", "And now?"]
        assert await here.undelivered() == []


@run
async def test_the_next_bot_delivers_the_answer_of_an_unfinished_turn(tmp_path: Path) -> None:
    provider = Gated("At last.")
    async with server(tmp_path, provider=provider) as here:
        async with here.bot(grace_s=0.0):
            message = await here.api.say("Take your time.")
            await until(lambda: provider.requests)
        assert await here.undelivered() == [f"discord-{message['id']}"]
        provider.gate.set()
        async with here.bot():
            await until(lambda: here.api.sent)
        assert without_footers(here.api.said()) == ["At last."]
        assert await here.undelivered() == []


@run
async def test_an_answer_that_its_channel_refuses_comes_before_the_next_one(tmp_path: Path) -> None:
    async with server(tmp_path, "One.", "Two.") as here:
        async with here.bot():
            here.api.failures = [(403, {"code": 50013, "message": "Missing Permissions"}, {})]
            await here.api.say("Hello.")
            await until(lambda: not here.api.failures)
            await here.api.say("And now?")
            await until(lambda: len(here.api.sent) == 2)
        assert without_footers(here.api.said()) == ["One.", "Two."]
        assert await here.undelivered() == []


@run
async def test_a_sentence_stands_for_a_part_that_discord_refuses(tmp_path: Path) -> None:
    async with server(tmp_path, "One.") as here:
        async with here.bot():
            here.api.failures = [(400, {"code": 50035, "message": "Invalid Form Body"}, {})]
            await here.api.say("Hello.")
            await until(lambda: here.api.sent)
        assert here.api.said() == [REFUSED_DISCORD_PART]
        assert await here.undelivered() == []


@run
async def test_the_answer_of_a_scheduled_turn_goes_to_its_channel(tmp_path: Path) -> None:
    async with scene(tmp_path, "Good morning.", "No channel.") as here:
        tenant = here.service.tenant("discord")
        turn = await (await tenant.ensure(f"discord-{CHANNEL}")).submit("Greet them.", key="schedule-greet-1")
        await turn.outcome()
        await until(lambda: here.api.sent)
        turn = await (await tenant.ensure("no-channel")).submit("Greet nobody.", key="schedule-greet-2")
        await turn.outcome()
        assert [without_footers([sent.content]) for sent in here.api.sent] == [["Good morning."]]
        assert here.api.sent[0].channel == CHANNEL


@run
async def test_of_two_servers_one_listens_and_the_other_takes_over(tmp_path: Path) -> None:
    async with server(tmp_path, "One.", "Two.") as here:
        async with here.bot():
            second = here.starting()
            gateway = await second.__aenter__()
            (_, text) = await connection_states([gateway], pair=str, seconds=60.0)
            assert (
                text == "Discord on, at another server of this folder (1 user with access, others by discord)"
            )
            await here.api.say("Hello.")
            await until(lambda: here.api.sent)
            assert len(here.api.identified) == 1
        try:
            await until(lambda: len(here.api.identified) == 2)
            await here.api.say("And now?")
            await until(lambda: len(here.api.sent) == 2)
        finally:
            await second.__aexit__(None, None, None)
        assert without_footers(here.api.said()) == ["One.", "Two."]


@pytest.mark.parametrize(
    ("code", "token", "text"),
    [
        (0, "MTAx.wrong.token", "does not accept DISCORD_BOT_TOKEN"),
        (4014, TOKEN, "requires the Message Content Intent"),
    ],
)
def test_a_refused_bot_is_reported_without_the_token(
    code: int, token: str, text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def proof() -> None:
        async with server(tmp_path) as here:
            here.api.refusal_code, here.token = code, token
            async with here.starting() as gateway:
                (_, state) = await connection_states([gateway], pair=str, seconds=60.0)
                assert state.startswith(f"Discord {text}")
                assert state in caplog.text

    asyncio.run(proof())
    assert token not in caplog.text


@run
async def test_the_bot_reconnects_when_discord_can_be_reached_again(tmp_path: Path) -> None:
    async with server(tmp_path, "Here I am.") as here:
        here.api.failing_logins = 2
        async with here.bot():
            await here.api.say("Hello?")
            await until(lambda: here.api.sent)
        assert without_footers(here.api.said()) == ["Here I am."]


@run
async def test_the_token_is_sent_only_over_https_or_locally(tmp_path: Path) -> None:
    async with server(tmp_path, **{"discord.base_url": "http://example.org"}) as here:
        with pytest.raises(BadSetting, match="https"):
            async with here.starting():
                pass


@run
async def test_logs_contain_neither_the_token_nor_messages(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with scene(tmp_path, "canary answer", RuntimeError("canary failure")) as here:
        here.api.failures = [(503, {}, {}), (400, {"code": 50035, "message": "canary body"}, {})]
        await here.api.say("canary question")
        await until(lambda: here.api.sent)
        await here.api.say("canary question again")
        await until(lambda: len(here.api.sent) == 2)
        await here.api.slash("pair", code="canary code")
        await until(lambda: len(here.api.sent) == 3)
    assert caplog.records
    assert TOKEN not in caplog.text
    assert "canary" not in caplog.text


# ── the real server ──────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def process(api: DiscordApi, folder: Path) -> AsyncIterator[Server]:
    """Run `foveal serve` with the bot in a process; its model never answers."""
    settings = {"discord.allowed": [OWNER], "discord.base_url": api.url}
    environment = {"DISCORD_BOT_TOKEN": TOKEN, "GATE": str(folder / "never")}
    context = serving(folder=folder, settings=settings, environment=environment)
    running = await asyncio.to_thread(context.__enter__)
    try:
        await until(lambda: api.identified)
        yield running
    finally:
        await asyncio.to_thread(context.__exit__, None, None, None)


@run
async def test_a_code_works_while_the_server_runs_and_messages_survive_a_kill(
    tmp_path: Path,
) -> None:
    async with server(tmp_path, "One.", "Two.") as here:
        async with process(here.api, tmp_path / "served") as running:
            code = await here.pairing.create_code("discord", now=here.service.runtime.clock())
            await here.api.say(f"/pair {code}", user=OTHER_USER)
            await until(lambda: here.api.said(DM + OTHER_USER) == [texts.PAIRED])
            message = await here.api.say("hold on to this")
            await until(lambda: here.api.typing)  # its words are stored, and the model is asked
            await asyncio.to_thread(running.kill)
            assert TOKEN not in running.output
            assert "hold on" not in running.output
        async with here.bot():
            await until(lambda: here.api.said())
            await here.api.again(message)
            await here.api.say("and this")
            await until(lambda: len(here.api.said()) == 2)
        assert without_footers(here.api.said()) == ["One.", "Two."]
        assert await here.user_messages() == ["hold on to this", "and this"]
