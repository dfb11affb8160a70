"""Lookup and export of stored sessions, shared by commands and slash commands."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Final

from foveal import transcripts
from foveal.core.log.events import Dialect, Event
from foveal.core.wire.safe_print import visible
from foveal.errors import FovealError, UnknownSession
from foveal.ports import Store

EXPORT_DIALECTS: Final[dict[str, Dialect]] = {
    "openai": "openai_chat",
    "responses": "openai_responses",
    "anthropic": "anthropic",
}
"""Message formats by the names that commands use; the format `foveal` keeps every event."""


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


def export_session(events: Sequence[Event], id: str, title: str, format: str) -> bytes:
    """Return a session as a file: JSON Lines for `foveal`, else a JSON list of the dialect's messages."""
    if format == "foveal":
        lines = transcripts.write_events(events, id, title)
        return b"".join(line.rstrip(b"\n") + b"\n" for line in lines)
    messages = transcripts.write_messages((event.fact for event in events), EXPORT_DIALECTS[format])
    return json.dumps(messages, indent=2).encode() + b"\n"


def print_skipped(problem: transcripts.UnreadableTranscript) -> None:
    """Print the name of a file that could not be read, and why."""
    print(f"foveal: skipped {visible(str(problem))}", file=sys.stderr)
