"""One request and its answer: what goes upstream, what to send when that was too large, and what came back.

The session is held while something is appended and fitted, never while upstream answers. Somebody else may have
spoken meanwhile; then the answer is kept as a note, because it is no longer an answer to what was said last.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from operator import attrgetter
from typing import Any, Final

import msgspec

from foveal.core import wire
from foveal.core.compaction.summariser import Summariser, SummaryRequest
from foveal.core.log.events import AnyFact, Dialect, Instructed, Noted, Rewound
from foveal.core.view.request import Fitted, ReducedCounts, unmarked
from foveal.core.wire.usage import used
from foveal.errors import ContextOverflow, ProviderError, StoreError
from foveal.providers import cache_breakpoints
from foveal.server.proxy import digests
from foveal.server.proxy.client_request import ClientRequest
from foveal.server.proxy.digest_index import IndexedDigest
from foveal.server.proxy.proxied_session import ProxiedConversation, said
from foveal.server.proxy.upstream_reply import UpstreamReply

# ── summaries ─────────────────────────────────────────────────────────────────────────────────────
# Summaries by the conversation's own upstream: the client's model, asked with the client's key.
#
# A request of the `shared` sort begins like the conversation itself, with the client's own system text and tools, so
# that what upstream has cached is read again. The key is in memory for as long as the conversation is open, and is
# never stored.

Ask = Callable[[Dialect, bytes], Awaitable[tuple[int, bytes]]]
"""Sends a body upstream and gives back the status and the body of the answer."""

_SYSTEM: Final = frozenset({"system", "instructions"})


class SummaryRefused(ProviderError):
    """Upstream did not write a summary."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"upstream answered {status}", code="refused")
        self.status_code = status
        self.body = body[:20_000]


class UpstreamSummariser:
    """Writes the summaries of one conversation; `conversation` and `ask` are set before the first request."""

    def __init__(self, name: str) -> None:
        self.conversation: ProxiedConversation | None = None
        self.ask: Ask | None = None
        self.summariser = Summariser(self._write, name=name)

    async def _write(self, request: SummaryRequest) -> Any:
        if self.conversation is None or self.ask is None or self.conversation.latest is None:
            raise ProviderError("nobody has asked for anything here yet", code="refused")
        gist, shared = self.conversation.latest, request.form == "shared"
        beside = shared and _SYSTEM & gist.fields.keys()  # the client's own goes beside the messages
        messages = _messages(request, gist.dialect, skip=bool(beside) and request.dialect != "anthropic")
        more: Mapping[str, Any] = {"system": request.system} if request.system else {}
        body = gist.written(messages, max_tokens=request.max_tokens, more=gist.fields if shared else more)
        status, answer = await self.ask(gist.dialect, body)
        if status != 200:
            raise SummaryRefused(status, answer)
        return msgspec.json.decode(answer)


def _messages(request: SummaryRequest, dialect: Dialect, *, skip: bool) -> list[dict[str, Any]]:
    """The messages in the conversation's dialect: a history of plain texts can be of any. The first one is left out
    if it says what the client's request says beside its messages."""
    messages = request.messages[1:] if skip else request.messages
    if request.dialect == dialect:
        return messages
    writer = wire.wire(dialect)
    facts = [fact for chunk in wire.wire(request.dialect).read(messages) for fact in chunk.facts]
    return writer.join([writer.write(fact) for fact in facts])


# ── marking ───────────────────────────────────────────────────────────────────────────────────────
# Marks for Anthropic's prompt cache in a history that was reduced.
#
# Where the client's marks stood there may be nothing any more. So they are taken away, and ours stand by the rule of
# `models_io.marks`: as many as are left of the four, and none for a client that uses none.

Json = dict[str, Any]

_MARK: Final = b'"cache_control"'
_OURS: Final = 2
"""Marks that the rule puts among the messages: the newest block, and the last that was there before."""


def marked(messages: Sequence[Json], asked: ClientRequest, before: Sequence[Json]) -> list[Json]:
    """The messages with their marks; `before` are those of the request before, as they were without."""
    bare: list[Json] = [unmarked(message) for message in messages]
    left = cache_breakpoints.MAX_BREAKPOINTS - asked.system.count(_MARK) - asked.tools.count(_MARK)
    if _MARK not in asked.body or left <= 0:
        return bare
    with_marks: list[Json] = cache_breakpoints.marked({"messages": bare}, before if left >= _OURS else ())[
        "messages"
    ]
    return with_marks


# ── own words ─────────────────────────────────────────────────────────────────────────────────────
# What goes upstream of a history that was reduced: whatever is shown whole in the client's own words.
#
# The log may not hold them: secrets are kept out of it, and a client may send an old message in another form. So of
# each message that is shown as it was said, the client's own one is written, as it was before anything was reduced.

_seq = attrgetter("seq")


def own_words(fitted: Fitted, conversation: ProxiedConversation, asked: ClientRequest) -> list[AnyFact]:
    """The facts of a request, each whole one as the client has it."""
    return list(_MessageFinder(conversation, asked).facts(fitted))


class _MessageFinder:
    """The messages of a request, found by the events that were made of them."""

    def __init__(self, conversation: ProxiedConversation, asked: ClientRequest) -> None:
        self._asked = asked
        self._lineage: Sequence[IndexedDigest] = conversation.lineage
        self._ends = {digest: at for at, digest in reversed(list(enumerate(asked.digests)))}
        self._newer = {conversation.version(digest): at for at, digest in self._instructed(conversation)}
        self._read: dict[int, tuple[AnyFact, ...]] = {}

    def facts(self, fitted: Fitted) -> Iterator[AnyFact]:
        for fact, seq in zip(fitted.facts, fitted.seqs, strict=True):
            yield fact if seq < 0 else self._own(fact, seq)

    def _instructed(self, conversation: ProxiedConversation) -> Iterator[tuple[int, bytes]]:
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


# ── exchange ──────────────────────────────────────────────────────────────────────────────────────

TOPIC: Final = "answer"
ABSURD: Final = 8
"""A count that is so many times what was expected is not this request's."""

Keep = Callable[[ProxiedConversation, list[IndexedDigest]], None]
Hold = Callable[[str], AbstractAsyncContextManager[None]]


class Exchange:
    def __init__(
        self,
        conversation: ProxiedConversation,
        asked: ClientRequest,
        fitted: Fitted,
        *,
        hold: Hold,
        keep: Keep,
        landed: Callable[[Exchange], None],
    ) -> None:
        self.conversation = conversation
        self.asked = asked
        self.recovered = 0
        """How often upstream has said that it was too large."""
        self.ending = False
        """Upstream has said all that it will say: it is being recorded."""
        self.settled = asyncio.Event()
        """It has been recorded, or never will be."""
        self.body = b""
        self._hold, self._keep, self._landed = hold, keep, landed
        self._before = conversation.sent
        self._tip = conversation.tip
        self._send(fitted)
        conversation.flight = self

    @property
    def session(self) -> str:
        return self.conversation.id

    @property
    def tip(self) -> bytes:
        """The digest of what was asked."""
        return self.asked.digests[-1]

    def _send(self, fitted: Fitted, *, max_tokens: int = 0) -> None:
        self.tokens = fitted.tokens
        self.whole = max(fitted.whole, fitted.tokens) if fitted.reduced else fitted.tokens
        self.reduced: ReducedCounts = fitted.reduced
        messages = None if fitted.intact else self._written(fitted)
        self.body = self.asked.written(messages, max_tokens=max_tokens)

    def _written(self, fitted: Fitted) -> list[dict[str, Any]]:
        writer = wire.wire(self.asked.dialect)
        facts = own_words(fitted, self.conversation, self.asked)
        messages = writer.join([writer.write(fact) for fact in facts])
        if self.asked.dialect == "anthropic":
            messages, self.conversation.sent = marked(messages, self.asked, self._before), messages
        return messages

    async def refused(self, error: object) -> bool:
        """Whether upstream's error means that the request was too large, and `body` is now a smaller one."""
        session, before = self.conversation.session, self.body
        async with self._hold(self.session):
            try:
                if await self._moved() or not await session.overflowed(error):
                    return False
                fitted = await session.fit()
                limit = await session.max_tokens()
            except (ContextOverflow, StoreError):  # the client is told what upstream said
                return False
            wanted = self.asked.max_tokens
            self._send(fitted, max_tokens=limit if limit < wanted else 0)
        self.recovered += 1
        return self.body != before

    async def answered(self, answer: UpstreamReply | None) -> None:
        """Record what upstream has said, if it has said anything whole; nobody waits here any more."""
        self.ending = True
        try:
            if answer is not None:
                async with self._hold(self.session):
                    await self._record(answer)
        finally:
            self.end()

    def end(self) -> None:
        """There is no answer, or it was recorded."""
        if self.conversation.flight is self:
            self.conversation.flight = None
        if not self.settled.is_set():
            self.settled.set()
            self._landed(self)

    async def _record(self, answer: UpstreamReply) -> None:
        conversation, session = self.conversation, self.conversation.session
        if await self._moved():
            conversation.outdated = True
            if not (await session.info()).erased:
                await session.append(Noted(text=answer.text, topic=TOPIC))
            return
        events = await session.append(*answer.facts)
        await self._observe(answer.usage)
        last = conversation.tip.digest if conversation.tip else digests.start(self.asked.dialect)
        digest = digests.extended(last, answer.messages, self.asked.dialect)[-1]
        self._keep(conversation, [conversation.add(digest, events[-1].seq, answer.facts)])

    async def _moved(self) -> bool:
        """Somebody else has spoken here, or the session is gone."""
        conversation, session = self.conversation, self.conversation.session
        newer, erased = await session.store.news(session.id, first=session.last + 1)
        spoken = any(said(event.fact) or isinstance(event.fact, Rewound) for event in newer)
        return erased or spoken or conversation.flight is not self or conversation.tip != self._tip

    async def _observe(self, usage: Any) -> None:
        """Learn from what upstream counted, unless it cannot be true."""
        fact = used(usage) if isinstance(usage, dict) else None
        if fact is not None and fact.prompt <= ABSURD * max(self.tokens, 1_000):
            await self.conversation.session.observe(usage)
