"""User messages that stay verbatim (the law *Kept*).

1. While all user messages together take no more than their share of the room, each of them stays as it was said,
   through any number of compactions, merges and drops.
2. Beyond it, long ones are clipped to their two ends first. If that is not enough, messages that state what still
   holds (rules, corrections, facts) are cut to these sentences and stay where they were said, so that a later one
   stands behind an earlier one (the law *Later wins*). What is left of the share goes to the newest messages.
   Before these come short messages that ask nothing: a correction in other words than code knows is one of them,
   and they cost little.
3. Where not even that fits, what was replaced by a later statement goes first, then the oldest; the summary or the
   notice that covers them quotes them, or names their handles.
4. The first message, the task, takes at most half of the share from the others, and is clipped only if it takes
   more than a third of the room (`MAX_TASK_SHARE`).
5. The latest user message is never touched and does not count: no reduction may change it anyway.
6. Where the number of messages is limited, at most half of it are user messages: those that state something stay
   first, then the newest. Else they would leave no room for the record of what the agent did.
7. Reports of tools, reminders and notices that a harness puts into the user role are not the user's words. Unless
   one of them is the task, they go with the steps around them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence, Set
from itertools import islice, zip_longest
from operator import attrgetter
from typing import Final, Protocol, TypeAlias

from foveal.core.compaction.ledger.pasted_text import is_harness_text
from foveal.core.compaction.standing.replaced_statements import MAX_COMPARED_MESSAGES
from foveal.core.compaction.standing.statements import (
    Sentence,
    Statement,
    find_answers,
    find_replaced,
    find_sentences,
    question_in,
)
from foveal.core.log.events import text_of
from foveal.core.models.budget import Budget
from foveal.core.tokens.message_tokens import PER_MESSAGE
from foveal.core.view.steps import Step
from foveal.core.view.view import View

MIN_CLIPPED_USER_UNITS: Final = 120
"""No user message is clipped below this size to make room for another one."""
MARKER_UNITS: Final = 32
"""Units of the marker of a clip, about."""
LEAD_UNITS: Final = 20
"""Units of the first words of a message, which stay when it is cut to its sentences, about."""
GAP_UNITS: Final = 10
"""Units of the note beside a sentence that is shown."""
MAX_SHORT_UNITS: Final = 40
"""Messages up to this size stay before longer ones, unless they ask something."""
MIN_STATED_UNITS: Final = 16
"""In less room no sentence is tried."""
MAX_TASK_SHARE: Final = 1 / 3
"""Share of the room up to which the first user message is shown whole."""
MAX_USER_MESSAGE_SHARE: Final = 0.5
"""Share of the allowed number of messages that may be user messages."""


_Stated: TypeAlias = Mapping[int, Sequence[Sentence]]
"""The sentences of messages that still hold later, by the `id` of the step."""
_seq = attrgetter("seq")


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
    return [
        step for step in view.steps if step.kind == "user" and not step.is_protected and step is not latest
    ]


def own_user_steps(view: View) -> list[Step]:
    """Return those of them that the user wrote, and the first: what a harness says takes no room of the user's."""
    users = earlier_user_steps(view)
    return [step for step in users if step is users[0] or not is_harness_step(step)]


def sentences_of(view: View, seq: int, text: str) -> tuple[Sentence, ...]:
    """Return the sentences of a user's message that still hold later. A message in view remembers them: the policy,
    the ledger and the list of statements read each text once."""
    found = view.find(seq)
    return find_sentences(text) if found is None else found[1].read_text(find_sentences)


def stated_by(view: View, step: Step) -> tuple[Sentence, ...]:
    """Return the sentences of a user's message that still hold later; a yes or no counts after a question."""
    return step.utterance.read_text(find_answers if _follows_question(view, step) else find_sentences)


def _follows_question(view: View, step: Step) -> bool:
    index = bisect_left(view.steps, step.seq, key=_seq) - 1
    before = view.steps[index] if index >= 0 else None
    if before is None or before.kind != "model" or before.slots:
        return False
    return before.utterance.read_text(question_in) != ""


def kept_user_steps(view: View, budget: Budget, share: UserShare, *, clips_long: bool = True) -> list[Step]:
    """Return the user messages beside the latest that no summary and no drop hides. Long ones count as they will be
    clipped, unless nothing clips them (`clips_long`)."""
    users = own_user_steps(view)
    room = user_room(budget, share)
    if not room or not users:
        return []
    sizes = share_room(view, users[1:], room_beside_first(view, users, room), clips_long=clips_long)
    kept = [step for step in users if step is users[0] or id(step) in sizes]
    most = int(budget.max_messages * MAX_USER_MESSAGE_SHARE)
    return _newest_of(view, kept, most) if 0 < most < len(kept) else kept


def _newest_of(view: View, users: Sequence[Step], most: int) -> list[Step]:
    """Return at most so many of these messages, in their order: the first, then those that state something, then
    the newest."""
    stated = {id(step): stated_by(view, step) for step in users}
    ranked = (*users[:1], *_standing_first(view, users[1:], stated), *reversed(users))
    chosen = set(islice(dict.fromkeys(map(id, ranked)), most))
    return [step for step in users if id(step) in chosen]


def share_room(view: View, users: Sequence[Step], room: int, *, clips_long: bool = True) -> dict[int, int]:
    """Return the units that each of these messages may take, by the `id` of its step; those that must go are left
    out. The messages are given oldest first."""
    longest = max_user_units(view, users, room) if clips_long else room
    whole = {id(step): min(longest, text_units(view, step)) for step in users}
    if sum(whole.values()) <= room:
        return whole
    sizes: dict[int, int] = {}
    stated = {id(step): stated_by(view, step) for step in users}
    for step in _standing_first(view, users, stated):
        if room < MIN_STATED_UNITS:
            break
        size = whole[id(step)]
        if clips_long and (sentences := stated[id(step)]):  # without any, the message stays whole
            size = min(size, _stated_units(view, step, sentences))
        if size <= room:
            sizes[id(step)] = size
            room -= size
    for step in reversed(users):
        size = whole[id(step)]
        if id(step) not in sizes and size <= min(room, MAX_SHORT_UNITS) and not _asks(step):
            sizes[id(step)] = size
            room -= size
    for step in reversed(users):
        more = whole[id(step)] - sizes.get(id(step), 0)
        if more > room:
            break
        sizes[id(step)] = whole[id(step)]
        room -= more
    return sizes


def _asks(step: Step) -> bool:
    return step.utterance.read_text(question_in) != ""


def _standing_first(view: View, users: Sequence[Step], stated: _Stated) -> list[Step]:
    """Return the messages that state something: those with a rule or a correction, those with facts, and those that
    a later one has replaced; each newest first. What the user has named as a replacement counts as a correction."""
    replacing = {*view.superseded.values()}
    stating = [
        step for step in users if stated[id(step)] or step.seq in replacing or step.seq in view.superseded
    ]
    replaced = _replaced_messages(view, stating[-MAX_COMPARED_MESSAGES:], stated)

    def rank(step: Step) -> tuple[bool, bool]:
        is_binding = step.seq in replacing or any(one.kind != "fact" for one in stated[id(step)])
        return step.seq in replaced, not is_binding

    stating.reverse()
    return sorted(stating, key=rank)


def _replaced_messages(view: View, users: Sequence[Step], stated: _Stated) -> Set[int]:
    """Return the seqs of those messages of which nothing holds any longer."""
    statements = [
        Statement(step.seq, one.start, text[one.start : one.end], one.kind)
        for step in users
        for text in (text_of(step.utterance.fact.content),)
        for one in stated[id(step)]
    ]
    by = find_replaced(statements)
    replaced = {
        step.seq
        for step in users
        if stated[id(step)] and all((step.seq, one.start) in by for one in stated[id(step)])
    }
    return replaced | view.superseded.keys()


def _stated_units(view: View, step: Step, sentences: Sequence[Sentence]) -> int:
    """Return the units of a message that is cut to the sentences that hold."""
    text = text_of(step.utterance.fact.content)
    count = view.meter.counter.count
    return MARKER_UNITS + LEAD_UNITS + sum(count(text[one.start : one.end]) + GAP_UNITS for one in sentences)


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
