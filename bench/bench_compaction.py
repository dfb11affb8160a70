"""Measures the CPU work of a compaction of 1,000 events, without the model call.

The conversations are synthetic ones of coding agents (see `work`) and recorded ones, concatenated until they are
long enough. Recorded conversations have larger results and more commands.

The ledger caches what it reads from calls and requests. Rows give the time of a compaction whose events were read
before, as in a session that compacts repeatedly; the notes of ledgers also give the time of the first one.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Final

from bench.bench_ledger import DATA, rows_of
from bench.measure import Row, best_after, best_of, display, progress
from bench.work import AGENT, messages
from foveal.core.compaction import CompactionOutcome, Draft, DraftFailure, DraftRequest, Plan, Summariser
from foveal.core.compaction.ledger.ledger import write_ledger
from foveal.core.engine import Engine, SummaryJob, resolve_settings
from foveal.core.log import Event
from foveal.core.tokens.counter import counter
from foveal.core.view import effective_events
from foveal.core.wire.openai_chat import read

EVENTS: Final = 1_000
ROOMS: Final = (400, 3_000, 20_000)
"""Token limits of the ledger: a tight one, the policies' default, and the largest useful one."""
ANSWER: Final = """<summary>
## Goal
The user wants the failing tests fixed.
## Decisions
- None.
## State
- Files were read.
## Next
- Go on.
## Dead ends
- None.
</summary>"""
TARGETS: Final = {"synthetic": 0.010, "recorded": 0.020}
"""Seconds, for all limits but the largest."""


def events_of(chat: Sequence[Any]) -> list[Event]:
    facts = (fact for chunk in read(chat) for fact in chunk.facts)
    return [Event(seq, fact) for seq, fact in enumerate(islice(facts, EVENTS))]


def rows() -> Iterator[Row]:
    synthetic = events_of(messages(EVENTS, AGENT))
    yield _compaction_row("synthetic", "", synthetic)
    yield from _ledger_rows("synthetic", "", synthetic)
    for name in ("openhands", "miniswe", "pi") if DATA.exists() else ():
        chat = [message for row in rows_of([name]) for message in row["messages"]]
        yield _compaction_row("recorded", f" {name}", events_of(chat))
        yield from _ledger_rows("recorded", f" {name}", events_of(chat))


def _compaction_row(kind: str, name: str, events: list[Event]) -> Row:
    """Measure the work around a model's answer: the plan before it; validation, ledger and score after it.

    The note gives the time to write the request separately, because the model call after it takes seconds."""
    progress(f"compaction: {kind}{name}, plan, validation and ledger …")
    settings = resolve_settings("gpt-4.1", window=200_000, policy="handoff", tokenizer="o200k_base")
    engine = Engine(*settings, log=events)
    assert engine.view.units  # tokens were counted when the events were appended
    request = best_of(3, lambda: _request_summary(engine))

    def work(dialogue: Generator[DraftRequest, Draft | DraftFailure, CompactionOutcome]) -> None:
        assert isinstance(engine.plan_summary(reason="hand"), Plan)
        with suppress(StopIteration):
            dialogue.send(Draft(text=ANSWER, stop="end"))
            raise AssertionError("the answer was rejected")

    return Row(
        f"plan, validation and ledger of {len(events):,} events, {kind}{name}",
        best_after(7, lambda: _request_summary(engine), work),
        limit=0.020,
        note=f"writing the request: {display(request, 's')}",
    )


def _request_summary(engine: Engine) -> Generator[DraftRequest, Draft | DraftFailure, CompactionOutcome]:
    """Return a compaction that waits for the model's first answer."""
    plan = engine.plan_summary(reason="hand")
    assert isinstance(plan, Plan)
    dialogue = SummaryJob.of(engine, plan, effective_events(engine.log)).dialogue(
        [Summariser(str)], prompt=""
    )
    next(dialogue)
    return dialogue


def _ledger_rows(kind: str, name: str, events: list[Event]) -> Iterator[Row]:
    for room in ROOMS:
        progress(f"compaction: {kind}{name}, room {room:,} …")
        exact, estimate = (_ledger_seconds(events, room, counting) for counting in ("o200k_base", "estimate"))
        first = _first_ledger_seconds(events, room)
        others = f"{display(estimate, 's')} by estimate; {display(first, 's')} the first time"
        limit = TARGETS[kind] if room < ROOMS[-1] else None
        yield Row(
            f"ledger of {len(events):,} events, {kind}{name}, room {room:,}",
            exact,
            limit=limit,
            note=f"counted with o200k_base; {others}",
        )


def _ledger_seconds(events: list[Event], room: int, counting: str) -> float:
    counts = counter(counting)
    return best_of(7, lambda: write_ledger(events, room=room, counter=counts))


def _first_ledger_seconds(events: list[Event], room: int) -> float:
    counts = counter("o200k_base")
    return best_after(5, _clear_caches, lambda _: write_ledger(events, room=room, counter=counts))


def _clear_caches() -> None:
    package = write_ledger.__module__.rpartition(".")[0]
    for name, module in list(sys.modules.items()):
        for value in list(vars(module).values()) if name.startswith(package) else ():
            if hasattr(value, "cache_clear"):
                value.cache_clear()
