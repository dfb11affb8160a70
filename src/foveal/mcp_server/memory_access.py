"""Tools of the MCP server over the memories of this machine: `memory_list`, `memory_search`, `memory_suggest`.

1. Clients read the entries that count, of the user and of the project of the working folder.
2. With `--write`, a client can suggest a statement. It waits for the user's yes, because the server cannot know
   whether the user said it.

Schemas and arguments of the tools of the MCP server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Annotated, Any, Final, TypeVar

import mcp_types as types
import msgspec

from foveal.config.local_memories import LocalMemories
from foveal.core.wire.event_text import inline, quote_lines
from foveal.memory import MemoryEntry
from foveal.recall.archive import RecallProblem

A = TypeVar("A", bound=msgspec.Struct)


def tool_schema(
    name: str,
    description: str,
    fields: Mapping[str, Any],
    *,
    required: Sequence[str] = (),
    writes: bool = False,
) -> types.Tool:
    """Return a tool with these fields; `writes` if a call changes something."""
    schema = {"type": "object", "properties": deepcopy(dict(fields)), "additionalProperties": False}
    hints = types.ToolAnnotations(
        title=name.replace("_", " ").capitalize(),
        read_only_hint=not writes,
        destructive_hint=False,
        idempotent_hint=True,
        open_world_hint=False,
    )
    if required:
        schema["required"] = [*required]
    return types.Tool(name=name, description=description, input_schema=schema, annotations=hints)


def parse_call(kind: type[A], arguments: Mapping[str, Any] | None) -> A:
    """Parse arguments; a number may come as text, and null counts as absent. Raises `RecallProblem`."""
    given = {name: value for name, value in (arguments or {}).items() if value is not None}
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as problem:
        allowed = ", ".join(kind.__struct_fields__)
        raise RecallProblem(f"wrong arguments: {problem}; the arguments are {allowed}") from None


MEMORY_LIST: Final = "memory_list"
MEMORY_SEARCH: Final = "memory_search"
MEMORY_SUGGEST: Final = "memory_suggest"
MAX_MCP_ENTRIES: Final = 100
MEMORY_INSTRUCTIONS: Final = " memory_list and memory_search give what the user wants to be known everywhere."
_CLIENT: Final = "an MCP client"
_LIMIT: Final = {
    "type": "integer",
    "minimum": 1,
    "maximum": MAX_MCP_ENTRIES,
    "description": "At most so many",
}

_Limit = Annotated[int, msgspec.Meta(ge=1, le=MAX_MCP_ENTRIES)]


class ListEntriesArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of `memory_list`."""

    limit: _Limit = 50


class SearchEntriesArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of `memory_search`."""

    query: str
    limit: _Limit = 20


class SuggestArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of `memory_suggest`."""

    text: str


class MemoryAccess:
    """The memories that a server offers; `writes` if clients may suggest entries."""

    def __init__(self, memories: LocalMemories, *, writes: bool) -> None:
        self._memories = memories
        self._writes = writes

    def tools(self) -> list[types.Tool]:
        """Return the tools with their schemas."""
        query = {"type": "string", "description": "Words, names or numbers to look for"}
        listed = [
            tool_schema(
                MEMORY_LIST,
                "List what the user wants to be known in every conversation, and what is known about the project, "
                "newest last.",
                {"limit": _LIMIT},
            ),
            tool_schema(
                MEMORY_SEARCH,
                "Search what the user wants to be known in every conversation.",
                {"query": query, "limit": _LIMIT},
                required=["query"],
            ),
        ]
        text = {"type": "string", "description": "One statement of at most 500 characters"}
        about = "Suggest a statement for the user's memory. It counts once the user accepts it."
        suggest = tool_schema(MEMORY_SUGGEST, about, {"text": text}, required=["text"], writes=True)
        return [*listed, *([suggest] if self._writes else [])]

    async def answer(self, name: str, arguments: Mapping[str, Any] | None) -> str | None:
        """Return the answer to a call; None if the tool is none of these. Raises `FovealError`."""
        if name == MEMORY_LIST:
            return await self._list(parse_call(ListEntriesArguments, arguments))
        if name == MEMORY_SEARCH:
            return await self._search(parse_call(SearchEntriesArguments, arguments))
        if name == MEMORY_SUGGEST and self._writes:
            return await self._suggest(parse_call(SuggestArguments, arguments))
        return None

    async def _list(self, call: ListEntriesArguments) -> str:
        await self._memories.read()
        entries = [entry for memory in self._memories.all for entry in await memory.entries()]
        left_out = len(entries) - call.limit
        more = [f"[memory: {left_out:,} older entries: {MEMORY_SEARCH} finds them]"] if left_out > 0 else []
        return "\n".join([*more, _text(entries[-call.limit :])])

    async def _search(self, call: SearchEntriesArguments) -> str:
        await self._memories.read()
        found = [e for one in self._memories.all for e in await one.search(call.query, limit=call.limit)]
        return _text(found[: call.limit])

    async def _suggest(self, call: SuggestArguments) -> str:
        entry = await self._memories.user.memory.suggest(call.text, by=_CLIENT)
        if entry.counts:
            return f"[memory: {entry.id} says so already: {inline(entry.text)}]"
        return f"[memory: suggested {entry.id}: {inline(entry.text)}; it counts once the user accepts it]"


def _text(entries: Sequence[MemoryEntry]) -> str:
    lines = [f"[memory {entry.id}; {entry.kind}]\n{quote_lines(entry.text)}" for entry in entries]
    return "\n".join(lines) or "[memory: no entries]"
