"""Where Anthropic's prompt cache is told to remember: at most four places, each at the end of something stable.

1. the end of the system text, or of the tools where there is none: the same for the whole session;
2. the last block that the request before had too: what was written then is read now, however much has come since
   (the provider looks back only twenty blocks from a mark);
3. the newest block: what the next request will read.

Marks that the messages bring along count; ours are added while there is room. Nothing that is given is changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

Json = dict[str, Any]

MAX_BREAKPOINTS: Final = 4
MARK: Final[Json] = {"type": "ephemeral"}
_NEVER: Final = frozenset({"thinking", "redacted_thinking"})
"""Blocks that cannot be marked."""
_Spot = tuple[int, int]


def marked(body: Json, before: Sequence[Json]) -> Json:
    """A request with its marks; `before` are the messages of the request before."""
    held = sum(map(_count, (body.get("tools"), body.get("system"), body["messages"])))
    body, left = _opening(body, MAX_BREAKPOINTS - held)
    for spot in _spots(body["messages"], before)[:left]:
        body["messages"] = _with_mark(body["messages"], spot)
    return body


def _opening(body: Json, left: int) -> tuple[Json, int]:
    """Mark the end of the system text or of the tools."""
    body = {**body}
    if left <= 0 or not (body.get("system") or body.get("tools")):
        return body, left
    if body.get("system"):
        body["system"] = [{"type": "text", "text": body["system"], "cache_control": MARK}]
    else:
        body["tools"] = [*body["tools"][:-1], {**body["tools"][-1], "cache_control": MARK}]
    return body, left - 1


def _spots(messages: Sequence[Json], before: Sequence[Json]) -> list[_Spot]:
    """The blocks to mark, the most useful first."""
    now = list(_blocks(messages))
    newest = next((spot for spot, block in reversed(now) if _markable(block)), None)
    stable: _Spot | None = None
    for (spot, block), (old, held) in zip(now, _blocks(before), strict=False):
        if spot != old or block != held:
            break
        stable = spot if _markable(block) else stable
    found = [spot for spot in (newest, stable) if spot is not None]
    return list(dict.fromkeys(found))


def _blocks(messages: Sequence[Json]) -> Iterator[tuple[_Spot, Json]]:
    for at, message in enumerate(messages):
        content = message["content"]
        listed = [{"type": "text", "text": content}] if isinstance(content, str) else content
        for place, block in enumerate(listed):
            yield (at, place), block


def _markable(block: Json) -> bool:
    empty = block.get("type") == "text" and not block.get("text")
    return block.get("type") not in _NEVER and not empty and "cache_control" not in block


def _with_mark(messages: Sequence[Json], spot: _Spot) -> list[Json]:
    at, place = spot
    message = messages[at]
    content = message["content"]
    listed = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
    listed[place] = {**listed[place], "cache_control": MARK}
    return [*messages[:at], {**message, "content": listed}, *messages[at + 1 :]]


def _count(value: Any) -> int:
    """Marks that are there already."""
    if isinstance(value, list):
        return sum(map(_count, value))
    if isinstance(value, dict):
        inner = sum(_count(item) for name, item in value.items() if name == "content")
        return inner + ("cache_control" in value)
    return 0
