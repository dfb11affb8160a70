"""Usage and cost of a conversation, summed from reported usage."""

from __future__ import annotations

import msgspec

from foveal.core.log.events import Used
from foveal.core.models.model import Model


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

    calls: int = 0
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
    spent: float | None = 0.0
    """Dollars by the model's prices; None when a price is unknown."""
    saved: float | None = 0.0
    """Dollars saved against sending the whole history each time with an ideal cache."""
    last: Used | None = None
    """The newest report. The size of the context is that of the last call, not a sum."""

    @property
    def cached_share(self) -> float | None:
        """The share of the last reported prompt that came from the cache."""
        return self.last.cache_read / self.last.prompt if self.last is not None and self.last.prompt else None

    def with_summary(self, cost: float | None, *, asked: int) -> UsageTotals:
        """Return the totals with the cost of a summary.

        Args:
            cost: Dollars of the summary; None when a price is unknown.
            asked: Requests to models; with 0 nothing is added.
        """
        return msgspec.structs.replace(self, spent=_plus(self.spent, cost)) if asked else self

    def after(self, used: Used, model: Model) -> UsageTotals:
        """Return the totals with one more call.

        Args:
            used: The usage that the provider reported.
            model: The model whose prices apply.
        """
        actual = _prompt_cost(used, model)
        answer = model.cost(output=used.output)
        for other in used.others:
            answer = _plus(answer, _plus(_prompt_cost(other, model), model.cost(output=other.output)))
        ideal = self._ideal(used, model)
        return UsageTotals(
            calls=self.calls + 1,
            input=self.input + sum(one.input for one in used.billed),
            cache_read=self.cache_read + sum(one.cache_read for one in used.billed),
            cache_write=self.cache_write + sum(one.cache_write for one in used.billed),
            output=self.output + sum(one.output for one in used.billed),
            reasoning=self.reasoning + sum(one.reasoning for one in used.billed),
            spent=_plus(self.spent, _plus(actual, answer)),
            saved=_plus(self.saved, None if actual is None or ideal is None else ideal - actual),
            last=used,
        )

    def _ideal(self, used: Used, model: Model) -> float | None:
        """Return the price of the same call without reductions. If the provider caches, the whole previous
        call counts as cached."""
        if used.unreduced <= used.units or not used.units:
            return _prompt_cost(used, model)
        ratio = used.prompt / used.units
        caching = used.cache_read + used.cache_write + self.cache_read + self.cache_write > 0
        kept = min(self.last.unreduced, used.unreduced) if caching and self.last is not None else 0
        new = round((used.unreduced - kept) * ratio)
        read = round(kept * ratio)
        if not used.cache_write:
            return model.cost(cache_read=read, input=new)
        hour = round(new * used.cache_write_1h / used.cache_write)
        return model.cost(cache_read=read, cache_write=new, cache_write_1h=hour)


def _prompt_cost(used: Used, model: Model) -> float | None:
    return model.cost(
        input=used.input,
        cache_read=used.cache_read,
        cache_write=used.cache_write,
        cache_write_1h=used.cache_write_1h,
    )


def _plus(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other
