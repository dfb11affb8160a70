"""A tenant: sessions that nobody else can see, in a file of their own."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Final
from uuid import uuid4
from weakref import WeakValueDictionary

from foveal.agent.agent import Agent, own_model
from foveal.core.compaction.summariser import Summariser
from foveal.core.log.events import AnyFact, Event, Instructed, Opened
from foveal.errors import BadSetting, ProviderError, SessionExists, UnknownSession
from foveal.ports import Provider, SessionInfo, Store
from foveal.server.live_session import LiveSession, Told, UnavailableProvider
from foveal.server.runtime import LOG, EventsStored, Runtime
from foveal.sessions.event_writer import SessionOptions
from foveal.sessions.session import Session
from foveal.stores import SqliteStore
from foveal.tools import recalled
from foveal.tools.tool import Toolbox

NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
LONGEST_ID: Final = 200
DROP_IN: Final = "drop-in"
"""The origin of sessions that clients have begun which resend their whole history."""
OPEN: Final = 256
"""Rooms that stay open while nobody uses them."""
SYSTEM: Final = files("foveal.server").joinpath("system.md").read_text("utf-8").strip()


class Tenant:
    def __init__(self, ground: Runtime, name: str) -> None:
        self.name = checked_name(name)
        self.answered: list[Told] = []
        """Who is told when a turn has ended."""
        path = ground.places.tenant(name)
        self.store: Store = SqliteStore(path)
        self.quick: Store = SqliteStore(path, durability="normal")
        """The same sessions for those whose clients hold all of it themselves: appending waits for no disk."""
        self._ground = ground
        self._rooms: WeakValueDictionary[str, LiveSession] = WeakValueDictionary()
        self._recent: OrderedDict[str, LiveSession] = OrderedDict()

    # ── sessions ─────────────────────────────────────────────────────────────────────────────────────

    async def create(
        self, id: str = "", *, model: str = "", title: str = "", system: str = ""
    ) -> LiveSession:
        """A new session; raises `SessionExists`."""
        id = checked_id(id or new_id())
        async with self._ground.turnstile.hold(self.name, id):
            if await self._info(id) is not None:
                raise SessionExists(id)
            return await self._begin(id, model=model, title=title, system=system)

    async def room(self, id: str) -> LiveSession:
        """A session that there is; raises `UnknownSession`."""
        info = await self._info(id)
        if info is None or info.erased:
            self._drop(id)  # another process may have erased it
            raise UnknownSession(id)
        return self._known(id) or self._keep(await self._opened(id))

    async def ensure(self, id: str, *, title: str = "", model: str = "") -> LiveSession:
        """The session that there is, or a new one; raises `UnknownSession` for one that was erased."""
        if self._known(id) is not None:
            return await self.room(id)
        async with self._ground.turnstile.hold(self.name, checked_id(id)):
            info = await self._info(id)
            if info is None:
                return await self._begin(id, model=model, title=title, system="")
        return await self.room(id)

    async def erased(self, id: str) -> bool:
        """There was such a session."""
        info = await self._info(id)
        return info is not None and info.erased

    async def sessions(self) -> list[SessionInfo]:
        """All of them, the most recently active first."""
        return [info for info in await self.store.sessions() if not info.erased]

    async def fork(self, id: str, new: str = "", *, at: int | None = None) -> LiveSession:
        """A new session that begins with another's events up to `at`, all of them if not given."""
        room, new = await self.room(id), checked_id(new or new_id())
        async with self._ground.turnstile.hold(self.name, new):
            if await self._info(new) is not None:
                raise SessionExists(new)
            await room.session.fork(new, at=at)
            model = await self._ground.desk.model(self.name, id)
            await self._ground.desk.choose(self.name, new, model or "")
            return self._keep(await self._opened(new))

    async def delete(self, id: str) -> None:
        """Stop what runs in a session and erase its text for good; its id stays used."""
        room = await self.room(id)
        with room.leaving():
            for forget in self._ground.forgetting:
                await forget(self.name, id)
            async with self._ground.turnstile.hold(self.name, id):
                await room.session.delete()
                await self._ground.desk.forget(self.name, id)
        self._drop(id)
        await room.close()

    async def close(self) -> None:
        for room in list(self._rooms.values()):
            await room.close()
        await self.store.close()
        await self.quick.close()

    @property
    def rooms(self) -> list[LiveSession]:
        """Those that are open in this process."""
        return list(self._rooms.values())

    # ── opening ──────────────────────────────────────────────────────────────────────────────────────

    def terms(self, id: str, *, foresee: Callable[[], bool] = lambda: True) -> SessionOptions:
        """How a session of this tenant is kept: redacted, and watched."""

        def watch(events: Sequence[Event]) -> None:
            self._ground.tell(EventsStored(tenant=self.name, session=id, events=tuple(events)))

        return SessionOptions(redact=self._ground.redact, watch=watch, foresee=foresee)

    async def _info(self, id: str) -> SessionInfo | None:
        try:
            return await self.store.info(id)
        except UnknownSession:
            return None

    async def _begin(self, id: str, *, model: str, title: str, system: str) -> LiveSession:
        self._ground.provider(model)  # or it is refused before anything is stored
        await self._ground.desk.choose(self.name, id, model)
        room = await self._opened(id, begin=[Instructed(content=system or SYSTEM)])
        if title:
            await room.rename(title)
        return self._keep(room)

    async def _opened(self, id: str, *, begin: Sequence[AnyFact] = ()) -> LiveSession:
        ground = self._ground
        provider = await self._provider(id)
        session = await Session.open(
            self.store,
            id,
            model=provider.model,
            summarise=[*self.summarisers(), own_model(provider)],
            clock=ground.clock,
            terms=self.terms(id, foresee=lambda: ground.later is None),
            begin=begin,
            **ground.config.session(provider.model),
        )
        agent = Agent(session, provider, Toolbox(()), looking_back=Toolbox(recalled(session)))
        return LiveSession(ground, self.name, agent, self.answered)

    async def _provider(self, id: str) -> Provider:
        """Who answers in a session. That it cannot be asked now is told when it is."""
        name, window = await self._ground.desk.model(self.name, id), self._ground.config.get("window")
        if name is None and (model := await self._own_model(id)):
            told = f"session {id!r} is that of a program which resends its history: go on in a fork of it"
            return UnavailableProvider(model, told, window=window, elsewhere=True)
        try:
            return self._ground.provider(name or "")
        except ProviderError as problem:
            return UnavailableProvider(
                name or self._ground.config.model, str(problem), window=window, code=problem.code
            )

    async def _own_model(self, id: str) -> str:
        """The model that a drop-in client speaks to in a session; "" for a session of the server's own."""
        if await self._info(id) is None:
            return ""
        first = (await self.store.read(id, first=0, last=0))[0].fact
        if not isinstance(first, Opened) or first.origin != DROP_IN:
            return ""
        facts = (event.fact for event in reversed(await self.store.read(id)))
        return next(fact.model for fact in facts if isinstance(fact, Opened))

    def summarisers(self) -> list[Summariser]:
        """The one that the configuration names, if it can be asked; whoever answers comes after it."""
        other = self._ground.config.summariser
        try:
            return [own_model(self._ground.provider(other))] if other else []
        except ProviderError as problem:
            LOG.error("compaction.model cannot be asked: %s", problem.code)
            return []

    def _known(self, id: str) -> LiveSession | None:
        known = self._rooms.get(id)
        return known if known is None else self._keep(known)

    def _drop(self, id: str) -> None:
        self._rooms.pop(id, None)
        self._recent.pop(id, None)

    def _keep(self, room: LiveSession) -> LiveSession:
        room = self._rooms.setdefault(room.id, room)
        self._recent[room.id] = room
        self._recent.move_to_end(room.id)
        while len(self._recent) > OPEN:
            self._recent.popitem(last=False)
        return room


def checked_name(name: str) -> str:
    """A name that a tenant may have: it is part of a file's name."""
    if not NAME.fullmatch(name):
        allowed = "1 to 63 small letters, digits, - and _, a letter or digit first"
        raise BadSetting("tenant", name, allowed)
    return name


def new_id() -> str:
    return uuid4().hex


def checked_id(id: str) -> str:
    """An id that may be given to a session."""
    if not 0 < len(id) <= LONGEST_ID or not id.isprintable() or set(id) & set("/\\") or id.strip(". ") != id:
        allowed = f"1 to {LONGEST_ID} printable characters without slashes, no blanks or dots around them"
        raise BadSetting("id", id[:LONGEST_ID], allowed)
    return id
