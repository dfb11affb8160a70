"""Many conversations under many policies, on all cores.

    recordings = load(["logs/"])
    rows = run(recordings, ["economy", "rolling"], window=32_000, reserve=4_000)
    print(table(rows))

One conversation under all policies is one piece of work, so that its needs are found once. The answer does not
depend on how many processes there are, but for the times.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import sys
from collections.abc import Callable, Iterable, Sequence, Set
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from fnmatch import fnmatch
from functools import partial
from multiprocessing.context import BaseContext
from pathlib import Path, PurePath
from typing import Final, TypeAlias

from foveal.core.log.events import Instructed, ModelSaid, ToolReturned, UserSaid
from foveal.core.tokens.counter import counter
from foveal.replay.play import Player, ReplaySetting, ScoringTable, Trace, chosen, everything
from foveal.replay.policy_choice import Given, PolicyChoice, policy_choices
from foveal.replay.recall_score import needs, vocabulary, words
from foveal.replay.recorded_calls import conversation
from foveal.replay.statistics import PolicyStatistics, policy_statistics
from foveal.replay.upper_bound import oracle
from foveal.stores import open_store
from foveal.transcripts import Transcript, UnreadableTranscript, read

# ── loading ───────────────────────────────────────────────────────────────────────────────────────
# From files, folders and stores to recordings, and which of them to replay.

SQLITE: Final = b"SQLite format 3\0"
Skipped: TypeAlias = Callable[[UnreadableTranscript], None]


def load(
    paths: Iterable[str | os.PathLike[str]], *, format: str = "auto", skipped: Skipped | None = None
) -> list[Transcript]:
    """All conversations in files, folders and stores of sessions that have at least one utterance of a model.

    A file that cannot be read raises `UnreadableTranscript`; in a folder it is passed over, and `skipped` is told.
    """
    found: list[Transcript] = []
    for path in map(Path, paths):
        if _is_store(path):
            found += stored(path)
        else:
            found += read(path, format=format, skipped=skipped)
    return [one for one in found if any(isinstance(fact, ModelSaid) for fact, _ in one.facts)]


def stored(path: Path) -> list[Transcript]:
    """The sessions in a store, those that were erased left out."""
    with ThreadPoolExecutor(1) as apart:  # the caller's thread may have an event loop of its own
        return apart.submit(asyncio.run, _sessions(path)).result()


async def _sessions(path: Path) -> list[Transcript]:
    found = []
    async with open_store(path) as store:
        for info in sorted(await store.sessions(), key=lambda info: info.id):
            if not info.erased:
                events = await store.read(info.id)
                facts = tuple((event.fact, event.at) for event in events)
                first = events[0].seq if events else 0
                found.append(
                    Transcript(
                        id=info.id, source="store", facts=facts, title=info.title, path=str(path), first=first
                    )
                )
    return found


def _is_store(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(SQLITE)) == SQLITE
    except OSError:
        return False


def choose(
    recordings: Sequence[Transcript], *, long: int = 0, limit: int | None = None, seed: int = 0
) -> list[Transcript]:
    """Those of at least `long` tokens; of these a sample of `limit`, the same for the same seed, in their order."""
    kept = [one for one in recordings if not long or tokens(one, enough=long) >= long]
    if limit is None or limit >= len(kept):
        return kept
    places = random.Random(seed).sample(range(len(kept)), max(0, limit))
    return [kept[place] for place in sorted(places)]


def tokens(recording: Transcript, *, enough: int | None = None) -> int:
    """Tokens of all messages of a recording; counting stops when it is `enough`."""
    said = (UserSaid, ModelSaid, ToolReturned, Instructed)
    count, total = counter().count, 0
    for fact, _ in recording.facts:
        if isinstance(fact, said):
            total += count(words(fact))
            if enough is not None and total >= enough:
                break
    return total


# ── running ───────────────────────────────────────────────────────────────────────────────────────

Progress: TypeAlias = Callable[[int, int], None]
"""Told how many conversations are done, and how many there are."""
SMALL: Final = 500
"""Facts that one process replays sooner than others can be started."""


def run(
    recordings: Sequence[Transcript],
    policies: Iterable[Given] = ("economy",),
    *,
    model: str = "gpt-5",
    window: int | None = None,
    reserve: int | None = None,
    margin: float | None = None,
    ttl: int | None = None,
    pace: float = 15.0,
    tokenizer: str = "auto",
    summariser: str = "",
    common: Set[str] | None = None,
    no_recall: Iterable[str] = (),
    bounds: bool = True,
    processes: int | None = None,
    progress: Progress | None = None,
) -> list[PolicyStatistics]:
    """The figures of sending everything, of each policy, and of the two bounds that know the future.

    `common` is the vocabulary that nobody needs to have read (default: that of these recordings), `no_recall` are
    patterns for the names of files or the ids of conversations whose needs are not counted: agents that saw only a
    part of their own history, say. The other values are those of `Setting`.
    """
    setting = ReplaySetting(
        model=model,
        window=window,
        reserve=reserve,
        margin=margin,
        ttl=ttl,
        pace=pace,
        tokenizer=tokenizer,
        summariser=summariser,
    )
    work = _ReplayTask(
        contenders=policy_choices(policies),
        setting=setting,
        common=vocabulary(recordings) if common is None else common,
        no_recall=tuple(no_recall),
        bounds=bounds,
    )
    traces = _traces(work, recordings, processes, progress or _nobody)
    rows = zip(*traces, strict=True)
    return [policy_statistics(row[0].policy, row, chosen(setting)) for row in rows]


class _ReplayTask:
    """All that is the same for every conversation."""

    def __init__(
        self,
        *,
        contenders: list[PolicyChoice],
        setting: ReplaySetting,
        common: Set[str],
        no_recall: tuple[str, ...],
        bounds: bool,
    ) -> None:
        self.contenders = contenders
        self.setting = setting
        self.common = common
        self.no_recall = no_recall
        self.bounds = bounds

    def replay(self, recording: Transcript) -> list[Trace]:
        """One conversation under everything."""
        said = conversation(recording)
        needed = [] if self._without_recall(recording) else needs(said.facts, common=self.common)
        table = ScoringTable(said, needed, self.setting)
        traces = [everything(table)]
        traces += [Player(table, rules, label=label).play() for label, rules in self.contenders]
        if self.bounds:
            traces += [oracle(table, arguments=False), oracle(table, arguments=True)]
        return traces

    def _without_recall(self, recording: Transcript) -> bool:
        names = (recording.id, recording.path, PurePath(recording.path).name)
        return any(fnmatch(name, pattern) for pattern in self.no_recall for name in names)


def _traces(
    work: _ReplayTask, recordings: Sequence[Transcript], processes: int | None, progress: Progress
) -> list[list[Trace]]:
    count = min(processes or os.cpu_count() or 1, len(recordings))
    if count <= 1 or (processes is None and sum(len(one.facts) for one in recordings) < SMALL):
        return list(map(partial(_one, work, progress, len(recordings)), range(len(recordings)), recordings))
    largest = sorted(range(len(recordings)), key=lambda place: -len(recordings[place].facts))
    found: dict[int, list[Trace]] = {}
    with ProcessPoolExecutor(count, mp_context=_processes(), initializer=_begin, initargs=(work,)) as pool:
        places = {pool.submit(_replayed, recordings[place]): place for place in largest}
        for done in as_completed(places):
            found[places[done]] = done.result()
            progress(len(found), len(recordings))
    return [found[place] for place in range(len(recordings))]


def _one(work: _ReplayTask, progress: Progress, total: int, place: int, recording: Transcript) -> list[Trace]:
    traces = work.replay(recording)
    progress(place + 1, total)
    return traces


_begun: list[_ReplayTask] = []
"""In a process of the pool: its work."""


def _begin(work: _ReplayTask) -> None:
    _begun[:] = [work]


def _replayed(recording: Transcript) -> list[Trace]:
    return _begun[0].replay(recording)


def _processes() -> BaseContext:
    """Forked where that is safe: a script of the user's then needs no guard around its main part."""
    forked = sys.platform.startswith("linux") and "fork" in multiprocessing.get_all_start_methods()
    return multiprocessing.get_context("fork" if forked else None)


def _nobody(done: int, total: int) -> None:
    return None
