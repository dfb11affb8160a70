"""What the worker hands to its job engine, without importing the engine.

DBOS takes 0.6 seconds of CPU to import and wakes several times a second, so a process loads it with its first job.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, Literal, NamedTuple

from foveal.errors import StoreUnusable

AttemptResult = Literal["done", "later"]
RunAttempt = Callable[[str, int], Awaitable[AttemptResult]]
"""Runs one attempt of a job: its id, and the number of attempts before."""

SQLITE_URL: Final = "sqlite:///"
_SQLITE_HEADER: Final = b"SQLite format 3\0"


class EngineJob(NamedTuple):
    partition: str
    """A limited number of jobs of a partition run at once."""
    job_id: str
    delay_s: float = 0.0


def engine_file(url: str) -> Path | None:
    """Return the engine's SQLite file; None if its database is PostgreSQL."""
    return Path(url.removeprefix(SQLITE_URL)) if url.startswith(SQLITE_URL) else None


def check_engine_file(url: str) -> None:
    """Raise `StoreUnusable` if the engine's file is no database, before the first job needs it."""
    path = engine_file(url)
    if path is None or not path.exists():
        return
    try:
        with path.open("rb") as file:
            begin = file.read(len(_SQLITE_HEADER))
    except OSError as problem:
        raise unusable_file(path, problem) from problem
    if begin and begin != _SQLITE_HEADER:
        raise unusable_file(path, ValueError("no SQLite database"))


def unusable_file(path: Path, problem: Exception) -> StoreUnusable:
    return StoreUnusable(
        f"{path} cannot be used ({type(problem).__name__}): check that the disk has space and the file is "
        "writable; you may move it away, open jobs are kept in service.db"
    )
