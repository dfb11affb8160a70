"""What of a conversation still stands in a request: what its next answer needs, the task, the latest message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from foveal.events import UserSaid, text_of
from foveal.replay.conversations import Conversation
from foveal.replay.needs import Need, stands
from foveal.replay.requests import Piece, Reader, Request


class Memory:
    """Looks into the requests of one conversation."""

    def __init__(self, conversation: Conversation, needs: Sequence[Need], reader: Reader) -> None:
        self._needs: dict[int, list[Need]] = {}
        for need in needs:
            self._needs.setdefault(need.call, []).append(need)
        self._sources = {need.source for need in needs}
        self._whole: dict[int, set[Piece]] = {
            number: set(reader.fact(fact))
            for number, fact in enumerate(conversation.results)
            if number in self._sources
        }
        """For each result that is needed once, what it is when shown as it was."""
        self._users = [
            (place, text_of(fact.content))
            for place, fact in enumerate(conversation.facts)
            if isinstance(fact, UserSaid)
        ]

    def needed(self, call: int) -> Sequence[Need]:
        """What the answer to this request, counted from 1, quotes from results."""
        return self._needs.get(call, ())

    def lost(self, call: int, request: Request) -> Iterator[Need]:
        """What of it does not stand in the request."""
        wanted = self._needs.get(call, ())
        shown = set(request.pieces) if wanted else set()
        for need in wanted:
            if self._whole[need.source].isdisjoint(shown) and not _found(request, need.text):
                yield need

    def has_task(self, request: Request, *, facts: int) -> bool:
        """The first user message, if it is among the first `facts` facts, stands in it, word for word."""
        return _holds(request, next((text for place, text in self._users if place < facts), ""))

    def has_latest(self, request: Request, *, facts: int) -> bool:
        """The newest user message among the first `facts` facts stands in it, word for word."""
        return _holds(request, next((text for place, text in reversed(self._users) if place < facts), ""))


def _found(request: Request, text: str) -> bool:
    return any(stands(piece.text, text) for piece in reversed(request.pieces))


def _holds(request: Request, text: str) -> bool:
    return not text or any(text in piece.text for piece in request.pieces)
