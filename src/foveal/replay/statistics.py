"""The figures of one policy over many conversations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import Any

import msgspec

from foveal.core.models.model import Model
from foveal.replay.cache_cost import PLAIN, RelativePrices, prices
from foveal.replay.play import Loss, RecallCount, Trace

# ── losses ────────────────────────────────────────────────────────────────────────────────────────
# The worst losses: which results were hidden although their words were needed again.

EXAMPLES = 5


class HiddenResult(msgspec.Struct, frozen=True, kw_only=True):
    """One result that a policy hid, and what was needed of it afterwards."""

    policy: str
    conversation: str
    title: str
    handle: str
    tool: str
    level: str
    rule: str
    by: str
    """The event that hid it, with its reason."""
    needs: int
    """How often something was needed of it."""
    calls: tuple[int, ...]
    """The calls that did."""
    examples: tuple[str, ...]
    """What they needed, the longest first."""


def worst(rows: Sequence[PolicyStatistics], *, most: int = 20) -> list[HiddenResult]:
    """For each policy the results that were missed most, the worst first."""
    return [hidden for row in rows for hidden in _worst(row, most)]


def _worst(row: PolicyStatistics, most: int) -> Iterable[HiddenResult]:
    found: list[HiddenResult] = []
    for trace in row.traces:
        groups: dict[tuple[str, str], list[Loss]] = {}
        for loss in trace.losses:
            groups.setdefault((loss.handle, loss.by), []).append(loss)
        found += [_hidden(row.policy, trace.conversation, trace.title, losses) for losses in groups.values()]
    return sorted(found, key=lambda one: (-one.needs, one.conversation, one.calls))[:most]


def _hidden(policy: str, conversation: str, title: str, losses: Sequence[Loss]) -> HiddenResult:
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
        examples=tuple(texts[:EXAMPLES]),
    )


# ── figures ───────────────────────────────────────────────────────────────────────────────────────


class PolicyStatistics(msgspec.Struct, kw_only=True):
    """One row of the table. Shares are from 0 to 1; None is a share of nothing."""

    policy: str
    conversations: int
    calls: int
    tokens: int
    """Input tokens of all requests."""
    cached: float | None
    """The share of them that came from the cache."""
    bill: float | None
    """Against sending everything with an ideal cache, at read 0.1 and write 1.0; summaries included."""
    bill_mean: float | None
    """The same as the mean over conversations."""
    bill_model: float | None
    """The same as `bill` at the model's own prices."""
    dollars: float | None
    """What the input cost at those; None when they are unknown."""
    breaks: float | None
    """Prefix breaks per 100 calls."""
    peak: int
    """Tokens of the largest request."""
    over: int
    """Calls that were too large for the window."""
    ident: float | None
    ident_far: float | None
    line: float | None
    line_far: float | None
    """Recall of all needs together …"""
    ident_mean: float | None
    ident_far_mean: float | None
    line_mean: float | None
    line_far_mean: float | None
    """… and as the mean over the conversations that have any."""
    task: float | None
    """The share of requests with the first user message, word for word …"""
    latest: float | None
    """… and with the latest one."""
    needs: dict[str, int]
    """How many needs there are of each kind."""
    reductions: dict[str, int]
    own_median: float
    """Milliseconds of processor time that `fit` takes for a call …"""
    own_p99: float
    """… and 99 of 100 times at the most."""
    traces: list[Trace] = []

    def values(self) -> dict[str, Any]:
        """The figures without the traces, as JSON has them."""
        return {name: getattr(self, name) for name in self.__struct_fields__ if name != "traces"}


def policy_statistics(policy: str, traces: Sequence[Trace], model: Model) -> PolicyStatistics:
    calls = sum(len(trace.sizes) for trace in traces)
    tokens = sum(sum(trace.sizes) for trace in traces)
    ident = _together(trace.ident for trace in traces)
    line = _together(trace.line for trace in traces)
    seconds = sorted(second for trace in traces for second in trace.seconds) or [0.0]
    own = prices(model)
    paid = sum(_bill(trace, own) for trace in traces) * model.token_ratio
    return PolicyStatistics(
        policy=policy,
        conversations=len(traces),
        calls=calls,
        tokens=_tokens(tokens, traces),
        cached=_share(sum(sum(trace.cached) for trace in traces), tokens),
        bill=_relative(traces, PLAIN),
        bill_mean=_mean(traces, lambda trace: _relative([trace], PLAIN)),
        bill_model=_relative(traces, own),
        dollars=None if model.input_price is None else paid * model.input_price / 1_000_000,
        breaks=_share(100 * sum(len(trace.breaks) for trace in traces), calls),
        peak=max((_tokens(max(trace.sizes, default=0), [trace]) for trace in traces), default=0),
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


def _tokens(counted: int, traces: Sequence[Trace]) -> int:
    """What the model's provider would count."""
    return round(counted * traces[0].ratio) if traces else 0


def _together(recalls: Iterable[RecallCount]) -> RecallCount:
    total = RecallCount()
    for recall in recalls:
        total = total.plus(recall)
    return total


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _mean(traces: Iterable[Trace], value: Callable[[Trace], float | None]) -> float | None:
    known = [found for found in map(value, traces) if found is not None]
    return fmean(known) if known else None


def _relative(traces: Sequence[Trace], prices: RelativePrices) -> float | None:
    return _share(
        sum(_bill(trace, prices) for trace in traces), sum(_ideal(trace, prices) for trace in traces)
    )


def _bill(trace: Trace, prices: RelativePrices) -> float:
    sent = sum(map(prices.bill, trace.sizes, trace.cached))
    return sent + prices.bill(*trace.summaries)


def _ideal(trace: Trace, prices: RelativePrices) -> float:
    """Sending everything: of each request all of the one before is cached."""
    first = trace.ideal[:1]
    rest = sum(prices.bill(size, min(before, size)) for before, size in pairwise(trace.ideal))
    return sum(prices.bill(size, 0) for size in first) + rest
