"""Normalisation of calls and results, through the whole engine: acceptance cases 21 to 29."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from foveal.core.log import Event, ModelSaid, ToolReturned, calls_of, encode
from foveal.core.tokens import MessageTokens
from foveal.core.view.fold import fold
from foveal.core.view.steps import NO_RESULT
from support.histories import (
    CHECKS,
    ESTIMATE,
    PIXEL,
    Json,
    call_message,
    context,
    encode_and_decode,
    render_log,
    result,
    result_message,
    session,
    strings,
    user,
)
from support.legality import check_anthropic, check_chat, check_responses


def parallel_calls(*ids: str) -> Json:
    """Return an assistant message that makes several calls at once."""
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [call_message(name)["tool_calls"][0] for name in ids],
    }


def test_a_missing_result_is_inserted_directly_after_its_call() -> None:
    ctx = context()
    request = ctx.fit([user("go"), parallel_calls("a", "b"), result_message("b", "B"), user("stop")])
    assert [(m["role"], m.get("tool_call_id"), m["content"]) for m in request[2:4]] == [
        ("tool", "a", NO_RESULT),
        ("tool", "b", "B"),
    ]
    assert check_chat(request) == []
    (repair,) = ctx.report().repairs
    assert "has no result" in repair.problem


def test_an_orphan_result_is_kept_out_of_the_request_and_reported() -> None:
    ctx = context()
    request = ctx.fit(
        [user("go"), result_message("unknown", "orphan"), {"role": "assistant", "content": "hm"}]
    )
    assert [message["role"] for message in request] == ["user", "assistant"]
    (repair,) = ctx.report().repairs
    assert (repair.problem, repair.done) == ("a result that no call waits for", "kept out of the request")
    assert ctx.original(repair.handle) == "orphan"
    assert "repair" in ctx.why(repair.handle).rule


def test_missing_and_orphaned_results_together_are_both_repaired() -> None:
    ctx = context()
    history = [
        user("go"),
        parallel_calls("a", "b"),
        result_message("x", "X"),
        result_message("b", "B"),
        result_message("y", "Y"),
        user("?"),
    ]
    assert check_chat(ctx.fit(history)) == []
    assert len(ctx.report().repairs) == 3


CALLS: list[tuple[str, list[Json]]] = [
    ("openai_chat", [call_message("a")]),
    (
        "openai_chat",
        [{"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}],
    ),
    (
        "openai_chat",
        [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "a", "type": "custom", "custom": {"name": "f", "input": "text"}}],
            }
        ],
    ),
    ("openai_responses", [{"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}]),
    ("openai_responses", [{"type": "custom_tool_call", "call_id": "a", "name": "f", "input": "text"}]),
    (
        "openai_responses",
        [
            {
                "type": "local_shell_call",
                "id": "l",
                "call_id": "a",
                "status": "completed",
                "action": {"type": "exec", "command": ["ls"], "env": {}},
            }
        ],
    ),
    (
        "openai_responses",
        [
            {
                "type": "computer_call",
                "id": "c",
                "call_id": "a",
                "action": {"type": "screenshot"},
                "status": "completed",
            }
        ],
    ),
    (
        "openai_responses",
        [
            {
                "type": "shell_call",
                "id": "s",
                "call_id": "a",
                "action": {"commands": ["ls"]},
                "status": "completed",
            }
        ],
    ),
    (
        "anthropic",
        [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}],
    ),
]


@pytest.mark.parametrize(
    ("dialect", "call"), CALLS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_kind_of_call_gets_a_result_when_it_has_none(dialect: str, call: list[Json]) -> None:
    ctx = context(dialect=dialect)
    request = ctx.fit([user("go"), *call, user("and?")])
    assert CHECKS[dialect](request) == []
    assert NO_RESULT in "\n".join(strings(request))


def test_synthetic_results_are_the_same_after_a_reload() -> None:
    ctx = context()
    history = [user("go"), parallel_calls("a", "b"), user("stop")]
    first = ctx.fit(history)
    assert ctx.fit(history) == first
    assert render_log(encode_and_decode(ctx.log), "openai_chat") == first


def test_the_order_of_messages_is_never_changed() -> None:
    history = session(6)
    assert context(50_000, "off").fit(history) == history


def test_results_follow_the_order_of_their_calls() -> None:
    request = context().fit(
        [user("go"), parallel_calls("a", "b"), result_message("b", "B"), result_message("a", "A"), user("?")]
    )
    assert [message["content"] for message in request[2:4]] == ["A", "B"]


SERVER: list[tuple[str, list[Json]]] = [
    (
        "anthropic",
        [
            {
                "role": "assistant",
                "content": [
                    {"type": "server_tool_use", "id": "srv", "name": "web_search", "input": {"query": "x"}},
                    {"type": "web_search_tool_result", "tool_use_id": "srv", "content": []},
                    {"type": "text", "text": "found"},
                ],
            }
        ],
    ),
    (
        "openai_responses",
        [
            {"type": "web_search_call", "id": "ws_1", "status": "completed"},
            {"role": "assistant", "content": "found"},
        ],
    ),
]


@pytest.mark.parametrize(("dialect", "said"), SERVER)
def test_results_of_server_side_tools_are_kept_without_a_call(dialect: str, said: list[Json]) -> None:
    ctx = context(dialect=dialect)
    history = [user("look it up"), *said, user("thanks")]
    assert ctx.fit(history) == history
    assert ctx.report().repairs == ()


@pytest.mark.parametrize("policy", ["economy", "recent", "rolling"])
def test_whatever_goes_takes_its_other_half_along(policy: str) -> None:
    ctx = context(3_000, policy)
    history = session(0)
    for number in range(30):
        history += [parallel_calls(f"a{number}", f"b{number}"), result_message(f"a{number}", result(number))]
        history += [result_message(f"b{number}", result(number + 100))]
        assert check_chat(ctx.fit(history)) == []


def test_a_second_result_of_the_same_call_is_left_out() -> None:
    ctx = context()
    request = ctx.fit(
        [
            user("go"),
            call_message("a"),
            result_message("a", "Error: failed"),
            result_message("a", "again"),
            user("?"),
        ]
    )
    assert [m["content"] for m in request if m["role"] == "tool"] == ["Error: failed"]
    assert len(ctx.report().repairs) == 1


def test_a_batch_of_parallel_calls_goes_or_stays_as_one() -> None:
    ctx = context(4_000, "recent")
    history = session(0)
    for number in range(20):
        ids = [f"{letter}{number}" for letter in "abc"]
        history += [parallel_calls(*ids), *(result_message(name, result(number)) for name in ids)]
    request = ctx.fit(history)
    calls = [c["id"] for m in request for c in m.get("tool_calls") or ()]
    assert len(calls) % 3 == 0
    assert [m["tool_call_id"] for m in request if m["role"] == "tool"] == calls


def test_thoughts_stay_with_the_calls_that_they_led_to() -> None:
    thinking = {"type": "thinking", "thinking": "I should look.", "signature": "c2ln"}
    history: list[Json] = [user("go")]
    for number in range(20):
        use = {"type": "tool_use", "id": f"t{number}", "name": "f", "input": {}}
        history.append({"role": "assistant", "content": [thinking, use]})
        history.append(
            user([{"type": "tool_result", "tool_use_id": f"t{number}", "content": result(number)}])
        )
    request = context(3_000, "recent").fit(history)
    assert check_anthropic(request) == []
    for message in request:
        if message["role"] == "assistant":
            assert message["content"][0] == thinking
    assert len(request) < len(history)


def test_reasoning_stays_with_the_items_that_follow_it() -> None:
    history: list[Json] = [user("go")]
    for number in range(20):
        history.append(
            {"type": "reasoning", "id": f"rs_{number}", "summary": [], "encrypted_content": "gAAA"}
        )
        history.append({"type": "function_call", "call_id": f"c{number}", "name": "f", "arguments": "{}"})
        history.append({"type": "function_call_output", "call_id": f"c{number}", "output": result(number)})
    request = context(3_000, "recent").fit(history)
    assert check_responses(request) == []
    assert 0 < sum(item.get("type") == "reasoning" for item in request) < 20


@pytest.mark.parametrize(
    "shape",
    [
        [],
        [user("one")],
        [user("one"), {"role": "assistant", "content": "two"}],
        [
            user("one"),
            call_message("a"),
            result_message("a", "A"),
            user("two"),
            call_message("b"),
            result_message("b", "B"),
        ],
        [user("one"), parallel_calls("a", "b"), result_message("a", "A"), result_message("b", "B")],
        [
            user("one"),
            call_message("a"),
            result_message("a", "A"),
            call_message("b"),
            result_message("b", "B"),
            call_message("c"),
        ],
        [{"role": "assistant", "content": "first"}, {"role": "assistant", "content": "second"}],
        [call_message("a"), call_message("a"), call_message("a"), result_message("a", "late")],
    ],
    ids=["empty", "single", "pair", "interleaved", "parallel", "consecutive", "no user", "repeated"],
)
def test_a_cut_may_only_fall_between_whole_steps(shape: list[Json]) -> None:
    ctx = context()
    assert check_chat(ctx.fit(shape)) == []
    for step in fold(list(ctx.log), MessageTokens(ESTIMATE)).steps:
        said = step.utterance.fact
        calls = calls_of(said.content) if isinstance(said, ModelSaid) else ()
        assert [slot.call for slot in step.slots] == [call for _, call in calls]
        assert sum(isinstance(fact, ToolReturned) for fact in step.facts()) == len(calls)


def test_the_anthropic_dialect_starts_with_the_user_and_alternates() -> None:
    history: list[Json] = [
        {"role": "assistant", "content": [{"type": "text", "text": "Hello."}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Anyone?"}]},
        user("one"),
        user("two"),
        {"role": "system", "content": "be brief"},
        {"role": "assistant", "content": []},
        {"role": "assistant", "content": [{"type": "text", "text": " "}]},
    ]
    assert check_anthropic(context(dialect="anthropic").fit(history)) == []


def test_an_image_becomes_text_where_a_dialect_cannot_show_it() -> None:
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}
    ctx = context()
    ctx.fit([user("go"), call_message("a"), result_message("a", [{"type": "text", "text": "shot"}, picture])])
    request = render_log(ctx.log, "openai_responses")
    assert check_responses(request) == []


def test_normalization_never_changes_recorded_events_nor_the_input() -> None:
    history = [
        user("go"),
        parallel_calls("a", "b"),
        result_message("x", "X"),
        result_message("b", "B"),
        user([]),
    ]
    before = copy.deepcopy(history)
    ctx = context()
    ctx.fit(history)
    lines = [encode(event) for event in ctx.log]
    for dialect in CHECKS:
        render_log(ctx.log, dialect)  # type: ignore[arg-type]
    ctx.fit(history)
    assert [encode(event) for event in ctx.log] == lines
    assert history == before


@pytest.mark.parametrize("dialect", CHECKS)
def test_an_abort_during_parallel_calls_leaves_a_legal_history(dialect: Any) -> None:
    ctx = context(dialect="openai_chat")
    ctx.fit([user("go"), parallel_calls("a", "b", "c"), result_message("b", "B"), user("stop!")])
    assert CHECKS[dialect](render_log(ctx.log, dialect)) == []


def test_a_result_goes_to_the_newest_open_call_with_its_id() -> None:
    log = [
        Event(0, ModelSaid(content=())),
        *(
            Event(seq, fact)
            for chunk in [
                [
                    call_message("a"),
                    call_message("a"),
                    result_message("a", "second"),
                    result_message("a", "first"),
                ]
            ]
            for seq, fact in enumerate(_facts(chunk), 1)
        ),
    ]
    steps = fold(log, MessageTokens(ESTIMATE)).steps
    assert [step.slots[0].as_shown().content for step in steps[1:]] == ["first", "second"]


def _facts(messages: list[Json]) -> list[Any]:
    from foveal.core.wire import wire_for

    return [fact for chunk in wire_for("openai_chat").read(messages) for fact in chunk.facts]


def test_a_request_shares_nothing_with_the_next_one_and_holds_plain_strings() -> None:
    class Name(str):
        __slots__ = ()

    ctx = context()
    first = ctx.fit([user(Name("go")), parallel_calls(Name("a")), result_message("a", "A")])
    assert all(type(text) is str for text in strings(first))
    expected = copy.deepcopy(first)
    first[1]["tool_calls"][0]["function"]["arguments"] = "changed"
    first[2]["content"] = "changed"
    assert ctx.fit() == expected
