"""Bound thinking in the objects of frameworks: no reduced request has any behind other messages than before."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from agent_framework import Content, Message
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from pydantic_ai.messages import (
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from foveal import Context
from foveal.adapters.agent_framework import AgentFrameworkFormat
from foveal.adapters.langchain import LangChainFormat
from foveal.adapters.native_context import NativeContext
from foveal.adapters.pydantic_ai import PydanticAIFormat
from foveal.core.wire.bound_thinking import ThinkingCheck
from foveal.core.wire.openai_chat import THINKING_FIELD
from support.effort import rest_in_soak

Json = dict[str, Any]
TURNS = 30


def anthropic_message(message: Json) -> Json:
    """Return what a framework sends to Anthropic for one of its messages, given as one of chat."""
    if message["role"] == "tool":
        result = {
            "type": "tool_result",
            "tool_use_id": message["tool_call_id"],
            "content": message["content"],
        }
        return {"role": "user", "content": [result]}
    content = message.get("content") or []
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    calls = [
        {
            "type": "tool_use",
            "id": call["id"],
            "name": call["function"]["name"],
            "input": json.loads(call["function"]["arguments"]),
        }
        for call in message.get("tool_calls") or ()
    ]
    return {"role": message["role"], "content": [*message.get(THINKING_FIELD, ()), *parts, *calls]}


class PydanticTurns:
    format = PydanticAIFormat()

    def question(self, text: str) -> Any:
        return ModelRequest([UserPromptPart(text)])

    def answer(self, turn: int) -> Any:
        thought = ThinkingPart(f"Thought {turn}.", signature=f"sig{turn}")
        return ModelResponse([thought, TextPart("I look."), ToolCallPart("bash", {"n": turn}, f"c{turn}")])

    def result(self, turn: int, text: str) -> Any:
        return ModelRequest([ToolReturnPart("bash", text, f"c{turn}")])


class LangChainTurns:
    format = LangChainFormat()

    def question(self, text: str) -> Any:
        return HumanMessage(text)

    def answer(self, turn: int) -> Any:
        thought = {"type": "thinking", "thinking": f"Thought {turn}.", "signature": f"sig{turn}"}
        use = {"type": "tool_use", "id": f"c{turn}", "name": "bash", "input": {"n": turn}}
        call = {"type": "tool_call", "id": f"c{turn}", "name": "bash", "args": {"n": turn}}
        return AIMessage([thought, {"type": "text", "text": "I look."}, use], tool_calls=[call])

    def result(self, turn: int, text: str) -> Any:
        return ToolMessage(text, tool_call_id=f"c{turn}")


class AgentFrameworkTurns:
    format = AgentFrameworkFormat()

    def question(self, text: str) -> Any:
        return Message("user", [text])

    def answer(self, turn: int) -> Any:
        thought = Content.from_text_reasoning(text=f"Thought {turn}.", protected_data=f"sig{turn}")
        call = Content.from_function_call(f"c{turn}", "bash", arguments={"n": turn})
        return Message("assistant", [thought, Content.from_text("I look."), call])

    def result(self, turn: int, text: str) -> Any:
        return Message("tool", [Content.from_function_result(f"c{turn}", result=text)])


@pytest.mark.parametrize(
    ("framework", "policy"),
    rest_in_soak(
        [
            (PydanticTurns, "economy"),
            (LangChainTurns, "economy"),
            (AgentFrameworkTurns, "economy"),
            (PydanticTurns, "rolling"),
            (LangChainTurns, "rolling"),
            (AgentFrameworkTurns, "rolling"),
        ],
        kept=4,
    ),
)
def test_no_reduced_request_has_thinking_that_is_refused(framework: Callable[[], Any], policy: str) -> None:
    turns, check = framework(), ThinkingCheck()
    context = Context("claude-opus-5-5", dialect="openai_chat", window=6_000, policy=policy)
    native: NativeContext[Any] = NativeContext(context, turns.format)

    def sent(messages: list[Any]) -> list[Json]:
        return [anthropic_message(one) for message in messages for one in turns.format.write(message)]

    history = [turns.question("Find the bug.")]
    kept = 0
    for turn in range(TURNS):
        messages = sent(native.fit(history))
        assert check.faults("anthropic", messages) == []
        kept += sum("thinking" in json.dumps(message) for message in messages)
        answer = turns.answer(turn)
        check.remember("anthropic", messages, sent([answer]))
        text = " ".join(f"word{turn}x{at}" for at in range(120))
        history += [answer, turns.result(turn, text)]
    assert context.report().reduced
    assert kept >= (TURNS if policy == "economy" else 1)
