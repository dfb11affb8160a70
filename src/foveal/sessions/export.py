"""Export of a stored session, for commands and slash commands."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from itertools import islice
from typing import Final

from foveal import transcripts
from foveal.core.log.events import Dialect
from foveal.ports import SessionInfo, Store
from foveal.sessions.log_reader import fold_view, read_slices

EXPORT_DIALECTS: Final[dict[str, Dialect]] = {
    "openai": "openai_chat",
    "responses": "openai_responses",
    "anthropic": "anthropic",
    "gemini": "gemini",
}
"""Message formats by the names that commands use; the format `foveal` keeps every event."""


class SessionExport:
    """A session as a file that is written in parts: JSON Lines for `foveal`, else a JSON list of the dialect's
    messages. Events that are stored during the export are not in it."""

    def __init__(self, store: Store, info: SessionInfo, format: str) -> None:
        self.size: str = ""
        """What the file contains, in words; known after the last part."""
        self._store, self._info, self._format = store, info, format

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the bytes of the file."""
        if self._format != "foveal":
            view = await fold_view(self._store, self._info.id, end=self._info.events)
            messages = transcripts.write_view(view, EXPORT_DIALECTS[self._format])
            for number, message in enumerate(messages):
                text = json.dumps(message, indent=2).replace("\n", "\n  ")
                yield f"{',' if number else '['}\n  {text}".encode()
            yield b"\n]\n" if messages else b"[]\n"
            self.size = _counted(len(messages), "message")
            return
        yield b"".join(transcripts.write_events((), self._info.id, self._info.title))
        async for events in read_slices(self._store, self._info.id, end=self._info.events):
            yield b"".join(islice(transcripts.write_events(events, self._info.id), 1, None))
        self.size = _counted(self._info.events, "event")


def _counted(count: int, unit: str) -> str:
    return f"{count:,} {unit}{'s' * (count != 1)}"
