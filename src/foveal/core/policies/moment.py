"""What a policy may know of now. It never asks a clock or a provider: whoever calls it says."""

from __future__ import annotations

from math import inf

import msgspec


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    calls: int = 0
    """Requests sent so far."""
    idle: float | None = None
    """Seconds since the last request; None when nobody knows."""
    ttl: float = 300.0
    """Seconds that the provider keeps a prefix in its cache."""
    read: float = 0.1
    """Price of a cached token, relative to an uncached one."""
    write: float = 1.0
    """Price of writing a token into the cache, relative to an uncached one."""
    broken: bool = False
    """The prefix is lost anyway: the model, the tools or the system text changed since the last request."""
    saved: float = inf
    """What was saved so far against sending everything, in tokens at the full price; inf when nobody counts."""
    cutting: bool = False
    """A reduction was made for this very request: go on to the target instead of stopping at the trigger."""

    compacted: bool = False
    """A summary was made, or tried, for this very request: one is enough."""
    paused: bool = False
    """Summaries do not help just now: the window refilled again and again."""
    refused: bool = False
    """A provider has refused the last request as too large."""
    switched: bool = False
    """Another model reads this request than the one before."""

    @property
    def cold(self) -> bool:
        """The cache holds nothing of this conversation any more."""
        return self.idle is not None and self.idle > self.ttl

    @property
    def free_break(self) -> bool:
        """A rewrite costs nothing extra now."""
        return self.calls > 0 and (self.cold or self.broken)

    def calls_to_repay(self, removed: int, behind: int) -> float:
        """After how many more calls removing `removed` tokens in front of `behind` others has paid off."""
        if removed <= 0:
            return float("inf")
        return max(0.0, self.write - self.read) / max(self.read, 1e-6) * behind / removed
