"""What is said, sent to Telegram: split, marked up, in order, and again when it did not arrive.

1. The pieces of one `Says` follow each other without others of ours in between, in each chat.
2. If Telegram does not like how a text is marked up, it is sent plain.
3. A chat that is gone (blocked, deleted) is told nothing, and that counts as delivered. Anything else that goes
   wrong is tried again a few times, then `Undelivered` is raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final
from weakref import WeakValueDictionary

from telegram import InlineKeyboardButton, InlineKeyboardMarkup, LinkPreviewOptions, ReplyParameters
from telegram.constants import ChatAction
from telegram.error import BadRequest, ChatMigrated, Forbidden, TelegramError

from foveal.apps.gateways.splitting import split, utf16
from foveal.apps.gateways.telegram.markup import Marked, marked, sendable
from foveal.apps.gateways.telegram.reading import Place
from foveal.apps.gateways.telegram.requests import LOG, Client, Sleep
from foveal.apps.gateways.voice import Button, Says

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


class Undelivered(Exception):
    """Telegram could not be reached, or had a problem of its own."""


class Gone(Exception):
    """There is nobody to tell: the chat is deleted, or the bot was blocked or thrown out."""


class Sender:
    def __init__(self, client: Client, *, sleep: Sleep = asyncio.sleep) -> None:
        self._client = client
        self._sleep = sleep
        self._locks: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()
        self._typing: dict[int, tuple[int, asyncio.Task[None]]] = {}
        """For each chat how many answers are being written, and what shows it."""

    async def say(self, says: Says, place: Place) -> None:
        """Send one thing, all of it."""
        pieces = [marked(piece) for piece in split(says.text, LIMIT - SLACK, size=utf16)] or [Marked(UNSHOWN)]
        if says.footer:
            pieces = _with_footer(pieces, sendable(says.footer))
        lock = self._locks.setdefault(place.chat, asyncio.Lock())
        async with lock:
            for number, piece in enumerate(pieces, 1):
                await self._piece(piece, place, says.buttons if number == len(pieces) else ())
                place = Place(chat=place.chat, thread=place.thread)

    async def _piece(self, piece: Marked, place: Place, buttons: Sequence[Button]) -> None:
        """Send one message: as it should look, else plain, else a sentence in its place."""
        for attempt in (piece, Marked(piece.text), Marked(UNSHOWN)):
            try:
                return await self._tried(attempt, place, buttons)
            except BadRequest as problem:
                if "chat not found" in problem.message.casefold():
                    raise Gone from None
                LOG.warning("a message was refused: %s", self._client.told(problem))
        return None

    async def _tried(self, piece: Marked, place: Place, buttons: Sequence[Button]) -> None:
        """Send one message, again and again while Telegram cannot take it."""
        wait = FIRST
        for attempt in range(1, TRIES + 1):
            try:
                return await self._send(piece, place, buttons)
            except (BadRequest, Forbidden) as problem:
                if isinstance(problem, Forbidden):
                    raise Gone from None
                raise
            except ChatMigrated as moved:
                place = Place(chat=moved.new_chat_id)
            except TelegramError as problem:
                if attempt == TRIES:
                    raise Undelivered(self._client.told(problem)) from None
                await self._sleep(wait)
                wait *= 2
        raise Undelivered("the chat was moved again and again")

    async def _send(self, piece: Marked, place: Place, buttons: Sequence[Button]) -> None:
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
    async def typing(self, place: Place) -> AsyncIterator[None]:
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

    async def _type(self, place: Place) -> None:
        while True:
            with suppress(TelegramError):
                await self._client.send_chat_action(
                    place.chat, ChatAction.TYPING, message_thread_id=place.thread
                )
            await asyncio.sleep(TYPING)


def _with_footer(pieces: list[Marked], footer: str) -> list[Marked]:
    """The footer below the last piece, or on its own where there is no room."""
    *rest, last = pieces
    if utf16(last.text) + utf16(footer) + 2 > LIMIT:
        return [*pieces, Marked(footer)]
    return [*rest, Marked(f"{last.text}\n\n{footer}", last.entities)]
