"""`Context`: recognised histories, rewinds, replaced system text, pins, handles, threads."""

from __future__ import annotations

import asyncio
import copy
import json
import warnings
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from openai.types.chat import ChatCompletionMessage

import foveal
from foveal import BadSetting, ContextOverflow, MalformedMessage, UnknownHandle
from foveal.core.log import Clipped, Dropped, Instructed, Masked, Rewound, SnapshotTaken, Used, UserSaid, kind
from support.histories import (
    PIXEL,
    Json,
    call_message,
    context,
    encode_and_decode,
    events_of,
    masks,
    render_log,
    result,
    result_message,
    session,
    strings,
    user,
)
from support.legality import check_anthropic, check_chat

SYSTEM = {"role": "system", "content": "You are careful."}


# ── The loop ──────────────────────────────────────────────────────────────────────────────────────────


def test_fit_and_observe_are_enough() -> None:
    ctx = foveal.Context(model="gpt-4.1")
    assert ctx.fit([user("hello")]) == [user("hello")]
    ctx.observe({"prompt_tokens": 9, "completion_tokens": 3})
    assert "gpt-4.1" in str(ctx.report())


def test_a_history_that_fits_is_returned_unchanged() -> None:
    history = session(5)
    assert context(50_000).fit(history) == history


def test_the_input_is_never_changed() -> None:
    history = session(60)
    before = copy.deepcopy(history)
    context(4_000).fit(history)
    assert history == before


def test_changing_the_result_has_no_effect_on_later_requests() -> None:
    ctx = context(4_000)
    history = session(60)
    first = ctx.fit(history)
    spoiled = copy.deepcopy(first)
    for message in first:
        for call in message.get("tool_calls") or ():
            call["function"]["arguments"] = "spoiled"
        message["content"] = "spoiled"
        message["more"] = ["spoiled"]
    first.clear()
    assert ctx.fit(history) == spoiled


def test_a_tuple_and_single_appends_are_the_same_history() -> None:
    history = session(5)
    ctx = context(50_000)
    ctx.fit(tuple(history))
    for message in session(6)[-2:]:
        ctx.append(message)
    assert ctx.fit() == session(6)
    assert ctx.fit(session(6)) == session(6)
    assert events_of(ctx.log, Rewound) == []


def test_an_empty_history_is_an_empty_request() -> None:
    assert context().fit([]) == []


def test_a_context_without_messages_has_nothing_to_fit() -> None:
    ctx = context()
    before = ctx.log
    for fit in (ctx.fit, ctx.fit_with_origins, lambda: asyncio.run(ctx.afit())):
        with pytest.raises(
            BadSetting, match=r"messages = None .* has recorded none: pass it, or call `append`"
        ):
            fit()
    with pytest.raises(BadSetting, match="has recorded none"):
        ctx.fit(None, system="You are careful.")
    assert ctx.log == before
    ctx.append({"role": "user", "content": "Hello."})
    assert ctx.fit(None) == [{"role": "user", "content": "Hello."}]
    ctx.new_conversation()
    with pytest.raises(BadSetting, match="has recorded none"):
        ctx.fit()


def test_a_history_that_is_resent_whole_is_recognised_by_content() -> None:
    ctx = context(50_000)
    ctx.fit(session(5))
    known = len(ctx.log)
    ctx.fit(copy.deepcopy(session(5)))
    assert len(ctx.log) == known


def test_a_library_object_equals_the_dict_that_it_sends() -> None:
    message = ChatCompletionMessage(role="assistant", content="hello")
    ctx = context()
    ctx.fit([user("hi"), message, user("go on")])
    known = len(ctx.log)
    request = ctx.fit([user("hi"), {"role": "assistant", "content": "hello"}, user("go on")])
    assert request == [user("hi"), {"role": "assistant", "content": "hello"}, user("go on")]
    assert len(ctx.log) == known


# ── Edited histories ─────────────────────────────────────────────────────────────────────────────────────


def test_an_edited_message_causes_a_rewind_to_the_one_before() -> None:
    ctx = context(50_000)
    history = session(5)
    ctx.fit(history)
    edited = [*history[:6], user("No, look elsewhere.")]
    assert ctx.fit(edited) == edited
    (rewind,) = events_of(ctx.log, Rewound)
    assert ctx.why(rewind.handle).level == "-"
    gone = ctx.log[len(history)].handle
    assert (ctx.why(gone).level, ctx.why(gone).rule) == ("-", "rewound or reverted")
    assert ctx.original(gone) == result(4)


def test_a_message_changed_in_place_is_recognised_as_edited() -> None:
    ctx = context(50_000)
    history = session(5)
    ctx.fit(history)
    history[5]["content"] = "something else"
    request = ctx.fit(history)
    assert request[5]["content"] == "something else"
    assert len(events_of(ctx.log, Rewound)) == 1
    assert result(1) in [ctx.original(event.handle) for event in ctx.log]


def test_a_shorter_history_causes_a_rewind() -> None:
    ctx = context(50_000)
    ctx.fit(session(5))
    assert ctx.fit(session(3)) == session(3)
    assert ctx.fit(session(5)) == session(5)
    assert len(events_of(ctx.log, Rewound)) == 1


def test_a_rewind_keeps_the_masks_of_what_remains() -> None:
    ctx = context(100_000, {"preset": "rolling", "max_history_tokens": 0})
    history = session(20)
    before = ctx.fit(history)
    after = ctx.fit([*history[:30], user("other")])
    assert after[:30] == before[:30]
    assert len(masks(ctx.log)) == 13


def test_a_last_message_that_always_changes_keeps_earlier_masks() -> None:
    ctx = context(100_000, {"preset": "rolling", "max_history_tokens": 0})
    history = session(20)
    requests = [ctx.fit([*history, user(f"It is {minute} past nine.")]) for minute in range(5)]
    assert all(request[:-1] == requests[0][:-1] for request in requests)
    assert requests[-1][-1] == user("It is 4 past nine.")
    assert len(events_of(ctx.log, Masked)) == 1
    assert len(events_of(ctx.log, Rewound)) == 4


def test_an_edited_system_message_is_replaced_and_masks_stay() -> None:
    ctx = context(100_000, {"preset": "rolling", "max_history_tokens": 0})
    history = session(20)
    before = ctx.fit(history)
    edited = [{"role": "system", "content": "You are very careful."}, *history[1:]]
    after = ctx.fit(edited)
    assert after == [edited[0], *before[1:]]
    assert events_of(ctx.log, Rewound) == []
    assert ctx.fit([{"role": "system", "content": "Again."}, *history[1:]])[0]["content"] == "Again."
    assert ctx.fit(history) == before
    assert [e.fact.replaces is None for e in events_of(ctx.log, Instructed)] == [True, False, False, False]  # type: ignore[union-attr]
    assert render_log(encode_and_decode(ctx.log), "openai_chat") == before


def test_a_replaced_system_message_is_reported_as_cause_of_a_break() -> None:
    ctx = context(50_000)
    ctx.fit(session(5))
    ctx.fit([{"role": "system", "content": "new"}, *session(5)[1:]])
    (broken,) = ctx.report().breaks
    assert (broken.call, broken.at, broken.why) == (2, "e1", "instructed")


def test_a_late_result_is_reported_as_cause_of_a_break() -> None:
    ctx = context(50_000)
    history = [user("go"), call_message("a"), user("are you there?")]
    ctx.fit(history)
    ctx.fit([*history, result_message("a", "late")])
    (broken,) = ctx.report().breaks
    late = ctx.log[-1]
    assert (broken.at, broken.cause, broken.why) == ("e2", late.handle, "tool_returned")


def test_a_conversation_of_text_lists_becomes_anthropic_when_certain() -> None:
    history: list[Json] = [user([{"type": "text", "text": "hi"}])]
    ctx = context()
    ctx.fit(history)
    use = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    history += [{"role": "assistant", "content": [use]}]
    history += [user([{"type": "tool_result", "tool_use_id": "t", "content": "done"}])]
    assert check_anthropic(ctx.fit(history)) == []
    assert [kind(event.fact) for event in ctx.log] == ["opened", "user_said", "model_said", "tool_returned"]


def test_a_conversation_of_plain_texts_takes_the_dialect_of_its_first_call() -> None:
    ctx = context()
    ctx.fit([user("hi")])
    item = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "a", "output": "ok"}
    assert ctx.fit([user("hi"), item, output]) == [user("hi"), item, output]


# ── Malformed messages ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("broken", "field"),
    [
        ({"role": "wizard", "content": "x"}, "role"),
        ({"content": "x"}, "role"),
        ({"role": "tool", "content": "x"}, "tool_call_id"),
        ({"role": "user", "content": 7}, "content"),
        ({"role": "user", "content": [{"text": "x"}]}, "content[0].type"),
        ({"role": "assistant", "tool_calls": [{"id": "a", "type": "function"}]}, "tool_calls[0].function"),
    ],
)
def test_a_malformed_message_names_index_and_field_and_records_nothing(broken: Json, field: str) -> None:
    ctx = context(50_000)
    history = session(3)
    ctx.fit(history)
    before = ctx.log
    with pytest.raises(MalformedMessage) as problem:
        ctx.fit([*history, user("fine"), broken])
    assert problem.value.index == len(history) + 1
    assert problem.value.field == field
    assert f"messages[{len(history) + 1}]" in str(problem.value)
    assert ctx.log == before
    assert ctx.fit([*history, user("fine")]) == [*history, user("fine")]


def test_a_malformed_message_in_an_edited_history_records_no_rewind() -> None:
    ctx = context(50_000)
    history = session(3)
    request = ctx.fit(history)
    before = ctx.log
    with pytest.raises(MalformedMessage):
        ctx.fit([*history[:3], user("edited"), {"role": "wizard"}])
    assert ctx.log == before
    assert ctx.fit(history) == request


def test_a_malformed_message_behind_an_edited_system_message_replaces_nothing() -> None:
    ctx = context(50_000)
    history = session(3)
    ctx.fit(history)
    before = ctx.log
    with pytest.raises(MalformedMessage):
        ctx.fit([{"role": "system", "content": "new"}, *history[1:], {"role": "wizard"}])
    assert ctx.log == before


def test_a_malformed_message_records_neither_tools_nor_system_text() -> None:
    ctx = context()
    before = ctx.log
    with pytest.raises(MalformedMessage):
        ctx.fit([{"role": "wizard"}], system="s", tools=[{"type": "function", "function": {"name": "f"}}])
    assert ctx.log == before


def test_a_malformed_first_message_does_not_decide_the_dialect() -> None:
    ctx = context()
    with pytest.raises(MalformedMessage):
        ctx.fit([{"role": "wizard", "content": [{"type": "text", "text": "x"}], "more": 1}])
    block = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    assert check_anthropic(ctx.fit([user("hi"), {"role": "assistant", "content": [block]}])) == []


def test_malformed_system_text_is_reported_as_system() -> None:
    with pytest.raises(foveal.FovealError, match="system"):
        context().fit([user("hi")], system=[{"title": "no type"}])


def test_an_append_of_several_messages_is_all_or_nothing() -> None:
    ctx = context()
    before = ctx.log
    with pytest.raises(MalformedMessage):
        ctx.append(user("a"), user("b"), {"role": "wizard"})
    assert ctx.log == before


# ── Reading ─────────────────────────────────────────────────────────────────────────────────────────


def test_why_names_the_rule_for_every_level() -> None:
    small = {
        "preset": "economy",
        "clip": {"strategy": "head", "tokens": 400},
        "keep_last": 2,
        "compact": False,
    }
    ctx = context(6_000, small)
    history = session(0)
    for number in range(60):
        history += [call_message(f"c{number}"), result_message(f"c{number}", result(number, 800))]
        ctx.fit(history)
    lines = {line.level: line for line in ctx.report().events}
    assert set(lines) == {"-", "full", "clipped", "masked", "dropped"}
    assert ctx.why("e1").level == "full"
    for level, rule in (("clipped", "economy: clip"), ("masked", "economy"), ("dropped", "economy")):
        assert lines[level].rule == rule
        assert lines[level].by.startswith("e")
        assert ctx.why(lines[level].handle) == lines[level]


def test_why_names_the_event_that_dropped_a_result() -> None:
    ctx = context(3_000, "recent")
    ctx.fit(session(30))
    (drop,) = events_of(ctx.log, Dropped)
    gone = [line for line in ctx.report().events if line.level == "dropped"]
    assert gone
    assert {(line.rule, line.by) for line in gone} == {("recent", drop.handle)}


def test_why_of_a_replaced_system_text() -> None:
    ctx = context(dialect="anthropic")
    ctx.fit([user("hi")], system="one")
    ctx.fit([user("hi")], system="two")
    old, new = (event.handle for event in events_of(ctx.log, Instructed))
    assert ctx.why(old).rule == "replaced by a newer one"
    assert ctx.why(new).level == "full"


@pytest.mark.parametrize("name", ["e999", "nonsense", "", "e-1", -1, "e1e1", 10**14])
def test_an_unknown_handle_is_an_error_that_names_the_known_ones(name: Any) -> None:
    ctx = context()
    ctx.fit([user("hi")])
    with pytest.raises(UnknownHandle, match="e0 to e1"):
        ctx.original(name)
    with pytest.raises(UnknownHandle):
        ctx.why(name)
    with pytest.raises(UnknownHandle):
        ctx.pin(event=name)


@pytest.mark.parametrize("name", ["e2", "#e2", " e2 ", "2", 2])
def test_handles_are_accepted_in_several_spellings(name: Any) -> None:
    ctx = context()
    ctx.fit([user("one"), user("two")])
    assert ctx.original(name) == "two"


ODD = "line one\r\nline two\n\n  indented\u2028separated\x0cpage\x1bend\n"


@pytest.mark.parametrize("dialect", ["openai_chat", "openai_responses", "anthropic", "bedrock"])
def test_the_original_of_a_result_of_several_texts_is_exact(dialect: Any) -> None:
    history: dict[str, list[Json]] = {
        "openai_chat": [call_message("a"), result_message("a", [{"type": "text", "text": ODD}])],
        "openai_responses": [
            {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_text", "text": ODD}]},
        ],
        "anthropic": [
            {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]},
            user([{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": ODD}]}]),
        ],
        "bedrock": [
            {"role": "assistant", "content": [{"toolUse": {"toolUseId": "a", "name": "f", "input": {}}}]},
            user([{"toolResult": {"toolUseId": "a", "content": [{"text": ODD}]}}]),
        ],
    }
    ctx = context()
    ctx.fit([user("go"), *history[dialect]])
    assert ctx.original("e3") == ODD


def test_the_original_of_a_call_holds_its_arguments_exactly() -> None:
    pretty = json.dumps({"path": "a.py", "content": "x = 1\n" * 3}, indent=2)
    call = call_message("a")
    call["tool_calls"][0]["function"]["arguments"] = pretty
    ctx = context()
    ctx.fit([user("go"), call])
    assert pretty in ctx.original("e2")


def test_every_handle_in_a_request_leads_to_an_original() -> None:
    ctx = context(9_000, {"preset": "economy", "compact": False})
    history = session(0)
    for number in range(40):
        history += [call_message(f"c{number}"), result_message(f"c{number}", result(number, 300))]
        request = ctx.fit(history)
    shown = "\n".join(strings(request))
    reduced = [line.handle for line in ctx.report().events if line.level in ("masked", "clipped")]
    assert reduced
    for name in reduced:
        assert f": {name}]" in shown
        assert ctx.original(name) in [result(number, 300) for number in range(40)]


# ── Changing what is shown
# ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("policy", ["economy", "rolling", "recent"])
def test_a_pinned_rule_is_in_every_request(policy: str) -> None:
    ctx = context(3_000, policy)
    ctx.pin("never push to main")
    history = session(0)
    for number in range(40):
        history += [call_message(f"c{number}"), result_message(f"c{number}", result(number))]
        request = ctx.fit(history)
        assert sum("never push to main" in text for text in strings(request)) == 1


@pytest.mark.parametrize("policy", ["economy", "rolling", "recent"])
def test_a_pinned_step_stays_as_it_is(policy: str) -> None:
    ctx = context(4_000, policy)
    history = session(3)
    ctx.fit(history)
    ctx.pin(event=ctx.log[-1].handle)
    for number in range(3, 40):
        history += [call_message(f"c{number}"), result_message(f"c{number}", result(number))]
        request = ctx.fit(history)
        assert result_message("c2", result(2)) in request


@pytest.mark.parametrize("policy", ["economy", "rolling", "recent"])
def test_a_pinned_result_is_not_squeezed_either(policy: str) -> None:
    ctx = context(4_000, policy)
    history = [user("go"), call_message("a"), result_message("a", result(0, 600))]
    ctx.fit(history)
    ctx.pin(event="e3")
    try:
        request = ctx.fit([*history, user("word " * 2_200)])
    except ContextOverflow:
        return
    assert result_message("a", result(0, 600)) in request


def test_a_pinned_image_is_not_removed() -> None:
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}
    history = [user([{"type": "text", "text": f"{n}"}, picture]) for n in range(4)]
    ctx = context(50_000, max_images=2)
    ctx.fit(history[:1])
    ctx.pin(event="e1")
    assert ctx.fit(history)[0] == history[0]


def texts(request: list[Any]) -> str:
    return "".join(str(message.get("content")) for message in request)


@pytest.mark.parametrize("policy", ["recent", "rolling", "economy"])
def test_a_pin_brings_a_hidden_message_back_for_good(policy: str) -> None:
    ctx, history = context(3_000, policy), session(30)
    before = ctx.fit(history)
    lines = [line for line in ctx.report().events if line.kind == "tool_returned" and line.level != "full"]
    name, text = lines[2].handle, ctx.original(lines[2].handle)
    assert text not in texts(before)
    pin = ctx.pin(event=name)
    history += [call_message("late", path="x"), result_message("late", result(99)), user("And now?")]
    after = ctx.fit(history)
    assert check_chat(after) == []
    assert text in texts(after)
    assert (ctx.why(name).level, foveal.Context.load(ctx.save()).fit(history)) == ("full", after)
    assert ctx.undo(pin) == pin
    assert text not in texts(ctx.fit(history))


def test_a_pin_of_an_expanded_message_outlives_the_turn() -> None:
    ctx, history = context(3_000, "recent"), session(30)
    ctx.fit(history)
    gone = next(
        line.handle for line in ctx.report().events if line.kind == "tool_returned" and not line.tokens
    )
    ctx.expand(gone)
    ctx.pin(event=gone)
    assert ctx.original(gone) in texts(ctx.fit([*history, user("And now?")]))


def test_what_is_no_message_and_what_does_not_fit_cannot_be_pinned() -> None:
    ctx = context(3_000, "recent")
    ctx.fit(session(30))
    with pytest.raises(UnknownHandle, match="cannot be pinned"):
        ctx.pin(event="e0")
    hidden = [line.handle for line in ctx.report().events if line.level == "dropped"]
    with pytest.raises(ContextOverflow, match="cannot be shown whole"):
        [ctx.pin(event=name) for name in hidden]


def test_an_empty_pin_raises_an_error() -> None:
    ctx = context()
    with pytest.raises(foveal.FovealError):
        ctx.pin()
    assert len(ctx.log) == 1


@pytest.mark.parametrize("policy", ["economy", "rolling", "recent"])
def test_open_calls_stay_verbatim_whatever_is_pinned_after_them(policy: str) -> None:
    ctx = context(3_000, policy)
    call = call_message("open", command="word " * 300)
    ctx.fit([*session(20), call])
    ctx.pin("a rule that comes later")
    request = ctx.fit([*session(20), call])
    assert call["tool_calls"] in [message.get("tool_calls") for message in request]
    request = ctx.fit([*session(20), call, user("word " * 900)])
    assert call["tool_calls"] in [message.get("tool_calls") for message in request]


@pytest.mark.parametrize("policy", ["economy", "rolling", "recent"])
def test_open_calls_stay_however_much_follows(policy: str) -> None:
    ctx = context(3_000, policy)
    call = call_message("open", command="word " * 300)
    history = [*session(2), call]
    for number in range(12):
        history.append(user(f"{number} " + "word " * 200))
        request = ctx.fit(history)
        assert call["tool_calls"] in [message.get("tool_calls") for message in request]


def test_a_snapshot_is_recorded_never_sent_and_survives() -> None:
    ctx = context(3_000, "recent")
    handle = ctx.snapshot({"commit": "abc123"}, label="git")
    request = ctx.fit(session(40))
    assert "abc123" not in json.dumps(request)
    (event,) = events_of(encode_and_decode(ctx.log), SnapshotTaken)
    assert event.handle == handle
    assert ctx.why(handle).level == "-"


def test_a_snapshot_that_is_not_json_raises_bad_setting() -> None:
    with pytest.raises(foveal.FovealError):
        context().snapshot(object())


# ── Images ────────────────────────────────────────────────────────────────────


def pictures(count: int, data: str = PIXEL) -> list[Json]:
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    return [user([{"type": "text", "text": f"picture {n}"}, part]) for n in range(count)]


def shown_pictures(request: list[Json]) -> int:
    return sum(
        part["type"] == "image_url"
        for m in request
        if isinstance(m["content"], list)
        for part in m["content"]
    )


def test_only_the_newest_images_within_the_limit_are_sent() -> None:
    ctx = context(50_000, max_images=3)
    request = ctx.fit(pictures(10))
    assert shown_pictures(request) == 3
    assert request[-3:] == pictures(10)[-3:]
    assert check_chat(request) == []
    assert {event.fact.rule for event in events_of(ctx.log, Masked)} == {"media budget"}  # type: ignore[union-attr]


def test_a_request_small_in_tokens_can_be_too_large_in_bytes() -> None:
    big = PIXEL + "A" * 400_000
    ctx = context(50_000, max_media_bytes=1_000_000)
    request = ctx.fit(pictures(10, big))
    assert shown_pictures(request) == 2
    assert len(json.dumps(request)) < 1_100_000


def test_too_many_images_in_the_latest_message_raise_an_error() -> None:
    part = pictures(1)[0]["content"][1]
    ctx = context(50_000, max_images=3)
    with pytest.raises(ContextOverflow, match="4 images"):
        ctx.fit([user([part] * 4)])


def test_the_image_limit_holds_under_every_reducing_policy() -> None:
    for policy in ("economy", "rolling", "recent"):
        assert shown_pictures(context(50_000, policy, max_images=1).fit(pictures(4))) == 1
    with pytest.raises(ContextOverflow):
        context(50_000, "off", max_images=1).fit(pictures(4))


# ── Tools and system text ────────────────────────────────────────────────────────────────────────────────


def test_tools_that_are_no_longer_offered_are_not_counted() -> None:
    ctx = context()
    ctx.fit([user("hi")], tools=[{"type": "function", "function": {"name": "f", "description": "w " * 90}}])
    ctx.fit([user("hi")])
    assert ctx.report().totals["tools"] <= 2
    assert encode_and_decode(ctx.log) == list(ctx.log)


def test_system_text_beside_the_messages_is_counted_and_not_returned() -> None:
    ctx = context(dialect="anthropic")
    request = ctx.fit([user("hi")], system=[{"type": "text", "text": "be brief " * 20}])
    assert request == [user("hi")]
    assert ctx.report().totals["system"] > 30
    assert encode_and_decode(ctx.log) == list(ctx.log)


def test_the_same_system_text_and_tools_are_recorded_once() -> None:
    ctx = context(dialect="anthropic")
    tools = [{"name": "f", "input_schema": {"type": "object"}}]
    for _ in range(3):
        ctx.fit([user("hi")], system="be brief", tools=tools)
    assert [kind(event.fact) for event in ctx.log] == ["opened", "instructed", "equipped", "user_said"]


# ── Results larger than the window ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize("policy", ["economy", "rolling", "recent"])
def test_a_single_result_larger_than_the_window_is_clipped_until_it_fits(policy: str) -> None:
    too_large(policy, listed=False)


def test_a_list_of_texts_larger_than_the_window_is_clipped_when_it_arrives() -> None:
    too_large("economy", listed=True)


@pytest.mark.parametrize("policy", ["rolling", "recent"])
def test_a_list_of_texts_larger_than_the_window_is_squeezed_until_it_fits(policy: str) -> None:
    too_large(policy, listed=True)


def too_large(policy: str, *, listed: bool) -> None:
    ctx = context(4_000, policy)
    text = result(0, 60_000)
    request = ctx.fit(
        [
            user("go"),
            call_message("a"),
            result_message("a", [{"type": "text", "text": text}] if listed else text),
        ]
    )
    assert check_chat(request) == []
    assert events_of(ctx.log, Clipped) != []
    assert "whole text: e3]" in "\n".join(strings(request))


# ── Threads ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.long
def test_many_threads_can_use_one_context() -> None:
    ctx = context(6_000)
    start = Barrier(8)

    def work(number: int) -> int:
        start.wait()
        for turn in range(12):
            ctx.append(user(f"{number}/{turn} " + "word " * 40))
            request = ctx.fit()
            assert check_chat(request) == []
            ctx.observe({"prompt_tokens": 500 + turn})
            report = ctx.report()
            assert sum(report.totals.values()) == report.window
            ctx.pin(f"rule {number}") if turn == 0 else ctx.snapshot(turn)
            ctx.why("e1")
        return number

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(work, range(8))) == list(range(8))
    assert [event.seq for event in ctx.log] == list(range(len(ctx.log)))
    said = [str(event.fact.content).split()[0] for event in events_of(ctx.log, UserSaid)]  # type: ignore[union-attr]
    assert sorted(said) == sorted(f"{number}/{turn}" for number in range(8) for turn in range(12))
    for number in range(8):
        mine = [name for name in said if name.startswith(f"{number}/")]
        assert mine == [f"{number}/{turn}" for turn in range(12)]
    assert render_log(encode_and_decode(ctx.log), "openai_chat") == ctx.fit()


# ── Regressions ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("policy", ["economy", "rolling", "recent"])
def test_an_overflow_discards_the_reductions_made_for_it(policy: str) -> None:
    history = [user("My name is Ann. Never touch prod.")]
    for number in range(10):
        history += [
            {"role": "assistant", "content": f"answer {number} " + "word " * 50},
            user(f"and {number}?"),
        ]
    ctx, other = context(8_000, policy), context(8_000, policy)
    ctx.fit(history)
    other.fit(history)
    history.append({"role": "assistant", "content": "ok"})
    with pytest.raises(ContextOverflow):
        ctx.fit([*history, user("pasted " * 9_000)])
    short = [*history, user("short version")]
    assert ctx.fit(short) == other.fit(short) == short


def test_a_rewind_far_back_shows_dropped_steps_again() -> None:
    ctx = context(4_000, "recent")
    history = session(40)
    ctx.fit(history)
    assert events_of(ctx.log, Dropped)
    edited = [*history[:6], user("start over from here")]
    assert ctx.fit(edited) == edited


def test_moved_cache_marks_are_neither_an_edit_nor_a_break() -> None:
    ctx = foveal.Context("claude-sonnet-4-5", window=60_000)
    history: list[Json] = []
    mark = {"cache_control": {"type": "ephemeral"}}
    for number in range(12):
        text = {"type": "text", "text": f"question {number}"}
        request = ctx.fit([*history, user([{**text, **mark}])], system="Be brief.")
        assert request[-1]["content"][-1] == {**text, **mark}
        assert sum("cache_control" in str(message) for message in request) == 1
        assert check_anthropic(request) == []
        history += [user([text]), {"role": "assistant", "content": f"answer {number}"}]
    assert events_of(ctx.log, Rewound) == []
    assert ctx.report().breaks == ()
    assert [kind(event.fact) for event in ctx.log].count("user_said") == 12


def test_an_empty_answer_is_never_sent_as_null() -> None:
    empty = {"role": "assistant", "content": None, "refusal": None, "tool_calls": None, "audio": None}
    assert check_chat(context().fit([user("hi"), empty, user("and?")])) == []


def test_a_usage_report_larger_than_the_window_is_ignored() -> None:
    ctx = foveal.Context("gpt-4.1", window=128_000)
    ctx.fit([user("hi")])
    ctx.observe({"prompt_tokens": 300_000})
    assert len(ctx.fit([user("hi"), {"role": "assistant", "content": "a"}, user("b")])) == 3


def test_a_malformed_message_does_not_fix_the_dialect() -> None:
    ctx = context()
    with pytest.raises(MalformedMessage):
        ctx.fit([user([{"type": "tool_result"}])])
    history = [user("q"), call_message("a"), result_message("a", "ok")]
    assert ctx.fit(history) == history


def test_system_text_does_not_suggest_anthropic_for_other_models() -> None:
    assert foveal.Context("gpt-5").fit([user("a"), user("b")], system="x") == [user("a"), user("b")]


def test_changed_tools_break_the_prefix_before_all_messages() -> None:
    ctx = context(50_000)
    for name in ("a", "a", "b"):
        ctx.fit([user("hi")], tools=[{"type": "function", "function": {"name": name}}])
    (broken,) = ctx.report().breaks
    assert (broken.call, broken.at, broken.why) == (2, "", "equipped"), "a repeated request is no call"


def test_nothing_is_saved_where_nothing_was_cut() -> None:
    ctx = foveal.Context("gpt-4.1", window=128_000)
    history = [user("hi " * 500)]
    for _ in range(5):
        ctx.fit(history)
        ctx.observe({"prompt_tokens": ctx.report().used, "completion_tokens": 10})
        history += [{"role": "assistant", "content": "yes"}, user("more " * 500)]
    assert ctx.report().saved == 0


def test_the_model_can_be_changed_for_a_smaller_one() -> None:
    ctx = foveal.Context("gpt-4.1", window=100_000)
    history = session(60)
    assert ctx.fit(history) == history
    ctx.use("gpt-4o", window=8_000)
    assert len(str(ctx.fit(history))) < len(str(history))
    assert ctx.report().model == "gpt-4o"
    assert ctx.report().used <= ctx.report().limit < 8_000


@pytest.mark.parametrize(
    "wrong", [{"messages": "hello"}, {"messages": {"a": 1}}, {"messages": [], "tools": "abc"}]
)
def test_messages_and_tools_must_be_lists(wrong: dict[str, Any]) -> None:
    with pytest.raises(foveal.BadSetting, match="a list"):
        context().fit(**wrong)


def test_messages_can_be_a_generator_and_tools_can_be_none() -> None:
    assert context().fit((user(word) for word in ("a", "b")), tools=None) == [user("a"), user("b")]  # type: ignore[arg-type]


def test_model_none_is_a_bad_setting() -> None:
    with pytest.raises(foveal.BadSetting, match="model"):
        foveal.Context(None)  # type: ignore[arg-type]


def test_usage_counts_for_the_request_that_the_same_thread_or_task_made() -> None:
    """A provider that counts as Foveal does is reported by two conversations in one context, in the wrong order."""

    def said(words: int) -> list[Any]:
        return [{"role": "user", "content": f"{words} words: " + "what is it? " * words}]

    async def talk(ctx: foveal.Context, words: int, wait: asyncio.Event, done: asyncio.Event) -> None:
        alone = foveal.Context("gpt-4.1")
        alone.fit(said(words))
        await ctx.afit(said(words))
        done.set()
        await wait.wait()
        ctx.observe({"prompt_tokens": alone.report().used, "completion_tokens": 1})

    async def both(ctx: foveal.Context) -> None:
        fitted = [asyncio.Event(), asyncio.Event()]
        await asyncio.gather(talk(ctx, 10, fitted[1], fitted[0]), talk(ctx, 4_000, fitted[0], fitted[1]))

    ctx = foveal.Context("gpt-4.1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        asyncio.run(both(ctx))
    used = [event.fact for event in ctx.log if isinstance(event.fact, Used)]
    assert [fact.prompt for fact in used] == [fact.predicted for fact in used]
    assert len({fact.prompt for fact in used}) == 2
