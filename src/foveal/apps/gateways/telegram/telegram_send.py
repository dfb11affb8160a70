"""What is said, sent to Telegram: split, marked up, in order, and again when it did not arrive.

1. The pieces of one `Says` follow each other without others of ours in between, in each chat.
2. If Telegram does not like how a text is marked up, it is sent plain.
3. A chat that is gone (blocked, deleted) is told nothing, and that counts as delivered. Anything else that goes
   wrong is tried again a few times, then `Undelivered` is raised.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final
from weakref import WeakValueDictionary

import httpx
from telegram import (
    Bot,
    InlineKeyboardButton,
    InlineKeyboardMarkup,
    LinkPreviewOptions,
    ReplyParameters,
    Update,
)
from telegram.constants import ChatAction
from telegram.error import (
    BadRequest,
    ChatMigrated,
    Conflict,
    Forbidden,
    NetworkError,
    TelegramError,
    TimedOut,
)
from telegram.request import HTTPXRequest

from foveal.apps.gateways.channel import Button, ChannelMessage
from foveal.apps.gateways.split_message import split, utf16
from foveal.apps.gateways.telegram.entities import FormattedText, marked, sendable
from foveal.apps.gateways.telegram.updates import ChatLocation, Meaning, read
from foveal.core.wire.safe_print import one_line

# ── requests ──────────────────────────────────────────────────────────────────────────────────────
# Requests to the Bot API that wait when they are told to, and never tell the token.
#
# 1. `429` is obeyed: the request is sent again after the seconds that Telegram names, a few times.
# 2. The token is part of every address, so the libraries below are kept from logging addresses, and whatever is told
# of a failure goes through `Client.told`.

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


class RetryingRequest(HTTPXRequest):
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


class BotApiClient(Bot):
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
            request=RetryingRequest(connections=64, sleep=sleep),
            get_updates_request=RetryingRequest(connections=1, sleep=sleep),
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


# ── sending ───────────────────────────────────────────────────────────────────────────────────────

LIMIT: Final = 4096
"""UTF-16 units of one message."""
SLACK: Final = 96
"""What bullets, numbers and blank lines may add to a text when it is drawn."""
TRIES: Final = 5
FIRST: Final = 1.0
"""Seconds before the second try; twice as long before each further one."""
TYPING: Final = 4.5
"""Telegram shows for five seconds that somebody types."""
UNSHOWN: Final = "(Telegram does not take this part of the answer; it is stored on the server.)"


class TelegramUndelivered(Exception):
    """Telegram could not be reached, or had a problem of its own."""


class ChatGone(Exception):
    """There is nobody to tell: the chat is deleted, or the bot was blocked or thrown out."""


class TelegramSender:
    def __init__(self, client: BotApiClient, *, sleep: Sleep = asyncio.sleep) -> None:
        self._client = client
        self._sleep = sleep
        self._locks: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()
        self._typing: dict[int, tuple[int, asyncio.Task[None]]] = {}
        """For each chat how many answers are being written, and what shows it."""

    async def say(self, says: ChannelMessage, place: ChatLocation) -> None:
        """Send one thing, all of it."""
        pieces = [marked(piece) for piece in split(says.text, LIMIT - SLACK, size=utf16)] or [
            FormattedText(UNSHOWN)
        ]
        if says.footer:
            pieces = _with_footer(pieces, sendable(says.footer))
        lock = self._locks.setdefault(place.chat, asyncio.Lock())
        async with lock:
            for number, piece in enumerate(pieces, 1):
                await self._piece(piece, place, says.buttons if number == len(pieces) else ())
                place = ChatLocation(chat=place.chat, thread=place.thread)

    async def _piece(self, piece: FormattedText, place: ChatLocation, buttons: Sequence[Button]) -> None:
        """Send one message: as it should look, else plain, else a sentence in its place."""
        for attempt in (piece, FormattedText(piece.text), FormattedText(UNSHOWN)):
            try:
                return await self._tried(attempt, place, buttons)
            except BadRequest as problem:
                if "chat not found" in problem.message.casefold():
                    raise ChatGone from None
                LOG.warning("a message was refused: %s", self._client.told(problem))
        return None

    async def _tried(self, piece: FormattedText, place: ChatLocation, buttons: Sequence[Button]) -> None:
        """Send one message, again and again while Telegram cannot take it."""
        wait = FIRST
        for attempt in range(1, TRIES + 1):
            try:
                return await self._send(piece, place, buttons)
            except (BadRequest, Forbidden) as problem:
                if isinstance(problem, Forbidden):
                    raise ChatGone from None
                raise
            except ChatMigrated as moved:
                place = ChatLocation(chat=moved.new_chat_id)
            except TelegramError as problem:
                if attempt == TRIES:
                    raise TelegramUndelivered(self._client.told(problem)) from None
                await self._sleep(wait)
                wait *= 2
        raise TelegramUndelivered("the chat was moved again and again")

    async def _send(self, piece: FormattedText, place: ChatLocation, buttons: Sequence[Button]) -> None:
        keys = [[InlineKeyboardButton(button.label, callback_data=button.action)] for button in buttons]
        await self._client.send_message(
            place.chat,
            piece.text,
            entities=piece.entities or None,
            reply_markup=InlineKeyboardMarkup(keys) if keys else None,
            message_thread_id=place.thread,
            reply_parameters=(
                ReplyParameters(place.reply_to, allow_sending_without_reply=True) if place.reply_to else None
            ),
            link_preview_options=LinkPreviewOptions(is_disabled=True),
        )

    @asynccontextmanager
    async def typing(self, place: ChatLocation) -> AsyncIterator[None]:
        """Show that somebody types, for as long as the block lasts."""
        count, task = self._typing.get(place.chat, (0, None))
        task = task or asyncio.create_task(self._type(place))
        self._typing[place.chat] = count + 1, task
        try:
            yield
        finally:
            count, task = self._typing.pop(place.chat)
            if count > 1:
                self._typing[place.chat] = count - 1, task
            else:
                task.cancel()
                await asyncio.wait([task])

    async def _type(self, place: ChatLocation) -> None:
        while True:
            with suppress(TelegramError):
                await self._client.send_chat_action(
                    place.chat, ChatAction.TYPING, message_thread_id=place.thread
                )
            await asyncio.sleep(TYPING)


def _with_footer(pieces: list[FormattedText], footer: str) -> list[FormattedText]:
    """The footer below the last piece, or on its own where there is no room."""
    *rest, last = pieces
    if utf16(last.text) + utf16(footer) + 2 > LIMIT:
        return [*pieces, FormattedText(footer)]
    return [*rest, FormattedText(f"{last.text}\n\n{footer}", last.entities)]
