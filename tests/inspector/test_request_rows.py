"""Requests of a session: what each one read from the cache, and why not more."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from foveal.core.log.events import (
    AnyFact,
    Call,
    Compacted,
    Dialect,
    Equipped,
    Event,
    Instructed,
    Mask,
    Masked,
    ModelSaid,
    Noted,
    Opened,
    Rewound,
    ToolReturned,
    ToolsLoaded,
    Used,
    UserSaid,
    raw,
)
from foveal.inspector.timeline.builder import InspectedSettings, TimelineBuilder
from foveal.inspector.timeline.timeline import RequestRow

LONG = "the parser reads a line and keeps its number " * 400


def requests(*facts: AnyFact, pace: float = 10.0) -> list[RequestRow]:
    builder = TimelineBuilder(InspectedSettings(id="demo"))
    builder.add(Event(seq, fact, seq * pace) for seq, fact in enumerate(facts))
    return list(builder.document().requests)


def used(prompt: int, read: int, **more: object) -> Used:
    return Used(input=prompt - read, cache_read=read, output=10, model="gpt-5", **more)  # type: ignore[arg-type]


def begin() -> list[AnyFact]:
    """A conversation of one call, with its usage."""
    return [
        Opened(model="gpt-5", policy="economy"),
        UserSaid(content="Fix the parser."),
        ModelSaid(content=(Call(id="c1", name="read", arguments='{"path": "src/parser.py"}'),)),
        used(4_000, 0),
        ToolReturned(call_id="c1", content=LONG, name="read"),
        ModelSaid(content="It is fixed."),
        used(8_000, 3_968),
        UserSaid(content="And now the tests."),
    ]


def test_a_request_is_what_was_answered() -> None:
    rows = requests(*begin(), ModelSaid(content="Done."), used(8_100, 7_936))
    assert [(row.number, row.at, row.answer, row.used) for row in rows] == [
        (1, 1, 2, 3),
        (2, 4, 5, 6),
        (3, 7, 8, 9),
    ]
    assert [(row.tokens, row.read, row.uncached, row.output) for row in rows] == [
        (4_000, 0, 4_000, 10),
        (8_000, 3_968, 4_032, 10),
        (8_100, 7_936, 164, 10),
    ]
    assert [row.miss for row in rows] == [None, None, None]


def test_usage_may_come_before_its_answer_and_names_what_was_sent() -> None:
    rows = requests(
        *begin(),
        used(8_100, 7_936, until=8),
        Noted(text="meanwhile"),
        ModelSaid(content="Done."),
        UserSaid(content="ok"),
    )
    assert (rows[2].at, rows[2].answer, rows[2].used) == (7, 10, 8)


@pytest.mark.parametrize(
    ("fact", "cause", "text"),
    [
        (
            Equipped(tools=raw([{"name": "read"}, {"name": "bash"}])),
            "tools",
            "e8 changed the tool list: 2 tools",
        ),
        (Instructed(content="Be brief.", aside=True), "system", "e8 changed the system text"),
        (
            Masked(masks=(Mask(target=4, text="[masked]"),), reason="price", rule="economy: mask"),
            "reduction",
            "e8 masked 1 message: a smaller request costs less",
        ),
        (
            Compacted(first=1, last=6, summary="It was fixed.", by="ledger", reason="room"),
            "reduction",
            "e8 summarised e1 to e6 by ledger: the request would not have fitted otherwise",
        ),
        (Rewound(to=1), "edit", "e8: the client changed its history"),
    ],
)
def test_a_miss_has_its_cause(fact: AnyFact, cause: str, text: str) -> None:
    rows = requests(*begin(), fact, ModelSaid(content="Done."), used(8_000, 0))
    miss = rows[2].miss
    assert miss is not None
    assert (miss.cause, miss.text, miss.by, miss.tokens) == (cause, text, 8, 8_000)
    assert miss.lost == pytest.approx(8_000 * (1.25 - 0.125) / 1e6)


def test_another_model_has_its_own_cache() -> None:
    rows = requests(
        *begin(),
        Opened(model="gpt-4.1"),
        ModelSaid(content="Done."),
        replace(used(8_000, 0), model="gpt-4.1"),
    )
    miss = rows[2].miss
    assert miss is not None
    assert (miss.cause, miss.by, miss.text) == ("model", 8, "the model changed from gpt-5 to gpt-4.1")


def test_a_transcript_names_the_model_with_the_usage() -> None:
    later = [
        replace(used(8_100, 0), model="gpt-4.1"),
        UserSaid(content="ok"),
        ModelSaid(content="x"),
        used(8_200, 0),
    ]
    rows = requests(*begin()[1:], ModelSaid(content="Done."), *later)
    assert [row.model for row in rows] == ["gpt-5", "gpt-5", "gpt-4.1", "gpt-5"]
    assert [row.miss and row.miss.text for row in rows[2:]] == [
        "the model changed from gpt-5 to gpt-4.1",
        "the model changed from gpt-4.1 to gpt-5",
    ]
    assert rows[2].cost == pytest.approx((8_100 * 2.0 + 10 * 8.0) / 1e6)


def test_a_prefix_that_was_kept_too_long_ago_has_expired() -> None:
    rows = requests(*begin(), ModelSaid(content="Done."), used(8_100, 0), pace=1_000)
    miss = rows[2].miss
    assert miss is not None
    assert (miss.cause, miss.by) == ("expired", -1)
    assert "50 min since the last request; the provider keeps a prefix for" in miss.text


def test_the_diagnosis_of_the_provider_is_told() -> None:
    rows = requests(
        *begin(), ModelSaid(content="Done."), used(8_100, 0, cache_miss="tools_changed", cache_missed=7_900)
    )
    miss = rows[2].miss
    assert miss is not None
    assert (miss.cause, miss.text, miss.provider) == (
        "provider",
        "the provider says: tools_changed",
        "tools_changed",
    )


def test_without_usage_the_sizes_are_estimates_and_a_moved_prefix_is_a_miss() -> None:
    facts = [fact for fact in begin() if not isinstance(fact, Used)]
    mask = Masked(masks=(Mask(target=3, text="[masked]"),), reason="price")
    later = (ModelSaid(content="x"), UserSaid(content="y"), mask, ModelSaid(content="z"))
    rows = requests(Opened(model="gpt-5"), UserSaid(content=LONG), *facts[1:], *later)
    assert all(row.used == -1 and row.tokens > 3_000 and row.cost is None for row in rows)
    assert rows[-1].prefix < rows[-2].tokens


@pytest.mark.parametrize("dialect", ["anthropic", "openai_responses"])
def test_a_tool_that_is_loaded_in_place_costs_no_cache(dialect: Dialect) -> None:
    tools = [{"name": name, "parameters": {"type": "object", "description": LONG}} for name in "ab"]
    asked = Call(id="c1", name="load_tools", arguments='{"names": ["a"]}')
    rows = requests(
        Opened(model="gpt-5", policy="economy"),
        Equipped(tools=raw([{"name": "load_tools", "parameters": {}}]), deferred={"a": 3_000, "b": 3_000}),
        UserSaid(content="Fix the parser."),
        ModelSaid(content=(asked,)),
        used(4_000, 0),
        ToolReturned(call_id="c1", content="Loaded: a."),
        ToolsLoaded(target=5, tools=raw(tools[:1]), dialect=dialect),
        ModelSaid(content=(Call(id="c2", name="a", arguments="{}"),)),
        used(7_100, 3_968),
        ToolReturned(call_id="c2", content="done"),
        ModelSaid(content="It is fixed."),
        used(7_200, 7_100),
    )
    assert [row.miss for row in rows] == [None, None, None]
    assert [row.tool_text for row in rows] == [
        "3 tools, 0 used, 2 deferred", "3 tools, 1 used, 1 deferred", "3 tools, 2 used, 1 deferred",
    ]  # fmt: skip
    assert rows[1].prefix > 0
