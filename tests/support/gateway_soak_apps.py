"""The chat apps of the soak: the stand-ins of Telegram and Discord with places for messages."""

from __future__ import annotations

import asyncio
from typing import Any, Final, cast

from support.discord_stand_in import BOT, DM, DiscordApi, DiscordOutage, mention_of_bot, until
from support.discord_stand_in import TOKEN as DISCORD_TOKEN
from support.gateway_soak import PASTED_CHARS, SoakAnswer, SoakFault, SoakPlace
from support.telegram_stand_in import NAME, BotApi, LostReply, OutageKind
from support.telegram_stand_in import TOKEN as TELEGRAM_TOKEN

FIRST_THREAD: Final = 7_000
FIRST_USER: Final = 40


def telegram_places(count: int) -> list[SoakPlace]:
    """Return places: two fifths private chats, two fifths groups, and topics of two forums."""
    private = [SoakPlace(chat=40 + n, topic=None, user=40 + n) for n in range(count * 2 // 5)]
    groups = [SoakPlace(chat=-100 - n, topic=None, user=60 + n) for n in range(count * 2 // 5)]
    rest = count - len(private) - len(groups)
    topics = [SoakPlace(chat=-200 - n % 2, topic=7 + n, user=80 + n) for n in range(rest)]
    return [*private, *groups, *topics]


class TelegramSoak:
    """Telegram; the fault `cut` closes a connection after the acceptance of a message."""

    platform = "telegram"
    keeps_messages = True

    def __init__(self, api: BotApi) -> None:
        self._api = api

    def settings(self) -> dict[str, Any]:
        return {"telegram.base_url": self._api.url}

    def environment(self) -> dict[str, str]:
        return {"TELEGRAM_BOT_TOKEN": TELEGRAM_TOKEN}

    async def hear(self, place: SoakPlace, text: str) -> None:
        said = text if place.chat > 0 else f"@{NAME} {text}"
        pasted = " text" * (PASTED_CHARS // 5) if text.endswith("p") else ""
        self._api.paste(said + pasted, user=place.user, chat=place.chat, topic=place.topic)

    async def cause(self, fault: SoakFault) -> None:
        if fault.kind == "cut":
            self._api.fail("sendMessage", LostReply())
            return
        async with self._api.outage(cast(OutageKind, fault.kind)):
            await asyncio.sleep(fault.seconds)

    def server_killed(self) -> None:
        """Do nothing: updates that were not acknowledged are sent again."""

    def delivered_at(self, number: str) -> float | None:
        """Return None: no message is lost that could have a time."""
        return None

    def answers(self, start: int = 0) -> list[SoakAnswer]:
        return [
            SoakAnswer(
                place=(message["chat"]["id"], message.get("message_thread_id")),
                text=message["text"],
                at=self._api.accepted_at[message["message_id"]],
                is_reply_lost=message["message_id"] in self._api.lost_replies,
            )
            for message in self._api.messages[start:]
        ]


def discord_places(count: int) -> list[SoakPlace]:
    """Return places: half of them direct channels, half of them threads."""
    users = range(FIRST_USER, FIRST_USER + count // 2)
    direct = [SoakPlace(chat=DM + user, topic=None, user=user) for user in users]
    threads = [SoakPlace(chat=FIRST_THREAD + n, topic=None, user=60 + n) for n in range(count - len(direct))]
    return [*direct, *threads]


class DiscordSoak:
    """Discord; the fault `disconnect` breaks the connection of the gateway."""

    platform = "discord"
    keeps_messages = False

    def __init__(self, api: DiscordApi) -> None:
        self._api = api
        self._sessions = 0
        """Sessions of servers that were killed."""

    def settings(self) -> dict[str, Any]:
        return {"discord.base_url": self._api.url}

    def environment(self) -> dict[str, str]:
        return {"DISCORD_BOT_TOKEN": DISCORD_TOKEN}

    async def hear(self, place: SoakPlace, text: str) -> None:
        """Send a message, but not while no server is connected: Discord would not keep it for the next one."""
        await until(lambda: len(self._api.identified) > self._sessions)
        if place.chat < FIRST_THREAD:
            await self._api.say(text, user=place.user, channel=place.chat)
            return
        if place.chat not in self._api.threads:
            await self._api.open_thread(id=place.chat)
        mentioned = [mention_of_bot()]
        await self._api.say(f"<@{BOT}> {text}", user=place.user, channel=place.chat, mentions=mentioned)

    async def cause(self, fault: SoakFault) -> None:
        if fault.kind == "disconnect":
            await self._api.drop()
            return
        async with self._api.outage(cast(DiscordOutage, fault.kind)):
            await asyncio.sleep(fault.seconds)

    def server_killed(self) -> None:
        self._sessions = len(self._api.identified)

    def delivered_at(self, number: str) -> float | None:
        found = [at for text, at in self._api.delivered_at.items() if number in text]
        return found[0] if found else None

    def answers(self, start: int = 0) -> list[SoakAnswer]:
        return [
            SoakAnswer(
                place=(sent.channel, None),
                text=sent.content,
                at=sent.at,
                is_reply_lost=sent.id in self._api.lost_replies,
            )
            for sent in self._api.sent[start:]
        ]
