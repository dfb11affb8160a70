"""Stores of sessions in memory, in SQLite and in PostgreSQL; `ports.Store` is their contract.

`open_store` returns one for `async with`:

    async with open_store("chats.db") as store:
        await store.append("demo", [Event(0, UserSaid(content="hello"))])
"""

from __future__ import annotations

import importlib.util
import math
import os
import re
from typing import TYPE_CHECKING, Final, overload

from foveal.errors import BadSetting, StoreUnusable
from foveal.stores.memory import MemoryStore
from foveal.stores.sqlite.connection import Durability
from foveal.stores.sqlite.store import SqliteStore

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

TENANT_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
"""Part of a file's name in a folder of stores, of every key in a database."""


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
    """Return the store in a file or a PostgreSQL database, for `async with`.

    Args:
        path: The path of a SQLite file, which is created if it does not exist, or a URL `postgresql://…`.
        durability: `"full"` survives a power cut. With `"normal"`, a power cut or a crash of the database
            server may lose the newest appends.
        timeout: Seconds to wait for another writer of the file, or for a free connection to PostgreSQL.
        tenant: The tenant whose sessions are used, in PostgreSQL only.

    Returns:
        A `SqliteStore`, or a store with the same methods on PostgreSQL.

    Raises:
        BadSetting: `path` is neither a path nor a URL of PostgreSQL, or another argument is not allowed.
        StoreUnusable: The package `psycopg` is missing. `async with` also raises it for a file that is not a
            store.

    Examples:
        ```python
        import foveal

        async with foveal.open_store("chats.db") as store:
            session = await foveal.Session.open(store, "demo", model="gpt-4.1")
        ```
    """
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise BadSetting("path", path, "the path of a file, or a postgresql:// URL")
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 <= timeout < math.inf:
        raise BadSetting("timeout", timeout, "a number of seconds, from 0")
    if not isinstance(tenant, str):
        raise BadSetting("tenant", tenant, "the name of a tenant, a text")
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


def check_tenant_name(name: str) -> str:
    """Return a valid tenant name; raises `BadSetting`."""
    if not TENANT_NAME.fullmatch(name):
        allowed = "1 to 63 lower-case letters, digits, - and _, starting with a letter or digit"
        raise BadSetting("tenant", name, allowed)
    return name


def is_postgres_url(path: str | os.PathLike[str]) -> bool:
    """Return whether the name of a store is the URL of a PostgreSQL database.

    Args:
        path: The path or URL.

    Examples:
        ```python
        from foveal.stores import is_postgres_url

        assert not is_postgres_url("chats.db")
        ```
    """
    return isinstance(path, str) and path.startswith(("postgresql://", "postgres://"))


def other_url_error(url: str, allowed: str) -> BadSetting:
    """Return the error for a URL that names no PostgreSQL database.

    Only the scheme of the URL is repeated, because the rest may contain a password.

    Args:
        url: The URL.
        allowed: What is allowed instead, for the message.

    Examples:
        ```python
        from foveal.stores import other_url_error

        error = other_url_error("mysql://user:secret@host/db", "a postgresql:// URL")
        assert "secret" not in str(error)
        ```
    """
    return BadSetting("database", f"{url.partition('://')[0]}://…", allowed)


def require_postgres() -> None:
    """Check that the packages for PostgreSQL are installed.

    Raises:
        StoreUnusable: `psycopg` or `psycopg_pool` is missing.

    Examples:
        ```python
        from foveal.stores import require_postgres

        require_postgres()
        ```
    """
    if any(importlib.util.find_spec(name) is None for name in ("psycopg", "psycopg_pool")):
        raise StoreUnusable("a store on PostgreSQL needs psycopg: pip install 'foveal[postgres]'")
