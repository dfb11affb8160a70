"""Ids of conversations that a framework does not name, found by their messages.

1. A run keeps the conversation of its first request.
2. A new run continues a conversation if its messages begin like it, up to the newest message of the last request.
   The same messages again are a retry, unless they are an opening message alone.
3. Otherwise it begins another conversation, even if both open with the same message.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from hashlib import blake2b
from secrets import token_hex
from threading import Lock
from typing import Any, Final, NamedTuple, TypeVar

from foveal.errors import BadSetting

Request = TypeVar("Request")
MAX_KNOWN_OPENINGS: Final = 10_000
"""First messages, and runs, that are remembered."""
MAX_SAME_OPENING: Final = 100
"""Conversations with the same first message that are remembered."""


def checked_function(conversation: Callable[[Request], str] | None) -> Callable[[Request], str] | None:
    """Return the setting `conversation` of an adapter; raises `BadSetting` for anything that is no function."""
    if conversation is not None and not callable(conversation):
        raise BadSetting("conversation", conversation, "a function that returns the id of a conversation")
    return conversation


class _Newest(NamedTuple):
    """The last request of a conversation."""

    messages: int
    digest: str
    """Of its last message."""


class ConversationIds:
    """Finds or creates the id of a conversation. It can be used from any thread."""

    def __init__(self) -> None:
        self._runs: OrderedDict[str, str] = OrderedDict()
        self._openings: OrderedDict[str, OrderedDict[str, _Newest]] = OrderedDict()
        self._lock = Lock()

    def find(self, messages: Sequence[Any], *, scope: str = "", run: str = "") -> str:
        """Return the id of the conversation that a request belongs to. Conversations of different scopes have
        different ids; `run` names the run of the framework that sends the request, if it is known."""
        opening = scope + (_digest(messages[0]) if messages else "empty")
        with self._lock:
            alike = self._openings.setdefault(opening, OrderedDict())
            id = self._runs.get(run) or _continued(alike, messages) or _new_id(opening, alike)
            alike[id] = _Newest(len(messages), _digest(messages[-1]) if messages else "")
            _keep_newest(alike, id, MAX_SAME_OPENING)
            _keep_newest(self._openings, opening, MAX_KNOWN_OPENINGS)
            if run:
                self._runs[run] = id
                _keep_newest(self._runs, run, MAX_KNOWN_OPENINGS)
        return id


def _continued(alike: OrderedDict[str, _Newest], messages: Sequence[Any]) -> str | None:
    """Return the longest conversation that the messages continue."""
    found = [
        (newest.messages, id)
        for id, newest in alike.items()
        if _can_precede(newest, messages) and _digest(messages[newest.messages - 1]) == newest.digest
    ]
    return max(found)[1] if found else None


def _new_id(opening: str, alike: OrderedDict[str, _Newest]) -> str:
    """Return an id that is not in use. The first one is the same after a restart."""
    return f"{opening}.{token_hex(4)}" if alike else opening


def _can_precede(newest: _Newest, messages: Sequence[Any]) -> bool:
    """Return whether the messages are as many as a continuation has, or a retry. The opening message alone can be
    that of another conversation."""
    return 0 < newest.messages <= len(messages) and len(messages) > 1


def _digest(message: Any) -> str:
    text = message if isinstance(message, str) else json.dumps(message, sort_keys=True, default=str)
    return blake2b(text.encode(errors="surrogatepass"), digest_size=8).hexdigest()


def _keep_newest(known: OrderedDict[str, Any], name: str, limit: int) -> None:
    known.move_to_end(name)
    if len(known) > limit:
        known.popitem(last=False)
