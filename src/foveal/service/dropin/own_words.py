"""What goes upstream of a history that was reduced: whatever is shown whole in the client's own words.

The log may not hold them: secrets are kept out of it, and a client may send an old message in another form. So of
each message that is shown as it was said, the client's own one is written, as it was before anything was reduced.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from operator import attrgetter

from foveal import wire
from foveal.events import AnyFact, Instructed
from foveal.fitted import Fitted
from foveal.service.dropin.conversation import Conversation
from foveal.service.dropin.heads import Head
from foveal.service.dropin.requests import Asked

_seq = attrgetter("seq")


def own_words(fitted: Fitted, conversation: Conversation, asked: Asked) -> list[AnyFact]:
    """The facts of a request, each whole one as the client has it."""
    return list(_Reading(conversation, asked).facts(fitted))


class _Reading:
    """The messages of a request, found by the events that were made of them."""

    def __init__(self, conversation: Conversation, asked: Asked) -> None:
        self._asked = asked
        self._lineage: Sequence[Head] = conversation.lineage
        self._ends = {digest: at for at, digest in reversed(list(enumerate(asked.digests)))}
        self._newer = {conversation.version(digest): at for at, digest in self._instructed(conversation)}
        self._read: dict[int, tuple[AnyFact, ...]] = {}

    def facts(self, fitted: Fitted) -> Iterator[AnyFact]:
        for fact, seq in zip(fitted.facts, fitted.seqs, strict=True):
            yield fact if seq < 0 else self._own(fact, seq)

    def _instructed(self, conversation: Conversation) -> Iterator[tuple[int, bytes]]:
        for at in self._asked.instructed:
            digest = self._asked.digests[at]
            if conversation.has(digest):
                yield at, digest

    def _own(self, fact: AnyFact, seq: int) -> AnyFact:
        """The client's own version of a fact; the fact itself when there is none."""
        if isinstance(fact, Instructed):
            at = self._newer.get(seq)
            return fact if at is None else self._asked.instruction(at) or fact
        place = bisect_left(self._lineage, seq, key=_seq)
        for own in self._message(place) if place < len(self._lineage) else ():
            if type(own) is type(fact) and getattr(own, "call_id", "") == getattr(fact, "call_id", ""):
                return own
        return fact

    def _message(self, place: int) -> tuple[AnyFact, ...]:
        """The facts of what the client sent at a place of the conversation."""
        if place not in self._read:
            end = self._ends.get(self._lineage[place].digest)
            before = self._ends.get(self._lineage[place - 1].digest) if place else -1
            if end is None or before is None:
                return ()
            messages = self._asked.messages[before + 1 : end + 1]
            chunks = wire.wire(self._asked.dialect).read(messages)
            self._read[place] = tuple(fact for chunk in chunks for fact in chunk.facts)
        return self._read[place]
