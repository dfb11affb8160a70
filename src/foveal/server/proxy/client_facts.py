"""The client's own versions of the messages in a reduced request.

The log may differ from what the client sends: secrets are redacted, and a client may send an old message in another
form, for example with other spaces in the arguments of a call. A message that is shown whole goes upstream in the
client's version, so that the upstream's prompt cache knows it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from operator import attrgetter

from msgspec.structs import replace

from foveal.core import wire
from foveal.core.log.events import AnyFact, ForeignSummary, Instructed, ModelSaid
from foveal.core.view.request import Fitted
from foveal.core.wire.bound_thinking import without_thinking
from foveal.server.proxy.conversation import ProxiedConversation
from foveal.transport.client_request import ClientRequest
from foveal.transport.recognised_messages import IndexedMessage

_seq = attrgetter("seq")


def restore_client_facts(
    fitted: Fitted, conversation: ProxiedConversation, request: ClientRequest
) -> list[AnyFact]:
    """Return the facts of a fitted request, those that are shown whole in the client's version."""
    return list(_MessageFinder(conversation, request).facts(fitted))


class _MessageFinder:
    """Finds the client's message for an event of the log."""

    def __init__(self, conversation: ProxiedConversation, request: ClientRequest) -> None:
        self._request = request
        self._indexed: Sequence[IndexedMessage] = conversation.messages
        self._ends = {digest: at for at, digest in reversed(list(enumerate(request.digests)))}
        self._instructions = {
            conversation.newest_version(digest): at for at, digest in self._known_instructions(conversation)
        }
        self._read: dict[int, tuple[AnyFact, ...]] = {}

    def facts(self, fitted: Fitted) -> Iterator[AnyFact]:
        for fact, seq in zip(fitted.facts, fitted.seqs, strict=True):
            own = fact if seq < 0 else self._client_fact(fact, seq)
            if isinstance(own, ModelSaid) and 0 <= seq < fitted.thinking_from:
                own = replace(own, content=without_thinking(own.content))
            yield own

    def _known_instructions(self, conversation: ProxiedConversation) -> Iterator[tuple[int, bytes]]:
        for at in self._request.instructions:
            digest = self._request.digests[at]
            if conversation.has(digest):
                yield at, digest

    def _client_fact(self, fact: AnyFact, seq: int) -> AnyFact:
        """Return the client's version of a fact; the fact itself if there is none."""
        if isinstance(fact, Instructed):
            at = self._instructions.get(seq)
            return fact if at is None else self._request.instruction(at) or fact
        position = bisect_left(self._indexed, seq, key=_seq)
        if isinstance(fact, ModelSaid | ForeignSummary) and position < len(self._indexed):
            # A message with a compaction block is several facts of these types, one after the other.
            facts, place = self._message_facts(position), seq - self._indexed[position].seq - 1
            if -place <= len(facts) and type(facts[place]) is type(fact):
                return facts[place]
        for own in self._message_facts(position) if position < len(self._indexed) else ():
            if type(own) is type(fact) and getattr(own, "call_id", "") == getattr(fact, "call_id", ""):
                return own
        return fact

    def _message_facts(self, position: int) -> tuple[AnyFact, ...]:
        """Return the facts of the client's messages at a position of the conversation."""
        if position not in self._read:
            end = self._ends.get(self._indexed[position].digest)
            before = self._ends.get(self._indexed[position - 1].digest) if position else -1
            if end is None or before is None:
                return ()
            messages = self._request.messages[before + 1 : end + 1]
            chunks = wire.wire_for(self._request.dialect).read(messages)
            self._read[position] = tuple(fact for chunk in chunks for fact in chunk.facts)
        return self._read[position]
