"""A provider's own compaction, on demand: how it is asked for, and what comes back.

Anthropic takes a field `compaction` and a beta header, OpenAI's Responses API a last item. Both answer with one
block or item that stands for the whole conversation, and that later requests send first. Other providers have no
such API.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from foveal.core.log.events import Dialect
from foveal.core.wire.anthropic import COMPACTION_TYPE
from foveal.core.wire.common import SYSTEM_ROLE, Json, as_mapping
from foveal.core.wire.openai_responses import COMPACTION_TYPES

COMPACTION_BETA: Final = "compact-2026-09-04"
"""The value of the header `anthropic-beta` that the field `compaction` needs."""
COMPACTION_FIELD: Final = "compaction"
COMPACTION_TRIGGER: Final[Json] = {"type": "compaction_trigger"}
"""The last item of a request to OpenAI that asks for a compaction."""
COMPACTING_DIALECTS: Final[frozenset[Dialect]] = frozenset({"anthropic", "openai_responses"})
"""The dialects with a compaction on demand."""


def compaction_field(instructions: str = "") -> Json:
    """Return the field of a request to Anthropic that asks for a compaction. Instructions replace the provider's
    own."""
    return {"type": "summarize", **({"instructions": instructions} if instructions.strip() else {})}


def ends_with_trigger(messages: Sequence[object], dialect: Dialect) -> bool:
    """Return whether a request ends with the item that asks for a compaction of what is before it."""
    if dialect not in ("openai_responses", "") or len(messages) < 2:
        return False
    last = messages[-1]
    kind = last.get("type") if isinstance(last, Mapping) else getattr(last, "type", None)
    return bool(kind == COMPACTION_TRIGGER["type"])


def cannot_compact(dialect: Dialect, messages: Sequence[Any]) -> str:
    """Return why a provider would refuse to compact messages; "" if nothing is known to be wrong."""
    if dialect not in COMPACTING_DIALECTS:
        return f"{dialect} has no compaction API"
    if not messages:
        return "there is nothing to compact"
    if dialect == "anthropic" and messages[0].get("role") == SYSTEM_ROLE:
        return "a system message comes first"
    return ""


def find_compaction(reply: object) -> Json | None:
    """Return the compaction block or item in a reply, given as an object of a client or a dict. None if there is
    none, or if it is empty, as after a failed compaction."""
    for found in _listed(reply):
        block = _plain(found)
        if (
            block.get("type") == COMPACTION_TYPE
            and isinstance(block.get("content"), str)
            and block["content"]
        ):
            return block
        if block.get("type") in COMPACTION_TYPES and block.get("encrypted_content"):
            return block
    return None


def _listed(reply: object) -> Iterator[object]:
    for name in ("content", "output"):
        value = reply.get(name) if isinstance(reply, Mapping) else getattr(reply, name, None)
        if isinstance(value, list | tuple):
            yield from value


def _plain(value: object) -> Json:
    if isinstance(value, str | int | float | None):
        return {}
    return {name: item for name, item in as_mapping(value).items() if item is not None}
