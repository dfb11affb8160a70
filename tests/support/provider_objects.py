"""Objects that only their provider understands, each in a turn of a conversation, and turns to put around them.

The fields are those of the types in the client libraries of Anthropic, OpenAI and Bedrock.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from foveal.core.log import Dialect

Json = dict[str, Any]

UNBOUND_CLAUDE: Final = "claude-sonnet-4-5"
BOUND_CLAUDE: Final = "claude-opus-5-5"
MODELS: Final[dict[Dialect, str]] = {
    "openai_chat": "gpt-4.1",
    "openai_responses": "gpt-5",
    "anthropic": UNBOUND_CLAUDE,
    "gemini": "gemini-3-pro",
    "bedrock": UNBOUND_CLAUDE,
}
RESULT_LINES: Final = 120


class ProviderObject(NamedTuple):
    """A turn of a conversation that has objects of a provider in it."""

    dialect: Dialect
    turn: list[Json]
    """The messages of the turn, from the user's to the model's last."""
    objects: tuple[Json, ...]
    """What is shown whole or not at all: messages, items or blocks of the turn."""
    stays: bool = False
    """Whether the objects hold for all later turns, so that no reduction may hide them."""
    begins: bool = False
    """Whether the turn is the beginning of a history."""
    model: str = ""

    @property
    def model_name(self) -> str:
        return self.model or MODELS[self.dialect]


# ── Anthropic ────────────────────────────────────────────────────────────────────────────────────────────


def said(*blocks: Json, answer: str = "Good.") -> list[Json]:
    """A turn whose reply has these blocks."""
    return [
        {"role": "user", "content": "Please go on."},
        {"role": "assistant", "content": [*blocks, {"type": "text", "text": answer}]},
    ]


def reply_with(*blocks: Json, stays: bool = False) -> ProviderObject:
    return ProviderObject("anthropic", said(*blocks), blocks, stays=stays)


def system_message(**fields: Any) -> ProviderObject:
    message = {"role": "system", **fields}
    turn = [
        {"role": "user", "content": "Please go on."},
        message,
        {"role": "assistant", "content": "Good."},
    ]
    return ProviderObject("anthropic", turn, (message,), stays=True)


def thinking_at_the_end(model: str) -> ProviderObject:
    thought = {"type": "thinking", "thinking": "Is that all?", "signature": "ZW5k"}
    blocks = [{"type": "text", "text": "I look."}, thought]
    turn = [{"role": "user", "content": "Please go on."}, {"role": "assistant", "content": blocks}]
    return ProviderObject("anthropic", turn, (thought,), model=model)


COMPACTION_BLOCK: Final = {
    "type": "compaction",
    "content": "The user wants CI green.",
    "encrypted_content": "ZW5j",
    "signature": "c2ln",
    "tool_changes": [{"type": "tool_removal", "tool": {"type": "tool_reference", "name": "grep"}}],
}
TOOL: Final = {"name": "deploy", "description": "Deploys.", "input_schema": {"type": "object"}}
TOOL_REFERENCE: Final = {"type": "tool_reference", "name": "deploy"}
MEMORY_CALL: Final = {
    "type": "tool_use",
    "id": "toolu_memory",
    "name": "memory",
    "input": {"command": "view", "path": "/memories"},
}
MEMORY_TURN: Final = [
    {"role": "user", "content": "What do you know?"},
    {"role": "assistant", "content": [MEMORY_CALL]},
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "toolu_memory", "content": "/memories\n/memories/a.md"}
        ],
    },
    {"role": "assistant", "content": "There is one file."},
]
ANTHROPIC_OBJECTS: Final[dict[str, ProviderObject]] = {
    "compaction on demand": ProviderObject(
        "anthropic",
        [{"role": "assistant", "content": [COMPACTION_BLOCK]}],
        (COMPACTION_BLOCK,),
        stays=True,
        begins=True,
    ),
    "automatic compaction": reply_with(COMPACTION_BLOCK, stays=True),
    "failed compaction": reply_with({"type": "compaction", "content": None}),
    "system message": system_message(content="Answer in French from now on."),
    "system message in blocks": system_message(
        content=[{"type": "text", "text": "In French.", "cache_control": {"type": "ephemeral"}}]
    ),
    "tool_addition": system_message(content=[{"type": "tool_addition", "tool": TOOL_REFERENCE}]),
    "tool_addition by value": system_message(
        content=[
            {"type": "text", "text": "You may deploy."},
            {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": TOOL}},
        ]
    ),
    "tool_removal": system_message(content=[{"type": "tool_removal", "tool": TOOL_REFERENCE}]),
    "clear_at": system_message(content="Only now: be brief.", clear_at="next_user_message"),
    "output_config without content": system_message(output_config={"effort": "low"}),
    "output_config with empty content": system_message(content=[], output_config={"effort": "low"}),
    "output_config with a text": system_message(content="Be thorough.", output_config={}),
    "thinking at the end, bound": thinking_at_the_end(BOUND_CLAUDE),
    "fallback": reply_with(
        {
            "type": "fallback",
            "from": {"model": "claude-fable-5-2"},
            "to": {"model": "claude-sonnet-5-5"},
            "trigger": {"type": "refusal"},
        }
    ),
    "advisor": reply_with(
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "advisor", "input": {}},
        {
            "type": "advisor_tool_result",
            "tool_use_id": "srvtoolu_1",
            "content": {"type": "advisor_redacted_result", "encrypted_content": "YWR2"},
        },
    ),
    "memory tool": ProviderObject("anthropic", MEMORY_TURN, (MEMORY_CALL,)),
    "MCP listing": reply_with(
        {
            "type": "mcp_tool_listing",
            "mcp_server_name": "tickets",
            "tools": [{"name": "find", "inputSchema": {"type": "object"}}],
        }
    ),
    "MCP call": reply_with(
        {
            "type": "mcp_tool_use",
            "id": "mcptoolu_1",
            "name": "find",
            "server_name": "tickets",
            "input": {"q": "a"},
        },
        {
            "type": "mcp_tool_result",
            "tool_use_id": "mcptoolu_1",
            "is_error": False,
            "content": [{"type": "text", "text": "none"}],
        },
    ),
    "redacted thinking": reply_with({"type": "redacted_thinking", "data": "cmVk"}),
}

# ── OpenAI Responses ─────────────────────────────────────────────────────────────────────────────────────


def items(*between: Json, stays: bool = False) -> ProviderObject:
    """A turn with these items between the user's message and the model's."""
    turn = [
        {"role": "user", "content": "Please go on."},
        *between,
        {"role": "assistant", "content": "Good."},
    ]
    return ProviderObject("openai_responses", turn, between, stays=stays)


ADDITIONAL_TOOLS: Final = {
    "type": "additional_tools",
    "role": "developer",
    "tools": [{"type": "function", "name": "deploy", "parameters": {"type": "object"}, "strict": True}],
}
RESPONSES_OBJECTS: Final[dict[str, ProviderObject]] = {
    "compaction item": items(
        {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAA" * 9}, stays=True
    ),
    "additional_tools": items(ADDITIONAL_TOOLS, stays=True),
    "configuration_update": items(
        {"type": "configuration_update", "id": "cfg_1", "reasoning": {"effort": "low"}}, stays=True
    ),
    "encrypted reasoning": items(
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gBBB" * 9}
    ),
    "phase": items(
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "phase": "commentary",
            "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
        }
    ),
    "approval": items(
        {
            "type": "mcp_approval_request",
            "id": "a1",
            "name": "f",
            "arguments": "{}",
            "server_label": "tickets",
        },
        {"type": "mcp_approval_response", "approval_request_id": "a1", "approve": True},
    ),
    "MCP listing": items(
        {
            "type": "mcp_list_tools",
            "id": "l1",
            "server_label": "tickets",
            "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        }
    ),
    "MCP call": items(
        {
            "type": "mcp_call",
            "id": "m1",
            "server_label": "t",
            "name": "f",
            "arguments": "{}",
            "output": "none",
        }
    ),
    "tool search": items(
        {
            "type": "tool_search_call",
            "id": "ts_1",
            "call_id": "x",
            "execution": "server",
            "arguments": {"q": "a"},
        },
        {"type": "tool_search_output", "id": "ts_2", "call_id": "x", "execution": "server", "tools": []},
    ),
    "program": items(
        {"type": "program", "id": "p1", "call_id": "y", "code": "1", "fingerprint": "Zg=="},
        {"type": "program_output", "id": "p2", "call_id": "y", "result": "1", "status": "completed"},
    ),
}

# ── Bedrock ──────────────────────────────────────────────────────────────────────────────────────────────


def bedrock_system(*blocks: Json) -> ProviderObject:
    message = {"role": "system", "content": list(blocks)}
    turn = [
        {"role": "user", "content": [{"text": "Please go on."}]},
        message,
        {"role": "assistant", "content": [{"text": "Good."}]},
    ]
    return ProviderObject("bedrock", turn, (message,), stays=True)


BEDROCK_OBJECTS: Final[dict[str, ProviderObject]] = {
    "system message": bedrock_system({"text": "Answer in French from now on."}),
    "toolAddition": bedrock_system({"toolAddition": {"tool": {"type": "tool_reference", "name": "deploy"}}}),
    "toolRemoval": bedrock_system(
        {"text": "No more of that."}, {"toolRemoval": {"tool": {"type": "tool_reference", "name": "deploy"}}}
    ),
}
OBJECTS: Final[dict[str, ProviderObject]] = {
    f"{found.dialect}: {name}": found
    for group in (ANTHROPIC_OBJECTS, RESPONSES_OBJECTS, BEDROCK_OBJECTS)
    for name, found in group.items()
}

# ── Turns around them ────────────────────────────────────────────────────────────────────────────────────


def long_turns(dialect: Dialect, first: int, count: int) -> list[Json]:
    """Turns with a call and a long result each."""
    return [message for number in range(first, first + count) for message in _turn(dialect, number)]


def _turn(dialect: Dialect, number: int) -> list[Json]:
    asked, done, output = f"Task {number}: look at file_{number}.py", f"Done with {number}.", _output(number)
    id, command = f"call_{number}", {"command": f"run {number}"}
    match dialect:
        case "openai_chat":
            function = {"name": "bash", "arguments": json.dumps(command)}
            call: Json = {"id": id, "type": "function", "function": function}
            return [
                {"role": "user", "content": asked},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": id, "content": output},
                {"role": "assistant", "content": done},
            ]
        case "openai_responses":
            return [
                {"role": "user", "content": asked},
                {"type": "function_call", "call_id": id, "name": "bash", "arguments": json.dumps(command)},
                {"type": "function_call_output", "call_id": id, "output": output},
                {"role": "assistant", "content": done},
            ]
        case "gemini":
            call = {"id": id, "name": "bash", "args": command}
            response = {"id": id, "name": "bash", "response": {"output": output}}
            return [
                {"role": "user", "parts": [{"text": asked}]},
                {"role": "model", "parts": [{"functionCall": call, "thoughtSignature": "c2ln"}]},
                {"role": "user", "parts": [{"functionResponse": response}]},
                {"role": "model", "parts": [{"text": done}]},
            ]
        case "bedrock":
            call = {"toolUseId": id, "name": "bash", "input": command}
            return [
                {"role": "user", "content": [{"text": asked}]},
                {"role": "assistant", "content": [{"toolUse": call}]},
                {
                    "role": "user",
                    "content": [{"toolResult": {"toolUseId": id, "content": [{"text": output}]}}],
                },
                {"role": "assistant", "content": [{"text": done}]},
            ]
        case _:
            call = {"type": "tool_use", "id": id, "name": "bash", "input": command}
            result = {"type": "tool_result", "tool_use_id": id, "content": output}
            return [
                {"role": "user", "content": asked},
                {"role": "assistant", "content": [call]},
                {"role": "user", "content": [result]},
                {"role": "assistant", "content": done},
            ]


def _output(number: int) -> str:
    """A result that has no line in common with that of another turn."""
    return "\n".join(f"{number}.{line}: value {line * 7919 % 1000}" for line in range(RESULT_LINES))


def objects_in(value: Any) -> Iterator[Json]:
    """All objects in a JSON value, from the outside to the inside."""
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from objects_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from objects_in(inner)
