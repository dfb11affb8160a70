"""What every adapter's test shares: the tool, the stand-in's window, and what a run and a memory must show."""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from foveal import Memory
from foveal.core.compaction.summary_dialogue import required_sections
from foveal.core.tokens.counter import Estimate
from foveal.core.wire import strip_cache_marks
from foveal.stores import SqliteStore
from support.provider_stand_in import Answer, Json, Request, StandIn

SOAK = bool(os.environ.get("FOVEAL_SOAK"))
WINDOW = 16_000 if SOAK else 9_000
TURNS = 13 if SOAK else 3
"""The turns of the longest run of each adapter, with five requests each. Most of its CPU time is the work of the
clients on the whole history of each request, so `make test` has a smaller window and fewer turns."""
SHORT_TURNS = TURNS if SOAK else 2
"""The turns of its other runs, as long only with FOVEAL_SOAK=1. The first reduction is in the second turn."""
OVERFLOW_TURNS = 8 if SOAK else 3
"""The turns after which a history that is not reduced is larger than the window."""
MAX_BREAKS_PER_100 = 10


def search(query: str) -> str:
    """Search the sources."""
    number = sum(map(ord, query))
    lines = 150 if query.endswith("7.0") else 4 + number % 20
    found = (
        f"{query}: src/module_{number}_{line}.py:{line}: value = {number * line}" for line in range(lines)
    )
    return "\n".join(found) + ("\nError: index is stale" if number % 5 == 0 else "")


def long_search(query: str) -> str:
    """Search the sources."""
    return "\n".join(map(search, map(str, range(100)))) if query.endswith("7.0") else search(query)


def check_run(provider: StandIn, *, requests: int = 5 * TURNS - 5, framework_breaks: int = 0) -> None:
    """Assert what every run of an agent must show: legal, reduced to the window, and with a stable prefix.
    `framework_breaks` is how often the framework changes what it has sent, without the adapter too."""
    sent = provider.requests
    assert provider.faults == []
    assert len(sent) >= requests
    largest = max(request.prompt for request in sent)
    assert WINDOW // 2 < largest <= WINDOW, "the run never came near the window"
    assert any(after.prompt < before.prompt for before, after in pairwise(sent)), "nothing was reduced"
    breaks = count_breaks(sent) - framework_breaks
    assert breaks * 100 <= MAX_BREAKS_PER_100 * len(sent), f"{breaks} of {len(sent)}"


def count_breaks(sent: Sequence[Request]) -> int:
    """Return how many requests do not begin with all messages of the one before."""
    return sum(map(_is_break, sent, sent[1:]))


def _is_break(before: Request, request: Request) -> bool:
    # A moved cache mark does not break a prefix: providers compare what the model reads.
    earlier, messages = (
        [strip_cache_marks(sent.body.get(field)) for field in ("messages", "input", "contents")]
        for sent in (before, request)
    )
    return any(old and new[: len(old)] != old for old, new in zip(earlier, messages, strict=True) if new)


class SummarisingStandIn(StandIn):
    """A provider that writes a summary when it is asked for one, and goes on with its script otherwise."""

    summaries = 0

    def next_answer(self, number: int, body: Json) -> Answer:
        newest = json.dumps((body.get("messages") or body.get("input") or body.get("contents"))[-1])
        if "</summary>" not in newest:
            return self.script(number - self.summaries)
        self.summaries += 1
        headings = required_sections(json.dumps(body).replace("\\n", "\n"))
        sections = "\n".join(f"## {heading}\n- Questions were looked up." for heading in headings)
        return Answer(text=f"<summary>\n{sections}\n</summary>")


# ── A memory ─────────────────────────────────────────────────────────────────────────────────────────────

Ask = Callable[[str], Awaitable[Any]]
"""Asks an agent, in one conversation."""
Talk = Callable[[Ask], Awaitable[None]]
RunAgent = Callable[[dict[str, Any], Talk], Awaitable[None]]
"""Makes an agent with these settings of the adapter, and talks to it."""


async def check_memory(provider: StandIn, path: Path, run: RunAgent, *, learns: bool = True) -> None:
    """Assert that requests show a memory in one place until it is forgotten, and that the agent's user can add to
    it. `learns` is off for a framework that writes more around the user's words."""
    async with SqliteStore(str(path)) as store:
        memory = Memory("ada", store=store, counting=Estimate())
        rule = await memory.remember("Never push to main.")

        async def sent(ask: Ask, question: str) -> list[Request]:
            first = len(provider.requests)
            await ask(question)
            return provider.requests[first:]

        async def talk(ask: Ask) -> None:
            known = [*await sent(ask, "Hello."), *await sent(ask, "Hello again.")]
            places = [tuple(places_of(request.body, rule.text)) for request in known]
            assert len(places[0]) == 1, "the entry is in the request once"
            assert {*places} == {places[0]}, "the entry stays in its place"
            await memory.forget(rule.id)
            later = await sent(ask, "Please remember that I prefer tabs.")
            assert not [request for request in later if rule.text in str(request.body)]
            if learns:
                assert all("] I prefer tabs." in str(request.body) for request in await sent(ask, "And now?"))

        await run({"window": WINDOW, "reserve": 1_000, "memory": memory}, talk)
        assert [entry.text for entry in await memory.entries()] == ["I prefer tabs."] * learns
    assert provider.faults == []


def places_of(value: object, text: str, place: str = "") -> Iterator[str]:
    """Yield where the strings with a text are in a JSON value."""
    if isinstance(value, str) and text in value:
        yield place
    elif isinstance(value, dict):
        for name, part in value.items():
            yield from places_of(part, text, f"{place}.{name}")
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from places_of(part, text, f"{place}[{number}]")
