"""Request writer: the requests of one conversation, each written from the one before.

1. Only the steps that have changed since the last request are rendered and joined.
2. The caller gets copies, so it cannot change what is cached. A copy that the caller has left as it was is given
   again with the next request; the list around the copies is a new one each time.
3. Up to `MAX_COMPARED` messages, every copy is compared with its original before it is given again. Of a longer
   request, the first and the last are compared, and some of those between, other ones each time.
4. A caller that changes messages gets new copies of all of them from then on.
"""

from __future__ import annotations

from bisect import bisect_left
from operator import attrgetter
from typing import Any, Final

from foveal.core.view.request import copy_messages
from foveal.core.view.steps import ProviderMessage
from foveal.core.view.view import View
from foveal.core.wire import Wire

MAX_COMPARED: Final = 256
"""Copies of a request that are all compared with their originals."""
_ENDS: Final = 32
"""Of a longer request, how many at each end are always compared: callers put cache marks there."""
_BETWEEN: Final = 64
"""Of a longer request, how many of all are compared beside these, evenly spaced. Reading one that was not used for
a while takes a microsecond."""
_BLOCK: Final = 256
"""Messages that are compared at once."""
_seq = attrgetter("seq")


class RequestWriter:
    """Writes the views of one conversation as messages of a dialect."""

    def __init__(self) -> None:
        self._view: View | None = None
        self._wire: Wire | None = None
        self._groups: list[list[ProviderMessage]] = []
        """The messages of each step."""
        self._messages: list[ProviderMessage] = []
        """The messages of the request."""
        self._copies: list[ProviderMessage] = []
        """What the caller was given for them; empty if the caller changes its messages."""
        self._is_changed_by_caller = False
        self._round = 0

    def write(self, view: View, wire: Wire) -> tuple[list[ProviderMessage], list[list[ProviderMessage]]]:
        """Return the messages, and those of each step, which `core.engine.prefix` compares with the next
        request's."""
        first_changed = view.take_first_changed()
        is_continued = view is self._view and wire is self._wire
        self._view = None  # until all of this has succeeded: the view will not report these changes again
        start = bisect_left(view.steps, first_changed, key=_seq) if is_continued else 0
        changed = [step.render(wire) for step in view.steps[start:]]
        groups = [*self._groups[:start], *changed]
        if wire.merges_roles:
            messages = wire.join(groups)
            unchanged = common_beginning(self._messages, messages)
        else:  # the messages of a step do not depend on its neighbours
            unchanged = len(self._messages) - sum(map(len, self._groups[start:]))
            messages = [*self._messages[:unchanged], *wire.join(changed)]
        copies = self._copy(messages, unchanged)
        self._view, self._wire, self._groups, self._messages = view, wire, groups, messages
        return copies, groups

    def _copy(self, messages: list[ProviderMessage], unchanged: int) -> list[ProviderMessage]:
        """Return copies of the messages; the first ones are `unchanged` since the last request."""
        if self._is_changed_by_caller:
            return copy_messages(messages)
        if not self._are_as_given(unchanged):
            self._is_changed_by_caller, self._copies = True, []
            return copy_messages(messages)
        self._copies = [*self._copies[:unchanged], *copy_messages(messages[unchanged:])]
        return self._copies.copy()

    def _are_as_given(self, count: int) -> bool:
        """Return whether the first `count` copies are what the caller was given, as far as they are compared."""
        copies, originals = self._copies[:count], self._messages[:count]
        if count <= MAX_COMPARED:
            return copies == originals
        apart = count // _BETWEEN
        self._round = (self._round + 1) % apart
        places = (slice(_ENDS), slice(-_ENDS, None), slice(self._round, None, apart))
        return all(copies[place] == originals[place] for place in places)


def common_beginning(before: list[Any], now: list[Any]) -> int:
    """Return how many messages, or messages of steps, two requests begin with in common."""
    # Most of them are the same objects: comparing many at once is much faster than one after the other.
    start, end = 0, min(len(before), len(now))
    while start < end and before[start : start + _BLOCK] == now[start : start + _BLOCK]:
        start += _BLOCK
    while start < end and before[start] == now[start]:
        start += 1
    return min(start, end)
