"""Messages from a chat to a bot, for all chat apps, and access to it.

Access is decided by the numeric user id that the chat app guarantees: in the allow-list, or paired. Other users get
one sentence, and nothing of their messages is stored.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Literal

import msgspec

from foveal.server.audit import PAIRING_CODE, AuditTrail
from foveal.server.chat_records import ChatPlace
from foveal.server.gateways import texts
from foveal.server.pairing import ChatPlatform, Pairing

MAX_UNKNOWN_USER_REPLIES_PER_MINUTE: Final = 6
"""Replies that a user without access gets, so that such users cannot keep the bot busy."""


class AccessControl:
    """Decides which users of one chat app have access, and pairs new ones."""

    def __init__(
        self, pairing: Pairing, audit: AuditTrail, *, platform: ChatPlatform, allowed: Collection[int]
    ) -> None:
        self._pairing = pairing
        self._audit = audit
        self._platform = platform
        self._allowed = frozenset(allowed)
        self._listed = tuple(allowed)

    async def is_allowed(self, user: int) -> bool:
        return user in self._allowed or await self._pairing.is_paired(self._platform, user)

    async def count_users(self) -> int:
        """Return how many users have access."""
        return len(self._allowed.union(await self.paired_users()))

    async def paired_users(self) -> list[int]:
        """Return the users who have claimed a code, earliest first."""
        return [entry.user for entry in await self._pairing.list() if entry.platform == self._platform]

    async def owners(self) -> tuple[int, ...]:
        """Return the owners of the bot: the users of the allow-list, else the one who was paired first."""
        return self._listed or tuple((await self.paired_users())[:1])

    async def pair(self, user: int, code: str, *, now: float) -> str:
        """Pair a user who sent a code, and return the reply."""
        if await self.is_allowed(user):
            return texts.ALREADY_PAIRED
        if not code:
            return texts.no_access(self._platform, user)
        if seconds := await self._pairing.retry_after(self._platform, user, now=now):
            return texts.locked_out(self._platform, user, seconds=seconds)
        if not await self._pairing.claim(self._platform, code, user, now=now):
            return texts.NOT_PAIRED
        await self._audit.record("login", f"user:{user}", tenant=self._platform, actor=PAIRING_CODE)
        return texts.PAIRED


EDITS: Final = "edits of earlier messages"
"""What an edit counts as in `IncomingMessage.unread`."""


class ChatAuthor(msgspec.Struct, frozen=True):
    """Who wrote a text."""

    name: str
    """The display name, which its owner chooses freely."""
    id: int = 0
    """The numeric id that the chat app guarantees; 0 if the app does not tell it."""


class QuotedText(msgspec.Struct, frozen=True, kw_only=True):
    """A text that a message answers or forwards."""

    kind: Literal["reply", "forward"]
    text: str
    author: ChatAuthor | None = None
    is_own: bool = False
    """The bot wrote it, so the conversation has it already."""


class IncomingFile(msgspec.Struct, frozen=True, kw_only=True):
    """A picture or a document of a message."""

    name: str
    mime: str
    size: int = 0
    """Bytes, as the chat app says; 0 if it does not."""
    reference: str = ""
    """Where the chat app has the file: an id or an address."""
    data: bytes = b""
    """What was fetched."""
    left_out: int = 0
    """Characters at the end of a text that were left out of `data`."""
    extent: str = ""
    """How much of a text the model gets, such as "391 of 1,500 lines"; "" for all of it."""
    problem: str = ""
    """Why the model does not get it, as a clause; "" if it does."""
    is_missing: bool = False
    """It could not be fetched now, although the model could read it."""


class IncomingMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message or command that a user wrote to the bot."""

    key: str
    """Identifies the message: the same when the chat app sends it again."""
    place: ChatPlace
    user: int
    """The numeric id that the chat app guarantees."""
    text: str
    reply_to: int = 0
    """The message on the platform that the answer replies to; 0 for none."""
    place_name: str = ""
    """What users call the place, such as the names of group and topic; "" for a private chat."""
    speaker: ChatAuthor | None = None
    """Who wrote it, where several users share a conversation."""
    quotes: tuple[QuotedText, ...] = ()
    files: tuple[IncomingFile, ...] = ()
    unread: tuple[str, ...] = ()
    """Kinds of content in it that the bot does not read, such as "voice messages"."""

    @property
    def title(self) -> str:
        """A text that stands for the message: its own, else that of a quote or the name of a file."""
        return self.text.strip() or next((quote.text for quote in self.quotes), "") or self.files[0].name

    @property
    def has_content(self) -> bool:
        """Whether there is anything to answer."""
        has_file = any(not file.problem or file.is_missing for file in self.files)
        return bool(self.text.strip() or has_file or any(quote.kind == "forward" for quote in self.quotes))
