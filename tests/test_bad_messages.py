"""Malformed messages: `fit` names the place and the field, or passes on what it was given. Nothing is dropped
silently."""

from __future__ import annotations

from typing import Any

import pytest

from foveal import Context
from foveal.core.log import Dialect
from foveal.errors import MalformedMessage
from support.provider_objects import BOUND_CLAUDE, MODELS

Json = dict[str, Any]
HELLO: dict[Dialect, Json] = {
    "openai_chat": {"role": "user", "content": "Hello."},
    "openai_responses": {"role": "user", "content": "Hello."},
    "anthropic": {"role": "user", "content": "Hello."},
    "gemini": {"role": "user", "parts": [{"text": "Hello."}]},
    "bedrock": {"role": "user", "content": [{"text": "Hello."}]},
}
TEXT = {"type": "text", "text": "Good."}
CALL = {"type": "tool_use", "id": "t1", "name": "bash", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "ok"}
THOUGHT = {"type": "thinking", "thinking": "A bound?", "signature": "c2ln"}
BLOCK = {"type": "compaction", "content": "The user wants CI green."}
ITEM = {"type": "compaction", "encrypted_content": "gAAA"}


def said(*blocks: Any) -> Json:
    return {"role": "assistant", "content": list(blocks)}


def asked(*blocks: Any, **fields: Any) -> Json:
    return {"role": "user", "content": list(blocks), **fields}


BAD: list[tuple[Dialect, Any, str]] = [
    ("anthropic", None, ""),
    ("anthropic", "Hello.", ""),
    ("anthropic", {"made": 1, "up": 2}, "content"),
    ("anthropic", {"role": "user", "content": None}, "content"),
    ("anthropic", {"role": "assistant", "content": None}, "content"),
    ("anthropic", {"role": "user", "content": TEXT}, "content"),
    ("anthropic", asked(None, TEXT), "content[0]"),
    ("anthropic", said(TEXT, None), "content[1]"),
    ("anthropic", said({"type": None}), "content[0].type"),
    ("anthropic", said({"text": "Good."}), "content[0].type"),
    ("anthropic", said({"type": "thinking", "signature": "c2ln"}, TEXT), "content[0].thinking"),
    ("anthropic", asked(TEXT, CALL), "content[1].type"),
    ("anthropic", said(TEXT, RESULT), "content[1].type"),
    ("anthropic", asked({**RESULT, "content": [None]}), "content[0].content[0]"),
    ("anthropic", {"role": "system"}, "content"),
    ("anthropic", {"role": "system", "content": None, "output_config": None}, "content"),
    ("anthropic", {"role": "system", "content": [None]}, "content[0]"),
    ("anthropic", {"role": "system", "content": [CALL]}, "content[0].type"),
    ("openai_responses", None, ""),
    ("openai_responses", {"made": 1, "up": 2}, "type"),
    ("openai_responses", {"role": "user", "content": None}, "content"),
    ("openai_responses", {"role": "assistant", "content": None}, "content"),
    ("openai_responses", {"role": "assistant", "content": [None]}, "content[0]"),
    ("openai_responses", {"type": "reasoning", "summary": [None]}, "summary[0]"),
    ("openai_responses", {"type": "mcp_approval_request", "name": "f"}, "id"),
    ("openai_responses", {"type": "mcp_approval_response", "approve": True}, "approval_request_id"),
    ("openai_responses", {"type": "function_call_output", "call_id": "c", "output": None}, "output"),
    ("openai_chat", {"made": 1, "up": 2}, "role"),
    ("openai_chat", {"role": "user", "content": None}, "content"),
    ("openai_chat", {"role": "user", "content": [None]}, "content[0]"),
    ("openai_chat", {"role": "assistant", "tool_calls": [None]}, "tool_calls[0]"),
    ("gemini", {"role": "user", "parts": [None]}, "parts[0]"),
    ("gemini", {"role": "user", "parts": None}, "parts"),
    ("gemini", {"made": 1, "up": 2}, "parts"),
    ("bedrock", {"role": "user", "content": [None]}, "content[0]"),
    ("bedrock", {"role": "user", "content": None}, "content"),
    ("bedrock", {"role": "user", "content": [{"made": 1, "up": 2}]}, "content[0]"),
    ("bedrock", {"made": 1, "up": 2}, "content"),
]


@pytest.mark.parametrize(("dialect", "message", "field"), BAD, ids=str)
def test_a_malformed_message_is_reported_by_place_and_field(
    dialect: Dialect, message: Any, field: str
) -> None:
    ctx = Context(MODELS[dialect], dialect=dialect)
    with pytest.raises(MalformedMessage) as caught:
        ctx.fit([HELLO[dialect], message])
    assert (caught.value.index, caught.value.field) == (1, field)
    assert f"messages[1]{'.' * bool(field)}{field}: " in str(caught.value)


ODD: dict[str, tuple[Dialect, list[Json]]] = {
    "two blocks": ("anthropic", [HELLO["anthropic"], said(BLOCK, BLOCK, TEXT)]),
    "two items": ("openai_responses", [ITEM, ITEM, HELLO["openai_responses"]]),
    "an empty item": ("openai_responses", [HELLO["openai_responses"], {**ITEM, "encrypted_content": None}]),
    "a block without a summary": ("anthropic", [HELLO["anthropic"], said({"type": "compaction"}, TEXT)]),
    "thinking without a signature": (
        "anthropic",
        [HELLO["anthropic"], said({"type": "thinking", "thinking": "A bound?"}, TEXT)],
    ),
    "an unanswered approval": (
        "openai_responses",
        [
            HELLO["openai_responses"],
            {"type": "mcp_approval_request", "id": "a", "name": "f", "arguments": "{}", "server_label": "t"},
            HELLO["openai_responses"],
        ],
    ),
    "fields around one result": (
        "anthropic",
        [HELLO["anthropic"], said(CALL), asked(RESULT, id="m1", sent={"at": None})],
    ),
    "fields around two results": (
        "anthropic",
        [
            HELLO["anthropic"],
            said(CALL, {**CALL, "id": "t2"}),
            asked(
                {**RESULT, "cache_control": {"type": "ephemeral"}}, {**RESULT, "tool_use_id": "t2"}, id="m1"
            ),
        ],
    ),
    "fields around a result and a text": (
        "anthropic",
        [HELLO["anthropic"], said(CALL), asked(RESULT, TEXT, id="m1")],
    ),
    "fields around a response of Gemini": (
        "gemini",
        [
            HELLO["gemini"],
            {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {}}}]},
            {
                "role": "user",
                "parts": [{"functionResponse": {"name": "f", "response": {"a": 1}}}],
                "id": "m1",
            },
        ],
    ),
    "fields around a result of Bedrock": (
        "bedrock",
        [
            HELLO["bedrock"],
            said({"toolUse": {"toolUseId": "t1", "name": "f", "input": {}}}),
            asked({"toolResult": {"toolUseId": "t1", "content": [{"text": "ok"}]}}, id="m1"),
        ],
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_what_the_provider_may_accept_is_passed_on_as_it_came(name: str) -> None:
    dialect, history = ODD[name]
    ctx = Context(MODELS[dialect], dialect=dialect)
    assert ctx.fit(history) == history
    assert ctx.report().repairs == ()
    assert Context.load(ctx.save(), dialect=dialect).fit(history) == history


def test_half_of_a_chain_of_thinking_is_passed_on_until_something_changes_before_it() -> None:
    answers = [said(THOUGHT, TEXT), said(TEXT), said({**THOUGHT, "signature": "ZW5k"}, TEXT)]
    history = [message for answer in answers for message in (HELLO["anthropic"], answer)]
    ctx = Context(BOUND_CLAUDE)
    assert ctx.fit(history, system="Be brief.") == history
    changed = ctx.fit([*history, HELLO["anthropic"]], system="Be thorough.")
    assert "thinking" not in str(changed)


def test_an_approval_without_its_request_is_left_out_and_reported() -> None:
    approval = {"type": "mcp_approval_response", "approval_request_id": "a", "approve": True}
    ctx = Context("gpt-5")
    assert ctx.fit([HELLO["openai_responses"], approval]) == [HELLO["openai_responses"]]
    assert [repair.done for repair in ctx.report().repairs] == ["kept out of the request"]
