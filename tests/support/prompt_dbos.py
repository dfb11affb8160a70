"""Job engines in this process that begin new and delayed jobs at once.

DBOS looks once a second for queues and for jobs whose delay has ended. A test with a job would mostly wait for
that.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

from dbos import _dbos

_look = _dbos.queue_thread


class _PromptEvent(threading.Event):
    """Waits as another event does, but not long."""

    def __init__(self, event: threading.Event, longest_s: float) -> None:
        super().__init__()
        self._event = event
        self._longest_s = longest_s

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        return self._event.wait(self._longest_s if timeout is None else min(timeout, self._longest_s))


def _look_often(stop_event: threading.Event, engine: Any, *, longest_s: float) -> None:
    _look(_PromptEvent(stop_event, longest_s), engine)


def shorten_pauses(*, longest_s: float = 0.1) -> None:
    vars(_dbos)["queue_thread"] = partial(_look_often, longest_s=longest_s)
