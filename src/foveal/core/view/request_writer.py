"""Request writer: the requests of one conversation, each written from the one before.

1. Only the steps that have changed since the last request are rendered and joined.
2. The caller gets copies, so it cannot change what is cached. A copy that the caller has left as it was is given
   again with the next request; the list around the copies is a new one each time.
3. Every copy is compared with its original before it is given again: what a caller changed is in no later request.
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
        """What the caller was given for them."""
        self._is_changed_by_caller = False

    def write(self, view: View, wire: Wire) -> tuple[list[ProviderMessage], list[list[ProviderMessage]]]:
        """Return the messages, and those of each step, which `core.engine.prefix` compares with the next
        request's."""
        wire = wire.for_thinking(is_bound=view.thinking.is_bound)
        first_changed = view.take_first_changed()
        if view is not self._view or wire is not self._wire:
            self._groups, self._messages, self._copies = [], [], []
            first_changed = 0
        self._view = None  # until all of this has succeeded: the view will not report these changes again
        start = bisect_left(view.steps, first_changed, key=_seq)
        changed = [step.render(wire) for step in view.steps[start:]]
        # Each copy of a list reads every one of thousands of messages, so these lists are changed in place.
        if wire.merges is not None:
            messages = wire.join([*self._groups[:start], *changed])
            unchanged = common_beginning(self._messages, messages)
            new = messages[unchanged:]
        else:  # the messages of a step do not depend on its neighbours
            unchanged = len(self._messages) - sum(map(len, self._groups[start:]))
            new = wire.join(changed)
        self._copy(unchanged, new)
        self._groups[start:] = changed
        self._view, self._wire = view, wire
        return self._copies.copy(), self._groups.copy()

    def _copy(self, unchanged: int, new: list[ProviderMessage]) -> None:
        """Replace the messages behind the `unchanged` ones, and their copies."""
        del self._messages[unchanged:], self._copies[unchanged:]
        if not self._is_changed_by_caller:
            self._is_changed_by_caller = self._copies != self._messages
        self._messages += new
        if self._is_changed_by_caller:
            self._copies = copy_messages(self._messages)
        else:
            self._copies += copy_messages(new)


def common_beginning(before: list[Any], now: list[Any]) -> int:
    """Return how many messages, or messages of steps, two requests begin with in common."""
    # Most of them are the same objects: comparing many at once is much faster than one after the other.
    start, end = 0, min(len(before), len(now))
    while start < end and before[start : start + _BLOCK] == now[start : start + _BLOCK]:
        start += _BLOCK
    while start < end and before[start] == now[start]:
        start += 1
    return min(start, end)
