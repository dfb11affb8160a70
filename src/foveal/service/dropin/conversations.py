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
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Final
from uuid import uuid4

from foveal.errors import SessionExists, UnknownSession
from foveal.events import Opened
from foveal.models import Model
from foveal.service.dropin import chain
from foveal.service.dropin.conversation import Conversation, reserve_for, until
from foveal.service.dropin.exchange import Exchange
from foveal.service.dropin.heads import Found, Head, Heads
from foveal.service.dropin.known import Known, Tips
from foveal.service.dropin.requests import Asked
from foveal.service.dropin.summaries import Ask, Writer
from foveal.service.ground import Ground
from foveal.service.tenants import DROP_IN, Tenant, checked_id
from foveal.session import Session
from foveal.summarise import Summariser
from foveal.wire import Chunk

OPEN: Final = 256
"""Conversations that stay open while nobody uses them."""
PATIENCE: Final = 30.0
"""Seconds to wait for an answer that is being recorded."""


class Gone(Exception):
    """The session was erased, or its file is another one."""


class Conversations:
    def __init__(self, ground: Ground, tenant: Tenant, heads: Heads) -> None:
        self._ground, self._tenant, self._heads = ground, tenant, heads
        self._open: OrderedDict[str, tuple[Conversation, Writer]] = OrderedDict()
        self._flights: dict[bytes, Exchange] = {}
        self._tips = Tips()
        self._known = Known(tenant.name, heads)

    async def begin(self, asked: Asked, model: Model, ask: Ask, *, named: str = "") -> Exchange:
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

    async def _found(self, asked: Asked) -> list[Found]:
        """The sessions that have the longest beginning of a history."""
        for at in range(len(asked.digests) - 1, -1, -1):
            held = self._open.get(self._tips.find(asked.digests[at]))
            if held is not None and held[0].tip is not None and held[0].tip.digest == asked.digests[at]:
                return [Found(held[0].id, held[0].tip)]
            if chain.by_model(asked.messages[at]):
                break  # what the model said may have been said in another session
        await self._known.all_written_down()
        return await self._heads.find(self._tenant.name, list(dict.fromkeys(asked.digests)))

    async def _from(self, found: Found, asked: Asked, model: Model, ask: Ask) -> Exchange | None:
        """Go on with a session, or with a fork of it; None when it is gone."""
        known = asked.digests.index(found.head.digest) + 1
        chunks = asked.chunks(known)
        try:
            async with self._hold(found.session):
                conversation = await self._current(found.session, asked, model, ask)
                if (
                    place := conversation.place(asked.digests)
                ) >= known:  # it may have grown since it was found
                    found = Found(found.session, conversation.head(asked.digests[place - 1]))
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
        except (Gone, UnknownSession):
            await self.forget(found.session)
            return None

    async def _in(self, id: str, asked: Asked, model: Model, ask: Ask) -> Exchange:
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
        except Gone:
            raise UnknownSession(id) from None

    async def _claim(self, id: str, asked: Asked, model: Model, ask: Ask) -> None:
        """Begin a session of this name, unless there is one; raises `SessionExists` for one of the server's own."""
        try:
            first = (await self._tenant.quick.read(id, first=0, last=0))[0].fact
        except UnknownSession:
            await self._opened(id, asked, model, ask, origin=DROP_IN)
            return
        if isinstance(first, Opened) and first.origin != DROP_IN:
            raise SessionExists(id)

    async def _new(self, asked: Asked, model: Model, ask: Ask, chunks: Sequence[Chunk]) -> Exchange:
        id = f"d-{uuid4().hex}"
        async with self._hold(id):
            conversation = await self._opened(id, asked, model, ask, origin=DROP_IN)
            return await self._taken(conversation, asked, 0, chunks)

    async def _forked(
        self, found: Found, known: int, asked: Asked, model: Model, ask: Ask, chunks: Sequence[Chunk]
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
        conversation: Conversation,
        asked: Asked,
        known: int,
        chunks: Sequence[Chunk],
        *,
        back: int | None = None,
        inherited: Sequence[Head] = (),
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

    def _keep(self, conversation: Conversation, heads: Sequence[Head], rewound: int | None = None) -> None:
        """Remember what leads where."""
        self._point_to(conversation)
        self._known.keep(conversation, heads, rewound=rewound)

    def _point_to(self, conversation: Conversation) -> None:
        """Whoever goes on from the end of this conversation finds it at once."""
        self._tips.forget(conversation.id)
        if conversation.tip is not None and conversation.id in self._open:
            self._tips.keep(conversation.tip.digest, conversation.id)

    # ── opening ──────────────────────────────────────────────────────────────────────────────────────

    def _hold(self, id: str) -> AbstractAsyncContextManager[None]:
        return self._ground.turnstile.hold(self._tenant.name, id)

    async def _current(self, id: str, asked: Asked, model: Model, ask: Ask) -> Conversation:
        """The conversation in a session, with what other processes have added; raises `Gone`."""
        held = self._open.get(id)
        if held is None or (held[0].flight is None and not held[0].suits(asked, model)):
            return await self._loaded(await self._opened(id, asked, model, ask))
        conversation, writer = held
        writer.ask = ask
        self._open.move_to_end(id)
        newer, erased = await self._tenant.quick.news(id, first=conversation.session.last + 1)
        if erased:
            raise Gone
        return await self._loaded(conversation) if newer or conversation.outdated else conversation

    async def _loaded(self, conversation: Conversation) -> Conversation:
        await self._known.all_written_down()
        lineage, beside = await self._heads.of(self._tenant.name, conversation.id)
        first = lineage[-1].seq + 1 if lineage else 0
        info = await self._tenant.quick.info(conversation.id)
        if info.erased or first > info.events:
            self._drop(conversation.id)
            raise Gone
        conversation.load(lineage, beside, await self._tenant.quick.read(conversation.id, first=first))
        self._point_to(conversation)
        return conversation

    async def _opened(
        self, id: str, asked: Asked, model: Model, ask: Ask, *, origin: str = ""
    ) -> Conversation:
        reserve = reserve_for(asked, model)
        settings = self._ground.config.session(model)
        if reserve:
            settings["reserve"] = max(reserve, settings.get("reserve") or 0)
        writer = Writer(model.name)
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
        writer.conversation = conversation = Conversation(session, model, reserve=reserve)
        await self._replace(conversation, writer)
        return conversation

    def _named(self) -> list[Summariser]:
        return self._tenant.summarisers()

    async def _replace(self, conversation: Conversation, writer: Writer) -> None:
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
