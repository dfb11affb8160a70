"""Schemas and arguments of the tools of the MCP server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, TypeVar

import mcp_types as types
import msgspec

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
