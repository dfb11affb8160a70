"""From files, folders and stores to recordings, and which of them to replay."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeAlias

from foveal.events import Instructed, ModelSaid, ToolReturned, UserSaid
from foveal.replay.requests import words
from foveal.stores import open_store
from foveal.tokens import counter
from foveal.transcripts import Recording, UnreadableTranscript, read

SQLITE: Final = b"SQLite format 3\0"
Skipped: TypeAlias = Callable[[UnreadableTranscript], None]


def load(
    paths: Iterable[str | os.PathLike[str]], *, format: str = "auto", skipped: Skipped | None = None
) -> list[Recording]:
    """All conversations in files, folders and stores of sessions that have at least one utterance of a model.

    A file that cannot be read raises `UnreadableTranscript`; in a folder it is passed over, and `skipped` is told.
    """
    found: list[Recording] = []
    for path in map(Path, paths):
        if _is_store(path):
            found += stored(path)
        else:
            found += read(path, format=format, skipped=skipped)
    return [one for one in found if any(isinstance(fact, ModelSaid) for fact, _ in one.facts)]


def stored(path: Path) -> list[Recording]:
    """The sessions in a store, those that were erased left out."""
    with ThreadPoolExecutor(1) as apart:  # the caller's thread may have an event loop of its own
        return apart.submit(asyncio.run, _sessions(path)).result()


async def _sessions(path: Path) -> list[Recording]:
    found = []
    async with open_store(path) as store:
        for info in sorted(await store.sessions(), key=lambda info: info.id):
            if not info.erased:
                events = await store.read(info.id)
                facts = tuple((event.fact, event.at) for event in events)
                first = events[0].seq if events else 0
                found.append(
                    Recording(
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
    recordings: Sequence[Recording], *, long: int = 0, limit: int | None = None, seed: int = 0
) -> list[Recording]:
    """Those of at least `long` tokens; of these a sample of `limit`, the same for the same seed, in their order."""
    kept = [one for one in recordings if not long or tokens(one, enough=long) >= long]
    if limit is None or limit >= len(kept):
        return kept
    places = random.Random(seed).sample(range(len(kept)), max(0, limit))
    return [kept[place] for place in sorted(places)]


def tokens(recording: Recording, *, enough: int | None = None) -> int:
    """Tokens of all messages of a recording; counting stops when it is `enough`."""
    said = (UserSaid, ModelSaid, ToolReturned, Instructed)
    count, total = counter().count, 0
    for fact, _ in recording.facts:
        if isinstance(fact, said):
            total += count(words(fact))
            if enough is not None and total >= enough:
                break
    return total
