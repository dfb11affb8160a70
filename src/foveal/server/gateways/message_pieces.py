"""Messages that belong together: a text that a client has split, and the files of an album.

Whether a message continues another one depends only on the two messages: the same author and place, sent within a
moment, the first one nearly as long as a message can be, or both in one album.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from foveal.server.gateways.incoming import IncomingMessage, QuotedText

MAX_PIECE_INTERVAL_S: Final = 2.0
"""Between two pieces; chat apps round the time of a message to a second."""
MAX_PIECES: Final = 50


class MessagePiece(msgspec.Struct, frozen=True, kw_only=True):
    """A message as it arrived, with what decides whether it is a piece of a longer one."""

    message: IncomingMessage
    sent_at: float = 0.0
    joint: str | None = None
    """What joins the text to a next piece; None if the message is not so long that a client may have split it."""
    album: str = ""
    """The album of the message; "" for none."""
    is_addressed: bool = True
    """Whether the message is for the bot. In a group, of an album or a split text one message may say so."""

    @property
    def may_continue(self) -> bool:
        """Whether another piece may follow."""
        return self.joint is not None or bool(self.album)


def continues(last: MessagePiece, piece: MessagePiece) -> bool:
    """Return whether a message continues the one before it of the same user."""
    before, after = last.message, piece.message
    if (before.user, before.place) != (after.user, after.place):
        return False
    if last.album or piece.album:
        return last.album == piece.album
    return (
        last.joint is not None
        and abs(piece.sent_at - last.sent_at) <= MAX_PIECE_INTERVAL_S
        and _origin(before) == _origin(after)
        and not any(quote.kind == "reply" for quote in after.quotes)
        and not after.text.startswith("/")
        and not after.files
        and after.has_content
    )


def join(pieces: Sequence[MessagePiece]) -> IncomingMessage:
    """Return one message with the key of the first piece."""
    first = pieces[0].message
    if len(pieces) == 1:
        return first
    messages = [piece.message for piece in pieces]
    if pieces[0].album:
        text = "\n".join(message.text for message in messages if message.text)
        quotes = tuple(dict.fromkeys(quote for message in messages for quote in message.quotes))
    else:
        text = _joined([message.text for message in messages], pieces)
        quotes = _joined_quotes(messages, pieces)
    return replace(
        first,
        text=text,
        quotes=quotes,
        files=tuple(file for message in messages for file in message.files),
        unread=tuple(dict.fromkeys(kind for message in messages for kind in message.unread)),
    )


def _joined(texts: Sequence[str], pieces: Sequence[MessagePiece]) -> str:
    joints = [piece.joint or "" for piece in pieces[:-1]]
    return texts[0] + "".join(joint + text for joint, text in zip(joints, texts[1:], strict=True))


def _joined_quotes(
    messages: Sequence[IncomingMessage], pieces: Sequence[MessagePiece]
) -> tuple[QuotedText, ...]:
    """Return the quotes of the first piece, with the text of a forward joined."""
    forwards = [quote for message in messages for quote in message.quotes if quote.kind == "forward"]
    others = tuple(quote for quote in messages[0].quotes if quote.kind != "forward")
    if len(forwards) != len(messages):
        return messages[0].quotes
    whole = replace(forwards[0], text=_joined([quote.text for quote in forwards], pieces))
    return (*others, whole)


def _origin(message: IncomingMessage) -> list[object]:
    return [quote.author for quote in message.quotes if quote.kind == "forward"]
