"""Anthropic messages: reading, writing and joining."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from anthropic.types import Message
from hypothesis import given
from hypothesis import strategies as st

from foveal.core.log import Call, Instructed, ModelSaid, Opaque, Text, Thinking, ToolReturned, UserSaid, raw
from foveal.core.wire import wire_for
from foveal.errors import MalformedMessage
from support.legality import check_anthropic

ANTHROPIC = wire_for("anthropic")
Messages = list[dict[str, Any]]


def facts(messages: Any) -> list[Any]:
    return [fact for chunk in ANTHROPIC.read(messages) for fact in chunk.facts]


def write_all(facts: Any) -> Messages:
    return ANTHROPIC.join([ANTHROPIC.write(fact) for fact in facts])


def round_trip(messages: Any) -> Messages:
    return write_all(facts(messages))


def text(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **more}


def tool_use(id: str = "t1", **more: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": "bash", "input": {"command": "ls"}, **more}


def result(id: str = "t1", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, **more}


USER = {"role": "user", "content": "hello"}
HI = {"role": "assistant", "content": "hi"}
THINKING = {"type": "thinking", "thinking": "hm", "signature": "EqQB=="}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}


def with_question(*blocks: Any, answer: Any = ()) -> Messages:
    return [USER, {"role": "assistant", "content": list(blocks)}, {"role": "user", "content": list(answer)}]


LEGAL: dict[str, Messages] = {
    "plain": [USER, HI, USER],
    "blocks": [{"role": "user", "content": [text("a"), text("b", cache_control={"type": "ephemeral"})]}],
    "pictures": [
        {
            "role": "user",
            "content": [
                IMAGE,
                {
                    "type": "document",
                    "title": "d",
                    "source": {"type": "text", "media_type": "text/plain", "data": "words"},
                },
                text("?"),
            ],
        }
    ],
    "a search result": [
        {
            "role": "user",
            "content": [{"type": "search_result", "source": "x", "title": "t", "content": [text("a")]}],
        }
    ],
    "a listed reply": [USER, {"role": "assistant", "content": [text("a", citations=None), text("b")]}],
    "a call": with_question(text("I look."), tool_use(), answer=[result(content="README")]),
    "no arguments": with_question(tool_use(input={}), answer=[result(content="")]),
    "parallel calls": with_question(
        tool_use("a"), tool_use("b"), answer=[result("a", content="1"), result("b", content="2")]
    ),
    "a result without content": with_question(tool_use(), answer=[result()]),
    "a result in blocks": with_question(
        tool_use(), answer=[result(content=[text("a"), IMAGE, {"type": "tool_reference", "x": 1}])]
    ),
    "an error": with_question(tool_use(), answer=[result(content="no", is_error=True)]),
    "not an error": with_question(
        tool_use(), answer=[result(content="ok", is_error=False, cache_control={"type": "ephemeral"})]
    ),
    "a result and a text": with_question(tool_use(), answer=[result(content="x"), text("and now?")]),
    "thinking": with_question(
        THINKING,
        {"type": "redacted_thinking", "data": "AAA"},
        text("so"),
        THINKING,
        tool_use(cache_control={"type": "ephemeral"}, caller={"type": "direct"}),
        answer=[result(content="x")],
    ),
    "tools of the server": [
        USER,
        {
            "role": "assistant",
            "content": [
                {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "x"}},
                {
                    "type": "web_search_tool_result",
                    "tool_use_id": "s1",
                    "content": [{"type": "web_search_result"}],
                },
                text("found", citations=[{"type": "x"}]),
            ],
        },
    ],
    "numbers": with_question(
        tool_use(input={"a": 1.0, "b": 10**25, "c": [None, True, "é\n"]}), answer=[result(content="x")]
    ),
}


@pytest.mark.parametrize("name", LEGAL)
def test_legal_messages_come_back_equal_and_legal(name: str) -> None:
    before = copy.deepcopy(LEGAL[name])
    assert check_anthropic(before) == []
    assert round_trip(LEGAL[name]) == before
    assert LEGAL[name] == before


def test_every_message_gives_one_chunk() -> None:
    chunks = list(ANTHROPIC.read(LEGAL["a result and a text"]))
    assert [(chunk.messages, len(chunk.facts)) for chunk in chunks] == [(1, 1), (1, 1), (1, 2)]
    assert list(ANTHROPIC.read(LEGAL["a result and a text"], 2)) == chunks[2:]


def test_messages_are_read_into_facts() -> None:
    messages = with_question(THINKING, tool_use(), answer=[result(content="r", is_error=True), text("u")])
    assert facts([{"role": "system", "content": "s"}, *messages]) == [
        Instructed(content="s", dialect="anthropic"),
        UserSaid(content="hello"),
        ModelSaid(
            content=(
                Thinking(native=raw(THINKING), text="hm"),
                Call(id="t1", name="bash", arguments='{"command":"ls"}'),
            ),
            dialect="anthropic",
        ),
        ToolReturned(call_id="t1", content="r", error=True),
        UserSaid(content=(Text(text="u"),)),
    ]


def test_server_tool_outputs_are_kept() -> None:
    parts = facts(LEGAL["tools of the server"])[1].content
    assert [type(part) for part in parts] == [Opaque, Opaque, Text]


def test_neighbouring_messages_of_one_role_are_merged() -> None:
    messages = [USER, {"role": "user", "content": [text("b")]}, USER, HI, HI]
    assert round_trip(messages) == [
        {"role": "user", "content": [text("hello"), text("b"), text("hello")]},
        {"role": "assistant", "content": [text("hi"), text("hi")]},
    ]


def test_the_first_message_is_always_of_the_user() -> None:
    shown = round_trip([HI, USER])
    assert check_anthropic(shown) == []
    assert shown[1:] == [HI, USER]
    assert round_trip([HI, USER]) == shown


@pytest.mark.parametrize(
    "nothing", ["", " \n", [], [text("")], [text(" ")], [THINKING], [THINKING, text("")]]
)
def test_empty_texts_and_trailing_thinking_are_left_out(nothing: Any) -> None:
    assert round_trip([USER, {"role": "assistant", "content": nothing}]) == [USER]
    assert check_anthropic(round_trip([USER, {"role": "assistant", "content": nothing}, USER])) == []
    assert len(facts([{"role": "assistant", "content": nothing}])) == 1


@pytest.mark.parametrize("role", ["user", "assistant", "system"])
def test_a_message_without_content_is_malformed(role: str) -> None:
    for message in ({"role": role}, {"role": role, "content": None}):
        with pytest.raises(MalformedMessage, match=r"messages\[1\]\.content: is (missing|null)"):
            facts([USER, message])


def test_a_result_may_have_no_content() -> None:
    assert round_trip(with_question(tool_use(), answer=[{"type": "tool_result", "tool_use_id": "a"}]))


@pytest.mark.parametrize(
    "message",
    [
        {"role": "system", "content": "s"},
        {"role": "system", "content": [{"type": "text", "text": "s"}], "clear_at": "next_user_message"},
        {"role": "system", "output_config": {"effort": "low"}},
        {"role": "system", "content": [], "output_config": {"effort": "low"}},
        {"role": "system", "content": [{"type": "tool_removal", "name": "bash"}]},
    ],
)
def test_a_system_message_stays_as_it_is(message: dict[str, Any]) -> None:
    messages = [{"role": "user", "content": "a"}, message, {"role": "system", "content": "t"}, HI]
    assert round_trip(messages) == messages


def test_results_come_first_in_their_message() -> None:
    messages = with_question(tool_use(), answer=[text("look:"), result(content="x")])
    assert round_trip(messages)[2]["content"] == [result(content="x"), text("look:")]


def test_repeated_ids_in_a_message_get_the_same_distinct_ids_each_time() -> None:
    messages = with_question(
        tool_use("x"),
        tool_use("x"),
        tool_use("x_2"),
        tool_use("x"),
        answer=[
            result("x", content="1"),
            result("x", content="2"),
            result("x_2", content="3"),
            result("x", content="4"),
        ],
    )
    groups = [ANTHROPIC.write(fact) for fact in facts([*messages, HI, *messages])]
    before = copy.deepcopy(groups)
    shown = ANTHROPIC.join(groups)
    assert groups == before
    assert check_anthropic(shown) == []
    assert [block["id"] for block in shown[1]["content"]] == ["x", "x_3", "x_2", "x_4"]
    assert [block["content"] for block in shown[2]["content"][:4]] == ["1", "2", "3", "4"]
    assert [block["tool_use_id"] for block in shown[2]["content"][:4]] == ["x", "x_3", "x_2", "x_4"]
    assert ANTHROPIC.join(groups) == shown


def test_an_id_repeated_in_a_later_message_is_unchanged() -> None:
    call = with_question(tool_use("x"), answer=[result("x", content="1")])[1:]
    messages = [USER, *call, *call]
    assert round_trip(messages) == messages


def test_join_does_not_change_the_groups() -> None:
    groups = [ANTHROPIC.write(fact) for name in LEGAL for fact in facts(LEGAL[name])]
    before = copy.deepcopy(groups)
    assert check_anthropic(ANTHROPIC.join(groups)) == []
    assert groups == before


def test_a_longer_history_extends_the_messages_of_the_shorter_one() -> None:
    every = [fact for name in LEGAL for fact in facts(LEGAL[name])]
    whole = write_all(every)
    for end in range(len(every)):
        short = write_all(every[:end])
        assert short[:-1] == whole[: max(0, len(short) - 1)]


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ('{"a": 1}', {"a": 1}),
        ("", {}),
        (" ", {}),
        ("{broken", {"_raw": "{broken"}),
        ("[1]", {"_raw": "[1]"}),
        ("null", {"_raw": "null"}),
        ('{"a": NaN}', {"_raw": '{"a": NaN}'}),
        ('{"a": "\\ud800"}', {"a": "\ufffd"}),
        ("[" * 100_000, {"_raw": "[" * 100_000}),
        ('{"a":' * 100_000, {"_raw": '{"a":' * 100_000}),
    ],
    ids=lambda value: str(value)[:20],
)
def test_any_arguments_are_written_as_an_object(arguments: str, shown: dict[str, Any]) -> None:
    fact = ModelSaid(content=(Call(id="c", name="f", arguments=arguments),))
    assert ANTHROPIC.write(fact)[0]["content"][0]["input"] == shown


@pytest.mark.parametrize("id", ["", "call:1", "a.b", "a_b", "ä", "\ud800", "x" * 300 + "!", "call_1|fc_2"])
def test_illegal_ids_are_replaced_alike_in_call_and_result(id: str) -> None:
    said = ModelSaid(content=(Call(id=id, name="f", arguments="{}"),))
    shown = write_all([UserSaid(content="x"), said, ToolReturned(call_id=id, content="r")])
    assert check_anthropic(shown) == []


def test_ids_that_differ_only_in_illegal_letters_stay_different() -> None:
    said = ModelSaid(content=tuple(Call(id=id, name="f", arguments="") for id in ("a.b", "a:b", "a_b")))
    ids = [block["id"] for block in ANTHROPIC.write(said)[0]["content"]]
    assert len(set(ids)) == 3


def test_replies_of_the_client_library_are_read() -> None:
    content = [
        THINKING,
        text("I look.", citations=None),
        tool_use(),
        {"type": "redacted_thinking", "data": "x"},
        text("!"),
    ]
    reply = Message.model_validate(
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "claude",
            "content": content,
            "stop_reason": "tool_use",
            "stop_sequence": None,
            "usage": {"input_tokens": 1, "output_tokens": 1},
        }
    )
    answer = {"role": "user", "content": [result(content="x")]}
    expected = [USER, {"role": "assistant", "content": content}, answer]
    assert round_trip([USER, {"role": "assistant", "content": reply.content}, answer]) == expected
    assert round_trip([USER, reply, answer]) == expected


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ([], ""),
        ({"content": "x"}, "role"),
        ({"role": "tool", "content": "x"}, "role"),
        ({"role": "user", "content": 3}, "content"),
        ({"role": "user", "content": [{}]}, "content[0].type"),
        ({"role": "user", "content": [text("x"), {"type": "text"}]}, "content[1].text"),
        ({"role": "user", "content": [{"type": "tool_result", "content": "x"}]}, "content[0].tool_use_id"),
        ({"role": "user", "content": [result(content=[{}])]}, "content[0].content[0].type"),
        (
            {"role": "assistant", "content": [{"type": "tool_use", "id": "x", "name": "f"}]},
            "content[0].input",
        ),
        ({"role": "assistant", "content": [{"type": "tool_use", "id": 3}]}, "content[0].id"),
        ({"role": "assistant", "content": [result()]}, "content[0].type"),
    ],
    ids=str,
)
def test_a_malformed_message_is_reported_by_index_and_field(message: Any, field: str) -> None:
    with pytest.raises(MalformedMessage) as caught:
        facts([USER, message])
    assert (caught.value.index, caught.value.field) == (1, field)


words = st.text('aé😀0_ \n"\\', min_size=1, max_size=12).filter(str.strip)
beside = st.dictionaries(words.map("x_{}".format), st.none() | st.integers() | words, max_size=2)
text_blocks = st.builds(lambda t, more: text(t, **more), words, beside)
thoughts = st.builds(lambda more: {**THINKING, **more}, beside)
strange = st.builds(lambda more: {"type": "strange", **more}, beside)
inputs = st.dictionaries(
    words, st.none() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words
)
calls = st.lists(st.builds(lambda given, more: tool_use(input=given, **more), inputs, beside), max_size=3)
results = st.builds(
    lambda given, more: result(**given, **more),
    st.fixed_dictionaries(
        {}, optional={"content": words | st.lists(text_blocks, min_size=1), "is_error": st.booleans()}
    ),
    beside,
)


@st.composite
def histories(draw: st.DrawFn) -> Messages:
    messages: Messages = []
    pending: list[str] = []
    for index in range(draw(st.integers(0, 4))):
        answers = [{**draw(results), "tool_use_id": id} for id in pending]
        said = draw(st.lists(text_blocks | strange, min_size=0 if answers else 1, max_size=3))
        plain = draw(words) if not answers and draw(st.booleans()) else None
        messages.append({"role": "user", "content": plain or [*answers, *said]})
        with_question = [{**call, "id": f"t{index}_{place}"} for place, call in enumerate(draw(calls))]
        pending = [call["id"] for call in with_question]
        spoken = draw(st.lists(thoughts | text_blocks | strange, max_size=3))
        messages.append({"role": "assistant", "content": [*spoken, *(with_question or [draw(text_blocks)])]})
    if pending:
        messages.append({"role": "user", "content": [result(id) for id in pending]})
    return messages


@given(histories())
def test_any_legal_history_comes_back_equal(history: Messages) -> None:
    before = copy.deepcopy(history)
    assert check_anthropic(history) == []
    assert round_trip(history) == before
    assert history == before


def test_the_checker_finds_what_is_illegal() -> None:
    call = LEGAL["parallel calls"]
    for bad in (
        [HI],
        [USER, USER],
        call[:2],
        [call[0], call[1], USER],
        [USER, HI, call[2]],
        with_question(tool_use("a"), tool_use("a"), answer=[result("a"), result("a")]),
        with_question(tool_use("a b"), answer=[result("a b")]),
        with_question(tool_use(), answer=[text("x"), result()]),
        [{"role": "user", "content": ""}],
        [{"role": "user", "content": [text(" ")]}],
        [USER, {"role": "assistant", "content": [THINKING]}],
        [{**USER, "name": "ann"}],
    ):
        assert check_anthropic(bad), bad
