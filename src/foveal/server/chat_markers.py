"""Lines that the gateways write around a user's own words in a message.

A line that begins with `[foveal:` is written by `gateways.model_text` only: no text of a user can begin like one.
So the user's own words can be told apart from quotes of others and from files.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from foveal.core.log.events import Content, Event, Text, UserSaid, parts
from foveal.memory.memory import Memory, QuotedLog

MARKER: Final = "[foveal:"
END_MARKER: Final = f"{MARKER} end of "
"""The end of a quote or a file."""
_SINGLE_MARKER: Final = f"{MARKER} message from "
"""The author of a message; all other lines begin a quote or a file."""

_AUTHOR: Final = re.compile(re.escape(_SINGLE_MARKER) + r'"[^"\n]*" \(id (\d+)\)\](?:\n|$)')


def author_of(content: Content) -> str:
    """Return the id of the user who wrote a message in a group; "" if the message does not say so."""
    first = next((part.text for part in parts(content) if isinstance(part, Text)), "")
    found = _AUTHOR.match(first)
    return found[1] if found else ""


class OwnMessages:
    """A conversation with what one user wrote in it, in which a memory looks up quotes: no quotes of others, no
    files, and in a group no messages of others."""

    def __init__(self, log: QuotedLog, memories: Sequence[Memory], *, is_group: bool) -> None:
        """`memories` has the memory of the user at the time of each call."""
        self.id = log.id
        self._log, self._memories, self._is_group = log, memories, is_group

    async def events(self, *, first: int = 0, last: int | None = None) -> list[Event]:
        """Return the events of a range, without messages of others."""
        events = await self._log.events(first=first, last=last)
        return [with_own_words(event) for event in events if self._is_own(event)]

    async def left_behind(self) -> frozenset[int]:
        """Return the seqs of what was rewound or replaced."""
        return await self._log.left_behind()

    def _is_own(self, event: Event) -> bool:
        if not self._is_group or not isinstance(event.fact, UserSaid):
            return True
        author = author_of(event.fact.content)
        return bool(author) and author in {memory.owner for memory in self._memories}


def own_words(content: Content) -> str:
    """Return what the author of a message wrote, without quotes of others and without files."""
    texts = [part.text for part in parts(content) if isinstance(part, Text)]
    return "\n".join(words for text in texts if (words := _own_lines(text)))


def with_own_words(event: Event) -> Event:
    """Return an event; a message of a user with the author's own words alone."""
    if not isinstance(event.fact, UserSaid):
        return event
    return replace(event, fact=UserSaid(content=own_words(event.fact.content)))


def _own_lines(text: str) -> str:
    kept: list[str] = []
    is_quoted = False
    for line in text.split("\n"):
        if line.startswith(MARKER):
            is_quoted = not line.startswith((END_MARKER, _SINGLE_MARKER))
        elif not is_quoted:
            kept.append(line)
    return "\n".join(kept)
