"""An open proxied conversation: its session and the digests of its messages.

Every change requires the session lock. A request whose history begins like the conversation continues it in one of
three ways:

    append      the history begins with all messages of the conversation: the rest is new
    rewind      it differs within the last turn (an answer is requested again, or the last message was edited)
    fork        it differs earlier, or another request waits for an answer here
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Literal

from msgspec import Raw
from msgspec.structs import replace

from foveal.core.engine.history_diff import MESSAGE_FACTS
from foveal.core.log.events import AnyFact, Dialect, Equipped, Event, Instructed, Rewound, UserSaid
from foveal.core.models.model import Model
from foveal.core.view.request import Fitted
from foveal.core.wire import MessageChunk
from foveal.server.proxy.client_request import ClientRequest, RequestTemplate
from foveal.server.proxy.digest_index import IndexedMessage, KnownSession
from foveal.server.proxy.digests import digest_of
from foveal.sessions.session import Session

Continuation = Literal["append", "rewind", "fork"]

SUMMARY_FIELDS: Final[dict[Dialect, tuple[str, ...]]] = {
    "openai_chat": ("tools", "reasoning_effort", "user", "prompt_cache_key"),
    "openai_responses": ("tools", "instructions", "reasoning", "user", "prompt_cache_key"),
    "anthropic": ("tools", "system", "metadata"),
}
"""Fields that a request for a summary copies from the client's: those before the messages, and those of the
model."""
SYSTEM_KEY: Final = "system"
TOOLS_KEY: Final = "tools"
MAX_BATCH_BYTES: Final = 128 * 1024
"""Bytes of messages that are appended at once; redacting and counting them takes milliseconds."""
MAX_LOG_RATIO: Final = 8
"""Events per message above which a conversation is forked instead of rewound."""
MAX_INSTRUCTION_VERSIONS: Final = 64
"""Versions of an instruction whose events are kept in the index."""


class ProxiedConversation:
    def __init__(self, session: Session, model: Model, *, reserve: int | None) -> None:
        self.session = session
        self.model = model
        self._configured_reserve = reserve
        self._reserve = reserve
        """Tokens that are kept for the answer: what the client's limit asks for, or what is configured."""
        self.messages: list[IndexedMessage] = []
        """The messages so far."""
        self.side_state: dict[str, bytes] = {}
        """Digests of the system text and the tools by name; for each instruction, by the digest of its history in
        hex, the events with its newer versions."""
        self._indexed_side_state: dict[str, bytes] = {}
        """The side state that the index contains."""
        self.has_unindexed_messages = False
        """The log has messages that the index does not contain."""
        self.is_outdated = False
        """Another process or request changed the session since it was loaded."""
        self.exchange: object = None
        """The exchange that waits for a reply, or None."""
        self.last_request: RequestTemplate | None = None
        """The newest request without its messages."""
        self.last_sent_messages: Sequence[dict[str, Any]] = ()
        """The unmarked messages of the previous reduced request: cache marks depend on them."""
        self._positions: dict[bytes, int] = {}

    @property
    def id(self) -> str:
        return self.session.id

    @property
    def last_message(self) -> IndexedMessage | None:
        return self.messages[-1] if self.messages else None

    async def fit(self, request: ClientRequest) -> Fitted:
        """Return the conversation as this request needs it. What cannot be reduced further is sent as it is: the
        provider knows its limits best."""
        wanted = min(request.max_tokens, self.model.window // 2) or self._configured_reserve
        if wanted != self._reserve:
            await self.session.set_reserve(wanted)
            self._reserve = wanted
        return await self.session.fit(may_exceed=True)

    @property
    def is_mostly_rewound(self) -> bool:
        """Whether most of the log was rewound: every further rewind would read all of it."""
        return self.session.last > MAX_LOG_RATIO * (len(self.messages) + MAX_LOG_RATIO)

    def load(
        self, messages: Iterable[IndexedMessage], side_state: dict[str, bytes], newer: Iterable[Event]
    ) -> None:
        """Set the state from the index; `newer` are the events after the last indexed message."""
        self.messages, self.side_state = list(messages), dict(side_state)
        self.forget_indexed_side_state()
        self._positions = {message.digest: position for position, message in enumerate(self.messages)}
        self.has_unindexed_messages = any(is_message(event.fact) for event in newer)
        self.is_outdated = False

    def begin_exchange(self, exchange: object) -> None:
        self.exchange = exchange

    def end_exchange(self, exchange: object) -> None:
        """Free the conversation for the next exchange, unless another one has begun."""
        if self.exchange is exchange:
            self.exchange = None

    def remember_sent(self, messages: Sequence[dict[str, Any]]) -> None:
        self.last_sent_messages = messages

    def mark_outdated(self) -> None:
        self.is_outdated = True

    def unindexed_side_state(self) -> dict[str, bytes]:
        """Return the side state that the index does not contain yet, and count it as contained."""
        indexed, self._indexed_side_state = self._indexed_side_state, dict(self.side_state)
        return {name: value for name, value in self.side_state.items() if indexed.get(name) != value}

    def forget_indexed_side_state(self) -> None:
        """Count the whole side state as not contained in the index: a write of it failed."""
        self._indexed_side_state = {}

    # ── Comparing a request with the conversation ────────────────────────────────────────────────────

    def count_known(self, digests: list[bytes]) -> int:
        """Return how many messages of a history belong to this conversation."""
        last = next((digest for digest in reversed(digests) if digest in self._positions), None)
        return 0 if last is None else digests.index(last) + 1

    def find(self, digest: bytes) -> IndexedMessage:
        return self.messages[self._positions[digest]]

    def has(self, digest: bytes) -> bool:
        """Return whether the history with this digest is a part of the conversation."""
        return digest in self._positions

    def count_up_to(self, digest: bytes) -> int:
        """Return how many messages of this conversation make up the history with this digest."""
        return self._positions[digest] + 1

    def continuation(self, request: ClientRequest, found: KnownSession) -> Continuation:
        """Return how a request continues the conversation after `found.end`."""
        position = self._positions.get(found.end.digest)
        if self.exchange is not None or position is None or self.messages[position].seq != found.end.seq:
            return "fork"
        if position == len(self.messages) - 1 and not self.has_unindexed_messages:
            return "append"
        return (
            "rewind" if self._is_in_last_turn(position) and self._has_same_instructions(request) else "fork"
        )

    def _is_in_last_turn(self, position: int) -> bool:
        last_turn = self.messages[-1].turn
        first = next((at for at, message in enumerate(self.messages) if message.turn == last_turn), 0)
        return position >= max(first - 1, 0)

    def _has_same_instructions(self, request: ClientRequest) -> bool:
        """Return False if the instructions differ: then the histories only begin alike by chance."""
        if self.side_state.get(SYSTEM_KEY, b"") != digest_of(request.system):
            return False
        return next(self._edited_positions(request, self.count_known(request.digests)), None) is None

    def _edited_positions(self, request: ClientRequest, known: int) -> Iterator[int]:
        """Yield the positions of instructions among the known messages whose text has changed."""
        for at, text_digest in request.instructions.items():
            position = self._positions.get(request.digests[at]) if at < known else None
            if position is not None and self.messages[position].text_digest != text_digest:
                yield at

    # ── Recording a request ──────────────────────────────────────────────────────────────────────────

    async def rewind(self, count: int) -> int:
        """Go back to the first `count` messages; return the last event that still counts."""
        to = self.messages[count - 1].seq if count else 0
        await self.session.append(Rewound(to=to, keep_state=True, keep_reductions=True))
        for message in self.messages[count:]:
            del self._positions[message.digest]
        del self.messages[count:]
        self.has_unindexed_messages = False
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
                self.add_message(request.digests[count - 1], seqs[end - 1], chunk.facts, text_digest)
            )
        return indexed

    def add_message(
        self, digest: bytes, seq: int, facts: Iterable[AnyFact], text_digest: bytes | None = None
    ) -> IndexedMessage:
        """Add a message that was appended to the session and ends with event `seq`."""
        turn = self.messages[-1].turn if self.messages else 0
        turn += any(isinstance(fact, UserSaid) for fact in facts)
        message = IndexedMessage(digest, seq, turn, text_digest)
        self._positions[digest] = len(self.messages)
        self.messages.append(message)
        return message

    def _side_facts(self, request: ClientRequest) -> list[AnyFact]:
        """Return facts for a system text and tools that have changed."""
        facts: list[AnyFact] = []
        if self._has_changed(SYSTEM_KEY, request.system):
            facts.append(request.system_fact())
        if self._has_changed(TOOLS_KEY, request.tools):
            facts.append(Equipped(tools=Raw(request.tools or b"[]")))
        return facts

    def _has_changed(self, name: str, value: bytes) -> bool:
        """Return whether a field differs from the last request's, and store its digest."""
        known, now = self.side_state.get(name), digest_of(value)
        self.side_state[name] = now
        return known != now and bool(value or known is not None)

    def _edited_instructions(self, request: ClientRequest, known: int) -> Iterator[tuple[int, AnyFact]]:
        """Yield the position of each edited instruction among the known messages, and the fact that replaces it."""
        for at in self._edited_positions(request, known):
            if (fact := request.instruction(at)) is not None:
                yield at, replace(fact, replaces=self.newest_version(request.digests[at]))

    def newest_version(self, digest: bytes) -> int:
        """Return the event with the newest text of an instruction."""
        versions = self.side_state.get(digest.hex(), b"").split()
        return int(versions[-1]) if versions else self.messages[self._positions[digest]].seq

    def _replace(self, request: ClientRequest, at: int, seq: int) -> IndexedMessage:
        """Store that event `seq` has the newest text of the instruction at position `at` of the request."""
        digest = request.digests[at]
        position = self._positions[digest]
        message = self.messages[position]._replace(text_digest=request.instructions[at])
        self.messages[position] = message
        versions = [*self.side_state.get(digest.hex(), b"").split(), b"%d" % seq]
        self.side_state[digest.hex()] = b" ".join(versions[-MAX_INSTRUCTION_VERSIONS:])
        return message


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
        if name not in (SYSTEM_KEY, TOOLS_KEY):
            versions = [version for version in value.split() if int(version) <= seq]
            kept[name] = b" ".join(versions)
    return kept


def is_message(fact: AnyFact) -> bool:
    """Return whether a fact is a message of its own, not a system text or a newer version of an instruction."""
    return isinstance(fact, MESSAGE_FACTS) and not (
        isinstance(fact, Instructed) and (fact.aside or fact.replaces is not None)
    )
