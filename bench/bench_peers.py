"""The same work side by side with `trim_messages` of langchain-core and of litellm, and with their normalisers.

Each is called as its documentation does, on the same history and with the same budget. They keep nothing between
calls, so that a loop pays for the whole history at every turn; a `Context` pays once for the history and then for
what is new. The ratio in a peer's row is its time through ours: 10 × is ten times as long. What came out is judged
by one measure for all: the tokens of contents and calls, and whether every result has its call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from bench.bench_fold import ITEMS, normalised
from bench.measure import Row, best_of, progress, shown, timed
from bench.peers import MODEL, Trimmer, missing, normalisers, trimmers
from bench.work import Json, messages
from foveal import Context
from foveal.meter import Meter
from foveal.tokens import counter

SIZES: Final = (500, 5_000)
BUDGET: Final = 8_000
TURNS: Final = 20
PATIENCE: Final = 5.0
"""Seconds after which a peer makes no more turns."""
OURS: Final = ("estimate", "o200k_base")


def rows() -> Iterator[Row]:
    for name in missing():
        yield Row(f"{name}: not installed", None, note="make bench installs it")
    peers = list(trimmers())
    for size in SIZES:
        yield from _trimming(size, peers)
    for size in SIZES:
        yield from _turns(size, peers)
    yield from _normalising()


def _trimming(size: int, peers: Sequence[Trimmer]) -> Iterator[Row]:
    given = messages(size)
    what = f"trim {size:,} messages to {BUDGET:,} tokens"
    ours: dict[str, float] = {}
    for name in OURS:
        progress(f"peers: {what}, foveal …")
        ours[name] = best_of(5, lambda name=name: _context(name).fit(given))
        yield Row(f"{what}: foveal, {name}", ours[name], note=_judged(_context(name).fit(given)))
    for peer in peers:
        progress(f"peers: {what}, {peer.name} …")
        held, fitted = peer.held(given), []
        seconds = best_of(3, lambda p=peer, h=held, f=fitted: f.append(p.trim(h, BUDGET)))
        note = f"{_ratio(seconds, ours, peer)}; {_judged(peer.plain(fitted[0]))}"
        yield Row(f"{what}: {peer.name}, {peer.counting}", seconds, note=note)


def _turns(size: int, peers: Sequence[Trimmer]) -> Iterator[Row]:
    """A conversation that goes on after `size` messages: the median turn of a few."""
    stream = messages(size + TURNS)
    what = f"a turn after {size:,} messages"
    ours: dict[str, float] = {}
    for name in OURS:
        context, given = _context(name), stream[:size]
        context.fit(given)
        turns = timed(_growing(given, stream[size:], context.fit))
        ours[name] = turns.median
        note = f"fit(messages), worst {shown(turns.worst, 's')}"
        yield Row(f"{what}: foveal, {name}", turns.median, note=note)
    for peer in peers:
        progress(f"peers: {what}, {peer.name} …")
        held = peer.held(stream)
        trim: Callable[[list[Any]], Any] = lambda given, peer=peer: peer.trim(given, BUDGET)  # noqa: E731
        turns = timed(_growing(held[:size], held[size:], trim), patience=PATIENCE)
        note = f"{_ratio(turns.median, ours, peer)}; worst {shown(turns.worst, 's')}"
        yield Row(f"{what}: {peer.name}, {peer.counting}", turns.median, note=note)


def _growing(
    given: list[Any], following: list[Any], fit: Callable[[list[Any]], object]
) -> Iterator[Callable[[], object]]:
    for message in following:
        given.append(message)
        yield lambda: fit(given)


def _normalising() -> Iterator[Row]:
    given = messages(ITEMS)
    meter = Meter(counter("estimate"))
    for peer in normalisers():
        ours = best_of(20, lambda peer=peer: normalised(given, peer.target, meter))
        seconds = best_of(20, lambda peer=peer: peer.act(given))
        note = f"{shown(seconds / ours, '×')} foveal's read, fold, write and join ({shown(ours, 's')})"
        yield Row(f"{ITEMS:,} chat messages: {peer.name}", seconds, note=note)


def _context(tokenizer: str) -> Context:
    """What comes nearest to trimming: the newest that fit, no room kept for an answer, and the margin of a
    tenth outside of the budget."""
    return Context(MODEL, policy="recent", window=BUDGET * 10 // 9, reserve=0, tokenizer=tokenizer)


def _ratio(seconds: float, ours: dict[str, float], peer: Trimmer) -> str:
    like = "estimate" if peer.counting == "approximate" else "o200k_base"
    return f"{shown(seconds / ours[like], '×')} foveal's {like}"


def _judged(fitted: Sequence[Json]) -> str:
    """How much is left, and what no provider would take."""
    tokens = _tokens(fitted)
    words = f"{len(fitted)} messages, {tokens:,} tokens"
    if tokens > BUDGET:
        words += f", {tokens - BUDGET:,} above the budget"
    called = {call["id"] for message in fitted for call in message.get("tool_calls") or ()}
    orphans = sum(message["role"] == "tool" and message["tool_call_id"] not in called for message in fitted)
    return words + (f", {orphans} results without their call" if orphans else "")


def _tokens(fitted: Sequence[Json]) -> int:
    """Tokens of contents and calls alone, without anybody's idea of what a message costs beside them."""
    texts = [message["content"] or "" for message in fitted]
    for message in fitted:
        for call in message.get("tool_calls") or ():
            texts += [call["function"]["name"], call["function"]["arguments"]]
    return sum(counter("o200k_base").count_all(texts))
