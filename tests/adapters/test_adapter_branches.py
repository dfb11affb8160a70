"""Branches in the conversations of adapters: by their context, and by tools of the framework."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

Json = dict[str, Any]


class Framework(NamedTuple):
    """An adapter, and the messages of its framework."""

    adapter: Any
    user: Callable[[str], Any]
    model: Callable[[str], Any]
    call: Callable[[str, str, Json], Any]
    result: Callable[[str, str, str], Any]


def langchain() -> Framework:
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

    from foveal.adapters.langchain import FovealMiddleware

    return Framework(
        FovealMiddleware(),
        HumanMessage,
        AIMessage,
        lambda id, name, args: AIMessage("", tool_calls=[{"id": id, "name": name, "args": args}]),
        lambda id, name, text: ToolMessage(text, tool_call_id=id, name=name),
    )


def openai_agents() -> Framework:
    from foveal.adapters.openai_agents import FovealModelProvider

    return Framework(
        FovealModelProvider(),
        lambda text: {"role": "user", "content": text},
        lambda text: {"role": "assistant", "content": text},
        lambda id, name, args: {
            "type": "function_call",
            "call_id": id,
            "name": name,
            "arguments": json.dumps(args),
        },
        lambda id, name, text: {"type": "function_call_output", "call_id": id, "output": text},
    )


def pydantic_ai() -> Framework:
    from pydantic_ai.messages import (
        ModelRequest,
        ModelResponse,
        TextPart,
        ToolCallPart,
        ToolReturnPart,
        UserPromptPart,
    )

    from foveal.adapters.pydantic_ai import FovealCapability

    return Framework(
        FovealCapability(),
        lambda text: ModelRequest(parts=[UserPromptPart(text)]),
        lambda text: ModelResponse(parts=[TextPart(text)]),
        lambda id, name, args: ModelResponse(parts=[ToolCallPart(name, args, tool_call_id=id)]),
        lambda id, name, text: ModelRequest(parts=[ToolReturnPart(name, text, tool_call_id=id)]),
    )


def agent_framework() -> Framework:
    from agent_framework import Content, Message

    from foveal.adapters.agent_framework import FovealChatMiddleware

    return Framework(
        FovealChatMiddleware(),
        lambda text: Message("user", [text]),
        lambda text: Message("assistant", [text]),
        lambda id, name, args: Message(
            "assistant", [Content.from_function_call(id, name, arguments=json.dumps(args))]
        ),
        lambda id, name, text: Message("tool", [Content.from_function_result(id, result=text)]),
    )


def written(message: Any) -> str:
    return str(message.to_dict() if hasattr(message, "to_dict") else message)


FRAMEWORKS = pytest.mark.parametrize(
    "made", [langchain, openai_agents, pydantic_ai, agent_framework], ids=lambda made: made.__name__
)


@FRAMEWORKS
def test_a_branch_of_the_context_folds_messages_of_the_framework(made: Callable[[], Framework]) -> None:
    framework = made()
    found = framework.adapter.conversations.get("ci", model="gpt-4.1")
    history = [framework.user("Why is CI red?")]
    found.fit(history)
    found.context.begin_branch("Read the log.")
    history += [framework.model("I read 40 files."), framework.model("It was full.")]
    assert found.fit(history) == history
    fold = found.context.end_branch("The disk was full.")
    first, record = found.fit(history)
    assert first is history[0]
    assert "Result: The disk was full." in written(record)
    found.context.undo(fold)
    assert found.fit(history) == history


@FRAMEWORKS
def test_tools_of_the_framework_begin_and_end_a_branch(made: Callable[[], Framework]) -> None:
    framework = made()
    found = framework.adapter.conversations.get("ci", model="gpt-4.1")
    history = [framework.user("Why is CI red?")]

    def call(id: str, name: str, given: Json) -> None:
        found.fit(history)
        history.extend(
            [framework.call(id, name, given), framework.result(id, name, found.recall(name, given))]
        )

    call("c1", "branch", {"task": "Read the log."})
    history.append(framework.model("I read 40 files."))
    call("c2", "return", {"result": "The disk was full."})
    shown = found.fit(history)
    assert all(one is other for one, other in zip(shown[:3], history, strict=False))
    assert "Result: The disk was full." in written(shown[3])
    assert len(shown) == 4
