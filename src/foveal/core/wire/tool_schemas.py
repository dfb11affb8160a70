"""Schemas of tools: reading them in any dialect's form, and writing one in the form of a dialect.

The neutral form is `{"name", "description", "parameters"}`; the agent's own tools have it.

Providers have these forms for tools that a model gets in the middle of a conversation:

1. Anthropic takes `tool_reference` blocks in a result. `tools` declares the tool with `defer_loading`.
2. OpenAI's Responses API takes an item `additional_tools` with the schemas.
3. All other dialects have no such form: a loaded tool is a change of `tools`. Bedrock's `toolAddition` names a tool
   of `toolConfig`, which has no field that keeps a tool out of the prompt.

The forms are read from the types of the client libraries.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any, Final, TypeAlias

from foveal.core.log.events import Dialect, DialectName, Instructed, Opaque, raw
from foveal.core.wire.bound_thinking import claude_version
from foveal.core.wire.common import Json
from foveal.core.wire.dialects import checked_dialect
from foveal.core.wire.event_text import inline
from foveal.core.wire.openai_responses import ADDITIONAL_TOOLS_TYPE
from foveal.errors import BadSetting

DEFER_FIELD: Final = "defer_loading"
"""The field of a tool that the provider keeps out of the prompt until something loads it."""
_SCHEMA_FIELDS: Final = (
    "parameters",
    "input_schema",
    "parametersJsonSchema",
    "parameters_json_schema",
    "inputSchema",
)
ToolDefinition: TypeAlias = tuple[str, dict[str, Any], list[str]]
"""What a tool of Foveal does, its arguments, and the names of those that it needs."""
_EMPTY_SCHEMA: Final[Json] = {"type": "object", "properties": {}}


def each_tool(tools: object) -> Iterator[Json]:
    """Yield the tools of a list one by one: Gemini declares many in one entry. What is no object is left out."""
    for tool in tools if isinstance(tools, list | tuple) else ():
        if isinstance(tool, dict):
            declared = tool.get("functionDeclarations", tool.get("function_declarations"))
            found = declared if isinstance(declared, list) else [tool]
            yield from (one for one in found if isinstance(one, dict))


def neutral_form(tool: Json) -> Json | None:
    """Return name, description and parameters of a tool; None for a tool that the provider runs."""
    body = next((tool[name] for name in ("function", "toolSpec") if isinstance(tool.get(name), dict)), tool)
    if not isinstance(body, dict) or not isinstance(body.get("name"), str):
        return None
    schema = next((body[name] for name in _SCHEMA_FIELDS if body.get(name) is not None), None)
    if "inputSchema" in body and isinstance(schema, dict):  # of Bedrock, with the schema one level deeper
        schema = schema.get("json", schema)
    if schema is None and tool.get("type") not in (None, "function"):
        return None
    description = {"description": body["description"]} if body.get("description") else {}
    return {"name": body["name"], **description, "parameters": schema or _EMPTY_SCHEMA}


def tool_schema(
    dialect: Dialect, name: str, description: str, fields: dict[str, Any], required: list[str]
) -> Json:
    """Return a tool with these arguments in the form of a dialect; "" is the neutral form."""
    schema = {
        "type": "object",
        "properties": deepcopy(fields),
        "required": [*required],
        "additionalProperties": False,
    }
    match dialect:
        case "":
            return {"name": name, "description": description, "parameters": schema}
        case "openai_chat":
            return {
                "type": "function",
                "function": {"name": name, "description": description, "parameters": schema},
            }
        case "openai_responses":
            return {
                "type": "function",
                "name": name,
                "description": description,
                "parameters": schema,
                "strict": False,
            }
        case "anthropic":
            return {"name": name, "description": description, "input_schema": schema}
        case "gemini":
            return {"name": name, "description": description, "parametersJsonSchema": schema}
        case "bedrock":
            spec = {"name": name, "description": description, "inputSchema": {"json": schema}}
            return {"toolSpec": spec}


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


def tool_schemas(dialect: DialectName, definitions: Mapping[str, ToolDefinition]) -> list[Any]:
    """Return tools of Foveal in the form of a dialect, as a list for the `tools` of a request; raises `BadSetting`
    for an unknown one."""
    form = checked_dialect(dialect)
    if not form:
        raise BadSetting("dialect", dialect, "the dialect of your requests, such as openai_chat")
    schemas = [tool_schema(form, name, *definition) for name, definition in definitions.items()]
    return [{"functionDeclarations": schemas}] if form == "gemini" else schemas


def parse_arguments(arguments: str | Mapping[str, Any]) -> Mapping[str, Any] | str:
    """Return the arguments of a call as a mapping, or what is wrong with them."""
    if isinstance(arguments, Mapping):
        return arguments
    try:
        read = json.loads(arguments or "{}")
    except (ValueError, RecursionError) as problem:
        return f"the arguments are not valid JSON: {inline(str(problem))}"
    return read if isinstance(read, dict) else "the arguments must be a JSON object"
