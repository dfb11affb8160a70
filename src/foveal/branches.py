"""Branches: parts of the work that fold to their result, for your code and as tools of the model.

    branch(task)           the tool that begins one
    return(result, keep)   the tool that ends the innermost one, which is folded to the result

    schemas = [*own, *foveal.branches.tools("openai_chat")]
    answer = ctx.recall(call.name, call.arguments)

The answer of a tool is a text and nothing more: `Context` and `Session` read from the recorded step what to do,
once all of its calls have their results.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import Any, Final

from foveal.core.engine.branches import (
    BRANCH_BEGUN,
    BRANCH_RETURNED,
    BRANCH_TOOL,
    RETURN_TOOL,
    BranchStatus,
    asked_result,
    asked_task,
    kept_in,
)
from foveal.core.log.events import Dialect, parse_handle
from foveal.core.wire.event_text import inline
from foveal.core.wire.tool_schemas import ToolDefinition, parse_arguments, tool_schemas
from foveal.errors import BadSetting

__all__ = ["Branch", "BranchStatus", "answer", "tools"]


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


class Branch:
    """A part of the work, from the beginning of a `with` block to its end.

    `Context.branch` and `Session.branch` return it.

    Args:
        task: What the branch is to do.
        handle: The event with which it began.

    Examples:
        ```python
        import foveal

        ctx = foveal.Context("gpt-4.1")
        with ctx.branch("Find the failing test.") as branch:
            ctx.append({"role": "assistant", "content": "test_dates.py fails."})
            branch.result("test_dates.py fails")
        assert branch.fold == "e4"
        ```
    """

    def __init__(self, task: str, handle: str) -> None:
        self.task: str = task
        """What the branch is to do."""
        self.handle: str = handle
        """The event with which it began."""
        self.fold: str = ""
        """The event that folded it, for `undo` and `expand`; "" while it is open, if it was rewound, and if there
        was nothing to fold."""
        self._result: str | None = None
        self._keep: tuple[int, ...] = ()

    def __repr__(self) -> str:
        return f"<Branch {self.handle}: {'open' if not self.fold else f'folded by {self.fold}'}>"

    def result(self, text: str) -> None:
        """Set what came of the branch. Called again, the newest text counts.

        Args:
            text: What requests show instead of the branch. Without a result, they show the model's last text.

        Raises:
            BadSetting: It is not a text.
        """
        if not isinstance(text, str):
            raise BadSetting("text", text, "a text")
        self._result = text

    def keep(self, *names: str | int) -> None:
        """Keep single events in view when the branch is folded, each with its whole step.

        Args:
            *names: Handles or seqs of events inside the branch.

        Raises:
            UnknownHandle: A handle names no event after the beginning of the branch. For one that is not recorded
                when the block ends, the end of the block raises it, after the branch is folded.
        """
        self._keep += tuple(self._kept_in(names))

    def end(self, fold: str) -> None:
        """Note the event that folded it.

        Args:
            fold: The handle of the event.
        """
        self.fold = fold

    def kept_before(self, end: int) -> Sequence[int]:
        """Return the events to keep that are recorded.

        Args:
            end: The seq of the next event.
        """
        return [seq for seq in self._keep if seq < end]

    def check_kept(self, end: int) -> None:
        """Raise `UnknownHandle` if an event to keep is not recorded.

        Args:
            end: The seq of the next event when the branch ended.
        """
        list(self._kept_in(self._keep, end=end))

    def _kept_in(self, names: Iterable[str | int], *, end: float = inf) -> Iterator[int]:
        seq = parse_handle(self.handle)
        assert seq is not None
        return kept_in(seq, names, end=end)

    def result_after(self, error: BaseException | None) -> str | None:
        """Return what came of the block; None if nothing was said.

        Args:
            error: The error that ended the block, whose text the result begins with; None if none did.
        """
        if error is None:
            return self._result
        problem = f"{type(error).__name__}: {error}".rstrip(": ")
        return problem if self._result is None else f"{problem}\nUntil then: {self._result}"
