"""Appends the log of a context to a session in a store."""

from __future__ import annotations

from collections.abc import Sequence

from foveal.core.log.events import Event
from foveal.errors import Conflict, UnknownSession
from foveal.ports import Store


async def append_missing(store: Store, session: str, log: Sequence[Event]) -> None:
    """Append the events that a session does not have yet; raises `Conflict` if it has others than the log."""
    try:
        end = (await store.end(session)).next_seq
    except UnknownSession:
        end = 0
    if end > len(log):
        problem = (
            f"it has {end:,} events, and this context {len(log):,}: another program has continued it; load it"
        )
        raise Conflict(session, given=len(log), next_seq=end, problem=problem)
    # Times are compared too, so that two conversations that end with the same words are told apart.
    for seq in {0, end - 1} if end else ():
        if await store.read(session, first=seq, last=seq) != [log[seq]]:
            problem = f"event {seq:,} in the store is not that of this context: save it with another id"
            raise Conflict(session, given=len(log), next_seq=end, problem=problem)
    if end < len(log):
        await store.append(session, log[end:])
