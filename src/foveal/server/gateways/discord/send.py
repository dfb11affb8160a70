"""Sends messages to Discord: to channels, and as answers to interactions.

1. Messages mention no user and show no link previews.
2. Each part has a nonce, which keeps Discord from showing it twice when it is sent again.
3. A refusal of the place (an archived thread, missing permissions) raises `PlaceClosed`. A message that Discord
   refuses for its content is replaced by a sentence. Any other failure raises `Undelivered`.

`discord_parts` splits a message into parts that Discord accepts, of at most 2,000 characters of Markdown:

1. A message that fits and has no table is sent as it was written.
2. Otherwise each part is valid Markdown by itself: what a cut interrupts (bold, a link, code, a quote) is closed at
   the end of a part and opened again in the next. Numbered items keep their numbers.
3. Discord has no tables: a table becomes a code block with aligned columns, with its header in each part.
4. The same message always has the same parts.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, Protocol, Self

import aiohttp
import discord

from foveal.server.chat_records import ChatPlace
from foveal.server.gateways.markdown_blocks import MessageBlock, cut_block, read_blocks, source_inline
from foveal.server.gateways.outgoing import Button, ChannelMessage, OutgoingPart, PlaceClosed, Undelivered
from foveal.server.gateways.split_message import MarkedText, PartSize, TextMark, pack, utf16
from foveal.server.gateways.texts import SUBTEXT

DISCORD_MESSAGE_LIMIT: Final = 2_000
"""Size of a message, counted in UTF-16 units as Discord's clients do, which is never too low."""
MAX_DISCORD_TABLE_WIDTH: Final = 60
"""Characters of a line of a table."""
_QUOTE: Final = "> "
_ESCAPE: Final = 1
"""Units that `_escape_start` may add."""
_ROOM: Final = PartSize(DISCORD_MESSAGE_LIMIT)
_BACKTICKS: Final = re.compile("`{3,}")
_FENCE_END: Final = re.compile(r"(?:`{3,}|~{3,})$")
_BLOCK_START: Final = re.compile(r"(?P<sign>[-*+#>]+)(?=\s)|(?P<number>\d+)(?=[.)]\s)")


def discord_parts(message: ChannelMessage) -> list[str]:
    """Return the text and the footer in parts."""
    footer = "\n".join(f"{SUBTEXT}{line}" for line in message.footer.splitlines() if line.strip())
    parts = markdown_parts(_valid_unicode(message.text))
    if not footer:
        return parts
    if parts and utf16(parts[-1]) + 1 + utf16(footer) <= DISCORD_MESSAGE_LIMIT:
        return [*parts[:-1], f"{parts[-1]}\n{footer}"]
    return [*parts, *markdown_parts(footer)]


def markdown_parts(markdown: str) -> list[str]:
    """Return Markdown in parts, none of them blank."""
    blocks = read_blocks(
        markdown, inline=source_inline, has_references=False, max_table_width=MAX_DISCORD_TABLE_WIDTH
    )
    source = markdown.strip("\n").rstrip()
    if utf16(source) <= DISCORD_MESSAGE_LIMIT and _is_complete(source, blocks):
        return [source] if source else []
    cut = partial(cut_block, window=DISCORD_MESSAGE_LIMIT, fits=_fits, continued=_escape_start)
    packed = pack(blocks, room=_ROOM, size=_size, cut=cut, is_heading=lambda block: block.kind == "heading")
    return [part for part in map(_render, packed) if part]


def _is_complete(source: str, blocks: Sequence[MessageBlock]) -> bool:
    """Return whether Discord shows a source as it is: without tables, and with an end of its last code block."""
    if any(block.kind == "table" for block in blocks):
        return False
    return not blocks or blocks[-1].kind != "code" or bool(_FENCE_END.search(source))


def _size(block: MessageBlock) -> PartSize:
    gap = 2 + len(_QUOTE) * (block.quote > 0) if block.is_separate else 1
    return PartSize(utf16(_render_block(block)), gap=gap)


def _fits(block: MessageBlock) -> bool:
    return _size(block).fits(PartSize(_ROOM.units - _ESCAPE))


def _escape_start(text: MarkedText) -> MarkedText:
    """Return the rest of a paragraph so that its first characters are not read as a list, quote or heading."""
    found = _BLOCK_START.match(text.text)
    if not found:
        return text
    place = 0 if found["sign"] else found.end()
    marks = tuple(
        mark._replace(start=mark.start + (mark.start >= place), end=mark.end + (mark.end > place))
        for mark in text.marks
    )
    return MarkedText(f"{text.text[:place]}\\{text.text[place:]}", marks)


# ── Rendering ────────────────────────────────────────────────────────────────────────────────────────────


def _render(blocks: Sequence[MessageBlock]) -> str:
    text = ""
    for number, block in enumerate(blocks):
        if number and block.is_separate:
            same_quote = block.quote and block.quote == blocks[number - 1].quote
            text += f"\n{_QUOTE if same_quote else ''}"
        text += ("\n" if number else "") + _render_block(block)
    return text.strip("\n").rstrip()


def _render_block(block: MessageBlock) -> str:
    """Return a block as Markdown, with the list and the quote around it."""
    first, rest = _prefixes(block)
    match block.kind:
        case "code" | "table":
            text = f"{block.header}\n{block.body.text}" if block.header else block.body.text
            fence = "`" * max([3, *(len(run) + 1 for run in _BACKTICKS.findall(text))])
            # Discord takes the indentation of a code block for a part of the code.
            return _prefixed(f"{fence}{block.language}\n{text}\n{fence}", _QUOTE * (block.quote > 0))
        case "rule":
            return first + "---"
        case "heading":
            return first + "#" * block.level + " " + _render_inline(block.body).replace("\n", " ")
        case "paragraph":
            return first + _prefixed(_render_inline(block.body), rest).removeprefix(rest)


def _prefixes(block: MessageBlock) -> tuple[str, str]:
    """Return what stands before the first line of a block, and before its other lines."""
    quote = _QUOTE * (block.quote > 0)
    indents = [" " * (len(marker) + 1) for marker in block.items]
    rest = quote + "".join(indents)
    return (quote + "".join(indents[:-1]) + block.items[-1] + " " if block.is_first else rest), rest


def _prefixed(text: str, prefix: str) -> str:
    return "\n".join(prefix + line for line in text.split("\n"))


def _render_inline(inline: MarkedText) -> str:
    """Return text and marks as Markdown."""
    pieces: list[str] = []
    position = 0
    for place, _, delimiter in sorted(_delimiters(inline)):
        pieces += [inline.text[position:place], delimiter]
        position = place
    return "".join([*pieces, inline.text[position:]])


def _delimiters(inline: MarkedText) -> Iterator[tuple[int, int, str]]:
    """Yield position, order and text of each delimiter; at one position, inner marks end first."""
    count = len(inline.marks)
    for number, mark in enumerate(inline.marks):
        opening, closing = _delimiter_pair(mark, inline.text)
        yield mark.start, count + number, opening
        yield mark.end, count - number - 1, closing


def _delimiter_pair(mark: TextMark, text: str) -> tuple[str, str]:
    match mark.kind:
        case "link":
            is_plain = "(" not in mark.value and ")" not in mark.value
            return "[", f"]({mark.value})" if is_plain else f"](<{mark.value}>)"
        case "code":
            inside = text[mark.start : mark.end]
            space = " " if "`" in (inside[0], inside[-1]) else ""
            return mark.value + space, space + mark.value
        case _:
            return mark.value, mark.value


def _valid_unicode(text: str) -> str:
    """Return a text without unpaired surrogates, which JSON for Discord cannot represent."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class ButtonHandler(Protocol):
    """A client that handles pressed buttons."""

    async def press_button(self, interaction: discord.Interaction[Any], action: str) -> None: ...


class ButtonItem(
    discord.ui.DynamicItem[discord.ui.Button[discord.ui.View]], template=r"foveal:(?P<action>[\w:.-]{1,80})"
):
    """A button whose id contains its action."""

    def __init__(self, button: discord.ui.Button[discord.ui.View], action: str) -> None:
        super().__init__(button)
        self._action = action

    @classmethod
    async def from_custom_id(
        cls, interaction: discord.Interaction[Any], item: discord.ui.Item[Any], match: re.Match[str], /
    ) -> Self:
        assert isinstance(item, discord.ui.Button)
        return cls(item, match["action"])

    async def callback(self, interaction: discord.Interaction[Any]) -> None:
        client: ButtonHandler = interaction.client
        await client.press_button(interaction, self._action)


def button_view(buttons: Iterable[Button]) -> discord.ui.View:
    view = discord.ui.View(timeout=None)
    for button in buttons:
        shown: discord.ui.Button[discord.ui.View] = discord.ui.Button(
            label=button.label[:80], custom_id=f"foveal:{button.action}"
        )
        view.add_item(ButtonItem(shown, button.action))
    return view


LOG: Final = logging.getLogger("foveal.gateways")
DISCORD_TYPING_INTERVAL_S: Final = 8.0
"""Discord shows the typing status for ten seconds."""
TRANSIENT_ERRORS: Final = (
    discord.DiscordServerError,
    discord.RateLimited,
    aiohttp.ClientError,
    OSError,
    TimeoutError,
    RuntimeError,  # the session of a bot that is being replaced is closed
)
TRANSIENT_STATUSES: Final = (401, 429)
"""A refused token may be accepted again; the connection reports it."""
EXPIRED_INTERACTION_CODE: Final = 50_027
"""The token of an interaction is no longer valid; Discord accepts it for 15 minutes."""
NO_PRIVATE_MESSAGES_CODE: Final = 50_007
"""The user does not accept messages of the bot."""
DELETED_CHANNEL_CODE: Final = 10_003
CLOSED_CHANNELS: Final = {
    DELETED_CHANNEL_CODE: "the channel was deleted",
    50_001: "the bot cannot see the channel",
    50_013: "the bot may not write there",
    50_083: "the thread is archived",
    160_005: "the thread is locked",
    NO_PRIVATE_MESSAGES_CODE: "the user accepts no messages of the bot",
}
"""Codes with which Discord refuses a place, and what they mean."""


REFUSED_DISCORD_PART: Final = "(Discord does not accept this part of the answer; it is stored on the server.)"


class DiscordSender:
    """Sends parts of messages to channels, threads and direct messages."""

    def __init__(self) -> None:
        self.client: discord.Client | None = None
        """The client that is logged in; None while there is none."""

    def split(self, message: ChannelMessage) -> list[str]:
        return discord_parts(message)

    async def send(self, part: OutgoingPart[str]) -> None:
        channel = self._logged_in().get_partial_messageable(part.place.chat)
        options = _options(part) | {"nonce": part.nonce}
        if part.reply_to:
            options["reference"] = discord.MessageReference(
                message_id=part.reply_to, channel_id=part.place.chat, fail_if_not_exists=False
            )
        for content in (part.content, REFUSED_DISCORD_PART):
            try:
                await channel.send(content, **options)
                return
            except (discord.DiscordException, *TRANSIENT_ERRORS) as problem:
                _raise_unless_given_up(problem)

    async def show_typing(self, place: ChatPlace) -> None:
        with suppress(discord.DiscordException, *TRANSIENT_ERRORS):
            if self.client is not None:
                await self.client.http.send_typing(place.chat)

    async def private_place(self, user: int) -> ChatPlace:
        try:
            return ChatPlace((await self._logged_in().create_dm(discord.Object(user))).id)
        except (discord.DiscordException, *TRANSIENT_ERRORS) as problem:
            raise (_failure(problem) or Undelivered("Discord opens no private chat")) from None

    def _logged_in(self) -> discord.Client:
        if self.client is None:
            raise Undelivered("Discord is not connected")
        return self.client


class InteractionSender:
    """Sends parts as answers to an interaction, and to its channel when Discord accepts no more answers."""

    def __init__(
        self, interaction: discord.Interaction[Any], channel: DiscordSender, *, ephemeral: bool
    ) -> None:
        """`ephemeral`: only the user sees the answers."""
        self._interaction = interaction
        self._channel = channel
        self._ephemeral = ephemeral

    def split(self, message: ChannelMessage) -> list[str]:
        return self._channel.split(message)

    async def send(self, part: OutgoingPart[str]) -> None:
        try:
            await self._interaction.followup.send(part.content, ephemeral=self._ephemeral, **_options(part))
        except (discord.NotFound, RuntimeError):  # the interaction is unknown, or the bot was replaced
            await self._channel.send(part)
        except (discord.DiscordException, *TRANSIENT_ERRORS) as problem:
            if getattr(problem, "code", 0) != EXPIRED_INTERACTION_CODE:
                _raise_unless_given_up(problem)
                return
            await self._channel.send(part)

    async def show_typing(self, place: ChatPlace) -> None:
        await self._channel.show_typing(place)

    async def private_place(self, user: int) -> ChatPlace:
        return await self._channel.private_place(user)


def _options(part: OutgoingPart[str]) -> dict[str, Any]:
    options: dict[str, Any] = {"allowed_mentions": discord.AllowedMentions.none(), "suppress_embeds": True}
    return options | ({"view": button_view(part.buttons)} if part.buttons else {})


def _raise_unless_given_up(problem: Exception) -> None:
    """Raise what a failure means for delivery; return if Discord refuses the message for its content."""
    if failure := _failure(problem):
        raise failure from None


def _failure(problem: Exception) -> Undelivered | PlaceClosed | None:
    """Return what a failure means for delivery, without text of messages; None for a refused message."""
    if not isinstance(problem, discord.HTTPException):
        return Undelivered(f"Discord could not be reached: {type(problem).__name__}")
    if isinstance(problem, discord.DiscordServerError) or problem.status in TRANSIENT_STATUSES:
        return Undelivered(f"Discord answers with the status {problem.status}")
    if cause := CLOSED_CHANNELS.get(problem.code):
        is_gone, may_reopen = problem.code == NO_PRIVATE_MESSAGES_CODE, problem.code != DELETED_CHANNEL_CODE
        return PlaceClosed(cause, is_gone=is_gone, may_reopen=may_reopen)
    LOG.warning("Discord refused a message: %s (%s)", problem.status, problem.code)
    return None
