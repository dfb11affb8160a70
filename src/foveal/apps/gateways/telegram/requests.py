"""Requests to the Bot API that wait when they are told to, and never tell the token.

1. `429` is obeyed: the request is sent again after the seconds that Telegram names, a few times.
2. The token is part of every address, so the libraries below are kept from logging addresses, and whatever is told
   of a failure goes through `Client.told`.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import httpx
from telegram import Bot, Update
from telegram.error import Conflict, NetworkError, TelegramError, TimedOut
from telegram.request import HTTPXRequest

from foveal.apps.gateways.telegram.reading import Meaning, read
from foveal.visible import one_line

LOG: Final = logging.getLogger("foveal.gateways.telegram")
CHATTY: Final = ("httpx", "httpcore", "telegram")
"""Loggers that would write addresses, and the token with them."""
OFFICIAL: Final = "https://api.telegram.org"
WAITS: Final = 5
"""How often one request waits because it was told to."""
LONGEST: Final = 300.0
"""Seconds that one wait takes at the most."""
POLL: Final = 50
"""Seconds that Telegram holds a question for updates open."""
KINDS: Final = ("message", "edited_message", "callback_query")

Sleep = Callable[[float], Awaitable[None]]


class Patient(HTTPXRequest):
    """Waits when Telegram says that there were too many requests."""

    __slots__ = ("_sleep",)

    def __init__(self, *, connections: int, sleep: Sleep = asyncio.sleep) -> None:
        super().__init__(connection_pool_size=connections, read_timeout=20.0, pool_timeout=60.0)
        self._sleep = sleep

    async def do_request(self, *args: Any, **kwargs: Any) -> tuple[int, bytes]:
        for _ in range(WAITS):
            status, body = await super().do_request(*args, **kwargs)
            if status != 429:
                return status, body
            await self._sleep(_seconds(body))
        raise NetworkError("Telegram had too many requests, again and again")


def _seconds(body: bytes) -> float:
    """How long to wait, as a refusal says."""
    try:
        told = json.loads(body)["parameters"]["retry_after"]
        return min(LONGEST, max(0.0, float(told)))
    except (ValueError, KeyError, TypeError):
        return 1.0


class Client(Bot):
    """A bot whose updates can be had one by one: one that cannot be read does not stand in the way of others."""

    __slots__ = ()

    def __init__(self, token: str, *, base_url: str = "", sleep: Sleep = asyncio.sleep) -> None:
        for name in CHATTY:
            logging.getLogger(name).setLevel(logging.WARNING)
        address = (base_url or OFFICIAL).rstrip("/")
        super().__init__(
            token,
            base_url=f"{address}/bot",
            base_file_url=f"{address}/file/bot",
            request=Patient(connections=64, sleep=sleep),
            get_updates_request=Patient(connections=1, sleep=sleep),
        )

    async def raw_updates(self, *, offset: int | None) -> list[dict[str, Any]]:
        """The updates from `offset` on; asking for them tells Telegram that all before are taken."""
        asked = {"offset": offset, "timeout": POLL, "allowed_updates": list(KINDS)}
        got = await self._post("getUpdates", asked, read_timeout=POLL + 20.0)
        return [item for item in got if isinstance(item, dict) and isinstance(item.get("update_id"), int)]

    def meaning(self, raw: dict[str, Any]) -> Meaning:
        """What one update means; nothing, if this library cannot read it."""
        try:
            update = Update.de_json(raw, self)
            return read(update, self.bot)
        except Exception as problem:  # noqa: BLE001  (whatever is wrong with it, those behind it must be heard)
            LOG.warning("update %s cannot be read: %s", raw["update_id"], type(problem).__name__)
            return None

    def trouble(self, problem: TelegramError) -> str:
        """What is wrong with Telegram, as the end of a sentence about it."""
        if isinstance(problem, Conflict):
            return "has another reader of this bot's messages, and only one can read them"
        if isinstance(problem, TimedOut):
            return "takes too long to answer"
        if isinstance(problem.__cause__, httpx.TransportError):
            return "cannot be reached"
        return f"does not answer as it should ({self.told(problem)})"

    def told(self, problem: Exception) -> str:
        """A failure in words, without the token, and without what it may quote of a message."""
        words = str(problem).replace(self.token, "[token]").partition('"')[0]
        return f"{type(problem).__name__}: {one_line(words, width=200)}"
