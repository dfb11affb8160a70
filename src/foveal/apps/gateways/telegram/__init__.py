"""Telegram: the bot of `TELEGRAM_BOT_TOKEN`, as one face of the server.

    async with telegram(service, pairing, config, environment) as bot:
        ...                        # it listens until the block is left, or `bot.stop_listening()`

It reads by long polling, so that the server needs no address of its own on the internet. Of several servers on one
folder one listens, and another takes over when it is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

from foveal.apps.gateways.access import base_url
from foveal.apps.gateways.gateway import SETTLE, talk_of, token_of, told
from foveal.apps.gateways.telegram.telegram_gateway import TelegramGateway
from foveal.apps.gateways.telegram.telegram_send import BotApiClient, Sleep
from foveal.config import Config
from foveal.server.pairing import Pairing
from foveal.server.service import Service

TOKEN: Final = "TELEGRAM_BOT_TOKEN"


@asynccontextmanager
async def telegram(
    service: Service,
    pairing: Pairing,
    config: Config,
    environment: Mapping[str, str],
    *,
    sleep: Sleep = asyncio.sleep,
    settle: float = SETTLE,
) -> AsyncIterator[TelegramGateway]:
    """Listen to Telegram while the block lasts. Whether Telegram can be reached shows later, in its `standing`."""
    token = token_of(environment, TOKEN, "the token that @BotFather gave you")
    client = BotApiClient(token, base_url=base_url(config, "telegram"), sleep=sleep)
    talk = talk_of(service, pairing, config, "telegram")
    gateway = TelegramGateway(talk, client, service.ground.turnstile, sleep=sleep)
    async with told(service, "telegram", gateway, settle=settle):
        gateway.begin()
        yield gateway
