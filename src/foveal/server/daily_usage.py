"""Tokens and dollars by day, tenant, user and model, from the usage that providers report.

1. The counts come from the events that this process stores, and are added to the table about once a second: no
   request waits for it. Processes of several machines add to the same rows, each what it has stored itself.
2. A process that is killed loses the counts of the last second; the logs of the sessions have them.
3. A day is one of UTC. The user is the one for whom the session was created, or whose memory it shows; "" if there
   is none. An erased user's counts stay, without the user.
4. What is not known is never counted as zero: `unpriced` calls are not in the dollars. An answer that came
   without usage, or broke off, is such a call.
5. A model has one name: sessions name it with its service (`openai/gpt-4.1`), drop-in clients without (`gpt-4.1`).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

import msgspec

from foveal.core.compaction.health import read_metrics
from foveal.core.log.events import AnyFact, Compacted, CompactionFailed, Event, Used
from foveal.core.models.cost import usage_cost
from foveal.core.models.model import Model, model
from foveal.errors import BadSetting, StoreError
from foveal.providers.selection import SERVICE_ALIASES
from foveal.server.databases import Database, Transaction

UsageGroup: TypeAlias = Literal["tenant", "user", "model", "day"]
USAGE_GROUPS: Final[tuple[UsageGroup, ...]] = get_args(UsageGroup)
WRITE_DELAY_S: Final = 1.0
RETRY_DELAY_S: Final = 10.0
"""Seconds until counts are written again after the database could not be used."""
MAX_MODEL_LABEL_CHARS: Final = 200
UNKNOWN_MODEL: Final = "unknown"
_OMITTED_SERVICES: Final = frozenset({"openai", "responses", "anthropic", "gemini"})
MAX_USAGE_ROWS: Final = 10_000
"""Rows that one query returns, the largest first."""


class UsageCount(NamedTuple):
    """Calls of models, and what they used."""

    calls: int = 0
    input: int = 0
    """Tokens read at the full price."""
    cache_read: int = 0
    cache_write: int = 0
    output: int = 0
    dollars: float = 0.0
    unpriced: int = 0
    """Calls whose price is not known, or whose usage was not reported."""

    def plus(self, other: UsageCount) -> UsageCount:
        return UsageCount._make(one + two for one, two in zip(self, other, strict=True))


class UsageRow(msgspec.Struct, frozen=True, kw_only=True):
    """A sum of usage; `day`, `tenant`, `user` and `model` are null unless the sums were asked for by them."""

    day: str | None = None
    """A day of UTC, such as `2026-01-31`."""
    tenant: str | None = None
    user: str | None = None
    """"" for calls in sessions of no user, and for erased users."""
    model: str | None = None
    calls: int
    """Calls that were answered, those for summaries included."""
    input: int
    """Tokens read at the full price."""
    cache_read: int
    """Tokens read from the cache."""
    cache_write: int
    """Tokens written to the cache."""
    output: int
    """Tokens that the model wrote."""
    dollars: float
    """Dollars of the calls whose price is known."""
    unpriced: int
    """Calls whose price is not known, or whose usage was not reported: their tokens and dollars are missing."""


def counted_usage(fact: AnyFact) -> tuple[str, UsageCount] | None:
    """Return the model and the usage that a fact records, of an answer or of a summary; None if it records none."""
    if isinstance(fact, Used):
        name, used = fact.model or UNKNOWN_MODEL, fact.billed
        cost = usage_cost(fact, _priced_model(name))
        return model_label(name), UsageCount(
            calls=1,
            input=sum(one.input for one in used),
            cache_read=sum(one.cache_read for one in used),
            cache_write=sum(one.cache_write for one in used),
            output=sum(one.output for one in used),
            dollars=0.0 if cost is None else cost,
            unpriced=int(cost is None),
        )
    if isinstance(fact, Compacted | CompactionFailed) and (metrics := read_metrics(fact)).asked:
        return model_label(fact.by or UNKNOWN_MODEL), UsageCount(
            calls=metrics.asked,
            input=metrics.input - metrics.cached,
            cache_read=metrics.cached,
            output=metrics.output,
            dollars=0.0 if metrics.cost is None else metrics.cost,
            unpriced=metrics.asked if metrics.cost is None else 0,
        )
    return None


@lru_cache(maxsize=256)
def model_label(name: str) -> str:
    """Return the name under which the usage of a model is counted."""
    service, _, bare = name.partition("/")
    is_omitted = SERVICE_ALIASES.get(service, service) in _OMITTED_SERVICES and bool(bare)
    return (bare if is_omitted else name)[:MAX_MODEL_LABEL_CHARS]


@lru_cache(maxsize=256)
def _priced_model(name: str) -> Model:
    return model(name)


_COUNTS: Final = UsageCount._fields
_COLUMN_OF: Final = {"user": "person"}
_ADD: Final = f"""ON CONFLICT (tenant, day, person, model) DO UPDATE SET
    {", ".join(f"{name} = daily_usage.{name} + excluded.{name}" for name in _COUNTS)}"""
_INSERT: Final = f"""INSERT INTO daily_usage (tenant, day, person, model, {", ".join(_COUNTS)})
    VALUES (?, ?, coalesce(
        nullif((SELECT person FROM rooms WHERE tenant = ? AND session = ?), ''),
        (SELECT min(person) FROM memory_sessions WHERE tenant = ? AND session = ?), ''), ?,
        {", ".join("?" * len(_COUNTS))}) {_ADD}"""


class DailyUsage:
    """The usage table of the server's database, and the counts that are not yet in it."""

    def __init__(self, database: Database, *, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock
        self._pending: defaultdict[tuple[str, str, str, str], UsageCount] = defaultdict(UsageCount)
        """By tenant, day, session and model."""
        self._writing: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()

    def add(self, tenant: str, session: str, events: Iterable[Event]) -> None:
        """Count the usage of events that this process has stored."""
        for event in events:
            if (found := counted_usage(event.fact)) is not None:
                self._add(tenant, session, *found)

    def add_call(self, tenant: str, session: str, model: str, used: Used | None) -> None:
        """Count an answered call whose usage is in no stored event; None if none was reported."""
        found = None if used is None else counted_usage(msgspec.structs.replace(used, model=model))
        _, count = found or (model, UsageCount(calls=1, unpriced=1))
        self._add(tenant, session, model_label(model), count)

    def _add(self, tenant: str, session: str, name: str, count: UsageCount) -> None:
        key = tenant, self._today(), session, name
        self._pending[key] = self._pending[key].plus(count)
        if self._pending and self._writing is None:
            self._writing = asyncio.create_task(self._write_soon())

    async def write_all(self) -> None:
        """Write all counts; raises `StoreError` and keeps them if the database cannot be used."""
        async with self._lock:
            counts, self._pending = self._pending, defaultdict(UsageCount)
            rows = [
                (tenant, day, tenant, session, tenant, session, name, *count)
                for (tenant, day, session, name), count in sorted(counts.items())
            ]
            try:
                if rows:
                    await self._database.write(lambda db: db.execute_many(_INSERT, rows), durable=False)
            except StoreError:
                for key, count in counts.items():
                    self._pending[key] = self._pending[key].plus(count)
                raise

    async def forget_user(self, tenant: str, user: str) -> None:
        """Keep what an erased user has used, without the user."""
        names = ", ".join(_COUNTS)
        move = f"""INSERT INTO daily_usage (tenant, day, person, model, {names})
            SELECT tenant, day, '', model, {names} FROM daily_usage WHERE tenant = ? AND person = ? {_ADD}"""

        async def act(db: Transaction) -> None:
            await db.execute(move, tenant, user)
            await db.execute("DELETE FROM daily_usage WHERE tenant = ? AND person = ?", tenant, user)

        await self.write_all()
        await self._database.write(act, tenant=tenant)

    async def rows(
        self,
        by: Sequence[UsageGroup],
        *,
        since: str = "",
        until: str = "9999",
        tenant: str | None = None,
        user: str | None = None,
    ) -> list[UsageRow]:
        """Return the sums for each combination of `by`, of the days from `since` to `until`, the largest first."""
        await self.write_all()
        wanted: dict[str, Any] = {"tenant": tenant, "person": user}
        given = {name: value for name, value in wanted.items() if value is not None}
        columns = [_COLUMN_OF.get(name, name) for name in by]
        sums = [f"coalesce(sum({name}), 0)" for name in _COUNTS]
        casts = [f"CAST({one} AS {'double precision' if 'dollars' in one else 'bigint'})" for one in sums]
        sql = f"""SELECT {", ".join([*columns, *casts])} FROM daily_usage
            WHERE day >= ? AND day <= ?{"".join(f" AND {name} = ?" for name in given)}
            {f"GROUP BY {', '.join(columns)}" if by else ""}
            ORDER BY sum(dollars) DESC, sum(input + cache_read + cache_write + output) DESC
            LIMIT {MAX_USAGE_ROWS}"""
        found = await self._database.read(lambda db: db.fetch(sql, since, until, *given.values()))
        return [UsageRow(**dict(zip((*by, *_COUNTS), row, strict=True))) for row in found]

    async def close(self) -> None:
        """Write what is left, and stop."""
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.wait([self._writing])
        with suppress(StoreError):
            await self.write_all()

    def _today(self) -> str:
        return usage_day(self._clock())

    async def _write_soon(self) -> None:
        delay = WRITE_DELAY_S
        try:
            while self._pending:
                await asyncio.sleep(delay)
                try:
                    await self.write_all()
                    delay = WRITE_DELAY_S
                except StoreError:
                    delay = RETRY_DELAY_S
        finally:
            self._writing = None


def usage_day(at: float) -> str:
    """Return the day of a time, such as `2026-01-31`."""
    return datetime.fromtimestamp(at, UTC).date().isoformat()


def usage_groups(text: str) -> list[UsageGroup]:
    """Return what to sum by, from names that are separated by commas; raises `BadSetting`."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    groups = [group for group in USAGE_GROUPS if group in names]
    if len(groups) < len(names):
        raise BadSetting("by", text[:100], f"{', '.join(USAGE_GROUPS)}, each at most once")
    return groups
