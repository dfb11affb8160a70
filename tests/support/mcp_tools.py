"""The tools of six MCP servers, which `tools/record_mcp_tools.py` has recorded."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any, Final

Json = dict[str, Any]
RECORDED: Final = Path(__file__).parents[1] / "data" / "mcp_tools.json.gz"


@cache
def recorded_servers() -> list[Json]:
    """Return the servers with their versions and tools."""
    found: list[Json] = json.loads(gzip.decompress(RECORDED.read_bytes()))
    return found


def neutral_tools() -> list[Json]:
    """Return all tools in the neutral form, with the name of the server before their own, as agents offer them."""
    return [
        {
            "name": f"{server['server']}__{tool['name']}",
            "description": tool.get("description", ""),
            "parameters": tool["inputSchema"],
        }
        for server in recorded_servers()
        for tool in server["tools"]
    ]


def tools_of(dialect: str) -> list[Any]:
    """Return all tools in the form of a dialect."""
    tools = neutral_tools()
    match dialect:
        case "openai_chat":
            return [{"type": "function", "function": tool} for tool in tools]
        case "openai_responses":
            return [{"type": "function", **tool, "strict": False} for tool in tools]
        case "anthropic":
            return [
                {"name": tool["name"], "description": tool["description"], "input_schema": tool["parameters"]}
                for tool in tools
            ]
        case "gemini":
            declared = [
                {
                    "name": tool["name"],
                    "description": tool["description"],
                    "parametersJsonSchema": tool["parameters"],
                }
                for tool in tools
            ]
            return [{"functionDeclarations": declared}]
        case "bedrock":
            return [
                {
                    "toolSpec": {
                        "name": tool["name"],
                        "description": tool["description"],
                        "inputSchema": {"json": tool["parameters"]},
                    }
                }
                for tool in tools
            ]
        case _:
            raise ValueError(dialect)
