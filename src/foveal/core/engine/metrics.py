"""Metrics of summaries and overflows, summed from the log in Prometheus text format.

    from foveal.core.engine.metrics import Metrics
    print(Metrics(ctx.log).text())

Only counters and histograms, and no library: an application with its own registry can compute the same numbers from
the events. Labels are few and come from closed sets, never from the text of a conversation.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final, get_args

from foveal.core.compaction.health import FailureCause, is_by_model, read_metrics
from foveal.core.log.events import UNREADABLE, Compacted, CompactionFailed, Event, Overflowed

DURATION_BUCKETS_S: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
SHARE_BUCKETS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0)
COMPACTION_REASONS: Final = (
    "tokens",
    "turns",
    "messages",
    "hand",
    "overflow",
    "model",
    "merge",
    "room",
    "price",
    UNREADABLE,
)


class Histogram:
    """Counts values by buckets; a value belongs to the first bucket whose bound is not below it."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts: list[int] = [0] * (len(bounds) + 1)
        self.sum: float = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def lines(self, name: str) -> Iterator[str]:
        """Yield the lines of this histogram in Prometheus text format."""
        total = 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            total += count
            yield f'{name}_bucket{{le="{bound}"}} {total}'
        yield f"{name}_sum {self.sum!r}"
        yield f"{name}_count {total}"


class Metrics:
    """Metrics of one or more logs; add every event once."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.compactions: Counter[tuple[str, str]] = Counter()
        """By trigger, and by author (`model` or `ledger`)."""
        self.failures: Counter[str] = Counter()
        """Summaries that were not recorded, by trigger."""
        self.summariser_failures: Counter[str] = Counter()
        """Summarisers that failed, so that another one or the ledger wrote the summary, by cause."""
        self.rejected: int = 0
        """Drafts that validation rejected, and calls that a provider failed."""
        self.overflows: Counter[str] = Counter()
        """By kind of limit."""
        self.tokens: Counter[str] = Counter()
        self.seconds: Histogram = Histogram(DURATION_BUCKETS_S)
        self.ratio: Histogram = Histogram(SHARE_BUCKETS)
        self.score: Histogram = Histogram(SHARE_BUCKETS)
        for event in events:
            self.add(event)

    def add(self, event: Event) -> None:
        """Count one event."""
        fact = event.fact
        if isinstance(fact, Overflowed):
            self.overflows[fact.limit_kind] += 1
        elif isinstance(fact, Compacted | CompactionFailed):
            self._add_outcome(fact)

    def _add_outcome(self, fact: Compacted | CompactionFailed) -> None:
        if isinstance(fact, CompactionFailed) and fact.cause:
            self.summariser_failures[fact.cause if fact.cause in get_args(FailureCause) else "other"] += 1
            return
        metrics = read_metrics(fact)
        reason = fact.reason if fact.reason in COMPACTION_REASONS else "other"
        self.rejected += len(metrics.checks)
        self.tokens.update(input=metrics.input, cached=metrics.cached, output=metrics.output)
        if isinstance(fact, CompactionFailed):
            self.failures[reason] += 1
            return
        self.compactions[reason, "model" if is_by_model(fact) else "ledger"] += 1
        self.seconds.add(metrics.seconds)
        self.ratio.add(metrics.ratio)
        if metrics.score is not None:
            self.score.add(metrics.score)

    def text(self) -> str:
        """Return all metrics in Prometheus text format."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        yield from _header_lines("foveal_compactions_total", "counter", "Summaries recorded.")
        for (reason, by), count in sorted(self.compactions.items()):
            yield f'foveal_compactions_total{{reason="{reason}",by="{by}"}} {count}'
        yield from _header_lines("foveal_compaction_failures_total", "counter", "Summaries not recorded.")
        for reason, count in sorted(self.failures.items()):
            yield f'foveal_compaction_failures_total{{reason="{reason}"}} {count}'
        yield from _header_lines("foveal_summariser_failures_total", "counter", "Summarisers that failed.")
        for cause, count in sorted(self.summariser_failures.items()):
            yield f'foveal_summariser_failures_total{{cause="{cause}"}} {count}'
        yield from _header_lines(
            "foveal_compaction_rejected_total", "counter", "Drafts rejected and calls failed."
        )
        yield f"foveal_compaction_rejected_total {self.rejected}"
        yield from _header_lines(
            "foveal_compaction_tokens_total", "counter", "Tokens used by models for summaries."
        )
        for kind in ("input", "cached", "output"):
            yield f'foveal_compaction_tokens_total{{kind="{kind}"}} {self.tokens[kind]}'
        yield from _header_lines(
            "foveal_overflows_total", "counter", "Requests that providers refused as too large, or cut."
        )
        for kind, count in sorted(self.overflows.items()):
            yield f'foveal_overflows_total{{kind="{kind}"}} {count}'
        for name, help_text, histogram in (
            ("foveal_compaction_seconds", "Time spent by models.", self.seconds),
            ("foveal_compaction_ratio", "Tokens after / before.", self.ratio),
            ("foveal_compaction_score", "Share of rare identifiers that survive.", self.score),
        ):
            yield from _header_lines(name, "histogram", help_text)
            yield from histogram.lines(name)


def _header_lines(name: str, metric_type: str, help_text: str) -> tuple[str, str]:
    return f"# HELP {name} {help_text}", f"# TYPE {name} {metric_type}"
