"""Calls that a small model writes as text: a JSON object with a tool's name, perhaps in a fence or between tags.

    ```json
    {"name": "read_file", "arguments": {"path": "notes.txt"}}
    ```

Only an answer that is nothing but such objects, each naming a tool that is offered, is taken for calls; the same
one twice is one. So text is held back only while it might still become a call; whatever else comes is passed on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from hashlib import blake2b
from typing import Any, Final

from msgspec.structs import replace

from foveal.ports import Piece, Reply

Json = dict[str, Any]

LONGEST: Final = 20_000
"""Characters that are held back at the most."""
_OPENINGS: Final = ("{", "[", "```", "<tool_call>", "<tools>", "<function_call>")
_AROUND: Final = re.compile(
    r"</?(?:tool_call|tools|function_call)>|^[ \t]*```[a-z]*[ \t]*$", re.MULTILINE | re.IGNORECASE
)


class Listener:
    """Hears one answer, and tells calls from words."""

    def __init__(self, tools: Collection[str], *, place: int) -> None:
        """`place` tells this answer from others of the conversation, for the ids of its calls."""
        self._tools = tools
        self._place = place
        self._held = ""
        self._holding = bool(tools)

    def hear(self, piece: Piece | Reply) -> list[Piece | Reply]:
        """What can be told now; calls are told only with the reply, when it is sure that they are wanted."""
        if isinstance(piece, Reply):
            return self._end(piece)
        if piece.sort == "call":
            return []
        if piece.sort != "text" or not self._holding:
            return [piece]
        self._held += piece.text
        if self._may_be_a_call():
            return []
        return [*self._let_go()]

    def _may_be_a_call(self) -> bool:
        start = self._held.lstrip()
        return len(start) < LONGEST and any(
            start.startswith(opening) or opening.startswith(start) for opening in _OPENINGS
        )

    def _let_go(self) -> list[Piece]:
        held, self._held, self._holding = self._held, "", False
        return [Piece(text=held)] if held else []

    def _end(self, reply: Reply) -> list[Piece | Reply]:
        calls = self._calls(self._held)
        if calls and not reply.message.get("tool_calls"):
            message = {**reply.message, "content": None, "tool_calls": calls}
            return [*_named(calls), replace(reply, message=message, stop="tool_calls")]
        return [*self._let_go(), *_named(reply.message.get("tool_calls") or []), reply]

    def _calls(self, text: str) -> list[Json]:
        found = called(text, self._tools)
        return [self._call(place, name, arguments) for place, (name, arguments) in enumerate(found)]

    def _call(self, place: int, name: str, arguments: str) -> Json:
        """A call with an id that is derived, never random: the model sees it."""
        digest = blake2b(f"{self._place}.{place}.{name}.{arguments}".encode(), digest_size=6).hexdigest()
        return {
            "id": f"call_{digest}",
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }


def _named(calls: list[Json]) -> list[Piece]:
    return [Piece(text=call["function"]["name"], sort="call") for call in calls]


def called(text: str, tools: Collection[str]) -> list[tuple[str, str]]:
    """The calls that a text consists of, each with its arguments as JSON; none if there is anything else in it, but
    for the beginning of another call that was cut off."""
    rest = _AROUND.sub(" ", text).strip()
    calls: list[tuple[str, str]] = []
    while rest:
        try:
            value, end = json.JSONDecoder().raw_decode(rest)
        except (ValueError, RecursionError):
            return list(dict.fromkeys(calls)) if rest.startswith("{") else []
        for item in value if isinstance(value, list) else [value]:
            if (call := _read(item, tools)) is None:
                return []
            calls.append(call)
        rest = rest[end:].strip(" \t\r\n,;")
    return list(dict.fromkeys(calls))


def _read(item: Any, tools: Collection[str]) -> tuple[str, str] | None:
    if isinstance(item, dict) and isinstance(item.get("function"), dict):
        item = item["function"]
    if not isinstance(item, dict) or item.get("name") not in tools:
        return None
    given = item.get("arguments", item.get("parameters", {}))
    if not isinstance(given, dict | str):
        return None
    return item["name"], given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
