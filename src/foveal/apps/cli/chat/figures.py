"""Numbers behind the cards, read from the log: what each file, tool and turn takes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from foveal.apps.cli.chat.cards import Part, shared
from foveal.events import Event, Instructed, ToolReturned, Used, UserSaid, parse_handle
from foveal.fold import effective
from foveal.models import Model
from foveal.report import Report
from foveal.session import Session
from foveal.tokens import counter


async def by_file(session: Session, report: Report) -> list[Part]:
    """What each file of instructions takes; the parts add up to `instructions`."""
    shown = {
        line.handle: line.tokens for line in report.events if line.kind == "instructed" and line.level != "-"
    }
    events = await session.pick([seq for name in shown if (seq := parse_handle(name)) is not None])
    sizes: dict[str, int] = {}
    for event in events:
        if isinstance(event.fact, Instructed) and event.fact.source:
            sizes[event.fact.source] = sizes.get(event.fact.source, 0) + shown[event.handle]
    exact = shared(sizes, report.totals.get("instructions", 0))
    return [Part(name, tokens) for name, tokens in exact.items()]


async def by_tool(session: Session, report: Report, offered: Sequence[dict[str, Any]]) -> list[Part]:
    """What the definition of each tool takes, which add up to `tools`, and what is shown of its results."""
    count = counter("auto", model=report.model).count
    sizes = {tool["name"]: count(json.dumps(tool)) for tool in offered}
    exact = shared(sizes, report.totals.get("tools", 0))
    results = await _results(session, report)
    return [
        Part(name, exact.get(name, 0), f"{results.get(name, 0):,}" if results.get(name) else "–")
        for name in dict.fromkeys((*sizes, *results))
    ]


async def _results(session: Session, report: Report) -> dict[str, int]:
    shown = {
        line.handle: line.tokens for line in report.events if line.kind == "tool_returned" and line.tokens
    }
    events = await session.pick([seq for name in shown if (seq := parse_handle(name)) is not None])
    sizes: dict[str, int] = {}
    for event in events:
        if isinstance(event.fact, ToolReturned):
            name = event.fact.name or "?"
            sizes[name] = sizes.get(name, 0) + shown[event.handle]
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


class Turn(msgspec.Struct, kw_only=True):
    """What one turn has used, as the provider reported it."""

    calls: int = 0
    input: int = 0
    """Tokens read, cached ones included, over all calls."""
    cached: int = 0
    output: int = 0
    cost: float | None = 0.0
    size: int = 0
    """Tokens of the last request."""
    grown: int = 0
    """By how much that was larger than the last one of the turn before."""


def turns(events: Iterable[Event], model: Model) -> list[Turn]:
    """The turns that count, oldest first; those that no provider reported on are left out."""
    made: list[Turn] = []
    for event in effective(list(events)):
        if isinstance(event.fact, UserSaid):
            made.append(Turn())
        elif isinstance(event.fact, Used) and made:
            _add(made[-1], event.fact, model)
    made = [turn for turn in made if turn.calls]
    for before, turn in zip([Turn(), *made], made, strict=False):
        turn.grown = turn.size - before.size
    return made


def _add(turn: Turn, used: Used, model: Model) -> None:
    turn.calls += 1
    turn.input += used.prompt
    turn.cached += used.cache_read
    turn.output += used.output
    turn.size = used.prompt
    cost = model.cost(
        input=used.input, cache_read=used.cache_read, cache_write=used.cache_write, output=used.output
    )
    turn.cost = None if cost is None or turn.cost is None else turn.cost + cost
