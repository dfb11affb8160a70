"""The newest request that a thread or task has made of a context.

Several runs may use one context at the same time. Usage, or a refusal, counts for the request that the same thread
or task has made, not for the one that another has made since.
"""

from __future__ import annotations

from contextvars import ContextVar
from weakref import ReferenceType, ref

from foveal.core.engine.sent_requests import SentRequests, SentSize

_newest: ContextVar[tuple[ReferenceType[SentRequests], SentSize] | None] = ContextVar(
    "foveal_newest_request", default=None
)


def note_request(requests: SentRequests, sent: SentSize) -> None:
    """Note the request that the current thread or task has made."""
    _newest.set((ref(requests), sent))


def own_request(requests: SentRequests) -> SentSize:
    """Return the newest request of the current thread or task, or else of the context."""
    noted = _newest.get()
    return requests.last if noted is None or noted[0]() is not requests else noted[1]
