"""Telegram's Bot API: formatting of messages, requests that respect rate limits, and sending.

1. If Telegram refuses the formatting of a text, the text is sent without formatting.
2. A refusal of the place (a closed topic, a user who has blocked the bot) raises `PlaceClosed`, any other failure
   `Undelivered`.
3. A response `429` is obeyed: the request is sent again after the time that Telegram names, a few times.
4. The token is never logged. It is part of every URL, so the libraries are kept from logging URLs, and every error
   text goes through `BotApiClient.error_text`.

`format_blocks` renders blocks of a message as plain text and formatting entities:

1. Text and entities are sent separately, so no text can become markup and nothing is escaped. Offsets count UTF-16
   units.
2. The entities obey the rules of the Bot API: no entity contains or is part of `code` or `pre`, apart from a quote
   around them, and quotes are not nested. Telegram drops entities that break the rules, links among them.
3. What Telegram cannot show is shown in another way: a table in monospaced text, a rule as a line, a picture as a
   link.

`telegram_parts` splits a message into parts that Telegram accepts:

1. A part has at most 4,096 UTF-16 units and 100 entities. Bold and italics are left out before any other entity;
   a part that needs more than 100 others is divided.
2. Each part of a table has the table's header; each part of code has its language; each part of a quote is a quote.
3. The same message always has the same parts.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import httpx
from telegram import (
    Bot,
    InlineKeyboardButton,
    InlineKeyboardMarkup,
    LinkPreviewOptions,
    MessageEntity,
    ReplyParameters,
    Update,
)
from telegram.constants import ChatAction
from telegram.error import (
    BadRequest,
    ChatMigrated,
    Conflict,
    Forbidden,
    InvalidToken,
    NetworkError,
    TelegramError,
    TimedOut,
)
from telegram.request import HTTPXRequest

from foveal.core.wire.safe_print import one_line
from foveal.server.chat_records import ChatPlace
from foveal.server.gateways.chat_files import FileUnavailable
from foveal.server.gateways.delivery import Sleep
from foveal.server.gateways.incoming import IncomingFile
from foveal.server.gateways.markdown_blocks import MessageBlock, cut_block, plain_inline, read_blocks
from foveal.server.gateways.outgoing import ChannelMessage, OutgoingPart, PlaceClosed, Undelivered
from foveal.server.gateways.split_message import PartSize, pack, utf16
from foveal.server.gateways.telegram.updates import GroupMoved, ParsedUpdate, parse_update

# ── Formatting ───────────────────────────────────────────────────────────────────────────────────────────

MAX_ENTITIES: Final = 100
"""Telegram ignores further entities of a message."""
HORIZONTAL_RULE: Final = "———"
MAX_TELEGRAM_TABLE_WIDTH: Final = 40
"""Characters of a line of a table; phones wrap longer lines."""
_INDENT: Final = "  "
_DECORATION: Final = (MessageEntity.BOLD, MessageEntity.ITALIC)
"""Entities that are left out if there are too many, the last one first."""
_KINDS: Final = {
    "bold": MessageEntity.BOLD,
    "italic": MessageEntity.ITALIC,
    "strikethrough": MessageEntity.STRIKETHROUGH,
    "code": MessageEntity.CODE,
    "link": MessageEntity.TEXT_LINK,
}


class FormattedText(NamedTuple):
    """A text and its formatting, as Telegram takes them."""

    text: str
    entities: tuple[MessageEntity, ...] = ()


def sendable(text: str) -> str:
    """Return a text without characters that cannot be sent: NUL and unpaired surrogates."""
    return text.replace("\0", "").encode("utf-8", "replace").decode("utf-8")


def telegram_blocks(markdown: str) -> list[MessageBlock]:
    """Return the blocks of a message."""
    return read_blocks(
        sendable(markdown), inline=plain_inline, has_references=True, max_table_width=MAX_TELEGRAM_TABLE_WIDTH
    )


def format_markdown(markdown: str) -> FormattedText:
    """Return Markdown as one text with entities, whatever its size."""
    return format_blocks(telegram_blocks(markdown))


class _Range(NamedTuple):
    """An entity with offsets in characters."""

    kind: str
    start: int
    end: int
    url: str | None = None
    language: str | None = None


def format_blocks(blocks: Sequence[MessageBlock]) -> FormattedText:
    """Return blocks as text and entities."""
    text = ""
    ranges: list[_Range] = []
    quote_start, quote = 0, 0
    for number, block in enumerate(blocks):
        if number:
            text += block_gap(block)
        if block.quote != quote:
            quote_start, quote = len(text), block.quote
        text += block_prefix(block)
        ranges += _block_ranges(block, start=len(text))
        text += block_text(block)
        if quote and (number + 1 == len(blocks) or blocks[number + 1].quote != quote):
            ranges.append(_Range(MessageEntity.BLOCKQUOTE, quote_start, len(text)))
    whole = text.rstrip()
    return FormattedText(whole, tuple(_entities(whole, _most_important(ranges))))


def block_gap(block: MessageBlock) -> str:
    """Return the line breaks between a block and the one before it."""
    return "\n" if block.is_close else "\n\n"


def block_prefix(block: MessageBlock) -> str:
    """Return the indentation and the marker of a list item."""
    if not block.is_first:
        return ""
    marker = block.items[-1]
    return _INDENT * (len(block.items) - 1) + (marker if marker[0].isdigit() else "•") + " "


def block_text(block: MessageBlock) -> str:
    """Return the text of a block as Telegram shows it."""
    if block.kind == "rule":
        return HORIZONTAL_RULE
    return f"{block.header}\n{block.body.text}" if block.header else block.body.text


def important_entities(block: MessageBlock) -> int:
    """Return how many entities a block needs at most, without those that may be left out."""
    inside = sum(_KINDS[mark.kind] not in _DECORATION for mark in block.body.marks)
    return inside + block.is_monospace + (block.quote > 0)


def _block_ranges(block: MessageBlock, *, start: int) -> list[_Range]:
    end = start + len(block_text(block))
    if block.is_monospace:
        return [_Range(MessageEntity.PRE, start, end, language=block.language or None)]
    ranges = [
        _Range(
            _KINDS[mark.kind],
            start + mark.start,
            start + mark.end,
            url=mark.value if mark.kind == "link" else None,
        )
        for mark in block.body.marks
    ]
    if block.kind != "heading":
        return ranges
    # A heading is bold; nothing else in it can be bold, and bold must not contain code.
    others = [found for found in ranges if found.kind != MessageEntity.BOLD]
    borders = [
        start,
        *(place for found in others if found.kind == MessageEntity.CODE for place in found[1:3]),
        end,
    ]
    bold = [_Range(MessageEntity.BOLD, *pair) for pair in zip(borders[::2], borders[1::2], strict=True)]
    return [*bold, *others]


def _most_important(ranges: Iterable[_Range]) -> list[_Range]:
    kept = sorted(
        (found for found in ranges if found.start < found.end),
        key=lambda found: _DECORATION.index(found.kind) + 1 if found.kind in _DECORATION else 0,
    )
    return kept[:MAX_ENTITIES]


def _entities(text: str, ranges: Iterable[_Range]) -> Iterable[MessageEntity]:
    order = sorted(
        ranges, key=lambda found: (found.start, -found.end, found.kind != MessageEntity.BLOCKQUOTE)
    )
    position, offset = 0, 0
    for found in order:
        end = min(found.end, len(text))
        offset += utf16(text[position : found.start])
        position = found.start
        if end > found.start:
            length = utf16(text[found.start : end])
            yield MessageEntity(found.kind, offset, length, url=found.url, language=found.language)


# ── Parts ────────────────────────────────────────────────────────────────────────────────────────────────

TELEGRAM_MESSAGE_LIMIT: Final = 4096
"""UTF-16 units of one message."""
REFUSED_PART: Final = "(Telegram does not accept this part of the answer; it is stored on the server.)"
_ROOM: Final = PartSize(TELEGRAM_MESSAGE_LIMIT, MAX_ENTITIES)


def telegram_parts(message: ChannelMessage) -> list[FormattedText]:
    """Return the text and the footer in parts; at least one."""
    blocks = telegram_blocks(message.text)
    cut = partial(cut_block, window=TELEGRAM_MESSAGE_LIMIT, fits=lambda block: _size(block).fits(_ROOM))
    packed = pack(blocks, room=_ROOM, size=_size, cut=cut, is_heading=lambda block: block.kind == "heading")
    formatted = [part for part in map(format_blocks, packed) if part.text]
    parts = formatted or [FormattedText(REFUSED_PART)]
    return _with_footer(parts, sendable(message.footer)) if message.footer else parts


def _size(block: MessageBlock) -> PartSize:
    units = utf16(block_prefix(block)) + utf16(block_text(block))
    return PartSize(units, important_entities(block), gap=len(block_gap(block)))


def _with_footer(parts: list[FormattedText], footer: str) -> list[FormattedText]:
    """Add the footer to the last part, or as a part of its own if it does not fit."""
    *rest, last = parts
    if utf16(last.text) + utf16(footer) + 2 > TELEGRAM_MESSAGE_LIMIT:
        return [*parts, FormattedText(footer)]
    return [*rest, FormattedText(f"{last.text}\n\n{footer}", last.entities)]


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
    """Waits and sends a request again after a `429`; an error of Telegram's servers is a failure of the network."""

    __slots__ = ("_sleep",)

    def __init__(self, *, connections: int, sleep: Sleep = asyncio.sleep) -> None:
        super().__init__(connection_pool_size=connections, read_timeout=20.0, pool_timeout=60.0)
        self._sleep = sleep

    async def do_request(self, *args: Any, **kwargs: Any) -> tuple[int, bytes]:
        for _ in range(MAX_RATE_LIMIT_WAITS):
            status, body = await super().do_request(*args, **kwargs)
            if status >= 500:  # a page of a proxy, which the library would log
                raise NetworkError(f"Telegram answers with the status {status}")
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

    async def raw_updates(self, *, offset: int | None, wait_s: int = LONG_POLL_S) -> list[dict[str, Any]]:
        """Return the updates from `offset` on; the request acknowledges all earlier updates, and waits for new ones
        if there are none."""
        data = {"offset": offset, "timeout": wait_s, "allowed_updates": list(UPDATE_KINDS)}
        updates = await self._post("getUpdates", data, read_timeout=wait_s + 20.0)
        return [item for item in updates if isinstance(item, dict) and isinstance(item.get("update_id"), int)]

    async def webhook_host(self) -> str:
        """Return the host to which Telegram sends the bot's messages; "" if there is no webhook."""
        url = (await self.get_webhook_info()).url
        if not url:
            return ""
        try:
            return one_line(urlsplit(url).hostname or "", width=100) or "an unknown host"
        except ValueError:
            return "an unknown host"

    def parse(self, raw: dict[str, Any]) -> ParsedUpdate:
        """Return what one update means for the bot; None if the library cannot read it."""
        try:
            update = Update.de_json(raw, self)
            return parse_update(update, self.bot)
        except Exception as problem:  # noqa: BLE001  (a broken update must not block the next ones)
            LOG.warning("update %s cannot be read: %s", raw["update_id"], type(problem).__name__)
            return None

    async def fetch_file(self, file: IncomingFile) -> bytes:
        """Return the bytes of a file that a user has sent; raises `FileUnavailable`."""
        try:
            stored = await self.get_file(file.reference)
            return bytes(await stored.download_as_bytearray())
        except TelegramError as problem:
            LOG.warning("a file could not be fetched: %s", self.error_text(problem))
            raise FileUnavailable from None

    async def is_admin(self, chat: int, user: int) -> bool:
        """Return whether a user administers a group, as far as Telegram says."""
        with suppress(TelegramError):
            return chat < 0 and any(
                member.user.id == user for member in await self.get_chat_administrators(chat)
            )
        return False

    def problem_text(self, problem: TelegramError) -> str:
        """Return why Telegram cannot be used, as the end of a sentence about Telegram."""
        if isinstance(problem, InvalidToken):
            return "does not accept TELEGRAM_BOT_TOKEN"
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

TELEGRAM_TYPING_INTERVAL_S: Final = 4.5
"""Telegram shows the typing status for five seconds."""
GENERAL_TOPIC: Final = 1
"""Telegram's id of the topic General, which requests must not name."""
CLOSED_PLACES: Final = {
    "topic_closed": "the topic is closed",
    "chat_write_forbidden": "the bot may not write there",
    "not enough rights": "the bot may not write there",
    "have no rights to send": "the bot may not write there",
    "chat_restricted": "the bot may not write there",
    "chat_send_plain_forbidden": "the bot may not write there",
}
"""What Telegram's refusals of a place contain, and what they mean."""
DELETED_TOPICS: Final = ("topic_deleted", "message thread not found")
"""What its refusals of a deleted topic contain."""


class TelegramSender:
    """Sends parts of messages to chats and topics, and shows the typing status."""

    def __init__(self, client: BotApiClient, *, on_moved: Callable[[GroupMoved], object]) -> None:
        self._client = client
        self._on_moved = on_moved
        self._moved: dict[int, int] = {}
        """New ids of groups that became supergroups."""

    def split(self, message: ChannelMessage) -> list[FormattedText]:
        return telegram_parts(message)

    async def send(self, part: OutgoingPart[FormattedText]) -> None:
        """Send a part with its formatting, else without, else a sentence in its place."""
        text = part.content.text
        for version in (part.content, FormattedText(text), FormattedText(REFUSED_PART)):
            try:
                return await self._send(version, part)
            except BadRequest as problem:
                _raise_if_closed(problem, part.place)
                LOG.warning("a message was refused: %s", self._client.error_text(problem))
        return None

    async def _send(self, version: FormattedText, part: OutgoingPart[FormattedText]) -> None:
        """Send a part. Raises `BadRequest` if Telegram refuses it."""
        try:
            await self._post(version, part)
        except ChatMigrated as moved:
            self._moved[part.place.chat] = moved.new_chat_id
            self._on_moved(GroupMoved(old=part.place.chat, new=moved.new_chat_id))
            raise Undelivered("the group became a supergroup") from None  # the next attempt goes there
        except Forbidden as problem:
            if part.place.chat > 0:
                raise PlaceClosed("the user has blocked the bot", is_gone=True) from None
            _raise_if_closed(problem, part.place)
            raise PlaceClosed("the bot was removed from the group") from None
        except BadRequest:
            raise
        except TelegramError as problem:
            raise Undelivered(self._client.error_text(problem)) from None

    async def _post(self, version: FormattedText, part: OutgoingPart[FormattedText]) -> None:
        keys = [[InlineKeyboardButton(button.label, callback_data=button.action)] for button in part.buttons]
        chat = self._moved.get(part.place.chat, part.place.chat)
        reply_to = part.reply_to if chat == part.place.chat else 0  # a moved group has new ids
        await self._client.send_message(
            chat,
            version.text,
            entities=version.entities or None,
            reply_markup=InlineKeyboardMarkup(keys) if keys else None,
            message_thread_id=_thread(part.place),
            reply_parameters=(
                ReplyParameters(reply_to, allow_sending_without_reply=True) if reply_to else None
            ),
            link_preview_options=LinkPreviewOptions(is_disabled=True),
        )

    async def show_typing(self, place: ChatPlace) -> None:
        with suppress(TelegramError):
            await self._client.send_chat_action(
                self._moved.get(place.chat, place.chat), ChatAction.TYPING, message_thread_id=_thread(place)
            )

    async def private_place(self, user: int) -> ChatPlace:
        return ChatPlace(user)


def _thread(place: ChatPlace) -> int | None:
    """Return the topic as requests name it."""
    return place.topic if place.topic > GENERAL_TOPIC else None


def _raise_if_closed(problem: TelegramError, place: ChatPlace) -> None:
    """Raise `PlaceClosed` if an error refuses the place and not the message."""
    words = problem.message.casefold()
    if "chat not found" in words:
        is_private = place.chat > 0
        raise PlaceClosed("the chat does not exist any more", is_gone=is_private, may_reopen=False) from None
    if any(text in words for text in DELETED_TOPICS):
        raise PlaceClosed("the topic was deleted", may_reopen=False) from None
    for text, cause in CLOSED_PLACES.items():
        if text in words:
            raise PlaceClosed(cause) from None
