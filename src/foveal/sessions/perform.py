"""Operations of the table on a session: one call for all of them, and a compaction with its sizes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from foveal.core.engine.operations import OPERATIONS, OperationRequest
from foveal.core.engine.report import Report
from foveal.core.engine.unreadable_summaries import resent_warning
from foveal.core.log.events import REDUCTIONS, Event, handle
from foveal.sessions.session import Session


class Performed(NamedTuple):
    """What an operation has recorded."""

    recorded: str
    """The handle of the event that records it; of several, the first."""
    named: str
    """The handle that the method of `Session` returns: for `undo`, of what was taken back."""
    warning: str = ""
    """What can go wrong because of it, for people; "" most often."""


async def perform(session: Session, asked: OperationRequest) -> Performed:
    """Carry out an operation of the table; raises `FovealError` if it cannot be done."""
    operation = OPERATIONS[asked.operation]
    arguments = operation.method_arguments(asked)
    named: str = await getattr(session, operation.name)(**arguments)
    if operation.name != "undo":
        return Performed(named, named)
    recorded = handle(session.last)
    return Performed(recorded, named, resent_warning((await session.event(named)).fact))


class SessionCompaction(NamedTuple):
    """A compaction, and the reports before and after it."""

    event: Event
    events: tuple[Event, ...]
    """All reductions that were made, oldest first; `event` is the newest."""
    before: Report
    after: Report
    """With the tools that read what was summarised, if the caller has offered them."""


async def compact_measured(
    session: Session,
    focus: str = "",
    *,
    agreed: bool = False,
    then: Callable[[], Awaitable[None]] | None = None,
) -> SessionCompaction:
    """Summarise old turns now, or with `agreed` do what the report's question asks; `then` runs before the second
    report. Raises `NotCompacted`."""
    before, first = await session.report(), session.last + 1
    name = await (session.agree() if agreed else session.compact(focus))
    if then is not None:
        await then()
    made = [event for event in await session.events(first=first) if isinstance(event.fact, REDUCTIONS)]
    return SessionCompaction(await session.event(name), tuple(made), before, await session.report())
