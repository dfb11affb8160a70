"""Export of a stored session, for commands and slash commands: its events, its messages, or a text to read."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from itertools import islice
from typing import Final

from foveal import transcripts
from foveal.core import wire
from foveal.core.log.events import Event, ModelSaid, ToolReturned, UserSaid, calls_of, text_of
from foveal.ports import SessionInfo, Store
from foveal.sessions.log_reader import find_effective, fold_view, read_slices

EXPORT_FORMATS: Final = ("foveal", "markdown", *wire.DIALECTS)
"""The format `foveal` keeps every event."""
_BACKQUOTES: Final = re.compile("`+")


class SessionExport:
    """A session as a file that is written in parts: JSON Lines for `foveal`, which `foveal import` reads; Markdown
    for people; else a JSON list of messages of a dialect. Events that are stored meanwhile are not in it."""

    def __init__(self, store: Store, info: SessionInfo, format: str) -> None:
        self.size: str = ""
        """What the file contains, in words; known after the last part."""
        self._store, self._info, self._format = store, info, format

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the bytes of the file."""
        if self._format == "markdown":
            async for data in self._markdown_parts():
                yield data
            return
        if self._format != "foveal":
            view = await fold_view(self._store, self._info.id, end=self._info.events)
            messages = transcripts.write_view(view, wire.checked_dialect(self._format))
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

    async def _markdown_parts(self) -> AsyncIterator[bytes]:
        """Yield the conversation as it was said, whole, without what was rewound."""
        store, id, end = self._store, self._info.id, self._info.events
        effective = {event.seq for event in (await find_effective(store, id, end=end)).events}
        yield f"# {self._info.title or id}\n".encode("utf-8", "replace")
        count = 0
        async for events in read_slices(store, id, end=end):
            for event in events:
                section = _markdown_section(event) if event.seq in effective else ""
                count += bool(section)
                yield section.encode("utf-8", "replace")
        self.size = _counted(count, "message")


def _markdown_section(event: Event) -> str:
    """Return a message as a section; "" for an event that is none."""
    fact = event.fact
    match fact:
        case UserSaid():
            return f"\n## User · {event.handle}\n\n{wire.original_text(fact)}\n"
        case ModelSaid():
            calls = "".join(
                f"\nCalls `{call.name}`:\n\n{_fenced(call.arguments)}\n" for _, call in calls_of(fact.content)
            )
            return f"\n## Assistant · {event.handle}\n\n{text_of(fact.content)}\n{calls}"
        case ToolReturned():
            return f"\n### Result of `{fact.name}` · {event.handle}\n\n{_fenced(wire.original_text(fact))}\n"
        case _:
            return ""


def _fenced(text: str) -> str:
    """Return a text between fences that are longer than any in it."""
    fence = "`" * max(3, 1 + max(map(len, _BACKQUOTES.findall(text)), default=0))
    return f"{fence}\n{text}\n{fence}"


def _counted(count: int, unit: str) -> str:
    return f"{count:,} {unit}{'s' * (count != 1)}"
