"""Reviews: what a hook sees of a cut before it is made, and what it may ask for.

1. `propose` describes the reduction that the policy wants: what it hides, what it saves, and its price.
2. The caller asks its hook and sends back a `Wish`: events to keep, a focus for the record, or a veto.
3. The engine follows the wish while the request fits, and records it as `Steered`; what it cannot follow is
   recorded with the reason. An answer that cannot be read, or an exception, is a note in the log, and the cut is
   made.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias, TypedDict

import msgspec

from foveal.core.compaction.plan import Plan
from foveal.core.compaction.summary_dialogue import MAX_FOCUS_CHARS
from foveal.core.log.events import (
    Clipped,
    Dropped,
    Mask,
    Masked,
    Priority,
    Reduction,
    handle,
    kind,
    parse_handle,
    text_of,
)
from foveal.core.log.ranges import is_within
from foveal.core.models.model import Model
from foveal.core.policies.moment import Moment
from foveal.core.reduction.placeholder import call_subject
from foveal.core.view.steps import Level, ShownMessage, Step
from foveal.core.view.view import View
from foveal.core.wire.safe_print import one_line, printable
from foveal.errors import BadSetting, shown_value

MAX_REVIEWS: Final = 8
"""Most reductions of one request that a hook is asked about: the first ones hide nearly all."""
MAX_SENT_CHARS: Final = 1_000
"""Characters of a message that a program or a server sees as a hook, half of them from its end."""
MAX_HOOK_PROBLEM_CHARS: Final = 400
"""Characters of the error of a hook that are told: what to do is often at its end."""
HOOK_TOPIC: Final = "hook"
"""Topic of the note that says that a hook failed."""
NO_ROOM: Final = "the request does not fit otherwise"
"""Why a wish was not followed. The text enters the log and must not change."""

CutKind: TypeAlias = Literal["clip", "mask", "drop", "summary"]


class EventBrief(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message, in short: as a hook or the `priority` of `fit` sees it.

    Examples:
        ```python
        import foveal

        event = foveal.EventBrief(handle="e4", kind="tool_returned", level="masked", tokens=900, tool="bash")
        ```
    """

    handle: str
    """The handle of the event."""
    kind: str
    """The kind of its fact."""
    level: Level
    """Its level; in a proposed cut, the one at which it would be shown."""
    tokens: int
    """Tokens that it takes now."""
    tool: str = ""
    """For a result: the name of the tool."""
    subject: str = ""
    """For a result: the command or the path of the call."""
    text: str = ""
    """The whole text of the message. A program or a server gets the beginning and the end of a long one."""


class ProposedCut(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A reduction that the policy wants to make, as a hook sees it.

    Examples:
        ```python
        import foveal


        def keep_failures(cut: foveal.ProposedCut) -> foveal.Steering | None:
            failed = [event.handle for event in cut.events if "FAILED" in event.text]
            return {"keep": failed} if failed else None


        ctx = foveal.Context("gpt-4.1", on_reduction=keep_failures)
        ```
    """

    kind: CutKind
    """What it does: `clip`, `mask`, `drop` or `summary`; a summary also hides results."""
    reason: str
    """The trigger, as the log will name it."""
    rule: str
    """The rule that decided it."""
    events: tuple[EventBrief, ...]
    """What it hides or shortens, oldest first."""
    freed: int
    """Tokens that the request loses."""
    used: int
    """Tokens of the request now."""
    limit: int
    """Most tokens that it may take."""
    is_forced: bool
    """Whether the request does not fit without a cut: then a veto is refused."""
    rewritten: int
    """Tokens that the provider reads again at the full price, because something in front of them changes."""
    price: float | None = None
    """Dollars that this costs once; None if the price of the model is unknown."""


class Steering(TypedDict, total=False):
    """What a hook may return, or a program or a server answers as JSON. Each part is optional.

    Examples:
        ```python
        import foveal

        answer: foveal.Steering = {"keep": ["e41"], "focus": "the migration"}
        ```
    """

    keep: Sequence[str | int]
    """Handles of events whose steps stay as they are."""
    focus: str
    """What the record or the summary keeps above all."""
    veto: bool
    """Whether the cut is not to be made now. A cut that the window forces is made anyway."""


ReductionHook: TypeAlias = Callable[[ProposedCut], "Steering | Awaitable[Steering | None] | None"]
"""Sees a cut before it is made. An async one needs `Context.afit` or a `Session`."""


PriorityOf: TypeAlias = Callable[[EventBrief], Priority | None]
"""Returns when reductions hide a message; None as its tool says."""


class Wish(NamedTuple):
    """What a hook asks for, checked."""

    keep: tuple[int, ...] = ()
    focus: str = ""
    veto: bool = False
    problem: str = ""
    """How the hook failed, in words."""


def read_wish(answer: object, *, count: int) -> Wish:
    """Return what a hook asks for in a log of `count` events; raises `BadSetting` for what is no `Steering`."""
    if answer is None:
        return Wish()
    if not isinstance(answer, Mapping) or not answer.keys() <= Steering.__annotations__.keys():
        raise BadSetting(
            "on_reduction", answer, "a hook that returns None, or keep, focus and veto as a mapping"
        )
    keep, focus, veto = answer.get("keep") or (), answer.get("focus") or "", answer.get("veto") or False
    if isinstance(keep, str) or not isinstance(keep, Sequence):
        raise BadSetting("keep", keep, "a list of handles")
    if not isinstance(focus, str) or len(focus) > MAX_FOCUS_CHARS:
        raise BadSetting("focus", focus, f"a text of at most {MAX_FOCUS_CHARS:,} characters")
    if not isinstance(veto, bool):
        raise BadSetting("veto", veto, "True or False")
    return Wish(tuple(sorted({_seq_of(name, count) for name in keep})), focus.strip(), veto)


def _seq_of(name: object, count: int) -> int:
    seq = parse_handle(name) if isinstance(name, str | int) and not isinstance(name, bool) else None
    if seq is None or seq >= count:
        raise BadSetting("keep", name, f"handles of events, e0 to e{count - 1}")
    return seq


def failed_wish(error: BaseException) -> Wish:
    """Return the wish of a hook that failed: nothing, with the problem."""
    told = f"{type(error).__name__}: {error}" if str(error) else shown_value(error)
    return Wish(problem=one_line(told, width=MAX_HOOK_PROBLEM_CHARS))


# ── The proposal ─────────────────────────────────────────────────────────────────────────────────────────


class CutSizes(NamedTuple):
    """Sizes of a request, in tokens."""

    used: int
    limit: int
    ratio: float
    """Tokens per unit."""


def propose(
    view: View,
    reduction: Reduction | tuple[Clipped, ...] | Plan,
    *,
    moment: Moment,
    model: Model,
    sizes: CutSizes,
    is_forced: bool,
) -> ProposedCut:
    """Return a reduction as a hook sees it."""
    facts = reduction if isinstance(reduction, tuple) else (reduction,)
    affected = sorted(
        {change.shown.seq: change for fact in facts for change in _changes(view, fact)}.values(),
        key=lambda change: change.shown.seq,
    )
    freed = sum(_freed(view, fact) for fact in facts)
    first = min((change.step.seq for change in affected), default=0)
    behind = sum(view.units_of(step) for step in view.steps if step.seq >= first)
    rewritten = round(max(0, behind - freed) * sizes.ratio)
    newest = facts[0]
    return ProposedCut(
        kind=_kind(newest),
        reason="" if isinstance(newest, Clipped) else newest.reason,
        rule=newest.rule,
        events=tuple(_brief(view, change, sizes.ratio) for change in affected),
        freed=round(freed * sizes.ratio),
        used=sizes.used,
        limit=sizes.limit,
        is_forced=is_forced,
        rewritten=rewritten,
        price=rewrite_price(rewritten, moment=moment, model=model),
    )


def rewrite_price(tokens: int, *, moment: Moment, model: Model) -> float | None:
    """Return the dollars that reading so many cached tokens again costs; None if the price is unknown."""
    if model.input_price is None:
        return None
    return 0.0 if moment.free_break else tokens * (moment.write - moment.read) * model.input_price / 1_000_000


class _Change(NamedTuple):
    step: Step
    shown: ShownMessage
    level: Level


def _changes(view: View, fact: Reduction | Plan) -> Iterator[_Change]:
    """Yield what a reduction hides or shortens."""
    if isinstance(fact, Clipped):
        yield from _shown(view, fact.target, "clipped")
        return
    masks = () if isinstance(fact, Dropped) else fact.masks
    for mask in masks:
        yield from _shown(view, mask.target, "clipped" if mask.part >= 0 else "masked")
    if isinstance(fact, Masked):
        return
    ranges = fact.ranges if isinstance(fact, Dropped) else ((fact.first, fact.last),)
    kept = frozenset[int]() if isinstance(fact, Dropped) else frozenset(fact.keep)
    level: Level = "dropped" if isinstance(fact, Dropped) else "summarised"
    for step in view.steps:
        if step.is_pinned or step.kind not in ("user", "model", "summary") or step.seq in kept:
            continue
        if is_within(step.seq, ranges):
            yield from (_Change(step, shown, level) for shown in step.shown_messages())


def _shown(view: View, seq: int, level: Level) -> Iterator[_Change]:
    found = view.find(seq)
    if found is not None:
        yield _Change(*found, level)


def _freed(view: View, fact: Reduction | Plan) -> int:
    match fact:
        case Plan():
            return max(0, fact.before - fact.room)
        case Clipped():
            return max(0, fact.total_tokens - fact.kept_tokens)
        case Masked():
            return sum(_saved(view, mask) for mask in fact.masks)
        case _:
            steps = {id(change.step): change.step for change in _changes(view, fact)}
            return sum(map(view.units_of, steps.values()))


def _saved(view: View, mask: Mask) -> int:
    found = view.find(mask.target)
    if found is None:
        return 0
    shown = found[1]
    units = shown.replaceable_units(view.meter) if mask.part < 0 else shown.part_units(view.meter, mask.part)
    return max(0, units - view.meter.counter.count(mask.text))


def brief_of(view: View, seq: int, *, ratio: float) -> EventBrief | None:
    """Return a message in view in short; None if it is not shown."""
    found = view.find(seq)
    return None if found is None else _brief(view, _Change(*found, found[1].level), ratio)


def _brief(view: View, change: _Change, ratio: float) -> EventBrief:
    step, shown, level = change
    call = next((slot.call for slot in step.slots if slot.result is shown), None)
    return EventBrief(
        handle=handle(shown.seq),
        kind=kind(shown.fact),
        level=level,
        tokens=round(shown.units(view.meter) * ratio),
        tool="" if call is None else call.name,
        subject="" if call is None else call_subject(call),
        text=text_of(shown.fact.content),
    )


def cut_to_send(cut: ProposedCut) -> ProposedCut:
    """Return a cut for a program or a server: of a long message the beginning and the end, which say that
    characters between them are missing, and how many."""
    events = tuple(msgspec.structs.replace(event, text=_text_to_send(event.text)) for event in cut.events)
    return msgspec.structs.replace(cut, events=events)


def _text_to_send(text: str) -> str:
    half = MAX_SENT_CHARS // 2
    if len(text) > MAX_SENT_CHARS:
        text = f"{text[:half]}\n… {len(text) - 2 * half:,} characters left out …\n{text[-half:]}"
    return printable(text)


def _kind(fact: Reduction | Plan) -> CutKind:
    match fact:
        case Clipped():
            return "clip"
        case Masked():
            return "mask"
        case Dropped():
            return "drop"
        case _:
            return "summary"
