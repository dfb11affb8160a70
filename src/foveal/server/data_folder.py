"""Paths of a server's files.

service.db       inbox, tokens, pairings, chats, schedules, jobs, digest index
work.db          state of the job engine (DBOS)
turnstile.lock   locks on sessions between processes
tenants/NAME.db  the sessions of a tenant
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Self

from foveal.config import Config
from foveal.errors import StoreUnusable
from foveal.server.databases import Database, SqliteDatabase


class DataFolder(NamedTuple):
    path: Path

    @classmethod
    def create(cls, path: Path) -> Self:
        """Create the folder if it is missing, accessible to its owner only."""
        try:
            for folder in (path, path / "tenants"):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as problem:
            raise StoreUnusable(
                f"the folder {path} cannot be created ({problem.strerror}): choose another `server.folder`"
            ) from None
        return cls(path)

    @property
    def jobs_file(self) -> Path:
        return self.path / "work.db"

    @property
    def lock_file(self) -> Path:
        return self.path / "turnstile.lock"

    def tenant_file(self, name: str) -> Path:
        return self.path / "tenants" / f"{name}.db"

    def open_database(self) -> Database:
        return SqliteDatabase(self.path / "service.db")


def data_folder_path(config: Config, environment: Mapping[str, str], *, given: Path | None = None) -> Path:
    """Return the given folder, the configured one, or the default under `XDG_DATA_HOME`."""
    data_home = environment.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    default = Path(data_home) / "foveal" / "server"
    return (given or Path(config.get("server.folder") or default)).expanduser().absolute()
