"""What summaries and refusals did, added up from the log, in the text format that Prometheus reads.

    from foveal.core.engine.metrics import Metrics
    print(Metrics(ctx.log).text())

Counters and histograms only, and no library: whoever has a registry of their own can read the same numbers from the
events. Labels are few and come from closed sets, never from a conversation's text.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from foveal.core.compaction.health import measures
from foveal.core.log.events import Compacted, CompactionFailed, Event, Overflowed

SECONDS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
SHARES: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0)
REASONS: Final = ("tokens", "turns", "messages", "hand", "overflow", "model", "merge")


class Histogram:
    """How often a value was how large."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def lines(self, name: str) -> Iterator[str]:
        total = 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            total += count
            yield f'{name}_bucket{{le="{bound}"}} {total}'
        yield f"{name}_sum {self.sum!r}"
        yield f"{name}_count {total}"


class Metrics:
    """Numbers of one log or of many: give it every event once."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.compactions: Counter[tuple[str, str]] = Counter()
        """By what set it off, and by whether a model wrote it (`model`, `ledger`)."""
        self.failures: Counter[str] = Counter()
        """Summaries that came to nothing, by what set them off."""
        self.rejected = 0
        """Drafts and calls that the checks or a provider had something against."""
        self.overflows: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()
        self.seconds = Histogram(SECONDS)
        self.ratio = Histogram(SHARES)
        self.score = Histogram(SHARES)
        for event in events:
            self.add(event)

    def add(self, event: Event) -> None:
        fact = event.fact
        if isinstance(fact, Overflowed):
            self.overflows[fact.limit_kind] += 1
        elif isinstance(fact, Compacted | CompactionFailed):
            self._outcome(fact)

    def _outcome(self, fact: Compacted | CompactionFailed) -> None:
        measured = measures(fact)
        reason = fact.reason if fact.reason in REASONS else "other"
        self.rejected += len(measured.checks)
        self.tokens.update(input=measured.input, cached=measured.cached, output=measured.output)
        if isinstance(fact, CompactionFailed):
            self.failures[reason] += 1
            return
        self.compactions[reason, "ledger" if fact.by == "ledger" else "model"] += 1
        self.seconds.add(measured.seconds)
        self.ratio.add(measured.ratio)
        if measured.score is not None:
            self.score.add(measured.score)

    def text(self) -> str:
        """All of it, as a scraper expects it."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        yield from _head("foveal_compactions_total", "counter", "Summaries recorded.")
        for (reason, by), count in sorted(self.compactions.items()):
            yield f'foveal_compactions_total{{reason="{reason}",by="{by}"}} {count}'
        yield from _head("foveal_compaction_failures_total", "counter", "Summaries that came to nothing.")
        for reason, count in sorted(self.failures.items()):
            yield f'foveal_compaction_failures_total{{reason="{reason}"}} {count}'
        yield from _head("foveal_compaction_rejected_total", "counter", "Drafts rejected and calls failed.")
        yield f"foveal_compaction_rejected_total {self.rejected}"
        yield from _head(
            "foveal_compaction_tokens_total", "counter", "Tokens that models used for summaries."
        )
        for kind in ("input", "cached", "output"):
            yield f'foveal_compaction_tokens_total{{kind="{kind}"}} {self.tokens[kind]}'
        yield from _head("foveal_overflows_total", "counter", "Requests refused as too large, or cut.")
        for kind, count in sorted(self.overflows.items()):
            yield f'foveal_overflows_total{{kind="{kind}"}} {count}'
        for name, about, histogram in (
            ("foveal_compaction_seconds", "Time that models took.", self.seconds),
            ("foveal_compaction_ratio", "Tokens after / before.", self.ratio),
            ("foveal_compaction_score", "Rare identifiers that survive.", self.score),
        ):
            yield from _head(name, "histogram", about)
            yield from histogram.lines(name)


def _head(name: str, metric_type: str, about: str) -> tuple[str, str]:
    return f"# HELP {name} {about}", f"# TYPE {name} {metric_type}"
