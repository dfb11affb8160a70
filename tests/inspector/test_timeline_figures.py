"""The figures of a timeline are those of the report that the same log gives."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from foveal import Context
from foveal.core.engine.report import ReducedCounts, Report
from foveal.core.log.events import Event, ModelSaid, UserSaid, handle
from foveal.errors import FovealError
from foveal.inspector.open_logs import OpenLog
from foveal.inspector.sessions.collection import SessionCollection
from foveal.inspector.sessions.source import SessionRow
from foveal.inspector.timeline.builder import InspectedSettings, TimelineBuilder
from foveal.inspector.timeline.timeline import Timeline
from foveal.recall.archive.listing import given_sources
from foveal.sessions import Session
from foveal.stores import MemoryStore, open_store
from support.effort import rest_in_soak

MODELS = ("gpt-5", "anthropic/claude-sonnet-4-5", "gpt-4.1-mini")
PRESETS = ("economy", "rolling", "sliding-summary", "handoff", "recent")
CATEGORIES = (
    "system", "instructions", "pinned", "user", "assistant", "results", "summaries", "placeholders",
)  # fmt: skip
TOO_LARGE = (
    "This model's maximum context length is 7000 tokens. However, your messages resulted in 9000 tokens."
)


class Talk:
    """A conversation with an agent: turns, and whatever a user does between them."""

    def __init__(self, seed: int) -> None:
        self._random, self._now, self._calls = Random(seed), 1_700_000_000.0, 0
        self._messages: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}]
        self.context = Context(
            self._random.choice(MODELS),
            policy=self._random.choice(PRESETS),
            window=self._random.choice((8_000, 12_000, 20_000)),
            clock=lambda: self._now,
        )

    def go_on(self) -> None:
        choose, context = self._random, self.context
        self._now += choose.choice((1, 30, 400))
        target = handle(choose.randrange(len(context.log)))
        others = (
            context.undo,
            lambda: context.pin("Be kind."),
            context.compact,
            lambda: context.drop(target),
            lambda: context.expand(target),
            lambda: context.use(choose.choice(MODELS)),
            lambda: context.overflowed(TOO_LARGE),
            lambda: self._messages.__delitem__(slice(-1, None)),
        )
        self._turn() if choose.random() < 0.7 else choose.choice(others)()

    def _turn(self) -> None:
        self._say("user", f"Do {self._calls}. " + "word " * self._random.randint(1, 200))
        for _ in range(self._random.randint(0, 3)):
            self._calls += 1
            id, arguments = f"c{self._calls}", json.dumps({"command": f"ls {self._calls}"})
            call = {"id": id, "type": "function", "function": {"name": "shell", "arguments": arguments}}
            self.ask()
            self._say("assistant", "Look.", tool_calls=[call])
            output = " ".join(f"w{self._calls}x{word}" for word in range(self._random.randint(1, 600)))
            self._say("tool", output, tool_call_id=id)
        self.ask()
        self._say("assistant", "Done.")

    def _say(self, role: str, content: str, **fields: Any) -> None:
        self._messages.append({"role": role, "content": content, **fields})

    def ask(self) -> None:
        self.context.fit(self._messages)
        if self._random.random() < 0.8:
            prompt = self.context.report().used + self._random.randint(0, 200)
            cached = {"cached_tokens": self._random.choice((0, prompt // 2, prompt * 9 // 10))}
            self.context.observe(
                {"prompt_tokens": prompt, "completion_tokens": 50, "prompt_tokens_details": cached}
            )


def shown(timeline: Timeline) -> dict[str, tuple[str, str]]:
    """The level and the rule of each event in the request after the last one."""
    last = {change.key: change for change in timeline.changes}
    in_view = ("full", "clipped", "masked")
    return {
        key: (change.level, change.rule)
        for key, change in last.items()
        if key[0] == "e" and change.level in in_view
    }


@pytest.mark.parametrize("seed", rest_in_soak(range(16), kept=5))
def test_the_figures_are_those_of_the_report(seed: int) -> None:
    talk = Talk(seed)
    for _ in range(25):
        with suppress(FovealError):
            talk.go_on()
    with suppress(FovealError):
        talk.ask()
    report = talk.context.report()
    builder = TimelineBuilder(InspectedSettings(id="demo"))
    builder.add(talk.context.log)
    made = builder.document()
    assert (made.model, made.window, made.limit, made.policy) == (
        report.model,
        report.window,
        report.limit,
        report.policy,
    )
    assert (made.spent, made.saved) == pytest.approx((report.spent, report.saved))
    costs = [row.cost or 0.0 for row in made.requests] + [card.cost or 0.0 for card in made.reductions]
    assert sum(costs) == pytest.approx(made.spent)
    in_view = ("full", "clipped", "masked")
    assert shown(made) == {
        each.handle: (each.level, each.rule) for each in report.events if each.level in in_view
    }


def test_the_inspector_knows_a_reserve_that_a_session_continues_with() -> None:
    async def record() -> tuple[list[Report], list[Event]]:
        async with MemoryStore() as store:
            reports = []
            for number, reserve in enumerate((None, 700, 1_900)):
                session = await Session.open(store, "demo", model="gpt-5", window=6_000, reserve=reserve)
                await session.append(UserSaid(content=f"Question {number}."))
                reports.append(await session.report())
            return reports, await store.read("demo")

    reports, log = asyncio.run(record())
    builder = TimelineBuilder(InspectedSettings(id="demo"))
    limits = []
    for event in log:
        builder.add((event,))
        if isinstance(event.fact, UserSaid):
            limits.append(builder.document().limit)
    assert limits == [report.limit for report in reports]
    assert len(set(limits)) == 3


def test_the_inspector_of_a_store_has_the_figures_of_the_session(tmp_path: Path) -> None:
    async def record() -> tuple[Report, Timeline, SessionRow]:
        place = tmp_path / "sessions.db"
        async with open_store(str(place)) as store:
            session = await Session.open(store, "demo", model="gpt-5", window=6_000, policy="economy")
            for number in range(40):
                await session.append(UserSaid(content=f"Question {number}: " + f"word{number} " * 60))
                request = await session.fit()
                cached = {"cached_tokens": request.tokens // 2}
                usage = {"prompt_tokens": request.tokens + 30, "completion_tokens": 50}
                await session.observe({**usage, "prompt_tokens_details": cached})
                await session.append(ModelSaid(content=f"Answer {number}."))
            await session.append(UserSaid(content="One more."))
            await session.fit()
            report = await session.report()
            await session.close()
        collection = SessionCollection(given_sources([str(place)]), settings={"window": 6_000})
        row = (await collection.rows()).rows[0]
        timeline = await OpenLog(await collection.open(row.key)).timeline()
        await collection.close()
        return report, timeline, row

    report, made, row = asyncio.run(record())
    assert report.reduced != ReducedCounts()
    assert (made.spent, made.saved) == pytest.approx((report.spent, report.saved))
    assert row.spent == pytest.approx(report.spent)
    assert (made.window, made.limit, row.window) == (report.window, report.limit, report.window)
    assert (made.requests[-1].number, row.requests) == (report.calls, report.calls)
    assert report.fitted == report.calls + 1  # the newest request has no answer
    shown = totals(made)
    expected = {name: report.totals[name] for name in CATEGORIES}
    assert shown.keys() <= expected.keys()
    # Each side rounds in its own place, one of them for each message.
    assert {name: shown.get(name, 0) for name in expected} == pytest.approx(expected, rel=0.01, abs=4)


def totals(timeline: Timeline) -> dict[str, int]:
    """The tokens of the newest request by category, as the composition of the page adds them up."""
    last = {change.key: change for change in timeline.changes}
    sums: dict[str, float] = {}
    ratio = timeline.requests[-1].ratio
    for change in last.values():
        if change.level in ("full", "clipped", "masked"):
            sums[change.category] = sums.get(change.category, 0.0) + change.units * ratio
    return {name: round(tokens) for name, tokens in sums.items()}
