"""Tools with which the model begins and ends branches.

    branch(task)           begins one
    return(result, keep)   ends the innermost one, which is folded to the result

    schemas = [*own, *foveal.branches.tools("openai_chat")]
    answer = ctx.recall(call.name, call.arguments)

The answer of a tool is a text and nothing more: `Context` and `Session` read from the recorded step what to do,
once all of its calls have their results.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from foveal.core.engine.branches import (
    BRANCH_BEGUN,
    BRANCH_RETURNED,
    BRANCH_TOOL,
    RETURN_TOOL,
    asked_result,
    asked_task,
)
from foveal.core.log.events import Dialect
from foveal.core.wire.event_text import inline
from foveal.core.wire.tool_schemas import ToolDefinition, parse_arguments, tool_schemas

BRANCH_TOOL_NAMES: Final = (BRANCH_TOOL, RETURN_TOOL)
"""The names of the tools."""
_PREFIX: Final = "[branch: "

_TOOLS: Final[dict[str, ToolDefinition]] = {
    BRANCH_TOOL: (
        "Begin a branch: a part of the work with many steps of which only the outcome matters later, such as a "
        "search, an investigation or a series of attempts. Work on it as usual, then call return.",
        {"task": {"type": "string", "description": "What the branch is to find out or to do"}},
        ["task"],
    ),
    RETURN_TOOL: (
        "End the innermost branch. All that was said and done in it is replaced by the result. Put into the result "
        "whatever the rest of the work needs: findings, names, paths, lines, what was changed, what failed.",
        {
            "result": {"type": "string", "description": "What came of the branch"},
            "keep": {
                "type": "array",
                "items": {"type": "string"},
                "description": "Handles such as e41 of single messages inside that must stay word for word",
            },
        },
        ["result"],
    ),
}


def tools(dialect: Dialect) -> list[Any]:
    """Return the schemas of both tools in the form of a dialect.

    Args:
        dialect: The dialect of the request.

    Returns:
        A list for the `tools` of a request.

    Raises:
        BadSetting: The dialect is unknown.

    Examples:
        ```python
        import foveal

        schemas = [*foveal.recall.tools("openai_chat"), *foveal.branches.tools("openai_chat")]
        ```
    """
    return tool_schemas(dialect, _TOOLS)


def answer(name: str, arguments: str | Mapping[str, Any], *, open_branches: int) -> str:
    """Answer a model's call of `branch` or `return`; `Context.recall` does it for you.

    Args:
        name: `branch` or `return`.
        arguments: The arguments as the model wrote them: JSON text or a mapping.
        open_branches: How many branches are open.

    Returns:
        The text for the model. A wrong call is answered with what is wrong.

    Examples:
        ```python
        import foveal

        text = foveal.branches.answer("return", {"result": "test_dates.py fails"}, open_branches=0)
        assert text == "[branch: no branch is open, so there is nothing to return from]"
        ```
    """
    given = parse_arguments(arguments)
    if isinstance(given, str):
        return f"{_PREFIX}{given}]"
    if name == BRANCH_TOOL:
        if not asked_task(given):
            return f'{_PREFIX}{BRANCH_TOOL} needs a task: {{"task": "…"}}]'
        return f"{BRANCH_BEGUN}; call {RETURN_TOOL} with the result when it is done]"
    if name == RETURN_TOOL:
        if not open_branches:
            return f"{_PREFIX}no branch is open, so there is nothing to return from]"
        if not asked_result(given):
            return f'{_PREFIX}{RETURN_TOOL} needs a result: {{"result": "…"}}]'
        return f"{BRANCH_RETURNED}; its result stands for it from here on]"
    return f"{_PREFIX}there is no tool {inline(name)}; there are {BRANCH_TOOL} and {RETURN_TOOL}]"
