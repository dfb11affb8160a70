"""Stores of sessions, in memory and in a SQLite file; `ports.Store` is their contract.

```python
async with open_store("chats.db") as store:
    await store.append("demo", [Event(0, UserSaid(content="hello"))])
```
"""

from __future__ import annotations

import os

from foveal.stores.memory import MemoryStore
from foveal.stores.sqlite.connection import Durability
from foveal.stores.sqlite.store import SqliteStore

__all__ = ["Durability", "MemoryStore", "SqliteStore", "open_store"]


def open_store(
    path: str | os.PathLike[str], *, durability: Durability = "full", timeout: float = 5.0
) -> SqliteStore:
    """Return the store in the file `path`, for `async with`; it waits `timeout` seconds for other writers."""
    return SqliteStore(path, durability=durability, timeout=timeout)
