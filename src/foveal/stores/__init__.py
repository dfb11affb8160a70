"""Where sessions are kept; `ports.Store` is the contract of all of these.

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
    """The store in the file `path`, to be used with `async with`; it waits `timeout` seconds for other writers."""
    return SqliteStore(path, durability=durability, timeout=timeout)
