"""Measures surprise on recorded conversations: all presets, the half cut, batches, and the reducers of peers.

    python -m bench.surprise_replay FOLDER --limit 40 --windows 32000 128000
                                              prints one JSON object per half, group and candidate

1. `foveal.replay.surprise` defines surprise. Here the coder is PPMd, which agrees with a language model a little
   better than zstandard; without `pyppmd` it is zstandard, and the objects say so.
2. `peer_replay` explains how peers are replayed, and which conversations are.
3. A *candidate* is a policy or a peer. *Families* with a target are replayed with three: the share of its room, for
   a peer of the tokens at which it begins, to which a cut reduces the request.
4. The half cut is `recent` with a target: at the limit the oldest steps go. `rolling` in batches masks
   `BATCH_RESULTS` old results at once, and drops steps only at the limit.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from functools import partial
from itertools import islice, takewhile, zip_longest
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final, NamedTuple
from zlib import crc32

import msgspec

from bench.measure import progress
from bench.peer_replay import (
    MODEL,
    NO_RECALL,
    PROCESSES,
    RESERVE,
    PeerReplay,
    be_quiet,
    installed_peers,
    long_chats,
    print_missing,
)
from bench.work import Json
from foveal.core.policies import PRESETS, policy
from foveal.replay import ReplaySetting, Trace, common_names, find_needs, load, recorded_conversation, select
from foveal.replay.play import PolicyPlayer, ReplayCase, replay_everything
from foveal.replay.run import Half
from foveal.replay.strata import GroupStatistics, by_pressure, by_window
from foveal.replay.surprise import DEFAULT_SAMPLES, CountBits, zstandard_bits
from foveal.transcripts import Transcript

WINDOWS: Final = (16_000, 32_000, 64_000, 128_000)
HALVES: Final[tuple[Half, ...]] = ("A", "B")
DEFAULT_LIMIT: Final = 40
"""Conversations that are replayed, half of them from each half: about a quarter of an hour on two cores."""
TARGETS: Final = (0.3, 0.5, 0.7)
DEFAULT_TARGET: Final = 0.5
"""The target of the half cut, and of a peer in `bench peer_recall`."""
BATCH_RESULTS: Final = 20
NO_HISTORY_LIMIT: Final = 10_000_000
"""Tokens; more than any recording has."""
PPMD_ORDER: Final = 8
PPMD_BYTES: Final = 256 << 20
"""Memory of the model: enough for the longest history without starting again."""


# ── Coder ────────────────────────────────────────────────────────────────────────────────────────────────


def ppmd_bits(known: bytes, step: bytes) -> float:
    """Return the bits in which PPMd writes a step after a text that it knows."""
    from pyppmd import Ppmd7Encoder

    encoder = Ppmd7Encoder(PPMD_ORDER, PPMD_BYTES)
    encoder.encode(known)
    # Of both texts the encoder holds back the same few bytes until it is flushed.
    return 8.0 * len(encoder.encode(step))


def has_ppmd() -> bool:
    """Return whether PPMd is installed."""
    return importlib.util.find_spec("pyppmd") is not None


# ── Candidates ───────────────────────────────────────────────────────────────────────────────────────────


class Candidate(NamedTuple):
    """A policy or a peer, with one target."""

    family: str
    target: float | None
    """None for a family that is replayed once."""
    label: str
    is_default: bool = True
    """Whether its figures stand for the family where there is one for each."""
    peer: Any = None
    """A peer's reducer and the type of its summaries, None for a policy of Foveal."""
    changes: tuple[tuple[str, Any], ...] = ()
    """The settings of a policy."""

    def play(self, case: ReplayCase) -> Trace:
        """Replay a conversation in the window of the case."""
        if self.peer is None:
            rules = policy({**dict(self.changes), "name": self.label})
            return PolicyPlayer(case, rules, label=self.label).play()
        reducer, summaries = self.peer
        if self.target is not None:
            reducer = reducer._replace(history=partial(reducer.history, target=self.target))
        return PeerReplay(case, reducer, summaries(case, case.model.window), self.label).play()


def candidates() -> list[Candidate]:
    """Return all candidates: the presets first, then those with targets, then the peers."""
    own = [Candidate(name, None, name, changes=(("preset", name),)) for name in PRESETS if name != "off"]
    return [*own, *_swept_policies(), *_peers()]


def _swept_policies() -> Iterator[Candidate]:
    families: dict[str, Json] = {
        "economy": {"preset": "economy"},
        "half cut": {"preset": "recent", "keep_task": True},
        "rolling in batches": {
            "preset": "rolling",
            "mask_every": BATCH_RESULTS,
            "max_history_tokens": NO_HISTORY_LIMIT,
        },
    }
    for family, values in families.items():
        for target in TARGETS:
            changes = tuple({**values, "target": target}.items())
            # The preset `economy` has a target of its own.
            is_default = target == DEFAULT_TARGET and family != "economy"
            yield Candidate(family, target, _with_target(family, target), is_default, changes=changes)


def _peers() -> Iterator[Candidate]:
    for label, reducer, summaries in installed_peers():
        for target in TARGETS if reducer.has_target else (None,):
            name = label if target is None else _with_target(label, target)
            is_default = target in (None, DEFAULT_TARGET)
            yield Candidate(label, target, name, is_default, peer=(reducer, summaries))


def _with_target(family: str, target: float) -> str:
    return f"{family}, target {target}"


# ── Replaying ────────────────────────────────────────────────────────────────────────────────────────────


class ReplayWork(NamedTuple):
    """What one process replays: a conversation in some windows."""

    recording: Transcript
    half: Half
    common: frozenset[str]
    samples: int
    windows: tuple[int, ...]


def replay_work(work: ReplayWork) -> tuple[Half, list[Trace]]:
    """Replay one conversation in its windows under all candidates."""
    be_quiet()
    conversation = recorded_conversation(work.recording)
    is_measured = not conversation.source.startswith(NO_RECALL)
    needs = find_needs(conversation.facts, common=work.common) if is_measured else []
    settings = [ReplaySetting(model=MODEL, window=window, reserve=RESERVE) for window in work.windows]
    count_bits: CountBits = ppmd_bits if has_ppmd() else zstandard_bits
    case = ReplayCase(
        conversation,
        needs,
        settings[0],
        samples=work.samples if is_measured else 0,
        count_bits=count_bits,
    )
    replay_everything(case)
    found: list[Trace] = []
    for setting in settings:
        case.set_window(setting)
        found += (candidate.play(case) for candidate in candidates())
    return work.half, [msgspec.structs.replace(trace, losses=[]) for trace in found]


def choose_work(
    recordings: Sequence[Transcript], *, limit: int, samples: int, windows: Sequence[int] = WINDOWS
) -> list[ReplayWork]:
    """Return at most `limit` conversations, as many of each half as possible, the longest first."""
    common = common_names(recordings)
    found: list[ReplayWork] = []
    for half in HALVES:
        chosen = select(long_chats(recordings, half=half), limit=(limit + (half == "A")) // 2)
        found += (ReplayWork(each, half, common, samples, tuple(windows)) for each in chosen)
    return sorted(found, key=lambda work: -len(work.recording.facts))


def spread_halves(work: Sequence[ReplayWork]) -> list[ReplayWork]:
    """Return the work in an order of which any beginning is a sample: halves in turn, long and short ones mixed."""
    halves = ([each for each in work if each.half == half] for half in HALVES)
    mixed = (sorted(half, key=lambda each: crc32(each.recording.id.encode())) for half in halves)
    return [each for pair in zip_longest(*mixed) for each in pair if each is not None]


def replay_all(
    work: Sequence[ReplayWork], *, processes: int, minutes: float | None = None
) -> dict[Half, dict[str, list[Trace]]]:
    """Return for each half and candidate the traces of all conversations and windows; with `minutes`, of those
    that begin in this time."""
    if minutes is not None:
        work = spread_halves(work)
    traces: dict[Half, dict[str, list[Trace]]] = {half: {} for half in HALVES}
    started = time.monotonic()
    for done, (half, found) in enumerate(_replayed(work, processes, minutes), 1):
        for trace in found:
            traces[half].setdefault(trace.policy, []).append(trace)
        taken = (time.monotonic() - started) / 60
        progress(f"surprise: {done} of {len(work)} conversations in {taken:.1f} min …")
    return traces


def _replayed(
    work: Sequence[ReplayWork], processes: int, minutes: float | None
) -> Iterator[tuple[Half, list[Trace]]]:
    end = math.inf if minutes is None else time.monotonic() + 60 * minutes
    in_time = takewhile(lambda _: time.monotonic() < end, work)
    if processes == 1:
        yield from map(replay_work, in_time)
        return
    # A forked process would share the event loop of `peer_loops` with the others.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        running = deque(pool.submit(replay_work, each) for each in islice(in_time, processes))
        while running:
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for each in done:
                running.remove(each)
                running.extend(pool.submit(replay_work, more) for more in islice(in_time, 1))
                yield each.result()


# ── Output ───────────────────────────────────────────────────────────────────────────────────────────────


def results(traces: dict[Half, dict[str, list[Trace]]]) -> Iterator[Json]:
    """Yield the figures of each candidate in each half, by pressure and by window."""
    named = {each.label: each for each in candidates()}
    for half, by_label in traces.items():
        for label, some in by_label.items():
            candidate = named[label]
            facts = {
                "half": half,
                "family": candidate.family,
                "target": candidate.target,
                "label": label,
                "is_default": candidate.is_default,
            }
            yield from _grouped(facts, "pressure", by_pressure(some))
            yield from _grouped(facts, "window", by_window(some))


def _grouped(facts: Json, kind: str, groups: Iterable[GroupStatistics]) -> Iterator[Json]:
    for group in groups:
        yield {
            **facts,
            "by": kind,
            "coder": "PPMd" if has_ppmd() else "zstandard",
            **msgspec.to_builtins(group),
        }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.surprise_replay")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--limit", type=int, default=DEFAULT_LIMIT, metavar="N", help="conversations at most")
    parser.add_argument("--windows", type=int, nargs="+", default=WINDOWS, metavar="TOKENS")
    parser.add_argument("--minutes", type=float, metavar="N", help="begin no conversation after this time")
    parser.add_argument("--samples", type=int, default=DEFAULT_SAMPLES, metavar="N", help="calls of each")
    parser.add_argument("--processes", type=int, default=PROCESSES, metavar="N")
    given = parser.parse_args()
    be_quiet()
    print_missing()
    work = choose_work(load([given.folder]), limit=given.limit, samples=given.samples, windows=given.windows)
    for each in results(replay_all(work, processes=given.processes, minutes=given.minutes)):
        print(json.dumps(each), flush=True)
    progress("")


if __name__ == "__main__":
    main()
