"""What a policy is given, and what it returns.

A policy never reads a clock and never calls a provider: the caller passes these values.
"""

from __future__ import annotations

from math import inf
from typing import TypeAlias

import msgspec

from foveal.core.compaction.plan import Plan
from foveal.core.log.events import Clipped, Reduction, Reverted

Decision: TypeAlias = Reduction | tuple[Clipped, ...] | Reverted | Plan | None
"""The next reduction, clips that belong together, the end of an expansion, or the plan of a summary; None when
there is nothing to do."""


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the conversation at the time of one request.

    Examples:
        ```python
        from foveal.policies import Moment

        def is_cache_cold(moment: Moment) -> bool:
            return moment.idle is not None and moment.idle > moment.ttl
        ```
    """

    calls: int = 0
    """Requests sent so far."""
    idle: float | None = None
    """Seconds since the last request; None when unknown."""
    ttl: float = 300.0
    """Seconds that the provider keeps a prefix in its cache."""
    read: float = 0.1
    """Price of a cached token, relative to an uncached one."""
    write: float = 1.0
    """Price of writing a token into the cache, relative to an uncached one."""
    output: float = 5.0
    """Price of a token that the model writes, relative to an uncached one."""
    prefix_lost: bool = False
    """The cached prefix is lost anyway: the model, the tools or the system text changed since the last request."""
    said: int = 0
    """Units of everything that was said so far."""
    spent: float = inf
    """What all requests so far would have cost without reductions, in units at the price of uncached input."""
    cutting: bool = False
    """A reduction was made for this request already: go on to the target instead of stopping at the trigger."""
    compacted: bool = False
    """A summary was made, or attempted, for this request already; a second one is not."""
    record_failed: bool = False
    """A record without a model, made because something had to go, could not be written: drop instead."""
    paused: bool = False
    """Summaries do not help at present: the window refilled again and again."""
    refused: bool = False
    """The provider has refused the last request as too large."""
    keeps_expansions: bool = False
    """Whether expanded steps stay expanded even if the request does not fit."""
    agreed: bool = False
    """The user has agreed to a reduction, in mode `confirm`."""
    may_exceed: bool = False
    """The request is sent even if it does not fit, so everything that can be reduced is."""
    keep: frozenset[int] = frozenset()
    """Events whose steps stay as they are in this cut, if the request fits with them: a hook has asked for it."""
    holds: bool = False
    """Some steps are held back: the last rungs, which touch user messages, are not used before these are free."""
    model_switched: bool = False
    """Another model reads this request than the last one."""

    @property
    def cold(self) -> bool:
        """Whether the provider's cache holds nothing of this conversation any more."""
        return self.idle is not None and self.idle > self.ttl

    @property
    def free_break(self) -> bool:
        """Whether a rewrite of the prefix costs nothing extra now."""
        return self.calls > 0 and (self.cold or self.prefix_lost)
