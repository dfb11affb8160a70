"""OpenAI Responses items: reading and writing."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseReasoningItem

from foveal.core.log import (
    Call,
    ForeignSummary,
    Instructed,
    ModelSaid,
    Opaque,
    Text,
    Thinking,
    ToolReturned,
    UserSaid,
    raw,
)
from foveal.core.wire import wire_for
from foveal.errors import MalformedMessage
from support.legality import check_responses, with_results

RESPONSES = wire_for("openai_responses")
Items = list[dict[str, Any]]


def facts(items: Any) -> list[Any]:
    return [fact for chunk in RESPONSES.read(items) for fact in chunk.facts]


def round_trip(items: Any) -> Items:
    return RESPONSES.join([RESPONSES.write(fact) for fact in facts(items)])


def assistant(*texts: str, **more: Any) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []} for text in texts]
    item = {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed", "content": content}
    return {**item, **more}


def call(call_id: str = "c1", **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "bash", "arguments": "{}", **more}


def output(call_id: str = "c1", output: Any = "done", **more: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": output, **more}


REASONING = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [{"type": "summary_text", "text": "hm"}],
    "encrypted_content": "gAAA==",
}
SCREEN = {"type": "computer_screenshot", "image_url": "data:image/png;base64,AAAA"}
USER = {"role": "user", "content": "hello"}

LEGAL: dict[str, Items] = {
    "plain": [{"role": "system", "content": "s"}, {"role": "developer", "content": "d"}, USER],
    "typed message": [{"type": "message", "role": "user", "content": "x", "id": "m", "status": "completed"}],
    "parts": [
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "look"},
                {"type": "input_image", "image_url": "https://example.org/a.png", "detail": "auto"},
                {"type": "input_file", "file_id": "file-1"},
                {"type": "hologram", "x": 1},
            ],
        }
    ],
    "a plain reply": [{"role": "assistant", "content": "hi"}],
    "two plain replies": [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}],
    "a typed plain reply": [{"type": "message", "role": "assistant", "content": "hi", "phase": "commentary"}],
    "a reply": [assistant("a", "b")],
    "two replies": [assistant("a"), assistant("b", id="msg_2"), assistant("c", id="msg_3")],
    "a refusal": [{**assistant(), "content": [{"type": "refusal", "refusal": "no"}]}],
    "a reply without parts": [assistant()],
    "a reply with a strange part": [{**assistant("x"), "content": [{"type": "hologram"}]}],
    "a call": [call(), output()],
    "a call as the provider gives it": [
        REASONING,
        call(id="fc_1", status="completed"),
        output(id="o", status="x"),
    ],
    "reasoning and parallel calls": [
        USER,
        REASONING,
        assistant("a"),
        call("a"),
        call("b"),
        output("a"),
        output("b"),
    ],
    "a result in parts": [
        call(),
        output(
            output=[
                {"type": "input_text", "text": "a"},
                {"type": "input_image", "image_url": "https://e.org/x"},
            ]
        ),
    ],
    "a custom call": [
        {"type": "custom_tool_call", "call_id": "c", "name": "sql", "input": "select 1", "id": "ct_1"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": "1"},
    ],
    "a local shell": [
        {
            "type": "local_shell_call",
            "id": "lsh_1",
            "call_id": "c",
            "status": "completed",
            "action": {"type": "exec", "command": ["ls"], "env": {}},
        },
        {"type": "local_shell_call_output", "id": "lsh_1", "output": "{}"},
    ],
    "a shell": [
        {
            "type": "shell_call",
            "call_id": "c",
            "action": {"commands": ["ls", "false"]},
            "status": "completed",
        },
        {
            "type": "shell_call_output",
            "call_id": "c",
            "max_output_length": 4096,
            "output": [
                {"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}},
                {"stdout": "", "stderr": "bad", "outcome": {"type": "timeout"}},
            ],
        },
    ],
    "a computer": [
        {
            "type": "computer_call",
            "id": "cu_1",
            "call_id": "c",
            "action": {"type": "screenshot"},
            "pending_safety_checks": [],
            "status": "completed",
        },
        {"type": "computer_call_output", "call_id": "c", "output": SCREEN, "acknowledged_safety_checks": []},
    ],
    "a patch": [
        {
            "type": "apply_patch_call",
            "call_id": "c",
            "status": "completed",
            "operation": {"type": "delete_file", "path": "a"},
        },
        {"type": "apply_patch_call_output", "call_id": "c", "status": "failed", "output": "no such file"},
        {
            "type": "apply_patch_call",
            "call_id": "d",
            "status": "completed",
            "operation": {"type": "delete_file", "path": "b"},
        },
        {"type": "apply_patch_call_output", "call_id": "d", "status": "completed"},
    ],
    "tools of the server": [
        {
            "type": "web_search_call",
            "id": "ws_1",
            "status": "completed",
            "action": {"type": "search", "query": "x"},
        },
        {"type": "file_search_call", "id": "fs", "queries": ["x"], "status": "completed", "results": None},
        {"type": "code_interpreter_call", "id": "ci", "code": "1", "container_id": "c", "outputs": []},
        {"type": "image_generation_call", "id": "ig", "result": "AAAA", "status": "completed"},
        {"type": "mcp_list_tools", "id": "ml", "server_label": "x", "tools": []},
        {"type": "mcp_call", "id": "mc", "name": "f", "arguments": "{}", "server_label": "x", "output": "1"},
        {"type": "mcp_approval_request", "id": "ar", "name": "f", "arguments": "{}", "server_label": "x"},
        {"type": "mcp_approval_response", "approval_request_id": "ar", "approve": True},
        {"type": "compaction", "encrypted_content": "AAAA"},
        {"type": "item_reference", "id": "msg_9"},
        {"id": "msg_10"},
        {"type": "something_new_call", "call_id": "n", "x": [1.5]},
        assistant("done"),
    ],
}


@pytest.mark.parametrize("name", LEGAL)
def test_legal_items_come_back_equal(name: str) -> None:
    before = copy.deepcopy(LEGAL[name])
    assert round_trip(LEGAL[name]) == before
    assert LEGAL[name] == before


def test_a_run_of_model_items_is_one_chunk_with_one_fact() -> None:
    items = LEGAL["reasoning and parallel calls"]
    chunks = list(RESPONSES.read(items))
    assert [chunk.messages for chunk in chunks] == [1, 4, 1, 1]
    utterance = chunks[1].facts[0]
    assert isinstance(utterance, ModelSaid)
    assert [type(part) for part in utterance.content] == [Thinking, Text, Call, Call]
    assert list(RESPONSES.read(items, 5)) == chunks[2:]
    assert sum(chunk.messages for chunk in RESPONSES.read(LEGAL["tools of the server"])) == 13


def test_items_are_read_into_facts() -> None:
    assert facts([{"role": "developer", "content": "d"}, USER, REASONING, call(), output(output="r")]) == [
        Instructed(content="d", role="developer"),
        UserSaid(content="hello"),
        ModelSaid(
            content=(Thinking(native=raw(REASONING), text="hm"), Call(id="c1", name="bash", arguments="{}")),
            dialect="openai_responses",
        ),
        ToolReturned(call_id="c1", content="r"),
    ]


def test_server_tool_outputs_are_kept() -> None:
    (utterance, approval, summary, last) = facts(LEGAL["tools of the server"])
    assert all(isinstance(part, Opaque) for part in utterance.content[:-1])
    assert isinstance(utterance.content[-1], Call)
    assert approval.call_id == utterance.content[-1].id
    assert isinstance(summary, ForeignSummary)
    assert isinstance(last, ModelSaid)


WITH_RESULT = [name for name, items in LEGAL.items() if str(items[-1].get("type")).endswith("_output")]


@pytest.mark.parametrize("name", WITH_RESULT)
def test_any_result_can_be_a_placeholder_or_missing(name: str) -> None:
    known = facts(LEGAL[name])
    masked = [replace(f, content="[masked]") if isinstance(f, ToolReturned) else f for f in known]
    missing = with_results(f for f in known if not isinstance(f, ToolReturned))
    for shown in (masked, missing):
        items = RESPONSES.join([RESPONSES.write(fact) for fact in shown])
        assert check_responses(items) == []
        assert "[masked]" in str(items) or "[no result]" in str(items)


def test_each_part_of_a_model_message_can_be_replaced() -> None:
    for items in LEGAL.values():
        for fact in facts(items):
            if not isinstance(fact, ModelSaid) or isinstance(fact.content, str):
                continue
            for place, part in enumerate(fact.content):
                if isinstance(part, Call | Thinking):
                    continue
                content = (*fact.content[:place], Text(text="[gone]"), *fact.content[place + 1 :])
                written = RESPONSES.write(replace(fact, content=content))
                assert {"role": "assistant", "content": "[gone]"} in written


def test_arguments_of_functions_and_custom_tools_can_be_replaced() -> None:
    for name, field in (("a call", "arguments"), ("a custom call", "input")):
        utterance = facts(LEGAL[name])[0]
        shown = replace(utterance, content=(replace(utterance.content[0], arguments="[cut]"),))
        assert RESPONSES.write(shown) == [{**LEGAL[name][0], field: "[cut]"}]


def test_trailing_reasoning_is_not_sent() -> None:
    assert round_trip([USER, REASONING]) == [USER]
    assert round_trip([USER, assistant("a"), REASONING, USER]) == [USER, assistant("a"), USER]


def test_a_result_that_names_the_item_of_its_call_finds_the_call() -> None:
    call_, result = facts(LEGAL["a local shell"])
    assert call_.content[0].id == result.call_id == "c"


def test_stderr_of_a_command_is_text() -> None:
    result = facts(LEGAL["a shell"])[1]
    assert [part.text for part in result.content] == ["a", "", "bad"]


def test_objects_of_the_client_library_are_read() -> None:
    items = [REASONING, assistant("a"), call(id="fc_1", status="completed")]
    objects = [
        ResponseReasoningItem.model_validate(items[0]),
        ResponseOutputMessage.model_validate(items[1]),
        ResponseFunctionToolCall.model_validate(items[2]),
    ]
    assert round_trip(objects) == items


@pytest.mark.parametrize(
    ("item", "field"),
    [
        (3, ""),
        ({}, "type"),
        ({"type": 3}, "type"),
        ({"type": "message", "content": "x"}, "role"),
        ({"role": "tool", "content": "x"}, "role"),
        ({"role": "user", "content": 3}, "content"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "content[0].text"),
        ({"role": "assistant", "content": None}, "content"),
        ({"role": "user"}, "content"),
        ({"type": "message", "role": "system", "content": None}, "content"),
        ({"type": "function_call_output", "call_id": "c"}, "output"),
        ({"role": "assistant", "content": [{"text": "x"}]}, "type"),
        ({"type": "function_call", "name": "f", "arguments": ""}, "call_id"),
        ({"type": "function_call", "call_id": "c", "arguments": ""}, "name"),
        ({"type": "function_call_output", "output": "x"}, "call_id"),
        ({"type": "function_call_output", "call_id": "c", "output": [{}]}, "output[0].type"),
        ({"type": "shell_call_output", "call_id": "c", "output": [{}]}, "output[0].stdout"),
        ({"type": "shell_call_output", "call_id": "c"}, "output"),
        ({"type": "computer_call", "id": "c"}, "call_id"),
        ({"type": "reasoning", "summary": 3}, "summary"),
        ({"type": "reasoning", "summary": [3]}, "summary[0]"),
    ],
    ids=str,
)
def test_a_malformed_item_is_reported_by_index_and_field(item: Any, field: str) -> None:
    with pytest.raises(MalformedMessage) as caught:
        facts([USER, item])
    assert (caught.value.index, caught.value.field) == (1, field)


texts = st.text(max_size=12)
some = st.text(min_size=1, max_size=12)
beside = st.dictionaries(
    st.text(max_size=6).map("x_{}".format), st.none() | st.integers() | texts, max_size=2
)
runs = st.one_of(
    st.builds(lambda text: [{"role": "assistant", "content": text}], some),
    st.builds(
        lambda texts, more: [assistant(*texts, **more)], st.lists(texts, min_size=1, max_size=3), beside
    ),
    st.builds(lambda more: [{**REASONING, **more}, assistant("x")], beside),
    st.builds(lambda id, more: [call(id, **more)], texts, beside),
    st.builds(lambda kind, more: [{"type": f"{kind}_thing", **more}], some, beside),
)
others = st.one_of(
    st.builds(
        lambda role, content, more: [{"role": role, "content": content, **more}],
        st.sampled_from(["user", "system", "developer"]),
        texts
        | st.lists(st.builds(lambda t, m: {"type": "input_text", "text": t, **m}, texts, beside), min_size=1),
        beside,
    ),
    st.builds(lambda id, text, more: [output(id, text, **more)], some, texts, beside),
)


@given(st.lists(runs | others, max_size=8))
def test_any_legal_items_come_back_equal(groups: list[Items]) -> None:
    items = [item for group in groups for item in group]
    before = copy.deepcopy(items)
    assert round_trip(items) == before
    assert items == before


def test_the_checker_finds_what_is_illegal() -> None:
    for name, items in LEGAL.items():
        if "strange" not in name and name not in ("parts", "a reply without parts"):
            assert check_responses(items) == [], name
    for bad in (
        [call()],
        [output()],
        [output(), call()],
        [call(), output(), output()],
        [call(), {**output(), "type": "custom_tool_call_output"}],
        [REASONING],
        [REASONING, USER],
        [{"role": "user", "content": []}],
    ):
        assert check_responses(bad), bad
