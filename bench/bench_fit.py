"""Measures a turn and the first `fit` on messages of real size, beside the context managers of other packages.

1. The conversation is `work.coding_session`: 3.5 kB per message on average, results of up to 50 kB.
2. A turn is one message. Each run repeats the same turns with a new context, and the fastest of the runs counts for
   each turn, so that the worst turn is one with much work and not a pause of the machine.
3. A turn in which the policy hides something is a cut; all others are ordinary turns.
4. The limits hold for all lengths of the history; a row has the slowest of them, and the note has all.
5. Counting is timed in the same run: the same texts, with the same vocabulary.
6. The peers run in the environment that `make bench` makes for them (`PEERS_PYTHON`), otherwise in this one. A peer
   that is not installed has a row that says so.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import mean
from typing import Any, Final, NamedTuple

from bench.fit_memory import COUNT, memory
from bench.measure import CollectorTime, Row, Turns, best_of, display, progress, seconds_of
from bench.peer_loops import SIZES, WINDOWS, PeerTimes
from bench.work import Json, coding_session, texts
from foveal import Context
from foveal.core.log.events import Compacted, Dropped, Masked
from foveal.core.tokens.counter import counter

TOKENIZER: Final = "o200k_base"
POLICIES: Final = ("economy", "recent")
RUNS: Final = 3
TURNS: Final = 600
CUTS: Final = (Masked, Dropped, Compacted)
WAYS: Final = ("append(m); fit()", "fit(messages)")
MAX_MEAN_TURN_S: Final = {32_000: 0.0005, 100_000: 0.0005, 1_000_000: 0.001}
"""Of ordinary turns, by window: a request of 1,000,000 tokens has 5,000 messages and more."""
MAX_CUT_S: Final = {32_000: 0.008}
MAX_FIRST_FIT_S: Final = {1_000: 0.1, 5_000: 0.4}
HOPELESS_FIRST_FIT_S: Final = 2.0
"""If a first fit of 1,000 takes longer, more are not measured: they could take hours. Their limits are missed."""
MAX_GROWTH_RATIO: Final = 1.3
MAX_COUNTING_RATIO: Final = 2.0
MAX_MEMORY_RATIO: Final = 0.6
MEMORY_CASES: Final = (("economy", 100_000), ("economy", 1_000_000), ("recent", 100_000))
PEERS_PYTHON: Final = Path(sys.prefix) / "peers" / "bin" / "python"


class TimedTurn(NamedTuple):
    """What one turn took, in seconds."""

    seconds: float
    collected: float
    """Of these, what the garbage collector took, which walks all objects of the process."""
    is_cut: bool


class Times(NamedTuple):
    """What one context took: the first fit in seconds, and the turns of each of `WAYS`."""

    counting: float
    """Counting the texts of the first fit."""
    first: float
    turns: dict[str, list[TimedTurn]]

    def seconds(self, way: str, *, cuts: bool | None = None) -> list[float]:
        """Return the seconds of all turns, of the cuts only, or of the others only."""
        return [turn.seconds for turn in self.turns[way] if cuts is None or turn.is_cut is cuts]


class Loop:
    """An agent loop with a history, which continues with the messages of `following`."""

    def __init__(self, history: list[Json], following: list[Json], *, policy: str, window: int) -> None:
        self.context = Context("gpt-4.1", window=window, policy=policy, tokenizer=TOKENIZER)
        self.messages = list(history)
        self.following = iter(following)
        gc.collect()  # of the loop before, which is as large
        self.first = seconds_of(partial(self.context.fit, self.messages))
        self.events = len(self.context.log)

    def turns(self, count: int, way: str) -> list[TimedTurn]:
        """Run `count` more turns."""
        step = self._append_and_fit if way == WAYS[0] else self._fit_history
        with CollectorTime() as collector:
            acts = map(step, islice(self.following, count))
            return [TimedTurn(seconds_of(act), collector.lap(), self._has_cut()) for act in acts]

    def _has_cut(self) -> bool:
        """Return whether something was hidden since the last call."""
        before, log = self.events, self.context.log
        self.events = len(log)
        return any(isinstance(event.fact, CUTS) for event in log[before:])

    def _append_and_fit(self, message: Json) -> Callable[[], Any]:
        self.messages.append(message)

        def turn() -> None:
            self.context.append(message)
            self.context.fit()

        return turn

    def _fit_history(self, message: Json) -> Callable[[], Any]:
        self.messages.append(message)
        return partial(self.context.fit, self.messages)


def rows() -> Iterator[Row]:
    stream = list(islice(coding_session(), max(SIZES) + len(WAYS) * TURNS))
    turns: dict[tuple[int, int], Turns] = {}
    for policy in POLICIES:
        for window in WINDOWS:
            times: dict[int, Times] = {}
            for size in SIZES:
                if all(known.first < HOPELESS_FIRST_FIT_S for known in times.values()):
                    times[size] = _measure(stream, size, policy=policy, window=window)
            yield from _turn_rows(f"{policy}, {_short(window)}", window, times)
            yield from _first_fit_rows(f"{policy}, {_short(window)}", times)
            if policy == POLICIES[0]:
                turns |= {(window, size): Turns.of(known.seconds(WAYS[0])) for size, known in times.items()}
    yield from _memory_rows()
    yield from _peer_rows(turns)


def _measure(stream: list[Json], size: int, *, policy: str, window: int) -> Times:
    given = texts(stream[:size])
    counting, firsts = [], []
    runs: dict[str, list[list[TimedTurn]]] = {way: [] for way in WAYS}
    for run in range(RUNS):
        progress(f"fit: {policy}, window {window:,}, {size:,} messages, run {run + 1} of {RUNS} …")
        counting.append(best_of(2, lambda: counter(TOKENIZER).count_all(given)))
        loop = Loop(stream[:size], stream[size:], policy=policy, window=window)
        firsts.append(loop.first)
        for way in WAYS:
            runs[way].append(loop.turns(TURNS, way))
    fastest = {way: [min(each) for each in zip(*runs[way], strict=True)] for way in WAYS}
    return Times(min(counting), min(firsts), fastest)


def _turn_rows(what: str, window: int, times: dict[int, Times]) -> Iterator[Row]:
    for way in WAYS:
        ordinary = {size: Turns.of(known.seconds(way, cuts=False)) for size, known in times.items()}
        note = "; ".join(f"{size:,}: {_describe(turns)}" for size, turns in ordinary.items())
        slowest = max(turns.mean for turns in ordinary.values())
        yield Row(f"{what}: {way}, mean without cuts", slowest, limit=MAX_MEAN_TURN_S[window], note=note)
        cuts = {size: seconds for size, known in times.items() if (seconds := known.seconds(way, cuts=True))}
        if cuts:
            note = "; ".join(
                f"{size:,}: {len(seconds)} of {TURNS}, mean {display(mean(seconds), 's')}"
                for size, seconds in cuts.items()
            )
            yield Row(
                f"{what}: {way}, worst cut", max(map(max, cuts.values())), "s", MAX_CUT_S.get(window), note
            )
        means = {size: mean(known.seconds(way)) for size, known in times.items()}
        collected = {size: mean(turn.collected for turn in known.turns[way]) for size, known in times.items()}
        note = "; ".join(
            f"{size:,}: {display(seconds, 's')}, {display(collected[size], 's')} of it the garbage collector"
            for size, seconds in means.items()
        )
        yield Row(f"{what}: {way}, mean of all turns", max(means.values()), note=note)


def _first_fit_rows(what: str, times: dict[int, Times]) -> Iterator[Row]:
    for size in SIZES:
        first = times[size].first if size in times else None
        yield Row(f"{what}: first fit of {size:,}", first, limit=MAX_FIRST_FIT_S.get(size))
    small, large = SIZES[0], SIZES[-1]
    growth = None
    if large in times:
        growth = (times[large].first / large) / (times[small].first / small)
    yield Row(f"{what}: first fit of {large:,}, per message", growth, "×", MAX_GROWTH_RATIO)
    ratios = {size: known.first / known.counting for size, known in times.items()}
    note = "; ".join(
        f"{size:,}: {display(ratio, '×')} of {display(times[size].counting, 's')}"
        for size, ratio in ratios.items()
    )
    yield Row(f"{what}: first fit to counting", max(ratios.values()), "×", MAX_COUNTING_RATIO, note)


def _memory_rows() -> Iterator[Row]:
    for policy, window in MEMORY_CASES:
        progress(f"fit: memory, {policy}, window {window:,} …")
        grown = memory(policy, window)
        ratio, note = None, f"fitting {COUNT:,} messages took too long"
        if grown is not None:
            ratio = grown.context / grown.messages
            note = f"{grown.context / 1e6:.1f} MB beyond {grown.messages / 1e6:.1f} MB by tracemalloc"
            note += f"; peak of fit {grown.peak / grown.messages:.1f} ×"
        yield Row(f"{policy}, {_short(window)}: memory of {COUNT:,}", ratio, "×", MAX_MEMORY_RATIO, note)


def _peer_rows(ours: dict[tuple[int, int], Turns]) -> Iterator[Row]:
    """Yield a row per peer and window: its mean turn at 1,000 messages, and in the note everything else."""
    known: list[PeerTimes] = []
    for found in _peer_times():
        if isinstance(found, str):
            yield Row(f"{found}: not installed", None, note="make bench installs it")
            continue
        known.append(found)
        if len(known) == len(SIZES):
            notes = [_describe_peer(times, ours.get((times.window, times.size))) for times in known]
            what = f"{found.peer}, {_short(found.window)}: turn"
            yield Row(what, known[0].turns.mean, note="; ".join(notes))
            known = []


def _peer_times() -> Iterator[PeerTimes | str]:
    """Yield the times of each peer as they are measured, or the name of a peer that is not installed."""
    python = PEERS_PYTHON if PEERS_PYTHON.exists() else sys.executable
    command = [str(python), "-m", "bench.peer_loops"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            found = json.loads(line)
            if "missing" in found:
                yield found["missing"]
                continue
            times = PeerTimes(**{**found, "turns": Turns(*found["turns"])})
            progress(f"fit: {times.peer}, window {times.window:,}, {times.size:,} messages …")
            yield times
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")


def _describe_peer(times: PeerTimes, ours: Turns | None) -> str:
    first = f"first {display(times.first, 's')} to {times.shown:,} messages"
    ratio = f", {display(times.turns.mean / ours.mean, '×')} economy" if ours is not None else ""
    return f"{times.size:,}: {_describe(times.turns)}{ratio}, {first}"


def _describe(turns: Turns) -> str:
    return (
        f"mean {display(turns.mean, 's')}, p99 {display(turns.p99, 's')}, worst {display(turns.worst, 's')}"
    )


def _short(window: int) -> str:
    return f"{window // 1_000_000}M" if window >= 1_000_000 else f"{window // 1_000}k"
