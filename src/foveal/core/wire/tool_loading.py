"""Tools that a model gets in the middle of a conversation: the forms that providers have for it.

1. Anthropic takes `tool_reference` blocks in a result. `tools` declares the tool with `defer_loading`.
2. OpenAI's Responses API takes an item `additional_tools` with the schemas.
3. All other dialects have no such form: a loaded tool is a change of `tools`. Bedrock's `toolAddition` names a tool
   of `toolConfig`, which has no field that keeps a tool out of the prompt.

The forms are read from the types of the client libraries.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from foveal.core.log.events import Dialect, Instructed, Opaque, raw
from foveal.core.wire.bound_thinking import claude_version
from foveal.core.wire.common import Json
from foveal.core.wire.openai_responses.write import ADDITIONAL_TOOLS_TYPE

LOADED_TOOLS_SOURCE: Final = "load_tools"
"""The source of the instruction that stands for loaded tools in a view."""
FIRST_CLAUDE_VERSION: Final = (4, 5)
"""The first version of Claude that takes `tool_reference`."""
FIRST_GPT_VERSION: Final = (5, 4)
"""The first version of GPT that loads tools later."""
_GPT_VERSION: Final = re.compile(r"gpt-(\d{1,2})(?:\.(\d{1,2}))?(?!\d)")


def loads_in_place(dialect: Dialect, model: str) -> bool:
    """Return whether requests of this dialect can give this model tools without a change of `tools`."""
    if dialect == "anthropic":
        return claude_version(model) >= FIRST_CLAUDE_VERSION
    found = _GPT_VERSION.search(model.lower()) if dialect == "openai_responses" else None
    return found is not None and (int(found[1]), int(found[2] or 0)) >= FIRST_GPT_VERSION


def tool_references(names: Iterable[str]) -> tuple[Opaque, ...]:
    """Return the blocks that load declared tools, for a result in Anthropic's form."""
    return tuple(Opaque(native=raw({"type": "tool_reference", "tool_name": name})) for name in names)


def additional_tools(schemas: Sequence[Any]) -> Instructed:
    """Return the item that gives a model tools, for OpenAI's Responses API."""
    item: Json = {"type": ADDITIONAL_TOOLS_TYPE, "role": "developer", "tools": list(schemas)}
    return Instructed(
        content=(Opaque(native=raw(item)),),
        role="developer",
        source=LOADED_TOOLS_SOURCE,
        dialect="openai_responses",
    )
