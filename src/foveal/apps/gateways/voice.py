"""How a chat is spoken to: one thing at a time, with a footer below it and perhaps buttons."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

import msgspec

from foveal.apps.gateways import cards
from foveal.errors import PASSING, FovealError, UnknownSession
from foveal.report import Report
from foveal.service.turns import Outcome, Turn

LOG: Final = logging.getLogger("foveal.gateways")


class Button(msgspec.Struct, frozen=True):
    label: str
    action: str
    """What `Talk.pressed` is given."""


class Says(msgspec.Struct, frozen=True, kw_only=True):
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


class Voice:
    """Says how turns ended. A session that gets full is warned of once for each state, not with every answer."""

    def __init__(self, *, footer: bool) -> None:
        self._footer = footer
        self._warned: dict[str, str] = {}
        """The state that each session was last warned of."""

    def said(self, turn: Turn, outcome: Outcome, *, notes: list[str]) -> Says:
        """How a turn ended; the notes say what was reduced for it."""
        below, full = self._below(outcome.report, session=turn.session)
        buttons = [COMPACT_NOW] if full else []
        if outcome.why == "failed" and outcome.sort in PASSING:
            buttons.append(Button("Try again", f"{AGAIN}{turn.id}"))
        return Says(text=_text(outcome), footer="\n".join([*notes, *below]), buttons=tuple(buttons))

    def card(self, text: str, report: Report, *, session: str) -> Says:
        """A card with the footer below it, and the warning if there is one to be said."""
        below, full = self._below(report, session=session)
        return Says(text=text, footer="\n".join(below), buttons=(COMPACT_NOW,) if full else ())

    def below(self, report: Report) -> str:
        """The footer of a card."""
        return cards.footer(report) if self._footer else ""

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
        return ([*lines, cards.warning(report)] if full else lines), full


def _text(outcome: Outcome) -> str:
    if outcome.kept:
        return cards.later(outcome.problem)
    match outcome.why:
        case "answered":
            added = "" if outcome.text.strip() else cards.SILENT
        case "steps":
            added = cards.STEPS
        case "stopped":
            added = cards.STOPPED
        case _:
            added = cards.failed(outcome.problem, sort=outcome.sort)
    return f"{outcome.text.strip()}\n\n{added}".strip()


async def guarded(saying: AsyncGenerator[Says, None]) -> AsyncGenerator[Says, None]:
    """The same, and if it fails, that is said."""
    try:
        async with aclosing(saying):
            async for says in saying:
                yield says
    except UnknownSession:
        yield Says(text=cards.EMPTY)
    except FovealError as problem:
        yield Says(text=cards.failure(problem))
    except Exception as problem:  # noqa: BLE001  (a failure becomes a reply)
        LOG.error("an answer to a chat failed: %s", type(problem).__name__)
        yield Says(text=cards.FAILED)


async def nothing() -> AsyncGenerator[Says, None]:
    """What is said to a message that was answered before."""
    none: tuple[Says, ...] = ()
    for says in none:
        yield says


async def saying(text: str) -> AsyncGenerator[Says, None]:
    yield Says(text=text)
