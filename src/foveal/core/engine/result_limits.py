"""Limits of tool results: which apply, and the clips that enforce them."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from foveal.core.log.events import Clipped, Event, Text, ToolReturned
from foveal.core.policies import Policy
from foveal.core.reduction import truncation
from foveal.core.reduction.truncation import UNLIMITED, Limits, clip_parts
from foveal.core.tokens.counter import Counter


def result_limits(policy: Policy, tool: str, call_limits: Limits | None, *, hard_limit: int) -> Limits:
    """Return the limits of a tool's result. `call_limits` are those of this call and take precedence."""
    default = policy.clip or UNLIMITED
    limits = truncation.choose_limits(default, per_tool=policy.clip_tools, tool=tool, call=call_limits)
    if policy.clip_share < 1 and limits != UNLIMITED:
        max_tokens = int(hard_limit * policy.clip_share)
        limits = replace(
            limits, tokens=max_tokens if limits.tokens is None else min(max_tokens, limits.tokens)
        )
    return limits


def clips_within(
    limits: Limits, event: Event, fact: ToolReturned, counter: Counter, *, rule: str
) -> Iterable[Clipped]:
    """Return the clips that bring a result within its limits: one for plain text, one for each part otherwise."""
    if isinstance(fact.content, str):
        cut = truncation.clip(fact.content, limits, handle=event.handle, counter=counter)
        return [] if cut is None else [cut.to_fact(event.seq, -1, rule=rule)]
    places = [place for place, part in enumerate(fact.content) if isinstance(part, Text)]
    texts = [part.text for part in fact.content if isinstance(part, Text)]
    cuts = clip_parts(texts, limits, handle=event.handle, counter=counter)
    return [
        cut.to_fact(event.seq, place, rule=rule)
        for place, cut in zip(places, cuts, strict=True)
        if cut is not None
    ]
