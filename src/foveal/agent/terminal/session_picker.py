"""The menu of sessions that `--resume` and `/resume` open."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from foveal.agent.terminal.options import ChatOptions
from foveal.agent.terminal.user_interface import LeaveChat, MenuItem, UserInterface
from foveal.agent.tools.subagents import is_subagent_id
from foveal.core.wire.safe_print import counted, one_line
from foveal.errors import FovealError
from foveal.ports import Store
from foveal.recall.archive.stored_sessions import (
    SessionSummary,
    find_session,
    newest_session_of,
    session_summaries,
)

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
