"""Telegram's Bot API: requests that respect rate limits, and sending of messages.

1. The pieces of one message are sent to a chat in order, without other messages of the bot in between.
2. If Telegram refuses the formatting of a text, the text is sent without formatting.
3. Messages to a chat that is gone (blocked, deleted) count as delivered. Any other failure is retried a few times,
   then `Undelivered` is raised.
4. A response `429` is obeyed: the request is sent again after the time that Telegram names, a few times.
5. The token is never logged. It is part of every URL, so the libraries are kept from logging URLs, and every error
   text goes through `BotApiClient.error_text`.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Sequence
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

from foveal.apps.gateways.channel import Button, ChannelMessage, Undelivered
from foveal.apps.gateways.delivery import Sleep
from foveal.apps.gateways.split_message import split, utf16
from foveal.apps.gateways.telegram.entities import FormattedText, format_markdown, sendable
from foveal.apps.gateways.telegram.updates import ChatLocation, ParsedUpdate, parse_update
from foveal.core.wire.safe_print import one_line

LOG: Final = logging.getLogger("foveal.gateways.telegram")

# ── Requests ─────────────────────────────────────────────────────────────────────────────────────────────

URL_LOGGERS: Final = ("httpx", "httpcore", "telegram")
"""Loggers that would write URLs, and the token with them."""
OFFICIAL_API_URL: Final = "https://api.telegram.org"
MAX_RATE_LIMIT_WAITS: Final = 5
"""How often one request waits for a rate limit."""
MAX_RATE_LIMIT_WAIT_S: Final = 300.0
LONG_POLL_S: Final = 50
"""Time that Telegram keeps a request for updates open."""
UPDATE_KINDS: Final = ("message", "edited_message", "callback_query")


class RetryingRequest(HTTPXRequest):
    """Waits and sends a request again after a `429`."""

    __slots__ = ("_sleep",)

    def __init__(self, *, connections: int, sleep: Sleep = asyncio.sleep) -> None:
        super().__init__(connection_pool_size=connections, read_timeout=20.0, pool_timeout=60.0)
        self._sleep = sleep

    async def do_request(self, *args: Any, **kwargs: Any) -> tuple[int, bytes]:
        for _ in range(MAX_RATE_LIMIT_WAITS):
            status, body = await super().do_request(*args, **kwargs)
            if status != 429:
                return status, body
            await self._sleep(_retry_after(body))
        raise NetworkError(f"Telegram answered 429 {MAX_RATE_LIMIT_WAITS} times: too many requests")


def _retry_after(body: bytes) -> float:
    """Return how long to wait, as the body of a `429` says."""
    try:
        seconds = json.loads(body)["parameters"]["retry_after"]
        return min(MAX_RATE_LIMIT_WAIT_S, max(0.0, float(seconds)))
    except (ValueError, KeyError, TypeError):
        return 1.0


class BotApiClient(Bot):
    """A client of the Bot API that parses updates one by one, so that a broken update does not block others."""

    __slots__ = ()

    def __init__(self, token: str, *, base_url: str = "", sleep: Sleep = asyncio.sleep) -> None:
        for name in URL_LOGGERS:
            logging.getLogger(name).setLevel(logging.WARNING)
        url = (base_url or OFFICIAL_API_URL).rstrip("/")
        super().__init__(
            token,
            base_url=f"{url}/bot",
            base_file_url=f"{url}/file/bot",
            request=RetryingRequest(connections=64, sleep=sleep),
            get_updates_request=RetryingRequest(connections=1, sleep=sleep),
        )

    async def raw_updates(self, *, offset: int | None) -> list[dict[str, Any]]:
        """Return the updates from `offset` on; the request acknowledges all earlier updates."""
        data = {"offset": offset, "timeout": LONG_POLL_S, "allowed_updates": list(UPDATE_KINDS)}
        updates = await self._post("getUpdates", data, read_timeout=LONG_POLL_S + 20.0)
        return [item for item in updates if isinstance(item, dict) and isinstance(item.get("update_id"), int)]

    def parse(self, raw: dict[str, Any]) -> ParsedUpdate:
        """Return what one update means for the bot; None if the library cannot read it."""
        try:
            update = Update.de_json(raw, self)
            return parse_update(update, self.bot)
        except Exception as problem:  # noqa: BLE001  (a broken update must not block the next ones)
            LOG.warning("update %s cannot be read: %s", raw["update_id"], type(problem).__name__)
            return None

    def problem_text(self, problem: TelegramError) -> str:
        """Return why Telegram cannot be used, as the end of a sentence about Telegram."""
        if isinstance(problem, Conflict):
            return "has another reader of this bot's messages, and only one can read them"
        if isinstance(problem, TimedOut):
            return "takes too long to answer"
        if isinstance(problem.__cause__, httpx.TransportError):
            return "cannot be reached"
        return f"answers with an error ({self.error_text(problem)})"

    def error_text(self, problem: Exception) -> str:
        """Return an error in words, without the token, and without text that it may quote from a message."""
        words = str(problem).replace(self.token, "[token]").partition('"')[0]
        return f"{type(problem).__name__}: {one_line(words, width=200)}"


# ── Sending ──────────────────────────────────────────────────────────────────────────────────────────────

TELEGRAM_MESSAGE_LIMIT: Final = 4096
"""UTF-16 units of one message."""
FORMATTING_SLACK: Final = 96
"""UTF-16 units that bullets, numbers and blank lines may add to a text."""
MAX_SEND_ATTEMPTS: Final = 5
FIRST_SEND_PAUSE_S: Final = 1.0
"""Pause before the second attempt; it doubles before each further one."""
TELEGRAM_TYPING_INTERVAL_S: Final = 4.5
"""Telegram shows the typing status for five seconds."""
REFUSED_PART: Final = "(Telegram does not accept this part of the answer; it is stored on the server.)"


class ChatGone(Exception):
    """The chat was deleted, or the bot was blocked or removed."""


class TelegramSender:
    """Sends messages to chats, and shows the typing status."""

    def __init__(self, client: BotApiClient, *, sleep: Sleep = asyncio.sleep) -> None:
        self._client = client
        self._sleep = sleep
        self._locks: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()
        self._typing: dict[int, tuple[int, asyncio.Task[None]]] = {}
        """For each chat the number of answers being written, and the task that shows it."""

    async def send(self, message: ChannelMessage, location: ChatLocation) -> None:
        """Send a message in as many pieces as it needs."""
        parts = split(message.text, TELEGRAM_MESSAGE_LIMIT - FORMATTING_SLACK, size=utf16)
        pieces = [format_markdown(part) for part in parts] or [FormattedText(REFUSED_PART)]
        if message.footer:
            pieces = _with_footer(pieces, sendable(message.footer))
        lock = self._locks.setdefault(location.chat, asyncio.Lock())
        async with lock:
            for number, piece in enumerate(pieces, 1):
                await self._send_piece(piece, location, message.buttons if number == len(pieces) else ())
                location = ChatLocation(
                    chat=location.chat, thread=location.thread
                )  # only the first is a reply

    async def _send_piece(
        self, piece: FormattedText, location: ChatLocation, buttons: Sequence[Button]
    ) -> None:
        """Send a piece with its formatting, else without, else a sentence in its location."""
        for version in (piece, FormattedText(piece.text), FormattedText(REFUSED_PART)):
            try:
                return await self._send_with_retries(version, location, buttons)
            except BadRequest as problem:
                if "chat not found" in problem.message.casefold():
                    raise ChatGone from None
                LOG.warning("a message was refused: %s", self._client.error_text(problem))
        return None

    async def _send_with_retries(
        self, piece: FormattedText, location: ChatLocation, buttons: Sequence[Button]
    ) -> None:
        pause = FIRST_SEND_PAUSE_S
        for attempt in range(1, MAX_SEND_ATTEMPTS + 1):
            try:
                return await self._send(piece, location, buttons)
            except (BadRequest, Forbidden) as problem:
                if isinstance(problem, Forbidden):
                    raise ChatGone from None
                raise
            except ChatMigrated as moved:
                location = ChatLocation(chat=moved.new_chat_id)
            except TelegramError as problem:
                if attempt == MAX_SEND_ATTEMPTS:
                    raise Undelivered(self._client.error_text(problem)) from None
                await self._sleep(pause)
                pause *= 2
        raise Undelivered("the chat got a new id with every attempt")

    async def _send(self, piece: FormattedText, location: ChatLocation, buttons: Sequence[Button]) -> None:
        keys = [[InlineKeyboardButton(button.label, callback_data=button.action)] for button in buttons]
        await self._client.send_message(
            location.chat,
            piece.text,
            entities=piece.entities or None,
            reply_markup=InlineKeyboardMarkup(keys) if keys else None,
            message_thread_id=location.thread,
            reply_parameters=(
                ReplyParameters(location.reply_to, allow_sending_without_reply=True)
                if location.reply_to
                else None
            ),
            link_preview_options=LinkPreviewOptions(is_disabled=True),
        )

    @asynccontextmanager
    async def typing(self, location: ChatLocation) -> AsyncIterator[None]:
        """Show the typing status while the block runs."""
        count, task = self._typing.get(location.chat, (0, None))
        task = task or asyncio.create_task(self._show_typing(location))
        self._typing[location.chat] = count + 1, task
        try:
            yield
        finally:
            count, task = self._typing.pop(location.chat)
            if count > 1:
                self._typing[location.chat] = count - 1, task
            else:
                task.cancel()
                await asyncio.wait([task])

    async def _show_typing(self, location: ChatLocation) -> None:
        while True:
            with suppress(TelegramError):
                await self._client.send_chat_action(
                    location.chat, ChatAction.TYPING, message_thread_id=location.thread
                )
            await asyncio.sleep(TELEGRAM_TYPING_INTERVAL_S)


def _with_footer(pieces: list[FormattedText], footer: str) -> list[FormattedText]:
    """Add the footer to the last piece, or as a piece of its own if it does not fit."""
    *rest, last = pieces
    if utf16(last.text) + utf16(footer) + 2 > TELEGRAM_MESSAGE_LIMIT:
        return [*pieces, FormattedText(footer)]
    return [*rest, FormattedText(f"{last.text}\n\n{footer}", last.entities)]
