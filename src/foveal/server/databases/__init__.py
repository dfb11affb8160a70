"""The server's database: tokens, inbox, chats, schedules, jobs, digest index.

`Database` is what the modules that own tables use; SQLite and PostgreSQL implement it.

1. One SQL text serves every database: `?` marks values, upserts are `INSERT … ON CONFLICT …`, new ids come from
   `RETURNING`. A column whose name is reserved is quoted.
2. A `write` is one transaction and is durable when it returns. With `durable=False` it survives the end of the
   process, but a power cut may lose the newest writes.
3. Write transactions may run at the same time. One that reads a row and then writes what follows from it takes
   `lock` first.
4. `tenant` limits a transaction to the rows of that tenant where the database can enforce it. Without it, the
   transaction sees the rows of all tenants.
5. An act awaits nothing but its transaction. It may run again if its transaction was undone; a `repeatable` one
   also if the outcome of its COMMIT is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Protocol, TypeAlias, TypeVar

T = TypeVar("T")
RowValues: TypeAlias = tuple[Any, ...]


class Transaction(Protocol):
    async def fetch(self, sql: str, *values: Any) -> list[RowValues]:
        """Run a statement and return its rows."""
        ...

    async def execute(self, sql: str, *values: Any) -> int:
        """Run a statement and return the number of rows that it inserted, updated or deleted."""
        ...

    async def execute_many(self, sql: str, rows: Iterable[RowValues]) -> None:
        """Run a statement once for each row of values."""
        ...

    async def lock(self, name: str) -> None:
        """Wait until no other transaction holds the lock `name`, and hold it until this transaction ends."""
        ...

    async def try_lock(self, name: str) -> bool:
        """Take the lock `name` unless another transaction holds it; return whether this transaction has it."""
        ...

    async def check_lease(self, tenant: str, session: str) -> None:
        """Raise `LeaseLost` if another process has taken over the session from this one. Until this transaction
        ends, no other process can take it over."""
        ...


Act: TypeAlias = Callable[[Transaction], Coroutine[Any, Any, T]]


class Database(Protocol):
    async def write(
        self, act: Act[T], *, tenant: str | None = None, durable: bool = True, repeatable: bool = False
    ) -> T:
        """Run `act` in a write transaction and return its result."""
        ...

    async def read(self, act: Act[T], *, tenant: str | None = None) -> T:
        """Run `act` in a read transaction: it sees one state of the database."""
        ...

    async def check_writable(self) -> None:
        """Raise `StoreUnusable` if the database cannot be written now."""
        ...

    async def remove_deleted_text(self) -> None:
        """Remove deleted text from the files as far as the database allows it."""
        ...

    async def close(self) -> None:
        """Wait for running transactions, then close; closing twice does nothing."""
        ...
