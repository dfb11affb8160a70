"""A cut that the model asks for: what fills its window, what a cut would free, and the rules of such a cut.

1. `status_text` answers `context_status` in five lines.
2. `plan_asked_cut` returns the cut of `context_cut`, or raises `FovealError` with the numbers. It hides results, as
   a cut of `economy` that nothing forces, and leaves calls, texts and the user's messages.
3. A cut must free a fifth of the request, cost little of what the conversation has cost, and leave half of the
   request or a line of each result that it hides. So cuts cannot follow each other without much that is new between
   them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from foveal.core.compaction.plan import Plan
from foveal.core.engine.engine import Engine
from foveal.core.engine.event_status import request_parts
from foveal.core.engine.reviews import rewrite_price
from foveal.core.log.events import Compacted, CompactionFailed, DialectName, Steered, handle, parse_handle
from foveal.core.models.budget import window_percent
from foveal.core.policies import Moment, economy, ladder
from foveal.core.wire.safe_print import counted, one_line
from foveal.core.wire.tool_schemas import ToolDefinition, tool_schemas
from foveal.errors import FovealError, UnknownHandle

CONTEXT_STATUS: Final = "context_status"
CONTEXT_CUT: Final = "context_cut"
CONTEXT_TOOL_NAMES: Final = (CONTEXT_STATUS, CONTEXT_CUT)
ASKED: Final = "asked"
"""The reason of a cut that the model has asked for."""
MAX_WHY_CHARS: Final = 300
MAX_KEPT_HANDLES: Final = 50
_MAX_LARGEST: Final = 4
_ANSWER_PREFIX: Final = "[foveal context: "
_TOOLS: Final[dict[str, ToolDefinition]] = {
    CONTEXT_STATUS: (
        "Show in five lines what fills your context window, the largest results, and what a cut would free. "
        "Ask at a natural break of a long task, not at every step.",
        {},
        [],
    ),
    CONTEXT_CUT: (
        "Hide old tool results from your context; placeholders stay, and recall tools read them again. "
        "Call it when a part of the work is finished and its output is no longer needed: after a search that has "
        "found its place, after a failed attempt, before a new subject. Do not call it while you still compare, "
        "quote or edit what would be hidden, nor to be on the safe side: the window never overflows without it. "
        "It is refused if it frees less than a fifth, or costs more than it saves.",
        {
            "keep": {
                "type": "array",
                "items": {"type": "string"},
                "description": "Handles, such as e41, of messages that must stay as they are",
            },
            "why": {"type": "string", "description": "What is finished, in one sentence"},
        },
        ["why"],
    ),
}


def context_tools(dialect: DialectName) -> list[Any]:
    """Return the schemas of `context_status` and `context_cut` in the form of a dialect.

    `Context.recall` and `Session.manage` answer their calls.

    Args:
        dialect: The dialect of the request.

    Raises:
        BadSetting: The dialect is unknown.

    Examples:
        ```python
        import foveal

        tools = [*foveal.recall.tools("openai_chat"), *foveal.recall.context_tools("openai_chat")]
        assert len(tools) == 4
        ```
    """
    return tool_schemas(dialect, _TOOLS)


class CutRequest(NamedTuple):
    """What the model asks for."""

    keep: tuple[int, ...]
    why: str

    @property
    def fact(self) -> Steered:
        """The fact that records it, in front of the cut."""
        return Steered(by="model", keep=self.keep, reason=self.why)


def read_cut_request(given: Mapping[str, Any], *, count: int) -> CutRequest:
    """Return the arguments of `context_cut` in a log of `count` events; raises `UnknownHandle` for a handle that no
    event has."""
    asked = given.get("keep") or ()
    names: Sequence[Any] = asked.replace(",", " ").split() if isinstance(asked, str) else asked
    if not isinstance(names, Sequence):
        raise UnknownHandle("keep is a list of handles, such as e41")
    seqs = [parse_handle(name) if isinstance(name, str) else None for name in names[:MAX_KEPT_HANDLES]]
    for name, seq in zip(names, seqs, strict=False):
        if seq is None or seq >= count:
            raise UnknownHandle(f"no event has the handle {one_line(str(name), width=40)}")
    keep = tuple(sorted({seq for seq in seqs if seq is not None}))
    return CutRequest(keep, one_line(str(given.get("why") or ""), width=MAX_WHY_CHARS))


def plan_asked_cut(engine: Engine, moment: Moment, asked: CutRequest) -> Plan:
    """Return the cut that the model asks for; raises `FovealError` with the numbers if it is not to be made."""
    policy, view, budget = engine.policy, engine.view, engine.budget()
    if policy.ladder == "off" or policy.mode != "auto":
        raise FovealError(f"the policy {policy.name} leaves cuts to the user")
    kept = [found[0] for seq in asked.keep if (found := view.find(seq)) is not None]
    with view.holding([*kept, *ladder.high_steps(view, budget, policy)]):
        planned = ladder.plan_cut(view, budget, policy, goal=inf, said=moment.said, reason=ASKED)
    tokens, total = engine.calibration.tokens, engine.total_units
    freed = 0 if planned is None else max(0, planned.before - planned.room)
    if planned is None or freed < ladder.MIN_FREED_SHARE * total:
        raise FovealError(
            f"it would free {tokens(freed):,} of {tokens(total):,} tokens, and a cut must free a fifth: "
            f"{tokens(round(ladder.MIN_FREED_SHARE * total)):,}"
        )
    if not economy.is_cheap(planned.rewritten, planned.lost_thinking, moment):
        spent = f"a tenth of what the conversation has cost, {tokens(round(moment.spent)):,} tokens"
        raise FovealError(
            f"{tokens(planned.rewritten):,} tokens would be read again at the full price to free "
            f"{tokens(freed):,}: that costs more than {spent}; ask later"
        )
    if not economy.is_harmless(view, planned):
        raise FovealError(
            "it would hide more than half of the request, and some results without a line of each"
        )
    return replace(planned, ask=False, focus=engine.compaction_health.focus)


def cut_answer(engine: Engine, made: Compacted | CompactionFailed, *, before: int) -> str:
    """Return the answer to `context_cut`. `before` are the tokens of the request before it."""
    if isinstance(made, CompactionFailed):
        return refusal_text(made.problem)
    after = engine.calibration.tokens(engine.total_units)
    hidden = len({mask.target for mask in made.masks})
    results = f"{counted(hidden, 'result')} {'is' if hidden == 1 else 'are'} hidden"
    return (
        f"{_ANSWER_PREFIX}the cut is made. {results}, each behind a placeholder with its "
        f"handle; the request has {after:,} tokens, {before - after:,} less]"
    )


def refusal_text(problem: object) -> str:
    """Return the answer to a call of a context tool that cannot be followed."""
    return f"{_ANSWER_PREFIX}refused: {problem}]"


def status_text(engine: Engine, moment: Moment) -> str:
    """Return the answer to `context_status`: five lines."""
    tokens, budget = engine.calibration.tokens, engine.budget()
    used, limit = tokens(engine.total_units), engine.available_tokens(budget)
    sizes: dict[str, int] = {}
    for part in request_parts(engine):
        sizes[part.category] = sizes.get(part.category, 0) + part.tokens
    ordered = sorted(sizes.items(), key=lambda size: -size[1])
    shares = ", ".join(f"{category} {size:,}" for category, size in ordered if size)
    lines = [
        f"{_ANSWER_PREFIX}the request has {used:,} tokens, {window_percent(used, budget.window)} of the window; at "
        f"most {limit:,} fit]",
        f"by kind: {shares or 'nothing'}",
        f"largest results: {_largest(engine) or 'none'}",
    ]
    try:
        planned = plan_asked_cut(engine, moment, CutRequest((), ""))
    except FovealError as problem:
        lines += [f"a cut now is refused: {problem}", "price: none"]
    else:
        freed = planned.before - planned.room
        price = rewrite_price(tokens(planned.rewritten), moment=moment, model=engine.model)
        dollars = "" if price is None else f", about ${price:.4f}"
        lines += [
            f"a cut now hides {len({mask.target for mask in planned.masks})} results and frees at least "
            f"{tokens(freed):,} tokens",
            f"price: {tokens(planned.rewritten):,} tokens are read again once{dollars}",
        ]
    return "\n".join(lines)


def _largest(engine: Engine) -> str:
    view, tokens = engine.view, engine.calibration.tokens
    found = sorted(view.unmasked_results.values(), key=lambda slot: -_units(engine, slot.result))
    shown = ((slot.call.name, slot.result) for slot in found[:_MAX_LARGEST])
    return ", ".join(
        f"{handle(result.seq)} {one_line(name, width=40)} {tokens(result.units(view.meter)):,}"
        for name, result in shown
        if result is not None
    )


def _units(engine: Engine, result: Any) -> int:
    return 0 if result is None else int(result.units(engine.view.meter))
