"""Intake of messages: in the order of their arrival in each place, pieces of one message together.

1. The messages of a place are accepted one after the other. Other places do not wait.
2. After a message that may be the first piece of a longer one, the next piece is waited for, for a moment.
3. Which messages are pieces of one is recorded before it is accepted, and is the same when they arrive again.
4. `/stop` does not wait for the files of an earlier message.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from foveal.server.chat_records import ChatPlace
from foveal.server.gateways.incoming import IncomingMessage, QuotedText

LOG: Final = logging.getLogger("foveal.gateways")
PIECE_WAIT_S: Final = 0.7
"""How long the next piece of a message is waited for."""
STOP_DELAY_S: Final = 0.1
"""How long `/stop` waits for the files of an earlier message: one that is stored soon is stopped as any other."""
CLOSE_INTAKE_S: Final = 5.0
"""Time for messages that are being accepted when the server stops; a file may take longer to arrive."""

Accept = Callable[[IncomingMessage], Awaitable[None]]
JoinKeys = Callable[[ChatPlace, Sequence[str]], Awaitable[list[str]]]
"""Decides which messages are one, and records it; see `Chats.join_pieces`."""


class _Arrived(NamedTuple):
    piece: MessagePiece
    accepted: asyncio.Future[None]


class _WaitingMessages:
    """Messages of a place that are not accepted yet."""

    def __init__(self) -> None:
        self.waiting: deque[_Arrived] = deque()
        self.arrived = asyncio.Event()
        self.task: asyncio.Task[None] | None = None


class PlaceIntake:
    """Accepts the messages of one chat app."""

    def __init__(self, accept: Accept, join_keys: JoinKeys, *, wait_s: float = PIECE_WAIT_S) -> None:
        self._accept = accept
        self._join_keys = join_keys
        self._wait_s = wait_s
        self._queues: dict[ChatPlace, _WaitingMessages] = {}
        self._is_closing = self._drops_waiting = False

    def put(self, piece: MessagePiece) -> asyncio.Future[None]:
        """Queue a message; the future is done when the message is accepted, or is not for the bot."""
        accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        place = piece.message.place
        queue = self._queues.get(place)
        if queue is None and not piece.is_addressed and not piece.album:
            accepted.set_result(None)
            return accepted
        if queue is None:
            queue = self._queues[place] = _WaitingMessages()
        queue.waiting.append(_Arrived(piece, accepted))
        queue.arrived.set()
        if queue.task is None:
            queue.task = asyncio.create_task(self._run(place, queue))
        return accepted

    async def close(self, *, drops_waiting: bool) -> None:
        """End the waits for further pieces, and finish what has begun.

        `drops_waiting`: messages whose acceptance has not begun are left to the chat app, which sends them again.
        """
        self._is_closing, self._drops_waiting = True, drops_waiting
        for queue in self._queues.values():
            queue.arrived.set()
        tasks = [queue.task for queue in self._queues.values() if queue.task is not None]
        if tasks:
            _, unfinished = await asyncio.wait(tasks, timeout=CLOSE_INTAKE_S)
            for task in unfinished:
                task.cancel()

    async def _run(self, place: ChatPlace, queue: _WaitingMessages) -> None:
        while queue.waiting:
            arrived = await self._next(queue)
            if self._drops_waiting:
                break
            try:
                if any(one.piece.is_addressed for one in arrived):
                    await self._accept_pieces(place, queue, arrived)
            except Exception as problem:  # noqa: BLE001  (the next messages are accepted all the same)
                LOG.error("a message was not accepted: %s", type(problem).__name__)
            for one in arrived:
                if not one.accepted.done() and one not in queue.waiting:
                    one.accepted.set_result(None)
        del self._queues[place]

    async def _next(self, queue: _WaitingMessages) -> list[_Arrived]:
        """Take the next message with its further pieces."""
        taken = [queue.waiting.popleft()]
        wait_until = self._end_of_wait()
        while taken[-1].piece.may_continue and len(taken) < MAX_PIECES:
            last = taken[-1].piece
            following = self._following(queue, last)
            if following is None:
                if not await self._has_arrival(queue, until=wait_until):
                    break
                continue
            if not continues(last, following.piece):
                break
            queue.waiting.remove(following)
            taken.append(following)
            wait_until = self._end_of_wait()
        return taken

    def _end_of_wait(self) -> float:
        return asyncio.get_running_loop().time() + self._wait_s

    def _following(self, queue: _WaitingMessages, last: MessagePiece) -> _Arrived | None:
        """Return the next message of the same user."""
        return next((one for one in queue.waiting if one.piece.message.user == last.message.user), None)

    async def _has_arrival(self, queue: _WaitingMessages, *, until: float) -> bool:
        """Wait for another message in the place; return False if none came."""
        queue.arrived.clear()
        if self._is_closing:
            return False
        try:
            async with asyncio.timeout_at(until):
                await queue.arrived.wait()
        except TimeoutError:
            return False
        return not self._is_closing

    async def _accept_pieces(
        self, place: ChatPlace, queue: _WaitingMessages, arrived: list[_Arrived]
    ) -> None:
        """Accept one message; pieces that do not belong to it after all wait again."""
        if arrived[0].piece.may_continue:
            keys = set(await self._join_keys(place, [one.piece.message.key for one in arrived]))
            others = [one for one in arrived if one.piece.message.key not in keys]
            arrived = [one for one in arrived if one.piece.message.key in keys]
            queue.waiting.extendleft(reversed(others))
        message = join([one.piece for one in arrived])
        if message.files:
            await self._accept_beside_stop(message, queue)
        else:
            await self._accept(message)

    async def _accept_beside_stop(self, message: IncomingMessage, queue: _WaitingMessages) -> None:
        """Accept a message whose files may take a while, and each `/stop` that arrives meanwhile."""
        accepting = asyncio.ensure_future(self._accept(message))
        try:
            await asyncio.wait([accepting], timeout=STOP_DELAY_S)
            while not accepting.done():
                queue.arrived.clear()
                for stop in [one for one in queue.waiting if _is_stop(one.piece.message)]:
                    queue.waiting.remove(stop)
                    await self._accept_stop(stop)
                arrival = asyncio.ensure_future(queue.arrived.wait())
                await asyncio.wait([accepting, arrival], return_when=asyncio.FIRST_COMPLETED)
                arrival.cancel()
            await accepting
        finally:
            accepting.cancel()

    async def _accept_stop(self, stop: _Arrived) -> None:
        try:
            await self._accept(stop.piece.message)
        except Exception as problem:  # noqa: BLE001  (the message before it is accepted all the same)
            LOG.error("a command was not accepted: %s", type(problem).__name__)
        stop.accepted.set_result(None)


def _is_stop(message: IncomingMessage) -> bool:
    return message.text.strip().lower() == "/stop"


# ── Pieces of one message ────────────────────────────────────────────────────────────────────────────
# Whether a message continues another one depends only on the two messages: the same author and place, sent within a
# moment, the first one nearly as long as a message can be, or both in one album.

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
