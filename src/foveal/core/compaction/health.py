"""Outcome and metrics of a compaction, and when to stop asking a model.

`CompactionMetrics` is recorded with the outcome of a compaction, so the log can be queried for it later.
`CompactionHealth` is derived from the log, event by event:

1. After three summaries in a row that the model failed to write, automatic compaction no longer asks the model.
   The ledger, which needs no model, still works. A manual compaction asks the model again, and a success resets
   the count.
2. After three summaries in one turn, each soon after the one before, either the agent reads again what was
   summarised or what must stay is too large. Summaries pause until the next user message, and a note says why.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from foveal.core.log.events import (
    BRANCH,
    UNREADABLE,
    AnyFact,
    Compacted,
    CompactionFailed,
    ModelSaid,
    Noted,
    Opened,
    Steered,
    ToolReturned,
    UserSaid,
)

CompactionOutcome: TypeAlias = Compacted | CompactionFailed
"""What a compaction records: the summary, or that there is none."""

FailureCause: TypeAlias = Literal["error", "refused", "rejected"]

# ── Metrics ──────────────────────────────────────────────────────────────────────────────────────────────


class WriterFailure(msgspec.Struct, frozen=True, kw_only=True):
    """How a summariser failed whose text is not part of the summary.

    Examples:
        ```python
        from foveal.core.compaction.health import WriterFailure

        failure = WriterFailure(by="gpt-4.1-mini", cause="error", problem="no connection")
        ```
    """

    by: str
    """The name of the summariser."""
    cause: FailureCause
    """As in `CompactionFailed`."""
    problem: str
    """What failed, in words."""


class CompactionMetrics(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one compaction went. The field names are part of the log.

    Examples:
        ```python
        from foveal.core.compaction.health import CompactionMetrics

        assert CompactionMetrics(before=2_000, after=500).ratio == 0.25
        ```
    """

    turns: int = 0
    """User requests in the range."""
    events: int = 0
    """Events in the range."""
    before: int = 0
    """Tokens that the range took in the request, as shown."""
    after: int = 0
    """Tokens of the summary."""
    seconds: float = 0.0
    """Seconds that it took."""
    input: int = 0
    """Tokens that the model read, cached ones included."""
    cached: int = 0
    """Tokens of `input` that came from the cache."""
    output: int = 0
    """Tokens that the model wrote."""
    cost: float | None = None
    """Dollars for these tokens; None when a price is unknown."""
    asked: int = 0
    """Requests to models."""
    form: str = ""
    """`shared` when the conversation's own cached prefix was used, `cold` when not; "" when no model was asked."""
    chunks: int = 0
    """Chunks that were summarised one by one."""
    checks: tuple[str, ...] = ()
    """Faults of rejected drafts and errors of providers, in order."""
    score: float | None = None
    """Share of the source's rare names that occur in the summary; None when no model wrote it."""

    failures: tuple[WriterFailure, ...] = ()
    """The summarisers that failed, and have written no part of the summary."""

    @property
    def ratio(self) -> float:
        """Size of the summary as a share of the range."""
        return self.after / self.before if self.before else 1.0


def read_metrics(fact: CompactionOutcome) -> CompactionMetrics:
    """Return the metrics of an outcome; empty ones when it has none that can be decoded."""
    if fact.metrics is UNSET:
        return CompactionMetrics()
    try:
        return msgspec.json.decode(fact.metrics, type=CompactionMetrics)
    except msgspec.DecodeError:
        return CompactionMetrics()


def summariser_failures(fact: Compacted) -> list[CompactionFailed]:
    """Return what to record of summarisers that failed before another one, or the ledger, wrote a summary."""
    if fact.metrics is UNSET or b'"failures"' not in bytes(fact.metrics):  # nearly always
        return []
    return [
        CompactionFailed(
            first=fact.first,
            last=fact.last,
            problem=failure.problem,
            by=failure.by,
            cause=failure.cause,
            reason=fact.reason,
        )
        for failure in read_metrics(fact).failures
    ]


def is_by_model(fact: Compacted) -> bool:
    """Return whether a model was called for a summary. A ledger that uses a model's earlier text again names that
    model in `by`, although none was called for it."""
    metrics = read_metrics(fact)
    has_metrics = metrics.events > 0
    return fact.by != "ledger" and (metrics.asked > 0 or not has_metrics)


# ── Health ───────────────────────────────────────────────────────────────────────────────────────────────

MAX_FAILURES: Final = 3
"""After this many failures in a row, automatic compaction no longer asks the model."""
MAX_REFILLS: Final = 3
"""After this many refills in one turn, summaries pause."""
MIN_UTTERANCES_BETWEEN: Final = 3
"""A summary fewer than this many model messages after the last one counts as a refill of the window."""
COMPACTION_TOPIC: Final = "compaction"
"""Topic of the note that says why summaries pause."""


class CompactionHealth(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Failures and refills since they were last reset."""

    failures: int = 0
    """Summaries in a row that a model failed to write."""
    refills: int = 0
    """Summaries in this turn that followed soon after another one."""
    said: int = MIN_UTTERANCES_BETWEEN
    """Model messages since the last summary."""
    explained: bool = False
    """Whether a note has said why summaries pause."""
    focus: str = ""
    """What the user wants the next summary or record to keep above all."""

    @property
    def is_broken(self) -> bool:
        """Whether automatic compaction no longer asks a model."""
        return self.failures >= MAX_FAILURES

    @property
    def is_paused(self) -> bool:
        """Whether summaries pause until the next user message."""
        return self.refills >= MAX_REFILLS

    def after(self, fact: AnyFact) -> CompactionHealth:
        """Return the state after one more fact."""
        match fact:
            case ModelSaid():
                return replace(self, said=self.said + 1)
            case ToolReturned():  # most other events
                return self
            case UserSaid():
                return replace(self, refills=0, explained=False) if self.refills else self
            case Compacted():
                health = self if fact.takes_item_back or not self.focus else replace(self, focus="")
                return health._compacted(fact)
            case CompactionFailed():
                # A summary that was written and then outdated has a model in `by`: the model did not fail.
                has_failed = read_metrics(fact).asked > 0 and fact.by in ("", "ledger")
                return replace(self, failures=self.failures + has_failed)
            case Noted():
                return replace(self, explained=True) if fact.topic == COMPACTION_TOPIC else self
            case Opened():
                return replace(self, failures=0)
            case Steered(by="user"):
                return replace(self, focus=fact.focus)
            case _:
                return self

    def _compacted(self, fact: Compacted) -> CompactionHealth:
        if fact.reason in (
            "room",
            "price",
            "asked",
            BRANCH,
            UNREADABLE,
        ):  # the window was not full, or no model could have helped
            return self
        failures = 0 if is_by_model(fact) else self.failures + (read_metrics(fact).asked > 0)
        is_automatic = fact.reason not in ("hand", "turns", "recorded")
        refills = self.refills + 1 if is_automatic and self.said < MIN_UTTERANCES_BETWEEN else self.refills
        return replace(self, failures=failures, refills=refills, said=0)


# ── What one cut did ─────────────────────────────────────────────────────────────────────────────────────
# A cut is a compaction with masks: results are hidden, long messages of the agent are shortened, and the oldest
# steps go. The event says all of it but the number of steps that went: a range also has what earlier cuts had
# taken out, and only the log tells these apart.


class CutCounts(NamedTuple):
    """How many results and messages one cut changed."""

    results: int
    """Results that it hid behind placeholders."""
    shortened: int
    """Messages of the agent with shorter arguments or texts."""

    @classmethod
    def of(cls, fact: Compacted) -> CutCounts:
        """Count the messages that masks change. Those of the agent stay, so they are in `keep`."""
        targets, keep = {mask.target for mask in fact.masks}, set(fact.keep)
        return cls(len(targets - keep), len(targets & keep))


def cut_text(fact: Compacted, *, steps: int = 0) -> str:
    """Return what a cut did, such as `hid 14 results, shortened 2 messages and removed 6 steps (34,400
    tokens), with a record of 2,300 tokens`. `steps` is the number of steps that went, if the caller has the log."""
    counts, sizes = CutCounts.of(fact), read_metrics(fact)
    done = [
        f"{verb} {number:,} {noun}{'' if number == 1 else 's'}"
        for verb, number, noun in (
            ("hid", counts.results, "result"),
            ("shortened", counts.shortened, "message"),
            ("removed", steps, "step"),
        )
        if number
    ]
    text = " and ".join(filter(None, (", ".join(done[:-1]), *done[-1:])))
    return (
        f"{text} ({sizes.before:,} tokens), with a record of {sizes.after:,} tokens" if sizes.before else text
    )
