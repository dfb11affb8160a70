"""Places of past sessions: those that the user names, else the default ones of each agent."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from foveal.errors import FovealError, StoreUnusable
from foveal.recall.archive import ArchiveSource, PostgresSource, SqliteSource, TranscriptSource
from foveal.stores import is_postgres_url, other_url_error
from foveal.stores.sqlite.schema import check_header
from foveal.user_paths import store_path

_SQLITE_MAGIC: Final = b"SQLite format 3\0"
_AGENT_FOLDERS: Final = (
    ("CLAUDE_CONFIG_DIR", ".claude", ("projects",)),
    ("CODEX_HOME", ".codex", ("sessions", "archived_sessions")),
    ("PI_CODING_AGENT_DIR", ".pi/agent", ("sessions",)),
)
"""For each agent: the variable that names its folder, the default below the home folder, and where transcripts
are."""


def default_sources() -> list[ArchiveSource]:
    """Return the places of Claude Code, Codex, pi and Foveal that exist."""
    folders = [
        Path(os.environ.get(variable) or Path.home() / default) / name
        for variable, default, names in _AGENT_FOLDERS
        for name in names
    ]
    sources: list[ArchiveSource] = [TranscriptSource(folder) for folder in folders if folder.is_dir()]
    store = store_path()
    return [*sources, *([SqliteSource(store)] if store.is_file() else [])]


def find_sources(
    places: Sequence[str], *, tenant: str = "default", served: Path | None = None
) -> list[ArchiveSource]:
    """Return the sources of these places; without any, the default ones and the store that a server has `served`
    for the tenant. Raises `FovealError` if none exists."""
    if places:
        sources = given_sources(places, tenant=tenant)
    else:
        served_stores: list[ArchiveSource] = [SqliteSource(served)] if served and served.is_file() else []
        sources = [*default_sources(), *served_stores]
    if not sources:
        raise FovealError("no sessions of Claude Code, Codex, pi or Foveal were found: name a path")
    return sources


def given_sources(places: Sequence[str], *, tenant: str = "default") -> list[ArchiveSource]:
    """Return the sources for paths and URLs; raises `FovealError` for a path that does not exist."""
    return [source for place in places for source in _sources_of(place, tenant)]


def _sources_of(place: str, tenant: str) -> Iterator[ArchiveSource]:
    if is_postgres_url(place):
        yield PostgresSource(place, tenant)
        return
    if "://" in place:
        raise other_url_error(place, "a path, or a postgresql:// URL")
    path = Path(place).expanduser().absolute()
    if not path.exists():
        raise FovealError(f"there is no file or folder {path}: check the path")
    if path.is_dir():
        yield TranscriptSource(path)
        yield from (SqliteSource(file) for file in _store_files(path))
    elif _is_sqlite(path):
        yield SqliteSource(path)
    else:
        yield TranscriptSource(path)


def _store_files(folder: Path) -> Iterator[Path]:
    """Yield the stores in a folder, and those of the tenants if it is a server's folder."""
    for pattern in ("*.db", "tenants/*.db"):
        for path in sorted(folder.glob(pattern)):
            if path.is_file() and _is_store(path):
                yield path


def _is_store(path: Path) -> bool:
    """Return whether a file is a store of Foveal, not a database of another program or of the server."""
    try:
        check_header(str(path))
    except (StoreUnusable, OSError):
        return False
    return _is_sqlite(path)


def _is_sqlite(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_SQLITE_MAGIC)) == _SQLITE_MAGIC
    except OSError:  # the source reports the error when it is read
        return path.suffix == ".db"
