"""Compares Foveal with `trim_messages` and the normalisers of langchain-core and litellm.

Each peer is called as its documentation describes, on the same history and with the same budget. The peers keep no
state between calls, so a loop pays for the whole history in every turn. A `Context` pays once for the history
(`new`) and then for new messages (`next turn`). Both are compared, because a caller that trims a list once pays
the former.

The list is trimmed at the same few ends for all. For Foveal the median counts, for a peer the fastest call that
did trim, because litellm has two speeds: if the messages that it has kept leave more than three tokens free, it
goes on through all older messages. If it would have to shorten a message without content, it logs an error and
returns the whole list. The note says how often either happened. The ratio is the peer's time divided by Foveal's.
All results are judged by the same measure: tokens of contents and calls, and whether every result has its call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from functools import partial
from operator import itemgetter
from typing import Any, Final, NamedTuple

from bench.bench_fold import ITEMS, normalise
from bench.measure import Row, Turns, best_of, display, progress, time_each
from bench.peers import MODEL, Trimmer, missing, normalisers, trimmers
from bench.work import Json, messages
from foveal import Context
from foveal.core.tokens import MessageTokens
from foveal.core.tokens.counter import counter

SIZES: Final = (500, 5_000)
BUDGET: Final = 8_000
ENDS: Final = 5
APART: Final = 37
"""Messages between two ends; adjacent ends would mostly be cut at the same message."""
TOKENIZERS: Final = ("estimate", "o200k_base")


class ContextSeconds(NamedTuple):
    """Median seconds of a `Context` with one token counter."""

    new: float
    turn: float


def rows() -> Iterator[Row]:
    for name in missing():
        yield Row(f"{name}: not installed", None, note="make bench installs it")
    peers = list(trimmers())
    for size in SIZES:
        yield from _trimming(size, peers)
    yield from _normalising()


def _trimming(size: int, peers: Sequence[Trimmer]) -> Iterator[Row]:
    stream = messages(size + ENDS * APART)
    what = f"trim {size:,} messages to {BUDGET:,} tokens"
    ours: dict[str, ContextSeconds] = {}
    for counting in TOKENIZERS:
        progress(f"peers: {what}, foveal …")
        new = _ends(stream, size, lambda given, counting=counting: _context(counting).fit(given))
        turn = _turns(stream, size, _context(counting))
        ours[counting] = ContextSeconds(new.median, turn.median)
        note = f"worst {display(new.worst, 's')}; {_describe_result(_context(counting).fit(stream))}"
        yield Row(f"{what}: foveal, {counting}, new", new.median, note=note)
        note = f"fit(messages), worst {display(turn.worst, 's')}"
        yield Row(f"{what}: foveal, {counting}, next turn", turn.median, note=note)
    for peer in peers:
        progress(f"peers: {what}, {peer.name} …")
        yield _peer(peer, stream, size, ours[peer.like])


def _peer(peer: Trimmer, stream: list[Json], size: int, ours: ContextSeconds) -> Row:
    converted = peer.convert(stream)
    peer.trim(converted[:50], BUDGET)  # warm-up: one-time initialisation
    trimmed: list[tuple[float, list[Any]]] = []
    for history in _histories(converted, size):
        start = time.process_time()
        fitted = peer.trim(history, BUDGET)
        seconds = time.process_time() - start
        if len(fitted) < len(history):
            trimmed.append((seconds, fitted))
    what = f"trim {size:,} messages to {BUDGET:,} tokens: {peer.name}, {peer.counting}"
    if not trimmed:
        return Row(what, None, note="returned the whole list each time")
    times = [seconds for seconds, _ in trimmed]
    best, fitted = min(trimmed, key=itemgetter(0))
    note = f"{display(best / ours.new, '×')} foveal new, {display(best / ours.turn, '×')} its next turn"
    slow = sum(seconds > 3 * best for seconds in times)
    note += f"; {slow} of {ENDS} ends slow, up to {display(max(times), 's')}"
    if len(trimmed) < ENDS:
        note += f"; {ENDS - len(trimmed)} of {ENDS} returned the whole list"
    return Row(what, best, note=f"{note}; {_describe_result(peer.plain(fitted))}")


def _histories(stream: list[Any], size: int) -> Iterator[list[Any]]:
    return (stream[: size + APART * end] for end in range(1, ENDS + 1))


def _ends(stream: list[Any], size: int, trim: Callable[[list[Any]], object]) -> Turns:
    """Time trimming with a new context at each end."""
    return time_each(partial(trim, history) for history in _histories(stream, size))


def _turns(stream: list[Json], size: int, context: Context) -> Turns:
    """Time the turns after `size` messages, one message at a time, up to the last end."""
    given = stream[:size]
    context.fit(given)

    def acts() -> Iterator[Callable[[], object]]:
        for message in stream[size:]:
            given.append(message)
            yield lambda: context.fit(given)

    return time_each(acts())


def _normalising() -> Iterator[Row]:
    given = messages(ITEMS)
    meter = MessageTokens(counter("estimate"))
    for peer in normalisers():
        ours = best_of(20, lambda peer=peer: normalise(given, peer.target, meter))
        theirs = deepcopy(given)
        seconds = best_of(20, lambda peer=peer, theirs=theirs: peer.act(theirs))
        note = (
            f"{display(seconds / ours, '×')} foveal ({display(ours, 's')}); does not check call/result pairs"
        )
        yield Row(f"{ITEMS:,} chat messages: {peer.name}", seconds, note=note)


def _context(tokenizer: str) -> Context:
    """Return a context that is closest to trimming: keeps the newest messages that fit, without an output reserve.

    The window is larger than the budget, so that the safety margin of a tenth is outside of the budget."""
    return Context(
        MODEL, policy="recent", window=BUDGET * 10 // 9, reserve=0, margin=0.1, tokenizer=tokenizer
    )


def _describe_result(fitted: Sequence[Json]) -> str:
    """Describe the result: its size, and orphaned tool results, which providers reject."""
    tokens = _tokens(fitted)
    words = f"{len(fitted)} messages, {tokens:,} tokens"
    if tokens > BUDGET:
        words += f", {tokens - BUDGET:,} above the budget"
    called = {call["id"] for message in fitted for call in message.get("tool_calls") or ()}
    orphans = sum(message["role"] == "tool" and message["tool_call_id"] not in called for message in fitted)
    return words + (f", {orphans} results without their call" if orphans else "")


def _tokens(fitted: Sequence[Json]) -> int:
    """Count the tokens of contents and calls only, without any overhead per message."""
    texts = [message["content"] or "" for message in fitted]
    for message in fitted:
        for call in message.get("tool_calls") or ():
            texts += [call["function"]["name"], call["function"]["arguments"]]
    return sum(counter("o200k_base").count_all(texts))
