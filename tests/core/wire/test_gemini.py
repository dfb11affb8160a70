"""Gemini contents: reading, writing, pairs without ids, signatures, and legal lists."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from pydantic import BaseModel

import foveal
from foveal.core.log import (
    AnyFact,
    Call,
    Instructed,
    Media,
    ModelSaid,
    Opaque,
    Text,
    Thinking,
    ToolReturned,
    UserSaid,
    raw,
)
from foveal.core.tokens import MessageTokens
from foveal.core.view.fold import fold
from foveal.core.view.request import Fitted
from foveal.core.view.steps import NO_RESULT
from foveal.core.wire import wire_for
from foveal.core.wire.common import OPENING_USER_TEXT
from foveal.core.wire.gemini import SKIPPED_SIGNATURE
from foveal.core.wire.legality import request_faults
from foveal.core.wire.overflow_errors import recognise_overflow, stop_reason
from foveal.errors import MalformedMessage
from support.histories import ESTIMATE, context, render_log
from support.legality import check_gemini

Json = dict[str, Any]
WIRE = wire_for("gemini")
PNG = "iVBORw0KGgo="


def facts(contents: list[Any], start: int = 0) -> list[AnyFact]:
    return [fact for chunk in WIRE.read(contents, start) for fact in chunk.facts]


def write(known: list[AnyFact]) -> list[Json]:
    return WIRE.join([WIRE.write(fact) for fact in known])


def user(*parts: Any) -> Json:
    return {"role": "user", "parts": [{"text": part} if isinstance(part, str) else part for part in parts]}


def model(*parts: Any) -> Json:
    return {**user(*parts), "role": "model"}


def call(name: str, *, signature: str = "", **body: Any) -> Json:
    signed = {"thoughtSignature": signature} if signature else {}
    return {"functionCall": {"name": name, "args": {}, **body}, **signed}


def response(name: str, text: str = "ok", **body: Any) -> Json:
    return {"functionResponse": {"name": name, "response": {"output": text}, **body}}


# ── Reading ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_text_alone_is_a_plain_fact() -> None:
    assert facts([user("hi"), model("yes")]) == [UserSaid(content="hi"), ModelSaid(content="yes")]


def test_each_kind_of_part_is_read() -> None:
    thought = {"text": "hm", "thought": True, "thoughtSignature": "s"}
    code = {"executableCode": {"language": "PYTHON", "code": "1"}}
    image = {"inlineData": {"mimeType": "image/png", "data": PNG}}
    assert facts([model(thought, "a", image, code, call("f", id="c", signature="s"))]) == [
        ModelSaid(
            content=(
                Thinking(native=raw(thought), text="hm"),
                Text(text="a"),
                Media(native=raw(image), mime="image/png", size=len(PNG), units=1_000),
                Opaque(native=raw(code)),
                Call(id="c", name="f", arguments="{}", extra=raw({"thoughtSignature": "s"})),
            ),
            dialect="gemini",
        )
    ]


def test_each_response_of_a_content_is_a_result() -> None:
    content = user(response("f", "1", id="a"), response("g", "2", id="b"), "and?")
    assert facts([content]) == [
        ToolReturned(call_id="a", name="f", content="1"),
        ToolReturned(call_id="b", name="g", content="2"),
        UserSaid(content="and?"),
    ]


@pytest.mark.parametrize(
    ("given", "text", "error"),
    [
        ({"output": "a\nb"}, "a\nb", False),
        ({"result": "a\nb"}, "a\nb", False),
        ({"error": "no"}, "no", True),
        ({"error": ""}, "", False),
        ({"result": 3, "note": "x"}, '{"result":3,"note":"x"}', False),
        ({"content": [{"type": "text", "text": "x"}], "isError": True},
         '{"content":[{"type":"text","text":"x"}],"isError":true}', True),
        ({"_raw": 1}, '{"_raw":1}', False),
        ({"": "x"}, '{"":"x"}', False),
        ({}, "{}", False),
    ],
)  # fmt: skip
def test_a_response_is_read_as_its_text_and_written_back(given: Json, text: str, error: bool) -> None:
    contents = [user("q"), model(call("f")), user({"functionResponse": {"name": "f", "response": given}})]
    known = facts(contents)
    result = known[-1]
    assert isinstance(result, ToolReturned)
    assert (result.content, result.error) == (text, error)
    assert write(known) == contents


@pytest.mark.parametrize(
    "content",
    [
        "hi",
        [{"text": "hi"}],
        ["hi"],
        {"text": "hi"},
        {"parts": [{"text": "hi"}]},
        {"role": "user", "parts": [{"text": "hi", "thought": None, "function_call": None}]},
    ],
    ids=str,
)
def test_what_google_genai_accepts_in_place_of_a_content_is_one(content: Any) -> None:
    assert write(facts([content])) == [user("hi")]


class ModelContent(BaseModel):
    """A class of google-genai: the role of its contents is a default."""

    parts: list[Json]
    role: str = "model"


def test_a_role_that_is_a_default_is_read() -> None:
    assert facts([ModelContent(parts=[{"text": "x"}])]) == [ModelSaid(content="x")]


@pytest.mark.parametrize(
    ("content", "field"),
    [
        ({"role": "user"}, "parts"),
        ({"role": "user", "parts": None}, "parts"),
        ({"role": "user", "parts": "hi"}, "parts"),
        ({"role": "wizard", "parts": []}, "role"),
        (user({"text": 3}), "parts[0].text"),
        (user(call("f")), "parts[0]"),
        (model("a", response("f")), "parts[1]"),
        (model({"functionCall": {}}), "parts[0].functionCall.name"),
        (model({"functionCall": 3}), "parts[0].functionCall"),
        (user({"function_response": {"name": "f", "response": "x"}}), "parts[0].function_response.response"),
        (user(response("f", parts=3)), "parts[0].functionResponse.parts"),
        (3, ""),
    ],
    ids=str,
)
def test_a_malformed_content_names_its_field(content: Any, field: str) -> None:
    with pytest.raises(MalformedMessage) as caught:
        facts([user("hi"), content])
    assert (caught.value.index, caught.value.field) == (1, field)


# ── Pairs without ids ────────────────────────────────────────────────────────────────────────────────────


def test_calls_and_responses_without_ids_pair_by_name_and_order() -> None:
    contents = [
        user("q"),
        model(call("f"), call("g"), call("f")),
        user(response("f", "1"), response("f", "2"), response("g", "3")),
    ]
    ctx = context(dialect="gemini")
    shown = ctx.fit(contents)
    assert shown[2] == user(response("f", "1"), response("g", "3"), response("f", "2"))
    assert ctx.report().repairs == ()


def test_a_response_without_an_id_answers_a_call_with_one() -> None:
    contents = [user("q"), model(call("f", id="x")), user(response("f", "1"))]
    assert [fact.call_id for fact in facts(contents) if isinstance(fact, ToolReturned)] == ["x"]
    assert [fact.call_id for fact in facts(contents, 2) if isinstance(fact, ToolReturned)] == ["x"]
    assert context(dialect="gemini").fit(contents) == contents


def test_an_appended_response_without_an_id_answers_the_call_before_it() -> None:
    ctx = context(dialect="gemini")
    contents = [
        user("q"),
        model(call("f", id="x"), call("f", id="y")),
        user(response("f", "1"), response("f", "2")),
    ]
    for content in contents:
        ctx.append(content)
    assert ctx.fit() == contents


def test_appended_responses_with_and_without_ids_pair_as_in_the_whole_history() -> None:
    calls = [{"functionCall": {"id": "a", "name": "f"}}, {"functionCall": {"name": "f"}}]
    first = {"functionResponse": {"id": "a", "name": "f", "response": {"output": "1"}}}
    second = {"functionResponse": {"name": "f", "response": {"output": "2"}}}
    contents = [user("go"), model(*calls), user(first), user(second)]
    assert facts(contents, 2) == facts(contents)[2:]


def test_a_reply_of_the_model_without_parts_is_left_out() -> None:
    assert write(facts([user("q"), {"role": "model"}, {"role": "model", "parts": None}])) == [user("q")]


def test_responses_in_several_contents_answer_the_calls_before_them() -> None:
    contents = [
        user("q"),
        model(call("f", id="x"), call("f", id="y")),
        user(response("f", "1")),
        user(response("f", "2")),
    ]
    for start in (0, 2, 3):
        read = facts(contents, start)
        assert [fact.call_id for fact in read if isinstance(fact, ToolReturned)] == ["x", "y"][
            -len(contents[start:]) :
        ]


def test_an_invented_id_is_not_written() -> None:
    contents = [user("q"), model(call("f"))]
    shown = context(dialect="gemini").fit(contents)
    assert shown == [*contents, user({"functionResponse": {"name": "f", "response": {"output": NO_RESULT}}})]


def test_an_id_that_occurs_twice_in_a_content_is_left_out() -> None:
    contents = [
        user("q"),
        model(call("f", id="x"), call("f", id="x")),
        user(response("f", "1", id="x"), response("f", "2", id="x")),
    ]
    shown = write(facts(contents))
    assert shown == [user("q"), model(call("f"), call("f")), user(response("f", "1"), response("f", "2"))]
    assert check_gemini(shown) == []


def test_a_result_without_a_name_gets_that_of_its_call() -> None:
    made = ModelSaid(content=(Call(id="a", name="f", arguments="{}"),), dialect="anthropic")
    shown = write([UserSaid(content="q"), made, ToolReturned(call_id="a", content="1")])
    assert shown[2] == user(response("f", "1", id="a"))


# ── Writing ──────────────────────────────────────────────────────────────────────────────────────────────


def snake(value: Any) -> Any:
    """Return contents in the spelling in which google-genai dumps its objects."""
    if isinstance(value, dict):
        return {_SNAKE.get(name, name): snake(inner) for name, inner in value.items()}
    return [snake(inner) for inner in value] if isinstance(value, list) else value


_SNAKE = {
    "functionCall": "function_call",
    "functionResponse": "function_response",
    "thoughtSignature": "thought_signature",
    "inlineData": "inline_data",
    "mimeType": "mime_type",
    "willContinue": "will_continue",
}
NATIVE = [
    user("q", {"inlineData": {"mimeType": "image/png", "data": PNG}}),
    model(
        {"text": "hm", "thought": True},
        {"text": "", "thoughtSignature": "c2ln"},
        call("f", id="a", signature="c2ln"),
        {"functionCall": {"name": "f"}},
        call("g", id="b", willContinue=True),
    ),
    user(
        response("f", id="a"),
        {"functionResponse": {"name": "f", "response": {"result": "1"}, "willContinue": False}},
        response("g", id="b", parts=[{"inlineData": {"mimeType": "image/png", "data": PNG}}]),
        {"text": "go on", "partMetadata": {"a": None}},
    ),
    {**model("done", "now"), "more": 1},
]


@pytest.mark.parametrize("contents", [NATIVE, snake(NATIVE)], ids=["camelCase", "snake_case"])
def test_legal_contents_are_unchanged(contents: list[Json]) -> None:
    before = copy.deepcopy(contents)
    assert write(facts(contents)) == contents
    assert context(40_000).fit(contents) == contents
    assert contents == before
    assert check_gemini(contents) == []


def test_fields_that_are_null_are_left_out() -> None:
    dumped = {"role": "user", "parts": [{"text": "hi", "thought": None, "inline_data": None}]}
    assert facts([dumped]) == [UserSaid(content="hi")]


def test_a_call_of_another_dialect_gets_the_documented_signature() -> None:
    calls = (Call(id="a", name="f", arguments='{"x":1}'), Call(id="b", name="g", arguments="{broken"))
    for dialect in ("", "openai_chat", "anthropic"):
        made = ModelSaid(content=(Text(text="I look."), *calls), dialect=dialect)
        assert WIRE.write(made) == [
            model(
                "I look.",
                call("f", id="a", args={"x": 1}, signature=SKIPPED_SIGNATURE),
                call("g", id="b", args={"_raw": "{broken"}),
            )
        ]


@pytest.mark.parametrize("name", ["thoughtSignature", "thought_signature"])
def test_a_call_with_masked_arguments_does_not_keep_the_signature_of_others(name: str) -> None:
    written = {"functionCall": {"name": "write", "args": {"text": "word " * 6_000}}, name: "c2ln"}
    later = {"functionCall": {"name": "write", "args": {"text": "ok"}}, name: "c2ln"}
    done = {"functionResponse": {"name": "write", "response": {"output": "done"}}}
    _, asked, _ = context(4_000, dialect="gemini").fit([user("go"), model(written, later), user(done, done)])
    masked, kept = asked["parts"]
    assert masked["functionCall"]["args"]["text"].startswith("[foveal: masked")
    assert (masked[name], kept) == (SKIPPED_SIGNATURE, later)
    assert set(masked) == set(written)


def test_a_call_of_gemini_without_a_signature_is_left_alone() -> None:
    contents = [user("q"), model(call("f", id="a")), user(response("f", id="a"))]
    assert write(facts(contents)) == contents


@pytest.mark.parametrize("given", [{"output": "x" * 50}, {"result": "x" * 50}, {"a": 1, "b": "x" * 50}])
def test_a_shortened_result_stays_a_response(given: Json) -> None:
    contents = [user("q"), model(call("f")), user({"functionResponse": {"name": "f", "response": given}})]
    known = facts(contents)
    assert isinstance(known[-1], ToolReturned)
    shown = write([*known[:-1], replace(known[-1], content="[masked; whole text: e3]")])
    field = "result" if "result" in given else "output"
    assert shown[2]["parts"] == [
        {"functionResponse": {"name": "f", "response": {field: "[masked; whole text: e3]"}}}
    ]
    assert check_gemini(shown) == []


def test_system_text_among_the_contents_becomes_the_users() -> None:
    assert write([Instructed(content="Be brief."), UserSaid(content="hi")]) == [user("Be brief.", "hi")]


def test_empty_texts_and_contents_are_left_out() -> None:
    assert write(facts([user("q"), model("", call("f")), user(response("f")), user(""), model(" ")])) == [
        user("q"),
        model(call("f")),
        user(response("f")),
        model(" "),
    ]


@pytest.mark.parametrize(
    ("part", "written"),
    [
        ({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
         {"inlineData": {"mimeType": "audio/wav", "data": "AAAA"}}),
        ({"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}},
         {"inlineData": {"mimeType": "application/pdf", "data": "AAAA"}}),
        ({"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
         {"fileData": {"fileUri": "https://example.org/a.png"}}),
        ({"type": "image_url", "image_url": {"url": "data:image/gif;base64,AAAA"}},
         {"text": "[image/gif, 4 bytes: cannot be shown here]"}),
        ({"type": "file", "file": {"file_id": "file-1"}}, {"text": "[media, 0 bytes: cannot be shown here]"}),
    ],
    ids=str,
)  # fmt: skip
def test_media_of_another_dialect_is_written_as_gemini_takes_it(part: Json, written: Json) -> None:
    (chunk,) = wire_for("openai_chat").read([{"role": "user", "content": [part]}])
    assert write(list(chunk.facts)) == [{"role": "user", "parts": [written]}]


def test_base64_of_google_genai_is_in_the_standard_alphabet_elsewhere() -> None:
    (said,) = facts([user({"inlineData": {"mimeType": "image/png", "data": "-_-_"}})])
    chat = wire_for("openai_chat")
    url = {"type": "image_url", "image_url": {"url": "data:image/png;base64,+/+/"}}
    assert chat.write(said) == [{"role": "user", "content": [url]}]


# ── Legal lists ──────────────────────────────────────────────────────────────────────────────────────────


def test_neighbours_of_one_role_become_one_content() -> None:
    shown = write(facts([user("a"), user("b"), model("c"), model("d")]))
    assert shown == [user("a", "b"), model("c", "d")]


def test_a_history_that_begins_with_the_model_gets_an_opening() -> None:
    shown = write(facts([model(call("f")), user(response("f"))]))
    assert shown == [user(OPENING_USER_TEXT), model(call("f")), user(response("f"))]
    assert check_gemini(shown) == []


def test_join_leaves_single_contents_and_the_groups_alone() -> None:
    groups = [WIRE.write(fact) for fact in facts([user("a"), model("b"), user("c"), user("d")])]
    before = copy.deepcopy(groups)
    joined = WIRE.join(groups)
    assert joined[0] is groups[0][0]
    assert joined[1] is groups[1][0]
    assert groups == before


def test_responses_come_first_in_their_content() -> None:
    contents = [user("q"), model(call("f")), user("so:", response("f"))]
    assert write(facts(contents))[2] == user(response("f"), "so:")


@pytest.mark.parametrize(
    ("contents", "fault"),
    [
        ([model("a"), user("b")], "[0] 'model' where user is expected"),
        ([user("a"), user("b")], "[1] 'user' where model is expected"),
        ([{"role": "assistant", "parts": [{"text": "a"}]}], "[0] 'assistant' where user is expected"),
        ([user("a"), model("b")], "[end] the model speaks last"),
        ([user()], "[0] parts is an empty list"),
        ([user("")], "[0] an empty part"),
        ([user(response("f"))], "[0] 1 responses for the calls []"),
        ([user("a"), model(call("f")), user("b")], "[2] 0 responses for the calls ['f']"),
        ([user("a"), model(call("f")), user(response("g"))], "[2] 1 responses for the calls ['f']"),
        (
            [user("a"), model(call("f", id="x")), user(response("f", id="y"))],
            "[2] a response with an id that no call has",
        ),
        ([user("a"), model(call("f")), user("b", response("f"))], "[2] responses do not come first"),
        ([user("a", call("f")), model("b"), user("c")], "[0] a call said by user"),
        (
            [
                user("a"),
                model(call("f", signature="s")),
                user(response("f")),
                model(call("f"), call("g", signature="s")),
                user(response("f"), response("g")),
            ],
            "[3] the first functionCall has no thoughtSignature",
        ),
    ],
    ids=str,
)
def test_faults_are_named(contents: list[Json], fault: str) -> None:
    assert fault in request_faults("gemini", contents)


# ── Contexts ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "system",
    [
        "Be brief.",
        {"parts": [{"text": "Be brief."}]},
        [{"text": "Be brief."}],
        ["Be brief."],
        {"text": "Be brief."},
    ],
    ids=str,
)
def test_a_system_instruction_is_given_in_any_form(system: Any) -> None:
    ctx = context()
    assert ctx.fit([user("hi")], system=system) == [user("hi")]
    assert [fact.content for fact in (event.fact for event in ctx.log) if isinstance(fact, Instructed)] in (
        ["Be brief."],
        [(Text(text="Be brief."),)],
    )


def test_a_fitted_request_is_written_for_gemini() -> None:
    ctx = context(dialect="openai_chat")
    history = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    ctx.fit(history)
    fitted = Fitted.of(fold(list(ctx.log), MessageTokens(ESTIMATE)))
    assert fitted.to_gemini() == [user("hi")]
    assert fitted.system == "Be brief."


def long_history(turns: int) -> list[Json]:
    history: list[Json] = []
    for number in range(turns):
        history += [
            user(f"question {number}"),
            model(call("read", args={"path": f"a{number}.py"}, signature=f"sig{number:05}")),
            user({"functionResponse": {"name": "read", "response": {"result": f"line {number}\n" * 200}}}),
            model(f"answer {number}"),
        ]
    return [*history, user("and now?")]


@pytest.mark.parametrize("spelling", [list, snake], ids=["camelCase", "snake_case"])
def test_a_long_history_is_reduced_and_stays_legal(spelling: Any) -> None:
    history = spelling(long_history(40))
    ctx = context(8_000)
    for end in range(1, len(history) + 1, 2):
        shown = ctx.fit(history[:end])
        assert request_faults("gemini", shown) == []
    assert ctx.report().used <= ctx.report().limit
    text = json.dumps(shown)
    assert '"sig00039"' in text
    assert SKIPPED_SIGNATURE not in text
    assert check_gemini(render_log(ctx.log, "gemini")) == []


def test_tools_of_gemini_are_counted() -> None:
    declared = {"name": "read", "description": "Reads a file. " * 100}
    without, beside = context(), context()
    without.fit([user("hi")])
    beside.fit([user("hi")], tools=[{"functionDeclarations": [declared]}])
    assert beside.report().used > without.report().used + 200


def test_recall_tools_are_declared_in_one_tool() -> None:
    (tool,) = foveal.recall.tools("gemini")
    names = [declared["name"] for declared in tool["functionDeclarations"]]
    assert names == ["recall_search", "recall_read"]
    assert all(
        declared["parametersJsonSchema"]["type"] == "object" for declared in tool["functionDeclarations"]
    )


def test_the_end_of_a_reply_is_found() -> None:
    assert (
        stop_reason({"candidates": [{"content": model("x"), "finishReason": "MAX_TOKENS"}]}) == "MAX_TOKENS"
    )


names = st.sampled_from(("f", "g"))
bodies = st.sampled_from(({"output": "1"}, {"result": "2"}, {"error": "3"}, {"a": [1]}, {}))


@given(
    st.lists(
        st.lists(st.tuples(names, bodies, st.booleans(), st.booleans()), min_size=1, max_size=4), max_size=4
    )
)
def test_any_calls_with_and_without_ids_are_unchanged(
    steps: list[list[tuple[str, Json, bool, bool]]],
) -> None:
    contents = [user("q")]
    for number, step in enumerate(steps):
        ids = [{"id": f"{number}.{at}"} if has_id else {} for at, (_, _, has_id, _) in enumerate(step)]
        contents.append(model(*(call(name, **ids[at]) for at, (name, *_) in enumerate(step))))
        bodies = [
            {"name": name, "response": given, **(ids[at] if repeats else {})}
            for at, (name, given, _, repeats) in enumerate(step)
        ]
        contents.append(user(*({"functionResponse": body} for body in bodies)))
    assert check_gemini(contents) == [] or not steps
    assert write(facts(contents)) == contents


# ── google-genai ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.long
def test_what_is_written_is_what_google_genai_accepts() -> None:
    types = pytest.importorskip("google.genai.types")
    shown = context(8_000).fit(long_history(40))
    chat = [
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "a", "content": "1"},
    ]  # fmt: skip
    converted = write([fact for chunk in wire_for("openai_chat").read(chat) for fact in chunk.facts])
    for content in (*shown, *converted, *NATIVE[:3]):
        read = types.Content.model_validate(content)
        (again,) = write(facts([read]))[-1:]
        assert types.Content.model_validate(again) == read


def test_errors_of_google_genai_are_recognised() -> None:
    errors = pytest.importorskip("google.genai.errors")
    message = "The input token count (1048600) exceeds the maximum number of tokens allowed (1048576)."
    body = {"error": {"code": 400, "status": "INVALID_ARGUMENT", "message": message}}
    found = recognise_overflow(errors.ClientError(400, body))
    assert found is not None
    assert (found.kind, found.needed, found.limit) == ("tokens", 1_048_600, 1_048_576)
