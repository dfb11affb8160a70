"""Budgets: spending limits of tenants, users, conversations and agents, counted in the server's database.

1. Before a request is sent, its estimate is reserved, in one transaction with the check; after it, the reservation
   is replaced by what the provider reported. So concurrent requests, also of other machines, never spend the same
   money.
2. A reservation that is never replaced, because its process died, counts for `RESERVATION_TTL_S` seconds. Replacing
   it twice is the same as replacing it once.
3. What is spent is stored by hours, in whole tokens and in billionths of a dollar: sums are exact, and a limit of
   another period counts what was spent before it was set.
4. A request without reported usage counts as estimated. A model without a price is refused where a limit is in
   dollars, unless `budgets.unknown_price` is `allow`: then it counts in tokens only.
5. What an erased user has spent stays, under a digest of the user: erasing resets no limit.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, Final, NamedTuple
from uuid import uuid4

import msgspec

from foveal.agent.loop import HookOccasion
from foveal.config import Config
from foveal.core.log.events import BUDGET_SOURCE, Dialect, Event, Instructed
from foveal.core.models.cost import PERIODS, Period, UsageTotals, period_start, usage_cost
from foveal.core.models.model import Model
from foveal.core.models.spending import (
    BudgetStatus,
    SpendingLimit,
    SpendingUnit,
    SpentAmount,
    budget_status,
    check_budgets,
    estimate_request,
    left_text,
    read_limits,
)
from foveal.core.view.request import Fitted
from foveal.core.wire.usage import usage_or_none
from foveal.errors import BudgetExceeded, StoreError
from foveal.ports import Provider, Reply, ReplyItem, ReplyPiece
from foveal.server.databases import Database, Transaction

BUDGET_NOTE_TOPIC: Final = "budget"
"""Topic of the note in a log that a soft limit was reached."""
BUDGET_SCOPES: Final = ("tenant", "user", "conversation", "agent")
RESERVATION_TTL_S: Final = 1_200.0
"""Seconds after which a reservation counts no more: longer than most answers take."""
KEPT_RESERVATION_S: Final = 86_400.0
"""Seconds for which a reservation is kept, so that what a long answer has spent is still counted, and only once."""
SETTLEMENT_WAITS_S: Final = (1.0, 5.0, 15.0, 60.0, 300.0)
"""Seconds between attempts to count what was spent while the database is away."""
NANO: Final = 1_000_000_000
"""Billionths of a dollar in a dollar."""
_ERASED_PREFIX: Final = "#"
"""Begins the keys of erased users: no user's id has this character."""
UNCOUNTED_SHARE: Final = 0.02
"""The share of a limit that must be left for a request that cannot be counted."""
UNCOUNTED_ADVICE: Final = (
    "this path is not counted, so it needs a fiftieth of each limit that the operator sets"
)
PRICE_ADVICE: Final = "the operator sets a limit in tokens, or budgets.unknown_price to allow"
_LOG: Final = logging.getLogger("foveal.service")
_SPENT: Final = """SELECT CAST(coalesce(sum(nanodollars), 0) AS bigint), CAST(coalesce(sum(tokens), 0) AS bigint)
    FROM spending WHERE tenant = ? AND scope = ? AND key IN (?, ?) AND start >= ?"""
_RESERVED: Final = """SELECT CAST(coalesce(sum(nanodollars), 0) AS bigint), CAST(coalesce(sum(tokens), 0) AS bigint)
    FROM spending_reservations WHERE tenant = ? AND scope = ? AND key IN (?, ?) AND until > ?"""
_RESERVE: Final = """INSERT INTO spending_reservations (tenant, id, scope, key, nanodollars, tokens, until)
    VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (tenant, id, scope) DO NOTHING"""
_SPEND: Final = """INSERT INTO spending (tenant, scope, key, start, nanodollars, tokens) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (tenant, scope, key, start) DO UPDATE SET
    nanodollars = spending.nanodollars + excluded.nanodollars, tokens = spending.tokens + excluded.tokens"""


_SPENT_SINCE: Final = """SELECT tenant, scope, key, CAST(sum(nanodollars) AS bigint), CAST(sum(tokens) AS bigint)
    FROM spending WHERE start >= ? GROUP BY tenant, scope, key"""
_ALL_RESERVED: Final = """SELECT tenant, scope, key, CAST(sum(nanodollars) AS bigint), CAST(sum(tokens) AS bigint)
    FROM spending_reservations WHERE until > ? GROUP BY tenant, scope, key"""
MAX_LISTED_LIMITS: Final = 10_000
"""Limits that one list has, those with the least left."""
NOTHING_SPENT: Final = SpentAmount(0, 0.0)
"""What a request uses that no model has answered."""


class Spender(NamedTuple):
    """Whose limits apply to a request; "" where that is not known."""

    tenant: str
    user: str = ""
    conversation: str = ""
    agent: str = ""


class _ScopedLimits(NamedTuple):
    """The limits of one scope of a spender."""

    scope: str
    key: str
    limits: tuple[SpendingLimit, ...]


class ScopedStatus(NamedTuple):
    """What is left of a limit, and whose limit it is."""

    scope: str
    status: BudgetStatus


class SpentLimit(msgspec.Struct, frozen=True, kw_only=True):
    """What is spent against one limit."""

    tenant: str
    scope: str
    """Whose limit it is: `tenant`, `user`, `conversation` or `agent`."""
    key: str
    """The user, session or agent, or the tenant again; `#` and a digest for an erased user."""
    limit: str
    """The limit, such as `5 USD per day`."""
    unit: SpendingUnit
    """The unit of the numbers: `USD` or `tokens`."""
    spent: float
    """What is spent in all, or in the current period."""
    reserved: float
    """What is kept for requests that are being answered."""
    left: float
    """What is left; below 0 if an answer was longer than estimated."""
    left_share: float
    """The share of the limit that is left, from 0 to 1."""
    until: float | None
    """When the period ends, in seconds since 1970; null for a limit without a period."""


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept for a request that is being answered."""

    id: str
    spender: Spender
    model: Model
    estimate: SpentAmount
    statuses: tuple[ScopedStatus, ...]
    """The limits as they were before the request, a soft one that is reached first, then the least left."""

    def header(self) -> str:
        """Return the value of the header `X-Foveal-Budget`: the limit that matters most, and whether a soft one is
        reached."""
        scope, status = self.statuses[0]
        return budget_header(scope, status) + ("; soft-limit-reached" if _is_soft_and_reached(status) else "")


def budget_header(scope: str, budget: BudgetStatus | BudgetExceeded) -> str:
    """Return the value of the header `X-Foveal-Budget` for a limit of a scope."""
    digits = 4 if budget.unit == "USD" else 0
    return (
        f'scope={scope}; limit="{budget.limit}"; spent={budget.spent:.{digits}f}; '
        f"left={max(0.0, budget.left):.{digits}f}"
    )


class BudgetRules:
    """The limits of the configuration."""

    def __init__(self, config: Config) -> None:
        self.tells_model: bool = config.get("budgets.tell_model")
        self.allows_unpriced: bool = config.get("budgets.unknown_price") == "allow"
        self._general = {scope: _limits(config.get(f"budgets.{scope}")) for scope in BUDGET_SCOPES}
        self._of_tenant: Mapping[str, Mapping[str, tuple[SpendingLimit, ...]]] = {
            tenant: {scope: _limits(value) for scope, value in table.items()}
            for tenant, table in config.named_tables("budgets", "tenants").items()
        }

    def of(self, spender: Spender) -> list[_ScopedLimits]:
        """Return the limits that apply to a spender."""
        keys = zip(BUDGET_SCOPES, spender, strict=True)
        found = [_ScopedLimits(scope, key, self.limits(spender.tenant, scope)) for scope, key in keys if key]
        return [scoped for scoped in found if scoped.limits]

    def limits(self, tenant: str, scope: str) -> tuple[SpendingLimit, ...]:
        """Return the limits of a scope; those of a tenant's own table replace the general ones."""
        return self._of_tenant.get(tenant, {}).get(scope, self._general[scope])


def _limits(value: Any) -> tuple[SpendingLimit, ...]:
    return () if value is None else read_limits(value)


class Budgets:
    """Checks and counts what requests spend."""

    def __init__(
        self,
        config: Config,
        database: Database,
        *,
        clock: Callable[[], float],
        on_soft_limit: Callable[[Spender, ScopedStatus], None] = lambda spender, reached: None,
    ) -> None:
        """`on_soft_limit` is called when what was spent has reached a soft limit."""
        self._on_soft_limit = on_soft_limit
        self._rules = BudgetRules(config)
        self._database = database
        self._clock = clock
        self._settling: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()

    def use(self, config: Config) -> None:
        """Apply the limits of another configuration from now on."""
        self._rules = BudgetRules(config)

    @property
    def tells_model(self) -> bool:
        """Whether models are told how much is left."""
        return self._rules.tells_model

    def limit_tenant(self, tenant: str) -> bool:
        """Return whether a tenant, or anything in it, has a limit."""
        return self.apply_to(Spender(tenant, *BUDGET_SCOPES[1:]))

    def apply_to(self, spender: Spender) -> bool:
        """Return whether any limit applies to a spender; without one, nothing is counted."""
        return bool(self._rules.of(spender))

    async def statuses(self, spender: Spender) -> list[BudgetStatus]:
        """Return what is left of the limits that apply to a spender."""
        return [found.status for found in await self._scoped_statuses(spender)]

    async def _scoped_statuses(self, spender: Spender) -> list[ScopedStatus]:
        scopes, now = self._rules.of(spender), self._clock()

        async def act(db: Transaction) -> list[ScopedStatus]:
            found = [await _statuses(db, spender, scoped, NOTHING_SPENT, now) for scoped in scopes]
            return list(chain.from_iterable(found))

        return await self._database.read(act, tenant=spender.tenant) if scopes else []

    async def spent_limits(self, *, tenant: str | None = None) -> list[SpentLimit]:
        """Return the limits of which anything is spent or reserved in their period, the least left first:
        at most `MAX_LISTED_LIMITS`."""
        now = self._clock()

        async def act(db: Transaction) -> list[SpentLimit]:
            reserved = {tuple(row[:3]): row[3:] for row in await db.fetch(_ALL_RESERVED, now)}
            found: list[SpentLimit] = []
            for per in ("", *PERIODS):
                rows = await db.fetch(_SPENT_SINCE, int(period_start(now, per)))
                spent = {tuple(row[:3]): row[3:] for row in rows}
                for owner, scope, key in sorted({*spent, *reserved}):
                    if tenant in (None, owner):
                        place = owner, scope, key
                        used, kept = spent.get(place, (0, 0)), reserved.get(place, (0, 0))
                        found += self._spent_limits_of(owner, scope, key, per, used, kept, now)
            return found

        found = await self._database.read(act)
        return sorted(found, key=lambda one: one.left_share)[:MAX_LISTED_LIMITS]

    def _spent_limits_of(
        self,
        tenant: str,
        scope: str,
        key: str,
        per: Period,
        spent: Sequence[int],
        reserved: Sequence[int],
        now: float,
    ) -> Iterator[SpentLimit]:
        for limit in self._rules.limits(tenant, scope):
            if limit.per == per:
                status = budget_status(
                    limit,
                    _in_unit(limit, *spent),
                    NOTHING_SPENT,
                    at=now,
                    reserved=_in_unit(limit, *reserved),
                )
                yield SpentLimit(
                    tenant=tenant,
                    scope=scope,
                    key=key,
                    limit=status.limit,
                    unit=status.unit,
                    spent=status.spent,
                    reserved=status.reserved,
                    left=status.left,
                    left_share=status.left_share,
                    until=status.until,
                )

    async def check_uncounted(self, spender: Spender) -> None:
        """Raise `BudgetExceeded` for a request that cannot be counted, if less than `UNCOUNTED_SHARE` of a hard
        limit is left."""
        for scope, status in await self._scoped_statuses(spender):
            asked = msgspec.structs.replace(status, estimate=status.amount * UNCOUNTED_SHARE)
            check_budgets(
                [asked], "", at=self._clock(), advice=UNCOUNTED_ADVICE, price_advice="", scope=scope
            )

    def limit_hard(self, spender: Spender) -> bool:
        """Return whether a limit applies to a spender that refuses requests."""
        return any(not limit.soft for scoped in self._rules.of(spender) for limit in scoped.limits)

    async def reserve(self, spender: Spender, model: Model, estimate: SpentAmount) -> Reservation | None:
        """Reserve the estimate of a request; None if no limit applies. Raises `BudgetExceeded`, and `StoreError` if
        it cannot be known what is left."""
        scopes = self._rules.of(spender)
        if not scopes:
            return None
        if estimate.dollars is None and self._rules.allows_unpriced:
            estimate = estimate._replace(dollars=0.0)
        id, now = uuid4().hex, self._clock()

        async def act(db: Transaction) -> tuple[ScopedStatus, ...]:
            await db.lock(f"budgets/{spender.tenant}")
            statuses = [
                one for scoped in scopes for one in await _statuses(db, spender, scoped, estimate, now)
            ]
            statuses.sort(key=_urgency)
            for scope, status in statuses:
                advice = f"this is the limit of the {scope}, which the operator sets in [budgets]"
                check_budgets(
                    [status], model.name, at=now, advice=advice, price_advice=PRICE_ADVICE, scope=scope
                )
            await db.execute(
                "DELETE FROM spending_reservations WHERE tenant = ? AND until < ?",
                *(spender.tenant, now - KEPT_RESERVATION_S),
            )
            amounts, until = _stored(estimate), now + RESERVATION_TTL_S
            for scope, key, _ in scopes:
                await db.execute(_RESERVE, spender.tenant, id, scope, key, *amounts, until)
            return tuple(statuses)

        found = await self._database.write(act, tenant=spender.tenant, durable=False, repeatable=True)
        return Reservation(id=id, spender=spender, model=model, estimate=estimate, statuses=found)

    async def settle(self, reservation: Reservation, used: SpentAmount | None) -> list[str]:
        """Replace a reservation by what was used; None counts the estimate. Return a sentence for each soft limit
        that is reached now and was not before."""
        spent, spender, now = used or reservation.estimate, reservation.spender, self._clock()
        scopes, start = self._rules.of(spender), int(period_start(now, "hour"))

        async def act(db: Transaction) -> list[ScopedStatus]:
            await db.lock(f"budgets/{spender.tenant}")
            delete = "DELETE FROM spending_reservations WHERE tenant = ? AND id = ? RETURNING scope, key"
            # What is gone was settled before, or belongs to a session that was erased meanwhile; the key of a user
            # who was erased is another one.
            reserved: dict[str, str] = dict(await db.fetch(delete, spender.tenant, reservation.id))
            reached: list[ScopedStatus] = []
            for scoped in scopes if any(spent) else ():
                if scoped.scope not in reserved:
                    continue
                values = spender.tenant, scoped.scope, reserved[scoped.scope], start, *_stored(spent)
                await db.execute(_SPEND, *values)
                for one in await _statuses(db, spender, scoped, spent, now):
                    before = one.status.spent - (spent.in_unit(one.status.unit) or 0.0)
                    if one.status.soft and before < one.status.amount <= one.status.spent:
                        reached.append(one)
            return reached

        found = await self._database.write(act, tenant=spender.tenant, repeatable=True)
        for one in found:
            self._on_soft_limit(spender, one)
        return [f"the soft limit of the {scope} is reached: {status}" for scope, status in found]

    def settle_soon(self, reservation: Reservation, used: SpentAmount | None) -> None:
        """Settle without waiting: until then, the reservation counts. While the database is away, try again."""
        task = asyncio.create_task(self._settle_later(reservation, used))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def _settle_later(self, reservation: Reservation, used: SpentAmount | None) -> None:
        for wait_s in SETTLEMENT_WAITS_S:
            with suppress(StoreError):
                await self.settle(reservation, used)
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), wait_s)
                break
        _LOG.error("what a request of tenant %s has spent was not counted", reservation.spender.tenant)

    async def forget_user(self, tenant: str, user: str) -> None:
        """Keep what was counted for an erased user without the name, so that erasing resets no limit, and delete
        what no period counts any more, of all erased users."""
        scopes = self._rules.of(Spender(tenant, user=user))
        has_total = any(
            not limit.per for scoped in scopes if scoped.scope == "user" for limit in scoped.limits
        )
        oldest = 0 if has_total else int(period_start(self._clock(), "month"))
        key = _erased_key(tenant, user)

        async def act(db: Transaction) -> None:
            await db.lock(f"budgets/{tenant}")
            where = tenant, "user", user
            spent = (
                "SELECT start, nanodollars, tokens FROM spending WHERE tenant = ? AND scope = ? AND key = ?"
            )
            for row in await db.fetch(spent, *where):
                await db.execute(_SPEND, tenant, "user", key, *row)
            await db.execute("DELETE FROM spending WHERE tenant = ? AND scope = ? AND key = ?", *where)
            old = "DELETE FROM spending WHERE tenant = ? AND scope = ? AND key LIKE ? AND start < ?"
            await db.execute(old, tenant, "user", f"{_ERASED_PREFIX}%", oldest)
            rename = "UPDATE spending_reservations SET key = ? WHERE tenant = ? AND scope = ? AND key = ?"
            await db.execute(rename, key, *where)

        await self._database.write(act, tenant=tenant, repeatable=True)

    async def forget_conversation(self, tenant: str, session: str) -> None:
        """Delete what was counted for a session that is deleted."""

        async def act(db: Transaction) -> None:
            for table in ("spending", "spending_reservations"):
                sql = f"DELETE FROM {table} WHERE tenant = ? AND scope = ? AND key = ?"
                await db.execute(sql, tenant, "conversation", session)

        await self._database.write(act, tenant=tenant, repeatable=True)

    async def close(self) -> None:
        """Wait for the settlements that have begun; they are not tried again."""
        self._closing.set()
        if self._settling:
            await asyncio.wait(self._settling)


async def _statuses(
    db: Transaction, spender: Spender, scoped: _ScopedLimits, estimate: SpentAmount, now: float
) -> list[ScopedStatus]:
    """Return what is left of the limits of a scope; reserved amounts are not left."""
    where = spender.tenant, scoped.scope, scoped.key, _erased_key(spender.tenant, scoped.key)
    ((reserved_nano, reserved_tokens),) = await db.fetch(_RESERVED, *where, now)
    found: list[ScopedStatus] = []
    for limit in scoped.limits:
        ((nano, tokens),) = await db.fetch(_SPENT, *where, int(period_start(now, limit.per)))
        spent, reserved = _in_unit(limit, nano, tokens), _in_unit(limit, reserved_nano, reserved_tokens)
        status = budget_status(limit, spent, estimate, at=now, reserved=reserved)
        found.append(ScopedStatus(scoped.scope, status))
    return found


def _in_unit(limit: SpendingLimit, nanodollars: int, tokens: int) -> float:
    return nanodollars / NANO if limit.unit == "USD" else tokens


def _erased_key(tenant: str, user: str) -> str:
    """Return the key under which the counts of a user stay after the user is erased."""
    return _ERASED_PREFIX + hashlib.sha256(f"{tenant}/{user}".encode()).hexdigest()


def _urgency(scoped: ScopedStatus) -> tuple[bool, float]:
    return not _is_soft_and_reached(scoped.status), scoped.status.left_share


def _is_soft_and_reached(status: BudgetStatus) -> bool:
    return status.soft and status.spent >= status.amount


def _stored(amount: SpentAmount) -> tuple[int, int]:
    return round((amount.dollars or 0.0) * NANO), amount.tokens


def spent_amount(usage: Any, model: Model) -> SpentAmount | None:
    """Return what a reply used by its reported usage; None if that is missing or not understood."""
    used = usage_or_none(usage)
    if used is None:
        return None
    return SpentAmount(sum(one.prompt + one.output for one in used.billed), usage_cost(used, model))


# ── Providers ─────────────────────────────────────────────────────────────────────────────────────


class BudgetedProvider:
    """A `Provider` whose requests are checked against the budgets of one session."""

    def __init__(self, provider: Provider, budgets: Budgets, spender: Callable[[], Spender]) -> None:
        """`spender` returns whose limits apply now: in a group, users take turns."""
        self._provider = provider
        self._budgets = budgets
        self._spender = spender
        self._usage = UsageTotals()
        self._notices: list[str] = []
        self._told = ""
        """What the model was told last of what is left."""

    @property
    def name(self) -> str:
        return self._provider.name

    @property
    def model(self) -> Model:
        return self._provider.model

    @property
    def dialect(self) -> Dialect:
        return self._provider.dialect

    async def tell_model(self, occasion: HookOccasion) -> None:
        """Tell the model how much is left, at the end of the next request, if that is another step than before: a
        hook of the agent."""
        if occasion.at != "before_model" or not self._budgets.tells_model:
            return
        text = left_text(await self._budgets.statuses(self._spender()))
        if text and text != self._told:
            await occasion.session.append(Instructed(content=text, source=BUDGET_SOURCE))
            self._told = text

    def take_notices(self) -> Iterator[str]:
        """Yield, once each, the soft limits that were reached."""
        while self._notices:
            yield self._notices.pop(0)

    async def send(self, request: Fitted, *, max_tokens: int) -> AsyncIterator[ReplyItem]:
        """Reserve what a request will probably use, send it, and count what it has used; raises
        `BudgetExceeded`."""
        estimate = estimate_request(self.model, request.tokens, self._usage, reserve=max_tokens)
        reservation = await self._budgets.reserve(self._spender(), self.model, estimate)
        used: SpentAmount | None = NOTHING_SPENT  # until something arrives
        try:
            async for piece in self._provider.send(request, max_tokens=max_tokens):
                if isinstance(piece, ReplyPiece):
                    used = None
                elif isinstance(piece, Reply):
                    self._learn(piece.usage)
                    used = spent_amount(piece.usage, self.model)
                    if reservation is not None:  # before the caller stops reading
                        await self._settle(reservation, used)
                        reservation = None
                yield piece
        finally:
            if reservation is not None:
                self._budgets.settle_soon(reservation, used)

    def _learn(self, usage: Any) -> None:
        if (used := usage_or_none(usage)) is not None:
            self._usage = self._usage.after(Event(0, used), self.model)

    async def _settle(self, reservation: Reservation, used: SpentAmount | None) -> None:
        try:
            self._notices += await self._budgets.settle(reservation, used)
        except StoreError:  # the answer is there
            self._budgets.settle_soon(reservation, used)

    async def close(self) -> None:
        """Do nothing: the provider is shared."""


def notices_of(provider: Provider) -> Sequence[str]:
    """Return, once each, the soft limits that requests of a provider have reached."""
    return list(provider.take_notices()) if isinstance(provider, BudgetedProvider) else ()
