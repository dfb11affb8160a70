"""The worst losses: which results were hidden although their words were needed again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from foveal.replay.figures import Figures
from foveal.replay.traces import Loss

EXAMPLES = 5


class Hidden(msgspec.Struct, frozen=True, kw_only=True):
    """One result that a policy hid, and what was needed of it afterwards."""

    policy: str
    conversation: str
    title: str
    handle: str
    tool: str
    level: str
    rule: str
    by: str
    """The event that hid it, with its reason."""
    needs: int
    """How often something was needed of it."""
    calls: tuple[int, ...]
    """The calls that did."""
    examples: tuple[str, ...]
    """What they needed, the longest first."""


def worst(rows: Sequence[Figures], *, most: int = 20) -> list[Hidden]:
    """For each policy the results that were missed most, the worst first."""
    return [hidden for row in rows for hidden in _worst(row, most)]


def _worst(row: Figures, most: int) -> Iterable[Hidden]:
    found: list[Hidden] = []
    for trace in row.traces:
        groups: dict[tuple[str, str], list[Loss]] = {}
        for loss in trace.losses:
            groups.setdefault((loss.handle, loss.by), []).append(loss)
        found += [_hidden(row.policy, trace.conversation, trace.title, losses) for losses in groups.values()]
    return sorted(found, key=lambda one: (-one.needs, one.conversation, one.calls))[:most]


def _hidden(policy: str, conversation: str, title: str, losses: Sequence[Loss]) -> Hidden:
    first = losses[0]
    texts = sorted({loss.text for loss in losses}, key=lambda text: (-len(text), text))
    return Hidden(
        policy=policy,
        conversation=conversation,
        title=title,
        handle=first.handle,
        tool=first.tool,
        level=first.level,
        rule=first.rule,
        by=first.by,
        needs=len(losses),
        calls=tuple(sorted({loss.call for loss in losses})),
        examples=tuple(texts[:EXAMPLES]),
    )
