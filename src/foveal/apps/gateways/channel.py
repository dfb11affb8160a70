"""How a chat is spoken to: one thing at a time, with a footer below it and perhaps buttons."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

import msgspec

from foveal.apps.gateways import texts
from foveal.core.engine.report import Report
from foveal.errors import PASSING, FovealError, UnknownSession
from foveal.server.turns import Turn, TurnOutcome

LOG: Final = logging.getLogger("foveal.gateways")


class Button(msgspec.Struct, frozen=True):
    label: str
    action: str
    """What `Talk.pressed` is given."""


class ChannelMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to say to a chat."""

    text: str
    """Markdown (CommonMark), as the model wrote it."""
    footer: str = ""
    """Plain text that stands below it."""
    buttons: tuple[Button, ...] = ()


COMPACT: Final = "compact"
"""The action of the button that summarises."""
COMPACT_NOW: Final = Button("Compact now", COMPACT)
AGAIN: Final = "again:"
"""How the action of the button begins that asks again; the turn that failed follows."""


class Channel:
    """Says how turns ended. A session that gets full is warned of once for each state, not with every answer."""

    def __init__(self, *, footer: bool) -> None:
        self._footer = footer
        self._warned: dict[str, str] = {}
        """The state that each session was last warned of."""

    def said(self, turn: Turn, outcome: TurnOutcome, *, notes: list[str]) -> ChannelMessage:
        """How a turn ended; the notes say what was reduced for it."""
        below, full = self._below(outcome.report, session=turn.session)
        buttons = [COMPACT_NOW] if full else []
        if outcome.why == "failed" and outcome.code in PASSING:
            buttons.append(Button("Try again", f"{AGAIN}{turn.id}"))
        return ChannelMessage(text=_text(outcome), footer="\n".join([*notes, *below]), buttons=tuple(buttons))

    def card(self, text: str, report: Report, *, session: str) -> ChannelMessage:
        """A card with the footer below it, and the warning if there is one to be said."""
        below, full = self._below(report, session=session)
        return ChannelMessage(text=text, footer="\n".join(below), buttons=(COMPACT_NOW,) if full else ())

    def below(self, report: Report) -> str:
        """The footer of a card."""
        return texts.footer(report) if self._footer else ""

    def calm(self, session: str) -> None:
        """The session was made smaller: the next warning is a new one."""
        self._warned.pop(session, None)

    def _below(self, report: Report | None, *, session: str) -> tuple[list[str], bool]:
        """The footer, with a warning when the window has just become that full."""
        if report is None:
            return [], False
        lines = [self.below(report)] if self._footer else []
        full = report.state != "ok" and self._warned.get(session) != report.state
        self._warned[session] = report.state
        return ([*lines, texts.warning(report)] if full else lines), full


def _text(outcome: TurnOutcome) -> str:
    if outcome.kept:
        return texts.later(outcome.problem)
    match outcome.why:
        case "answered":
            added = "" if outcome.text.strip() else texts.SILENT
        case "steps":
            added = texts.STEPS
        case "stopped":
            added = texts.STOPPED
        case _:
            added = texts.failed(outcome.problem, code=outcome.code)
    return f"{outcome.text.strip()}\n\n{added}".strip()


async def guarded(saying: AsyncGenerator[ChannelMessage, None]) -> AsyncGenerator[ChannelMessage, None]:
    """The same, and if it fails, that is said."""
    try:
        async with aclosing(saying):
            async for says in saying:
                yield says
    except UnknownSession:
        yield ChannelMessage(text=texts.EMPTY)
    except FovealError as problem:
        yield ChannelMessage(text=texts.failure(problem))
    except Exception as problem:  # noqa: BLE001  (a failure becomes a reply)
        LOG.error("an answer to a chat failed: %s", type(problem).__name__)
        yield ChannelMessage(text=texts.FAILED)


async def nothing() -> AsyncGenerator[ChannelMessage, None]:
    """What is said to a message that was answered before."""
    none: tuple[ChannelMessage, ...] = ()
    for says in none:
        yield says


async def saying(text: str) -> AsyncGenerator[ChannelMessage, None]:
    yield ChannelMessage(text=text)
