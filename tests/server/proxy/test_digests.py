"""Histories as chains of digests, answers read from bytes, and where sessions end: the parts without a server."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveal.core.log import Dialect, Event, Noted
from foveal.errors import MalformedMessage
from foveal.server.proxy import ClientHistory, ClientRequest, RequestCache, digest_index, upstream_reply
from foveal.server.proxy import digests as chain
from foveal.stores import SqliteStore
from foveal.stores.sqlite import LastSeqCache

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
    return chain.digests(messages, dialect)


@given(HISTORY, st.integers(0, 12), st.sampled_from(DIALECTS))
def test_the_digests_of_a_beginning_are_the_beginning_of_the_digests(
    messages: list[Json], at: int, dialect: Dialect
) -> None:
    assert digests(messages, dialect)[:at] == digests(messages[:at], dialect)


@given(st.lists(HISTORY, min_size=1, max_size=6), st.sampled_from(DIALECTS))
def test_what_is_remembered_of_earlier_requests_changes_nothing(
    histories: list[list[Json]], dialect: Dialect
) -> None:
    memory, whole = RequestCache(), list[Json]()
    for messages in histories:
        whole = [*whole, *messages]
        raw = msgspec.Raw(json.dumps(whole).encode())
        remembered, anew = (ClientHistory.read(raw, dialect, known) for known in (memory, RequestCache()))
        assert remembered.digests == anew.digests
        assert remembered.instructed == anew.instructed
        assert list(remembered.messages) == list(anew.messages)


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
def test_what_makes_no_difference_is_the_same_message(dialect: Dialect, one: Json, other: Json) -> None:
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
def test_what_makes_a_difference_is_another_message(dialect: Dialect, one: Json, other: Json) -> None:
    assert digests([one], dialect) != digests([other], dialect)


def test_a_history_of_one_dialect_is_never_one_of_another() -> None:
    message = {"role": "user", "content": "a"}
    assert len({chain.digests([message], dialect)[0] for dialect in DIALECTS}) == 3


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=12,
)


@given(st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()), st.sampled_from(DIALECTS))
def test_nothing_that_a_client_may_send_breaks_the_reading(body: bytes, dialect: Dialect) -> None:
    asked = ClientRequest(dialect, body)
    assert asked.problem or asked.messages


FIELDS = st.sampled_from(["role", "content", "type", "tool_calls", "function_call", "input", "id", "text"])


@given(st.lists(st.dictionaries(FIELDS, JSON, max_size=4), min_size=1, max_size=4), st.sampled_from(DIALECTS))
def test_no_message_breaks_the_reading(messages: list[Json], dialect: Dialect) -> None:
    name = "input" if dialect == "openai_responses" else "messages"
    beside = {"system": messages[0].get("content"), "instructions": messages[0].get("text")}
    asked = ClientRequest(dialect, json.dumps({"model": "m", name: messages, **beside}).encode())
    assert asked.problem or len(asked.digests) == len(messages)
    if not asked.problem:
        with suppress(MalformedMessage):
            assert sum(chunk.messages for chunk in asked.chunks(0)) == len(messages)
            asked.aside()


EVENT = JSON.map(lambda value: b"data: " + json.dumps(value).encode() + b"\n\n")


@given(
    st.binary(max_size=80)
    | JSON.map(lambda value: json.dumps(value).encode())
    | st.lists(EVENT).map(b"".join),
    st.sampled_from(DIALECTS),
    st.booleans(),
)
def test_nothing_that_upstream_may_send_breaks_the_reading(
    data: bytes, dialect: Dialect, streamed: bool
) -> None:
    found = upstream_reply.read(data, dialect, streamed=streamed)
    assert found is None or found.facts


def test_a_request_with_other_messages_keeps_every_other_byte() -> None:
    body = b'{"a": 1.50, "messages": [{"role":"user","content":"x"}], "model":"m", "max_tokens": 9, "z":"\\u00fc"}'
    asked = ClientRequest("openai_chat", body)
    assert asked.written(None) == body
    assert (
        asked.written([], max_tokens=3)
        == b'{"a":1.50,"messages":[],"model":"m","max_tokens":3,"z":"\\u00fc"}'
    )


def test_nothing_is_looked_for_in_all_that_a_tenant_has() -> None:
    connection = apsw.Connection(":memory:")
    for statement in digest_index.SCHEMA:
        connection.execute(statement)
    looking: list[tuple[str, tuple[Any, ...]]] = [
        (digest_index._ANY, ("t", b"d")),
        (digest_index._SESSIONS, ("t", b"d", 3)),
        (digest_index._STALE, ("t", "s", 3)),
    ]
    for statement, values in looking:
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)]
        assert plan
        assert not any("SCAN heads" in step or step.endswith("(tenant=?)") for step in plan), plan
    connection.close()


# ── where sessions end ───────────────────────────────────────────────────────────────────────────────────


def event(seq: int) -> Event:
    return Event(seq, Noted(text=f"note {seq}"), 1.0)


@pytest.mark.parametrize("durability", ["full", "normal"])
def test_a_store_sees_at_once_what_another_one_has_written(tmp_path: Path, durability: Any) -> None:
    async def work() -> None:
        path = tmp_path / "store.db"
        async with SqliteStore(path, durability=durability) as one, SqliteStore(path) as other:
            for seq in range(0, 40, 2):
                await one.append("s", [event(seq)])
                assert await one.news("s", first=seq + 1) == ([], False)
                assert await other.news("s", first=seq) == ([event(seq)], False)
                await other.append("s", [event(seq + 1)])
                assert await one.news("s", first=seq + 1) == ([event(seq + 1)], False)
                assert await one.news("s", first=seq + 2) == ([], False)
            await other.erase("s")
            assert (await one.news("s", first=40))[1]
            assert (await other.news("s", first=40))[1]

    asyncio.run(work())


def test_a_store_that_reads_beside_its_own_writing_never_misses_anything(tmp_path: Path) -> None:
    async def work() -> None:
        async with SqliteStore(tmp_path / "store.db", durability="normal") as store:
            await store.append("s", [event(0)])
            seen = 1

            async def read() -> None:
                nonlocal seen
                while seen < 200:
                    news, _ = await store.news("s", first=seen)
                    assert [one.seq for one in news] == list(range(seen, seen + len(news)))
                    seen += len(news)
                    await asyncio.sleep(0)

            reading = asyncio.create_task(read())
            for seq in range(1, 200):
                await store.append("s", [event(seq)])
                if seq % 5 == 0:
                    await asyncio.sleep(0)
            await asyncio.wait_for(reading, 60)

    asyncio.run(work())


def test_after_an_append_that_was_cancelled_nothing_is_taken_for_known() -> None:
    ends = LastSeqCache()
    with ends.appending("s", 7, 3):
        assert not ends.known("s", 7, 2)
    assert ends.known("s", 7, 3)
    assert not ends.known("s", 8, 3)
    with pytest.raises(asyncio.CancelledError), ends.appending("s", 7, 4):
        raise asyncio.CancelledError
    ends.keep("s", 7, 3)
    assert not ends.known("s", 7, 3)


def test_what_was_read_beside_something_that_changed_sessions_is_not_kept() -> None:
    ends = LastSeqCache()
    ends.keep("s", 1, 5)
    begun = ends.begun
    with ends.unknown():
        pass
    assert begun != ends.begun
    assert not ends.known("s", 1, 5)
