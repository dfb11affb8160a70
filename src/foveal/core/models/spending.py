"""Spending limits: the most dollars or tokens that requests may use, in all or in a period.

1. A limit is a text such as `5 USD`, `0.50 USD per hour` or `2M tokens per day`; a number is dollars. One that
   begins with `soft` is only reported, and refuses nothing.
2. Spent is what providers reported. A call without usage or price counts as much as the next request probably will,
   so that no limit is without effect.
3. A request is refused if what is spent and its estimate exceed a limit. The answer may turn out longer than
   estimated: a limit can be exceeded by that much.
4. Hours, days and months are those of UTC.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from foveal.core.models.cost import PERIODS, Period, UsageTotals, dollars, period_start
from foveal.core.models.model import Model
from foveal.errors import BadSetting, BudgetExceeded

SpendingUnit: TypeAlias = Literal["USD", "tokens"]
LimitText: TypeAlias = str | float | Sequence[str | float]
"""One limit or several, as a user writes them; a number is dollars."""
FIRST_ANSWER_TOKENS: Final = 1_000
"""Tokens that the first answer of a conversation is estimated to take, if the reserve has as many."""
RESERVED_WAIT_S: Final = 10.0
"""Seconds after which a request is worth repeating that only those being answered keep from a limit."""
LIMIT_FORM: Final = 'a limit such as "5 USD", "0.50 USD per hour" or "2M tokens per day", or a list of them'
LEFT_STEPS: Final = (0.5, 0.25, 0.1, 0.05, 0.02)
"""The shares of a limit at which a model is told how much is left: few, because each text stays in the history."""
_LIMIT: Final = re.compile(
    r"(?P<soft>soft\s+)?(?P<sign>\$\s*)?(?P<number>\d[\d,_]*(?:\.\d+)?|\.\d+)\s*(?P<times>[kKMB](?![a-z]))?"
    rf"\s*(?P<unit>USD|tokens?)?(?:\s*(?:/|per\s)\s*(?P<per>{'|'.join(PERIODS)}))?"
)
_TIMES: Final[Mapping[str, int]] = {"": 1, "k": 1_000, "K": 1_000, "M": 1_000_000, "B": 1_000_000_000}
_MAX_AMOUNT: Final = 1e15


class SpendingLimit(msgspec.Struct, frozen=True, kw_only=True):
    """The most that may be spent, in all or in a period."""

    amount: float
    unit: SpendingUnit
    per: Period = ""
    soft: bool = False
    """Whether it is only reported."""

    def __str__(self) -> str:
        shown = f"{self.amount:,.6f}".rstrip("0").rstrip(".")
        return f"{'soft ' * self.soft}{shown} {self.unit}{f' per {self.per}' * bool(self.per)}"

    def shown(self, amount: float) -> str:
        """Return an amount in the unit of the limit."""
        return dollars(amount) if self.unit == "USD" else f"{amount:,.0f} tokens"


def read_limits(given: object, *, field: str = "limit") -> tuple[SpendingLimit, ...]:
    """Return the limits that a user has written; raises `BadSetting` with the name of the field."""
    items = given if isinstance(given, list | tuple) else [given]
    return tuple(item if isinstance(item, SpendingLimit) else _read_limit(item, field) for item in items)


def _read_limit(given: object, field: str) -> SpendingLimit:
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    text = f"{given:f} USD" if is_number else given
    found = _LIMIT.fullmatch(text.strip()) if isinstance(text, str) else None
    if found is None or bool(found["sign"]) == bool(found["unit"]):
        raise BadSetting(field, given, LIMIT_FORM)
    amount = float(found["number"].replace(",", "").replace("_", "")) * _TIMES[found["times"] or ""]
    unit: SpendingUnit = "tokens" if (found["unit"] or "").startswith("token") else "USD"
    if not 0 < amount <= _MAX_AMOUNT:
        raise BadSetting(field, given, f"{LIMIT_FORM}, above 0")
    per: Any = found["per"] or ""
    return SpendingLimit(amount=amount, unit=unit, per=per, soft=bool(found["soft"]))


def period_end(at: float, per: Period) -> float | None:
    """Return when the period of a time ends; None for a limit without one."""
    if not per:
        return None
    start = datetime.fromtimestamp(period_start(at, per), UTC)
    longest = start + {"hour": timedelta(hours=1), "day": timedelta(days=1), "month": timedelta(days=31)}[per]
    return (longest.replace(day=1) if per == "month" else longest).timestamp()


# ── The next request ──────────────────────────────────────────────────────────────────────────────


class SpentAmount(NamedTuple):
    """What one request uses, or several."""

    tokens: int
    dollars: float | None
    """None if the price is not known."""

    def in_unit(self, unit: SpendingUnit) -> float | None:
        return self.dollars if unit == "USD" else self.tokens


def estimate_request(
    model: Model, tokens: int, usage: UsageTotals, *, reserve: int, answers: int = 1
) -> SpentAmount:
    """Return what a request of `tokens` for a number of answers will probably use. What the last one had counts as
    cached if the provider caches; each answer is as long as those before it were on average."""
    known = -(-usage.output // usage.reported) if usage.reported else FIRST_ANSWER_TOKENS
    answer, last = min(known, reserve) * answers, usage.last
    kept = min(last.prompt, tokens) if last is not None and last.cache_read + last.cache_write else 0
    is_written = last is not None and last.cache_write > 0
    new = {"cache_write" if is_written else "input": tokens - kept}
    price = model.cost(cache_read=kept, output=answer, **new)
    return SpentAmount(tokens + answer, model.cost(input=tokens, output=answer) if price is None else price)


# ── State of limits ───────────────────────────────────────────────────────────────────────────────


class BudgetStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A spending limit, and what is left of it.

    Examples:
        ```python
        import foveal

        ctx = foveal.Context("gpt-4.1", limit="5 USD")
        ctx.fit([{"role": "user", "content": "Why is CI red?"}])
        ctx.observe({"prompt_tokens": 500_000, "completion_tokens": 0})
        budget = ctx.report().budget
        assert budget is not None and (budget.spent, budget.left) == (1.0, 4.0)
        ```
    """

    limit: str
    """The limit, such as `5 USD per day`."""
    unit: SpendingUnit
    """The unit of the numbers: `USD` or `tokens`."""
    amount: float
    """The most that may be spent."""
    spent: float
    """What is spent in all, or in the current period."""
    left: float
    """What is left; below 0 if an answer was longer than estimated."""
    reserved: float = 0.0
    """What is kept for requests that are being answered: it is not spent yet, and not left."""
    estimate: float | None
    """What the next request will probably use; None if the model has no price."""
    soft: bool = False
    """Whether the limit refuses nothing."""
    until: float | None = None
    """When the period ends, in seconds since 1970; None for a limit without a period."""

    @property
    def left_share(self) -> float:
        """The share of the limit that is left, from 0 to 1."""
        return max(0.0, self.left / self.amount)

    def __str__(self) -> str:
        shown = _shown(self)
        return f"{shown(self.spent)} of {self.limit} spent, {shown(max(0.0, self.left))} left"


def budget_status(
    limit: SpendingLimit, spent: float, estimate: SpentAmount, *, at: float | None, reserved: float = 0.0
) -> BudgetStatus:
    """Return the state of a limit of which `spent` is used at the time `at`, and `reserved` for other requests."""
    return BudgetStatus(
        limit=str(limit),
        unit=limit.unit,
        amount=limit.amount,
        spent=spent,
        left=limit.amount - spent - reserved,
        reserved=reserved,
        estimate=estimate.in_unit(limit.unit),
        soft=limit.soft,
        until=None if at is None else period_end(at, limit.per),
    )


def budget_statuses(
    limits: Iterable[SpendingLimit], usage: UsageTotals, estimate: SpentAmount, *, at: float | None
) -> tuple[BudgetStatus, ...]:
    """Return the state of the limits of a conversation, the one with the least left first."""
    found = (budget_status(limit, _spent(limit, usage, estimate, at), estimate, at=at) for limit in limits)
    return tuple(sorted(found, key=lambda status: status.left_share))


def _spent(limit: SpendingLimit, usage: UsageTotals, estimate: SpentAmount, at: float | None) -> float:
    used = usage.in_period(limit.per, at)
    if limit.unit == "tokens":
        return float(used.tokens + used.unreported * estimate.tokens)
    return used.dollars + (used.unreported + used.unpriced) * (estimate.dollars or 0.0)


def check_budgets(
    statuses: Iterable[BudgetStatus],
    model: str,
    *,
    at: float | None,
    advice: str,
    price_advice: str,
    period_advice: str = "",
    sends: bool = True,
    scope: str = "",
) -> None:
    """Raise `BudgetExceeded`, with what to do, if the next request would exceed a limit, or its price is not known.
    `period_advice` takes the place of `advice` for a limit with a period. Without `sends`, raise it only if nothing
    is left: the request is not written yet. On a server, `scope` is whose limits these are."""
    for status in statuses:
        if status.soft:
            continue
        if status.estimate is None:
            raise _budget_error(status, f"{unknown_price_text(status, model)}; {price_advice}", at, scope)
        if status.left < (status.estimate if sends else 0.0) or status.left <= 0:
            told = advice if status.until is None else period_advice or advice
            raise _budget_error(status, f"{exceeded_text(status)}; {told}", at, scope)


def exceeded_text(status: BudgetStatus) -> str:
    """Return why a request is refused, with the numbers."""
    shown, estimate = _shown(status), status.estimate or 0.0
    until = "" if status.until is None else f" until {time_text(status.until)}"
    reserved = (
        f"{shown(status.reserved)} kept for requests that are being answered, " if status.reserved else ""
    )
    return (
        f"the limit of {status.limit} is reached: {shown(status.spent)} spent, {reserved}"
        f"{shown(max(0.0, status.left))} left{until}, and the next request needs about {shown(estimate)}"
    )


def unknown_price_text(status: BudgetStatus, model: str) -> str:
    """Return why a request to a model without a price is refused."""
    return f"the price of {model} is not known, so the limit of {status.limit} cannot be kept"


def time_text(at: float) -> str:
    """Return a time for people, in UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")


def left_text(statuses: Iterable[BudgetStatus]) -> str:
    """Return what a model is told of the limit with the least left; "" without a limit. The text changes in few
    steps, so that it seldom has to be told."""
    tightest = min(statuses, key=lambda status: status.left_share, default=None)
    if tightest is None:
        return ""
    step = min((share for share in LEFT_STEPS if share >= tightest.left_share), default=0.0)
    left = f"less than {step:.0%}" if step else f"more than {LEFT_STEPS[0]:.0%}"
    return f"[foveal: {left} of the budget ({tightest.limit}) is left]"


def _shown(status: BudgetStatus) -> Any:
    return SpendingLimit(amount=status.amount, unit=status.unit).shown


def _budget_error(status: BudgetStatus, message: str, at: float | None, scope: str) -> BudgetExceeded:
    return BudgetExceeded(
        message,
        limit=status.limit,
        unit=status.unit,
        spent=status.spent,
        left=status.left,
        estimate=status.estimate,
        until=status.until,
        wait_s=_wait_s(status, at),
        scope=scope,
    )


def _wait_s(status: BudgetStatus, at: float | None) -> float | None:
    """Return the seconds until a refused request may fit: few if only requests that are being answered keep what it
    needs."""
    if status.estimate is not None and status.spent + status.estimate <= status.amount and status.reserved:
        return RESERVED_WAIT_S
    return None if status.until is None or at is None else status.until - at
