"""Sources and targets of a copy: a data folder, a store file, a PostgreSQL database.

1. A source is opened read-only and is never changed, not even migrated.
2. A target is created if it does not exist.
3. A folder or store file that a server or chat uses is refused: the copy holds all of its session locks. A database
   is refused while a process holds a lease, runs jobs or is connected, at the beginning of the copy and at its end.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from typing import Final, NamedTuple, Protocol, TypeAlias

from foveal.errors import BadSetting, StoreUnusable
from foveal.server.copying.session_copy import CopiedStore, SessionTarget
from foveal.server.copying.table_copy import ServiceTables
from foveal.server.databases import SqliteDatabase
from foveal.server.storage import DataFolder
from foveal.stores import SqliteStore, check_tenant_name
from foveal.stores.sqlite.store_files import ReadOnlySqliteStore

if sys.platform != "win32":
    import fcntl


@contextmanager
def hold_unused(lock_file: Path, name: str, *, is_source: bool = False) -> Iterator[None]:
    """Hold all session locks in a file of them; raises `StoreUnusable` if another process holds one.

    Those of a source may be held by several copies, and their file is not written: if there is none, no server or
    chat has used the source."""
    if sys.platform == "win32" or not (lock_file if is_source else lock_file.parent).exists():
        yield
        return
    file = os.open(lock_file, os.O_RDONLY if is_source else os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.lockf(file, (fcntl.LOCK_SH if is_source else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            advice = "; `--live` copies the sessions of a source that is in use" if is_source else ""
            raise StoreUnusable(
                f"{name} is used by a server, a chat or another copy, which holds a lock: end it first{advice}"
            ) from None
        yield
    finally:
        os.close(file)


ONLY_TENANT: Final = ""
"""The tenant of a store file, whose sessions have no tenant."""


class CopySource(NamedTuple):
    """An opened source."""

    name: str
    tenants: Sequence[str]
    open_store: Callable[[str], CopiedStore]
    tables: ServiceTables | None
    """None for a store file, and for a database that no server has used."""
    check_unused: Callable[[], Awaitable[None]]
    """Raises `StoreUnusable` if another process uses the source."""


class CopyTarget(NamedTuple):
    """An opened target."""

    name: str
    open_store: Callable[[str], SessionTarget]
    tables: ServiceTables | None
    check_unused: Callable[[], Awaitable[None]]


class CopyPlace(Protocol):
    """A source or target that is not open."""

    @property
    def name(self) -> str:
        """The path, or the URL without user and password; the same for the same place."""
        ...

    @property
    def is_file(self) -> bool:
        """Whether it is a store file, which holds the sessions of one tenant."""
        ...

    def source(self, *, is_live: bool) -> AbstractAsyncContextManager[CopySource]:
        """Open the place to read it; `is_live`: also if another process uses it."""
        ...

    def target(self) -> AbstractAsyncContextManager[CopyTarget]: ...


async def _held() -> None:
    """Do nothing: the locks are held for the whole copy."""


class _PathPlace:
    """A place on the disk."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def name(self) -> str:
        return str(self.path.resolve())


# ── A folder ─────────────────────────────────────────────────────────────────────────────────────────────


class FolderPlace(_PathPlace):
    """The data folder of a server."""

    is_file: bool = False

    @asynccontextmanager
    async def source(self, *, is_live: bool) -> AsyncIterator[CopySource]:
        folder = DataFolder(self.path)
        service, files = self.path / "service.db", sorted((self.path / "tenants").glob("*.db"))
        if not service.is_file() and not files:
            raise StoreUnusable(
                f"{self.path} is not a server's data folder: it has neither service.db nor tenants/*.db; name the"
                " folder of `foveal serve`, a store file or a postgresql:// URL"
            )
        database = SqliteDatabase(service, is_read_only=True) if service.is_file() else None
        with hold_unused(folder.lock_file, str(self.path), is_source=True) if not is_live else nullcontext():
            try:
                yield CopySource(
                    str(self.path),
                    [check_tenant_name(file.stem) for file in files],
                    lambda tenant: ReadOnlySqliteStore(folder.tenant_file(tenant)),
                    None if database is None else ServiceTables(database, is_sqlite=True),
                    _held,
                )
            finally:
                if database is not None:
                    await database.close()

    @asynccontextmanager
    async def target(self) -> AsyncIterator[CopyTarget]:
        folder = DataFolder.create(self.path)
        with hold_unused(folder.lock_file, str(self.path)):
            database = folder.open_database()
            try:
                yield CopyTarget(
                    str(self.path),
                    # The file is written to disk when it is closed.
                    lambda tenant: SqliteStore(
                        folder.tenant_file(check_tenant_name(tenant)), durability="normal"
                    ),
                    ServiceTables(database, is_sqlite=True),
                    _held,
                )
            finally:
                await database.close()


# ── A store file ─────────────────────────────────────────────────────────────────────────────────────────


class FilePlace(_PathPlace):
    """The file of one store, as the command line and the library use it."""

    is_file: bool = True

    @asynccontextmanager
    async def source(self, *, is_live: bool) -> AsyncIterator[CopySource]:
        if not self.path.is_file():
            raise StoreUnusable(f"the store file {self.path} does not exist: check the path")
        with hold_unused(self._lock_file, str(self.path), is_source=True) if not is_live else nullcontext():
            yield CopySource(
                str(self.path), [ONLY_TENANT], lambda tenant: ReadOnlySqliteStore(self.path), None, _held
            )

    @asynccontextmanager
    async def target(self) -> AsyncIterator[CopyTarget]:
        with hold_unused(self._lock_file, str(self.path)):
            yield CopyTarget(
                str(self.path), lambda tenant: SqliteStore(self.path, durability="normal"), None, _held
            )

    @property
    def _lock_file(self) -> Path:
        """The session locks of `foveal chat`."""
        return self.path.with_name(f"{self.path.name}.locks")


TenantPairs: TypeAlias = list[tuple[str, str]]
"""A tenant of the source, and the one of the target that gets its sessions."""


def pair_tenants(source: CopySource, tenant: str | None, *, to_file: bool) -> TenantPairs:
    """Return which tenant is copied to which. `tenant` names the one of a store file, or the only one that is
    copied; raises `BadSetting`."""
    from_file = list(source.tenants) == [ONLY_TENANT]
    if tenant is not None and from_file and to_file:
        raise BadSetting("--tenant", tenant, "store files have no tenants")
    if from_file:
        return [(ONLY_TENANT, ONLY_TENANT if to_file else tenant or "default")]
    listed = ", ".join(source.tenants) or "no tenants"
    if tenant is not None and tenant not in source.tenants:
        raise BadSetting("--tenant", tenant, f"{source.name} has {listed}")
    names = source.tenants if tenant is None else [tenant]
    if not to_file:
        return [(name, name) for name in names]
    if len(names) != 1:
        raise BadSetting("--tenant", "", f"a store file holds one tenant; {source.name} has {listed}")
    return [(names[0], ONLY_TENANT)]
