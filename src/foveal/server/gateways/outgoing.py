"""Messages from a bot to a chat: text, footer and buttons, and the interface that sends their parts."""

from __future__ import annotations

import hashlib
import logging
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec

from foveal.core.engine.report import Report
from foveal.errors import TRANSIENT_CODES, FovealError, PicklableError, UnknownSession
from foveal.server.chat_records import ChatPlace
from foveal.server.gateways import texts
from foveal.server.turns import Turn, TurnOutcome

LOG: Final = logging.getLogger("foveal.gateways")
COMPACT_ACTION: Final = "compact"
"""Action of the button that summarises."""
AGREE_ACTION: Final = "agree"
DECLINE_ACTION: Final = "decline"
"""Actions of the buttons that answer the question of mode `confirm`."""
REMOVE_ACTION: Final = "remove:"
"""Prefix of the action of the button that takes a message out; the handle of the message follows."""
MEMORY_ACTION: Final = "memory:"
"""Prefix of the actions of buttons for a user's memory."""
SHOW_KEPT_ACTION: Final = "kept"
"""Action of the button that shows the answers which were kept while the user had blocked the bot."""
RETRY_ACTION: Final = "again:"
"""Prefix of the action of the button that asks the model again; the id of the failed turn follows."""


class Undelivered(Exception):
    """The chat app could not be reached or failed; the message is delivered later."""


class Button(msgspec.Struct, frozen=True):
    """A button below a message."""

    label: str
    action: str
    """What `ChatSessions.press_button` receives."""


class ChannelMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One message to a chat."""

    text: str
    """Markdown (CommonMark), as the model wrote it."""
    footer: str = ""
    """Plain text below it."""
    buttons: tuple[Button, ...] = ()
    is_last: bool = True
    """Whether no other message follows that belongs to the same reply."""
    is_answer: bool = False
    """The answer to a recorded message, whose delivered parts are counted; not a notice or an error."""
    is_in_order: bool = False
    """Whether it comes after the answers before it: it says what was changed after them."""


Replies: TypeAlias = AsyncGenerator[ChannelMessage, None]
"""The messages that answer one input, as they become available."""
COMPACT_BUTTON: Final = Button("Compact now", COMPACT_ACTION)
QUESTION_BUTTONS: Final = (Button("Yes", AGREE_ACTION), Button("No", DECLINE_ACTION))
WARNING_RANKS: Final = {"ok": 0, "warn": 1, "act": 2, "over": 2}
"""How full the window is in each state; each colour of the footer has one rank."""

# ── Composing ────────────────────────────────────────────────────────────────────────────────────────────


class MessageComposer:
    """Composes messages with footer, warning and question.

    Each session is warned once when its window becomes yellow, and once when it becomes red. In mode `confirm` red
    is a question instead, below every answer until the window has space again."""

    def __init__(self, *, footer: bool) -> None:
        self._footer = footer
        self._warned: dict[str, int] = {}
        """The highest rank of which each session was warned since its window last had space."""

    def answer(self, turn: Turn, outcome: TurnOutcome, *, notes: list[str]) -> ChannelMessage:
        """Return how a turn ended; the notes say what was reduced for it."""
        lines, buttons = list(notes), tuple[Button, ...]()
        if outcome.report is not None:
            added, buttons = self._below_answer(outcome.report, session=turn.session)
            lines += added
        if outcome.why == "failed" and outcome.code in TRANSIENT_CODES:
            buttons = (*buttons, Button("Try again", f"{RETRY_ACTION}{turn.id}"))
        return ChannelMessage(text=_outcome_text(outcome), footer="\n".join(lines), buttons=buttons)

    def card(self, text: str, report: Report, *, session: str) -> ChannelMessage:
        """Return the output of a command with footer, and with a warning if one is due. The question comes with the
        next answer."""
        lines, buttons = self._with_warning(report, session=session)
        return ChannelMessage(text=text, footer="\n".join(lines), buttons=buttons)

    def footer(self, report: Report) -> str:
        return texts.footer(report) if self._footer else ""

    def reset_warning(self, session: str) -> None:
        """Warn again when the window next becomes full; called after a reduction."""
        self._warned.pop(session, None)

    def _below_answer(self, report: Report, *, session: str) -> tuple[list[str], tuple[Button, ...]]:
        """Return the lines and buttons below an answer."""
        if not report.question:
            return self._with_warning(report, session=session)
        return [*self._footer_lines(report), *texts.question(report)], QUESTION_BUTTONS

    def _with_warning(self, report: Report, *, session: str) -> tuple[list[str], tuple[Button, ...]]:
        """Return the footer, with a warning and its button if the window has just become this full."""
        lines, rank = self._footer_lines(report), WARNING_RANKS[report.state]
        if report.question:
            return lines, ()
        if not rank:
            self.reset_warning(session)
        if rank <= self._warned.get(session, 0):
            return lines, ()
        self._warned[session] = rank
        return [*lines, texts.warning(report)], (COMPACT_BUTTON,)

    def _footer_lines(self, report: Report) -> list[str]:
        return [texts.footer(report)] if self._footer else []


def _outcome_text(outcome: TurnOutcome) -> str:
    if outcome.is_pending:
        return texts.answer_later(outcome.problem)
    match outcome.why:
        case "answered":
            added = "" if outcome.text.strip() else texts.EMPTY_ANSWER
        case "steps":
            added = texts.step_limit(outcome.problem)
        case "stopped":
            added = texts.STOPPED
        case _:
            added = texts.no_answer(outcome.problem, code=outcome.code)
    return f"{outcome.text.strip()}\n\n{added}".strip()


# ── Replies ──────────────────────────────────────────────────────────────────────────────────────────────


async def errors_as_replies(replies: Replies) -> Replies:
    """Yield the replies; an error becomes a last reply."""
    try:
        async with aclosing(replies):
            async for message in replies:
                yield message
    except UnknownSession:
        yield ChannelMessage(text=texts.NO_MESSAGES)
    except FovealError as problem:
        yield ChannelMessage(text=texts.error(problem))
    except Exception as problem:  # noqa: BLE001  (a failure becomes a reply)
        LOG.error("an answer to a chat failed: %s", type(problem).__name__)
        yield ChannelMessage(text=texts.INTERNAL_ERROR)


async def no_replies() -> Replies:
    """Yield nothing: the reply to a message that was answered before."""
    none: tuple[ChannelMessage, ...] = ()
    for message in none:
        yield message


async def text_reply(text: str) -> Replies:
    yield ChannelMessage(text=text)


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
