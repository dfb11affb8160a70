"""Lookup and export of stored sessions, shared by commands and slash commands."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from foveal import transcripts
from foveal.core.log.events import Dialect, Event, Opened, Used, extras
from foveal.core.wire.safe_print import visible
from foveal.errors import FovealError, UnknownSession
from foveal.ports import SessionInfo, Store

EXPORT_DIALECTS: Final[dict[str, Dialect]] = {
    "openai": "openai_chat",
    "responses": "openai_responses",
    "anthropic": "anthropic",
}
"""Message formats by the names that commands use; the format `foveal` keeps every event."""
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
    ids = [info.id for info in await store.sessions()]
    if name in ids:
        return name
    found = [id for id in ids if id.startswith(name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise FovealError(f"{len(found)} sessions begin with {name!r}: {', '.join(found[:5])}")
    raise UnknownSession(name)


async def newest_session_of(store: Store, folder: str) -> str:
    """Return the id of the session of a folder that was active last."""
    for info in (await _kept_sessions(store))[:MAX_SEARCHED_SESSIONS]:
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
        for info in (await _kept_sessions(store))[:limit]
    ]


async def _kept_sessions(store: Store) -> list[SessionInfo]:
    return [info for info in await store.sessions() if not info.erased]


async def _folder_of(store: Store, info: SessionInfo) -> str:
    first = await store.pick(info.id, [0])
    fact = first[0].fact if first else None
    folder = extras(fact.settings).get("folder") if isinstance(fact, Opened) else None
    return folder if isinstance(folder, str) else ""


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


class SessionExport(NamedTuple):
    """A session as a file, and what the file contains in words."""

    data: bytes
    size: str


def export_session(events: Sequence[Event], id: str, title: str, format: str) -> SessionExport:
    """Return a session as a file: JSON Lines for `foveal`, else a JSON list of the dialect's messages."""
    if format == "foveal":
        lines = transcripts.write_events(events, id, title)
        return SessionExport(
            b"".join(line.rstrip(b"\n") + b"\n" for line in lines), _counted(len(events), "event")
        )
    messages = transcripts.write_messages((event.fact for event in events), EXPORT_DIALECTS[format])
    return SessionExport(json.dumps(messages, indent=2).encode() + b"\n", _counted(len(messages), "message"))


def _counted(count: int, unit: str) -> str:
    return f"{count:,} {unit}{'s' * (count != 1)}"


def write_new_file(path: Path, data: bytes, *, advice: str) -> None:
    """Write a file that does not exist yet; `advice` says what to do if it exists."""
    try:
        with path.open("xb") as file:
            file.write(data)
    except FileExistsError:
        raise FovealError(f"{visible(str(path))} exists and was not overwritten: {advice}") from None


def print_skipped(problem: transcripts.UnreadableTranscript) -> None:
    """Print the name of a file that could not be read, and why."""
    print(f"foveal: skipped {visible(str(problem))}", file=sys.stderr)
