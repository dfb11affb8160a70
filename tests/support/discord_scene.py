"""A server with a Discord bot, against the stand-in of Discord."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

from foveal.agent.tool import Tool
from foveal.config import load
from foveal.core.log import UserSaid, text_of
from foveal.ports import Reply, ReplyPiece
from foveal.server import Chats, Pairing, Service
from foveal.server.gateways.delivery import REDELIVERY_PAUSES_S
from foveal.server.gateways.discord import DiscordGateway, discord
from foveal.testing import Scripted
from support.discord_stand_in import DM, OWNER, TOKEN, DiscordApi, until
from support.provided import provided


def run(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @wraps(test)
    def sync(*args: Any, **kwargs: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 300))  # type: ignore[arg-type]

    return sync


class Gated(Scripted):
    """Answers when its gate is open."""

    def __init__(self, *answers: Any, **more: Any) -> None:
        super().__init__(*answers, **more)
        self.gate = asyncio.Event()

    async def send(self, request: Any, *, max_tokens: int) -> AsyncIterator[ReplyPiece | Reply]:
        self.requests.append(request)
        await self.gate.wait()
        self.requests.pop()
        async for piece in super().send(request, max_tokens=max_tokens):
            yield piece


@dataclass
class Scene:
    api: DiscordApi
    service: Service
    pairing: Pairing
    settings: Any
    token: str = TOKEN
    later: asyncio.Event = field(default_factory=asyncio.Event)
    """Ends the pauses before undelivered answers are sent again."""

    @asynccontextmanager
    async def bot(self, *, grace_s: float = 60.0) -> AsyncIterator[None]:
        async with self.starting(grace_s=grace_s):
            before = len(self.api.identified)
            await until(lambda: len(self.api.identified) > before)
            yield

    @asynccontextmanager
    async def starting(self, *, grace_s: float = 60.0) -> AsyncIterator[DiscordGateway]:
        """Start the bot without waiting for its connection."""
        environment = {"DISCORD_BOT_TOKEN": self.token}
        more: dict[str, Any] = {"sleep": self.sleep, "grace_s": grace_s}
        async with discord(self.service, self.pairing, self.settings, environment, **more) as gateway:
            yield gateway

    async def sleep(self, seconds: float) -> None:
        """Shorten short pauses; pauses before a redelivery end with `self.later`."""
        await (self.later.wait() if seconds in REDELIVERY_PAUSES_S else asyncio.sleep(min(seconds, 0.01)))

    async def undelivered(self) -> list[str]:
        """Return the keys of the messages whose answers are undelivered."""
        now = self.service.runtime.clock()
        return [
            message.key
            for message in await Chats(self.service.runtime.database).undelivered("discord", now=now)
        ]

    async def user_messages(self, session: str = f"discord-{DM}") -> list[str]:
        """Return the stored messages of the users."""
        live = await self.service.tenant("discord").session(session)
        return [text_of(e.fact.content) for e in await live.events() if isinstance(e.fact, UserSaid)]

    async def sessions(self) -> list[str]:
        return sorted(info.id for info in await self.service.tenant("discord").sessions())


@asynccontextmanager
async def server(
    folder: Path,
    *answers: Any,
    provider: Scripted | None = None,
    tools: Sequence[Tool] = (),
    **flags: Any,
) -> AsyncIterator[Scene]:
    """Run a service and a stand-in of Discord, without the bot."""
    async with DiscordApi() as api:
        given = {"discord.allowed": [OWNER], "discord.base_url": api.url} | flags
        settings = load(folder, flags=given, environ={}, user_folder=folder / "no-config")
        async with Service.open(
            settings,
            folder=folder / "served",
            environment={},
            make_provider=provided(provider or Scripted(*answers)),
        ) as service:
            service.runtime.chat_tools["discord"] = tools
            yield Scene(api, service, Pairing(service.runtime.database), settings)


@asynccontextmanager
async def scene(folder: Path, *answers: Any, **more: Any) -> AsyncIterator[Scene]:
    async with server(folder, *answers, **more) as scene, scene.bot():
        yield scene


def without_footers(said: list[str]) -> list[str]:
    """Return messages without their footers."""
    return [text.partition("\n-# ")[0] for text in said]
