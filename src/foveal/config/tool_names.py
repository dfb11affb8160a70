"""Names of tools in `tools.allow` and `tools.deny`: one tool, or all whose names begin so."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from foveal.core.wire.safe_print import one_line
from foveal.errors import BadSetting

SERVER_MARK: Final = "__"
"""Ends the name of the MCP server in the name of a tool where it first stands."""
_TOOL_PATTERN: Final = re.compile(r"[A-Za-z0-9_-]+\*?")


def is_tool_pattern(text: str) -> bool:
    """Return whether a text can be the name of a tool, or how names begin."""
    return _TOOL_PATTERN.fullmatch(text) is not None


def names_tool(pattern: str, tool: str) -> bool:
    """Return whether a pattern names a tool. `github__*` are the tools of one MCP server only."""
    if not pattern.endswith("*"):
        return tool == pattern
    server, mark, begin = pattern[:-1].partition(SERVER_MARK)
    if not mark:
        return tool.startswith(server)
    found, found_mark, name = tool.partition(SERVER_MARK)
    return bool(found_mark) and found == server and name.startswith(begin)


def denied_tools(names: Iterable[str], deny: Iterable[str]) -> frozenset[str]:
    """Return which tools are not offered at all, given the entries of `tools.deny`; raises `BadSetting`.

    Entries about commands, such as `run: git push`, deny no tool."""
    patterns = [entry.strip() for entry in deny if ":" not in entry]
    for pattern in patterns:
        if not is_tool_pattern(pattern):
            raise BadSetting("deny", one_line(pattern), 'the name of a tool, or names like "github__*"')
    return frozenset(name for name in names if any(names_tool(pattern, name) for pattern in patterns))
