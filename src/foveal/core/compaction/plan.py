"""Which range of the log a summary shall stand for, if any: pure, and decided before anybody is paid.

1. A cut lies between two steps, so a call and its results are on one side of it; a loop of calls that began with
   the model's thinking is not cut before a step that has none of its own, because a provider would refuse the rest.
2. The latest request, the newest open calls, instructions and pinned steps are never summarised away. A single
   request with one long loop of calls still compacts: what lies behind the request does.
3. Nothing is paid for that is not worth it: an empty summary would have to remove more than the last summary takes.
4. When what must stay is larger than the room, that is said, with the number; trying again would change nothing.
5. Summaries live side by side, each as it was written, until there are too many: then all of them become one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, takewhile
from typing import Final

import msgspec
from msgspec.structs import replace

from foveal.core.log.events import Event, Thinking, UserSaid
from foveal.core.models.budget import Budget
from foveal.core.view.steps import Step
from foveal.core.view.view import View

LEAST: Final = 120
"""Units below which a range is not worth a summary: its frame alone takes a third of that."""
OPEN: Final = 3
"""So many of the newest steps with an unanswered call are kept; older ones were given up long ago."""
LASTING: Final = 0.8
"""A compaction that leaves the request above this share of its trigger would be followed by the next at once."""


class RangeTerms(msgspec.Struct, frozen=True, kw_only=True):
    """How a policy wants ranges to be chosen. Shares are of the room for messages."""

    rule: str
    tail: float = 0.25
    """What the newest steps keep verbatim …"""
    keep_messages: int = 0
    """… and how many messages at least, if they take no more than half of the room."""
    keep_task: bool = True
    """The first request of the user stays."""
    retain_user_tokens: int = 0
    """Other requests stay too, newest first, up to so many tokens."""
    every_turns: int = 0
    """A summary after so many new turns; 0 waits for the tokens."""
    overlap_turns: int = 0
    """So many turns that the summary before stands for are read again."""
    summary_tokens: int = 3_000
    summary_share: float = 0.15
    """What a summary may take, whichever is less."""
    max_summaries: int = 3


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One range of the log that a summary shall stand for."""

    first: int
    last: int
    """Seqs of events, both ends included."""
    keep: tuple[int, ...] = ()
    """Events in the range that stay as they are."""
    turns: int
    """Requests of the user in the range."""
    events: int
    before: int
    """Units that the range takes now, as it is shown."""
    room: int
    """Units that the summary may take."""
    total: int
    """Units of the messages as they stand."""
    reason: str
    """What set it off: `tokens`, `turns`, `messages`, `hand`, `overflow`, `model` or `merge`."""
    rule: str
    overlap: int = 0
    """Turns before the range that are to be read again …"""
    before_it: tuple[tuple[int, int], ...] = ()
    """… of those that the last summary stands for; see `settled`."""
    ask: bool = True
    """A model may be asked for it."""
    focus: str = ""
    """What the user wants it to keep above all."""


class NoPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Why there is no plan."""

    floor: int
    """Units that no compaction can remove."""
    room: int
    """Units that the messages may take."""

    def told(self, ratio: float) -> str:
        """The same in words; `ratio` is tokens per unit."""
        if self.floor <= self.room:
            return "nothing that may be summarised is worth a summary"
        return (
            f"what must stay takes {round(self.floor * ratio):,} tokens, and there is room for "
            f"{round(self.room * ratio):,}: shorten or unpin instructions and rules, or raise `window`"
        )


def due(view: View, budget: Budget, terms: RangeTerms) -> str:
    """What calls for a compaction now: `tokens`, `turns`, or "" when nothing does."""
    if view.units > budget.act:
        return "tokens"
    if terms.every_turns and turns_since(view) >= terms.every_turns:
        return "turns"
    return ""


def turns_since(view: View) -> int:
    """Turns that have ended since the last summary."""
    end = max((high for step in view.summaries for _, high in step.covers), default=-1)
    return max(0, sum(1 for step in view.steps if step.kind == "user" and step.seq > end) - 1)


def plan(view: View, budget: Budget, terms: RangeTerms, *, reason: str, focus: str = "") -> Plan | NoPlan:
    """The range to summarise now, or why there is none."""
    kept = {id(step) for step in _kept(view, budget, terms)}
    begin = _begin(view, terms)
    floor = view.units - sum(map(view.units_of, _going(view.steps[:-1], kept)))
    if floor > budget.hard:
        return NoPlan(floor=floor, room=budget.hard)
    worth = max([LEAST, *(view.units_of(step) for step in view.summaries[-1:])])
    best: Plan | None = None
    for end in _ends(view, budget, terms, reason):
        made = _between(view, budget, terms, begin=begin, end=end, kept=kept, reason=reason)
        if made is None or made.before <= worth:
            continue
        best = replace(made, focus=focus)
        if reason == "turns" or view.units - made.before + made.room <= budget.act * LASTING:
            break
    if best is None:
        return NoPlan(floor=floor, room=budget.hard)
    return best


def settled(plan: Plan, events: Sequence[Event]) -> Plan:
    """The plan in the light of the log: with the turns before it that are to be read again, and its counts.
    `events` are those that count, from any place at or before the range."""
    asked = [
        event.seq
        for event in events
        if isinstance(event.fact, UserSaid) and any(a <= event.seq <= b for a, b in plan.before_it)
    ]
    again = asked[-plan.overlap :] if plan.overlap else []
    first = min([plan.first, *again[:1]])
    inside = [e for e in events if first <= e.seq <= plan.last and e.seq not in plan.keep]
    turns = sum(isinstance(event.fact, UserSaid) for event in inside)
    keep = tuple(seq for seq in plan.keep if seq >= first)
    return replace(plan, first=first, keep=keep, turns=turns, events=len(inside))


# ── what stays ───────────────────────────────────────────────────────────────────────────────────────────


def _kept(view: View, budget: Budget, terms: RangeTerms) -> Iterator[Step]:
    """Steps that no summary may stand for."""
    latest = view.latest_user
    if latest is not None:
        yield latest
    if terms.keep_task and view.first_user is not None:
        yield view.first_user
    yield from islice((step for step in reversed(view.steps) if step.open), OPEN)
    room = min(terms.retain_user_tokens, budget.hard // 3)
    for step in reversed(view.steps):
        if step.kind == "user" and step is not latest:
            room -= view.units_of(step)
            if room < 0:
                return
            yield step


def _going(steps: Sequence[Step], kept: set[int]) -> Iterator[Step]:
    for step in steps:
        if step.kind in ("user", "model", "summary") and not step.pinned and id(step) not in kept:
            yield step


# ── where to cut ─────────────────────────────────────────────────────────────────────────────────────────


def _begin(view: View, terms: RangeTerms) -> int:
    """The first step that may go: behind the last summary, or the first of them when they are too many."""
    places = [place for place, step in enumerate(view.steps) if step.kind == "summary"]
    if not places:
        return 0
    return 0 if len(places) >= terms.max_summaries else places[-1] + 1


def _ends(view: View, budget: Budget, terms: RangeTerms, reason: str) -> Iterator[int]:
    """Places to cut at, the one that keeps most first, each of them safe."""
    steps = view.steps
    if not steps:
        return
    latest = view.latest_user
    if reason == "turns" and latest is not None:
        yield steps.index(latest)
        return
    whole = view.units if reason in ("hand", "messages") else budget.hard
    seen: set[int] = set()
    for share in (terms.tail, terms.tail / 2, terms.tail / 4, 0.0):
        least = terms.keep_messages if share else 0
        end = _safe(steps, _tail(view, budget, whole * share, least))
        if end not in seen:
            seen.add(end)
            yield end


def _tail(view: View, budget: Budget, room: float, least: int) -> int:
    """Where the newest steps begin that fit into the room; the very newest is always one of them."""
    at = len(view.steps)
    units = messages = 0
    for step in reversed(view.steps):
        units += view.units_of(step)
        messages += 1 + len(step.slots)
        enough = units > room and (messages > least or units > budget.hard / 2)
        if at < len(view.steps) and enough:
            break
        at -= 1
    return at


def _safe(steps: Sequence[Step], at: int) -> int:
    """The nearest place at or before `at` where a cut leaves a history that every provider accepts."""
    while at > 0 and _splits_thinking(steps, at):
        at -= 1
    return at


def _splits_thinking(steps: Sequence[Step], at: int) -> bool:
    """A loop of calls that began with thinking goes on at `at` without any."""
    if at >= len(steps) or not _in_loop(steps[at]) or _thinks(steps[at]):
        return False
    return any(_thinks(step) for step in takewhile(_in_loop, reversed(steps[:at])))


def _in_loop(step: Step) -> bool:
    return step.kind == "model" and bool(step.slots)


def _thinks(step: Step) -> bool:
    content = step.said.fact.content
    return not isinstance(content, str) and any(isinstance(part, Thinking) for part in content)


def _between(
    view: View, budget: Budget, terms: RangeTerms, *, begin: int, end: int, kept: set[int], reason: str
) -> Plan | None:
    going = list(_going(view.steps[begin:end], kept))
    if not going:
        return None
    after = view.steps[end].seq if end < len(view.steps) else None
    ends = [max(_seqs(step, after)) for step in going]
    first, last = min(min(_seqs(step, after)) for step in going), max(ends)
    staying = {id(step) for step in going}
    merged = sum(step.kind == "summary" for step in going)
    keep = {
        seq
        for step in view.steps
        if id(step) not in staying and step.kind in ("user", "model")
        for seq in _seqs(step, None)
        if seq <= last
    }
    summaries = view.summaries
    before_it = summaries[-1].covers if summaries and terms.overlap_turns and not merged else ()
    least = min([first, *(low for low, _ in before_it)])
    before = sum(map(view.units_of, going))
    return Plan(
        first=first,
        last=last,
        keep=tuple(seq for seq in sorted(keep) if seq >= least),
        turns=sum(step.kind == "user" for step in going),
        events=sum(step.messages for step in going),
        before=before,
        room=max(1, min(terms.summary_tokens, int(budget.hard * terms.summary_share), before // 2)),
        total=view.units,
        reason="merge" if merged and merged == len(going) and reason == "tokens" else reason,
        rule=terms.rule,
        overlap=terms.overlap_turns,
        before_it=before_it,
    )


def _seqs(step: Step, after: int | None) -> list[int]:
    """The events of a step, or the ends of what a summary stands for; without late results behind the cut."""
    if step.covers:
        return [seq for span in step.covers for seq in span]
    if not step.slots:
        return [step.seq]
    return [shown.seq for shown in step.shown() if after is None or shown.seq < after]


def source(view: View, plan: Plan) -> tuple[object, ...]:
    """What a plan's range looks like in a view: equal as long as a summary of it would still be true."""
    inside = (
        step for step in view.steps if plan.first <= step.seq <= plan.last and step.seq not in plan.keep
    )
    return tuple((step.seq, step.said.seq, step.pin, step.covers, len(step.slots)) for step in inside)
