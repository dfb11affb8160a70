"""Measures folding a long log, and normalising facts or messages to valid messages.

    fold             events → view: matches results to calls, applies reductions, repairs
    write and join   view → messages of one dialect; cold writes every step, warm reuses the written steps
    read             messages → facts; cold reads all, warm compares all with the known ones and reads the new ones

The normalised history has two typical flaws: a result without a call, and a call without a result.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, get_args

from bench.measure import Row, best_after, best_of, progress
from bench.work import Json, messages
from foveal.core import wire
from foveal.core.engine.history_diff import MessageHistory
from foveal.core.log import AnyFact, Dialect, Dropped, Event
from foveal.core.tokens import MessageTokens
from foveal.core.tokens.counter import counter
from foveal.core.view import render_view
from foveal.core.view.fold import fold

LOG_MESSAGES: Final = 100_000
ITEMS: Final = 1_000
MAX_FOLD_S: Final = 1.0
NEW_ITEMS: Final = 3
MAX_COLD_S: Final = 0.002
MAX_WARM_S: Final = 0.0005
EVENTS_PER_DROP: Final = 50


def rows() -> Iterator[Row]:
    meter = MessageTokens(counter("estimate"))
    progress(f"fold: a history of {LOG_MESSAGES:,} messages …")
    yield from _folding(events(facts(messages(LOG_MESSAGES))), meter)
    yield from _normalising(with_flaws(messages(ITEMS + 2)), meter)


def _folding(log: list[Event], meter: MessageTokens) -> Iterator[Row]:
    seconds = best_of(5, lambda: fold(log, meter))
    yield Row(
        f"fold {LOG_MESSAGES:,} messages", seconds, limit=MAX_FOLD_S, note="all visible, nothing counted"
    )
    reduced = events(with_drops(event.fact for event in log))
    note = f"{len(reduced):,} events, a drop of everything older every {EVENTS_PER_DROP} events"
    yield Row(
        f"fold {LOG_MESSAGES:,} messages and their drops",
        best_of(5, lambda: fold(reduced, meter)),
        "s",
        MAX_FOLD_S,
        note,
    )
    seconds = best_of(1, lambda: fold(log, MessageTokens(meter.counter)).units)
    yield Row(f"fold {LOG_MESSAGES:,} messages and count all of them", seconds, note="estimate")


def _normalising(given: list[Json], meter: MessageTokens) -> Iterator[Row]:
    log = events(facts(given))
    for dialect in filter(None, get_args(Dialect)):
        yield from _reading(normalise(messages(2 * ITEMS), dialect, meter), wire.wire_for(dialect))
        yield from _writing(log, meter, wire.wire_for(dialect))
    chat = wire.wire_for("openai_chat")
    yield Row(
        f"normalise {ITEMS:,} facts: fold, write and join",
        best_of(50, lambda: render_view(fold(log, meter), chat)),
        note="openai_chat",
    )
    targets: tuple[Dialect, ...] = ("openai_chat", "anthropic")
    for target in targets:
        yield Row(
            f"normalise {ITEMS:,} chat messages: read, fold, write and join",
            best_of(50, partial(normalise, given, target, meter)),
            note=f"to {target}",
        )


def _reading(given: list[Json], dialect: wire.Wire) -> Iterator[Row]:
    what = f"normalise {ITEMS:,} items: read, {dialect.dialect}"
    known, longer = given[:ITEMS], given[: ITEMS + NEW_ITEMS]
    yield Row(f"{what}, cold", best_of(50, lambda: list(dialect.read(known))), limit=MAX_COLD_S)
    history, log = MessageHistory(), list[Event]()
    change = history.diff(known, dialect, log)
    for chunk in change.chunks:
        read = known[len(history.known) : len(history.known) + chunk.messages]
        history.known.add(read, seq_before=len(log) - 1, seq_last=len(log) - 1 + len(chunk.facts))
        log += [Event(seq, fact) for seq, fact in enumerate(chunk.facts, len(log))]
    warm = best_of(50, lambda: history.diff(longer, dialect, log))
    yield Row(f"{what}, warm", warm, limit=MAX_WARM_S, note=f"the same objects and {NEW_ITEMS} new ones")
    resent = json.loads(json.dumps(longer))
    warm = best_of(50, lambda: history.diff(resent, dialect, log))
    yield Row(f"{what}, warm, decoded again", warm, limit=MAX_WARM_S, note="equal objects and new ones")


def _writing(log: list[Event], meter: MessageTokens, dialect: wire.Wire) -> Iterator[Row]:
    what = f"normalise {ITEMS:,} items: write and join, {dialect.dialect}"
    cold = best_after(50, lambda: fold(log, meter), lambda view: render_view(view, dialect))
    yield Row(
        f"{what}, cold",
        cold,
        limit=MAX_COLD_S,
        note="a folded view, each step written for the first time",
    )
    view = fold(log, meter)
    render_view(view, dialect)
    warm = best_of(50, lambda: render_view(view, dialect))
    yield Row(f"{what}, warm", warm, limit=MAX_WARM_S, note="each step written before; copied")


def normalise(given: Sequence[Json], target: Dialect, meter: MessageTokens) -> list[Json]:
    """Return chat messages as valid messages of the `target` dialect."""
    view = fold(events(facts(given)), meter)
    return render_view(view, wire.wire_for(target))[0]


def facts(given: Sequence[Json]) -> list[AnyFact]:
    return [fact for chunk in wire.wire_for("openai_chat").read(given) for fact in chunk.facts]


def events(items: Sequence[AnyFact]) -> list[Event]:
    return [Event(seq, fact) for seq, fact in enumerate(items)]


def with_drops(items: Iterator[AnyFact]) -> list[AnyFact]:
    """Return the same facts, with a `Dropped` every `EVENTS_PER_DROP` facts that hides everything older."""
    log: list[AnyFact] = []
    for fact in items:
        log.append(fact)
        if len(log) % EVENTS_PER_DROP == 0:
            log.append(Dropped(ranges=((0, len(log) - EVENTS_PER_DROP),)))
    return log


def with_flaws(given: list[Json]) -> list[Json]:
    """Remove the first call, which orphans its result, and the last result."""
    first = _place(given, lambda message: "tool_calls" in message)
    last = _place(given[::-1], lambda message: message["role"] == "tool")
    return [message for at, message in enumerate(given) if at not in (first, len(given) - 1 - last)]


def _place(given: list[Json], wanted: Callable[[Json], Any]) -> int:
    return next(at for at, message in enumerate(given) if wanted(message))
