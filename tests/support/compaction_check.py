"""What a provider's own compaction demands of later requests: the block or item is the only memory of the past.

`CompactionCheck` watches one conversation. After a compaction, each request must have exactly the newest block or
item, as it came, and in its place: Anthropic's is the first block of all, and OpenAI's item stands behind the calls
from before the compaction and in front of those from after it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from foveal.core.wire.native_compaction import COMPACTION_FIELD, COMPACTION_TRIGGER, find_compaction

Json = dict[str, Any]
_CALL_NUMBER: Final = re.compile(r"call_(\d+)_\d+")
"""Matches the call ids of a `StandIn`, which begin with the number of the answer."""


def asks_for_compaction(body: Json) -> bool:
    """Return whether a request asks the provider to compact the conversation."""
    items = body.get("input")
    return COMPACTION_FIELD in body or (isinstance(items, list) and items[-1] == COMPACTION_TRIGGER)


class CompactionCheck:
    """Remembers the newest compaction of a conversation, and finds requests that lack it."""

    def __init__(self) -> None:
        self.newest: Json | None = None
        self.number = 0
        """The number of the answer with the newest compaction."""
        self.checked = 0
        """Requests after a compaction."""

    def remember(self, number: int, reply: Json) -> None:
        """Remember the compaction in a reply, if there is one."""
        if (found := find_compaction(reply)) is not None:
            self.newest, self.number = found, number

    def faults(self, body: Json) -> list[str]:
        """Return what is wrong with the compaction in a request."""
        if self.newest is None:
            return []
        self.checked += 1
        listed = list(_blocks(body))
        places = [at for at, block in enumerate(listed) if block.get("type") == "compaction"]
        shown = [{name: value for name, value in listed[at].items() if value is not None} for at in places]
        if shown != [self.newest]:
            return [
                f"compaction {self.number}: sent {len(places)} of them, not the newest one alone and whole"
            ]
        return self._misplaced(body, listed, places[0])

    def _misplaced(self, body: Json, listed: list[Json], place: int) -> list[str]:
        if "messages" in body:
            return [f"compaction {self.number} is block {place}, not the first"] if place else []
        made = ((at, _CALL_NUMBER.match(str(item.get("call_id")))) for at, item in enumerate(listed))
        numbers = [(at, int(found[1])) for at, found in made if found is not None]
        wrong = [number for at, number in numbers if (at > place) != (number > self.number)]
        return [f"compaction {self.number} is on the wrong side of the calls {wrong}"] if wrong else []


def _blocks(body: Json) -> Iterator[Json]:
    """Yield the items of a request to OpenAI, or the blocks of one to Anthropic."""
    if "messages" not in body:
        yield from body["input"]
        return
    for message in body["messages"]:
        content = message["content"]
        yield from content if isinstance(content, list) else [{"type": "text", "text": content}]
