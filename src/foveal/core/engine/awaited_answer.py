"""Whether the answer to the newest request still belongs to what is recorded.

An answer is recorded after its request was sent. What is recorded in between (an undo, a pinned rule, other tools)
stands in front of the answer, but was not in its request, so thinking in the answer may be bound to something else.
"""

from __future__ import annotations

from typing import Final

from foveal.core.log.events import (
    AnyFact,
    CompactionFailed,
    Marked,
    ModelSaid,
    Noted,
    Opened,
    Overflowed,
    SnapshotTaken,
    ThinkingLeftOut,
    Used,
)

_UNSEEN: Final = frozenset(
    {Used, Noted, Opened, SnapshotTaken, Overflowed, CompactionFailed, Marked, ThinkingLeftOut}
)
"""Facts that change nothing in front of an answer, or say themselves what they change."""


class AwaitedAnswer:
    """The answer to the newest request of this process, until it is recorded."""

    def __init__(self) -> None:
        self._is_awaited = False
        self._is_outdated = False

    def request_sent(self) -> None:
        """Take in that a request was sent."""
        self._is_awaited, self._is_outdated = True, False

    def mark_outdated(self) -> None:
        """Take in that something in front of the answer has changed."""
        self._is_outdated = True

    def is_outdated_by(self, fact: AnyFact) -> bool:
        """Take in a fact. Return whether it is the answer, and something in front of it has changed since its
        request."""
        if self._is_awaited and isinstance(fact, ModelSaid):
            self._is_awaited = False
            return self._is_outdated
        self._is_outdated = self._is_outdated or type(fact) not in _UNSEEN
        return False
