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
from foveal.apps.gateways.talk import Talk
from foveal.config import Config
from foveal.errors import BadSetting
from foveal.service import Service
from foveal.service.pairing import Pairing

TOKEN: Final = "DISCORD_BOT_TOKEN"
SETTLE: Final = 5.0
"""Seconds that answers get to be said when the server stops."""


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
    token = environment.get(TOKEN, "").strip()
    if not token:
        raise BadSetting(TOKEN, "", "the token of a bot, from Discord's developer portal (Bot, Reset Token)")
    base = base_url(config, "discord")
    logging.getLogger("discord").setLevel(logging.WARNING)  # below that it logs what people say
    VoiceClient.warn_nacl = VoiceClient.warn_dave = False  # nobody speaks here
    talk = Talk(
        service,
        pairing,
        face="discord",
        allowed=frozenset(config.get("discord.allowed")),
        footer=config.get("discord.footer"),
    )
    gateway = Gateway(talk, service.ground.turnstile, token=token, base=base, sleep=sleep)
    answered = service.tenant("discord").answered
    answered.append(gateway.unasked)
    running = asyncio.create_task(gateway.run())
    try:
        yield gateway
    finally:
        answered.remove(gateway.unasked)
        await gateway.close(settle=settle)
        running.cancel()
        await asyncio.wait([running])
