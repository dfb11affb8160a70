"""Branches: a part of the work that folds to its task, its result and a handle.

1. `Branched` begins a branch and changes nothing in the view, so requests inside keep the cached prefix.
2. `BranchEnded` ends it. What follows is an ordinary `Compacted` with the reason `branch`: `undo` unfolds it, and
   `expand`, `recall` and every other reader of summaries know it.
3. The fold keeps what every summary keeps: pinned steps, the latest request, calls that wait for a result, and the
   user's messages within their share. A message that is the task itself is quoted by the summary.
4. The model begins and ends branches by the tools `branch` and `return`. Both are read from the answers of these
   tools, once all calls of the step have their results: a result and its call are on the same side of a fold.
5. A later summary of a wider range is merged from the task and the result, as from what models wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf
from operator import attrgetter
from typing import Any, Final, Literal, NamedTuple

from msgspec.structs import replace

from foveal.core.compaction.health import CompactionMetrics
from foveal.core.compaction.kept_messages import is_harness_step
from foveal.core.compaction.ledger.allocation import escape_tags
from foveal.core.compaction.plan import RangeTerms, is_removable, kept_seqs, kept_steps, thinking_before
from foveal.core.compaction.summary import END_LINE, cut_lines
from foveal.core.log.events import (
    BRANCH,
    AnyFact,
    Branched,
    BranchEnded,
    Compacted,
    Event,
    ModelSaid,
    ToolReturned,
    UserSaid,
    calls_of,
    handle,
    parse_handle,
    raw,
    text_of,
)
from foveal.core.log.ranges import Ranges
from foveal.core.models.budget import Budget
from foveal.core.tokens.message_tokens import PER_MESSAGE
from foveal.core.view.fold import effective_events
from foveal.core.view.steps import Step
from foveal.core.view.view import View
from foveal.core.wire.common import arguments_object
from foveal.errors import BadSetting, UnknownHandle

BRANCH_TOOL: Final = "branch"
RETURN_TOOL: Final = "return"
BRANCH_BEGUN: Final = "[branch: begun"
"""How the answer to a call of `branch` begins that begins one."""
BRANCH_RETURNED: Final = "[branch: ended"
"""How the answer to a call of `return` begins that ends one."""
NO_RESULT_GIVEN: Final = "(no result was given, and the model said nothing in it)"
ResultSource = Literal["given", "model", "error"]
_RESULT_TITLES: Final[dict[ResultSource, str]] = {
    "given": "Result",
    "model": "Result (the last text of the model in it)",
    "error": "It failed",
}


class BranchStatus(NamedTuple):
    """A branch of a conversation.

    Examples:
        ```python
        import foveal

        ctx = foveal.Context("gpt-4.1")
        with ctx.branch("Find the failing test.") as branch:
            branch.result("test_dates.py fails.")
        [status] = ctx.branches()
        assert (status.handle, status.result, status.is_folded) == ("e1", "test_dates.py fails.", True)
        ```
    """

    handle: str
    """The event with which it began."""
    task: str
    """What it is to find out or to do."""
    parent: str = ""
    """The branch that it is inside of; "" for none."""
    ended: str = ""
    """The event that ended it; "" while it is open."""
    result: str = ""
    """What came of it; "" while it is open."""
    source: ResultSource = "given"
    """Where the result comes from: given, the last text of the model, or an error."""
    fold: str = ""
    """The event that folded it; "" while it is open, after `undo`, and if there was nothing to fold."""

    @property
    def is_open(self) -> bool:
        """Whether it has not ended."""
        return not self.ended

    @property
    def is_folded(self) -> bool:
        """Whether requests show its result instead of what was said in it."""
        return bool(self.fold)


def list_branches(log: Sequence[Event]) -> tuple[BranchStatus, ...]:
    """Return the branches of a log that are not rewound, in the order in which they began."""
    found: dict[int, BranchStatus] = {}
    within: list[int] = []
    for event in effective_events(log):
        match event.fact:
            case Branched(task=task):
                parent = handle(within[-1]) if within else ""
                found[event.seq] = BranchStatus(event.handle, task, parent)
                within.append(event.seq)
            case BranchEnded() as ended if ended.branch in within:
                for seq in within[within.index(ended.branch) :]:  # with those inside
                    found[seq] = found[seq]._replace(ended=event.handle)
                found[ended.branch] = found[ended.branch]._replace(result=ended.result, source=ended.source)
                within = [seq for seq in within if seq < ended.branch]
            case Compacted(reason="branch", first=first) if first in found:
                found[first] = found[first]._replace(fold=event.handle)
            case _:
                pass
    return tuple(found.values())


# ── Begin and end ────────────────────────────────────────────────────────────────────────────────────────


def branched(task: str, *, is_joined: bool = False, fork: str = "") -> Branched:
    """Return the fact that begins a branch; raises `BadSetting` without a task."""
    if not isinstance(task, str) or not task.strip():
        raise BadSetting("task", task, "a text that says what the branch is to do")
    return Branched(task=task.strip(), is_joined=is_joined, fork=fork)


def not_joined_yet(joined: int) -> str:
    """Return what a fork must be that is joined once more; it was joined with the event `joined`."""
    return f"a fork that is not joined yet; this one was, as {handle(joined)}: fork again"


def open_branch(view: View, name: str | int | None) -> tuple[int, Branched]:
    """Return the open branch with this handle, the innermost by default; raises `UnknownHandle`."""
    if not view.open_branches:
        raise UnknownHandle("no branch is open, so none can end")
    if name is None:
        return view.open_branches[-1]
    seq = parse_handle(name)
    found = next((branch for branch in view.open_branches if branch[0] == seq), None)
    if found is None:
        known = ", ".join(handle(seq) for seq, _ in view.open_branches)
        raise UnknownHandle(f"{name} is no open branch; open are {known}")
    return found


def branch_ended(
    view: View,
    name: str | int | None,
    *,
    result: str | None,
    end: int,
    keep: Iterable[str | int] = (),
    has_failed: bool = False,
) -> BranchEnded:
    """Return the fact that ends an open branch before event `end`, the next one. Without a result, it has the last
    text of the model in it."""
    if result is not None and not isinstance(result, str):
        raise BadSetting("result", result, "a text, or None for the last text of the model")
    seq, _ = open_branch(view, name)
    kept = tuple(dict.fromkeys(kept_in(seq, keep, end=end)))
    if result is not None:
        source: ResultSource = "error" if has_failed else "given"
        return BranchEnded(branch=seq, result=result.strip(), source=source, keep=kept, by_code=True)
    return BranchEnded(branch=seq, result=_last_text(view, seq), source="model", keep=kept, by_code=True)


def kept_in(branch: int, names: Iterable[str | int], *, end: float = inf) -> Iterator[int]:
    """Yield the seqs of events to keep in a branch; raises `UnknownHandle` for one that is not inside. `end` is the
    next event, while the branch is open any event."""
    for name in names:
        seq = parse_handle(name)
        if seq is None or not branch < seq < end:
            given = name if seq is None else handle(seq)
            raise UnknownHandle(
                f"{given} is no event of the branch {handle(branch)}, which keeps only its own"
            )
        yield seq


def _last_text(view: View, first: int) -> str:
    for step in reversed(view.steps):
        if step.seq < first:
            break
        if step.kind == "model" and (text := text_of(step.utterance.fact.content).strip()):
            return text
    return ""


# ── The fold ─────────────────────────────────────────────────────────────────────────────────────────────


def branch_fold(
    view: View, ended: BranchEnded, budget: Budget, terms: RangeTerms, *, last: int, ratio: float
) -> Compacted | None:
    """Return the fold of a branch that ends after event `last`; None if it is not open, or if it has no result and
    nothing in it can be folded."""
    opened = next((fact for seq, fact in view.open_branches if seq == ended.branch), None)
    if opened is None:
        return None
    first = ended.branch
    inside = [step for step in view.steps if first <= step.seq <= last]
    kept = _kept_ids(view, opened, ended, inside, budget, terms)
    removed = [step for step in inside if is_removable(step, kept)]
    if not removed and not ended.result:
        return None
    gone = {id(step) for step in removed}
    keep = {
        seq
        for step in view.steps
        if id(step) not in gone and step.kind in ("user", "model")
        for seq in kept_seqs(step, removed)
        if first <= seq <= last
    }
    folded_users = [
        step.seq
        for step in removed
        if step.kind == "user"
        and not opened.is_joined
        and not _is_task(step, opened)
        and not is_harness_step(step)
    ]
    room = min(terms.summary_tokens, int(budget.hard * terms.summary_share))
    body = _body(opened, ended, folded_users, view, room=room, last=last)
    messages = sum(step.message_count for step in removed)
    summary = "\n\n".join((_header(first, last, messages), body, END_LINE))
    metrics = CompactionMetrics(
        turns=sum(step.kind == "user" for step in removed),
        events=messages,
        before=round(sum(map(view.units_of, removed)) * ratio),
        after=round((view.meter.counter.count(summary) + PER_MESSAGE) * ratio),
    )
    return Compacted(
        first=first,
        last=last,
        summary=summary,
        keep=tuple(sorted(keep)),
        chunks=(body,),
        by=BRANCH,
        metrics=raw(metrics),
        reason=BRANCH,
        rule=BRANCH,
    )


def fold_handle(log: Sequence[Event], ended: int) -> str:
    """Return the handle of the fold that follows event `ended`, the end of a branch; "" if nothing was folded."""
    for event in reversed(log):
        if event.seq <= ended:
            break
        if event.seq == ended + 1 and isinstance(event.fact, Compacted):
            return event.handle
    return ""


def _kept_ids(
    view: View,
    opened: Branched,
    ended: BranchEnded,
    inside: Sequence[Step],
    budget: Budget,
    terms: RangeTerms,
) -> set[int]:
    """Return the `id()`s of the steps that stay, with the thinking that a provider wants in front of them."""
    asked = {
        id(found[0]) for seq in ended.keep if (found := view.find(seq)) is not None and not found[0].covers
    }
    if not opened.is_joined:
        staying = kept_steps(view, budget, terms, clips_long=False)
        asked |= {id(step) for step in staying if not _is_task(step, opened)}
    if view.thinking.is_bound or not inside:
        return asked
    begin = view.steps.index(inside[0])
    end = begin + len(inside)
    needing = [
        index for index in range(begin, end) if id(view.steps[index]) in asked or view.steps[index].is_pinned
    ]
    for index in (*needing, end):
        thinking = thinking_before(view.steps, index)
        if thinking is not None:
            asked |= {id(step) for step in view.steps[max(begin, thinking) : index]}
    return asked


def _is_task(step: Step, opened: Branched) -> bool:
    """Return whether a message of the user is the task of the branch, which its summary quotes whole."""
    return step.kind == "user" and _is_quoted(text_of(step.utterance.fact.content), opened.task)


def _is_quoted(text: str, task: str) -> bool:
    return text.strip() == task == escape_tags(task)


def _header(first: int, last: int, messages: int) -> str:
    span = handle(first) if first == last else f"{handle(first)}–{handle(last)}"
    count = f"{messages} message{'s' * (messages != 1)}"
    return (
        f"[foveal: record of {span}, a branch, {count}, folded to its result. Recall tools, where there are any, "
        "read the originals by handle.]"
    )


def _body(
    opened: Branched, ended: BranchEnded, users: Sequence[int], view: View, *, room: int, last: int
) -> str:
    """Return the task, the result, and the handles of user messages that are folded. A result that takes more than
    `room` units is cut, and leads to the event that has it whole."""
    result = escape_tags(ended.result) or NO_RESULT_GIVEN
    short = cut_lines(result, room, view.meter.counter)
    if short != result:
        short = f"{short}\n[foveal: cut; whole result: {handle(last + 1)}]".strip()
    lines = [f"Task: {escape_tags(opened.task)}", f"{_RESULT_TITLES[ended.source]}: {short}"]
    if users:
        lines.append(f"Messages of the user in it: {', '.join(map(handle, users))}")
    return "\n".join(lines)


# ── Tools of the model ───────────────────────────────────────────────────────────────────────────────────


def asked_for(view: View, result: Event) -> list[AnyFact]:
    """Return what a step asks for by the tools `branch` and `return`, once its last result is there."""
    found = view.find(result.seq)
    if found is None or found[0].kind != "model":
        return []
    step = found[0]
    asked = [slot for slot in step.slots if slot.call.name in (BRANCH_TOOL, RETURN_TOOL)]
    if not asked or step.has_open_call:
        return []
    facts: list[AnyFact] = []
    ending = [seq for seq, _ in view.open_branches if seq < step.seq]
    for slot in asked:
        answer = "" if slot.result is None else text_of(slot.result.fact.content)
        given = arguments_object(slot.call.arguments)
        if slot.call.name == BRANCH_TOOL and answer.startswith(BRANCH_BEGUN) and (task := asked_task(given)):
            facts.append(branched(task))
        elif slot.call.name == RETURN_TOOL and answer.startswith(BRANCH_RETURNED) and ending:
            kept = kept_handles(ending[-1], given)
            facts.append(BranchEnded(branch=ending.pop(), result=asked_result(given), keep=kept))
    return facts


def asked_task(given: Mapping[str, Any]) -> str:
    """Return the task in the arguments of `branch`; "" if there is none."""
    task = given.get("task")
    return task.strip() if isinstance(task, str) else ""


def asked_result(given: Mapping[str, Any]) -> str:
    """Return the result in the arguments of `return`; "" if there is none."""
    result = given.get("result")
    return result.strip() if isinstance(result, str) else ""


def kept_handles(branch: int, given: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the events to keep in the arguments of `return`; a model's wrong handles are left out."""
    names = given.get("keep")
    names = names if isinstance(names, list) else [names] if isinstance(names, str) else []
    seqs = (parse_handle(name) for name in names if isinstance(name, str | int))
    return tuple(dict.fromkeys(seq for seq in seqs if seq is not None and seq > branch))


# ── Messages of a fork ───────────────────────────────────────────────────────────────────────────────────


def joined_ranges(events: Sequence[Event]) -> Ranges:
    """Return the ranges of what `join` has recorded in effective events: the caller's history has none of it."""
    began = {event.seq for event in events if isinstance(event.fact, Branched) and event.fact.is_joined}
    ended = ((event.fact.branch, event.seq) for event in events if isinstance(event.fact, BranchEnded))
    return tuple((first, last) for first, last in ended if first in began)


def joined_messages(events: Sequence[Event]) -> list[Event]:
    """Return the messages of another context to record here, oldest first: steps with all of their results, and the
    user's messages. A call without a result is left out with its step: nothing here would answer it."""
    results: dict[str, list[Event]] = {}
    joined: list[Event] = []
    for event in reversed(events):
        match event.fact:
            case ToolReturned(call_id=call_id):
                results.setdefault(call_id, []).append(event)
            case ModelSaid() as said:
                answers = [results.get(call.id, []) for _, call in calls_of(said.content)]
                found = [answer.pop() for answer in answers if answer]
                if len(found) == len(answers):
                    joined += [*found, Event(event.seq, replace(said, imported=True))]
            case UserSaid():
                joined.append(event)
            case _:
                pass
    return sorted(joined, key=attrgetter("seq"))
