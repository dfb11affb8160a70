"""A server with a Telegram bot, against the stand-in of the Bot API."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

from foveal.agent.tool import Tool
from foveal.config import load
from foveal.core.log import ModelSaid, UserSaid, text_of
from foveal.server import Pairing, Service
from foveal.server.gateways.telegram import telegram
from foveal.testing import Scripted
from support.provided import provided
from support.telegram_stand_in import TOKEN, BotApi, Json

USER: Final = 42
REDELIVERY_S: Final = 60.0
"""The shortest pause before an undelivered answer is sent again."""


class Bot:
    """A server with a bot. Its pauses are short, and `pauses` records how long they would be."""

    def __init__(
        self,
        folder: Path,
        api: BotApi,
        provider: Scripted,
        *,
        grace_s: float = 0.0,
        piece_wait_s: float = 0.3,
        tools: Sequence[Tool] = (),
        **settings: Any,
    ) -> None:
        self._tools = tools
        self.api = api
        self.piece_wait_s = piece_wait_s
        self.grace_s = grace_s
        self.provider = provider
        self.pauses: list[float] = []
        self.later = asyncio.Event()
        """Cleared: pauses of a minute and more do not end."""
        self.later.set()
        self.seconds_passed = 0.0
        flags = {"telegram.allowed": [USER], "telegram.base_url": api.url, **settings}
        self._config = load(folder, flags=flags, environ={}, user_folder=folder / "no-config")
        self._folder = folder / "served"

    async def __aenter__(self) -> Bot:
        self._stack = AsyncExitStack()
        config = self._config
        opening = Service.open(
            config,
            folder=self._folder,
            environment={},
            clock=self.clock,
            make_provider=provided(self.provider),
        )
        self.service = await self._stack.enter_async_context(opening)
        self.service.runtime.chat_tools["telegram"] = self._tools
        await self.service.recover()
        pairing, token = Pairing(self.service.runtime.database), {"TELEGRAM_BOT_TOKEN": TOKEN}
        bot = telegram(
            self.service,
            pairing,
            config,
            token,
            sleep=self._sleep,
            grace_s=self.grace_s,
            piece_wait_s=self.piece_wait_s,
        )
        self.gateway = await self._stack.enter_async_context(bot)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def clock(self) -> float:
        return time.time() + self.seconds_passed

    async def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        if seconds >= REDELIVERY_S:
            await self.later.wait()
        await asyncio.sleep(0.01)

    async def waited(self, seconds: float, *, times: int = 1) -> None:
        """Wait until the bot has paused for this time."""
        while self.pauses.count(seconds) < times:
            await asyncio.sleep(0.01)

    async def pair_code(self) -> str:
        """Return a code with which a user gets access."""
        return await Pairing(self.service.runtime.database).create_code("telegram", now=self.clock())

    async def messages(self, session: str = "telegram-42") -> list[str]:
        live = await self.service.tenant("telegram").session(session)
        said = (e.fact for e in await live.events() if isinstance(e.fact, UserSaid | ModelSaid))
        return [text_of(fact.content) for fact in said]


@asynccontextmanager
async def running_bot(folder: Path, *answers: Any, **settings: Any) -> AsyncIterator[Bot]:
    provider = answers[0] if answers and isinstance(answers[0], Scripted) else Scripted(*answers)
    async with BotApi() as api, Bot(folder, api, provider, **settings) as bot:
        yield bot


def texts_of(messages: list[Json]) -> list[str]:
    """Return the texts of messages without footers."""
    return [re.split("\n\n[🟢🟡🔴] Context: ", message["text"])[0] for message in messages]
