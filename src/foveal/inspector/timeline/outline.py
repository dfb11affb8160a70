"""Outline of a long log: its rows and the newest request, before sizes and earlier requests are known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from foveal.core.log.events import Event
from foveal.core.tokens.counter import FunctionCounter
from foveal.core.tokens.message_tokens import MessageTokens
from foveal.core.view.fold import EffectiveLog
from foveal.inspector.timeline.rows import TimelineRows
from foveal.inspector.timeline.timeline import Timeline
from foveal.inspector.timeline.view_tracker import ViewTracker

_UNCOUNTED: Final = FunctionCounter("uncounted", lambda text: 1, exact=False, limit=1_000)
"""Counts nothing: levels do not depend on sizes, and counting takes as long as everything else."""


def timeline_outline(session: str, log: Sequence[Event], rows: TimelineRows) -> Timeline:
    """Return the outline of a log; its rows stay in `rows` for the timeline."""
    effective = EffectiveLog.of(log)
    changes = ViewTracker(log, effective.view(MessageTokens(_UNCOUNTED)), effective.events).newest_request()
    return Timeline(
        id=session,
        outline=True,
        next=log[-1].seq + 1 if log else 0,
        rows=tuple(map(rows.row, log)),
        changes=tuple(msgspec.structs.replace(change, units=0) for change in changes),
    )
