"""Events and their encoding; old lines stay readable, and unknown facts are preserved."""

from __future__ import annotations

import json
from typing import get_args

import msgspec
import pytest

import foveal.events
from foveal.core.log import (
    Branched,
    BranchEnded,
    Call,
    Clipped,
    Compacted,
    CompactionFailed,
    Dropped,
    Equipped,
    Erased,
    Event,
    Expanded,
    ForeignSummary,
    Instructed,
    Known,
    Mark,
    Marked,
    Mask,
    Masked,
    Media,
    ModelSaid,
    Noted,
    Opaque,
    Opened,
    Overflowed,
    Pinned,
    Prioritised,
    Reverted,
    Rewound,
    SnapshotTaken,
    Steered,
    Superseded,
    Text,
    Thinking,
    ThinkingLeftOut,
    ToolReturned,
    ToolsLoaded,
    Unknown,
    Used,
    UserSaid,
    decode,
    encode,
    handle,
    kind,
    raw,
    unraw,
)
from foveal.errors import UnreadableEvent

NATIVE = raw({"type": "thinking", "thinking": "Hm", "signature": "c2ln+/=", "n": 1.50, "ü": [None, True]})
ALL_FACTS = [
    Marked(
        target=1, marks=(Mark(part=-1), Mark(part=0, extra=raw({"cache_control": {"type": "ephemeral"}})))
    ),
    Opened(model="gpt-4.1", policy="economy", settings=raw({"window": 8_000}), origin="s1"),
    Equipped(tools=raw([{"name": "bash"}])),
    Equipped(tools=raw([{"name": "load_tools"}]), deferred={"get_issue": 120}),
    ToolsLoaded(target=4, tools=raw([{"name": "get_issue"}]), dialect="anthropic"),
    Instructed(content="be brief", role="developer", source="AGENTS.md", aside=True, extra=raw({"x": 1})),
    Instructed(content=(Text(text="a", extra=raw({"cache_control": {"type": "ephemeral"}})),), replaces=3),
    UserSaid(content="hi", dialect="anthropic", extra=raw({"name": "Ada"})),
    UserSaid(content=(Media(native=NATIVE, mime="image/png", size=9, units=85), Opaque(native=NATIVE))),
    ModelSaid(
        content=(
            Thinking(native=NATIVE, text="Hm"),
            Text(text="ok"),
            Call(id="a", name="f", arguments='{"a":  1}', variety="custom", extra=raw({"k": "v"})),
        ),
        listed=True,
        dialect="openai_chat",
    ),
    ToolReturned(call_id="a", content="done", name="f", error=True, variety="custom", extra=NATIVE),
    ToolReturned(call_id="a", content=()),
    ForeignSummary(native=NATIVE, text="In short", dialect="anthropic", extra=raw({"message": {}})),
    Pinned(text="never", target=4),
    Prioritised(target=4, priority="low"),
    Steered(by="hook", keep=(4,), focus="f", veto=True, refused="no", reason="tokens"),
    Superseded(target=4, by=9),
    Noted(text="for people", topic="t"),
    Used(
        input=1,
        cache_read=2,
        cache_write=3,
        output=4,
        reasoning=5,
        model="m",
        units=6,
        predicted=7,
        unreduced=8,
    ),
    SnapshotTaken(data=raw({"commit": "abc"}), label="git"),
    Clipped(
        target=7,
        pieces=((0, 3), "[…]", (9, 12)),
        part=1,
        kept_tokens=3,
        total_tokens=9,
        strategy="both",
        rule="r",
    ),
    Masked(
        masks=(Mask(target=7, text="[masked]"), Mask(target=6, text="{}", part=2)), reason="budget", rule="r"
    ),
    Dropped(ranges=((1, 3), (5, 9)), reason="budget", rule="r"),
    Compacted(
        first=1,
        last=9,
        summary="In short",
        keep=(4,),
        chunks=("a",),
        by="ledger",
        metrics=raw({"kept": 0.5}),
        reason="x",
        rule="r",
    ),
    CompactionFailed(first=1, last=9, problem="it changed", by="m", metrics=raw({"asked": 1}), reason="hand"),
    Expanded(first=1, last=9),
    Overflowed(model="m", limit=8, needed=9, output=1, sent=7, limit_kind="output", problem="too long"),
    ThinkingLeftOut(problem="bound"),
    Branched(task="find it", is_joined=True),
    Branched(task="find it", is_joined=True, fork="demo-2"),
    BranchEnded(branch=4, result="found", source="model", keep=(5,), by_code=True),
    Reverted(target=3),
    Rewound(to=2, keep_reductions=True),
    Erased(was="user_said"),
]


def test_the_list_above_has_every_kind_of_fact() -> None:
    assert {type(fact) for fact in ALL_FACTS} == set(get_args(Known))


def _has_opaque_field(fact: Known) -> bool:
    """Say whether a fact has an optional field of opaque bytes."""
    return any(name in encode(Event(0, fact)) for name in (b'"extra"', b'"settings"', b'"metrics"'))


WITHOUT_OPAQUE = [fact for fact in ALL_FACTS if not _has_opaque_field(fact)]
WITH_OPAQUE = [fact for fact in ALL_FACTS if _has_opaque_field(fact)]


@pytest.mark.parametrize("fact", WITHOUT_OPAQUE, ids=kind)
def test_a_decoded_fact_equals_the_encoded_fact(fact: Known) -> None:
    assert_round_trip(fact)


@pytest.mark.parametrize("fact", WITH_OPAQUE, ids=kind)
def test_a_decoded_fact_with_opaque_fields_equals_the_encoded_fact(fact: Known) -> None:
    assert_round_trip(fact)


def assert_round_trip(fact: Known) -> None:
    event = Event(17, fact, 1_700_000_000.25)
    line = encode(event)
    assert b"\n" not in line
    again = decode(line)
    assert again == event
    assert type(again.fact) is type(fact)
    assert encode(again) == line
    assert json.loads(line)["fact"]["kind"] == kind(fact)


@pytest.mark.parametrize("fact", WITHOUT_OPAQUE, ids=kind)
def test_a_lone_surrogate_is_decoded(fact: Known) -> None:
    assert_surrogate_round_trip(fact)


@pytest.mark.parametrize(
    "fact", [fact for fact in WITH_OPAQUE if kind(fact) in ("opened", "compacted")], ids=kind
)
def test_a_lone_surrogate_beside_opaque_fields_is_decoded(fact: Known) -> None:
    assert_surrogate_round_trip(fact)


def assert_surrogate_round_trip(fact: Known) -> None:
    for name in (field.name for field in msgspec.structs.fields(fact) if field.type is str):
        odd = msgspec.structs.replace(fact, **{name: "odd \ud800 text"})
        assert decode(encode(Event(1, odd))) == Event(1, odd)


@pytest.mark.parametrize("fact", ALL_FACTS, ids=kind)
def test_facts_are_immutable(fact: Known) -> None:
    with pytest.raises(AttributeError):
        setattr(fact, fact.__struct_fields__[0], None)
    with pytest.raises(AttributeError):
        Event(1, fact).seq = 2  # type: ignore[misc]


def test_opaque_fields_keep_their_bytes() -> None:
    odd = msgspec.Raw(b'{"a":  1.50,"b":"\\u00fc","c":1e3}')
    fact = UserSaid(content=(Opaque(native=odd),), dialect="anthropic")
    again = decode(encode(Event(0, fact)))
    assert bytes(again.fact.content[0].native) == bytes(odd)  # type: ignore[union-attr]


def test_arguments_keep_their_exact_text() -> None:
    for arguments in ('{"a":   1}', "not json", "", "[1,2", '{"k": "\\ud83d"}'):
        fact = ModelSaid(content=(Call(id="a", name="f", arguments=arguments),))
        assert decode(encode(Event(0, fact))).fact == fact


LATER_VERSION_LINES = [
    b'{"seq":5,"fact":{"kind":"dreamt","of":{"sheep":[1,2,3]}},"v":2}',
    b'{"seq":5,"fact":{"kind":"dreamt","of":"x"}}',
    b'{"seq":5,"fact":{"kind":"user_said","content":"hi","mood":"good"},"at":1.5,"v":2}',
    b'{"seq":5,"fact":{"kind":"user_said","content":"hi","mood":"good"}}',
    b'{"seq":5,"fact":{"kind":"noted","text":{"rich":true}}}',
]


@pytest.mark.parametrize("line", LATER_VERSION_LINES)
def test_events_of_a_later_version_are_preserved(line: bytes) -> None:
    event = decode(line)
    assert isinstance(event.fact, Unknown)
    assert event.seq == 5
    assert json.loads(encode(event)) == json.loads(line)
    assert decode(encode(event)) == event


def test_events_of_a_later_version_with_invalid_unicode_are_preserved() -> None:
    line = b'{"seq":5,"fact":{"kind":"dreamt","of":"\\ud800"},"v":2}'
    assert json.loads(encode(decode(line))) == json.loads(line)


def test_a_line_without_a_version_is_version_one() -> None:
    line = b'{"seq":0,"fact":{"kind":"user_said","content":"hi"}}'
    assert decode(line) == Event(0, UserSaid(content="hi"))
    assert encode(decode(line)) == line


VERSION_ONE_LINES = {
    b'{"seq":0,"fact":{"kind":"opened","model":"gpt-4.1","policy":"economy"}}': Opened(
        model="gpt-4.1", policy="economy"
    ),
    b'{"seq":0,"fact":{"kind":"tool_returned","call_id":"a","content":[{"part":"text","text":"x"}]}}': ToolReturned(
        call_id="a", content=(Text(text="x"),)
    ),
    b'{"seq":0,"fact":{"kind":"masked","masks":[{"target":3,"text":"m"}],"reason":"budget"}}': Masked(
        masks=(Mask(target=3, text="m"),), reason="budget"
    ),
    b'{"seq":0,"fact":{"kind":"clipped","target":3,"pieces":[[0,5],"[cut]"]}}': Clipped(
        target=3, pieces=((0, 5), "[cut]")
    ),
    b'{"seq":0,"fact":{"kind":"rewound","to":2,"keep_reductions":true}}': Rewound(to=2, keep_reductions=True),
}


@pytest.mark.parametrize(("line", "fact"), VERSION_ONE_LINES.items())
def test_lines_of_version_one_are_decoded(line: bytes, fact: Known) -> None:
    assert decode(line) == Event(0, fact)
    assert encode(Event(0, fact)) == line


INVALID_LINES = [
    b"", b"{", b"null", b"[]", b"17", b'"text"', b"{}", b'{"seq":1}',
    b'{"seq":1,"fact":{}}', b'{"seq":1,"fact":{"kind":7}}', b'{"seq":1,"fact":[]}', b"\xff\xfe", b"\x00" * 40,
    b'{"seq":1,"fact":{"kind":"noted","text":"torn', b"[" * 5_000,
]  # fmt: skip


@pytest.mark.parametrize("line", INVALID_LINES)
def test_invalid_bytes_raise_an_error_that_shows_them(line: bytes) -> None:
    with pytest.raises(UnreadableEvent, match="not an event"):
        decode(line)


@pytest.mark.parametrize(
    "line",
    [
        b'{"seq":"x","fact":{"kind":"noted","text":""}}',
        b'{"seq":-1.5,"fact":{"kind":"noted","text":""}}',
        b'{"seq":1,"fact":{"kind":"noted","text":""},"at":"noon"}',
    ],
)
def test_seq_and_time_must_be_numbers(line: bytes) -> None:
    with pytest.raises(UnreadableEvent, match="not an event"):
        decode(line)


def test_a_line_may_be_text_as_well_as_bytes() -> None:
    event = Event(3, UserSaid(content="hü"))
    assert decode(encode(event).decode()) == event


def test_opaque_bytes_are_decoded_anew_each_time() -> None:
    first = unraw(NATIVE)
    first["ü"].append("spoiled")
    assert unraw(NATIVE)["ü"] == [None, True]


def test_a_handle_is_derived_from_seq() -> None:
    assert [handle(0), handle(12), Event(7, Noted(text="")).handle] == ["e0", "e12", "e7"]


def test_every_kind_of_fact_has_its_public_name() -> None:
    public = vars(foveal.events)
    assert [known.__name__ for known in get_args(Known) if known.__name__ not in public] == []
