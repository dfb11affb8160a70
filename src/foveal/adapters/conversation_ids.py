"""Ids of conversations that a framework does not name, found by their messages.

1. A run keeps the conversation of its first request.
2. A request continues a conversation if it begins with all messages of that one's last request and has more. All
   of them count, not only the newest: two users may say the same thing at the same place.
   The same request again continues it too if the adapter has seen the request fail.
3. If several conversations could be meant, or none, a new one begins. It knows nothing that the request does not
   contain, so words of one user cannot reach another.
4. Nothing is found after a restart: an application that stores its conversations names them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from secrets import token_hex
from threading import Lock
from typing import Any, Final, TypeVar

from foveal.core.log.events import Dialect
from foveal.errors import BadSetting
from foveal.transport.digests import digest_of, empty_history_digest, extend_digests, is_instruction

Request = TypeVar("Request")
MAX_KNOWN_CONVERSATIONS: Final = 10_000
"""Conversations, and runs, that are remembered."""


def checked_function(conversation: Callable[[Request], str] | None) -> Callable[[Request], str] | None:
    """Return the setting `conversation` of an adapter; raises `BadSetting` for anything that is no function."""
    if conversation is not None and not callable(conversation):
        raise BadSetting("conversation", conversation, "a function that returns the id of a conversation")
    return conversation


class ConversationIds:
    """Finds or creates the id of a conversation. It can be used from any thread."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._runs: OrderedDict[str, str] = OrderedDict()
        self._newest: OrderedDict[str, bytes] = OrderedDict()
        """For each conversation, the digest of the messages of its last request."""
        self._ends: dict[bytes, set[str]] = {}
        """For each of these digests, the conversations that have it."""
        self._failed: set[str] = set()
        """Conversations whose last request failed and may be sent again."""
        self._lock = Lock()

    def find(self, messages: Sequence[dict[str, Any]], *, scope: str = "", run: str = "") -> str:
        """Return the id of the conversation that a request belongs to. Conversations of different scopes have
        different ids; `run` names the run of the framework that sends the request, if it is known."""
        digests = self._digests(messages, scope)
        with self._lock:
            id = self._runs.get(run) or self._continued(digests) or f"{scope}{token_hex(8)}"
            self._set_newest(id, digests[-1])
            if run:
                self._runs[run] = id
                self._runs.move_to_end(run)
                if len(self._runs) > MAX_KNOWN_CONVERSATIONS:
                    self._runs.popitem(last=False)
        return id

    def known(self, messages: Sequence[dict[str, Any]], *, scope: str = "", run: str = "") -> str | None:
        """Return the id of the conversation whose last request the messages begin with, or equal; None if there is
        none, or more than one."""
        digests = self._digests(messages, scope)
        with self._lock:
            return self._runs.get(run) or self._longest(digests)

    def expect_retry(self, id: str) -> None:
        """Let the same request continue a conversation, because its last request failed."""
        with self._lock:
            if id in self._newest:
                self._failed.add(id)

    def _digests(self, messages: Sequence[dict[str, Any]], scope: str) -> list[bytes]:
        """Return the digest of each beginning of a history. System messages do not count: they often change."""
        first = digest_of(empty_history_digest(self._dialect) + scope.encode(errors="surrogatepass"))
        said = (message for message in messages if not is_instruction(message))
        return [first, *extend_digests(first, said, self._dialect)]

    def _continued(self, digests: Sequence[bytes]) -> str | None:
        """Return the conversation that a request continues. The same request again may come from another user who
        has said the same, so it continues nothing unless it has failed."""
        same = self._ends.get(digests[-1])
        if same is None:
            return self._longest([one for one in digests if one != digests[-1]])
        failed = same & self._failed
        return failed.pop() if len(failed) == 1 else None

    def _longest(self, digests: Sequence[bytes]) -> str | None:
        for digest in reversed(digests[1:]):
            ids = self._ends.get(digest)
            if ids:
                return next(iter(ids)) if len(ids) == 1 else None
        return None

    def _set_newest(self, id: str, digest: bytes) -> None:
        self._forget(id)
        self._newest[id] = digest
        self._ends.setdefault(digest, set()).add(id)
        if len(self._newest) > MAX_KNOWN_CONVERSATIONS:
            self._forget(next(iter(self._newest)))

    def _forget(self, id: str) -> None:
        self._failed.discard(id)
        digest = self._newest.pop(id, None)
        if digest is not None:
            ids = self._ends[digest]
            ids.discard(id)
            if not ids:
                del self._ends[digest]
