"""Measures the CPU work of a compaction of 1,000 events, without the model call.

The conversations are synthetic ones of coding agents (see `work`) and recorded ones, concatenated until they are
long enough. Recorded conversations have larger results and more commands.

An engine reads each event for the ledger when it arrives (`LedgerIndex`). Rows give the time of a ledger with an
index, as in a session that compacts repeatedly; their notes also give the time without one. Further rows measure
how long it takes to read an event, and a ledger of ten times as many events that extends an earlier one.

The last rows tell how much of the summaries that other agents recorded is about the user and would be removed, and
how many of them would have no other text.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Final

from bench.bench_ledger import DATA, rows_of
from bench.measure import Row, best_after, best_of, display, progress
from bench.work import AGENT, messages
from foveal.core.compaction import CompactionOutcome, Draft, DraftFailure, DraftRequest, Plan, Summariser
from foveal.core.compaction.ledger.ledger import Ledger
from foveal.core.compaction.ledger.range_facts import LedgerIndex
from foveal.core.compaction.user_sentences import remove_user_sentences
from foveal.core.compaction.validation import has_content
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
TARGETS: Final = {"synthetic": 0.006, "recorded": 0.008}
"""Seconds, for all limits but the largest."""
USER_TEXT_TARGETS: Final = {"openhands": 0.02, "entire": 0.35}
"""The prompt of the second asks for all messages of the user."""
LONG_RANGES: Final = 10
"""How many times as long the range of a merged ledger is."""


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
    for name in ("openhands", "entire") if DATA.exists() else ():
        yield from _user_sentence_rows(name)


def _compaction_row(kind: str, name: str, events: list[Event]) -> Row:
    """Measure the work around a model's answer: the plan before it; validation, ledger and score after it.

    The note gives the time to write the request separately, because the model call after it takes seconds."""
    progress(f"compaction: {kind}{name}, plan, validation and ledger …")
    settings = resolve_settings("gpt-4.1", window=200_000, policy="handoff", tokenizer="o200k_base")
    engine = Engine(settings, log=events)
    assert engine.view.units  # tokens were counted when the events were appended
    _prepare(engine.ledger_index, events)  # and so was what a ledger needs
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


def _user_sentence_rows(name: str) -> Iterator[Row]:
    """Measure what is removed from recorded summaries, whose prompts did not ask for the work alone."""
    recorded = (row["meta"].get("condensations", ()) for row in rows_of([name]))
    summaries = [condensation["summary"] for group in recorded for condensation in group]
    kept = [remove_user_sentences(summary)[0] for summary in summaries]
    shares = [1 - len(rest) / len(whole) for rest, whole in zip(kept, summaries, strict=True)]
    yield Row(
        f"text about the user in {len(summaries)} summaries, recorded {name}",
        1 - sum(map(len, kept)) / sum(map(len, summaries)),
        unit="%",
        limit=USER_TEXT_TARGETS[name],
        note=f"at most {max(shares):.0%} of one",
    )
    refused = sum(not has_content(rest) for rest in kept)
    yield Row(f"summaries without any other text, recorded {name}", refused, unit="summaries", limit=0)


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
    index = LedgerIndex()
    seconds = best_of(1, lambda: _prepare(index, events))
    yield Row(
        f"reading {len(events):,} events for ledgers, {kind}{name}",
        seconds,
        note=f"{display(seconds / len(events), 's')} each",
    )
    for room in ROOMS:
        progress(f"compaction: {kind}{name}, room {room:,} …")
        exact, estimate = (
            _ledger_seconds(events, room, counting, index) for counting in ("o200k_base", "estimate")
        )
        fresh = _ledger_seconds(events, room, "o200k_base", None)
        others = f"{display(estimate, 's')} by estimate; {display(fresh, 's')} without an index"
        yield Row(
            f"ledger of {len(events):,} events, {kind}{name}, room {room:,}",
            exact,
            limit=TARGETS[kind] if room < ROOMS[-1] else None,
            note=f"counted with o200k_base; {others}",
        )
    yield _long_range_row(kind, name, events)


def _prepare(index: LedgerIndex, events: list[Event]) -> None:
    for event in events:
        index.prepare(event)


def _ledger_seconds(events: list[Event], room: int, counting: str, index: LedgerIndex | None) -> float:
    counts = counter(counting)
    return best_of(7, lambda: Ledger(events, counts, index=index).write(room=room))


def _long_range_row(kind: str, name: str, events: list[Event]) -> Row:
    """Measure the ledger of a long range of which every third event stays; one that ended 40 events before was
    written already."""
    long = [Event(seq, event.fact) for seq, event in enumerate(events * LONG_RANGES)]
    counts = counter("o200k_base")
    keep = frozenset(range(0, len(long), 3))
    index = LedgerIndex()
    Ledger(long[:-40], counts, keep=keep, after=long[-40:], index=index).write(room=3_000)
    index.prepare_newest(long)

    def write(_: object) -> str:
        return Ledger(long, counts, keep=keep, index=index).write(room=3_000)

    return Row(
        f"ledger of {len(long):,} events, {kind}{name}, room 3,000",
        best_after(3, lambda: None, write),
        limit=TARGETS[kind],
    )
