"""Bedrock Converse messages: reading, writing and joining."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveal.core.log import (
    Call,
    Event,
    Instructed,
    Media,
    ModelSaid,
    Opaque,
    Text,
    Thinking,
    ToolReturned,
    UserSaid,
    decode,
    encode,
    raw,
)
from foveal.core.wire import wire_for
from foveal.errors import MalformedMessage
from support.histories import context
from support.legality import check_bedrock

BEDROCK = wire_for("bedrock")
Messages = list[dict[str, Any]]
PNG = (
    b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x06\x00\x00\x00\x1f\x15\xc4\x89"
)


def facts(messages: Any) -> list[Any]:
    return [fact for chunk in BEDROCK.read(messages) for fact in chunk.facts]


def through_the_log(found: list[Any]) -> list[Any]:
    return [decode(encode(Event(seq, fact))).fact for seq, fact in enumerate(found)]


def write_all(facts: Any) -> Messages:
    return BEDROCK.join([BEDROCK.write(fact) for fact in facts])


def round_trip(messages: Any) -> Messages:
    return write_all(through_the_log(facts(messages)))


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def system(*blocks: Any) -> dict[str, Any]:
    return {"role": "system", "content": list(blocks)}


def text(text: str) -> dict[str, Any]:
    return {"text": text}


def tool_use(id: str = "t1", **more: Any) -> dict[str, Any]:
    return {"toolUse": {"toolUseId": id, "name": "bash", "input": {"command": "ls"}, **more}}


def result(id: str = "t1", *content: Any, **more: Any) -> dict[str, Any]:
    return {"toolResult": {"toolUseId": id, "content": list(content), **more}}


def document(name: str = "a file", **source: Any) -> dict[str, Any]:
    return {"document": {"format": "pdf", "name": name, "source": source or {"bytes": b"%PDF"}}}


HELLO = user(text("hello"))
HI = assistant(text("hi"))
THOUGHT = {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "EqQB=="}}}
REDACTED = {"reasoningContent": {"redactedContent": b"\x00\xff"}}
IMAGE = {"image": {"format": "png", "source": {"bytes": PNG}}}
POINT = {"cachePoint": {"type": "default"}}
LONG_POINT = {"cachePoint": {"type": "default", "ttl": "1h"}}


def with_question(*blocks: Any, answer: Any = ()) -> Messages:
    return [HELLO, assistant(*blocks), user(*answer)]


LEGAL: dict[str, Messages] = {
    "plain": [HELLO, HI, HELLO],
    "blocks": [user(text("a"), POINT, text("b"), POINT)],
    "a point first": [user(POINT, text("a"))],
    "points of two lives": [user(text("a"), LONG_POINT), HI, user(text("b"), POINT)],
    "pictures": [user(IMAGE, document(), text("?"), {"video": {"format": "mp4", "source": {"bytes": b"v"}}})],
    "Base64 instead of bytes": [user({"image": {"format": "png", "source": {"bytes": "iVBORw0KGgo="}}})],
    "files in S3": [user(document(s3Location={"uri": "s3://bucket/key"}), text("?"))],
    "a point after a picture": [user(text("a"), IMAGE, POINT)],
    "a guarded text": [user({"guardContent": {"text": {"text": "a", "qualifiers": ["query"]}}})],
    "a guarded image": [user({"guardContent": {"image": {"format": "png", "source": {"bytes": PNG}}}})],
    "citations": [
        HELLO,
        assistant({"citationsContent": {"content": [text("a")], "citations": [{"title": "t"}]}}),
    ],
    "citations in pieces": [HELLO, assistant({"citationsContent": {"content": [text("a"), text("b")]}})],
    "a search result": [user({"searchResult": {"source": "s", "title": "t", "content": [text("a")]}})],
    "a call": with_question(text("I look."), tool_use(), answer=[result("t1", text("README"))]),
    "a point after a call": with_question(tool_use(), POINT, answer=[result("t1", text("x")), POINT]),
    "no arguments": with_question(tool_use(input={}), answer=[result("t1")]),
    "parallel calls": with_question(
        tool_use("a"), tool_use("b"), answer=[result("a", text("1")), POINT, result("b", text("2"))]
    ),
    "a result of every kind": with_question(
        tool_use(),
        answer=[
            result("t1", text("a"), {"json": {"b": [1, None, 2.5]}}, IMAGE, document(), status="success")
        ],
    ),
    "an error": with_question(tool_use(), answer=[result("t1", text("no"), status="error")]),
    "a result and a text": with_question(tool_use(), answer=[result("t1", text("x")), text("and now?")]),
    "reasoning": with_question(
        THOUGHT, REDACTED, text("so"), THOUGHT, tool_use(), answer=[result("t1", text("x"))]
    ),
    "tools of the server": [
        HELLO,
        assistant(
            tool_use("s", type="server_tool_use"),
            result("s", text("1"), type="code_result"),
            text("found"),
        ),
    ],
    "an id of another model": with_question(
        tool_use("functions.bash:0"), answer=[result("functions.bash:0", text("x"))]
    ),
    "an unknown block": [user({"hologram": {"data": b"\x01", "parts": [b"\x02", "x"]}})],
    "tools added": [
        HELLO,
        HI,
        system({"toolAddition": {"tool": {"name": "f"}}}),
        HELLO,
    ],
}


@pytest.mark.parametrize("name", LEGAL)
def test_legal_messages_come_back_equal_and_legal(name: str) -> None:
    before = copy.deepcopy(LEGAL[name])
    assert check_bedrock(before) == []
    assert round_trip(LEGAL[name]) == before
    assert LEGAL[name] == before


def test_messages_are_read_into_facts() -> None:
    messages = with_question(
        THOUGHT, tool_use(), answer=[result("t1", {"json": {"a": 1}}, status="error"), POINT, text("u")]
    )
    assert facts([system(text("s")), *messages]) == [
        Instructed(content="s", dialect="bedrock"),
        UserSaid(content="hello"),
        ModelSaid(
            content=(
                Thinking(native=raw(THOUGHT), text="hm"),
                Call(id="t1", name="bash", arguments='{"command":"ls"}'),
            ),
            dialect="bedrock",
        ),
        ToolReturned(
            call_id="t1",
            content=(Text(text='{"a":1}', extra=raw({"json": True})),),
            error=True,
            dialect="bedrock",
            extra=raw({"cachePoints": [[1, {"type": "default"}]]}),
        ),
        UserSaid(content="u"),
    ]


def test_media_are_measured_and_keep_their_bytes() -> None:
    (fact,) = facts([user(IMAGE, {"document": {**document()["document"], "source": {"text": "w" * 400}}})])
    image, file = fact.content
    assert (image.mime, image.units) == ("image/png", 1)
    assert (file.mime, file.units) == ("application/pdf", 100)
    assert [type(part) for part in fact.content] == [Media, Media]
    assert b"$bytes" in bytes(image.native)


def test_what_bedrock_runs_itself_is_kept() -> None:
    assert [type(part) for part in facts(LEGAL["tools of the server"])[1].content] == [Opaque, Opaque, Text]


def test_a_block_that_boto3_does_not_know_is_left_out() -> None:
    unknown = {"SDK_UNKNOWN_MEMBER": {"name": "hologram"}}
    assert round_trip([HELLO, assistant(unknown, text("a"))]) == [HELLO, assistant(text("a"))]


# ── Repairs ──────────────────────────────────────────────────────────────────────────────────────────────


def test_neighbouring_messages_of_one_role_are_merged() -> None:
    assert round_trip([HELLO, user(text("b"), POINT), HELLO, HI, HI]) == [
        user(text("hello"), text("b"), POINT, text("hello")),
        assistant(text("hi"), text("hi")),
    ]


def test_the_first_message_is_always_of_the_user() -> None:
    shown = round_trip([HI, HELLO])
    assert check_bedrock(shown) == []
    assert shown[1:] == [HI, HELLO]


@pytest.mark.parametrize(
    "nothing",
    [
        [],
        [text("")],
        [text(" \n")],
        [THOUGHT],
        [THOUGHT, text("")],
        [POINT],
        [text(""), POINT],
        [THOUGHT, POINT],
    ],
    ids=str,
)
def test_empty_texts_and_trailing_reasoning_are_left_out(nothing: Any) -> None:
    assert round_trip([HELLO, assistant(*nothing)]) == [HELLO]
    assert len(facts([assistant(*nothing)])) == 1


def test_a_blank_result_says_that_it_is_empty() -> None:
    shown = round_trip(with_question(tool_use(), answer=[result("t1", text(" "))]))
    assert shown[2] == user(result("t1", text("[no output]")))
    assert check_bedrock(shown) == []


def test_a_document_never_stands_without_a_text() -> None:
    assert round_trip([user(document())]) == [user(document(), text("[A document is attached.]"))]


def test_documents_get_legal_and_distinct_names() -> None:
    messages = [user(document("re/port.pdf"), document("a  b"), text("?")), HI]
    messages += with_question(tool_use(), answer=[result("t1", document("Re-Port-pdf")), document("a b")])
    groups = [BEDROCK.write(fact) for fact in facts(messages)]
    before = copy.deepcopy(groups)
    shown = BEDROCK.join(groups)
    assert groups == before
    assert check_bedrock(shown) == []
    assert [block["document"]["name"] for block in shown[0]["content"][:2]] == ["re-port-pdf", "a b"]
    answer = shown[-1]["content"]
    assert answer[0]["toolResult"]["content"] == [document("Re-Port-pdf-2")]
    assert answer[1] == document("a b-2")


def test_results_come_first_in_their_message_with_their_cache_points() -> None:
    messages = with_question(
        tool_use("a"), tool_use("b"), answer=[text("look:"), POINT, result("a", text("x")), POINT]
    )
    messages[2]["content"].append(result("b", text("y")))
    assert round_trip(messages)[2]["content"] == [
        result("a", text("x")),
        POINT,
        result("b", text("y")),
        text("look:"),
        POINT,
    ]


def test_system_messages_stay_in_their_places() -> None:
    messages = [HELLO, system(text("s")), system(text("t")), HI, system({"toolRemoval": {"tool": {}}})]
    assert check_bedrock(messages) == []
    assert round_trip(messages) == messages


def test_repeated_ids_in_a_message_get_the_same_distinct_ids_each_time() -> None:
    long = "x" * 64
    ids = ["x", "x", "x_2", "x", long, long]
    messages = with_question(
        *map(tool_use, ids), answer=[result(id, text(str(n))) for n, id in enumerate(ids)]
    )
    shown = round_trip([*messages, HI, *messages])
    assert check_bedrock(shown) == []
    assert [block["toolUse"]["toolUseId"] for block in shown[1]["content"]][:4] == ["x", "x_3", "x_2", "x_4"]
    assert [block["toolResult"]["content"][0]["text"] for block in shown[2]["content"]] == list("012345")
    assert round_trip([*messages, HI, *messages]) == shown


@pytest.mark.parametrize("id", ["", "call|1", "ä", "\ud800", "x" * 300, "call_1|fc_2"])
def test_illegal_ids_and_names_are_replaced_alike(id: str) -> None:
    said = ModelSaid(content=(Call(id=id, name=id, arguments="{}"),))
    shown = write_all([UserSaid(content="x"), said, ToolReturned(call_id=id, content="r")])
    assert check_bedrock(shown) == []


def test_a_json_result_that_is_clipped_or_no_object_is_text() -> None:
    json_part = {"extra": raw({"json": True})}
    parts = tuple(Text(text=given, **json_part) for given in ('{"a": 1}', "[1]", '{"a": ', "NaN"))
    fact = ToolReturned(call_id="t1", content=parts, dialect="bedrock")
    (message,) = BEDROCK.write(fact)
    assert message["content"][0]["toolResult"]["content"] == [
        {"json": {"a": 1}},
        text("[1]"),
        text('{"a": '),
        text("NaN"),
    ]


def test_only_messages_that_need_it_are_copied_by_join() -> None:
    groups = [BEDROCK.write(fact) for name in LEGAL for fact in facts(LEGAL[name])]
    before = copy.deepcopy(groups)
    shown = BEDROCK.join(groups)
    assert groups == before
    roles = [message["role"] for group in groups for message in group]
    runs = [role for at, role in enumerate(roles) if not at or roles[at - 1] != role]
    assert [message["role"] for message in shown] == runs
    plain = [BEDROCK.write(fact) for fact in facts(LEGAL["a call"])]
    assert all(map(lambda one, group: one is group[0], BEDROCK.join(plain), plain))


def test_a_longer_history_extends_the_messages_of_the_shorter_one() -> None:
    every = [fact for name in LEGAL for fact in facts(LEGAL[name])]
    whole = write_all(every)
    for end in range(len(every)):
        short = write_all(every[:end])
        assert short[:-1] == whole[: max(0, len(short) - 1)]


def test_a_log_with_broken_cache_points_is_written_without_them() -> None:
    for broken in ("x", [1], [[0]], [["0", {}]], [[0, "x"]], {"a": 1}):
        fact = UserSaid(content="a", dialect="bedrock", extra=raw({"cachePoints": broken}))
        assert BEDROCK.write(fact) == [user(text("a"))]


def test_broken_base64_in_a_log_is_written_as_it_is() -> None:
    native = {"image": {"format": "png", "source": {"bytes": {"$bytes": "?"}}}}
    fact = UserSaid(content=(Media(native=raw(native)),), dialect="bedrock")
    assert BEDROCK.write(fact) == [user(native)]


# ── Through a context ────────────────────────────────────────────────────────────────────────────────────


def test_bytes_and_marks_survive_a_context() -> None:
    history = [*LEGAL["pictures"], *LEGAL["reasoning"][1:], *LEGAL["a point after a call"][1:]]
    shown = context(60_000).fit(history)
    assert shown == write_all(facts(history))
    assert shown[0] == history[0]


def test_a_moved_cache_point_is_no_edit() -> None:
    ctx = context(60_000)
    first = [user(text("a"), IMAGE, POINT), assistant(tool_use()), user(result("t1", text("x")), POINT)]
    moved = [
        user(text("a"), IMAGE),
        assistant(tool_use()),
        user(result("t1", text("x"))),
        HI,
        user(text("b"), POINT),
    ]
    assert ctx.fit(first) == first
    assert ctx.fit(moved) == moved
    kinds = [type(event.fact).__name__ for event in ctx.log]
    assert "Rewound" not in kinds
    assert ctx.report().breaks == ()


def test_system_blocks_beside_the_messages_are_counted() -> None:
    ctx = context(60_000)
    ctx.fit([HELLO], system=[text("Be brief."), POINT], tools=[{"toolSpec": {"name": "f"}}])
    ctx.fit([HELLO, HI, HELLO], system=[text("Be brief.")], tools=[{"toolSpec": {"name": "f"}}])
    beside = [event.fact for event in ctx.log if isinstance(event.fact, Instructed)]
    assert beside == [Instructed(content="Be brief.", aside=True, dialect="bedrock")]


# ── What is malformed ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ([], ""),
        ({"content": [text("x")]}, "role"),
        ({"role": "tool", "content": [text("x")]}, "role"),
        ({"role": "user"}, "content"),
        ({"role": "user", "content": 3}, "content"),
        (user({}), "content[0]"),
        (user({"type": "text", "text": "x"}), "content[0]"),
        (user(text("x"), {"text": 3}), "content[1].text"),
        (user({"toolResult": {"content": []}}), "content[0].toolResult.toolUseId"),
        (user({"toolResult": {"toolUseId": "x"}}), "content[0].toolResult.content"),
        (user(result("x", {})), "content[0].toolResult.content[0]"),
        (assistant({"toolUse": {"toolUseId": "x", "name": "f"}}), "content[0].toolUse.input"),
        (assistant({"toolUse": {"toolUseId": 3}}), "content[0].toolUse.toolUseId"),
        (assistant({"toolUse": "x"}), "content[0].toolUse"),
        (
            assistant({"reasoningContent": {"reasoningText": {}}}),
            "content[0].reasoningContent.reasoningText.text",
        ),
        (assistant(result()), "content[0].toolResult"),
        (user(text("x"), tool_use()), "content[1].toolUse"),
        (user({"image": "x"}), "content[0].image"),
    ],
    ids=str,
)
def test_a_malformed_message_is_reported_by_index_and_field(message: Any, field: str) -> None:
    with pytest.raises(MalformedMessage) as caught:
        facts([HELLO, message])
    assert (caught.value.index, caught.value.field) == (1, field)


# ── Any legal history ────────────────────────────────────────────────────────────────────────────────────

words = st.text('aé😀0_ \n"\\', min_size=1, max_size=12).filter(str.strip)
text_blocks = st.builds(text, words)
points = st.just(POINT)
strange = st.builds(
    lambda value: {"strange": {"x": value}}, st.none() | st.integers() | words | st.binary(max_size=9)
)
inputs = st.dictionaries(
    words, st.none() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words
)
inner = text_blocks | st.builds(lambda value: {"json": value}, inputs) | st.just(IMAGE) | strange
more = st.fixed_dictionaries({}, optional={"status": st.sampled_from(["success", "error"])})


@st.composite
def blocks_with_points(draw: st.DrawFn, blocks: list[Any]) -> list[Any]:
    return [one for block in blocks for one in ([block, draw(points)] if draw(st.booleans()) else [block])]


@st.composite
def histories(draw: st.DrawFn) -> Messages:
    messages: Messages = []
    pending: list[str] = []
    for index in range(draw(st.integers(0, 4))):
        answers = [result(id, *draw(st.lists(inner, min_size=1, max_size=3)), **draw(more)) for id in pending]
        said = draw(
            st.lists(text_blocks | strange | st.just(IMAGE), min_size=0 if answers else 1, max_size=3)
        )
        messages.append(user(*draw(blocks_with_points([*answers, *said]))))
        called = [
            tool_use(f"t{index}_{n}", input=given)
            for n, given in enumerate(draw(st.lists(inputs, max_size=3)))
        ]
        pending = [call["toolUse"]["toolUseId"] for call in called]
        spoken = draw(st.lists(st.just(THOUGHT) | st.just(REDACTED) | text_blocks | strange, max_size=3))
        messages.append(assistant(*draw(blocks_with_points([*spoken, *(called or [draw(text_blocks)])]))))
    if pending:
        messages.append(user(*(result(id) for id in pending)))
    return messages


@given(histories())
def test_any_legal_history_comes_back_equal(history: Messages) -> None:
    before = copy.deepcopy(history)
    assert [fault for fault in check_bedrock(history) if "cache marks" not in fault] == []
    assert round_trip(history) == before
    assert history == before


def test_the_checker_finds_what_is_illegal() -> None:
    call = LEGAL["parallel calls"]
    for bad in (
        [HI],
        [HELLO, HELLO],
        call[:2],
        [call[0], call[1], HELLO],
        [HELLO, HI, call[2]],
        with_question(tool_use("a"), tool_use("a"), answer=[result("a"), result("a")]),
        with_question(tool_use("a b"), answer=[result("a b")]),
        with_question(tool_use("a", name="a.b"), answer=[result("a")]),
        with_question(tool_use(), answer=[text("x"), result()]),
        with_question(tool_use(), answer=[result("t1", text(" "))]),
        with_question(tool_use(), answer=[result("t1", {"json": [1]})]),
        [user()],
        [user(text(" "))],
        [{"role": "user", "content": "hello"}],
        [user(document())],
        [user(document("a.pdf"), text("?"))],
        [user(document("a"), document("A"), text("?"))],
        [HELLO, assistant(THOUGHT)],
        [{**HELLO, "name": "ann"}],
        [user(*[text("a"), POINT] * 5)],
        [user(text("a"), POINT, text("b"), LONG_POINT)],
    ):
        assert check_bedrock(bad), bad


# ── Against botocore ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="session")
def converse_shape() -> Any:
    """Return what checks the arguments of `converse` as boto3 does before it sends them."""
    pytest.importorskip("botocore")
    from botocore.session import get_session
    from botocore.validate import ParamValidator

    shape = get_session().get_service_model("bedrock-runtime").operation_model("Converse").input_shape
    return lambda given: ParamValidator().validate({"modelId": "m", **given}, shape).generate_report()


@pytest.mark.parametrize("name", sorted(set(LEGAL) - {"an unknown block"}))
def test_botocore_accepts_what_is_written(name: str, converse_shape: Any) -> None:
    assert converse_shape({"messages": round_trip(LEGAL[name])}) == ""


def test_botocore_accepts_histories_of_other_dialects(converse_shape: Any) -> None:
    from core.wire.test_dialects import DIALECTS, HISTORIES

    for dialect in DIALECTS:
        known = [fact for chunk in wire_for(dialect).read(HISTORIES[dialect]) for fact in chunk.facts]
        shown = write_all(known)
        assert converse_shape({"messages": shown}) == "", json.dumps(shown, default=str)
