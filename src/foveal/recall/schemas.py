"""Schemas of the recall tools in each dialect, and parsing of their arguments.

The parsers accept a number as text, and null or "" for an absent one. They return a problem as a sentence for the
model instead of raising.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from foveal.core.log.events import DialectName
from foveal.core.wire.event_text import RECALL_READ, RECALL_SEARCH
from foveal.core.wire.tool_schemas import ToolDefinition, tool_schemas
from foveal.recall.excerpts import LineSelection, parse_line_range

_HANDLES: Final = re.compile(r"#?e?(\d{1,15})(?:\s*(?:-|–|\.\.|:|to)\s*#?e?(\d{1,15}))?", re.I)


# ── Schemas ──────────────────────────────────────────────────────────────────────────────────────────────

_TOOLS: Final[dict[str, ToolDefinition]] = {
    RECALL_SEARCH: (
        "Search everything that was ever said or returned in this conversation, also what is no longer shown. "
        "Gives the best messages with their handles, and those beside them.",
        {
            "query": {"type": "string", "description": "Words, names, identifiers or numbers to look for"},
            "limit": {"type": "integer", "minimum": 1, "description": "At most so many messages"},
        },
        ["query"],
    ),
    RECALL_READ: (
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


def tools(dialect: DialectName) -> list[Any]:
    """Return the schemas of both recall tools in the form of a dialect.

    Args:
        dialect: The dialect of the request.

    Returns:
        A list for the `tools` of a request.

    Raises:
        BadSetting: The dialect is unknown.

    Examples:
        ```python
        import foveal

        ctx = foveal.Context("gpt-4.1")
        tools = foveal.recall.tools("openai_chat")
        fitted = ctx.fit([{"role": "user", "content": "Why is CI red?"}], tools=tools)
        ```
    """
    return tool_schemas(dialect, _TOOLS)


# ── Arguments ────────────────────────────────────────────────────────────────────────────────────────────


def parse_handles(value: object) -> tuple[int, int] | str:
    """Return the first and the last seq that a handle or a range of handles names."""
    match = _HANDLES.fullmatch(str(value or "").strip(" []()\"'`"))
    if match is None:
        return f'{RECALL_READ} needs a handle like "e12" or "e12-e20", as placeholders and searches show it'
    first, last = int(match[1]), int(match[2] or match[1])
    return (first, last) if first <= last else f"a range of handles goes up: e{last}-e{first}"


def parse_count(value: object) -> int | str | None:
    """Return a whole number from 1, or None if there is none."""
    if value is None or value == "":
        return None
    try:
        number = int(value) if isinstance(value, str | int | float) else 0
    except (ValueError, OverflowError):
        number = 0
    return min(number, 10**9) if number >= 1 else "must be a whole number from 1"


def parse_selection(given: Mapping[str, Any]) -> LineSelection | str:
    """Return which lines the arguments of `recall_read` select."""
    head, tail = parse_count(given.get("head")), parse_count(given.get("tail"))
    for name, number in (("head", head), ("tail", tail)):
        if isinstance(number, str):
            return f"{name} {number}"
    line_range = given.get("lines")
    lines = LineSelection() if line_range in (None, "") else parse_line_range(str(line_range))
    if isinstance(lines, str):
        return lines
    return replace(lines, head=head, tail=tail, grep=str(given.get("grep") or ""))
