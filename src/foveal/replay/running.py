"""Many conversations under many policies, on all cores.

    recordings = load(["logs/"])
    rows = run(recordings, ["economy", "rolling"], window=32_000, reserve=4_000)
    print(table(rows))

One conversation under all policies is one piece of work, so that its needs are found once. The answer does not
depend on how many processes there are, but for the times.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Sequence, Set
from concurrent.futures import ProcessPoolExecutor, as_completed
from fnmatch import fnmatch
from functools import partial
from multiprocessing.context import BaseContext
from pathlib import PurePath
from typing import Final, TypeAlias

from foveal.replay.contenders import Contender, Given, contenders
from foveal.replay.conversations import conversation
from foveal.replay.figures import Figures, figures
from foveal.replay.needs import needs, vocabulary
from foveal.replay.oracle import oracle
from foveal.replay.player import Player, everything
from foveal.replay.scoring import Table, chosen
from foveal.replay.traces import Setting, Trace
from foveal.transcripts import Recording

Progress: TypeAlias = Callable[[int, int], None]
"""Told how many conversations are done, and how many there are."""
SMALL: Final = 500
"""Facts that one process replays sooner than others can be started."""


def run(
    recordings: Sequence[Recording],
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
) -> list[Figures]:
    """The figures of sending everything, of each policy, and of the two bounds that know the future.

    `common` is the vocabulary that nobody needs to have read (default: that of these recordings), `no_recall` are
    patterns for the names of files or the ids of conversations whose needs are not counted: agents that saw only a
    part of their own history, say. The other values are those of `Setting`.
    """
    setting = Setting(
        model=model,
        window=window,
        reserve=reserve,
        margin=margin,
        ttl=ttl,
        pace=pace,
        tokenizer=tokenizer,
        summariser=summariser,
    )
    work = _Work(
        contenders=contenders(policies),
        setting=setting,
        common=vocabulary(recordings) if common is None else common,
        no_recall=tuple(no_recall),
        bounds=bounds,
    )
    traces = _traces(work, recordings, processes, progress or _nobody)
    rows = zip(*traces, strict=True)
    return [figures(row[0].policy, row, chosen(setting)) for row in rows]


class _Work:
    """All that is the same for every conversation."""

    def __init__(
        self,
        *,
        contenders: list[Contender],
        setting: Setting,
        common: Set[str],
        no_recall: tuple[str, ...],
        bounds: bool,
    ) -> None:
        self.contenders = contenders
        self.setting = setting
        self.common = common
        self.no_recall = no_recall
        self.bounds = bounds

    def replay(self, recording: Recording) -> list[Trace]:
        """One conversation under everything."""
        said = conversation(recording)
        needed = [] if self._without_recall(recording) else needs(said.facts, common=self.common)
        table = Table(said, needed, self.setting)
        traces = [everything(table)]
        traces += [Player(table, rules, label=label).play() for label, rules in self.contenders]
        if self.bounds:
            traces += [oracle(table, arguments=False), oracle(table, arguments=True)]
        return traces

    def _without_recall(self, recording: Recording) -> bool:
        names = (recording.id, recording.path, PurePath(recording.path).name)
        return any(fnmatch(name, pattern) for pattern in self.no_recall for name in names)


def _traces(
    work: _Work, recordings: Sequence[Recording], processes: int | None, progress: Progress
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


def _one(work: _Work, progress: Progress, total: int, place: int, recording: Recording) -> list[Trace]:
    traces = work.replay(recording)
    progress(place + 1, total)
    return traces


_begun: list[_Work] = []
"""In a process of the pool: its work."""


def _begin(work: _Work) -> None:
    _begun[:] = [work]


def _replayed(recording: Recording) -> list[Trace]:
    return _begun[0].replay(recording)


def _processes() -> BaseContext:
    """Forked where that is safe: a script of the user's then needs no guard around its main part."""
    forked = sys.platform.startswith("linux") and "fork" in multiprocessing.get_all_start_methods()
    return multiprocessing.get_context("fork" if forked else None)


def _nobody(done: int, total: int) -> None:
    return None
