"""Where a server keeps what it keeps.

service.db       messages that wait, tokens, pairings, chats, schedules
work.db          background work
turnstile.lock   who works on which session
tenants/NAME.db  the sessions of a tenant
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple, Self

from foveal.config import Config
from foveal.errors import StoreUnusable
from foveal.server.database import Database


class DataFolder(NamedTuple):
    folder: Path

    @classmethod
    def made(cls, folder: Path) -> Self:
        """The places in a folder, which is made for its owner only if it is not there."""
        try:
            for place in (folder, folder / "tenants"):
                place.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as problem:
            raise StoreUnusable(
                f"the folder {folder} cannot be made ({problem.strerror}): choose another `server.folder`"
            ) from None
        return cls(folder)

    @property
    def work(self) -> Path:
        return self.folder / "work.db"

    @property
    def turnstile(self) -> Path:
        return self.folder / "turnstile.lock"

    def tenant(self, name: str) -> Path:
        return self.folder / "tenants" / f"{name}.db"

    def database(self) -> Database:
        return Database(self.folder / "service.db")


def folder_of(config: Config, environment: Mapping[str, str], *, given: Path | None = None) -> Path:
    """Where a server keeps everything: the folder that is given, the configured one, or the usual place."""
    data = environment.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    usual = Path(data) / "foveal" / "server"
    return (given or Path(config.get("server.folder") or usual)).expanduser().absolute()


@asynccontextmanager
async def server_database(
    config: Config, environment: Mapping[str, str], *, given: Path | None = None
) -> AsyncIterator[Database]:
    """A server's own file, for a command beside it."""
    database = DataFolder.made(folder_of(config, environment, given=given)).database()
    try:
        yield database
    finally:
        await database.close()
