"""The legality check: never raises, tells no text, and finds what providers refuse."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveal.core.log.events import Dialect
from foveal.core.wire.cache_marks import count_cache_marks, limit_cache_marks
from foveal.core.wire.legality import request_faults
from support.histories import DIALECTS

SECRET = "the-text-of-a-message"
MARK = {"cache_control": {"type": "ephemeral"}}

names = st.sampled_from(
    (
        "role",
        "content",
        "type",
        "text",
        "id",
        "call_id",
        "tool_use_id",
        "tool_calls",
        "input",
        "output",
        "name",
        "toolUse",
        "toolResult",
        "toolUseId",
        "document",
        "cachePoint",
        "json",
        "parts",
        "functionCall",
        "functionResponse",
        "response",
        "args",
        "thoughtSignature",
    )
)
words = st.sampled_from(
    ("user", "assistant", "tool", "system", "text", "tool_use", "tool_result", "function", "function_call",
     "function_call_output", "reasoning", "message", "thinking", "model", "a", "")
)  # fmt: skip
values = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | words | st.just(SECRET),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize("dialect", DIALECTS)
@given(messages=st.lists(values, max_size=5), system=values, tools=st.lists(values, max_size=2))
def test_any_json_is_checked_without_an_error(
    dialect: Dialect, messages: list[Any], system: Any, tools: list[Any]
) -> None:
    assert isinstance(request_faults(dialect, messages, system=system, tools=tools), list)


@pytest.mark.parametrize("dialect", DIALECTS)
@given(roles=st.lists(words, max_size=4), kinds=st.lists(words, max_size=4))
def test_a_fault_has_no_text_of_a_message_in_it(dialect: Dialect, roles: list[str], kinds: list[str]) -> None:
    fields = dict.fromkeys(("text", "content", "input", "output", "arguments", "thinking"), SECRET)
    parts = [{**fields, "type": kind} for kind in kinds]
    messages = [{**fields, "role": role, "content": content} for role in roles for content in (SECRET, parts)]
    items = [{**fields, "type": kind} for kind in kinds]
    assert SECRET not in str(request_faults(dialect, [*messages, *items]))


@pytest.mark.parametrize(
    ("dialect", "messages", "fault"),
    [
        ("anthropic", [{"role": "assistant", "content": "Hi."}], "[0] 'assistant' where user is expected"),
        ("anthropic", [{"role": "user", "content": " "}], "[0] an empty text"),
        ("anthropic", [{"role": "user", "content": []}], "[0] content is an empty list"),
        (
            "openai_chat",
            [{"role": "tool", "tool_call_id": "a", "content": "x"}],
            "[0] result of 'a', which has no call",
        ),
        ("openai_chat", [{"role": "user"}], "[0] content is of type NoneType"),
        (
            "bedrock",
            [{"role": "assistant", "content": [{"text": "x"}]}],
            "[0] 'assistant' where user is expected",
        ),
        ("bedrock", [{"role": "user", "content": [{"text": " "}]}], "[0] an empty text"),
        (
            "bedrock",
            [{"role": "user", "content": [{"toolResult": {"toolUseId": "a", "content": []}}]}],
            "[0] results ['a'] for calls []",
        ),
        (
            "openai_responses",
            [{"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}],
            "[end] ('function', 'a') has no output",
        ),
    ],
)
def test_faults_are_named(dialect: Dialect, messages: list[Any], fault: str) -> None:
    assert request_faults(dialect, messages) == [fault]


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=3), max_size=12), st.integers(0, 5))
def test_the_newest_marks_are_kept_up_to_the_limit(marked: list[list[bool]], most: int) -> None:
    messages: list[Any] = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "x", **(MARK if is_marked else {})} for is_marked in one],
        }
        for one in marked
    ]
    before = json.dumps(messages)
    limited = limit_cache_marks(messages, most)
    assert count_cache_marks(limited) <= most
    assert limit_cache_marks(messages, 99) == messages
    assert json.dumps(messages) == before
    newest = next((one for one in reversed(limited) if count_cache_marks(one)), None)
    fitting = [one for one in messages if 0 < count_cache_marks(one) <= most]
    assert newest == (fitting[-1] if fitting else None)


def test_marks_of_bedrock_are_counted_and_the_longest_come_first() -> None:
    point, long = {"cachePoint": {"type": "default"}}, {"cachePoint": {"type": "default", "ttl": "1h"}}
    spec = {"toolSpec": {"name": "f"}}
    messages = [{"role": "user", "content": [{"text": "a"}, point, {"text": "b"}, point]}]
    assert request_faults("bedrock", messages, system=[{"text": "s"}, long], tools=[spec, long]) == []
    assert request_faults("bedrock", messages, system=[{"text": "s"}, long], tools=[spec, point]) == [
        "a cachePoint of 1h after a shorter one"
    ]
    assert request_faults("bedrock", messages, system=[{"text": "s"}, long, long], tools=[spec, long]) == [
        "5 cache marks, 4 are allowed"
    ]


def test_more_than_four_marks_are_a_fault() -> None:
    text = {"type": "text", "text": "Hi.", **MARK}
    messages = [{"role": "user", "content": [text, text]}]
    assert request_faults("anthropic", messages, system=[text], tools=[{"name": "f", **MARK}]) == []
    assert request_faults("anthropic", messages, system=[text, text], tools=[{"name": "f", **MARK}]) == [
        "5 cache marks, 4 are allowed"
    ]
