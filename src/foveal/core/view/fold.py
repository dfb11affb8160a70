"""The fold: which events of a log are effective, and the view they produce.

An event is effective unless a later rewind or revert takes it back, or it is an expansion that a later user message
has ended. Folding n events takes O(n), advancing by one takes O(1). A rewind, a revert, an expansion and the end of
an expansion change which earlier events are effective, so after one of them the whole log is folded again.

A log that is too long for memory is folded in two passes: `EffectiveLog.of` decides with events `without_text`, and
its `empty_view` is then advanced by the effective events, which are read again in parts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence, Set
from operator import attrgetter
from types import MappingProxyType
from typing import Final, NamedTuple

from msgspec import Raw
from msgspec.structs import replace

from foveal.core.log.events import (
    LEFT_OUT_BY_CALLER,
    REDUCTIONS,
    AnyFact,
    Branched,
    BranchEnded,
    Clipped,
    Compacted,
    Dropped,
    Equipped,
    Event,
    Expanded,
    ForeignSummary,
    Instructed,
    Masked,
    ModelSaid,
    Noted,
    Opened,
    Pinned,
    Prioritised,
    Reverted,
    Rewound,
    Superseded,
    ThinkingLeftOut,
    ToolReturned,
    ToolsLoaded,
    UserSaid,
    raw,
)
from foveal.core.log.ranges import Ranges
from foveal.core.tokens.message_tokens import MessageTokens
from foveal.core.view.steps import hidden_ranges
from foveal.core.view.view import View
from foveal.core.wire.bound_thinking import ThinkingBinding

_fact, _seq = attrgetter("fact"), attrgetter("seq")
_TAKING_BACK: Final = frozenset({Rewound, Reverted, Expanded})
"""Facts that change which earlier events are effective, or that can end."""
_CHANGES: Final = (*REDUCTIONS, Superseded, Equipped, Instructed, Reverted, Expanded)
"""Facts that change what is shown of earlier events, or stands beside them."""


def effective_events(log: Sequence[Event]) -> list[Event]:
    """Return the events that are not rewound, not reverted, and not expansions that a user message has ended."""
    if not _takes_back(log):
        return list(log)
    return _walk_back(log)[0]


def effective_rewinds(log: Sequence[Event]) -> list[Event]:
    """Return the rewinds that are neither reverted nor taken back by a later rewind, oldest first."""
    return _walk_back(log)[1]


def _takes_back(log: Sequence[Event]) -> bool:
    """Return whether any fact changes which earlier events are effective, or can end."""
    types = set(map(type, map(_fact, log)))
    return not types.isdisjoint(_TAKING_BACK) or (
        Compacted in types and any(map(_takes_item_back, map(_fact, log)))
    )


def _takes_item_back(fact: AnyFact) -> bool:
    return isinstance(fact, Compacted) and fact.takes_item_back


def left_behind(log: Sequence[Event]) -> frozenset[int]:
    """Return the seqs of what is no part of the current branch: events that a rewind has taken back, and system
    texts that newer ones have replaced. They may be words of another user whose history began in the same way."""
    kept, rewinds = _walk_back(log)
    effective = {event.seq for event in kept}
    rewound = (seq for event in rewinds for seq in range(_rewind_start(event), event.seq))
    behind = frozenset((*(seq for seq in rewound if seq not in effective), *_replaced_instructions(kept)))
    # A client that compacts leaves out messages of its own: a record of them names them by their handles.
    recorded = (event.fact.written_from for event in kept if isinstance(event.fact, Compacted))
    return behind.difference(
        seq for ranges in recorded for low, high in ranges for seq in range(low, high + 1)
    )


def _rewind_start(event: Event) -> int:
    assert isinstance(event.fact, Rewound)
    return event.fact.to + 1


def _replaced_instructions(events: Sequence[Event]) -> Iterator[int]:
    asides: dict[str, int] = {}
    for event in events:
        if isinstance(event.fact, Instructed):
            if event.fact.replaces is not None:
                yield event.fact.replaces
            elif event.fact.aside:
                if event.fact.source in asides:
                    yield asides[event.fact.source]
                asides[event.fact.source] = event.seq


def _walk_back(log: Sequence[Event]) -> tuple[list[Event], list[Event]]:
    """Return the effective events and the effective rewinds. Later events decide about earlier ones, so the walk
    goes backwards: a revert that targets a rewind is met first, and the events after `to` then count again, each
    at its place in the log, before what was said since."""
    kept: list[Event] = []
    rewinds: list[Event] = []
    user_has_spoken = False
    reverted: set[int] = set()
    rewound: Rewound | None = None  # the rewind whose range the backward walk is in
    outlived: set[int] = (
        set()
    )  # reductions that outlive a rewind; cleared at the first user message before it
    for event in reversed(log):
        fact = event.fact
        if rewound is not None and event.seq <= rewound.to:
            rewound = None
        if rewound is not None and not _survives(fact, rewound):
            continue
        if event.seq in reverted or (isinstance(fact, Superseded) and fact.target in reverted):
            continue  # a rule whose pin was taken back is not replaced by anything
        if isinstance(fact, Rewound):
            rewound = fact
            rewinds.append(event)
        elif isinstance(fact, Reverted):
            reverted.add(fact.target)
        elif not (isinstance(fact, Expanded) and user_has_spoken):
            if isinstance(fact, UserSaid):
                user_has_spoken = True
                if outlived:
                    # The latest user message is now an older one than when these reductions were made, and it
                    # must be shown: a reduction that hides it is not effective.
                    kept = [e for e in kept if not (e.seq in outlived and _hides(e.fact, event.seq))]
                    outlived.clear()
            elif rewound is not None and isinstance(fact, Dropped | Compacted) and not _is_left_out(fact):
                outlived.add(event.seq)
            if isinstance(fact, Compacted) and fact.takes_item_back:
                reverted.add(fact.first)
            kept.append(event)
    kept.reverse()
    rewinds.reverse()
    return kept, rewinds


def _hides(fact: AnyFact, seq: int) -> bool:
    return isinstance(fact, Dropped | Compacted) and any(
        low <= seq <= high for low, high in hidden_ranges(fact)
    )


def _is_left_out(fact: AnyFact) -> bool:
    """Return whether a fact says what the caller has left out of its history, whatever there is room for."""
    return isinstance(fact, Dropped) and fact.reason == LEFT_OUT_BY_CALLER


def _survives(fact: AnyFact, rewound: Rewound) -> bool:
    """Return whether a fact is still effective after a rewind to before it."""
    if isinstance(fact, Opened | ThinkingLeftOut):
        return True  # which model reads the requests, and what it refuses, is no part of what was said
    if isinstance(fact, ToolsLoaded):
        return fact.target <= rewound.to
    if isinstance(fact, Compacted) and fact.takes_item_back:
        return fact.last <= rewound.to
    if isinstance(fact, UserSaid | ModelSaid | ToolReturned | ForeignSummary | Rewound | Expanded):
        return False
    if isinstance(fact, BranchEnded) and fact.by_code and (rewound.keep_state or rewound.keep_reductions):
        return fact.branch <= rewound.to  # an edited history does not say that code ended the branch
    if isinstance(fact, Branched | BranchEnded):
        return False
    if isinstance(fact, Instructed) and not fact.is_beside_history:
        return False
    if isinstance(fact, Compacted) and fact.last > rewound.to:
        return False  # it summarises events that are rewound
    if isinstance(fact, Prioritised) and fact.target > rewound.to:
        return False
    if isinstance(fact, Superseded) and fact.by > rewound.to:
        return False  # the message that replaces another one is rewound
    if isinstance(fact, Dropped | Compacted):
        return rewound.keep_reductions and (_is_left_out(fact) or not rewound.show_dropped)
    if isinstance(fact, (*REDUCTIONS, Reverted)):
        return rewound.keep_reductions
    return rewound.keep_state or rewound.keep_reductions


def reductions_for_fork(later: Sequence[Event], *, at: int, latest_user: int) -> list[AnyFact]:
    """Return what a fork at an event takes over from `later` events: reductions of what the fork contains,
    which of its messages others in it replace, and reverts of what is in it. Without them, the fork would
    send again what was reduced, and a prefix that the provider has cached would change. A reduction that hides the
    `latest_user` message is not taken over."""
    reverted = {event.fact.target for event in later if isinstance(event.fact, Reverted)}
    reverts = [
        event.fact
        for event in later
        if isinstance(event.fact, Reverted) and event.fact.target <= at and event.seq not in reverted
    ]
    reductions = (_restrict(event.fact, at) for event in effective_events(later))
    return [*reverts, *(fact for fact in reductions if fact is not None and not _hides(fact, latest_user))]


def _restrict(fact: AnyFact, at: int) -> AnyFact | None:
    """Return a reduction without what it says about events after `at`; None if nothing remains."""
    match fact:
        case Clipped(target=target, sources=sources) if max((target, *sources)) <= at:
            return fact
        case Masked(masks=masks) if kept := tuple(mask for mask in masks if mask.target <= at):
            return replace(fact, masks=kept)
        case Compacted(last=last) if last <= at:
            return fact
        case Superseded(by=by) if by <= at:
            return fact
        case Prioritised(target=target) if target <= at:
            return fact
        case Dropped(ranges=ranges, users=users) if not _is_left_out(fact):
            shown = tuple((first, min(last, at)) for first, last in ranges if first <= at)
            users = tuple(seq for seq in users if seq <= at)
            return replace(fact, ranges=shown, users=users) if shown else None
    return None


class EffectiveLog(NamedTuple):
    """Which events of a whole log are effective, and what the others leave behind."""

    events: list[Event]
    """The effective events."""
    expansions: tuple[Event, ...]
    reverted_masks: Set[int] = frozenset()
    reverted_summaries: Ranges = ()
    whole_steps: Mapping[int, int] = MappingProxyType({})
    thinking_from: int = 0
    """The newest event that took an earlier one back, or brought one back, in front of bound thinking."""

    @classmethod
    def of(cls, log: Sequence[Event]) -> EffectiveLog:
        """Return what is effective in a whole log; its events may be `without_text`."""
        events = effective_events(log)
        expansions = tuple(event for event in events if isinstance(event.fact, Expanded))
        whole = dict(_whole_steps(events))
        is_changed = whole or _takes_back(log)
        thinking_from = _newest_change(log) if is_changed else 0
        if len(events) == len(log):
            return cls(events, expansions, whole_steps=whole, thinking_from=thinking_from)
        seqs = {event.seq for event in events}
        masks, summaries = _reverted_masks(log, seqs), tuple(_reverted_summaries(log, seqs))
        return cls(events, expansions, masks, summaries, whole, thinking_from)

    def empty_view(self, meter: MessageTokens) -> View:
        """Return the view before the first effective event."""
        return View(
            meter,
            expansions=self.expansions,
            reverted_masks=self.reverted_masks,
            reverted_summaries=self.reverted_summaries,
            whole_steps=self.whole_steps,
            thinking_from=self.thinking_from,
        )

    def view(self, meter: MessageTokens) -> View:
        """Return the view after the last effective event."""
        view = self.empty_view(meter)
        for event in self.events:
            view.advance(event)
        return view


_LIGHT_FACTS: Final[dict[type, AnyFact]] = {
    UserSaid: UserSaid(content=""),
    ModelSaid: ModelSaid(content=""),
    ToolReturned: ToolReturned(call_id="", content=""),
    ForeignSummary: ForeignSummary(native=Raw(b"{}")),
    Clipped: Clipped(target=-1, pieces=()),
}
_LIGHT_NOTE: Final = Noted(text="")


def without_text(event: Event) -> Event:
    """Return an event with only what decides which events are effective."""
    fact = event.fact
    match fact:
        case (
            Rewound()
            | Reverted()
            | Expanded()
            | Masked()
            | Dropped()
            | Pinned()
            | Superseded()
            | Prioritised()
        ):
            return event
        case Opened() | ThinkingLeftOut() | Branched():
            return event
        case BranchEnded():
            return Event(event.seq, replace(fact, result=""), event.at)
        case Compacted():
            return Event(event.seq, replace(fact, summary="", chunks=(), masks=()), event.at)
        case Instructed():
            return Event(event.seq, replace(fact, content=""), event.at)
        case ToolsLoaded():
            return Event(event.seq, replace(fact, tools=raw([])), event.at)
        case _:
            return Event(event.seq, _LIGHT_FACTS.get(type(fact), _LIGHT_NOTE), event.at)


def fold(log: Sequence[Event], meter: MessageTokens) -> View:
    """Return the view of a whole log."""
    return EffectiveLog.of(log).view(meter)


# ── Bound thinking ───────────────────────────────────────────────────────────────────────────────────────


def _newest_change(log: Sequence[Event]) -> int:
    """Return the newest event that changed which earlier ones are shown, while the model bound thinking to what
    comes before it; 0 if there is none.

    A view finds the changes of effective events itself. These are the others: what was taken back is not effective
    any more, and still it was in front of thinking that is. A rewind changes nothing in front of what stays, unless
    it takes back what was said about that."""
    newest = 0
    binding = ThinkingBinding()
    has_expansion = False
    changes: list[Event] = []
    for event in log:
        fact, before = event.fact, binding
        is_change = False
        match fact:
            case Opened() | ThinkingLeftOut():
                binding = binding.after(fact)
                is_change = isinstance(fact, ThinkingLeftOut) or before.ends_with(binding)
            case UserSaid():
                is_change, has_expansion = has_expansion, False
            case Expanded():
                is_change = has_expansion = True
            case Reverted():
                is_change = True
            case Compacted(takes_item_back=True):
                is_change = True
            case Rewound():
                at = bisect_right(changes, fact.to, key=_seq)
                surviving = [change for change in changes[at:] if _survives(change.fact, fact)]
                # A drop or a summary that hides the latest request of what stays is not effective any more.
                is_change = any(
                    _is_about(change, fact.to)
                    and (change not in surviving or isinstance(change.fact, Dropped | Compacted))
                    for change in changes[at:]
                )
                changes[at:] = surviving
            case Pinned(whole=True):
                is_change = True
            case _:
                pass
        if is_change and (binding.is_bound or before.is_bound):
            newest = event.seq
        if isinstance(fact, _CHANGES):
            changes.append(event)
    return newest


def _is_about(change: Event, to: int) -> bool:
    """Return whether a change that a rewind to `to` may take back is about something that stays."""
    match change.fact:
        case Clipped(target=target) | Superseded(target=target):
            return target <= to
        case Masked(masks=masks):
            return any(mask.target <= to for mask in masks)
        case Dropped(ranges=ranges):
            return any(first <= to for first, _ in ranges)
        case Compacted(first=first):
            return first <= to
        case Instructed(replaces=replaces) as instructed:
            return instructed.aside or instructed.is_memory or (replaces is not None and replaces <= to)
        case _:
            return True


def _whole_steps(events: Sequence[Event]) -> Iterator[tuple[int, int]]:
    """Yield the steps that pins show as they were said, each with its pin."""
    for event in events:
        fact = event.fact
        if isinstance(fact, Pinned) and fact.whole and fact.target is not None:
            yield fact.target, event.seq


def _reverted_masks(log: Sequence[Event], effective: set[int]) -> set[int]:
    """Return the targets of masks that are no longer effective."""
    gone = (e.fact for e in log if isinstance(e.fact, Masked) and e.seq not in effective)
    return {mask.target for fact in gone for mask in fact.masks}


def _reverted_summaries(log: Sequence[Event], effective: set[int]) -> Iterator[tuple[int, int]]:
    """Yield the ranges of summaries that were reverted (not of those that a rewind took back)."""
    targets = {event.fact.target for event in log if isinstance(event.fact, Reverted)}
    for event in log:
        if event.seq in targets and event.seq not in effective and isinstance(event.fact, Compacted):
            yield event.fact.first, event.fact.last


def advance(view: View, event: Event, log: Sequence[Event]) -> View:
    """Return the view after `event`, the newest of `log`: the same view advanced, or a new one if the past
    changed."""
    if needs_refold(event.fact, view):
        return fold(log, view.meter)
    view.advance(event)
    return view


def needs_refold(fact: AnyFact, view: View) -> bool:
    """Return whether a fact changes which earlier events are effective."""
    return always_refolds(fact) or (isinstance(fact, UserSaid) and bool(view.expansions))


def always_refolds(fact: AnyFact) -> bool:
    """Return whether a fact changes which earlier events are effective, or are shown, whatever the view is."""
    return type(fact) in _TAKING_BACK or (isinstance(fact, Pinned) and fact.whole) or _takes_item_back(fact)
