"""Statistics of a policy over many conversations, its worst losses and its most surprising calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

import msgspec

from foveal.core.models.model import Model
from foveal.core.policies import Policy
from foveal.replay.cache_cost import DEFAULT_PRICES, model_prices
from foveal.replay.play import Loss, Trace
from foveal.replay.strata import (
    WORST_SHARE,
    GroupStatistics,
    breaks_per_100,
    by_pressure,
    by_source,
    by_window,
    mean,
    mean_surprise,
    relative_bill,
    share,
    total_recall,
    trace_bill,
)
from foveal.replay.surprise import CallSurprise

# ── Worst losses ──────────────────────────────────────────────────────────────────────────────────

MAX_LOSS_EXAMPLES = 5


class HiddenResult(msgspec.Struct, frozen=True, kw_only=True):
    """A tool result that a policy hid, and what calls needed from it afterwards.

    Examples:
        ```python
        from foveal import ModelSaid, UserSaid, replay
        from foveal.transcripts import Transcript

        facts = ((UserSaid(content="Find the part."), None), (ModelSaid(content="In drawer 7."), None))
        recording = Transcript(id="demo", source="mine", facts=facts)
        rows = replay.run([recording], ["economy"], window=32_000)
        assert replay.worst_losses(rows) == []
        ```
    """

    policy: str
    """The label of the policy."""
    conversation: str
    """The id of the conversation."""
    title: str
    """The title of the conversation."""
    handle: str
    """The handle of the result."""
    tool: str
    """The tool of the result, if the recording has its name."""
    level: str
    """The level at which it was shown."""
    rule: str
    """The rule that decided the level."""
    by: str
    """The event that hid it, with its kind and reason."""
    needs: int
    """Number of needs that were lost."""
    calls: tuple[int, ...]
    """The calls that had these needs."""
    examples: tuple[str, ...]
    """Some of the needed strings, the longest first."""


def worst_losses(rows: Sequence[PolicyStatistics], *, limit: int = 20) -> list[HiddenResult]:
    """Return for each policy the hidden results with the most lost needs.

    Args:
        rows: The rows that `run` returned.
        limit: Most results for each policy.

    Examples:
        ```python
        from foveal import ModelSaid, UserSaid, replay
        from foveal.transcripts import Transcript

        facts = ((UserSaid(content="Find the part."), None), (ModelSaid(content="In drawer 7."), None))
        recording = Transcript(id="demo", source="mine", facts=facts)
        rows = replay.run([recording], ["economy"], window=32_000)
        assert replay.worst_losses(rows) == []
        ```
    """
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


class SurprisingCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call whose next step was hard to predict from the request of a policy.

    Examples:
        ```python
        from foveal import ModelSaid, UserSaid, replay
        from foveal.transcripts import Transcript

        facts = ((UserSaid(content="Find the part."), None), (ModelSaid(content="In drawer 7."), None))
        recording = Transcript(id="demo", source="mine", facts=facts)
        rows = replay.run([recording], ["economy"], window=32_000)
        assert replay.most_surprising_calls(rows) == []
        ```
    """

    policy: str
    """The label of the policy."""
    conversation: str
    """The id of the conversation."""
    window: int
    """Tokens of the model's window."""
    surprise: CallSurprise
    """The call, its surprise, and what it quotes that was gone from its request."""


def most_surprising_calls(rows: Sequence[PolicyStatistics], *, limit: int = 20) -> list[SurprisingCall]:
    """Return for each policy the sampled calls with the highest surprise above 0.

    Args:
        rows: The rows that `run` returned.
        limit: Most calls for each policy.

    Examples:
        ```python
        from foveal import ModelSaid, UserSaid, replay
        from foveal.transcripts import Transcript

        facts = ((UserSaid(content="Find the part."), None), (ModelSaid(content="In drawer 7."), None))
        recording = Transcript(id="demo", source="mine", facts=facts)
        rows = replay.run([recording], ["economy"], window=32_000)
        assert replay.most_surprising_calls(rows) == []
        ```
    """
    return [call for row in rows for call in _surprising_calls(row)[:limit]]


def _surprising_calls(row: PolicyStatistics) -> list[SurprisingCall]:
    found = [
        SurprisingCall(policy=row.policy, conversation=trace.conversation, window=trace.window, surprise=each)
        for trace in row.traces
        for each in trace.surprises
        if each.bits > 0
    ]
    return sorted(found, key=lambda call: (-call.surprise.bits, call.conversation, call.surprise.call))


# ── Statistics ────────────────────────────────────────────────────────────────────────────────────


class PolicyStatistics(msgspec.Struct, kw_only=True):
    """One row of the table. Shares are from 0 to 1, None for a share of nothing.

    Examples:
        ```python
        from foveal import ModelSaid, UserSaid, replay
        from foveal.transcripts import Transcript

        facts = ((UserSaid(content="Find the part."), None), (ModelSaid(content="In drawer 7."), None))
        recording = Transcript(id="demo", source="mine", facts=facts)
        rows = replay.run([recording], ["economy"], window=32_000)
        assert rows[0].bill == 1.0
        ```
    """

    policy: str
    """The label of the policy."""
    conversations: int
    """Conversations that were replayed; in several windows each counts once for each."""
    calls: int
    """Calls of all conversations."""
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
    """Recall of names."""
    ident_far: float | None
    """Recall of names whose source is far back."""
    line: float | None
    """Recall of lines."""
    line_far: float | None
    """Recall of lines whose source is far back."""
    ident_mean: float | None
    """`ident` as the mean over the conversations that have such needs."""
    ident_far_mean: float | None
    """`ident_far` as the mean over the conversations that have such needs."""
    line_mean: float | None
    """`line` as the mean over the conversations that have such needs."""
    line_far_mean: float | None
    """`line_far` as the mean over the conversations that have such needs."""
    surprise: float | None
    """Mean surprise of the sampled calls, in bits per byte."""
    surprise_worst: float | None
    """The same of the tenth of these calls, at least one, with the highest surprise."""
    samples: int
    """Calls at which surprise was measured."""
    task: float | None
    """Share of requests that contain the first user message verbatim."""
    latest: float | None
    """Share of requests that contain the latest user message verbatim."""
    needs: dict[str, int]
    """Number of needs of each kind."""
    reductions: dict[str, int]
    """Number of events of each kind that reduces."""
    own_median: float
    """Median of the CPU time of `fit`, in milliseconds."""
    own_p99: float
    """99th percentile of the CPU time of `fit`, in milliseconds."""
    strata: list[GroupStatistics] = []
    """The conversations by pressure."""
    windows: list[GroupStatistics] = []
    """The conversations by window."""
    sources: list[GroupStatistics] = []
    """The conversations by source."""
    rules: Policy | None = None
    """The policy; None for sending everything and the upper bounds."""
    traces: list[Trace] = []
    """The single calls, one trace for each conversation and window."""

    def values(self) -> dict[str, Any]:
        """Return all values except the traces, for JSON."""
        values = {name: getattr(self, name) for name in self.__struct_fields__ if name != "traces"}
        return values | {"rules": None if self.rules is None else self.rules.values()}


def policy_statistics(
    policy: str, traces: Sequence[Trace], model: Model, rules: Policy | None = None
) -> PolicyStatistics:
    """Return the statistics of a policy from its traces."""
    calls = sum(len(trace.sizes) for trace in traces)
    tokens = sum(sum(trace.sizes) for trace in traces)
    ident = total_recall(trace.ident for trace in traces)
    line = total_recall(trace.line for trace in traces)
    seconds = sorted(second for trace in traces for second in trace.seconds) or [0.0]
    surprises = sorted((each.bits for trace in traces for each in trace.surprises), reverse=True)
    own = model_prices(model)
    paid = sum(trace_bill(trace, own) for trace in traces) * model.token_ratio
    return PolicyStatistics(
        policy=policy,
        conversations=len(traces),
        calls=calls,
        tokens=_provider_tokens(tokens, traces),
        cached=share(sum(sum(trace.cached) for trace in traces), tokens),
        bill=relative_bill(traces, DEFAULT_PRICES),
        bill_mean=mean(relative_bill([trace], DEFAULT_PRICES) for trace in traces),
        bill_model=relative_bill(traces, own),
        dollars=None if model.input_price is None else paid * model.input_price / 1_000_000,
        breaks=breaks_per_100(traces),
        peak=max((_provider_tokens(max(trace.sizes, default=0), [trace]) for trace in traces), default=0),
        over=sum(len(trace.over) for trace in traces),
        ident=ident.share,
        ident_far=ident.far,
        line=line.share,
        line_far=line.far,
        ident_mean=mean(trace.ident.share for trace in traces),
        ident_far_mean=mean(trace.ident.far for trace in traces),
        line_mean=mean(trace.line.share for trace in traces),
        line_far_mean=mean(trace.line.far for trace in traces),
        surprise=mean_surprise(traces),
        surprise_worst=mean(surprises[: max(1, int(WORST_SHARE * len(surprises)))]),
        samples=len(surprises),
        task=share(sum(trace.with_task for trace in traces), calls),
        latest=share(sum(trace.with_latest for trace in traces), calls),
        needs={
            "ident": ident.needed,
            "ident_far": ident.needed_far,
            "line": line.needed,
            "line_far": line.needed_far,
        },
        reductions=dict(sum((Counter(trace.reductions) for trace in traces), Counter())),
        own_median=1_000 * median(seconds),
        own_p99=1_000 * seconds[min(len(seconds) - 1, len(seconds) * 99 // 100)],
        strata=by_pressure(traces),
        windows=by_window(traces),
        sources=by_source(traces),
        rules=rules,
        traces=list(traces),
    )


def _provider_tokens(counted: int, traces: Sequence[Trace]) -> int:
    """Return the tokens that the model's provider would count."""
    return round(counted * traces[0].ratio) if traces else 0


def dollars_text(amount: float) -> str:
    """Return dollars with two digits, or four below a dollar, so that a difference of a few percent shows."""
    return f"{amount:,.2f}" if amount >= 1 or not amount else f"{amount:.4f}"
