"""Stores of sessions in memory, in SQLite and in PostgreSQL; `ports.Store` is their contract.

```python
async with open_store("chats.db") as store:
    await store.append("demo", [Event(0, UserSaid(content="hello"))])
```
"""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING, overload

from foveal.errors import BadSetting, StoreUnusable
from foveal.stores.memory import MemoryStore
from foveal.stores.sqlite.connection import Durability
from foveal.stores.sqlite.store import SqliteStore
from foveal.stores.tenant_name import check_tenant_name

if TYPE_CHECKING:
    from foveal.stores.postgres.store import PostgresStore

__all__ = [
    "Durability",
    "MemoryStore",
    "SqliteStore",
    "is_postgres_url",
    "open_store",
    "other_url_error",
    "require_postgres",
]


@overload
def open_store(
    path: os.PathLike[str], *, durability: Durability = "full", timeout: float = 5.0, tenant: str = "default"
) -> SqliteStore: ...


@overload
def open_store(
    path: str, *, durability: Durability = "full", timeout: float = 5.0, tenant: str = "default"
) -> SqliteStore | PostgresStore: ...


def open_store(
    path: str | os.PathLike[str],
    *,
    durability: Durability = "full",
    timeout: float = 5.0,
    tenant: str = "default",
) -> SqliteStore | PostgresStore:
    """Return the store in the file `path`, for `async with`; it waits `timeout` seconds for other writers.

    A URL `postgresql://…` opens the store of a tenant in that database; `timeout` is then the wait for a free
    connection. With durability `normal`, a crash of the database server may lose the newest appends."""
    if isinstance(path, str) and "://" in path and not is_postgres_url(path):
        raise other_url_error(path, "the path of a file, or a postgresql:// URL")
    if not is_postgres_url(path):
        return SqliteStore(path, durability=durability, timeout=timeout)
    require_postgres()
    from foveal.stores.postgres.connection import PostgresPool
    from foveal.stores.postgres.store import PostgresStore

    check_tenant_name(tenant)
    pool = PostgresPool(str(path), wait_s=timeout)
    return PostgresStore(pool, tenant, owns_pool=True, durable=durability == "full")


def is_postgres_url(path: str | os.PathLike[str]) -> bool:
    """Return whether the name of a store is the URL of a PostgreSQL database."""
    return isinstance(path, str) and path.startswith(("postgresql://", "postgres://"))


def other_url_error(url: str, allowed: str) -> BadSetting:
    """Return the error for a URL that names no PostgreSQL database. Only its scheme is repeated, because the rest
    may contain a password."""
    return BadSetting("database", f"{url.partition('://')[0]}://…", allowed)


def require_postgres() -> None:
    """Raise `StoreUnusable` if the packages for PostgreSQL are not installed."""
    if any(importlib.util.find_spec(name) is None for name in ("psycopg", "psycopg_pool")):
        raise StoreUnusable("a store on PostgreSQL needs psycopg: pip install 'foveal[postgres]'")
