"""Where a server keeps its data: a folder with SQLite files, or a PostgreSQL database.

1. `Storage` opens everything that the service stores: its tables, the sessions of each tenant, locks and wake-ups.
2. A folder needs nothing else and serves one machine. A database is shared by the processes of several machines.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple, Protocol, Self

from foveal.config import Config
from foveal.errors import FovealError, StoreUnusable
from foveal.ports import Store
from foveal.server.databases import Database
from foveal.server.databases.sqlite_database import SqliteDatabase
from foveal.stores import SqliteStore
from foveal.stores.session_locks import Locks, SessionLocks
from foveal.stores.sqlite import StoreFiles


class DataFolder(NamedTuple):
    """Paths of a server's files.

    service.db       inbox, tokens, pairings, chats, schedules, jobs, digest index
    work.db          state of the job engine (DBOS)
    turnstile.lock   locks on sessions between processes
    tenants/NAME.db  the sessions of a tenant
    """

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


class Wakeups(Protocol):
    """Tells waiting tasks of all processes that something has changed; a hint that may be lost."""

    async def notify(self, topic: str) -> None:
        """Call the subscribers of a topic in every process that shares the storage."""
        ...

    def subscribe(self, topic: str, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` in the event loop after each `notify`; return a function that ends this."""
        ...


class Storage(Protocol):
    """Opens what a service stores. `close` comes after what it has opened was closed."""

    @property
    def place(self) -> str:
        """Where the data is, for users; without a password."""
        ...

    @property
    def folder(self) -> Path | None:
        """The data folder; None for a database server."""
        ...

    @property
    def jobs_database_url(self) -> str:
        """URL of the job engine's database, with its password; for a file, `sqlite:///` and the unquoted path."""
        ...

    @property
    def wakeups(self) -> Wakeups: ...

    def open_database(self) -> Database: ...

    def open_locks(self) -> Locks: ...

    def open_store(self, tenant: str, *, durable: bool = True) -> Store:
        """Return the sessions of a tenant. With `durable=False` an append does not wait for the disk."""
        ...

    async def tenants(self) -> list[str]:
        """Return the names of the tenants that have sessions."""
        ...

    async def close(self) -> None: ...


def open_storage(config: Config, environment: Mapping[str, str], *, folder: Path | None = None) -> Storage:
    """Return the storage of the configuration: `server.database`, or else the data folder."""
    url = config.get("server.database")
    if not url:
        return FolderStorage(DataFolder.create(data_folder_path(config, environment, given=folder)))
    try:
        from foveal.server.postgres_storage import PostgresStorage
    except ImportError as problem:
        if (problem.name or "").startswith("foveal"):
            raise
        raise FovealError(
            f"a PostgreSQL database needs {problem.name}: install it with pip install 'foveal[postgres]'"
        ) from None
    return PostgresStorage(url)


@asynccontextmanager
async def open_service_database(config: Config, environment: Mapping[str, str]) -> AsyncIterator[Database]:
    """Open the service's tables for a command that runs beside the server."""
    async with open_service_storage(config, environment) as (_, database):
        yield database


@asynccontextmanager
async def open_service_storage(
    config: Config, environment: Mapping[str, str]
) -> AsyncIterator[tuple[Storage, Database]]:
    """Open the storage and its tables for a command that runs beside the server."""
    storage = open_storage(config, environment)
    database = storage.open_database()
    try:
        yield storage, database
    finally:
        await database.close()
        await storage.close()


# ── A folder ─────────────────────────────────────────────────────────────────────────────────────────────


class LocalWakeups:
    """`Wakeups` within one process; other processes notice a change when they poll."""

    def __init__(self) -> None:
        self._callbacks: dict[str, list[Callable[[], None]]] = {}

    async def notify(self, topic: str) -> None:
        loop = asyncio.get_running_loop()
        for callback in self._callbacks.get(topic, ()):
            loop.call_soon(callback)

    def subscribe(self, topic: str, callback: Callable[[], None]) -> Callable[[], None]:
        self._callbacks.setdefault(topic, []).append(callback)
        return lambda: self._unsubscribe(topic, callback)

    def _unsubscribe(self, topic: str, callback: Callable[[], None]) -> None:
        callbacks = self._callbacks[topic]
        callbacks.remove(callback)
        if not callbacks:
            del self._callbacks[topic]


class FolderStorage:
    """SQLite files in one folder of this machine."""

    def __init__(self, data_folder: DataFolder) -> None:
        self.data_folder = data_folder
        self.wakeups: Wakeups = LocalWakeups()
        self._files = StoreFiles()

    @property
    def place(self) -> str:
        return str(self.data_folder.path)

    @property
    def folder(self) -> Path | None:
        return self.data_folder.path

    @property
    def jobs_database_url(self) -> str:
        return f"sqlite:///{self.data_folder.jobs_file}"

    def open_database(self) -> Database:
        return self.data_folder.open_database()

    def open_locks(self) -> Locks:
        return SessionLocks(self.data_folder.lock_file)

    def open_store(self, tenant: str, *, durable: bool = True) -> Store:
        path = self.data_folder.tenant_file(tenant)
        return SqliteStore(path, durability="full" if durable else "normal", files=self._files)

    async def tenants(self) -> list[str]:
        return sorted(path.stem for path in self.data_folder.tenant_file("x").parent.glob("*.db"))

    async def close(self) -> None:
        await self._files.close()
