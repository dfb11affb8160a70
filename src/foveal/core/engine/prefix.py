"""Where and why the prompt prefix moved between two requests.

A provider reads a request from its cache up to the first message that differs from the request before. `moved_step`
finds that place by comparing what was sent; `may_move_prefix` names the facts that can have caused it.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from foveal.core.log.events import (
    DIALOGUE_TYPES,
    AnyFact,
    Clipped,
    Compacted,
    Dropped,
    Equipped,
    ForeignSummary,
    Instructed,
    Masked,
    Superseded,
    ThinkingLeftOut,
)
from foveal.core.view.request import common_beginning
from foveal.core.view.steps import Step
from foveal.core.view.view import View
from foveal.core.wire.cache_marks import strip_cache_marks

_MOVERS: Final = frozenset(
    {Masked, Dropped, Compacted, Equipped, Superseded, ForeignSummary, ThinkingLeftOut}
)


class PrefixBreak(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request whose beginning differed from the request before it.

    The provider had to read it again from that place on.

    Examples:
        ```python
        import foveal

        ctx = foveal.Context("gpt-4.1")
        ctx.fit([{"role": "user", "content": "Why is CI red?"}])
        assert ctx.report().breaks == ()
        ```
    """

    call: int
    """Which request, counted from 1."""
    at: str
    """Handle of the first event that was shown differently; "" when the tools or the system text changed."""
    tokens: int
    """Tokens from that place on."""
    cause: str = ""
    """Handle of the event that moved the prefix."""
    why: str = ""
    """The kind of that event."""


def moved_step(view: View, before: list[Any], now: list[Any]) -> Step | None:
    """Return the first step that is not as in the request before, or None if only new steps were added.

    `before` and `now` hold what each step was sent as: provider messages, or facts. `now` belongs to `view`."""
    at, end = common_beginning(before, now), min(len(before), len(now))
    while at < end and not _is_moved(before[at], now[at]):
        at += 1
    if at == len(before) or not now:
        return None
    return view.steps[min(at, len(now) - 1)]


def _is_moved(before: Any, now: Any) -> bool:
    """Return whether a step is sent differently; cache marks do not change what the provider caches."""
    if len(before) != len(now):
        return bool(strip_cache_marks(before) != strip_cache_marks(now))
    changed = ((old, new) for old, new in zip(before, now, strict=True) if old != new)
    return any(strip_cache_marks(old) != strip_cache_marks(new) for old, new in changed)


def may_move_prefix(fact: AnyFact) -> bool:
    """Return whether a fact can change what an earlier request showed."""
    if type(fact) in DIALOGUE_TYPES:
        return False
    if isinstance(fact, Clipped):
        return fact.rule.startswith("squeeze")  # other clips are recorded together with their result
    if isinstance(fact, Instructed):
        return fact.is_beside_history
    return type(fact) in _MOVERS
