"""Request bodies in which the prompt prefix moves, and those in which it does not."""

from __future__ import annotations

import json
import re
from itertools import permutations
from typing import Any

import pytest
from openai.types.chat import ChatCompletionMessage

from foveal.core.tokens.counter import counter
from foveal.testing import CapturedRequests, MovedPrefix, PrefixMoved, assert_stable_prefix
from foveal.testing.stable_prefix import IllegalRequest, NothingCaptured

Json = dict[str, Any]
SYSTEM = "You are a careful agent. Never delete anything."
TASK = "Fix the bug in the parser."
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("read", "search", "write")
]


def call(number: int, arguments: str = '{"path":"a.py"}') -> Json:
    made = {
        "id": f"call_{number}",
        "type": "function",
        "function": {"name": "read", "arguments": arguments},
    }
    return {"role": "assistant", "content": None, "tool_calls": [made]}


def result(number: int, text: str = "") -> Json:
    return {
        "role": "tool",
        "tool_call_id": f"call_{number}",
        "content": text or f"{number}: " + "a line " * 50,
    }


def history(steps: int, *, system: str = SYSTEM, task: str = TASK) -> list[Json]:
    made = [message for number in range(steps) for message in (call(number), result(number))]
    return [{"role": "system", "content": system}, {"role": "user", "content": task}, *made]


def body(messages: list[Json], *, tools: list[Json] | None = TOOLS, model: str = "gpt-4.1") -> Json:
    return {"model": model, "messages": messages} | ({"tools": tools} if tools else {})


def captured(bodies: list[Json]) -> CapturedRequests:
    requests = CapturedRequests()
    for one in bodies:
        assert requests.record(one)
    return requests


def breaks(*bodies: Json) -> list[MovedPrefix]:
    return captured(list(bodies)).breaks()


def codes(*bodies: Json) -> list[tuple[int, str, str]]:
    return [(one.request, one.place, one.code) for one in breaks(*bodies)]


def test_a_growing_history_is_stable() -> None:
    assert_stable_prefix([body(history(steps)) for steps in range(5)])


def test_a_time_in_the_system_text_is_found() -> None:
    bodies = [body(history(steps, system=f"{SYSTEM} It is 2026-11-16 14:00:0{steps}.")) for steps in range(2)]
    (found,) = breaks(*bodies)
    assert found == MovedPrefix(
        request=2,
        previous=1,
        place="messages[0]",
        role="system",
        code="changing_text",
        cause="a date or time changes in the text",
        before="…elete anything. It is 2026-11-16 14:00:00.",
        after="…elete anything. It is 2026-11-16 14:00:01.",
        kept_tokens=counter().count(json.dumps(TOOLS, sort_keys=True, separators=(",", ":"))),
        lost_tokens=found.lost_tokens,
        lost_dollars=found.lost_tokens * 2.0 * 0.75 / 1_000_000,
    )
    assert 30 < found.lost_tokens < 60  # the system text and the task


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("It is {}:30 pm.", "a date or time changes in the text"),
        ("Today is November {}, 2026.", "a date or time changes in the text"),
        ("Now: 17000000{}.5", "a date or time changes in the text"),
        ("Run 0b5f3c1e-8f0d-4c53-9a55-0000000000{}", "an id changes in the text"),
        ("You have {} tokens left.", "a number changes in the text"),
    ],
)
def test_text_that_changes_is_named(text: str, cause: str) -> None:
    bodies = [body(history(steps, system=f"{SYSTEM} {text.format(10 + steps)}")) for steps in range(2)]
    assert [one.cause for one in breaks(*bodies)] == [cause]


def test_a_time_in_the_first_user_message_is_found() -> None:
    bodies = [body(history(steps, task=f"[12:0{steps}] {TASK}")) for steps in range(3)]
    assert codes(*bodies) == [(2, "messages[1]", "changing_text"), (3, "messages[1]", "changing_text")]


def test_tools_from_a_set_are_found() -> None:
    orders = list(permutations(TOOLS))
    bodies = [body(history(steps), tools=list(orders[steps])) for steps in range(3)]
    assert codes(*bodies) == [(2, "tools", "tools_reordered"), (3, "tools", "tools_reordered")]
    assert (breaks(*bodies)[0].before, breaks(*bodies)[0].after) == (
        "read, search, write",
        "read, write, search",
    )


def test_an_added_and_a_changed_tool_are_named() -> None:
    changed = [
        {"type": "function", "function": {**TOOLS[0]["function"], "description": "Reads."}},
        *TOOLS[1:],
    ]
    found = breaks(body(history(0), tools=TOOLS[:2]), body(history(1)), body(history(2), tools=changed))
    assert [(one.cause, one.after) for one in found] == [
        ("1 added", "write"),
        ("the description of read changes", found[1].after),
    ]


def test_another_model_is_found() -> None:
    assert codes(body(history(1)), body(history(2), model="gpt-4.1-mini")) == [(2, "model", "model_changed")]


def test_a_sliding_window_is_found_each_time() -> None:
    bodies = [body(history(steps)[:2] + history(steps)[2:][-4:]) for steps in range(6)]
    assert codes(*bodies) == [(number, "messages[2]", "message_removed") for number in (4, 5, 6)]
    assert {one.cause for one in breaks(*bodies)} == {"2 messages are removed"}


def test_an_edited_a_shortened_and_an_inserted_message_are_told_apart() -> None:
    old = history(2)
    shortened = [*old[:3], result(0, "[cleared]"), *old[4:]]
    edited = [*old[:3], result(0, "Another text of about the same length. " * 9), *old[4:]]
    inserted = [*old[:2], {"role": "user", "content": "By the way"}, *old[2:]]
    assert codes(body(old), body(shortened)) == [(2, "messages[3]", "message_shortened")]
    assert codes(body(old), body(edited)) == [(2, "messages[3]", "message_edited")]
    assert codes(body(old), body(inserted)) == [(2, "messages[2]", "message_inserted")]


def test_a_summary_in_place_of_messages_is_found() -> None:
    summary = [history(3)[0], {"role": "user", "content": "Summary: all is well."}, *history(3)[4:]]
    assert [one.cause for one in breaks(body(history(3)), body(summary))] == ["3 messages are replaced by 1"]


def test_another_order_of_json_fields_is_found_in_arguments_and_schemas() -> None:
    one, other = call(0, '{"a":"1","b":"2"}'), call(0, '{"b": "2", "a": "1"}')
    task = history(0)
    assert codes(body([*task, one, result(0)]), body([*task, other, result(0), call(1), result(1)])) == [
        (2, "messages[2]", "key_order")
    ]
    schemas = [{"a": {"type": "string"}, "b": {}}, {"b": {}, "a": {"type": "string"}}]
    tools = [
        [{"type": "function", "function": {"name": "f", "parameters": {"properties": schema}}}]
        for schema in schemas
    ]
    assert codes(body(task, tools=tools[0]), body(history(1), tools=tools[1])) == [(2, "tools", "key_order")]


def test_the_order_of_a_message_s_own_fields_and_null_fields_make_no_difference() -> None:
    old = history(1)
    again = [{"content": old[0]["content"], "role": "system", "name": None}, *old[1:]]
    assert codes(body(old), body([*again, call(1), result(1)])) == []


def test_moved_cache_marks_make_no_difference() -> None:
    def marked(steps: int) -> Json:
        said: list[Json] = [{"role": "user", "content": TASK}]
        for number in range(steps):
            used = {"type": "tool_use", "id": f"toolu_{number}", "name": "read", "input": {"path": "a"}}
            done = {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": "text"}
            said += [{"role": "assistant", "content": [used]}, {"role": "user", "content": [done]}]
        last = said[-1]["content"]
        blocks = [{"type": "text", "text": last}] if isinstance(last, str) else last
        blocks[-1] = {**blocks[-1], "cache_control": {"type": "ephemeral"}}
        said[-1] = {"role": "user", "content": blocks}
        return {"model": "claude-sonnet-4-5", "system": SYSTEM, "messages": said}

    assert codes(*(marked(steps) for steps in range(4))) == []


def test_a_repeated_request_is_no_break() -> None:
    assert codes(*(body(history(steps)) for steps in (0, 1, 1, 1, 2, 1, 3))) == []


def test_requests_for_a_title_and_a_summary_are_conversations_of_their_own() -> None:
    title = body([{"role": "system", "content": "Write a title."}, history(0)[1]], tools=None)
    summary = body([*history(2), {"role": "user", "content": "Summarise all this."}], tools=None)
    requests = captured(
        [body(history(0)), title, body(history(1)), summary, body(history(2)), body(history(3))]
    )
    assert requests.breaks() == []
    assert [cost.requests for cost in requests.costs()] == [4, 1, 1]


def test_two_agents_with_equal_answers_are_told_apart() -> None:
    bodies = [body(history(steps, task=task)) for steps in range(3) for task in (TASK, "Write the docs.")]
    requests = captured(bodies)
    assert requests.breaks() == []
    assert [cost.requests for cost in requests.costs()] == [3, 3]


def test_conversations_about_different_dates_are_told_apart() -> None:
    bodies = [body(history(0, task=f"What happened on 2026-01-0{day}?")) for day in (1, 2, 3)]
    assert codes(*bodies) == []


def test_a_rewind_and_another_answer_are_branches() -> None:
    asked = [*history(1), {"role": "user", "content": "Stop. Look at the lexer."}]
    answered = [
        *history(1),
        {"role": "assistant", "content": "Something else."},
        {"role": "user", "content": "?"},
    ]
    assert codes(body(history(0)), body(history(1)), body(history(3)), body(asked), body(answered)) == []


def test_a_reminder_that_is_not_sent_again_costs_nothing() -> None:
    bodies = [body([*history(n), {"role": "user", "content": f"{9 - n} steps left"}]) for n in range(3)]
    assert_stable_prefix(bodies)
    with pytest.raises(PrefixMoved):
        assert_stable_prefix(bodies, min_lost_tokens=0)


def test_breaks_within_the_limit_are_allowed() -> None:
    bodies = [body(history(steps), model=f"gpt-4.1{'-mini' * (steps > 1)}") for steps in range(4)]
    assert_stable_prefix(bodies, max_breaks=1)
    with pytest.raises(PrefixMoved) as caught:
        assert_stable_prefix(bodies)
    assert [one.code for one in caught.value.breaks] == ["model_changed"]


def test_the_error_shows_each_cause_once() -> None:
    bodies = [
        body(history(steps, system=f"It is 14:00:0{steps}. {SYSTEM}"), model="unknown/model")
        for steps in range(4)
    ]
    with pytest.raises(PrefixMoved) as caught:
        assert_stable_prefix(bodies)
    lines = re.sub(r"\d[\d,]*(?= tokens| are read)", "N", str(caught.value)).splitlines()
    assert lines[:-1] == [
        "the prompt prefix moved in 3 of 4 requests without a recorded reduction",
        "",
        "request 2 differs from request 1 at messages[0] (system): a date or time changes in the text",
        "    - It is 14:00:00. You are a careful agent. Never delete anything.",
        "    + It is 14:00:01. You are a careful agent. Never delete anything.",
        "    N tokens before it are the same, N are read again",
        "    remedy: put text that changes into the newest message, or leave it out",
        "    again in: 3, 4",
        "",
        "conversation  requests  tokens sent  from cache  moved  read again  extra cost",
    ]
    assert lines[-1].split()[:2] + lines[-1].split()[4::2] == ["1", "4", "3", "unknown"]


def test_a_text_of_any_size_with_control_characters_is_shown_in_one_short_line() -> None:
    old, new = history(1), history(2)
    old[3], new[3] = result(0, "\x1b[2J" + "x\n" * 50_000), result(0, "\u202e" + "y\n" * 50_000)
    (found,) = breaks(body(old), body(new))
    assert len(str(found).splitlines()) == 5
    assert len(str(found)) < 700
    assert found.before.isprintable()
    assert found.after.isprintable()


def test_a_history_at_the_provider_is_not_compared() -> None:
    first = {"model": "gpt-5.1", "input": TASK}
    later = {
        "model": "gpt-5.1",
        "input": [{"role": "user", "content": "Go on."}],
        "previous_response_id": "resp_1",
    }
    assert codes(first, later, later | {"previous_response_id": "resp_2"}) == []


MODELS = {
    "openai_responses": "gpt-5.1",
    "anthropic": "claude-sonnet-4-5",
    "gemini": "gemini-2.5-pro",
    "bedrock": "anthropic.claude-v1:0",
}


@pytest.mark.parametrize("dialect", MODELS)
def test_every_dialect_is_read(dialect: str) -> None:
    def made(steps: int) -> tuple[str, Json]:
        system, texts = f"{SYSTEM} It is 14:0{steps}.", [TASK, *("More." for _ in range(steps))]
        match dialect:
            case "openai_responses":
                items = [
                    {"role": "user", "content": [{"type": "input_text", "text": text}]} for text in texts
                ]
                return "/v1/responses", {"model": "gpt-5.1", "instructions": system, "input": items}
            case "anthropic":
                said = [{"role": "user", "content": text} for text in texts]
                return "/v1/messages", {"model": "claude-sonnet-4-5", "system": system, "messages": said}
            case "gemini":
                said = [{"role": "user", "parts": [{"text": text}]} for text in texts]
                path = "/v1beta/models/gemini-2.5-pro:streamGenerateContent?alt=sse"
                return path, {"systemInstruction": {"parts": [{"text": system}]}, "contents": said}
            case _:
                said = [{"role": "user", "content": [{"text": text}]} for text in texts]
                return "/model/anthropic.claude-v1%3A0/converse-stream", {
                    "system": [{"text": system}],
                    "messages": said,
                }

    requests = CapturedRequests()
    for steps in range(3):
        path, sent = made(steps)
        assert requests.record(sent, url=f"https://example.com{path}")
    assert {request.dialect for request in requests} == {dialect}
    assert {request.model for request in requests} == {MODELS[dialect]}
    assert [(one.place, one.code) for one in requests.breaks()] == [("system", "changing_text")] * 2


@pytest.mark.parametrize(
    ("url", "sent"),
    [
        ("https://example.com/v1/embeddings", b'{"model":"e","input":["a"]}'),
        ("https://example.com/v1/messages/count_tokens", b'{"model":"e","messages":[]}'),
        ("https://example.com/v1/chat/completions", b"not json"),
        ("https://example.com/v1/chat/completions", b'{"messages": 3}'),
        ("", b"[]"),
    ],
)
def test_other_requests_are_left_out(url: str, sent: bytes) -> None:
    assert not CapturedRequests().record(sent, url=url)


def test_a_body_may_hold_objects_of_a_client_library() -> None:
    message = ChatCompletionMessage(role="assistant", content="Done.")
    assert codes(body(history(0)), body([*history(0), message, {"role": "user", "content": "Go on."}])) == []


def test_a_check_without_requests_fails() -> None:
    with pytest.raises(NothingCaptured, match="0 LLM requests were captured"):
        CapturedRequests().check()
    CapturedRequests().check(min_requests=0)


def test_an_illegal_request_is_found() -> None:
    requests = captured([body(history(2)), body([*history(1), call(1)])])
    with pytest.raises(IllegalRequest, match=r"request 2: \[end\] \['call_1'\] have no result"):
        requests.check_legal()


def test_the_table_adds_up() -> None:
    bodies = [body(history(steps, task=f"{TASK} " * 300)) for steps in range(3)]
    requests = captured(bodies)
    first, second, third = (captured([one]).costs()[0].tokens for one in bodies)
    (cost,) = requests.costs()
    assert (cost.requests, cost.tokens, cost.cached_tokens) == (3, first + second + third, first + second)
    assert requests.table().splitlines()[0].split("  ")[0] == "conversation"
