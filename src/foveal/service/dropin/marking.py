"""Marks for Anthropic's prompt cache in a history that was reduced.

Where the client's marks stood there may be nothing any more. So they are taken away, and ours stand by the rule of
`models_io.marks`: as many as are left of the four, and none for a client that uses none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from foveal.models_io import marks
from foveal.render import unmarked
from foveal.service.dropin.requests import Asked

Json = dict[str, Any]

_MARK: Final = b'"cache_control"'
_OURS: Final = 2
"""Marks that the rule puts among the messages: the newest block, and the last that was there before."""


def marked(messages: Sequence[Json], asked: Asked, before: Sequence[Json]) -> list[Json]:
    """The messages with their marks; `before` are those of the request before, as they were without."""
    bare: list[Json] = [unmarked(message) for message in messages]
    left = marks.MOST - asked.system.count(_MARK) - asked.tools.count(_MARK)
    if _MARK not in asked.body or left <= 0:
        return bare
    with_marks: list[Json] = marks.marked({"messages": bare}, before if left >= _OURS else ())["messages"]
    return with_marks
