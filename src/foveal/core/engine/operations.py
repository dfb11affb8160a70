"""Operations on what is shown: the rules of each, and the table that all products offer them from.

1. `OPERATIONS` has one entry per operation: its arguments, its texts, and the function that decides what to record.
   Chat, API, inspector and bots take names, arguments and texts from it.
2. An operation is a method of the same name of `Context` and of `Session`. These look up events by their handles,
   ask `decide`, record the facts, and return a handle.
3. The functions are pure: each returns what to record, or raises the error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias, cast, get_args

import msgspec
from msgspec.structs import replace

from foveal.core.compaction.plan import NoPlan, Plan
from foveal.core.compaction.summary_dialogue import MAX_FOCUS_CHARS
from foveal.core.engine.engine import Engine
from foveal.core.log.events import (
    LEFT_OUT_BY_CALLER,
    REDUCTIONS,
    AnyFact,
    Clipped,
    Compacted,
    CompactionFailed,
    Dropped,
    Event,
    Expanded,
    Masked,
    ModelSaid,
    Pinned,
    Prioritised,
    Priority,
    Reverted,
    Rewound,
    Steered,
    Superseded,
    ToolReturned,
    UserSaid,
    calls_of,
    handle,
    parse_handle,
)
from foveal.core.log.ranges import Ranges, seqs_outside
from foveal.core.models.budget import window_percent
from foveal.core.policies.ladder.cut import has_enough_turns
from foveal.core.policies.ladder.drop import hide_steps
from foveal.core.view.fold import effective_events, effective_rewinds
from foveal.core.view.steps import Step, hidden_ranges
from foveal.core.view.view import View
from foveal.core.wire.common import replace_surrogates
from foveal.core.wire.safe_print import one_line
from foveal.errors import (
    BadSetting,
    ContextOverflow,
    FovealError,
    NotCompacted,
    NotDropped,
    UnknownHandle,
    shown_value,
)


class OperationArguments(NamedTuple):
    """The arguments of an operation, with the events that its handles name."""

    text: str = ""
    event: Event | None = None
    by: Event | None = None
    priority: str = ""


# ── Helpers of undo and expand ─────────────────────────────────────────────────────────────────────────


def _expansion_facts(log: Sequence[Event], seq: int) -> list[Expanded]:
    """Return what to record so that the range of a reduction, or the step of an event, is shown whole until the
    next user message. `log` holds the effective events."""
    event = next((event for event in log if event.seq == seq), None)
    fact = event.fact if event is not None else None
    match fact:
        case Compacted() if fact.takes_item_back:
            return []
        case Compacted():
            return [Expanded(first=fact.first, last=fact.last)]
        case Dropped():
            return [Expanded(first=first, last=last) for first, last in fact.ranges]
        case Masked():
            return [_expand_step(log, target) for target in dict.fromkeys(mask.target for mask in fact.masks)]
        case Clipped():
            return [_expand_step(log, fact.target)]
        case UserSaid() | ModelSaid() | ToolReturned():
            return [_expand_step(log, seq)]
        case _:
            raise UnknownHandle(
                f"{handle(seq)} is neither a message nor an effective reduction: there is nothing to expand"
            )


def _expand_step(log: Sequence[Event], seq: int) -> Expanded:
    """Return the expansion of the step that an event belongs to: a result belongs to the step of its call."""
    call_id = next((e.fact.call_id for e in log if e.seq == seq and isinstance(e.fact, ToolReturned)), None)
    if call_id is None:
        return Expanded(first=seq, last=seq)
    callers = (
        e for e in reversed(log) if e.seq < seq and isinstance(e.fact, ModelSaid) and _calls(e.fact, call_id)
    )
    start = next((event.seq for event in callers), seq)
    return Expanded(first=start, last=start)


def _calls(fact: ModelSaid, call_id: str) -> bool:
    return any(call.id == call_id for _, call in calls_of(fact.content))


def _expansion_overflow(problem: ContextOverflow, name: str | int) -> ContextOverflow:
    """Return the error for a range that does not fit when it is shown whole."""
    return ContextOverflow(
        f"{name} cannot be shown whole: that would take {problem.needed:,} tokens and {problem.available:,} are "
        "available; expand a single event of it, or read it piece by piece with the recall tools",
        needed=problem.needed,
        available=problem.available,
        window=problem.window,
        reserve=problem.reserve,
        margin=problem.margin,
        capped=problem.capped,
        floor=problem.floor,
    )


def newest_to_undo(log: Sequence[Event]) -> Event:
    """Return the newest of the effective reductions, supersessions and rewinds; raises `UnknownHandle` when there
    is none."""
    reductions = (
        event
        for event in reversed(effective_events(log))
        if isinstance(event.fact, (*REDUCTIONS, Superseded)) and not _records_edit(event.fact)
    )
    rewinds = (event for event in reversed(effective_rewinds(log)) if not _records_edit(event.fact))
    newest = [event for event in (next(reductions, None), next(rewinds, None)) if event is not None]
    if not newest:
        raise UnknownHandle("nothing has been reduced, superseded or rewound, so there is nothing to undo")
    return max(newest, key=lambda event: event.seq)


def _records_edit(fact: AnyFact) -> bool:
    """Return whether a fact follows a change of the history that an application keeps itself: that history, not
    the log, says what the conversation is. Such rewinds keep the state beside the messages."""
    if isinstance(fact, Dropped):
        return fact.reason == LEFT_OUT_BY_CALLER
    return isinstance(fact, Rewound) and (fact.keep_state or fact.keep_reductions)


def _check_undo(event: Event, log: Sequence[Event]) -> None:
    """Raise `UnknownHandle` unless the event is effective and can be taken back."""
    if not isinstance(event.fact, (*REDUCTIONS, Pinned, Prioritised, Superseded, Expanded, Rewound)):
        raise UnknownHandle(
            f"{event.handle} is not a reduction, an expansion, a pin, a mark, a supersession or a rewind, so there "
            "is nothing to undo"
        )
    if _records_edit(event.fact):
        raise UnknownHandle(
            f"{event.handle} records an edit of the messages that were passed in: pass the earlier ones again"
        )
    effective = effective_rewinds(log) if isinstance(event.fact, Rewound) else effective_events(log)
    if all(other.seq != event.seq for other in effective):
        raise UnknownHandle(f"{event.handle} was undone before, so there is nothing to undo")
    cover = next((other for other in effective if _covers(other, event)), None)
    if cover is not None:
        raise UnknownHandle(
            f"{event.handle} is covered by {cover.handle}, which hides all that it is about: "
            f"undo {cover.handle} first"
        )


def _covers(summary: Event, event: Event) -> bool:
    """Return whether a later summary hides all that a reduction is about, so that to undo it shows nothing."""
    if not isinstance(summary.fact, Compacted) or summary.seq <= event.seq or summary.fact.takes_item_back:
        return False
    match event.fact:
        case Clipped(target=target):
            about: Ranges = ((target, target),)
        case Masked(masks=masks):
            about = tuple((mask.target, mask.target) for mask in masks)
        case Dropped() | Compacted(takes_item_back=False) as fact:
            about = hidden_ranges(fact)
        case _:
            return False
    hidden = hidden_ranges(summary.fact)
    return bool(about) and all(
        any(low <= first and last <= high for low, high in hidden) for first, last in about
    )


def _undo_overflow(problem: ContextOverflow, target: Event, *, is_named: bool) -> ContextOverflow:
    """Return the error for an undo after which the request would not fit."""
    name, window = target.handle, problem.window
    if isinstance(target.fact, Rewound):
        ways = "read what was rewound with the recall tools"
    else:
        ways = "`expand` a single event that it hides, or read what it hides with the recall tools"
    verb, anyway = "cannot be", ""
    if not is_named:
        verb = "was not"
        anyway = f', or take it back all the same with `undo("{name}")`: the next request is reduced again'
    return ContextOverflow(
        f"{name} {verb} taken back: the request would take {window_percent(problem.needed, window)} of the "
        f"window ({problem.needed:,} tokens), and at most {window_percent(problem.available, window)} "
        f"({problem.available:,}) fit; {ways}, use a model with a larger window{anyway}",
        needed=problem.needed,
        available=problem.available,
        window=problem.window,
        reserve=problem.reserve,
        margin=problem.margin,
        capped=problem.capped,
        floor=problem.floor,
    )


# ── What each operation records ────────────────────────────────────────────────────────────────────────


def seq_of(name: str | int, *, count: int) -> int:
    """Return the seq of a handle in a log of `count` events; raises `UnknownHandle`."""
    seq = parse_handle(name)
    if seq is None or seq >= count:
        raise unknown_handle(name, count=count)
    return seq


def unknown_handle(name: str | int | None, *, count: int) -> UnknownHandle:
    """Return the error for a handle that no event of a log of `count` events has."""
    known = f"the log has e0 to e{count - 1}" if count else "the log has no events"
    return UnknownHandle(f"no event has the handle {shown_value(name)}; {known}")


def _pin_facts(engine: Engine, log: Sequence[Event], given: OperationArguments) -> list[AnyFact]:
    """Return the fact that keeps a rule, or the step of an event, in every request: as it is now, or as it was said
    if it is hidden or expanded. Raises `ContextOverflow` when there is no room for it."""
    text, target = given.text, None if given.event is None else given.event.seq
    if not isinstance(text, str):
        raise BadSetting("text", text, "a text; the handle of an event is the argument `event`")
    if target is None and not text.strip():
        raise BadSetting("text", text, "a text that is not empty, or the argument `event` beside it")
    tokens, available = engine.view.meter.counter.count(text), engine.budget().available
    if tokens > available:
        raise BadSetting("text", text, f"a text that fits: it has {tokens:,} tokens, a request {available:,}")
    if target is not None and _is_whole_pin(engine, target):
        pin = _whole_pin(engine, text, log, target)
        _room_for(engine, log, [pin], target)
        return [pin]
    return [Pinned(text=replace_surrogates(text), target=target)]


def _is_whole_pin(engine: Engine, target: int) -> bool:
    """Return whether a pin of an event must bring back what was said: it is hidden, or only shown for this turn."""
    found = engine.view.find(target)
    return found is None or any(event.seq == found[0].pin_seq for event in engine.view.expansions)


def _whole_pin(engine: Engine, text: str, log: Sequence[Event], target: int) -> Pinned:
    name, effective = handle(target), effective_events(log)
    fact = next((event.fact for event in effective if event.seq == target), None)
    if not isinstance(fact, UserSaid | ModelSaid | ToolReturned) or target in engine.view.orphan_results:
        raise UnknownHandle(f"{name} is not shown and no message, so it cannot be pinned; see why({name!r})")
    start = _expand_step(effective, target).first
    return Pinned(text=replace_surrogates(text), target=start, whole=True)


def _room_for(engine: Engine, log: Sequence[Event], facts: Sequence[AnyFact], seq: int) -> list[Event]:
    """Return the reductions that would make room for what `facts` show, which is about event `seq`."""
    try:
        return engine.check_fits(log, facts)
    except ContextOverflow as problem:
        raise _expansion_overflow(problem, handle(seq)) from None


def room_for_expansion(engine: Engine, log: Sequence[Event], seq: int, *, pins: bool) -> list[Event]:
    """Return the reductions of other messages with which the next request would have room if event `seq` were
    expanded, or pinned while it is hidden. `log` is the whole log. Nothing is recorded. Raises as `expand` and
    `pin` do."""
    if pins:
        facts: list[AnyFact] = [_whole_pin(engine, "", log, seq)] if _is_whole_pin(engine, seq) else []
    else:
        facts = [*_expansion(log, seq)]
    return _room_for(engine, log, facts, seq) if facts else []


def _supersede_facts(engine: Engine, log: Sequence[Event], given: OperationArguments) -> list[AnyFact]:
    """Return the fact that a message of the user, or the rule that it pins, no longer holds because of the later
    message `by`. Raises `UnknownHandle` for other events, `BadSetting` for a message that is not later, and
    `ContextOverflow` when there is no room for the line that says so."""
    target, by = given.event, given.by
    if target is None or by is None:
        raise unknown_handle(None, count=engine.next_seq)
    if by.seq <= target.seq:
        raise BadSetting("by", by.handle, f"a message of the user after {target.handle}")
    effective = {event.seq for event in effective_events(log)}
    for event in (target, by):
        problem = _supersede_refusal(event, is_target=event is target, is_effective=event.seq in effective)
        if problem:
            raise UnknownHandle(problem)
    fact = Superseded(target=target.seq, by=by.seq)
    if engine.view.find(target.seq) is not None:
        engine.check_fits(log, [fact])
    return [fact]


def _supersede_refusal(event: Event, *, is_target: bool, is_effective: bool) -> str:
    """Return why an event cannot replace a message, or be replaced; "" if it can."""
    fact, name = event.fact, event.handle
    role = "be superseded" if is_target else "supersede another"
    if is_target and isinstance(fact, Pinned) and not fact.text and fact.target is not None:
        return f"{name} pins {handle(fact.target)} and says nothing itself: supersede {handle(fact.target)}"
    is_rule = is_target and isinstance(fact, Pinned) and bool(fact.text)
    if not is_rule and not isinstance(fact, UserSaid):
        return f"{name} is no message of the user, so it cannot {role}; name what the user said"
    if not is_effective:
        return f"{name} was rewound or undone, so it cannot {role}; see why({name!r})"
    return ""


def _drop_facts(engine: Engine, log: Sequence[Event], given: OperationArguments) -> list[AnyFact]:
    """Return the fact that hides the step of an event, or a summary with all that it stands for, until it is taken
    back. Raises `UnknownHandle` for what is not shown, and `NotDropped` for what every request contains."""
    if given.event is None:
        raise unknown_handle(None, count=engine.next_seq)
    view, name, seq = engine.view, given.event.handle, given.event.seq
    found = view.find(seq)
    if found is None:
        if any(shown.seq == seq for shown in view.asides.values()):
            raise NotDropped(f"{name} is an instruction, which every request contains: change its source")
        raise UnknownHandle(f"{name} is not shown, so it cannot be dropped; see why({name!r})")
    step = found[0]
    refusal = _drop_refusal(view, step, name)
    if refusal:
        raise NotDropped(refusal)
    fact = hide_steps(view, {step.seq}, reason="hand", rule="dropped on request")
    if step.kind == "summary":
        return [fact]
    late = seqs_outside((shown.seq for shown in step.shown_messages()), fact.ranges)
    return [replace(fact, ranges=(*fact.ranges, *((seq, seq) for seq in late)))]


def _drop_refusal(view: View, step: Step, name: str) -> str:
    """Return why a step must stay, "" if it may go."""
    if step.kind == "instructed":
        return f"{name} is an instruction, which every request contains: change its source"
    if step.kind in ("foreign", "passed"):
        return (
            f"{name} is a summary that the provider made, or what it stands for: the provider reads it in every "
            "request, so leave it out of the history that you send"
        )
    if step.is_pinned:
        pin = handle(step.pin_seq)
        return f'{name} is kept in every request by {pin}: take that back first, with `undo("{pin}")`'
    if step is view.latest_user:
        return (
            f"{name} is the latest message of the user, which every request contains: send another one first"
        )
    if step.has_open_call:
        return f"{name} belongs to a call that has no result yet: wait for it"
    return ""


def _undo_facts(engine: Engine, log: Sequence[Event], given: OperationArguments) -> list[AnyFact]:
    """Return the fact that takes back a reduction, an expansion, a pin, a supersession or a rewind; without an
    event, the newest reduction, supersession or rewind.

    Raises `UnknownHandle` when there is nothing to take back, and `ContextOverflow` when the request would not
    fit: without an event as it would be then, with one only if the policy could not reduce it otherwise."""
    is_named = given.event is not None
    chosen = given.event or newest_to_undo(log)
    _check_undo(chosen, log)
    fact = Reverted(target=chosen.seq)
    if not isinstance(
        chosen.fact, Pinned | Prioritised | Superseded | Expanded
    ):  # to take back one of these only makes room
        try:
            engine.check_fits(log, [fact], reduces=is_named)
        except ContextOverflow as problem:
            raise _undo_overflow(problem, chosen, is_named=is_named) from None
    return [fact]


def _expand_facts(engine: Engine, log: Sequence[Event], given: OperationArguments) -> list[AnyFact]:
    """Return the facts, at least one, that show a reduction's range or the step of an event in full until the
    user's next message. Raises `ContextOverflow` when there is no room for it."""
    if given.event is None:
        raise unknown_handle(None, count=engine.next_seq)
    facts = _expansion(log, given.event.seq)
    _room_for(engine, log, facts, given.event.seq)
    return [*facts]


def _expansion(log: Sequence[Event], seq: int) -> list[Expanded]:
    facts = _expansion_facts(effective_events(log), seq)
    if not facts:
        raise UnknownHandle(f"{handle(seq)} hides nothing, so there is nothing to expand")
    return facts


def _mark_facts(engine: Engine, log: Sequence[Event], given: OperationArguments) -> list[AnyFact]:
    """Return the fact that gives a message a priority. Raises `UnknownHandle` for what is no message."""
    if given.event is None:
        raise unknown_handle(None, count=engine.next_seq)
    fact, name = priority_fact(given.event.seq, given.priority), given.event.handle
    if not isinstance(given.event.fact, UserSaid | ModelSaid | ToolReturned):
        raise UnknownHandle(f"{name} is no message, so it has no priority; name what was said or returned")
    if all(event.seq != given.event.seq for event in effective_events(log)):
        raise UnknownHandle(f"{name} was rewound or undone, so it has no priority; see why({name!r})")
    return [fact]


def priority_fact(seq: int, priority: object) -> Prioritised:
    """Return the fact that gives the event `seq` a priority; raises `BadSetting` for an unknown one."""
    if priority not in get_args(Priority):
        raise BadSetting("priority", priority, f"one of {', '.join(get_args(Priority))}")
    return Prioritised(target=seq, priority=cast(Priority, priority))


def focus_fact(text: str) -> Steered:
    """Return the fact that says what the next summary or record keeps above all."""
    if not isinstance(text, str) or len(text) > MAX_FOCUS_CHARS:
        raise BadSetting("text", text, f"a text of at most {MAX_FOCUS_CHARS:,} characters")
    return Steered(by="user", focus=replace_surrogates(text.strip()))


def plan_manual_compaction(engine: Engine, focus: str) -> Plan:
    """Return the range to summarise now at the user's request; raises `NotCompacted` when there is none."""
    plan = engine.plan_summary(reason="hand", focus=focus)
    if isinstance(plan, NoPlan):
        ratio = engine.calibration.ratio
        raise NotCompacted(plan.explain(ratio), floor=round(plan.floor * ratio))
    return plan


def check_agreement(engine: Engine) -> None:
    """Raise `NotCompacted` unless the report has a question that the user can answer with yes."""
    if engine.policy.ladder == "off":
        raise NotCompacted("the policy `off` reduces nothing: `compact()` summarises anyway")
    if not engine.policy.asks:
        raise NotCompacted(
            f'mode "{engine.policy.mode}" asks nothing: `compact()` summarises without a question'
        )
    budget, tokens = engine.budget(), engine.calibration.tokens
    if engine.view.units <= budget.act and not has_enough_turns(engine.view, engine.policy):
        used, act = tokens(engine.total_units), tokens(budget.act + budget.fixed)
        raise NotCompacted(
            f"the request takes {window_percent(used, budget.window)} of the window and the question comes above "
            f"{window_percent(act, budget.window)}: `compact()` summarises anyway"
        )


def newest_reduction(events: Sequence[Event]) -> str:
    """Return the handle of the last reduction among these; raises `NotCompacted` when there is none."""
    newest = next((event for event in reversed(events) if isinstance(event.fact, REDUCTIONS)), None)
    if newest is None:
        raise NotCompacted("what is left may not be reduced")
    return newest.handle


def compaction_handle(outcome: Event) -> str:
    """Return the handle of the event that records a summary; raises `NotCompacted` when it records a failure."""
    if isinstance(outcome.fact, CompactionFailed):
        raise NotCompacted(outcome.fact.problem)
    return outcome.handle


# ── The table ──────────────────────────────────────────────────────────────────────────────────────────

OperationName: TypeAlias = Literal["undo", "expand", "pin", "mark", "supersede", "drop", "compact"]
ArgumentName: TypeAlias = Literal["event", "by", "text", "focus", "priority"]
Decide: TypeAlias = Callable[[Engine, Sequence[Event], OperationArguments], list[AnyFact]]


class OperationRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An operation with its arguments, as a user or a client writes them."""

    operation: OperationName
    event: str = ""
    """The handle of an event. `undo` without one takes back the newest reduction or supersession."""
    text: str = ""
    """For `pin`: a rule for every request, instead of an event."""
    by: str = ""
    """For `supersede`: the handle of the later message."""
    focus: str = ""
    """For `compact`: what to keep above all."""
    priority: str = ""
    """For `mark`: `low`, `normal` or `high`."""


class Argument(NamedTuple):
    """An argument of an operation."""

    name: ArgumentName
    """Its field in `OperationRequest`."""
    parameter: str
    """Its name in the methods of `Context` and `Session`."""
    is_required: bool = False

    @property
    def is_handle(self) -> bool:
        return self.name in ("event", "by")


class Sentences(NamedTuple):
    """What an operation has done, for people. In braces stand the arguments; `recorded`, the handle of the event
    that records it; `named`, the handle that the method returned; and `about`, a sentence about that event."""

    page: str
    line: str = ""
    """In a terminal, in front of how to undo it."""


class Operation(NamedTuple):
    """An entry of the table."""

    name: OperationName
    """Also that of the methods of `Context` and `Session`."""
    arguments: tuple[Argument, ...]
    """In the order in which they are typed."""
    done: Sentences
    done_with_text: Sentences | None = None
    """The same for a text instead of an event."""
    decide: Decide | None = None
    """Returns what to record. None for a summary, which a model or the ledger writes."""
    reads_log: Callable[[Engine, OperationArguments], bool] = lambda engine, given: True
    """Whether `decide` reads the log, which a `Session` loads only then."""
    hides: bool = False
    """Whether the model may need the recall tools afterwards."""
    usage: str = ""
    """The arguments in the help of the chat."""
    help: str = ""
    """What it does, in the help of the chat; "" if the chat has a command of its own with this name."""
    missing: str = ""
    """The error for a line of the chat that lacks arguments; "" if none is needed."""
    summary: str = ""
    """What it does, in the documentation of the API; "" if the API does not offer it."""
    phrase: str = ""
    """What to do after the turn, in the error of a session that is answering."""

    def read_line(self, line: str) -> OperationRequest:
        """Return what the words after a command ask for; raises `FovealError` if some are missing. For an operation
        that takes an event or a text, what can be a handle is one."""
        handles = [argument.name for argument in self.arguments if argument.is_handle]
        text = next((argument.name for argument in self.arguments if not argument.is_handle), None)
        is_handle = line.startswith(("e", "#e")) and parse_handle(line) is not None
        if all(argument.is_required for argument in self.arguments):
            handles, text = [argument.name for argument in self.arguments], None
        if text is not None and not (handles and is_handle):
            fields, is_complete = {text: line}, bool(line)
        else:
            words = line.split() if len(handles) > 1 else [line]
            fields = {name: word.removeprefix("#") for name, word in zip(handles, words, strict=False)}
            is_complete = len(words) == len(handles) and all(words)
        if self.missing and not is_complete:
            raise FovealError(self.missing)
        return OperationRequest(operation=self.name, **fields)

    def method_arguments(self, asked: OperationRequest) -> dict[str, str]:
        """Return the keyword arguments of the method: beside an event, no text. Raises `UnknownHandle` if the event
        is missing."""
        found = {}
        for argument in self.arguments:
            value: str = getattr(asked, argument.name)
            is_instead = not argument.is_handle and not argument.is_required  # a text instead of an event
            value = value.strip() if not is_instead else "" if asked.event.strip() else value
            if argument.is_required and argument.name == "event" and not value:
                raise UnknownHandle(f"{self.name} needs the handle of an event, such as e12")
            if value or argument.is_required:
                found[argument.parameter] = value
        return found

    def sentences(self, asked: OperationRequest, **handles: str) -> Sentences:
        """Return what was done, with the arguments and `handles` in the place of the braces."""
        done = self.done if asked.event.strip() or self.done_with_text is None else self.done_with_text
        values = {
            "event": asked.event.strip(),
            "by": asked.by.strip(),
            "priority": asked.priority.strip(),
            "text": one_line(asked.text, width=60),
            "recorded": "",
            "named": "",
            "about": "",
            **handles,
        }
        return Sentences(*(sentence.format_map(values) for sentence in done))


_EVENT: Final = Argument("event", "name", is_required=True)
_TABLE: Final = (
    Operation(
        name="compact",
        arguments=(Argument("focus", "focus"),),
        done=Sentences("{about}"),
        hides=True,
        usage="[FOCUS]",
        help="summarise old turns now; FOCUS is kept above all",
        summary="Summarise old turns now, or answer the question of mode `confirm` with yes.",
        phrase="compact it",
    ),
    Operation(
        name="undo",
        arguments=(Argument("event", "name"),),
        done=Sentences("{named} is taken back: {about}"),
        decide=_undo_facts,
        usage="[HANDLE]",
        help="undo the newest reduction, /supersede or rewind, or this one",
        summary="Undo a reduction, a pin, a supersession or a rewind.",
        phrase="undo something",
    ),
    Operation(
        name="expand",
        arguments=(_EVENT,),
        done=Sentences("{event} is shown in full until the next user message"),
        decide=_expand_facts,
        phrase="expand something",
    ),
    Operation(
        name="pin",
        arguments=(Argument("event", "event"), Argument("text", "text")),
        done=Sentences(
            "{event} stays in every request",
            "pinned {event} as it is now, in every request from now on",
        ),
        done_with_text=Sentences(
            "the rule is in every request", "pinned “{text}”, in every request from now on"
        ),
        decide=_pin_facts,
        reads_log=lambda engine, given: given.event is not None and _is_whole_pin(engine, given.event.seq),
        usage="TEXT",
        help="keep a rule, or the event of a handle, in every request",
        missing=(
            "/pin needs a text, the rule to keep in every request; or a handle, to keep that event as it is now"
        ),
        summary="Keep a rule in every request.",
        phrase="pin something",
    ),
    Operation(
        name="mark",
        arguments=(_EVENT, Argument("priority", "priority", is_required=True)),
        done=Sentences(
            "{event} has {priority} priority; undo {recorded} takes that back",
            "{event} has {priority} priority in the next cut",
        ),
        decide=_mark_facts,
        usage="HANDLE PRIORITY",
        help="say when a message is hidden: low before all others, high last of all",
        missing="/mark needs a handle and a priority: low, normal or high",
        summary="Say when a message is hidden: before all others, or last of all.",
        phrase="mark something",
    ),
    Operation(
        name="supersede",
        arguments=(_EVENT, Argument("by", "by", is_required=True)),
        done=Sentences(
            "{event} is replaced by {by}; undo {recorded} takes that back",
            "{event} is replaced by {by}, and the model sees that beside it",
        ),
        decide=_supersede_facts,
        usage="HANDLE BY",
        help="say that one of your messages no longer holds: the later message BY replaces it",
        missing=(
            "/supersede needs two handles: your message that no longer holds, and your later one that replaces it"
        ),
        summary="Say that a message of the user no longer holds, because of a later one.",
        phrase="supersede something",
    ),
    Operation(
        name="drop",
        arguments=(_EVENT,),
        done=Sentences(
            "{event} is not shown any more; undo {recorded} brings it back",
            "{event} is not shown to the model any more",
        ),
        decide=_drop_facts,
        reads_log=lambda engine, given: False,
        hides=True,
        usage="HANDLE",
        help="hide a message with its tool results, or a summary",
        missing="/drop needs a handle: the message or the summary to hide from the model",
        summary="Hide a message with its tool results, or a summary, from the model.",
        phrase="drop something",
    ),
)
OPERATIONS: Final = {operation.name: operation for operation in _TABLE}
"""All operations, in the order in which the help lists them."""


def decide(
    name: OperationName, engine: Engine, log: Sequence[Event], given: OperationArguments
) -> list[AnyFact]:
    """Return what an operation records, at least one fact; raises the error if it cannot be carried out. `log` is
    the whole log, if the operation `reads_log`."""
    chosen = OPERATIONS[name].decide
    assert chosen is not None, f"{name} is decided elsewhere"
    return chosen(engine, log, given)
