"""The tool `load_tools` of an agent: the model loads tools whose schemas its requests do not have."""

from __future__ import annotations

from foveal.agent.tool import Arguments, Tool, ToolOutput
from foveal.core.engine.tool_deferral import ToolDeferral, requested_names
from foveal.core.reduction.truncation import UNLIMITED
from foveal.core.wire.event_text import LOAD_TOOLS
from foveal.core.wire.safe_print import one_line


def load_tools_tool(deferral: ToolDeferral) -> Tool:
    """Return the tool that answers for a deferral. The deferral itself offers it, with its index."""

    async def run(given: Arguments) -> ToolOutput:
        return ToolOutput(content=deferral.answer(given))

    def describe(given: Arguments) -> str:
        return one_line(f"{LOAD_TOOLS} {' '.join(requested_names(given))}", width=200)

    return Tool(
        name=LOAD_TOOLS,
        description="",
        parameters={"type": "object"},
        run=run,
        describe=describe,
        limits=UNLIMITED,
        is_offered=False,
    )
