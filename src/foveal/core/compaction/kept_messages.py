"""User messages that stay verbatim (the law *Kept*).

1. While all user messages together take no more than their share of the room, each of them stays as it was said,
   through any number of compactions, merges and drops.
2. Beyond it, long ones are clipped to their two ends first. If that is not enough, the first and the newest stay;
   the summary or the notice that covers the others names their handles. The first, the task, takes at most half of
   the share from the others, and is clipped only if it takes more than a third of the room (`MAX_TASK_SHARE`).
3. The latest user message is never touched and does not count: no reduction may change it anyway.
4. Reports of tools, reminders and notices that a harness puts into the user role are not the user's words. Unless
   one of them is the task, they go with the steps around them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Final, Protocol

from foveal.core.compaction.ledger.pasted_text import is_harness_text
from foveal.core.log.events import text_of
from foveal.core.models.budget import Budget
from foveal.core.tokens.message_tokens import PER_MESSAGE
from foveal.core.view.steps import Step
from foveal.core.view.view import View

MIN_CLIPPED_USER_UNITS: Final = 120
"""No user message is clipped below this size to make room for another one."""
MAX_TASK_SHARE: Final = 1 / 3
"""Share of the room up to which the first user message is shown whole."""


class UserShare(Protocol):
    """What a policy says about user messages."""

    @property
    def retain_user_share(self) -> float: ...
    @property
    def retain_user_tokens(self) -> int: ...


def is_harness_step(step: Step) -> bool:
    """Return whether a message in the user role was written by the harness of the agent, not by the user."""
    return is_harness_text(text_of(step.utterance.fact.content))


def user_room(budget: Budget, share: UserShare) -> int:
    """Return the units that user messages may take verbatim."""
    return min(share.retain_user_tokens, int(budget.hard * share.retain_user_share))


def earlier_user_steps(view: View) -> list[Step]:
    """Return the user messages in view that a reduction may touch, oldest first: all but the latest."""
    latest = view.latest_user
    return [step for step in view.steps if step.kind == "user" and not step.is_pinned and step is not latest]


def own_user_steps(view: View) -> list[Step]:
    """Return those of them that the user wrote, and the first: what a harness says takes no room of the user's."""
    users = earlier_user_steps(view)
    return [step for step in users if step is users[0] or not is_harness_step(step)]


def kept_user_steps(view: View, budget: Budget, share: UserShare, *, clips_long: bool = True) -> list[Step]:
    """Return the user messages beside the latest that no summary and no drop hides. Long ones count as they will be
    clipped, unless nothing clips them (`clips_long`)."""
    users = own_user_steps(view)
    room = user_room(budget, share)
    if not room or not users:
        return []
    room = room_beside_first(view, users, room)
    longest = max_user_units(view, users[1:], room) if clips_long else room
    kept = users[:1]
    for step in reversed(users[1:]):
        room -= min(longest, text_units(view, step))
        if room < 0:
            break
        kept.append(step)
    return kept


def room_beside_first(view: View, users: Sequence[Step], room: int) -> int:
    """Return what the first message, the task, leaves of the room for the others: at least half of it."""
    return room - min(room // 2, text_units(view, users[0]))


def max_user_units(view: View, users: Sequence[Step], room: int) -> int:
    """Return the size to which longer user messages are clipped, so that all of them fit into the room."""
    sizes = sorted((text_units(view, step) for step in users), reverse=True)
    return max(MIN_CLIPPED_USER_UNITS, common_size(sizes, sum(sizes) - room))


def text_units(view: View, step: Step) -> int:
    """Return the units of a message without those of its frame, which a user does not write."""
    return view.units_of(step) - PER_MESSAGE


def common_size(sizes: Sequence[int], excess: float) -> int:
    """Return the size to which all larger ones must be cut to save `excess` together; `sizes` descend."""
    if excess <= 0:
        return max(sizes, default=0)
    saved = 0.0
    for count, (size, smaller) in enumerate(zip_longest(sizes, sizes[1:], fillvalue=0), 1):
        step = (size - smaller) * count
        if saved + step >= excess:
            return max(0, int(size - (excess - saved) / count))
        saved += step
    return 0
