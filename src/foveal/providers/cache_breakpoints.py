"""Cache breakpoints (`cache_control` marks) of Anthropic requests: where they go.

A request has at most four, each at the end of something stable:

1. the end of the system text, or of the tools if there is no system text: the same for the whole session;
2. the last block that the previous request had too: the cache entry written then is read now, however much was
   added since (the provider looks back only twenty blocks from a mark);
3. the newest block: the next request reads it.

Marks that the messages already have count towards the four; new marks are added while the limit allows. The
arguments are never changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from foveal.core.wire.cache_marks import CACHE_MARK, MAX_CACHE_MARKS, count_cache_marks, has_cache_mark
from foveal.core.wire.tool_schemas import DEFER_FIELD
from foveal.providers.base import JsonObject

CACHE_CONTROL: Final[JsonObject] = {"type": "ephemeral"}
_UNCACHEABLE_TYPES: Final = frozenset({"thinking", "redacted_thinking"})
"""Types of blocks that cannot have a mark."""
_BlockPosition = tuple[int, int]
"""Index of the message, and of the block in it."""


def add_breakpoints(body: JsonObject, previous: Sequence[JsonObject]) -> JsonObject:
    """Return a request body with marks; `previous` are the messages of the previous request."""
    present = sum(map(count_cache_marks, (body.get("tools"), body.get("system"), body["messages"])))
    body, left = _mark_prefix(body, MAX_CACHE_MARKS - present)
    for position in _positions(body["messages"], previous)[:left]:
        body["messages"] = _mark_block(body["messages"], position)
    return body


def _mark_prefix(body: JsonObject, left: int) -> tuple[JsonObject, int]:
    """Mark the end of the system text or of the tools; return the body and the number of marks left."""
    body = {**body}
    if left <= 0 or not (body.get("system") or body.get("tools")):
        return body, left
    if body.get("system"):
        body["system"] = [{"type": "text", "text": body["system"], CACHE_MARK: CACHE_CONTROL}]
    else:
        tools: list[JsonObject] = [*body["tools"]]
        # The provider refuses a mark on a tool that is loaded later, and such a tool is not in the prefix.
        last = max((at for at, tool in enumerate(tools) if not tool.get(DEFER_FIELD)), default=-1)
        tools[last] = {**tools[last], CACHE_MARK: CACHE_CONTROL}
        body["tools"] = tools
    return body, left - 1


def _positions(messages: Sequence[JsonObject], previous: Sequence[JsonObject]) -> list[_BlockPosition]:
    """Return the blocks to mark, the most useful first."""
    blocks = list(_blocks(messages))
    newest = next((position for position, block in reversed(blocks) if _can_be_marked(block)), None)
    shared: _BlockPosition | None = None
    for (position, block), (old_position, old_block) in zip(blocks, _blocks(previous), strict=False):
        if position != old_position or block != old_block:
            break
        shared = position if _can_be_marked(block) else shared
    found = [position for position in (newest, shared) if position is not None]
    return list(dict.fromkeys(found))


def _blocks(messages: Sequence[JsonObject]) -> Iterator[tuple[_BlockPosition, JsonObject]]:
    for index, message in enumerate(messages):
        for place, block in enumerate(_content_blocks(message)):
            yield (index, place), block


def _content_blocks(message: JsonObject) -> list[JsonObject]:
    """Return the content as a list of blocks; a plain text is one block."""
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def _can_be_marked(block: JsonObject) -> bool:
    is_empty = block.get("type") == "text" and not block.get("text")
    return block.get("type") not in _UNCACHEABLE_TYPES and not is_empty and not has_cache_mark(block)


def _mark_block(messages: Sequence[JsonObject], position: _BlockPosition) -> list[JsonObject]:
    index, place = position
    blocks = _content_blocks(messages[index])
    blocks[place] = {**blocks[place], CACHE_MARK: CACHE_CONTROL}
    return [*messages[:index], {**messages[index], "content": blocks}, *messages[index + 1 :]]
