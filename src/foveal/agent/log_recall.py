"""The recall tools, the memory tools and the branch tools as tools of an agent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from foveal import branches, memory
from foveal.agent.tool import Arguments, Tool, ToolOutput
from foveal.core.reduction.truncation import UNLIMITED
from foveal.core.tokens.counter import Counter
from foveal.core.wire.safe_print import one_line
from foveal.memory import Memory, MemoryTools, QuotedLog
from foveal.recall import Library, Recall, context_tools, tools
from foveal.sessions.session import Session

MAX_RECALL_TOKENS: Final = 2_000
NO_MEMORY_HERE: Final = "[memory: nothing can be remembered here: no user wrote this message]"


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
    return [_tool(schema, recall.call) for schema in tools("anthropic")]


class ManagedContext(Protocol):
    """A conversation whose model may ask for a cut: a `Session`."""

    async def manage(self, name: str, arguments: Arguments) -> str:
        """Answer a call of a context tool."""
        ...


def managing_tools(context: ManagedContext) -> list[Tool]:
    """Return the tools `context_status` and `context_cut`, with which the model asks for a cut."""
    return [_tool(schema, context.manage) for schema in context_tools("anthropic")]


def memory_tools(memories: Sequence[Memory], log: QuotedLog) -> list[Tool]:
    """Return the tools `remember` and `forget`, with the conversation in which the user's words are looked up. Of a
    list of memories that changes, each call uses those that are in it then."""

    async def call(name: str, given: Arguments) -> str:
        return await MemoryTools(memories, log).call(name, given) if memories else NO_MEMORY_HERE

    return [_tool(schema, call) for schema in memory.tools("anthropic")]


def branch_tools(session: Session) -> list[Tool]:
    """Return the tools `branch` and `return`. The session reads from their answers what to do."""

    async def call(name: str, given: Arguments) -> str:
        return branches.answer(name, given, open_branches=len(await session.open_branches()))

    return [_tool(schema, call) for schema in branches.tools("anthropic")]


def file_tool(owned: Memory) -> Tool:
    """Return the tool `memory`, with which a model keeps files for the owner of a memory."""
    answering = memory.memory_tool(owned)

    async def call(name: str, given: Arguments) -> str:
        return await answering.call(given)

    [schema] = answering.tools("openai_chat")
    return _tool({**schema["function"], "input_schema": schema["function"]["parameters"]}, call)


def _tool(schema: Mapping[str, Any], call: Callable[[str, Arguments], Awaitable[str]]) -> Tool:
    name: str = schema["name"]

    async def run(given: Arguments) -> ToolOutput:
        return ToolOutput(content=await call(name, given))

    return Tool(
        name=name,
        description=schema["description"],
        parameters=schema["input_schema"],
        run=run,
        describe=_describer(name),
        limits=UNLIMITED,
        timeout=30.0,
    )


def _describer(name: str) -> Callable[[Arguments], str]:
    def describe(given: Arguments) -> str:
        return f"{name} {one_line(' '.join(str(value) for value in given.values()), width=200)}"

    return describe
