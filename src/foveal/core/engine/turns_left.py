"""How many turns fit before the policy reduces something, or asks the user.

1. A policy reduces above `act`. `economy` also cuts earlier, where the cut is cheap: this depends on what was said
   and spent so far, so both are projected turn by turn. `every_turns` makes a summary after a number of turns.
2. The projection assumes turns of one size, with one number of calls. A pause after which the cache is lost, a
   change of tools or model, and limits on images cannot be foreseen.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from msgspec.structs import replace

from foveal.core.models.budget import Budget
from foveal.core.policies import Moment, Policy
from foveal.core.policies.economy import decide_economy, is_cheap_cut
from foveal.core.policies.ladder.compact import turns_since_summary
from foveal.core.view.view import View

MAX_PROJECTED_TURNS: Final = 1_000
"""Turns for which the price of a cut is projected: nothing is known about later ones."""
RECENT_TURNS: Final = 5
"""Turns from which the size of a typical turn is taken."""


class TurnSize(NamedTuple):
    """The size of a turn."""

    units: int
    calls: int
    """Answers of the model in it."""


def typical_turn(view: View) -> tuple[TurnSize | None, int]:
    """Return the median of the latest turns, None if there is none, and how many turns it is taken from. One huge
    message says little about the next turn, so it is not the mean."""
    turns = _recent_turns(view)
    if not turns:
        return None, 0
    middle = (len(turns) - 1) // 2
    units = sorted(turn.units for turn in turns)[middle]
    return TurnSize(units, sorted(turn.calls for turn in turns)[middle]), len(turns)


def _recent_turns(view: View) -> list[TurnSize]:
    """Return the sizes of the latest turns. A turn without an answer, because it has failed or still runs, says
    nothing about the size of turns."""
    turns: list[TurnSize] = []
    size, calls = 0, 0
    for step in reversed(view.steps):
        if step.kind in ("user", "model"):
            size += view.units_of(step)
            calls += step.kind == "model"
        if step.kind == "user":
            if calls:
                turns.append(TurnSize(size, calls))
            size, calls = 0, 0
            if len(turns) == RECENT_TURNS:
                break
    if calls:  # the user message of this turn is no longer shown
        turns.append(TurnSize(size, calls))
    return turns


def turns_until_reduction(view: View, budget: Budget, moment: Moment, policy: Policy, turn: TurnSize) -> int:
    """Return how many turns of this size fit before the one in which the policy reduces something or asks."""
    left = max(0, budget.act - view.units) // max(1, turn.units)
    if policy.mode != "auto" or not policy.compact:
        return left
    if policy.ladder == "economy":
        return min(left, _turns_until_cheap_cut(view, budget, moment, policy, turn, most=left))
    if policy.ladder == "summary" and policy.every_turns:
        return min(left, max(0, policy.every_turns - turns_since_summary(view)))
    return left


def _turns_until_cheap_cut(
    view: View, budget: Budget, moment: Moment, policy: Policy, turn: TurnSize, *, most: int
) -> int:
    """Return how many turns fit before the one in which `economy` cuts although the request would fit; `most` if
    that is not before the limit."""
    if is_cheap_cut(view.units, budget, moment, policy):
        # What is cheap and was not cut has nothing to gain: then only the limit is known.
        return most if decide_economy(view, budget, moment, policy) is None else 0
    moment = replace(moment, prefix_lost=False, idle=None)
    for count in range(1, min(most, MAX_PROJECTED_TURNS) + 1):
        moment = _after_turn(moment, turn)
        if is_cheap_cut(view.units + count * turn.units, budget, moment, policy):
            return count - 1
    return most


def _after_turn(moment: Moment, turn: TurnSize) -> Moment:
    """Return the moment after one more turn, as `PastCalls` would: each call reads all that was said before it."""
    read = turn.calls * (moment.said + turn.units / 2)
    return replace(
        moment,
        calls=moment.calls + turn.calls,
        said=moment.said + turn.units,
        spent=moment.spent + moment.write * turn.units + moment.read * read,
    )
