"""The recall tools as tools of an agent: search and read the session's log."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from foveal.agent.tool import Arguments, Tool, ToolOutput
from foveal.core.reduction.truncation import UNLIMITED
from foveal.core.tokens.counter import Counter
from foveal.core.wire.safe_print import one_line
from foveal.memory.memory import Memory
from foveal.recall import Library, Recall, tools

MAX_RECALL_TOKENS: Final = 2_000


def recall_tools(
    library: Library,
    *,
    max_tokens: int = MAX_RECALL_TOKENS,
    counting: Counter | None = None,
    memories: Sequence[Memory] = (),
) -> list[Tool]:
    """Return the recall tools for a session or another library; a search covers the memories too.

    An answer has at most `max_tokens` tokens by the counter `counting`, so it is never truncated.
    """
    recall = Recall(library, tokens=max_tokens, counting=counting, memories=memories)
    return [
        Tool(
            name=schema["name"],
            description=schema["description"],
            parameters=schema["input_schema"],
            run=_runner(recall, schema["name"]),
            describe=_describer(schema["name"]),
            limits=UNLIMITED,
            timeout=30.0,
        )
        for schema in tools("anthropic")
    ]


def _runner(recall: Recall, name: str) -> Callable[[Arguments], Awaitable[ToolOutput]]:
    async def run(given: Arguments) -> ToolOutput:
        return ToolOutput(content=await recall.call(name, given))

    return run


def _describer(name: str) -> Callable[[Arguments], str]:
    def describe(given: Arguments) -> str:
        return f"{name} {one_line(' '.join(str(value) for value in given.values()), width=200)}"

    return describe
