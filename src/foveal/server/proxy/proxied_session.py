"""One conversation that is open: its session, and which history leads to which of its events.

Whoever changes it holds its session in the turnstile. Three things can be done with a history that begins like it:

    go on       it begins with all that was said: the rest is new
    rewind      it parts from it within the last turn (an answer is asked for again, or the last message was edited)
    fork        it parts from it earlier, or somebody else is waiting for an answer here
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Literal

from msgspec import Raw
from msgspec.structs import replace

from foveal.core.engine.history_diff import MESSAGES
from foveal.core.log.events import AnyFact, Dialect, Equipped, Event, Instructed, Rewound, UserSaid
from foveal.core.models.model import Model
from foveal.core.wire import MessageChunk
from foveal.server.proxy import digests as chain
from foveal.server.proxy.client_request import ClientRequest, RequestGist
from foveal.server.proxy.digest_index import IndexedDigest, KnownSession
from foveal.sessions.session import Session

Way = Literal["go on", "rewind", "fork"]

KEPT: Final[dict[Dialect, tuple[str, ...]]] = {
    "openai_chat": ("tools", "reasoning_effort", "user", "prompt_cache_key"),
    "openai_responses": ("tools", "instructions", "reasoning", "user", "prompt_cache_key"),
    "anthropic": ("tools", "system", "metadata"),
}
"""What a request for a summary has from the client's: what stands before the messages, or belongs to the model."""
SYSTEM: Final = "system"
TOOLS: Final = "tools"
BATCH: Final = 128 * 1024
"""Bytes of messages that are appended in one go; redacting and counting them takes milliseconds."""
WORN: Final = 8
VERSIONS: Final = 64
"""How many versions of an instruction are remembered by their place in the log."""


class ProxiedConversation:
    def __init__(self, session: Session, model: Model, *, reserve: int = 0) -> None:
        self.session = session
        self.model = model
        self.reserve = reserve
        """Tokens that are kept for the answer because the client asks for so many; 0 is as configured."""
        self.lineage: list[IndexedDigest] = []
        """The end of each message so far."""
        self.beside: dict[str, bytes] = {}
        """What stands beside the messages: digests of its words; and the versions of instructions, by digest."""
        self.loose = False
        """Something was said here that no head leads to."""
        self.outdated = False
        """Somebody else has spoken here since it was read."""
        self.flight: object = None
        """Who waits for an answer; None when nobody does."""
        self.latest: RequestGist | None = None
        """The request that is, or was, answered last."""
        self.sent: Sequence[dict[str, Any]] = ()
        """The messages of the request before, where marks for the cache depend on them."""
        self._places: dict[bytes, int] = {}

    @property
    def id(self) -> str:
        return self.session.id

    @property
    def tip(self) -> IndexedDigest | None:
        return self.lineage[-1] if self.lineage else None

    def suits(self, asked: ClientRequest, model: Model) -> bool:
        """It was opened as this request needs it."""
        return self.model == model and self.reserve == reserve_for(asked, model)

    @property
    def worn(self) -> bool:
        """It was rewound so often that most of its log counts no more, and every rewind reads all of it."""
        return self.session.last > WORN * (len(self.lineage) + WORN)

    def load(
        self, lineage: Iterable[IndexedDigest], beside: dict[str, bytes], newer: Iterable[Event]
    ) -> None:
        """What is known of it; `newer` are the events after the last head."""
        self.lineage, self.beside = list(lineage), dict(beside)
        self._places = {head.digest: place for place, head in enumerate(self.lineage)}
        self.loose = any(said(event.fact) for event in newer)
        self.outdated = False

    # ── what to do with a history ────────────────────────────────────────────────────────────────────

    def place(self, digests: list[bytes]) -> int:
        """How many messages of a history are those of this conversation."""
        last = next((digest for digest in reversed(digests) if digest in self._places), None)
        return 0 if last is None else digests.index(last) + 1

    def head(self, digest: bytes) -> IndexedDigest:
        return self.lineage[self._places[digest]]

    def has(self, digest: bytes) -> bool:
        """The history with this digest is a part of it."""
        return digest in self._places

    def places(self, digest: bytes) -> int:
        """How many messages of this conversation make up the history with this digest."""
        return self._places[digest] + 1

    def way(self, asked: ClientRequest, found: KnownSession) -> Way:
        """How a history that leads to `found` is taken in."""
        place = self._places.get(found.head.digest)
        if self.flight is not None or place is None or self.lineage[place].seq != found.head.seq:
            return "fork"
        if place == len(self.lineage) - 1 and not self.loose:
            return "go on"
        return "rewind" if self._in_last_turn(place) and self._instructed_alike(asked) else "fork"

    def _in_last_turn(self, place: int) -> bool:
        last = self.lineage[-1].turn
        begins = next((at for at, head in enumerate(self.lineage) if head.turn == last), 0)
        return place >= max(begins - 1, 0)

    def _instructed_alike(self, asked: ClientRequest) -> bool:
        """A history that was only begun alike, under other instructions, is another conversation."""
        if self.beside.get(SYSTEM, b"") != chain.fingerprint(asked.system):
            return False
        return next(self._edits(asked, self.place(asked.digests)), None) is None

    def _edits(self, asked: ClientRequest, known: int) -> Iterator[int]:
        """The places of instructions among the known messages that say something else by now."""
        for at, words in asked.instructed.items():
            place = self._places.get(asked.digests[at]) if at < known else None
            if place is not None and self.lineage[place].words != words:
                yield at

    # ── taking it in ─────────────────────────────────────────────────────────────────────────────────

    async def rewind(self, place: int) -> int:
        """Go back to the first `place` messages; the last event that still counts."""
        to = self.lineage[place - 1].seq if place else 0
        await self.session.append(Rewound(to=to, keep_state=True, keep_reductions=True))
        for head in self.lineage[place:]:
            del self._places[head.digest]
        del self.lineage[place:]
        self.loose = False
        return to

    async def take(
        self, asked: ClientRequest, known: int, chunks: Sequence[MessageChunk]
    ) -> list[IndexedDigest]:
        """Append what a request has beyond its first `known` messages, and what has changed beside them. The heads
        that are new or different."""
        beside, edited = self._beside(asked), list(self._edited(asked, known))
        changed = [*beside, *(fact for _, fact in edited)]
        events = list(await self.session.append(*changed)) if changed else []
        for batch in _batches(asked, known, chunks):
            events += await self.session.append(*batch)
        self.latest = asked.gist(KEPT[asked.dialect])
        seqs = [event.seq for event in events[len(beside) :]]
        heads = [self._newer(asked, at, seq) for (at, _), seq in zip(edited, seqs, strict=False)]
        end, place = len(edited), known
        for chunk in chunks:
            end, place = end + len(chunk.facts), place + chunk.messages
            words = asked.instructed.get(place - 1)
            heads.append(self.add(asked.digests[place - 1], seqs[end - 1], chunk.facts, words))
        return heads

    def add(
        self, digest: bytes, seq: int, facts: Iterable[AnyFact], words: bytes | None = None
    ) -> IndexedDigest:
        """A message that was appended, and ends with event `seq`."""
        turn = self.lineage[-1].turn if self.lineage else 0
        turn += any(isinstance(fact, UserSaid) for fact in facts)
        head = IndexedDigest(digest, seq, turn, words)
        self._places[digest] = len(self.lineage)
        self.lineage.append(head)
        return head

    def _beside(self, asked: ClientRequest) -> list[AnyFact]:
        """Facts for system text and tools that are not what they were."""
        facts: list[AnyFact] = []
        if self._differs(SYSTEM, asked.system):
            facts.append(asked.aside())
        if self._differs(TOOLS, asked.tools):
            facts.append(Equipped(tools=Raw(asked.tools or b"[]")))
        return facts

    def _differs(self, name: str, words: bytes) -> bool:
        known, now = self.beside.get(name), chain.fingerprint(words)
        self.beside[name] = now
        return known != now and bool(words or known is not None)

    def _edited(self, asked: ClientRequest, known: int) -> Iterator[tuple[int, AnyFact]]:
        """Instructions among the known messages whose text is another one, in the place of the old."""
        for at in self._edits(asked, known):
            if (fact := asked.instruction(at)) is not None:
                yield at, replace(fact, replaces=self.version(asked.digests[at]))

    def version(self, digest: bytes) -> int:
        """The event that has the newest text of an instruction."""
        versions = self.beside.get(digest.hex(), b"").split()
        return int(versions[-1]) if versions else self.lineage[self._places[digest]].seq

    def _newer(self, asked: ClientRequest, at: int, seq: int) -> IndexedDigest:
        digest = asked.digests[at]
        place = self._places[digest]
        self.lineage[place] = head = self.lineage[place]._replace(words=asked.instructed[at])
        versions = [*self.beside.get(digest.hex(), b"").split(), b"%d" % seq]
        self.beside[digest.hex()] = b" ".join(versions[-VERSIONS:])
        return head


def _batches(asked: ClientRequest, known: int, chunks: Sequence[MessageChunk]) -> Iterator[list[AnyFact]]:
    """The facts of chunks, few enough at a time that others do not have to wait for long."""
    batch: list[AnyFact] = []
    size = 0
    for chunk in chunks:
        batch += chunk.facts
        size += asked.size(known, chunk.messages)
        known += chunk.messages
        if size > BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def until(beside: dict[str, bytes], seq: int) -> dict[str, bytes]:
    """What a fork at `seq` knows of what stood beside a conversation: only the versions of instructions that it has
    too; what system text and tools were then is not known."""
    kept: dict[str, bytes] = {}
    for name, words in beside.items():
        if name not in (SYSTEM, TOOLS):
            versions = [version for version in words.split() if int(version) <= seq]
            kept[name] = b" ".join(versions)
    return kept


def said(fact: AnyFact) -> bool:
    """Somebody said this, in its turn."""
    return isinstance(fact, MESSAGES) and not (
        isinstance(fact, Instructed) and (fact.aside or fact.replaces is not None)
    )


def reserve_for(asked: ClientRequest, model: Model) -> int:
    """Tokens to keep for the answer, rounded, so that a client may vary what it asks for."""
    if not asked.max_tokens:
        return 0
    return min(1 << (asked.max_tokens - 1).bit_length(), model.window // 2)
