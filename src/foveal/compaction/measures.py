"""How a compaction went: kept with the event that records it, so that the log can be asked for it later."""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from foveal.events import Compacted, CompactionFailed


class Measures(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
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


def measures(fact: Compacted | CompactionFailed) -> Measures:
    """The measures of an outcome; empty ones when it has none that can be read."""
    if fact.metrics is UNSET:
        return Measures()
    try:
        return msgspec.json.decode(fact.metrics, type=Measures)
    except msgspec.DecodeError:
        return Measures()
