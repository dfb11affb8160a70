"""What the recall tools are called and take, in every dialect; and what a model's arguments for them mean.

Arguments are taken as kindly as they can be: a number may come as text, an absent one as null or "". Whatever is
wrong is returned as a sentence for the model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Final

from msgspec.structs import replace

from foveal.core.wire.event_text import READ, SEARCH, inline
from foveal.errors import BadSetting
from foveal.recall.excerpts import Wanted, wanted_lines

_HANDLES: Final = re.compile(r"#?e?(\d{1,15})(?:\s*(?:-|–|\.\.|:|to)\s*#?e?(\d{1,15}))?", re.I)


# ── what is offered ──────────────────────────────────────────────────────────────────────────────────────

_PROPERTIES: Final[dict[str, tuple[str, dict[str, Any], list[str]]]] = {
    SEARCH: (
        "Search everything that was ever said or returned in this conversation, also what is no longer shown. "
        "Gives the best messages with their handles, and those beside them.",
        {
            "query": {"type": "string", "description": "Words, names, identifiers or numbers to look for"},
            "limit": {"type": "integer", "minimum": 1, "description": "At most so many messages"},
        },
        ["query"],
    ),
    READ: (
        "Read the original text behind a handle such as e12, as placeholders, clips, summaries and searches "
        "show it. Long texts come in parts.",
        {
            "handle": {"type": "string", "description": "e12, or e12-e20 for a range of messages"},
            "lines": {"type": "string", "description": 'These lines, like "10-40" or "10-"'},
            "head": {"type": "integer", "minimum": 1, "description": "The first so many lines"},
            "tail": {"type": "integer", "minimum": 1, "description": "The last so many lines"},
            "grep": {
                "type": "string",
                "description": "Only lines with this text or simple pattern, any case",
            },
        },
        ["handle"],
    ),
}


def tools(dialect: str) -> list[dict[str, Any]]:
    """The two tools in the form in which a dialect offers tools."""
    return [_offered(dialect, name, *told) for name, told in _PROPERTIES.items()]


def _offered(
    dialect: str, name: str, about: str, fields: dict[str, Any], needed: list[str]
) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": deepcopy(fields),
        "required": [*needed],
        "additionalProperties": False,
    }
    match dialect:
        case "openai_chat":
            return {
                "type": "function",
                "function": {"name": name, "description": about, "parameters": schema},
            }
        case "openai_responses":
            return {
                "type": "function",
                "name": name,
                "description": about,
                "parameters": schema,
                "strict": False,
            }
        case "anthropic":
            return {"name": name, "description": about, "input_schema": schema}
        case _:
            raise BadSetting("dialect", dialect, "one of openai_chat, openai_responses, anthropic")


# ── arguments ────────────────────────────────────────────────────────────────────────────────────────────


def values(arguments: str | Mapping[str, Any]) -> Mapping[str, Any] | str:
    if isinstance(arguments, Mapping):
        return arguments
    try:
        read = json.loads(arguments or "{}")
    except (ValueError, RecursionError) as problem:
        return f"the arguments are not valid JSON: {inline(str(problem))}"
    return read if isinstance(read, dict) else "the arguments must be a JSON object"


def handles(value: object) -> tuple[int, int] | str:
    """The first and the last event that a handle or a range of handles names."""
    match = _HANDLES.fullmatch(str(value or "").strip(" []()\"'`"))
    if match is None:
        return f'{READ} needs a handle like "e12" or "e12-e20", as placeholders and searches show it'
    first, last = int(match[1]), int(match[2] or match[1])
    return (first, last) if first <= last else f"a range of handles goes up: e{last}-e{first}"


def whole(value: object) -> int | str | None:
    """A whole number from 1, None when there is none, or what is wrong."""
    if value is None or value == "":
        return None
    try:
        number = int(value) if isinstance(value, str | int | float) else 0
    except (ValueError, OverflowError):
        number = 0
    return min(number, 10**9) if number >= 1 else "must be a whole number from 1"


def wanted(given: Mapping[str, Any]) -> Wanted | str:
    head, tail = whole(given.get("head")), whole(given.get("tail"))
    for name, number in (("head", head), ("tail", tail)):
        if isinstance(number, str):
            return f"{name} {number}"
    asked = given.get("lines")
    lines = Wanted() if asked in (None, "") else wanted_lines(str(asked))
    if isinstance(lines, str):
        return lines
    return replace(lines, head=head, tail=tail, grep=str(given.get("grep") or ""))
