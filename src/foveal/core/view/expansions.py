"""Expansions: ranges that a request shows as they were said until the next user message."""

from __future__ import annotations

from collections.abc import Iterable

from foveal.core.log.events import Event, Expanded


def covering_expansion(seq: int, expansions: Iterable[Event]) -> int:
    """Return the first of these expansions whose range contains a step; -1 if there is none."""
    for event in expansions:
        if isinstance(event.fact, Expanded) and event.fact.first <= seq <= event.fact.last:
            return event.seq
    return -1
