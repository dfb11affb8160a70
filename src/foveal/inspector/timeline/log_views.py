"""Views of one log at the events that were asked for last.

Panels of a page ask several questions about one point; each would fold the log from its beginning. A view stays
valid while the log grows. Replace the object when earlier events change.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import RLock
from typing import Final

from foveal.core.log.events import Event
from foveal.core.view.view import View
from foveal.inspector.timeline.message_text import view_at

MAX_KEPT_VIEWS: Final = 4
"""Two requests of a diff, and the requests before them, whose cache breakpoints are needed."""


class LogViews:
    """The views of one log; for several threads."""

    def __init__(self) -> None:
        self._views: OrderedDict[int, View] = OrderedDict()
        # Steps keep what they were rendered to, so two threads must not use one view at the same time.
        self._lock = RLock()

    def keep(self, seq: int, view: View) -> None:
        """Use this view as the one after event `seq`."""
        with self._lock:
            self._views[seq] = view

    @contextmanager
    def at(self, log: Sequence[Event], seq: int) -> Iterator[View]:
        """Yield the view after event `seq`; other threads wait meanwhile. Raises `UnknownHandle`."""
        with self._lock:
            view = self._views.pop(seq, None)
            if view is None:
                view = view_at(log, seq)
            self._views[seq] = view
            if len(self._views) > MAX_KEPT_VIEWS:
                self._views.popitem(last=False)
            yield view
