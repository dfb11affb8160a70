"""The user's statements at one point of a log: what holds, what was replaced, and where a request shows each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from foveal.core.engine.user_statements import UserStatement, list_statements, unseen
from foveal.core.log.events import Event, UserSaid
from foveal.core.view.fold import effective_events
from foveal.core.view.view import View
from foveal.inspector.timeline.log_views import LogViews
from foveal.inspector.timeline.message_text import log_until

MAX_SHOWN_STATEMENTS: Final = 2_000
"""Statements that a page gets: those that hold and are shown nowhere come first, then the newest."""


class ShownStatements(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the user said up to an event."""

    at: int
    """The newest event of the request that was looked at."""
    statements: tuple[UserStatement, ...] = ()
    """Oldest first."""
    left_out: int = 0
    """Further statements that are not listed."""


def shown_statements(log: Sequence[Event], *, at: int, views: LogViews) -> ShownStatements:
    """Return the statements up to event `at`, and where the request after it shows them. Raises `UnknownHandle`."""
    until = log_until(log, at)
    with views.at(log, at) as view:
        return statements_in(until, view)


def statements_in(log: Sequence[Event], view: View) -> ShownStatements:
    """Return the statements of a log; `view` is the one after its last event."""
    said = [event for event in effective_events(log) if isinstance(event.fact, UserSaid)]
    found = list_statements(said, view)
    listed = found
    if len(found) > MAX_SHOWN_STATEMENTS:
        lost = set(unseen(found))
        places = sorted(range(len(found)), key=lambda place: (found[place] not in lost, -place))
        listed = tuple(found[place] for place in sorted(places[:MAX_SHOWN_STATEMENTS]))
    return ShownStatements(
        at=log[-1].seq if log else -1, statements=listed, left_out=len(found) - len(listed)
    )
