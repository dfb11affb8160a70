"""Sending of one part of a message: the interface that each gateway implements."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

import msgspec

from foveal.errors import PicklableError
from foveal.server.chat_records import ChatPlace
from foveal.server.gateways.outgoing import Button, ChannelMessage

PartT = TypeVar("PartT")


class PlaceClosed(PicklableError, Exception):
    """The bot cannot write in a place; the text says why, as a clause."""

    def __init__(self, cause: str, *, is_gone: bool = False, may_reopen: bool = True) -> None:
        """`is_gone`: the user has left or blocked the bot, which no owner can change. `may_reopen`: the place may
        accept messages again."""
        super().__init__(cause)
        self.cause = cause
        self.is_gone = is_gone
        self.may_reopen: bool = may_reopen and not is_gone


class OutgoingPart(msgspec.Struct, Generic[PartT], frozen=True, kw_only=True):
    """One part of a message, as the chat app takes it."""

    content: PartT
    place: ChatPlace
    reply_to: int = 0
    """The message that it replies to; 0 for none."""
    buttons: tuple[Button, ...] = ()
    number: int = 0
    """Its position in the message, from 0."""
    nonce: str = ""
    """Identifies the part, also when it is sent again, for chat apps that ignore repeated messages."""


class PartSender(Protocol[PartT]):
    """Sends parts of messages to the places of a chat app."""

    def split(self, message: ChannelMessage) -> Sequence[PartT]:
        """Return the parts of a message: the same parts for the same message."""
        ...

    async def send(self, part: OutgoingPart[PartT]) -> None:
        """Send a part once. Raises `Undelivered` if another attempt may succeed, else `PlaceClosed`.

        A part that the chat app refuses for its content counts as sent.
        """
        ...

    async def show_typing(self, place: ChatPlace) -> None:
        """Show for a few seconds that the bot is typing; raises nothing if that fails."""
        ...

    async def private_place(self, user: int) -> ChatPlace:
        """Return the private chat with a user. Raises as `send` does."""
        ...


class ReplyTarget(NamedTuple):
    """Where replies go: the place, and the message that they answer."""

    place: ChatPlace
    reply_to: int
    key: str


def outgoing_parts(
    reply: ChannelMessage, origin: ReplyTarget, sender: PartSender[PartT], *, first: int = 0
) -> deque[OutgoingPart[PartT]]:
    """Return the parts of a reply from the part `first` on: the first is a reply, the last has the buttons."""
    contents = sender.split(reply)
    kind = "a" if reply.is_answer else f"r{reply.text}"  # a message may get several notices
    seed = hashlib.blake2b(f"{kind}{origin.key}".encode(), digest_size=8).hexdigest()
    return deque(
        OutgoingPart(
            content=content,
            place=origin.place,
            reply_to=0 if number else origin.reply_to,
            buttons=reply.buttons if number == len(contents) - 1 else (),
            number=number,
            nonce=f"{seed}.{number}",
        )
        for number, content in enumerate(contents)
        if number >= first
    )
