"""The question and the notices of mode `confirm`, as text for the user.

The texts name methods in backquotes, such as `compact()`; an application replaces them by its commands.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from foveal.core.compaction.plan import NoPlan
from foveal.core.engine.engine import Engine
from foveal.core.models.budget import window_percent
from foveal.core.policies.ladder.compact import has_enough_turns, turns_since_summary

PART_NAMES: Final = {
    "system": "system texts",
    "instructions": "instructions",
    "tools": "tools",
    "pinned": "pinned messages",
    "summaries": "summaries",
    "user": "your messages",
    "assistant": "answers",
    "results": "tool results",
    "placeholders": "placeholders",
    "overhead": "texts that the provider adds",
}
"""What the categories of the report are called in a sentence; without those that no request contains."""


def compaction_question(engine: Engine, state: str) -> str:
    """Return the question whether to compact; "" when there is nothing to ask."""
    if not engine.policy.asks:
        return ""
    if state not in ("act", "over"):
        turns = turns_since_summary(engine.view) if has_enough_turns(engine.view, engine.policy) else 0
        return f"{turns:,} turns are not summarised yet. Compact conversation? [y/N]" if turns else ""
    used, window = engine.calibration.tokens(engine.total_units), engine.model.window
    usage = f"{window_percent(used, window)} of the window ({used:,}/{window:,} tokens)"
    return f"Context usage at {usage}. Compact conversation? [y/N]"


def limit_notice(engine: Engine, totals: Mapping[str, int], needed: int, *, left: int, seen: int) -> str:
    """Return what to tell the user if the next turn of about `needed` tokens, as `seen` turns took, will probably
    not fit; else ""."""
    if needed <= left:
        return ""
    if isinstance(engine.plan_summary(reason="hand"), NoPlan):
        advice = f"No turn is left to summarise, only long texts can be clipped: {largest_part(totals)}."
    else:
        advice = "`compact()` with your words decides what is kept."
    turn = "The next turn" if seen > 1 else "Another turn like this one"
    return (
        f"{turn} needs about {needed:,} tokens and {max(0, left):,} are left: what does not fit is reduced then, "
        f"also without a yes. {advice}"
    )


def over_limit_notice(needed: int, available: int) -> str:
    """Return what to tell the user right before a reduction without consent. The reductions are listed after it,
    each with its handle."""
    return (
        f"The next request needs {needed:,} tokens and at most {available:,} fit: older turns are reduced now. "
        "You are told what was reduced, and how to undo it."
    )


def largest_part(totals: Mapping[str, int]) -> str:
    """Return what takes most of the request, such as "the largest part are answers (3,450 tokens)"."""
    category = max(PART_NAMES, key=lambda name: totals.get(name, 0))
    return f"the largest part are {PART_NAMES[category]} ({totals.get(category, 0):,} tokens)"
