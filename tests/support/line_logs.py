"""Logs of random conversations whose results repeat lines, with reductions of every kind in between."""

from __future__ import annotations

from random import Random
from typing import Final

from hypothesis import strategies as st

from foveal.core.log import (
    AnyFact,
    Call,
    Clipped,
    Compacted,
    Dropped,
    Event,
    Mask,
    Masked,
    ModelSaid,
    Reverted,
    Rewound,
    Text,
    ToolReturned,
    UserSaid,
    raw,
)

LINES: Final = tuple(f"{'abcd' * (number % 3)}line {number} = compute({number * 7}" for number in range(24))
_KINDS: Final = ("say",) * 6 + (
    "clip",
    "clip",
    "mask",
    "refer",
    "refer",
    "drop",
    "compact",
    "revert",
    "rewind",
)


def line_log(seed: int, size: int) -> list[Event]:
    """Return a log in which calls and results show the same few lines again and again."""
    dice = Random(seed)
    log: list[Event] = []
    while len(log) < size:
        kind = dice.choice(_KINDS) if len(log) > 4 else "say"
        for fact in _step(dice, len(log)) if kind == "say" else _reduction(dice, kind, log):
            log.append(Event(len(log), fact))
    return log


def line_logs(size: int = 40) -> st.SearchStrategy[list[Event]]:
    return st.builds(line_log, st.integers(0, 2**32), st.integers(1, size))


def _text(dice: Random) -> str:
    first = dice.randrange(len(LINES))
    return "\n".join(LINES[first : first + dice.randint(1, 12)])


def _step(dice: Random, number: int) -> list[AnyFact]:
    if dice.random() < 0.2:
        return [UserSaid(content=f"request {number}\n{_text(dice)}")]
    arguments = bytes(raw({"path": "a.py", "text": _text(dice)})).decode()
    call = Call(id=f"c{dice.randrange(4)}", name="edit", arguments=arguments)
    result: AnyFact = ToolReturned(call_id=call.id, content=_text(dice))
    if dice.random() < 0.3:
        result = ToolReturned(call_id=call.id, content=(Text(text=_text(dice)), Text(text=_text(dice))))
    return [ModelSaid(content=(call,))] + ([result] if dice.random() < 0.9 else [])


def _reduction(dice: Random, kind: str, log: list[Event]) -> list[AnyFact]:
    results = [event for event in log if isinstance(event.fact, ToolReturned)]
    first = dice.randrange(len(log))
    last = min(len(log) - 1, first + dice.randint(0, 6))
    match kind:
        case "drop":
            return [Dropped(ranges=((first, last),))]
        case "compact":
            return [Compacted(first=first, last=last, summary="In short: …", by="ledger")]
        case "rewind":
            return [Rewound(to=max(first, len(log) - 5), keep_reductions=dice.random() < 0.5)]
        case "revert":
            taken = [e for e in log if isinstance(e.fact, Clipped | Masked | Dropped | Compacted | Rewound)]
            return [Reverted(target=dice.choice(taken).seq)] if taken else []
    if not results:
        return []
    masked = {mask.target for event in log if isinstance(event.fact, Masked) for mask in event.fact.masks}
    target = dice.choice(results)
    if target.seq in masked:  # no policy reduces a placeholder further
        return []
    part = -1 if isinstance(target.fact.content, str) else dice.randrange(2)  # type: ignore[union-attr]
    if kind == "mask":
        return [Masked(masks=(Mask(target=target.seq, text="[masked]"),))]
    if kind == "clip":
        return [Clipped(target=target.seq, part=part, pieces=((0, 5), "[cut]"))]
    older = [event.seq for event in results if event.seq < target.seq]
    sources = tuple(sorted(dice.sample(older, min(len(older), dice.randint(1, 2)))))
    pieces = ((0, 3), "[as above]")
    return [Clipped(target=target.seq, part=part, pieces=pieces, sources=sources)] if sources else []
