"""Tests of digest chains, the digest index, client requests and upstream replies, without a server."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from typing import Any

import apsw
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveal.core.log import Dialect
from foveal.core.wire.common import most_values
from foveal.errors import MalformedMessage
from foveal.server.databases.sqlite_database import SQLITE_TABLES
from foveal.server.proxy import digest_index
from foveal.transport import client_request, upstream_reply
from foveal.transport.client_request import ClientRequest, RequestCache
from foveal.transport.digests import count_up_to, history_digests
from foveal.web import request_body
from foveal.web.http_errors import HttpError
from foveal.web.request_body import check_values

Json = dict[str, Any]
DIALECTS: list[Dialect] = ["openai_chat", "openai_responses", "anthropic"]
TEXT = st.text(max_size=12)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", "tool"]), "content": TEXT | st.none()},
    optional={
        "name": TEXT,
        "refusal": st.none(),
        "tool_calls": st.just([]),
        "type": st.sampled_from(["message"]),
    },
)
HISTORY = st.lists(MESSAGE, min_size=1, max_size=12)


def digests(messages: list[Json], dialect: Dialect = "openai_chat") -> list[bytes]:
    return history_digests(messages, dialect)


@given(HISTORY, st.integers(0, 12), st.sampled_from(DIALECTS))
def test_a_prefix_of_a_history_has_a_prefix_of_its_digests(
    messages: list[Json], at: int, dialect: Dialect
) -> None:
    assert digests(messages, dialect)[:at] == digests(messages[:at], dialect)


LIST_FIELD: dict[Dialect, str] = {
    "openai_chat": "messages",
    "openai_responses": "input",
    "anthropic": "messages",
}


def body_with(
    messages: list[Json], dialect: Dialect, *, before: Json, after: Json, separators: tuple[str, str]
) -> bytes:
    fields = {**before, LIST_FIELD[dialect]: messages, **after}
    return json.dumps(fields, separators=separators, ensure_ascii=False).encode()


@given(
    st.lists(HISTORY, min_size=1, max_size=5),
    st.integers(0, 60),
    st.sampled_from([1, 16, 64, 4_096]),
    st.sampled_from(DIALECTS),
    st.sampled_from(
        [{}, {"model": "m"}, {"system": '"messages": [{"input": ['}, {"messages": 1, "input": 2}]
    ),
    st.sampled_from([{}, {"model": "other"}, {"tools": [{"messages": [1], "input": [2]}]}, {"\0": [3]}]),
    st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " : ")]),
    st.booleans(),
)
def test_the_request_cache_changes_nothing(
    histories: list[list[Json]],
    edited: int,
    block: int,
    dialect: Dialect,
    before: Json,
    after: Json,
    separators: tuple[str, str],
    has_siphash: bool,
) -> None:
    memory, whole, name = RequestCache(), list[Json](), LIST_FIELD[dialect]
    bounds: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_request, "DIGESTED_BLOCK_BYTES", block)
        patch.setattr(client_request, "_HAS_SIPHASH", has_siphash)
        for messages in histories:
            whole = [*whole, *messages]
            for history in (whole, [*whole[:edited], {"role": "user", "content": "edited"}], whole[:edited]):
                body = body_with(history, dialect, before=before, after=after, separators=separators)
                remembered, anew = (
                    ClientRequest(
                        dialect, body, known, model="m", check_values=lambda _, number: bounds.append(number)
                    )
                    for known in (memory, RequestCache())
                )
                assert bounds[-1] == most_values(body)
                assert bounds == sorted(bounds[: len(bounds) // 2]) * 2
                bounds.clear()
                assert remembered.problem == anew.problem
                assert remembered.digests == anew.digests == digests(list(anew.messages), dialect)
                assert remembered.instructions == anew.instructions
                assert list(remembered.messages) == list(anew.messages)
                decoded = {field: msgspec.json.decode(value) for field, value in remembered.fields.items()}
                assert decoded == json.loads(body)
                assert len(anew.messages) == len(history)
                assert [json.loads(anew.messages.text(at)) for at in range(len(history))] == decoded[name]


def long_history(at: int = -1, content: str = "") -> bytes:
    """Return a request with many messages, one of which may have another content."""
    messages = [{"role": "user", "content": f"question {number:05}"} for number in range(2_000)]
    if at >= 0:
        messages[at]["content"] = content
    return json.dumps({"model": "gpt-4.1", "messages": messages}).encode()


@pytest.mark.parametrize("at", [0, 1, 900, 1_990, 1_999])
@pytest.mark.parametrize("content", ["question ____!", "a question that is longer"])
def test_what_follows_a_changed_message_is_not_taken_for_known(at: int, content: str) -> None:
    memory = RequestCache()
    before = ClientRequest("openai_chat", long_history(), memory)
    edited = ClientRequest("openai_chat", long_history(at, content), memory)
    assert edited.digests == ClientRequest("openai_chat", long_history(at, content)).digests
    assert edited.digests[at:] != before.digests[at:]
    assert at - 200 < edited.count_same(before.blocks) <= at
    again = ClientRequest("openai_chat", long_history(), memory)
    assert 1_800 < again.count_same(before.blocks) <= 2_000
    assert at - 200 < again.count_same(edited.blocks) <= at


@pytest.mark.parametrize("moved", [b" ", b'{"role": "user", "content": "0"}, '])
def test_a_history_that_has_moved_has_no_known_block(moved: bytes) -> None:
    before = ClientRequest("openai_chat", long_history())
    request = ClientRequest("openai_chat", long_history().replace(b"[{", b"[" + moved + b"{", 1))
    assert len(before.blocks) > 10
    assert not set(before.blocks) & set(request.blocks)


def test_blocks_of_another_owner_dialect_or_process_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = RequestCache()

    def read_anew(dialect: Dialect, owner: str) -> bool:
        seen = list[bytes]()
        body = long_history()
        ClientRequest(dialect, body, memory, owner=owner, check_depth=lambda text, _: seen.append(text))
        return sum(map(len, seen)) > len(body) // 2

    assert read_anew("openai_chat", "one")
    assert not read_anew("openai_chat", "one")
    assert read_anew("openai_chat", "two")
    assert read_anew("anthropic", "one")
    monkeypatch.setattr(client_request, "_SECRET", bytes(32))
    assert read_anew("openai_chat", "one")


@pytest.mark.parametrize("has_siphash", [True, False])
def test_each_half_of_a_key_depends_on_the_secret(
    monkeypatch: pytest.MonkeyPatch, *, has_siphash: bool
) -> None:
    monkeypatch.setattr(client_request, "_HAS_SIPHASH", has_siphash)
    one = ClientRequest("openai_chat", long_history()).blocks
    monkeypatch.setattr(client_request, "_SECRET", bytes(32))
    other = ClientRequest("openai_chat", long_history()).blocks
    halves = [(a[:8] == b[:8], a[8:] == b[8:]) for a, b in zip(one, other, strict=True)]
    assert set(halves) == {(False, False)}


def values(count: int) -> str:
    return '{"role": "user", "content": [' + "0," * count + "0]}"


@pytest.mark.parametrize(
    ("end", "is_refused"),
    [
        ("]}", False),
        ("," + values(200) + "]}", False),
        ("," + values(500) + "]}", True),
        ('], "tools": [' + "1," * 500 + "1]}", True),
        ('], "messages": [' + "1," * 500 + "1]}", True),
        ('], "user": "' + "[,{" * 500 + '"}', False),
    ],
)
def test_values_are_limited_in_what_is_known_and_new_together(
    monkeypatch: pytest.MonkeyPatch, end: str, *, is_refused: bool
) -> None:
    monkeypatch.setattr(request_body, "MAX_JSON_VALUES", 1_000)
    monkeypatch.setattr(client_request, "DIGESTED_BLOCK_BYTES", 64)
    memory = RequestCache()
    known = '{"model": "gpt-4.1", "messages": [' + ",".join([values(200)] * 3)
    for last in ("]}", end, end, "]}"):
        with (
            pytest.raises(HttpError, match="more than 1,000 values")
            if is_refused and last == end
            else nullcontext()
        ):
            ClientRequest("openai_chat", (known + last).encode(), memory, check_values=check_values)


HELLO: Json = {"role": "user", "content": "hello " * 9}


@pytest.mark.parametrize(
    ("end", "messages"),
    [
        (b"]}", 1),
        (b',{"role":"user","content":"b"}]}', 2),
        (b" \n, \t{} ]}", 2),
        (b'],"messages":[{"role":"user","content":"b"},{"role":"user","content":"c"},{}]}', 3),
        (b'],"\\u006dessages":[{"role":"user","content":"b"},{}]}', 2),
        (b'],"\\u0000":5}', 1),
        (b'],"\\u0000":[5,6]}', 1),
        (b",]}", 0),
        (b",,{}]}", 0),
        (b"{}]}", 0),
        (b",5]}", 0),
        (b"]", 0),
        (b"]}]}", 0),
        (b',{"role":"user","content":"\xff"}]}', 0),
    ],
)
def test_a_body_that_begins_like_an_earlier_one_is_read_to_its_end(end: bytes, messages: int) -> None:
    head = b'{"model":"m","messages":[' + json.dumps(HELLO).encode()
    memory, empty = RequestCache(), RequestCache()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_request, "DIGESTED_BLOCK_BYTES", 4)
        ClientRequest("openai_chat", head + b"]}", memory)
        remembered, anew = (ClientRequest("openai_chat", head + end, cache) for cache in (memory, empty))
    assert len(anew.messages) == messages
    assert bool(anew.problem) is not messages
    assert list(remembered.messages) == list(anew.messages)
    assert (remembered.problem, remembered.digests) == (anew.problem, anew.digests)
    assert remembered.fields == anew.fields


def test_the_request_cache_forgets_what_was_not_continued_for_the_longest_time() -> None:
    memory = RequestCache()

    def read_anew(name: str, count: int) -> int:
        seen = list[bytes]()
        body = json.dumps({"messages": [{"role": "user", "content": name + "!" * 95}] * count}).encode()
        ClientRequest("openai_chat", body, memory, model="m", check_depth=lambda text, _: seen.append(text))
        return sum(map(len, seen))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_request, "MAX_CACHED_DIGESTS", 300)
        read_anew("one", 100), read_anew("two", 100)
        assert read_anew("one", 101) < client_request.DIGESTED_BLOCK_BYTES + 300
        read_anew("three", 100)
        assert read_anew("one", 102) < client_request.DIGESTED_BLOCK_BYTES + 300
        assert read_anew("two", 101) > 10_000


@given(HISTORY, st.integers(0, 11), st.sampled_from(DIALECTS))
def test_a_history_is_found_at_its_first_place(messages: list[Json], at: int, dialect: Dialect) -> None:
    found = digests(messages, dialect)
    digest = found[at % len(found)]
    assert count_up_to(found, digest) == found.index(digest) + 1
    with pytest.raises(ValueError, match="no message"):
        count_up_to(found, b"another")


def test_a_request_reads_only_the_messages_that_are_new() -> None:
    memory, history = RequestCache(), [{"role": "user", "content": f"question {at}"} for at in range(50_000)]
    sizes, seen = list[int](), list[bytes]()
    for number in range(3):
        history.append({"role": "user", "content": f"and then {number}?"})
        body = json.dumps({"model": "gpt-4.1", "messages": history}).encode()
        seen.clear()
        ClientRequest("openai_chat", body, memory, check_depth=lambda text, _: seen.append(text))
        sizes.append(sum(map(len, seen)))
    assert sizes[0] > 1_000_000
    assert max(sizes[1:]) < client_request.DIGESTED_BLOCK_BYTES + 200


SAME: list[tuple[Dialect, Json, Json]] = [
    ("openai_chat", {"role": "user", "content": "a"}, {"content": "a", "name": None, "role": "user"}),
    (
        "openai_chat",
        {"role": "user", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
    ),
    ("openai_chat", {"role": "system", "content": "a"}, {"role": "system", "content": "b"}),
    ("openai_chat", {"role": "assistant", "content": "a"}, {"role": "assistant", "content": "a\n", "x": 1}),
    (
        "anthropic",
        {"role": "user", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]},
    ),
    (
        "anthropic",
        {
            "role": "assistant",
            "content": [{"type": "thinking", "thinking": "?"}, {"type": "text", "text": "a"}],
        },
        {"role": "assistant", "content": "a"},
    ),
    (
        "openai_responses",
        {"role": "assistant", "content": "a"},
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "a", "annotations": []}],
        },
    ),
    (
        "openai_responses",
        {
            "type": "function_call",
            "call_id": "c",
            "name": "f",
            "arguments": "{}",
            "id": "fc_1",
            "status": "x",
        },
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": ""},
    ),
]


@pytest.mark.parametrize(("dialect", "one", "other"), SAME)
def test_equivalent_messages_have_the_same_digest(dialect: Dialect, one: Json, other: Json) -> None:
    assert digests([one], dialect) == digests([other], dialect)


OTHER: list[tuple[Dialect, Json, Json]] = [
    ("openai_chat", {"role": "user", "content": "a"}, {"role": "user", "content": "b"}),
    ("openai_chat", {"role": "user", "content": "a"}, {"role": "assistant", "content": "a"}),
    ("openai_chat", {"role": "user", "content": "a"}, {"role": "user", "content": "a", "name": "n"}),
    (
        "openai_chat",
        {"role": "tool", "tool_call_id": "1", "content": "a"},
        {"role": "tool", "tool_call_id": "2", "content": "a"},
    ),
    (
        "anthropic",
        {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {"a": []}}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {"a": [1]}}]},
    ),
    (
        "anthropic",
        {"role": "user", "content": [{"type": "image", "source": {"data": "1"}}]},
        {"role": "user", "content": [{"type": "image", "source": {"data": "2"}}]},
    ),
]


@pytest.mark.parametrize(("dialect", "one", "other"), OTHER)
def test_different_messages_have_different_digests(dialect: Dialect, one: Json, other: Json) -> None:
    assert digests([one], dialect) != digests([other], dialect)


def test_histories_of_different_dialects_have_different_digests() -> None:
    message = {"role": "user", "content": "a"}
    assert len({history_digests([message], dialect)[0] for dialect in DIALECTS}) == 3


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=12,
)


@given(st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()), st.sampled_from(DIALECTS))
def test_any_client_body_can_be_read(body: bytes, dialect: Dialect) -> None:
    asked = ClientRequest(dialect, body)
    assert asked.problem or asked.messages


FIELDS = st.sampled_from(["role", "content", "type", "tool_calls", "function_call", "input", "id", "text"])


@given(st.lists(st.dictionaries(FIELDS, JSON, max_size=4), min_size=1, max_size=4), st.sampled_from(DIALECTS))
def test_any_message_can_be_read(messages: list[Json], dialect: Dialect) -> None:
    name = "input" if dialect == "openai_responses" else "messages"
    beside = {"system": messages[0].get("content"), "instructions": messages[0].get("text")}
    asked = ClientRequest(dialect, json.dumps({"model": "m", name: messages, **beside}).encode())
    assert asked.problem or len(asked.digests) == len(messages)
    if not asked.problem:
        with suppress(MalformedMessage):
            assert sum(chunk.messages for chunk in asked.chunks(0)) == len(messages)
            asked.system_fact()


EVENT = JSON.map(lambda value: b"data: " + json.dumps(value).encode() + b"\n\n")


@given(
    st.binary(max_size=80)
    | JSON.map(lambda value: json.dumps(value).encode())
    | st.lists(EVENT).map(b"".join),
    st.sampled_from(DIALECTS),
    st.booleans(),
)
def test_any_upstream_body_can_be_read(data: bytes, dialect: Dialect, streamed: bool) -> None:
    found = upstream_reply.read_reply(data, dialect, streamed=streamed)
    assert found is None or found.facts


def test_encoding_with_other_messages_keeps_all_other_bytes() -> None:
    body = b'{"a": 1.50, "messages": [{"role":"user","content":"x"}], "model":"m", "max_tokens": 9, "z":"\\u00fc"}'
    asked = ClientRequest("openai_chat", body)
    assert asked.encode(None) == body
    assert (
        asked.encode([], max_tokens=3) == b'{"a":1.50,"messages":[],"model":"m","max_tokens":3,"z":"\\u00fc"}'
    )


def test_index_queries_use_an_index_and_scan_no_table() -> None:
    connection = apsw.Connection(":memory:")
    for statement in SQLITE_TABLES:
        connection.execute(statement)
    looking: list[tuple[str, tuple[Any, ...]]] = [
        (digest_index._FIND_SESSIONS, ("t", b"d", 3)),
        (digest_index._MARK_STALE, ("t", "s", "t", "s", 3)),
        (digest_index._DELETE_MESSAGES, ("t", "s", "t", "s")),
    ]
    for statement, values in looking:
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)]
        assert plan
        assert not any("SCAN heads" in step or step.endswith("(tenant=?)") for step in plan), plan
    connection.close()


# ── Whose it is ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("named", "user"),
    [
        ("ann", "ann"),
        ("user_1f_account_2a_session_0b0e6f1a-58d7-4f0e-9b1c-2f8f3a4b5c6d", "user_1f_account_2a"),
        ('{"device_id": "1f", "account_uuid": "2a", "session_id": "0b0e"}', "2a"),
        ('{"device_id": "1f", "account_uuid": "", "session_id": "0b0e"}', "1f"),
        ("{no JSON", "{no JSON"),
        ("[1]", "[1]"),
        (7, ""),
    ],
)
def test_a_resumed_conversation_of_claude_code_is_of_the_same_user(named: object, user: str) -> None:
    body = {"model": "m", "messages": [], "metadata": {"user_id": named}}
    assert ClientRequest("anthropic", json.dumps(body).encode()).end_user == user


def test_threads_may_share_what_is_known_of_requests() -> None:
    known, said = RequestCache(), [{"role": "user", "content": f"{at} " * 400} for at in range(40)]
    bodies = [json.dumps({"model": "m", "messages": said[: 1 + at % 40]}).encode() for at in range(400)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            counts = list(
                pool.map(lambda text: len(ClientRequest("openai_chat", text, known).digests), bodies)
            )
    finally:
        sys.setswitchinterval(interval)
    assert counts == [1 + at % 40 for at in range(400)]
