"""Resuming a session: the menu of `--resume` and `/resume`, and the last turns, which are shown."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from foveal.agent.terminal.options import ChatOptions
from foveal.agent.terminal.output.styled_text import Row, Span, bold, dim, row
from foveal.agent.terminal.user_interface import LeaveChat, MenuItem, UserInterface
from foveal.agent.terminal.user_message import typed_text
from foveal.agent.tools.subagents import is_subagent_id
from foveal.core.compaction.carried_record import is_carried_record
from foveal.core.log.events import Event, ModelSaid, ToolReturned, UserSaid, text_of
from foveal.core.view.fold import effective_events
from foveal.core.wire.safe_print import counted, one_line
from foveal.errors import FovealError
from foveal.ports import Store
from foveal.recall.archive.stored_sessions import (
    SessionSummary,
    find_session,
    newest_session_of,
    session_summaries,
)
from foveal.sessions.session import Session

# ── The menu ─────────────────────────────────────────────────────────────────────────────────────────────

MAX_MENU_SESSIONS: Final = 500
"""Sessions that the menu offers, newest first."""
_UNITS: Final = ((86_400.0, "day"), (3_600.0, "hour"), (60.0, "minute"))
"""Units of an age, in seconds."""


def real_folder(folder: Path) -> str:
    """Return a working folder as sessions record it: absolute, links resolved."""
    return os.path.realpath(folder)


async def choose_session_id(store: Store, options: ChatOptions, ui: UserInterface) -> str:
    """Return the id of the session that the options name or the user picks; "" if a new one is to be created.

    Raises `LeaveChat` if the user picks none.
    """
    if options.resume:
        return await find_session(store, options.resume)
    if options.picks_session:
        picked = await pick_session(store, ui, folder=options.folder)
        if picked is None:
            raise LeaveChat
        return picked
    if options.newest:
        return await newest_session_of(store, real_folder(options.folder))
    return options.session


async def pick_session(store: Store, ui: UserInterface, *, folder: Path, current: str = "") -> str | None:
    """Return the id of the session that the user picks, None if none; raises without a terminal."""
    if not ui.can_ask:
        raise FovealError("there is no terminal to pick a session at: give its id, or the beginning of it")
    found = await session_summaries(store, limit=MAX_MENU_SESSIONS)
    here, now = real_folder(folder), time.time()
    items = [
        _menu_item(one, here=here, now=now)
        for one in found
        if one.info.id != current and not is_subagent_id(one.info.id)
    ]
    if not items:
        raise FovealError("there is no other session yet")
    return await ui.pick("Continue which session?", items)


def _menu_item(one: SessionSummary, *, here: str, now: float) -> MenuItem:
    where = "this folder" if one.folder == here else _short_folder(one.folder)
    size = counted(one.tokens, "token") if one.tokens else counted(one.info.events, "event")
    details = (age(now - one.info.active), where, size, one.info.id)
    title = one_line(one.info.title, width=60) or "(no title)"
    return MenuItem(one.info.id, title, " · ".join(filter(None, details)))


def _short_folder(folder: str) -> str:
    home = os.path.realpath(Path.home())
    return one_line(f"~{folder[len(home) :]}" if folder.startswith(home + os.sep) else folder, width=60)


def age(seconds: float) -> str:
    """Return how long ago something was, in words."""
    for size, unit in _UNITS:
        if (count := int(seconds // size)) > 0:
            return f"{counted(count, unit)} ago"
    return "just now"


# ── The last turns ───────────────────────────────────────────────────────────────────────────────────────

MAX_SHOWN_TURNS: Final = 3
MAX_SHOWN_MESSAGE_LINES: Final = 3
MAX_SHOWN_ANSWER_LINES: Final = 8
_READ_EVENTS: Final = (300, 3_000, 30_000)
"""Events at the end of the log among which the last turns are looked for, more if those are not enough."""


async def show_recent_turns(session: Session, ui: UserInterface) -> None:
    """Show the last messages and answers of a session, each shortened; nothing if it has none."""
    count = (await session.end()).next_seq
    for wanted in _READ_EVENTS:
        turns = split_turns(effective_events(await session.events(first=max(0, count - wanted))))
        if len(turns) >= MAX_SHOWN_TURNS or wanted >= count:
            break
    shown = turns[-MAX_SHOWN_TURNS:]
    if not shown:
        return
    is_all = len(turns) <= MAX_SHOWN_TURNS and wanted >= count
    many = "the last turn" if len(shown) == 1 else f"the last {len(shown)} turns"
    head = "" if is_all else f"  … {many}, shortened; the model sees the whole conversation"
    if head:
        ui.show([row(dim(head))])
    for turn in shown:
        _show_turn(turn, ui)


def split_turns(events: Sequence[Event]) -> list[list[Event]]:
    """Return events by turn, each beginning with a message of the user; what comes before the first is left out."""
    turns: list[list[Event]] = []
    for event in events:
        if isinstance(event.fact, UserSaid) and not is_carried_record(text_of(event.fact.content)):
            turns.append([event])
        elif turns:
            turns[-1].append(event)
    return turns


def _show_turn(turn: Sequence[Event], ui: UserInterface) -> None:
    said = turn[0].fact
    assert isinstance(said, UserSaid)
    (first, *rest), more = _shortened(typed_text(said.content), MAX_SHOWN_MESSAGE_LINES, turn[0].handle)
    ui.show([row(Span("› ", "accent"), bold(first)), *(row("  ", bold(line)) for line in rest), *more])
    calls = sum(isinstance(event.fact, ToolReturned) for event in turn)
    if calls:
        ui.show([row(dim(f"● {counted(calls, 'tool call')}"))])
    answers = [event for event in turn if isinstance(event.fact, ModelSaid) and _answer_text(event)]
    if answers:
        text = _answer_text(answers[-1])
        lines, more = _shortened(text, MAX_SHOWN_ANSWER_LINES, answers[-1].handle)
        ui.show_past_answer("\n".join(lines))
        if more:
            ui.show(more)


def _answer_text(event: Event) -> str:
    return text_of(event.fact.content).strip() if isinstance(event.fact, ModelSaid) else ""


def _shortened(text: str, most: int, handle: str) -> tuple[list[str], list[Row]]:
    """Return the first lines of a text, and a row about those that are left out, if there are any."""
    lines = text.strip("\n").split("\n")
    if len(lines) <= most:
        return lines, []
    left_out = counted(len(lines) - most + 1, "more line")
    return lines[: most - 1], [row(dim(f"… {left_out} · /expand {handle}"))]
