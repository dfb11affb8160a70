"""Tools as each dialect offers them, from the neutral form `{"name", "description", "parameters"}`.

Tools that are in some dialect's form already are understood too; what is none of ours (a tool that the provider
runs itself) is passed on as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

Json = dict[str, Any]

_NOTHING: Final[Json] = {"type": "object", "properties": {}}


def for_chat(tools: Iterable[Json]) -> list[Json]:
    return _each(tools, lambda tool: {"type": "function", "function": tool})


def for_responses(tools: Iterable[Json]) -> list[Json]:
    return _each(tools, lambda tool: {"type": "function", **tool, "strict": False})


def for_anthropic(tools: Iterable[Json]) -> list[Json]:
    return _each(tools, _anthropic)


def names(tools: Iterable[Json]) -> set[str]:
    """The names of the tools that we run."""
    return {found["name"] for tool in tools if (found := _neutral(tool)) is not None}


def _anthropic(tool: Json) -> Json:
    kept = {name: value for name, value in tool.items() if name != "parameters"}
    return {**kept, "input_schema": tool["parameters"]}


def _each(tools: Iterable[Json], write: Callable[[Json], Json]) -> list[Json]:
    return [tool if (found := _neutral(tool)) is None else write(found) for tool in tools]


def _neutral(tool: Json) -> Json | None:
    """Name, description and parameters; None for what is not a function."""
    body = tool.get("function") if isinstance(tool.get("function"), dict) else tool
    if not isinstance(body, dict) or not isinstance(body.get("name"), str):
        return None
    schema = body.get("parameters", body.get("input_schema"))
    if schema is None and tool.get("type") not in (None, "function"):
        return None
    about = {"description": body["description"]} if body.get("description") else {}
    return {"name": body["name"], **about, "parameters": schema or _NOTHING}
