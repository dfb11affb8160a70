"""Messages from a bot to a chat: text, footer and buttons."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final, TypeAlias

import msgspec

from foveal.apps.gateways import texts
from foveal.core.engine.report import Report
from foveal.errors import TRANSIENT_CODES, FovealError, UnknownSession
from foveal.server.turns import Turn, TurnOutcome

LOG: Final = logging.getLogger("foveal.gateways")
COMPACT_ACTION: Final = "compact"
"""Action of the button that summarises."""
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


Replies: TypeAlias = AsyncGenerator[ChannelMessage, None]
"""The messages that answer one input, as they become available."""
COMPACT_BUTTON: Final = Button("Compact now", COMPACT_ACTION)

# ── Composing ────────────────────────────────────────────────────────────────────────────────────────────


class MessageComposer:
    """Composes messages with footer and warning; each session is warned once per state of its window."""

    def __init__(self, *, footer: bool) -> None:
        self._footer = footer
        self._warned: dict[str, str] = {}
        """The state of which each session was warned last."""

    def answer(self, turn: Turn, outcome: TurnOutcome, *, notes: list[str]) -> ChannelMessage:
        """Return how a turn ended; the notes say what was reduced for it."""
        lines, is_warning = self._footer_lines(outcome.report, session=turn.session)
        buttons = [COMPACT_BUTTON] if is_warning else []
        if outcome.why == "failed" and outcome.code in TRANSIENT_CODES:
            buttons.append(Button("Try again", f"{RETRY_ACTION}{turn.id}"))
        footer = "\n".join([*notes, *lines])
        return ChannelMessage(text=_outcome_text(outcome), footer=footer, buttons=tuple(buttons))

    def card(self, text: str, report: Report, *, session: str) -> ChannelMessage:
        """Return the output of a command with footer, and with a warning if one is due."""
        lines, is_warning = self._footer_lines(report, session=session)
        buttons = (COMPACT_BUTTON,) if is_warning else ()
        return ChannelMessage(text=text, footer="\n".join(lines), buttons=buttons)

    def footer(self, report: Report) -> str:
        return texts.footer(report) if self._footer else ""

    def reset_warning(self, session: str) -> None:
        """Warn again when the window next becomes full; called after a reduction."""
        self._warned.pop(session, None)

    def _footer_lines(self, report: Report | None, *, session: str) -> tuple[list[str], bool]:
        """Return the footer, and whether it has a warning because the window has just become this full."""
        if report is None:
            return [], False
        lines = [self.footer(report)] if self._footer else []
        is_warning = report.state != "ok" and self._warned.get(session) != report.state
        self._warned[session] = report.state
        return ([*lines, texts.warning(report)] if is_warning else lines), is_warning


def _outcome_text(outcome: TurnOutcome) -> str:
    if outcome.is_pending:
        return texts.answer_later(outcome.problem)
    match outcome.why:
        case "answered":
            added = "" if outcome.text.strip() else texts.EMPTY_ANSWER
        case "steps":
            added = texts.STEP_LIMIT
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
