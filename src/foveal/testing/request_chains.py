"""Which earlier request each captured request continues.

Several conversations can be in one test: sub-agents, requests for a title or a summary. A request

1. repeats an earlier one if all pieces are equal: a client that tries again;
2. extends an earlier one if that one is its beginning;
3. otherwise continues the newest request of the conversation with which it has most messages in common, if their
   setups are alike (the system text, or the tools). This is where the prefix has moved;
4. otherwise begins a conversation.

An answer that was generated again, a rewind to an earlier message and the user's last message in other words begin
a branch: no piece after the difference was sent before, so nothing is read again.
"""

from __future__ import annotations

from collections import Counter
from difflib import SequenceMatcher
from itertools import takewhile
from operator import eq
from typing import Final, NamedTuple

from foveal.testing.captured_request import CapturedRequest

MIN_ALIKE_CHARS: Final = 60
"""Characters with which two system texts begin alike, to be versions of one text."""
MIN_ALIKE_RATIO: Final = 0.6
"""Share of equal characters of two system texts that are versions of one text."""
MAX_COMPARED_SYSTEM_CHARS: Final = 2_000
"""Characters of a system text that are compared for this."""


class Link(NamedTuple):
    """The place of a request in a conversation."""

    conversation: int
    """Number of the conversation, from 1."""
    previous: CapturedRequest | None
    """The request that it continues; None if it begins a conversation or has a history at the provider."""
    is_moved: bool = False
    """Whether the previous request is not its beginning."""


class RequestChains:
    """The conversations of a capture."""

    def __init__(self) -> None:
        self._heads: list[CapturedRequest] = []
        """The newest request of each conversation."""
        self._complete: dict[bytes, tuple[CapturedRequest, int]] = {}
        """Each request by the digest of all its pieces, with the number of its conversation."""

    def add(self, request: CapturedRequest) -> Link:
        """Return the place of a request, and remember the request."""
        link = self._link(request)
        self._complete.setdefault(request.chain[-1], (request, link.conversation))
        if link.conversation > len(self._heads):
            self._heads.append(request)
        elif link.previous is None or link.previous.keys != request.keys:
            self._heads[link.conversation - 1] = request
        return link

    def _link(self, request: CapturedRequest) -> Link:
        new = len(self._heads) + 1
        extended, conversation = self._extended(request)
        if extended is not None and len(extended.keys) == len(request.keys):
            return Link(conversation, extended)
        head, at = self._most_alike(request, extended)
        if head is not None and not _is_branch(head, request):
            return Link(at, head, is_moved=not request.has_stored_history)
        if extended is None:
            return Link(new, None)
        is_head = self._heads[conversation - 1] is extended
        return Link(conversation if is_head else new, extended)

    def _extended(self, request: CapturedRequest) -> tuple[CapturedRequest | None, int]:
        """Return the longest earlier request that is the beginning of this one, and its conversation."""
        found = (self._complete[digest] for digest in reversed(request.chain) if digest in self._complete)
        return next(found, (None, 0))

    def _most_alike(
        self, request: CapturedRequest, extended: CapturedRequest | None
    ) -> tuple[CapturedRequest | None, int]:
        """Return the head with most messages in common, newest first, and the number of its conversation; none if
        the request that this one extends has as many."""
        best = len(extended.said) if extended is not None else 0
        result: tuple[CapturedRequest | None, int] = (None, 0)
        for at, head in sorted(enumerate(self._heads, 1), key=lambda one: -one[1].number):
            common = _common_messages(head, request)
            # Scripted models answer several conversations alike; the first message tells them apart.
            is_other = bool(extended and extended.said) and _first(head) != _first(request)
            if common > best and not is_other and _are_setups_alike(head, request):
                best, result = common, (head, at)
        return result


def _first(request: CapturedRequest) -> str:
    return request.said[0].loose if request.said else ""


def _common_messages(head: CapturedRequest, request: CapturedRequest) -> int:
    """Return how many messages both requests have. Messages that differ in times and ids count only if the request
    has grown: a new conversation about another date begins with one message."""
    common = Counter(piece.key for piece in head.said) & Counter(piece.key for piece in request.said)
    if common or len(request.said) <= len(head.said):
        return common.total()
    loose = Counter(piece.loose for piece in head.said) & Counter(piece.loose for piece in request.said)
    return loose.total()


def _are_setups_alike(head: CapturedRequest, request: CapturedRequest) -> bool:
    if head.dialect != request.dialect or bool(head.tools) != bool(request.tools):
        return False
    has_same_tools = bool(head.tools) and sorted(head.tool_names) == sorted(request.tool_names)
    return has_same_tools or _are_texts_alike(head.system_text, request.system_text)


def _are_texts_alike(one: str, other: str) -> bool:
    one, other = one[:MAX_COMPARED_SYSTEM_CHARS], other[:MAX_COMPARED_SYSTEM_CHARS]
    shared = sum(1 for _ in takewhile(bool, map(eq, one, other)))
    if one == other or shared >= MIN_ALIKE_CHARS:
        return True
    matcher = SequenceMatcher(None, one, other, autojunk=False)
    return matcher.quick_ratio() >= MIN_ALIKE_RATIO and matcher.ratio() >= MIN_ALIKE_RATIO


def _is_branch(head: CapturedRequest, request: CapturedRequest) -> bool:
    """Return whether a request that differs from `head` sends nothing again after the difference."""
    at = first_difference(head, request)
    if at == len(request.pieces):  # the history ends earlier
        return True
    is_last_message = at == len(request.pieces) - 1 and at < len(head.pieces)
    old, new = head.pieces[min(at, len(head.pieces) - 1)], request.pieces[at]
    return is_last_message and new.role == "user" and new.loose != old.loose and not _has_results(new.value)


def _has_results(message: object) -> bool:
    """Return whether a user message holds tool results, as those of Anthropic do."""
    content = message.get("content", message.get("parts")) if isinstance(message, dict) else None
    kinds = ("tool_result", "toolResult", "functionResponse")
    return isinstance(content, list) and any(
        isinstance(part, dict) and (part.get("type") in kinds or not part.keys().isdisjoint(kinds))
        for part in content
    )


def first_difference(one: CapturedRequest, other: CapturedRequest) -> int:
    """Return the number of pieces with which both requests begin."""
    return sum(1 for _ in takewhile(bool, map(eq, one.keys, other.keys)))
