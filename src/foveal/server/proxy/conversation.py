"""An open proxied conversation: its session and the digests of its messages.

Every change requires the session lock. `transport.recognised_messages` says how a request continues it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Any, Final, NamedTuple

from msgspec import Raw
from msgspec.structs import replace

from foveal.core import wire
from foveal.core.engine.stored_messages import MESSAGE_FACTS
from foveal.core.log.events import (
    AnyFact,
    Dialect,
    Equipped,
    Event,
    ForeignSummary,
    Instructed,
    ModelSaid,
    Rewound,
    UserSaid,
)
from foveal.core.models.model import Model
from foveal.core.view.request import Fitted
from foveal.core.wire import MessageChunk, original_text
from foveal.core.wire.bound_thinking import ThinkingCheck, without_thinking
from foveal.server.proxy.digest_index import KnownSession
from foveal.sessions.session import Session
from foveal.transport.client_request import ClientRequest, RequestTemplate
from foveal.transport.digests import count_up_to, summary_digest
from foveal.transport.recognised_messages import (
    MAX_LOG_RATIO,
    SYSTEM_KEY,
    TOOLS_KEY,
    Continuation,
    IndexedMessage,
    RecognisedMessages,
)

SUMMARY_FIELDS: Final[dict[Dialect, tuple[str, ...]]] = {
    "openai_chat": ("tools", "reasoning_effort", "user", "prompt_cache_key"),
    "openai_responses": ("tools", "instructions", "reasoning", "user", "prompt_cache_key"),
    "anthropic": ("tools", "system", "metadata"),
}
"""Fields that a request for a summary copies from the client's: those before the messages, and those of the
model."""
BYTES_PER_TOKEN: Final = 4
"""Bytes of a token of a request that is not counted."""
MAX_BATCH_BYTES: Final = 128 * 1024
"""Bytes of messages that are appended at once; redacting and counting them takes milliseconds."""
COMPACTS_KEY: Final = "client compacts"
"""Side state of a conversation whose client compacts it by itself."""
MAX_INSTRUCTION_VERSIONS: Final = 64
"""Versions of an instruction whose events are kept in the index."""


class ProxiedConversation(RecognisedMessages):
    """The side state holds, beside the digests of the system text and the tools, the events with newer versions of
    each instruction, by the digest of its history in hex."""

    def __init__(
        self, session: Session, model: Model, *, reserve: int | None, steps_back: bool = False
    ) -> None:
        super().__init__()
        self.session = session
        self.model = model
        self.steps_back = steps_back
        """Whether the session reduces a request only if it would not fit otherwise."""
        self._configured_reserve = reserve
        self._reserve = reserve
        """Tokens that are kept for the answer: what the client's limit asks for, or what is configured."""
        self._indexed_side_state: dict[str, bytes] = {}
        """The side state that the index contains."""
        self._new_summaries: list[IndexedMessage] = []
        """Summaries that the provider made and that the index does not contain yet."""
        self._unindexed: list[AnyFact] = []
        """Messages of the session that the index does not contain yet: another server has stored them."""
        self.is_outdated: bool = False
        """Another process or request changed the session since it was loaded."""
        self.exchange: object = None
        """The exchange that waits for a reply, or None."""
        self.current_request: ClientRequest | None = None
        """The request that is being answered: it has the client's versions of the messages."""
        self.last_request: RequestTemplate | None = None
        """The newest request without its messages."""
        self.thinking_check: ThinkingCheck = ThinkingCheck()
        """What the thinking of this conversation is bound to."""
        self.config: object = None
        """The configuration that the session was opened with."""
        self.noted_output: tuple[int, int] = (0, 0)
        """The client's limit for the answer and the one that was sent in its place, as the newest note has them."""
        self.users: set[str] = set()
        """The recorded users of the session, as this process knows them."""
        self.client_facts: ClientFacts = ClientFacts()
        """What the newest reduced request showed in the client's versions."""
        self.last_sent_messages: Sequence[dict[str, Any]] = ()
        """The unmarked messages of the previous reduced request: cache marks depend on them."""

    @property
    def id(self) -> str:
        return self.session.id

    async def fit(self, request: ClientRequest) -> Fitted:
        """Return the conversation as this request needs it. What cannot be reduced further is sent as it is: the
        provider knows its limits best."""
        self.current_request = request
        if request.asks_for_compaction:  # the provider reads it whole, whatever it takes
            tokens = len(request.body) // BYTES_PER_TOKEN
            return Fitted(facts=(), aside=(), tools=[], tokens=tokens, limit=self.model.window, intact=True)
        wanted = min(request.max_tokens, self.model.window // 2) or self._configured_reserve
        if wanted != self._reserve:
            await self.session.set_reserve(wanted)
            self._reserve = wanted
        return await self.session.fit(may_exceed=True)

    @property
    def client_compacts(self) -> bool:
        """Whether the client has compacted the history by itself."""
        return COMPACTS_KEY in self.side_state

    def mark_client_compacts(self) -> None:
        self.side_state[COMPACTS_KEY] = b"1"

    @property
    def is_mostly_rewound(self) -> bool:
        """Whether most of the log was rewound: every further rewind would read all of it."""
        return self.session.last > MAX_LOG_RATIO * (len(self.messages) + MAX_LOG_RATIO)

    def load(
        self, messages: Iterable[IndexedMessage], side_state: dict[str, bytes], newer: Iterable[Event]
    ) -> None:
        """Set the state from the index; `newer` are the events after the last indexed message."""
        self.set_messages(messages, side_state)
        self.client_facts = ClientFacts()
        self.forget_indexed_side_state()
        self._unindexed = [event.fact for event in newer if is_message(event.fact)]
        self.is_outdated = False

    def begin_exchange(self, exchange: object) -> None:
        self.exchange = exchange

    def end_exchange(self, exchange: object) -> None:
        """Free the conversation for the next exchange, unless another one has begun."""
        if self.exchange is exchange:
            self.exchange = self.current_request = None

    def remember_sent(self, messages: Sequence[dict[str, Any]]) -> None:
        self.last_sent_messages = messages

    def mark_outdated(self) -> None:
        self.is_outdated = True

    def unindexed_side_state(self) -> dict[str, bytes]:
        """Return the side state that the index does not contain yet, and count it as contained."""
        indexed, self._indexed_side_state = self._indexed_side_state, dict(self.side_state)
        return {name: value for name, value in self.side_state.items() if indexed.get(name) != value}

    def take_new_summaries(self) -> list[IndexedMessage]:
        """Return the summaries that the index does not contain yet, and count them as contained."""
        taken, self._new_summaries = self._new_summaries, []
        return taken

    def forget_indexed_side_state(self) -> None:
        """Count the whole side state as not contained in the index: a write of it failed."""
        self._indexed_side_state = {}

    @property
    def has_unindexed_messages(self) -> bool:
        """Whether another server has stored messages that the index does not contain yet."""
        return bool(self._unindexed)

    def continuation(self, request: ClientRequest, found: KnownSession) -> Continuation:
        """Return how a request continues the conversation after `found.end`."""
        if self.exchange is not None or not self.has(found.end.digest):
            return "fork"
        if self.find(found.end.digest).seq != found.end.seq:
            return "fork"
        if self._unindexed and self._has_unindexed(request, found.end.digest):
            return "rewind"
        return self.continuation_after(request, found.end.digest, has_more=bool(self._unindexed))

    def _has_unindexed(self, request: ClientRequest, digest: bytes) -> bool:
        """Return whether a request has the messages that another server has stored, and not yet indexed, behind the
        history with this digest. The model's last answer may be missing: it is requested again."""
        if self.messages[-1].digest != digest:
            return False
        chunks = request.chunks(count_up_to(request.digests, digest))
        sent = [fact for chunk in chunks for fact in chunk.facts if is_message(fact)]
        pairs = zip(sent, self._unindexed, strict=False)
        more = self._unindexed[len(sent) :]
        is_same = all(
            type(one) is type(other) and original_text(one) == original_text(other) for one, other in pairs
        )
        return is_same and (not more or (len(more) == 1 and isinstance(more[0], ModelSaid)))

    # ── Recording a request ──────────────────────────────────────────────────────────────────────────

    async def rewind(self, count: int) -> int:
        """Go back to the first `count` messages; return the last event that still counts."""
        to = self.messages[count - 1].seq if count else 0
        await self.session.append(Rewound(to=to, keep_state=True, keep_reductions=True))
        self.truncate(count)
        self._unindexed = []
        return to

    async def append_new(
        self, request: ClientRequest, known: int, chunks: Sequence[MessageChunk]
    ) -> list[IndexedMessage]:
        """Append the messages after the first `known`, and changes of system text, tools and instructions. Return
        the messages that are new or different."""
        side_facts, edited = self._side_facts(request), list(self._edited_instructions(request, known))
        changed = [*side_facts, *(fact for _, fact in edited)]
        events: list[Event] = []
        for batch in _batches(request, known, chunks, first=changed):
            events += await self.session.append(*batch)
        self.last_request = request.template(SUMMARY_FIELDS[request.dialect])
        seqs = [event.seq for event in events[len(side_facts) :]]
        indexed = [self._replace(request, at, seq) for (at, _), seq in zip(edited, seqs, strict=False)]
        end, count = len(edited), known
        for chunk in chunks:
            end, count = end + len(chunk.facts), count + chunk.messages
            text_digest = request.instructions.get(count - 1)
            indexed.append(
                self.add_recorded(request.digests[count - 1], seqs[end - 1], chunk.facts, text_digest)
            )
        return indexed

    def add_recorded(
        self, digest: bytes, seq: int, facts: Sequence[AnyFact], text_digest: bytes | None = None
    ) -> IndexedMessage:
        """Add a message that was appended to the session as these facts, and ends with event `seq`."""
        begins_turn = any(isinstance(fact, UserSaid) for fact in facts)
        message = self.add_message(digest, seq=seq, begins_turn=begins_turn, text_digest=text_digest)
        summaries = (fact for fact in facts if isinstance(fact, ForeignSummary))
        self._new_summaries += [
            IndexedMessage(summary_digest(s), seq, max(message.turn, 1)) for s in summaries
        ]
        return message

    def _side_facts(self, request: ClientRequest) -> list[AnyFact]:
        """Return facts for a system text and tools that have changed."""
        facts: list[AnyFact] = []
        if self.has_changed(SYSTEM_KEY, request.system):
            facts.append(request.system_fact())
        if self.has_changed(TOOLS_KEY, request.tools):
            facts.append(Equipped(tools=Raw(request.tools or b"[]")))
        return facts

    def _edited_instructions(self, request: ClientRequest, known: int) -> Iterator[tuple[int, AnyFact]]:
        """Yield the position of each edited instruction among the known messages, and the fact that replaces it."""
        for at in self.edited_instructions(request, known):
            if (fact := request.instruction(at)) is not None:
                yield at, replace(fact, replaces=self.newest_version(request.digests[at]))

    def newest_version(self, digest: bytes) -> int:
        """Return the event with the newest text of an instruction."""
        versions = self.side_state.get(digest.hex(), b"").split()
        return int(versions[-1]) if versions else self.find(digest).seq

    def _replace(self, request: ClientRequest, at: int, seq: int) -> IndexedMessage:
        """Store that event `seq` has the newest text of the instruction at position `at` of the request."""
        digest = request.digests[at]
        versions = [*self.side_state.get(digest.hex(), b"").split(), b"%d" % seq]
        self.side_state[digest.hex()] = b" ".join(versions[-MAX_INSTRUCTION_VERSIONS:])
        return self.set_text_digest(digest, request.instructions[at])


def _batches(
    request: ClientRequest, known: int, chunks: Sequence[MessageChunk], *, first: Sequence[AnyFact]
) -> Iterator[list[AnyFact]]:
    """Yield the facts `first`, then those of the chunks, in batches small enough that other requests do not wait
    long."""
    batch = list(first)
    size = 0
    for chunk in chunks:
        batch += chunk.facts
        size += request.message_bytes(known, chunk.messages)
        known += chunk.messages
        if size > MAX_BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def instruction_versions_until(side_state: dict[str, bytes], seq: int) -> dict[str, bytes]:
    """Return the side state of a fork at `seq`: the versions of instructions up to it. The system text and tools at
    that time are not known."""
    kept: dict[str, bytes] = {}
    for name, value in side_state.items():
        if name == COMPACTS_KEY:
            kept[name] = value
        elif name not in (SYSTEM_KEY, TOOLS_KEY):
            versions = [version for version in value.split() if int(version) <= seq]
            kept[name] = b" ".join(versions)
    return kept


def is_message(fact: AnyFact) -> bool:
    """Return whether a fact is a message of its own, not a system text or a newer version of an instruction."""
    return isinstance(fact, MESSAGE_FACTS) and not (isinstance(fact, Instructed) and fact.is_beside_history)


# ── The client's own versions of messages ────────────────────────────────────────────────────────────
# The log may differ from what the client sends: secrets are redacted, and a client may send an old message in
# another form, for example with other spaces in the arguments of a call. A message that is shown whole goes
# upstream in the client's version, so that the upstream's prompt cache knows it.

_seq = attrgetter("seq")


def restore_client_facts(
    fitted: Fitted, conversation: ProxiedConversation, request: ClientRequest
) -> list[AnyFact]:
    """Return the facts of a fitted request, those that are shown whole in the client's version."""
    return conversation.client_facts.restore(fitted, conversation, request)


class _ClientFact(NamedTuple):
    fact: AnyFact
    end: int
    """How many messages of the request decide what it is."""


class ClientFacts:
    """The facts that one request showed in the client's version, so that the next one reads only new messages.

    A fact counts for the next request only if all messages that it depends on are the same bytes there."""

    def __init__(self) -> None:
        self._blocks: Sequence[bytes] = ()
        self._shown: dict[int, _ClientFact] = {}
        """By event."""

    def restore(
        self, fitted: Fitted, conversation: ProxiedConversation, request: ClientRequest
    ) -> list[AnyFact]:
        """Return the facts of a fitted request, those that are shown whole in the client's version."""
        count = request.count_same(self._blocks)
        same = {seq: shown for seq, shown in self._shown.items() if shown.end <= count}
        finder = _MessageFinder(conversation, request, same)
        facts = list(finder.facts(fitted))
        self._blocks, self._shown = request.blocks, finder.shown
        return facts


class _MessageFinder:
    """Finds the client's message for an event of the log."""

    def __init__(
        self, conversation: ProxiedConversation, request: ClientRequest, same: Mapping[int, _ClientFact]
    ) -> None:
        """`same`: what is known of the request from the one before."""
        self.shown: dict[int, _ClientFact] = {}
        """What was found, by event."""
        self._same = same
        self._request = request
        self._indexed: Sequence[IndexedMessage] = conversation.messages
        self._instructions = {
            conversation.newest_version(digest): at for at, digest in self._known_instructions(conversation)
        }
        self._read: dict[int, tuple[AnyFact, ...]] = {}
        self._ends: dict[int, int] = {}
        """For each message that was read, how many messages of the request decide what it is."""

    def facts(self, fitted: Fitted) -> Iterator[AnyFact]:
        for fact, seq in zip(fitted.facts, fitted.seqs, strict=True):
            own = fact if seq < 0 else self._own_fact(fact, seq)
            if isinstance(own, ModelSaid) and 0 <= seq < fitted.thinking_from:
                own = replace(own, content=without_thinking(own.content))
            yield own

    def _known_instructions(self, conversation: ProxiedConversation) -> Iterator[tuple[int, bytes]]:
        for at in self._request.instructions:
            digest = self._request.digests[at]
            if conversation.has(digest):
                yield at, digest

    def _own_fact(self, fact: AnyFact, seq: int) -> AnyFact:
        """Return the client's version of a fact, from the request before if it is the same there."""
        if isinstance(fact, Instructed):
            at = self._instructions.get(seq)
            return fact if at is None else self._request.instruction(at) or fact
        if (known := self._same.get(seq)) is None:
            position = bisect_left(self._indexed, seq, key=_seq)
            own = self._client_fact(fact, seq, position)
            if own is fact:
                return fact
            # The log's fact is kept for an equal one: it is in memory anyway.
            known = _ClientFact(fact if own == fact else own, self._ends[position])
        self.shown[seq] = known
        return known.fact

    def _client_fact(self, fact: AnyFact, seq: int, position: int) -> AnyFact:
        """Return the client's version of a fact, which is in the message at a position of the conversation; the
        fact itself if there is none."""
        if isinstance(fact, ModelSaid | ForeignSummary) and position < len(self._indexed):
            # A message with a compaction block is several facts of these types, one after the other.
            facts, place = self._message_facts(position), seq - self._indexed[position].seq - 1
            if -place <= len(facts) and type(facts[place]) is type(fact):
                return facts[place]
        for own in self._message_facts(position) if position < len(self._indexed) else ():
            if type(own) is type(fact) and getattr(own, "call_id", "") == getattr(fact, "call_id", ""):
                return own
        return fact

    def _end_in_request(self, position: int) -> int | None:
        """Return where in the request the message at a position of the conversation is; None if it is not there."""
        if position < 0:
            return -1
        digest, digests = self._indexed[position].digest, self._request.digests
        if position < len(digests) and digests[position] == digest:  # most are at the same place
            return position
        return self._places.get(digest)

    @cached_property
    def _places(self) -> dict[bytes, int]:
        return {digest: at for at, digest in reversed(list(enumerate(self._request.digests)))}

    def _message_facts(self, position: int) -> tuple[AnyFact, ...]:
        """Return the facts of the client's messages at a position of the conversation."""
        if position not in self._read:
            end, before = self._end_in_request(position), self._end_in_request(position - 1)
            if end is None or before is None:
                return ()
            self._ends[position] = max(position, before, end) + 1
            messages = self._request.messages[before + 1 : end + 1]
            chunks = wire.wire_for(self._request.dialect).read(messages)
            self._read[position] = tuple(fact for chunk in chunks for fact in chunk.facts)
        return self._read[position]
