"""The Telegram gateway: runs the bot of `TELEGRAM_BOT_TOKEN`.

    async with telegram(service, pairing, config, environment) as bot:
        ...                        # it listens until the block ends, or `bot.stop_listening()`

It uses long polling, so the server needs no public address. Of several servers on one folder one listens, and
another takes over when it stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

from telegram.error import TelegramError

from foveal.config import Config
from foveal.server.gateways.delivery import Sleep
from foveal.server.gateways.gateway import CLOSE_GRACE_S, base_url, observed_turns, open_chats, require_token
from foveal.server.gateways.place_intake import PIECE_WAIT_S
from foveal.server.gateways.telegram.gateway import TelegramGateway
from foveal.server.gateways.telegram.send import BotApiClient
from foveal.server.pairing import Pairing
from foveal.server.service import Service

MAX_WEBHOOK_CHECK_S: Final = 5.0
"""Time that the question for a webhook may take before the bot starts."""


@asynccontextmanager
async def telegram(
    service: Service,
    pairing: Pairing,
    config: Config,
    environment: Mapping[str, str],
    *,
    deletes_webhook: bool = False,
    sleep: Sleep = asyncio.sleep,
    grace_s: float = CLOSE_GRACE_S,
    piece_wait_s: float = PIECE_WAIT_S,
) -> AsyncIterator[TelegramGateway]:
    """Listen to Telegram while the block runs; `connection` of the bot says whether Telegram can be reached.

    `deletes_webhook`: the operator agreed that a webhook which another program has set is deleted.
    `piece_wait_s`: how long the next piece of a long text is waited for.
    """
    client = _client(config, environment, sleep=sleep)
    chats = open_chats(service, pairing, config, "telegram")
    deletes_webhook = deletes_webhook or config.get("telegram.webhook") == "delete"
    gateway = TelegramGateway(
        chats,
        client,
        service.runtime.locks,
        deletes_webhook=deletes_webhook,
        sleep=sleep,
        piece_wait_s=piece_wait_s,
    )
    async with observed_turns(service, "telegram", gateway, grace_s=grace_s):
        gateway.start()
        yield gateway


async def webhook_host(config: Config, environment: Mapping[str, str]) -> str:
    """Return the host of a webhook that another program has set; "" if there is none or Telegram does not say."""
    client = _client(config, environment)
    try:
        async with asyncio.timeout(MAX_WEBHOOK_CHECK_S), client:
            return await client.webhook_host()
    except (TelegramError, TimeoutError):
        return ""


def _client(config: Config, environment: Mapping[str, str], *, sleep: Sleep = asyncio.sleep) -> BotApiClient:
    token = require_token(environment, "TELEGRAM_BOT_TOKEN", "the token that @BotFather gave you")
    return BotApiClient(token, base_url=base_url(config, "telegram"), sleep=sleep)
