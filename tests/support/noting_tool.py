"""A tool that asks before it runs, and keeps what it was called with."""

from __future__ import annotations

import json
from typing import Final

from foveal.agent.tool import Arguments, Tool, ToolOutput
from foveal.agent.tools.mcp import preview_mcp_call

CALL: Final = [("note", {"text": "buy milk"})]
"""An answer of the model that calls the tool."""


class Notes:
    """A tool that asks, and what it was called with."""

    def __init__(self) -> None:
        self.written: list[str] = []

    def tool(self) -> Tool:
        async def run(given: Arguments) -> ToolOutput:
            self.written.append(given["text"])
            return ToolOutput(content="written")

        return Tool(
            name="note",
            description="Write a note.",
            parameters={"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
            run=run,
            describe=lambda given: "note …",
            preview=lambda given: preview_mcp_call(given) or json.dumps(given),
            needs_approval=True,
        )
