"""The bot of `DISCORD_BOT_TOKEN`, as one face of the server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

from discord import VoiceClient

from foveal.apps.gateways.addresses import base_url
from foveal.apps.gateways.discord.gateway import Gateway
from foveal.apps.gateways.discord.posting import Sleep
from foveal.apps.gateways.face import SETTLE, talk_of, token_of, told
from foveal.config import Config
from foveal.service import Service
from foveal.service.pairing import Pairing

TOKEN: Final = "DISCORD_BOT_TOKEN"


@asynccontextmanager
async def discord(
    service: Service,
    pairing: Pairing,
    config: Config,
    environment: Mapping[str, str],
    *,
    sleep: Sleep = asyncio.sleep,
    settle: float = SETTLE,
) -> AsyncIterator[Gateway]:
    """Listen to Discord while the block lasts. Whether Discord can be reached shows later, in its `standing`."""
    wanted = "the token of a bot, from Discord's developer portal (Bot, Reset Token)"
    token, base = token_of(environment, TOKEN, wanted), base_url(config, "discord")
    logging.getLogger("discord").setLevel(logging.WARNING)  # below that it logs what people say
    VoiceClient.warn_nacl = VoiceClient.warn_dave = False  # nobody speaks here
    talk = talk_of(service, pairing, config, "discord")
    gateway = Gateway(talk, service.ground.turnstile, token=token, base=base, sleep=sleep)
    running = asyncio.create_task(gateway.run())
    try:
        async with told(service, "discord", gateway, settle=settle):
            yield gateway
    finally:
        running.cancel()
        await asyncio.wait([running])
