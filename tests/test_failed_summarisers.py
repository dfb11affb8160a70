"""A summariser that fails leaves an event and a metric, also where another one writes the summary."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import foveal
from foveal.core.engine.metrics import Metrics
from foveal.events import Compacted, CompactionFailed, UserSaid, kind
from foveal.stores import MemoryStore

Write = Callable[[foveal.SummaryRequest], str]


def unreachable(request: foveal.SummaryRequest) -> str:
    raise PermissionError("no such key")


def empty(request: foveal.SummaryRequest) -> str:
    return ""


def good(request: foveal.SummaryRequest) -> str:
    sections = {
        "Goal": "Each part has the right bound.",
        "Decisions": "-",
        "State": "Parts 0 to 2 have a bound that is wrong.",
        "Next": "-",
        "Dead ends": "-",
    }
    body = "\n".join(f"## {name}\n{text}" for name, text in sections.items())
    return f"<summary>\n{body}\n</summary>"


def chat(parts: int = 4) -> list[dict[str, str]]:
    said = [
        (f"Look at part {part}.", f"Part {part} has a bound that is wrong. " * 60) for part in range(parts)
    ]
    return [
        {"role": role, "content": text}
        for pair in said
        for role, text in zip(("user", "assistant"), pair, strict=True)
    ]


def compacted(summarise: Sequence[foveal.Summariser] | Write) -> foveal.Context:
    ctx = foveal.Context("gpt-4.1", summarise=summarise)
    ctx.append(*chat())
    ctx.compact()
    return ctx


@pytest.mark.parametrize(
    ("write", "cause", "problem"),
    [(unreachable, "error", "PermissionError: no such key"), (empty, "rejected", "empty")],
)
def test_a_summariser_that_fails_leaves_an_event_and_a_metric(write: Write, cause: str, problem: str) -> None:
    ctx = compacted([foveal.Summariser(write, name="small")])
    summary, failure = (event.fact for event in ctx.log[-2:])
    assert isinstance(summary, Compacted)
    assert summary.by == "ledger"
    assert isinstance(failure, CompactionFailed)
    assert (failure.by, failure.cause, failure.reason) == ("small", cause, "hand")
    assert (failure.first, failure.last) == (summary.first, summary.last)
    assert problem in failure.problem
    text = Metrics(ctx.log).text()
    assert f'foveal_summariser_failures_total{{cause="{cause}"}} 1' in text
    assert "foveal_compaction_failures_total{" not in text  # there is a summary


def test_the_first_of_two_summarisers_leaves_it_too() -> None:
    ctx = compacted([foveal.Summariser(unreachable, name="first"), foveal.Summariser(good, name="second")])
    summary, failure = (event.fact for event in ctx.log[-2:])
    assert isinstance(summary, Compacted)
    assert isinstance(failure, CompactionFailed)
    assert (summary.by, failure.by, failure.cause) == ("second", "first", "error")


def test_each_of_two_that_fail_leaves_one() -> None:
    ctx = compacted([foveal.Summariser(unreachable, name="first"), foveal.Summariser(empty, name="second")])
    failures = [event.fact for event in ctx.log if isinstance(event.fact, CompactionFailed)]
    assert [(fact.by, fact.cause) for fact in failures] == [("first", "error"), ("second", "rejected")]


def test_a_summariser_that_succeeds_leaves_none() -> None:
    assert [kind(event.fact) for event in compacted(good).log[-2:]] == ["model_said", "compacted"]


def test_the_failure_stays_when_the_context_is_loaded_and_undone() -> None:
    ctx = foveal.Context.load(compacted(unreachable).save())
    assert kind(ctx.log[-1].fact) == "compaction_failed"
    ctx.undo()
    assert ctx.fit() == chat()


def test_a_session_records_it() -> None:
    async def main() -> list[Any]:
        async with MemoryStore() as store:
            write = foveal.Summariser(unreachable, name="small")
            session = await foveal.Session.open(store, "demo", model="gpt-4.1", summarise=write)
            for message in chat():
                if message["role"] == "user":
                    await session.append(UserSaid(content=message["content"]))
                else:
                    await session.append(foveal.ModelSaid(content=message["content"]))
            await session.compact()
            await session.close()
            return [event.fact for event in await store.read("demo")]

    summary, failure = asyncio.run(main())[-2:]
    assert isinstance(summary, Compacted)
    assert isinstance(failure, CompactionFailed)
    assert (failure.by, failure.cause) == ("small", "error")


def test_a_summariser_that_fits_its_own_context_is_refused_and_the_ledger_writes() -> None:
    def fits(request: foveal.SummaryRequest) -> str:
        assert ctx.report().fitted == 0  # reading is allowed
        return str(ctx.fit([{"role": "user", "content": "x"}]))

    ctx = foveal.Context("gpt-4.1", window=4_000, policy="handoff", summarise=fits)
    messages = [*chat(12), {"role": "user", "content": "and now?"}]
    with pytest.warns(foveal.errors.SummariserFailed, match="is at work"):
        fitted = ctx.fit(messages)
    assert fitted[-1] == messages[-1]
    assert not any(isinstance(event.fact, UserSaid) and event.fact.content == "x" for event in ctx.log)
