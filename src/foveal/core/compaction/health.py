"""What the log tells about how summaries and refusals went so far: when to stop asking, and what was learned.

- Three summaries in a row that a model could not write: it is not asked again by itself. The ledger, which needs no
  model, still works; a summary by hand tries the model once more, and one that succeeds closes the matter.
- Three summaries in one turn, each soon after the other: the agent reads again what was summarised, or what must
  stay is too large. Summaries pause until the user speaks, and a note says why.
- A provider that refuses a request teaches its limit. It is learned in our own count of tokens, which may differ.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from foveal.core.log.events import (
    AnyFact,
    Compacted,
    CompactionFailed,
    ModelSaid,
    Noted,
    Opened,
    Overflowed,
    Used,
    UserSaid,
)

# ── measures ──────────────────────────────────────────────────────────────────────────────────────
# How a compaction went: kept with the event that records it, so that the log can be asked for it later.


class CompactionMeasures(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    turns: int = 0
    """Requests of the user in the range."""
    events: int = 0
    before: int = 0
    """Tokens that the range took in the request, as it was shown."""
    after: int = 0
    """Tokens of the summary."""
    seconds: float = 0.0
    input: int = 0
    """Tokens that the model read for it, cached ones included …"""
    cached: int = 0
    output: int = 0
    cost: float | None = None
    """Dollars for that; None when a price is unknown."""
    asked: int = 0
    """How often a model was asked."""
    form: str = ""
    """`shared` when the conversation's own cached prefix was used, `cold` when not; "" when no model was asked."""
    chunks: int = 0
    checks: tuple[str, ...] = ()
    """What the checks and the providers had to say against earlier drafts, in order."""
    score: float | None = None
    """The share of the source's rare identifiers that stand in the summary."""

    @property
    def ratio(self) -> float:
        """What is left of the range."""
        return self.after / self.before if self.before else 1.0


def measures(fact: Compacted | CompactionFailed) -> CompactionMeasures:
    """The measures of an outcome; empty ones when it has none that can be read."""
    if fact.metrics is UNSET:
        return CompactionMeasures()
    try:
        return msgspec.json.decode(fact.metrics, type=CompactionMeasures)
    except msgspec.DecodeError:
        return CompactionMeasures()


# ── record ────────────────────────────────────────────────────────────────────────────────────────

FAILURES: Final = 3
REFILLS: Final = 3
SOON: Final = 3
"""A summary fewer than so many utterances after the last one: the window has refilled."""
REFUSALS: Final = 4
"""So often is a request made smaller and sent again."""
GUESS: Final = 0.9
"""When a provider does not say its limit, it is taken to be this share of what it refused."""
LEAST: Final = 8
"""Tokens below which no request can have been too large."""
TOPIC: Final = "compaction"


class CompactionHealth(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    failures: int = 0
    """Summaries in a row that a model was asked for in vain."""
    refills: int = 0
    """Summaries in this turn that followed soon after another."""
    said: int = SOON
    """Utterances of the model since the last summary."""
    explained: bool = False
    refused: int = 0
    """Requests in a row that were too large."""
    limits: dict[str, int] = {}
    """The window that a provider stated, by model."""
    inputs: dict[str, int] = {}
    """What a provider that stated none turned out to take, by model."""
    stated: tuple[str, int] = ("", 0)
    """A model and a window that only the answer was too large for: learned when the next request has succeeded."""
    reserves: dict[str, int] = {}
    """Tokens that the caller turned out to ask for as an answer, by model."""
    trimmed: int = 0
    """What the answer to the next request may take at the most; 0 when nobody has said."""
    media_bytes: int = 0
    """Bytes of images that turned out to be too many; 0 when nobody has said."""

    @property
    def broken(self) -> bool:
        """No model is asked any more by itself."""
        return self.failures >= FAILURES

    @property
    def paused(self) -> bool:
        return self.refills >= REFILLS

    def after(self, fact: AnyFact) -> CompactionHealth:
        """The record with one more fact."""
        match fact:
            case ModelSaid():
                return replace(self, said=self.said + 1)
            case UserSaid():
                return replace(self, refills=0, explained=False) if self.refills else self
            case Compacted():
                return self._compacted(fact)
            case CompactionFailed():
                in_vain = measures(fact).asked > 0 and fact.by in (
                    "",
                    "ledger",
                )  # not one that was merely outrun
                return replace(self, failures=self.failures + in_vain)
            case Noted():
                return replace(self, explained=True) if fact.topic == TOPIC else self
            case Opened():
                return replace(self, failures=0)
            case Used():
                return replace(self._taught(), refused=0, trimmed=0) if self.refused else self
            case Overflowed():
                return self._refused(fact)
            case _:
                return self

    def _compacted(self, fact: Compacted) -> CompactionHealth:
        failed = measures(fact).asked > 0 and fact.by == "ledger"
        if fact.by != "ledger":
            failures = 0
        else:
            failures = self.failures + failed
        own = fact.reason not in ("hand", "turns", "recorded")
        refills = self.refills + 1 if own and self.said < SOON else self.refills
        return replace(self, failures=failures, refills=refills, said=0)

    def _taught(self) -> CompactionHealth:
        model, limit = self.stated
        return replace(self, limits=self.limits | {model: limit}, stated=("", 0)) if limit else self

    def _refused(self, fact: Overflowed) -> CompactionHealth:
        record = replace(self, refused=self.refused + 1)
        match fact.limit_kind:
            case "output" if not self.trimmed and 0 < (fact.needed or fact.sent) < fact.limit:
                left = fact.limit - (fact.needed or fact.sent)
                return replace(record, trimmed=left, stated=(fact.model, fact.limit))
            case "output" if fact.output and fact.limit:
                record = replace(record, stated=(fact.model, fact.limit))._taught()
                return replace(record, reserves=self.reserves | {fact.model: fact.output})
            case "bytes" if fact.limit:
                return replace(record, media_bytes=fact.limit)
            case _:
                return record._learned(fact)

    def _learned(self, fact: Overflowed) -> CompactionHealth:
        """The limit that a refusal teaches, in tokens as we count them."""
        limit = fact.limit
        if limit and fact.needed > fact.sent > 0:  # it counts more than we do
            limit = limit * fact.sent // fact.needed
        if limit and limit < fact.sent:
            return replace(self, limits=self.limits | {fact.model: max(1, limit)})
        if fact.sent < LEAST:  # whatever was too large, it was nothing that we had sent
            return self
        return replace(self, inputs=self.inputs | {fact.model: int(fact.sent * GUESS)})
