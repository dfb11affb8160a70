"""Cache marks of a reduced history (Anthropic).

The messages that had the client's marks may be gone. So the client's marks are removed, and marks are set by the
rule of `providers.cache_breakpoints`: as many as remain of the four, and none for a client that uses none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from foveal.core.wire.cache_marks import MAX_CACHE_MARKS, count_cache_marks_in_json, strip_cache_marks
from foveal.core.wire.common import Json
from foveal.providers import cache_breakpoints
from foveal.transport.client_request import ClientRequest

_MESSAGE_MARKS: Final = 2
"""Marks that the rule sets in the messages: on the newest block, and on the last one of the request before."""


def with_cache_marks(messages: Sequence[Json], request: ClientRequest, before: Sequence[Json]) -> list[Json]:
    """Return the messages with cache marks; `before` are the unmarked messages of the previous request."""
    bare: list[Json] = [strip_cache_marks(message) for message in messages]
    kept = count_cache_marks_in_json(request.system) + count_cache_marks_in_json(request.tools)
    left = MAX_CACHE_MARKS - kept
    if not count_cache_marks_in_json(request.body) or left <= 0:
        return bare
    with_marks: list[Json] = cache_breakpoints.add_breakpoints(
        {"messages": bare}, before if left >= _MESSAGE_MARKS else ()
    )["messages"]
    return with_marks
