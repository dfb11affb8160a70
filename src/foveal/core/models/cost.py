"""Usage and cost of a conversation, summed from reported usage.

A cost has three parts, wherever it is shown: what is known, the number of calls of which it is not known, and an
estimate of what was saved. What is not known is never shown as zero.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final, Literal, TypeAlias

import msgspec

from foveal.core.log.events import AnyFact, Event, ModelSaid, ToolReturned, Used, UserSaid
from foveal.core.log.logged_requests import OpenCall, call_after
from foveal.core.models.model import Model

SMALLEST_SHOWN_DOLLARS: Final = 0.0001
"""A saving below this is not shown."""
SMALLEST_SHOWN_LOSS_DOLLARS: Final = 0.01
"""A smaller loss is not shown: a cut costs something at first, and pays off over later calls."""


Period: TypeAlias = Literal["", "hour", "day", "month"]
"""A period in UTC; "" is all time."""
PERIODS: Final[tuple[Period, ...]] = ("hour", "day", "month")


def period_start(at: float, per: Period) -> float:
    """Return when the period of a time began, in seconds since 1970; 0 for all time."""
    if not per:
        return 0.0
    whole = datetime.fromtimestamp(at, UTC).replace(minute=0, second=0, microsecond=0)
    if per != "hour":
        whole = whole.replace(hour=0, day=1 if per == "month" else whole.day)
    return whole.timestamp()


class PeriodUsage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was used in a period. The field names are stored in checkpoints."""

    start: float = 0.0
    """When the period began, in seconds since 1970."""
    dollars: float = 0.0
    """Dollars of the calls whose price is known."""
    tokens: int = 0
    """Tokens that models read and wrote, also for summaries."""
    unreported: int = 0
    """Calls without reported usage."""
    unpriced: int = 0
    """Calls with reported usage whose price is unknown."""


class UsageTotals(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Token usage and cost so far. The field names are stored in checkpoints.

    Examples:
        ```python
        import foveal

        async with foveal.stores.MemoryStore() as store:
            session = await foveal.Session.open(store, "demo", model="gpt-4.1")
            assert (await session.usage()).calls == 0
        ```
    """

    calls: int = msgspec.field(default=0, name="requests")
    """Requests to the model that were answered, or whose usage was reported; without those for summaries."""
    reported: int = msgspec.field(default=0, name="calls")
    """Calls with reported usage."""
    input: int = 0
    """Tokens read at the full price."""
    cache_read: int = 0
    """Tokens read from the cache."""
    cache_write: int = 0
    """Tokens written to the cache."""
    output: int = 0
    """Tokens that the model wrote."""
    reasoning: int = 0
    """Tokens of `output` that were reasoning."""
    answers: int = 0
    """Answers so far, in a checkpoint of an earlier version; else 0."""
    newest: OpenCall | None = None
    """The newest call, which an answer or usage may still complete."""
    unpriced: int = 0
    """Calls with reported usage whose price is unknown."""
    spent: float | None = 0.0
    """Dollars of the calls whose price is known; None if there were calls, and it is known of none."""
    balance: float | None = msgspec.field(default=0.0, name="saved")
    """`saved`, also of calls before anything was left out."""
    shortened: int = 0
    """Calls with reported usage that left something out."""
    summary_tokens: int = 0
    """Tokens that models read and wrote for summaries."""
    periods: tuple[PeriodUsage, ...] = ()
    """What was used in the newest hour, day and month with a call; empty if no event has a time."""
    last: Used | None = None
    """The newest report. The size of the context is that of the last call, not a sum."""

    def __post_init__(self) -> None:
        if not self.calls and (self.reported or self.answers):
            msgspec.structs.force_setattr(self, "calls", max(self.reported, self.answers))
            msgspec.structs.force_setattr(self, "answers", 0)

    @property
    def cached_share(self) -> float | None:
        """The share of the last reported prompt that came from the cache."""
        return self.last.cache_read / self.last.prompt if self.last is not None and self.last.prompt else None

    @property
    def saved(self) -> float | None:
        """Estimate of the dollars saved against sending the whole history each time with an ideal cache, summaries
        included, for the calls whose price is known; None if it is known of none. It is 0 while every call had
        everything, and below 0 where the calls cost more, because the provider's cache held less."""
        return self.balance if self.shortened or self.balance is None else 0.0

    @property
    def unknown_calls(self) -> int:
        """Calls whose cost is unknown: no usage was reported, or the price is unknown, also that of a summary."""
        return self.unpriced + self.calls - self.reported

    def after(self, event: Event, model: Model) -> UsageTotals:
        """Return the totals after one more event.

        Args:
            event: Any event of the log.
            model: The model whose prices apply.
        """
        fact = event.fact
        if not isinstance(fact, ModelSaid | Used | UserSaid | ToolReturned) or _is_imported(fact):
            return self
        newest, is_new = call_after(self.newest, event)
        if newest is self.newest:
            return self
        told = msgspec.structs.replace(self, newest=newest, calls=self.calls + is_new)
        told = told._in_periods(event.at, unreported=int(is_new))
        if isinstance(fact, Used):
            return told._with_usage(fact, model, at=event.at)
        if not is_new or self.reported:
            return told
        return msgspec.structs.replace(told, spent=self.spent or None, balance=self.balance or None)

    def with_summary(
        self, cost: float | None, *, asked: int, tokens: int = 0, at: float | None = None
    ) -> UsageTotals:
        """Return the totals with the cost of a summary.

        Args:
            cost: Dollars of the summary; None when a price is unknown.
            asked: Requests to models; with 0 nothing is added.
            tokens: Tokens that models read and wrote for it.
            at: When it was recorded; None if that is not known.
        """
        if not asked:
            return self
        spent, unpriced = self._with_cost(cost)
        return msgspec.structs.replace(
            self._in_periods(at, dollars=cost, tokens=tokens, unpriced=int(cost is None)),
            spent=spent,
            balance=self.balance if cost is None else _sum_of_known(self.balance, -cost),
            unpriced=unpriced,
            summary_tokens=self.summary_tokens + tokens,
        )

    def in_period(self, per: Period, at: float | None) -> PeriodUsage:
        """Return what was used in the period of a time.

        Args:
            per: The period; "" is all time.
            at: A time in seconds since 1970; None returns nothing used for a period.
        """
        if not per:
            return PeriodUsage(
                dollars=0.0 if self.spent is None else self.spent,  # the unknown calls are counted below
                tokens=self.input + self.cache_read + self.cache_write + self.output + self.summary_tokens,
                unreported=self.calls - self.reported,
                unpriced=self.unpriced,
            )
        start = 0.0 if at is None else period_start(at, per)
        found = self.periods[PERIODS.index(per)] if self.periods else PeriodUsage()
        return found if found.start == start else PeriodUsage(start=start)

    def _in_periods(
        self,
        at: float | None,
        *,
        dollars: float | None = None,
        tokens: int = 0,
        unreported: int = 0,
        unpriced: int = 0,
    ) -> UsageTotals:
        """Return the totals with what was used at a time added to its hour, day and month."""
        if at is None:
            return self
        before = (self.in_period(per, at) for per in PERIODS)
        periods = tuple(
            PeriodUsage(
                start=one.start,
                dollars=one.dollars + (dollars or 0.0),
                tokens=one.tokens + tokens,
                unreported=max(0, one.unreported + unreported),
                unpriced=one.unpriced + unpriced,
            )
            for one in before
        )
        return msgspec.structs.replace(self, periods=periods)

    def _with_usage(self, used: Used, model: Model, *, at: float | None) -> UsageTotals:
        """Return the totals with the usage of a call."""
        actual = _prompt_cost(used, model)
        answer = model.cost(output=used.output)
        for other in used.others:
            answer = _plus(answer, _plus(_prompt_cost(other, model), model.cost(output=other.output)))
        ideal, cost = self._ideal(used, model), _plus(actual, answer)
        spent, unpriced = self._with_cost(cost)
        tokens = sum(one.prompt + one.output for one in used.billed)
        counted = self._in_periods(at, dollars=cost, tokens=tokens, unreported=-1, unpriced=int(cost is None))
        return UsageTotals(
            calls=self.calls,
            reported=self.reported + 1,
            newest=self.newest,
            unpriced=unpriced,
            input=self.input + sum(one.input for one in used.billed),
            cache_read=self.cache_read + sum(one.cache_read for one in used.billed),
            cache_write=self.cache_write + sum(one.cache_write for one in used.billed),
            output=self.output + sum(one.output for one in used.billed),
            reasoning=self.reasoning + sum(one.reasoning for one in used.billed),
            spent=spent,
            summary_tokens=self.summary_tokens,
            periods=counted.periods,
            balance=_sum_of_known(self.balance, None if actual is None or ideal is None else ideal - actual),
            shortened=self.shortened + (used.unreduced > used.units > 0),
            last=used,
        )

    def _with_cost(self, cost: float | None) -> tuple[float | None, int]:
        """Return what is known to be spent, and the number of calls without a known price, with one more call."""
        # A checkpoint of an earlier version says only that some price was unknown.
        unpriced = self.unpriced or (self.reported if self.spent is None else 0)
        return _sum_of_known(self.spent, cost), unpriced + (cost is None)

    def _ideal(self, used: Used, model: Model) -> float | None:
        """Return the price of the same call without reductions, if the cache holds the whole previous one.
        It does so too if the provider reports no cached tokens: a saving against no cache is far larger."""
        if not used.units:
            return _prompt_cost(used, model)
        whole = max(used.unreduced, used.units)
        kept = 0 if self.last is None else min(max(self.last.unreduced, self.last.units), whole)
        ratio = used.prompt / used.units
        new, read = round((whole - kept) * ratio), round(kept * ratio)
        if model.cached_price is None and model.input_price is not None:
            model = msgspec.structs.replace(model, cached_price=model.input_price * model.read_ratio)
        if not used.cache_write:
            return model.cost(cache_read=read, input=new)
        hour = round(new * used.cache_write_1h / used.cache_write)
        return model.cost(cache_read=read, cache_write=new, cache_write_1h=hour)


def _is_imported(fact: AnyFact) -> bool:
    return isinstance(fact, ModelSaid) and fact.imported


def _prompt_cost(used: Used, model: Model) -> float | None:
    return model.cost(
        input=used.input,
        cache_read=used.cache_read,
        cache_write=used.cache_write,
        cache_write_1h=used.cache_write_1h,
    )


def usage_cost(used: Used, model: Model) -> float | None:
    """Return the dollars of one call by reported usage; None if a price is unknown."""
    return model.cost(
        input=sum(one.input for one in used.billed),
        cache_read=sum(one.cache_read for one in used.billed),
        cache_write=sum(one.cache_write for one in used.billed),
        cache_write_1h=sum(one.cache_write_1h for one in used.billed),
        output=sum(one.output for one in used.billed),
    )


def cost_text(spent: float | None, unknown_calls: int, saved: float | None) -> str:
    """Return a cost as a sentence: what is known, of how many calls it is not known, and an estimate of what was
    saved."""
    calls = f"{unknown_calls:,} call{'s' * (unknown_calls != 1)} without usage or price"
    if spent is None or (not spent and unknown_calls):
        known = f"not known: {calls}" if unknown_calls else "not known: this model has no price"
    else:
        known = f"{dollars(spent)}, and {calls}" if unknown_calls else dollars(spent)
    if saved is not None and saved >= SMALLEST_SHOWN_DOLLARS:
        return f"{known}; saved about {dollars(saved)} against sending everything with an ideal cache"
    if saved is not None and saved <= -SMALLEST_SHOWN_LOSS_DOLLARS:
        return f"{known}; about {dollars(-saved)} more than sending everything with an ideal cache"
    return known


def dollars(amount: float) -> str:
    """Return an amount with two digits, or four if it is less than a cent."""
    return f"${amount:,.2f}" if amount >= 0.01 or not amount else f"${amount:.4f}"


def _sum_of_known(total: float | None, amount: float | None) -> float | None:
    """Return the sum of what is known; None if that is nothing."""
    return (total or None) if amount is None else (total or 0.0) + amount


def _plus(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other
