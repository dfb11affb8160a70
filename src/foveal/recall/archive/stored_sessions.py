"""The sessions of one store: all of them, by the beginning of an id, the newest of a folder, and for a menu."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import msgspec

from foveal.core.log.events import Used
from foveal.core.wire.safe_print import visible
from foveal.errors import FovealError, UnknownSession
from foveal.ports import SessionInfo, Store
from foveal.recall.archive.source import recorded_folder

_SESSIONS_PER_PAGE: Final = 500
MAX_SEARCHED_SESSIONS: Final = 2_000
"""Sessions, newest first, among which the newest one of a folder is looked for."""
_LATEST_EVENTS: Final = 30
"""Events at the end of a session among which its last reported usage is looked for."""


class SessionSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a list of sessions shows of one."""

    info: SessionInfo
    folder: str = ""
    """The working folder in which it was started; "" for sessions of versions that did not record it."""
    tokens: int = 0
    """Tokens of the last request and its answer; 0 if they were not reported."""


async def find_session(store: Store, name: str) -> str:
    """Return the id of the session with this id, or of the only session whose id begins with it."""
    if await session_exists(store, name):
        return name
    found = [info.id async for info in all_sessions(store) if info.id.startswith(name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise FovealError(f"{len(found)} sessions begin with {name!r}: {', '.join(found[:5])}")
    raise UnknownSession(name)


async def newest_session_of(store: Store, folder: str) -> str:
    """Return the id of the session of a folder that was active last."""
    for info in await store.sessions(limit=MAX_SEARCHED_SESSIONS, with_erased=False):
        if await _folder_of(store, info) == folder:
            return info.id
    raise FovealError(
        f"there is no session of {folder} to continue; --resume lists all sessions, and without an option a new "
        "one starts"
    )


async def session_summaries(store: Store, *, limit: int) -> list[SessionSummary]:
    """Return the sessions that were active last, newest first."""
    return [
        SessionSummary(
            info=info, folder=await _folder_of(store, info), tokens=await _last_tokens(store, info)
        )
        for info in await store.sessions(limit=limit, with_erased=False)
    ]


async def all_sessions(store: Store) -> AsyncIterator[SessionInfo]:
    """Yield all sessions, the most recently active first, and read them page by page."""
    before: tuple[float, str] | None = None
    while page := await store.sessions(limit=_SESSIONS_PER_PAGE, before=before):
        for info in page:
            yield info
        before = page[-1].active, page[-1].id


async def session_exists(store: Store, id: str) -> bool:
    """Return whether a store has a session with this id, erased or not."""
    try:
        await store.end(id)
    except UnknownSession:
        return False
    return True


async def _folder_of(store: Store, info: SessionInfo) -> str:
    first = await store.pick(info.id, [0])
    return recorded_folder(first[0].fact if first else None)


async def _last_tokens(store: Store, info: SessionInfo) -> int:
    latest = await store.read(info.id, first=max(0, info.events - _LATEST_EVENTS))
    used = [event.fact for event in latest if isinstance(event.fact, Used)]
    return used[-1].prompt + used[-1].output if used else 0


def is_writable(path: Path) -> bool:
    """Return whether a store can be written, or created with the folders that are missing."""
    if path.exists():
        return os.access(path, os.W_OK)
    existing = next(parent for parent in path.absolute().parents if parent.exists())
    return existing.is_dir() and os.access(existing, os.W_OK)


def make_store_folder(path: Path) -> None:
    """Create the folder of a store; raises `FovealError` with advice if the store cannot be written there."""
    advice = "name another file with --store, or with FOVEAL_STORE"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as problem:
        where = visible(str(path.parent))
        raise FovealError(f"the folder {where} cannot be created ({problem.strerror}): {advice}") from None
    if not is_writable(path):
        raise FovealError(f"{visible(str(path))} cannot be written: {advice}")
