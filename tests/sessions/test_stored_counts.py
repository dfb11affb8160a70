"""Counts in a checkpoint: an open session counts no message again, and believes only counts of the same counter."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from foveal.core.engine.state import stored_counts
from foveal.core.log import Call, Event, ModelSaid, Text, ToolReturned, UserSaid
from foveal.core.models.model import counter_for
from foveal.core.tokens.counter import Estimate, counter
from foveal.core.tokens.message_tokens import MessageTokens
from foveal.core.wire.event_text import original_text
from foveal.inspector.open_logs import OpenLog
from foveal.inspector.sessions.collection import SessionCollection
from foveal.inspector.timeline import builder
from foveal.inspector.timeline.builder import InspectedSettings, TimelineBuilder
from foveal.recall.archive.store_sources import StoreSource
from foveal.sessions import Session
from foveal.stores.memory import MemoryStore

MODEL = "gpt-4.1"
TURNS = 30


class NotingEstimate(Estimate):
    """An estimate that notes the texts that it counts."""

    def __init__(self, version: str = "") -> None:
        super().__init__()
        self.version = version or self.version
        self.texts: list[str] = []

    def count(self, text: str) -> int:
        self.texts.append(text)
        return super().count(text) * (2 if self.version == "other" else 1)


async def written(store: MemoryStore) -> list[Event]:
    """Write a session that was reduced several times; return its log."""
    session = await Session.open(store, "demo", **settings(NotingEstimate()))
    for number in range(TURNS):
        call = Call(id=f"c{number}", name="bash", arguments='{"command": "cat part.py"}')
        lines = "\n".join(f"line {line} of part {number}" for line in range(30))
        said = ModelSaid(content=(Text(text=f"I read part {number}."), call))
        await session.append(
            UserSaid(content=f"request {number}"), said, ToolReturned(call_id=call.id, content=lines)
        )
        await session.fit()
    return await session.events()


def settings(tokenizer: Estimate) -> dict[str, Any]:
    return {"model": MODEL, "window": 4_000, "reserve": 500, "tokenizer": tokenizer}


def counted(tokenizer: NotingEstimate, log: Sequence[Event]) -> set[str]:
    """Return the texts of results that were counted."""
    said = {original_text(event.fact) for event in log if isinstance(event.fact, ToolReturned)}
    return said.intersection(tokenizer.texts)


async def stored_before_checkpoint(store: MemoryStore, log: Sequence[Event]) -> list[Event]:
    """Return the events whose counts the checkpoint has."""
    newest = await store.checkpoint("demo")
    assert newest is not None
    assert newest.seq > len(log) / 2
    return [event for event in log if event.seq <= newest.seq]


async def change_state(store: MemoryStore, **fields: Any) -> None:
    found = await store.checkpoint("demo")
    assert found is not None
    state = {**json.loads(found.state), **fields}
    kept = {name: value for name, value in state.items() if value is not None}
    await store.keep_checkpoint("demo", replace(found, state=json.dumps(kept).encode()))


async def opened_units(store: MemoryStore, tokenizer: Estimate) -> int:
    session = await Session.open(store, "demo", **settings(tokenizer))
    return (await session._writer.load()).total_units


async def folded_units(store: MemoryStore, tokenizer: Estimate) -> int:
    copy = MemoryStore()
    await copy.append("demo", await store.read("demo"))
    return await opened_units(copy, tokenizer)


# ── Sessions ─────────────────────────────────────────────────────────────────────────────────────────────


def test_an_opened_session_counts_no_message_again() -> None:
    async def scene() -> tuple[set[str], int, int]:
        store, tokenizer = MemoryStore(), NotingEstimate()
        log = await stored_before_checkpoint(store, await written(store))
        units = await opened_units(store, tokenizer)
        return counted(tokenizer, log), units, await folded_units(store, NotingEstimate())

    texts, opened, folded = asyncio.run(scene())
    assert texts == set()
    assert opened == folded


def test_counts_of_another_counter_are_not_believed() -> None:
    async def scene() -> tuple[int, int]:
        store = MemoryStore()
        await written(store)
        other = NotingEstimate("other")
        return await opened_units(store, other), await folded_units(store, NotingEstimate("other"))

    opened, folded = asyncio.run(scene())
    assert opened == folded


@pytest.mark.parametrize(
    "counts",
    [
        None,
        {"counter": "1 estimate 0", "units": [1_000] * 400},
        {"counter": "0 estimate 1", "units": [1_000] * 400},
        {"counter": "1 estimate 1", "units": [-5]},
        {"counter": "1 estimate 1", "units": "damaged"},
        {"counter": "1 estimate 1", "first": -7},
        {"units": [5]},
        [1, 2],
    ],
)
def test_missing_old_and_damaged_counts_are_not_used(counts: object) -> None:
    async def scene() -> tuple[int, int]:
        store = MemoryStore()
        await written(store)
        await change_state(store, counts=counts)
        return await opened_units(store, Estimate()), await folded_units(store, Estimate())

    opened, folded = asyncio.run(scene())
    assert opened == folded


def test_a_counter_without_a_version_stores_no_counts() -> None:
    class Own(Estimate):
        def __init__(self) -> None:
            super().__init__()
            self.version = ""

    meter = MessageTokens(Own())
    meter.message(0, UserSaid(content="Hello."))
    assert meter.counts() is None


# ── The inspector ────────────────────────────────────────────────────────────────────────────────────────


def test_the_inspector_counts_no_message_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        store, tokenizer = MemoryStore(), NotingEstimate()
        log = await written(store)
        assert any(event.fact.__class__.__name__ in ("Masked", "Compacted", "Dropped") for event in log)
        monkeypatch.setattr(builder, "counter_for", lambda *_: tokenizer)
        reader = await SessionCollection([StoreSource(store, "memory")]).open("demo")
        timeline = await OpenLog(reader).timeline()
        assert counted(tokenizer, await stored_before_checkpoint(store, log)) == set()
        again = TimelineBuilder(InspectedSettings(id=timeline.id, title=timeline.title), counter=Estimate())
        again.add(log)
        made = again.document()
        assert (timeline.rows, timeline.changes, timeline.requests) == (
            made.rows,
            made.changes,
            made.requests,
        )

    asyncio.run(scene())


def test_the_checkpoint_of_a_session_counts_as_the_inspector_does() -> None:
    """Otherwise its counts would never be used."""

    async def scene() -> str:
        store = MemoryStore()
        session = await Session.open(store, "demo", model="anthropic/claude-sonnet-4-5")
        await session.append(*(UserSaid(content=f"request {number}") for number in range(70)))
        found = await store.checkpoint("demo")
        counts = stored_counts(found.state) if found is not None else None
        return counts.counter if counts is not None else ""

    meter = MessageTokens(counter_for("anthropic/claude-sonnet-4-5", "auto"))
    meter.message(0, UserSaid(content="Hello."))
    counts = meter.counts()
    assert counts is not None
    assert asyncio.run(scene()) == counts.counter


# ── Versions ─────────────────────────────────────────────────────────────────────────────────────────────

SAMPLE = "def main(argv: list[str]) -> int:\n    return len(argv) * 1_024  # größer, 東京, 😀\n" * 20


def test_a_change_of_the_estimate_raises_its_version() -> None:
    estimate = Estimate()
    expected = ("1", 628)
    assert (estimate.version, estimate.count(SAMPLE)) == expected, "raise ESTIMATE_VERSION, then change this"


def test_a_change_of_the_rules_raises_their_version() -> None:
    call = Call(id="c1", name="bash", arguments='{"command": "ls"}')
    meter = MessageTokens(counter("estimate"))
    facts = [
        UserSaid(content=SAMPLE),
        ModelSaid(content=(Text(text="I look."), call)),
        ToolReturned(call_id="c1", content="a.py\nb.py"),
    ]
    for seq, fact in enumerate(facts):
        meter.message(seq, fact)
    counts = meter.counts()
    assert counts is not None
    expected = ("1 estimate 1", (632, 21, 10))
    assert (counts.counter, counts.units) == expected, "raise COUNTING_VERSION, then change this"
