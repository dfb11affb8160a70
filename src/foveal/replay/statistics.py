"""Statistics of a policy over many conversations, and its worst losses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import Any

import msgspec

from foveal.core.models.model import Model
from foveal.replay.cache_cost import DEFAULT_PRICES, RelativePrices, model_prices
from foveal.replay.play import Loss, RecallCount, Trace

# ── Worst losses ──────────────────────────────────────────────────────────────────────────────────

MAX_LOSS_EXAMPLES = 5


class HiddenResult(msgspec.Struct, frozen=True, kw_only=True):
    """A tool result that a policy hid, and what calls needed from it afterwards."""

    policy: str
    conversation: str
    title: str
    handle: str
    tool: str
    level: str
    rule: str
    by: str
    """The event that hid it, with its kind and reason."""
    needs: int
    """Number of needs that were lost."""
    calls: tuple[int, ...]
    """The calls that had these needs."""
    examples: tuple[str, ...]
    """Some of the needed strings, the longest first."""


def worst_losses(rows: Sequence[PolicyStatistics], *, limit: int = 20) -> list[HiddenResult]:
    """Return for each policy the hidden results with the most lost needs, the worst first."""
    return [hidden for row in rows for hidden in _worst_of_policy(row, limit)]


def _worst_of_policy(row: PolicyStatistics, limit: int) -> Iterable[HiddenResult]:
    found: list[HiddenResult] = []
    for trace in row.traces:
        groups: dict[tuple[str, str], list[Loss]] = {}
        for loss in trace.losses:
            groups.setdefault((loss.handle, loss.by), []).append(loss)
        found += [
            _hidden_result(row.policy, trace.conversation, trace.title, losses) for losses in groups.values()
        ]
    return sorted(found, key=lambda hidden: (-hidden.needs, hidden.conversation, hidden.calls))[:limit]


def _hidden_result(policy: str, conversation: str, title: str, losses: Sequence[Loss]) -> HiddenResult:
    first = losses[0]
    texts = sorted({loss.text for loss in losses}, key=lambda text: (-len(text), text))
    return HiddenResult(
        policy=policy,
        conversation=conversation,
        title=title,
        handle=first.handle,
        tool=first.tool,
        level=first.level,
        rule=first.rule,
        by=first.by,
        needs=len(losses),
        calls=tuple(sorted({loss.call for loss in losses})),
        examples=tuple(texts[:MAX_LOSS_EXAMPLES]),
    )


# ── Statistics ────────────────────────────────────────────────────────────────────────────────────


class PolicyStatistics(msgspec.Struct, kw_only=True):
    """One row of the table. Shares are from 0 to 1, None for a share of nothing."""

    policy: str
    conversations: int
    calls: int
    tokens: int
    """Input tokens of all requests."""
    cached: float | None
    """Share of them that came from the cache."""
    bill: float | None
    """Bill relative to sending everything with an ideal cache, at read 0.1 and write 1.0, with summaries."""
    bill_mean: float | None
    """The same, as the mean over conversations."""
    bill_model: float | None
    """The same as `bill`, at the model's own prices."""
    dollars: float | None
    """Cost of the input at the model's own prices, None if they are unknown."""
    breaks: float | None
    """Prefix breaks per 100 calls."""
    peak: int
    """Tokens of the largest request."""
    over: int
    """Calls whose request was too large for the window."""
    ident: float | None
    ident_far: float | None
    line: float | None
    line_far: float | None
    """Recall of all needs together, and of the far ones."""
    ident_mean: float | None
    ident_far_mean: float | None
    line_mean: float | None
    line_far_mean: float | None
    """The same, as the mean over the conversations that have such needs."""
    task: float | None
    """Share of requests that contain the first user message verbatim."""
    latest: float | None
    """Share of requests that contain the latest user message verbatim."""
    needs: dict[str, int]
    """Number of needs of each kind."""
    reductions: dict[str, int]
    own_median: float
    """Median of the CPU time of `fit`, in milliseconds."""
    own_p99: float
    """99th percentile of the CPU time of `fit`, in milliseconds."""
    traces: list[Trace] = []

    def values(self) -> dict[str, Any]:
        """Return all values except the traces, for JSON."""
        return {name: getattr(self, name) for name in self.__struct_fields__ if name != "traces"}


def policy_statistics(policy: str, traces: Sequence[Trace], model: Model) -> PolicyStatistics:
    """Return the statistics of a policy from its traces."""
    calls = sum(len(trace.sizes) for trace in traces)
    tokens = sum(sum(trace.sizes) for trace in traces)
    ident = _total_recall(trace.ident for trace in traces)
    line = _total_recall(trace.line for trace in traces)
    seconds = sorted(second for trace in traces for second in trace.seconds) or [0.0]
    own = model_prices(model)
    paid = sum(_bill(trace, own) for trace in traces) * model.token_ratio
    return PolicyStatistics(
        policy=policy,
        conversations=len(traces),
        calls=calls,
        tokens=_provider_tokens(tokens, traces),
        cached=_share(sum(sum(trace.cached) for trace in traces), tokens),
        bill=_relative_bill(traces, DEFAULT_PRICES),
        bill_mean=_mean(traces, lambda trace: _relative_bill([trace], DEFAULT_PRICES)),
        bill_model=_relative_bill(traces, own),
        dollars=None if model.input_price is None else paid * model.input_price / 1_000_000,
        breaks=_share(100 * sum(len(trace.breaks) for trace in traces), calls),
        peak=max((_provider_tokens(max(trace.sizes, default=0), [trace]) for trace in traces), default=0),
        over=sum(len(trace.over) for trace in traces),
        ident=ident.share,
        ident_far=ident.far,
        line=line.share,
        line_far=line.far,
        ident_mean=_mean(traces, lambda trace: trace.ident.share),
        ident_far_mean=_mean(traces, lambda trace: trace.ident.far),
        line_mean=_mean(traces, lambda trace: trace.line.share),
        line_far_mean=_mean(traces, lambda trace: trace.line.far),
        task=_share(sum(trace.with_task for trace in traces), calls),
        latest=_share(sum(trace.with_latest for trace in traces), calls),
        needs={
            "ident": ident.needed,
            "ident_far": ident.needed_far,
            "line": line.needed,
            "line_far": line.needed_far,
        },
        reductions=dict(sum((Counter(trace.reductions) for trace in traces), Counter())),
        own_median=1_000 * median(seconds),
        own_p99=1_000 * seconds[min(len(seconds) - 1, len(seconds) * 99 // 100)],
        traces=list(traces),
    )


def _provider_tokens(counted: int, traces: Sequence[Trace]) -> int:
    """Return the tokens that the model's provider would count."""
    return round(counted * traces[0].ratio) if traces else 0


def _total_recall(recalls: Iterable[RecallCount]) -> RecallCount:
    total = RecallCount()
    for recall in recalls:
        total = total.plus(recall)
    return total


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _mean(traces: Iterable[Trace], value: Callable[[Trace], float | None]) -> float | None:
    known = [found for found in map(value, traces) if found is not None]
    return fmean(known) if known else None


def _relative_bill(traces: Sequence[Trace], prices: RelativePrices) -> float | None:
    return _share(
        sum(_bill(trace, prices) for trace in traces), sum(_full_bill(trace, prices) for trace in traces)
    )


def _bill(trace: Trace, prices: RelativePrices) -> float:
    sent = sum(map(prices.bill, trace.sizes, trace.cached))
    return sent + prices.bill(*trace.summaries)


def _full_bill(trace: Trace, prices: RelativePrices) -> float:
    """Return the bill of sending everything, each request with the whole previous one in the cache."""
    first = trace.full_sizes[:1]
    rest = sum(prices.bill(size, min(before, size)) for before, size in pairwise(trace.full_sizes))
    return sum(prices.bill(size, 0) for size in first) + rest
