"""The conversations of one tenant: which of them a request goes on with, or a new one.

1. The longest history that is known wins; of several sessions that have it, one that ends there.
2. A client that names its session gets that one: what differs is rewound, and nothing is forked.
3. A request whose beginning is being answered for somebody else gets a fork; one that goes on after an answer that
   is just being recorded waits for that.
4. Nothing is held while upstream answers, and nothing is lost when a conversation is closed: it is read again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Final, NamedTuple
from uuid import uuid4

from foveal.core.compaction.summariser import Summariser
from foveal.core.log.events import Opened
from foveal.core.models.model import Model
from foveal.core.wire import MessageChunk
from foveal.errors import SessionExists, StoreError, UnknownSession
from foveal.server.proxy import digests as chain
from foveal.server.proxy.client_request import ClientRequest
from foveal.server.proxy.digest_index import DigestIndex, IndexedDigest, KnownSession
from foveal.server.proxy.exchange import Ask, Exchange, UpstreamSummariser
from foveal.server.proxy.proxied_session import ProxiedConversation, reserve_for, until
from foveal.server.runtime import Runtime
from foveal.server.service import Service
from foveal.server.tenants import DROP_IN, Tenant, checked_id
from foveal.sessions.session import Session

# ── known ─────────────────────────────────────────────────────────────────────────────────────────
# What is known of conversations and not yet written down.
#
# A new conversation is written down at once, because another process may be asked next. Nobody waits for the rest: it
# is written when an answer has come, or when somebody must look for what is written. What is lost costs a rewind.


class PendingTips:
    """Where the open conversations end: one digest for each."""

    def __init__(self) -> None:
        self._sessions: dict[bytes, str] = {}
        self._digests: dict[str, bytes] = {}

    def find(self, digest: bytes) -> str:
        """The session that ends with this digest; "" when none is known to."""
        return self._sessions.get(digest, "")

    def keep(self, digest: bytes, session: str) -> None:
        self._sessions[digest], self._digests[session] = session, digest

    def forget(self, session: str) -> None:
        digest = self._digests.pop(session, None)
        if digest is not None and self._sessions.get(digest) == session:
            del self._sessions[digest]


class _Unwritten(NamedTuple):
    conversation: ProxiedConversation
    heads: list[IndexedDigest]
    rewound: int | None


class PendingIndex:
    """That of one tenant."""

    def __init__(self, tenant: str, heads: DigestIndex) -> None:
        self._tenant, self._heads = tenant, heads
        self._unwritten: dict[str, _Unwritten] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def keep(
        self, conversation: ProxiedConversation, heads: Sequence[IndexedDigest], *, rewound: int | None
    ) -> None:
        """New heads of a conversation, after a rewind to the event `rewound` if there was one."""
        before = self._unwritten.get(conversation.id)
        if before is not None:
            heads, rewound = [*before.heads, *heads], before.rewound if rewound is None else rewound
        self._unwritten[conversation.id] = _Unwritten(conversation, list(heads), rewound)

    def write_down(self, session: str) -> None:
        """What is known of a session, soon."""
        if session in self._unwritten:
            self.start(self.written_down(session))

    async def all_written_down(self) -> None:
        for session in list(self._unwritten):
            await self.written_down(session)

    async def close(self) -> None:
        await self.all_written_down()
        if self._tasks:
            await asyncio.wait(set(self._tasks))

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something that nobody waits for before the end."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def written_down(self, session: str) -> None:
        """The same, now."""
        known = self._unwritten.pop(session, None)
        if known is not None:
            beside = known.conversation.beside
            with suppress(StoreError):
                await self._heads.keep(
                    self._tenant, session, known.heads, beside=beside, rewound=known.rewound
                )


# ── conversations ─────────────────────────────────────────────────────────────────────────────────

OPEN: Final = 256
"""Conversations that stay open while nobody uses them."""
PATIENCE: Final = 30.0
"""Seconds to wait for an answer that is being recorded."""


class SessionGone(Exception):
    """The session was erased, or its file is another one."""


class Conversations:
    def __init__(self, ground: Runtime, tenant: Tenant, heads: DigestIndex) -> None:
        self._ground, self._tenant, self._heads = ground, tenant, heads
        self._open: OrderedDict[str, tuple[ProxiedConversation, UpstreamSummariser]] = OrderedDict()
        self._flights: dict[bytes, Exchange] = {}
        self._tips = PendingTips()
        self._known = PendingIndex(tenant.name, heads)

    async def begin(self, asked: ClientRequest, model: Model, ask: Ask, *, named: str = "") -> Exchange:
        """Take in a request. Raises `MalformedMessage`, `ContextOverflow` (what is new is stored by then),
        `BadSetting` for a name that no session can have, `SessionExists` for one that is not a client's, and
        `StoreError`."""
        await self._wait(asked.digests)
        if named:
            return await self._in(checked_id(named), asked, model, ask)
        for found in await self._found(asked):
            exchange = await self._from(found, asked, model, ask)
            if exchange is not None:
                return exchange
        chunks = asked.chunks(0)
        return await self._new(asked, model, ask, chunks)

    async def close(self) -> None:
        await self._known.close()
        while self._open:
            _, (conversation, _) = self._open.popitem()
            await conversation.session.close()

    @property
    def count(self) -> int:
        return len(self._open)

    # ── which one ────────────────────────────────────────────────────────────────────────────────────

    async def _wait(self, digests: Sequence[bytes]) -> None:
        """A client that has its answer may be faster than we are with recording it."""
        if self._flights:
            before = [self._flights[digest] for digest in digests[:-1] if digest in self._flights]
            for exchange in before:
                if exchange.ending:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(exchange.settled.wait(), PATIENCE)

    async def _found(self, asked: ClientRequest) -> list[KnownSession]:
        """The sessions that have the longest beginning of a history."""
        for at in range(len(asked.digests) - 1, -1, -1):
            held = self._open.get(self._tips.find(asked.digests[at]))
            if held is not None and held[0].tip is not None and held[0].tip.digest == asked.digests[at]:
                return [KnownSession(held[0].id, held[0].tip)]
            if chain.by_model(asked.messages[at]):
                break  # what the model said may have been said in another session
        await self._known.all_written_down()
        return await self._heads.find(self._tenant.name, list(dict.fromkeys(asked.digests)))

    async def _from(
        self, found: KnownSession, asked: ClientRequest, model: Model, ask: Ask
    ) -> Exchange | None:
        """Go on with a session, or with a fork of it; None when it is gone."""
        known = asked.digests.index(found.head.digest) + 1
        chunks = asked.chunks(known)
        try:
            async with self._hold(found.session):
                conversation = await self._current(found.session, asked, model, ask)
                if (
                    place := conversation.place(asked.digests)
                ) >= known:  # it may have grown since it was found
                    found = KnownSession(found.session, conversation.head(asked.digests[place - 1]))
                    known, chunks = place, asked.chunks(place)
                way = conversation.way(asked, found)
                worn = way == "rewind" and conversation.worn
                if way != "fork" and not worn:
                    back = None if way == "go on" else conversation.places(found.head.digest)
                    return await self._taken(conversation, asked, known, chunks, back=back)
            exchange = await self._forked(found, known, asked, model, ask, chunks)
            if worn:  # from now on the fork is found, and not what it was forked from
                await self._heads.rest(self._tenant.name, found)
            return exchange
        except (SessionGone, UnknownSession):
            await self.forget(found.session)
            return None

    async def _in(self, id: str, asked: ClientRequest, model: Model, ask: Ask) -> Exchange:
        """Go on in the session that the client names."""
        try:
            async with self._hold(id):
                if id not in self._open:
                    await self._claim(id, asked, model, ask)
                conversation = await self._current(id, asked, model, ask)
                known = conversation.place(asked.digests)
                chunks = asked.chunks(known)
                place = conversation.places(asked.digests[known - 1]) if known else 0
                back = place if place < len(conversation.lineage) or conversation.loose else None
                return await self._taken(conversation, asked, known, chunks, back=back)
        except SessionGone:
            raise UnknownSession(id) from None

    async def _claim(self, id: str, asked: ClientRequest, model: Model, ask: Ask) -> None:
        """Begin a session of this name, unless there is one; raises `SessionExists` for one of the server's own."""
        try:
            first = (await self._tenant.quick.read(id, first=0, last=0))[0].fact
        except UnknownSession:
            await self._opened(id, asked, model, ask, origin=DROP_IN)
            return
        if isinstance(first, Opened) and first.origin != DROP_IN:
            raise SessionExists(id)

    async def _new(
        self, asked: ClientRequest, model: Model, ask: Ask, chunks: Sequence[MessageChunk]
    ) -> Exchange:
        id = f"d-{uuid4().hex}"
        async with self._hold(id):
            conversation = await self._opened(id, asked, model, ask, origin=DROP_IN)
            return await self._taken(conversation, asked, 0, chunks)

    async def _forked(
        self,
        found: KnownSession,
        known: int,
        asked: ClientRequest,
        model: Model,
        ask: Ask,
        chunks: Sequence[MessageChunk],
    ) -> Exchange:
        id, tenant = f"d-{uuid4().hex}", self._tenant.name
        await self._known.all_written_down()
        lineage = await self._heads.at(tenant, found.session, list(dict.fromkeys(asked.digests[:known])))
        _, beside = await self._heads.of(tenant, found.session)
        async with self._hold(id):
            await self._tenant.quick.fork(found.session, id, at=found.head.seq)
            conversation = await self._opened(
                id, asked, model, ask, origin=f"{found.session}@{found.head.seq}"
            )
            inherited = [head._replace(words=head.words and b"") for head in lineage]
            conversation.load(inherited, until(beside, found.head.seq), ())
            return await self._taken(conversation, asked, known, chunks, inherited=inherited)

    # ── taking in ────────────────────────────────────────────────────────────────────────────────────

    async def _taken(
        self,
        conversation: ProxiedConversation,
        asked: ClientRequest,
        known: int,
        chunks: Sequence[MessageChunk],
        *,
        back: int | None = None,
        inherited: Sequence[IndexedDigest] = (),
    ) -> Exchange:
        """Append what is new, after a rewind to the first `back` messages if need be, and fit. Whoever calls this
        holds the session."""
        tip = conversation.tip
        try:
            rewound = None if back is None else await conversation.rewind(back)
            heads = await conversation.take(asked, known, chunks)
        except BaseException:
            self._drop(conversation.id)  # what is stored of it is read again
            raise
        self._keep(conversation, [*inherited, *heads], rewound=rewound)
        if tip is None or inherited:  # from here on, other processes must find it
            await self._known.written_down(conversation.id)
        try:
            fitted = await conversation.session.fit()
        except BaseException:
            self._known.write_down(conversation.id)
            raise
        exchange = Exchange(
            conversation, asked, fitted, hold=self._hold, keep=self._keep, landed=self._landed
        )
        self._flights[exchange.tip] = exchange
        return exchange

    def _landed(self, exchange: Exchange) -> None:
        if self._flights.get(exchange.tip) is exchange:
            del self._flights[exchange.tip]
        self._known.write_down(exchange.session)

    def _keep(
        self, conversation: ProxiedConversation, heads: Sequence[IndexedDigest], rewound: int | None = None
    ) -> None:
        """Remember what leads where."""
        self._point_to(conversation)
        self._known.keep(conversation, heads, rewound=rewound)

    def _point_to(self, conversation: ProxiedConversation) -> None:
        """Whoever goes on from the end of this conversation finds it at once."""
        self._tips.forget(conversation.id)
        if conversation.tip is not None and conversation.id in self._open:
            self._tips.keep(conversation.tip.digest, conversation.id)

    # ── opening ──────────────────────────────────────────────────────────────────────────────────────

    def _hold(self, id: str) -> AbstractAsyncContextManager[None]:
        return self._ground.turnstile.hold(self._tenant.name, id)

    async def _current(self, id: str, asked: ClientRequest, model: Model, ask: Ask) -> ProxiedConversation:
        """The conversation in a session, with what other processes have added; raises `Gone`."""
        held = self._open.get(id)
        if held is None or (held[0].flight is None and not held[0].suits(asked, model)):
            return await self._loaded(await self._opened(id, asked, model, ask))
        conversation, writer = held
        writer.ask = ask
        self._open.move_to_end(id)
        newer, erased = await self._tenant.quick.news(id, first=conversation.session.last + 1)
        if erased:
            raise SessionGone
        return await self._loaded(conversation) if newer or conversation.outdated else conversation

    async def _loaded(self, conversation: ProxiedConversation) -> ProxiedConversation:
        await self._known.all_written_down()
        lineage, beside = await self._heads.of(self._tenant.name, conversation.id)
        first = lineage[-1].seq + 1 if lineage else 0
        info = await self._tenant.quick.info(conversation.id)
        if info.erased or first > info.events:
            self._drop(conversation.id)
            raise SessionGone
        conversation.load(lineage, beside, await self._tenant.quick.read(conversation.id, first=first))
        self._point_to(conversation)
        return conversation

    async def _opened(
        self, id: str, asked: ClientRequest, model: Model, ask: Ask, *, origin: str = ""
    ) -> ProxiedConversation:
        reserve = reserve_for(asked, model)
        settings = self._ground.config.session(model)
        if reserve:
            settings["reserve"] = max(reserve, settings.get("reserve") or 0)
        writer = UpstreamSummariser(model.name)
        session = await Session.open(
            self._tenant.quick,
            id,
            model=model,
            origin=origin,
            summarise=[*self._named(), writer.summariser],
            clock=self._ground.clock,
            terms=self._tenant.terms(id),
            **settings,
        )
        writer.ask = ask
        writer.conversation = conversation = ProxiedConversation(session, model, reserve=reserve)
        await self._replace(conversation, writer)
        return conversation

    def _named(self) -> list[Summariser]:
        return self._tenant.summarisers()

    async def _replace(self, conversation: ProxiedConversation, writer: UpstreamSummariser) -> None:
        """Keep a conversation open, and close those that nobody has used for the longest time."""
        old = self._open.pop(conversation.id, None)
        self._open[conversation.id] = (conversation, writer)
        idle = [
            id for id, (held, _) in self._open.items() if held.flight is None and held is not conversation
        ]
        for id in idle[: max(0, len(self._open) - OPEN)]:
            self._drop(id)
        if old is not None:
            await old[0].session.close()

    def _drop(self, id: str) -> None:
        held = self._open.pop(id, None)
        self._tips.forget(id)
        if held is not None:
            self._known.start(held[0].session.close())

    async def forget(self, id: str) -> None:
        """A session is gone, or will be: nothing leads to it any more."""
        self._drop(id)
        await self._heads.forget(self._tenant.name, id)


# ── registry ──────────────────────────────────────────────────────────────────────────────────────
# All conversations of drop-in clients, tenant by tenant.


class ProxyConversations:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._heads = DigestIndex(service.ground.database)
        self._tenants: dict[str, Conversations] = {}
        service.ground.forgetting.append(self._forget)

    def of(self, tenant: str) -> Conversations:
        """The conversations of one tenant."""
        if tenant not in self._tenants:
            ground = self._service.ground
            self._tenants[tenant] = Conversations(ground, self._service.tenant(tenant), self._heads)
        return self._tenants[tenant]

    @property
    def count(self) -> int:
        """Those that are open."""
        return sum(held.count for held in self._tenants.values())

    async def close(self) -> None:
        for held in self._tenants.values():
            await held.close()

    async def _forget(self, tenant: str, session: str) -> None:
        await self.of(tenant).forget(session)
