"""The sessions of a server's tenants for the inspector.

1. Actions go through the service's own live sessions, as those of the API do: a running turn and the inspector
   never write at the same time.
2. A token that names a user reaches what `UserAccess` says, as in the API. Its collection lists nothing else, and
   each look at a log asks again, so a stream ends when its session becomes one of others too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from foveal.core.log.events import MEMORY_LOG_PREFIX
from foveal.errors import UnknownSession
from foveal.inspector.app import BrowserLogins, Inspector, LoginRules
from foveal.inspector.sessions.actions import action_result
from foveal.inspector.sessions.collection import ArchivedSession, SessionCollection
from foveal.inspector.sessions.source import (
    ActionResult,
    MemoryChange,
    OfferedWriter,
    SessionAction,
    SessionMissing,
    SessionSource,
)
from foveal.ports import SessionEnd, SessionInfo
from foveal.recall.archive import ArchiveSource, StoreSource
from foveal.recall.archive.source import MAX_SOURCE_SESSIONS
from foveal.server import Service, Tenant
from foveal.server.api.operation import UserAccess
from foveal.server.auth_tokens import LOGIN_PREFIX, AuthTokens
from foveal.server.recently_used import RecentlyUsed

MAX_OPEN_TENANTS: Final = 64
"""Tenants, and users with tokens of their own, whose lists of sessions stay in memory after their last use."""
MAX_ENDED_LOGINS: Final = 1_000
_HINT: Final = "Log in with a token of a tenant of this server; foveal token create makes one."


class LiveActor:
    """A `SessionActor` for the sessions of a tenant that a caller reaches."""

    def __init__(self, access: UserAccess) -> None:
        self._access = access

    def refusal(self, source: ArchiveSource) -> str:
        return ""

    async def writers(self) -> tuple[OfferedWriter, ...]:
        return ()  # the agent's own model writes

    async def act(self, source: ArchiveSource, session: str, action: SessionAction) -> ActionResult:
        await self._access.check_session(session, spends=True)
        live = await self._access.tenant.session(session)
        return await action_result(live.session, action, await live.perform(action))


class ReachedSource(StoreSource):
    """The sessions and the memory of a tenant that a user reaches."""

    def __init__(self, access: UserAccess, name: str) -> None:
        super().__init__(access.tenant.store, name)
        self._access = access

    async def _list(self) -> Sequence[SessionInfo]:
        return await self._access.sessions(limit=MAX_SOURCE_SESSIONS)

    async def memories(self) -> Sequence[SessionInfo]:
        own = MEMORY_LOG_PREFIX + self._access.user
        return [info for info in await super().memories() if info.id == own]

    async def _end(self, session: str) -> SessionEnd:
        if not await self._access.reaches(session):
            raise UnknownSession(session)
        return await super()._end(session)


class ReachedSessions(SessionCollection):
    """What a user reaches of a tenant; what others have is refused by its name, as in the API."""

    def __init__(self, whole: SessionSource, access: UserAccess, name: str) -> None:
        """`whole` has everything of the tenant."""
        super().__init__([ReachedSource(access, name)], actor=LiveActor(access))
        self._whole = whole
        self._access = access

    async def open(self, key: str) -> ArchivedSession:
        try:
            found = await super().open(key)
        except SessionMissing:
            of_others = await self._whole.open(key)
            await self._access.check_session(of_others.about.id)
            raise
        await self._access.check_session(found.about.id)
        return found

    async def change_memory(self, change: MemoryChange) -> str:
        try:
            return await super().change_memory(change)
        except SessionMissing:
            for memory in (await self._whole.memories()).memories:
                if memory.key == change.memory:
                    self._access.check_user(memory.owner)
            raise


class _OpenSessions(NamedTuple):
    tenant: Tenant
    """Held, because a tenant that is used nowhere closes its store."""
    sessions: SessionSource


class ServedSessions:
    """The sessions of all tenants of a service."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._open: RecentlyUsed[tuple[str, str], _OpenSessions] = RecentlyUsed(MAX_OPEN_TENANTS)

    def of(self, name: str, user: str) -> SessionSource:
        """Return the sessions of a tenant that a user reaches; all of them for ""."""
        found = self._open.get((name, user)) or self._make(name, user)
        self._open.add((name, user), found)
        return found.sessions

    def _make(self, name: str, user: str) -> _OpenSessions:
        tenant, shown = self._service.tenant(name), f"tenant {name}"
        access = UserAccess(tenant, user)
        if user:
            return _OpenSessions(tenant, ReachedSessions(self.of(name, ""), access, shown))
        source = StoreSource(tenant.store, shown)
        return _OpenSessions(tenant, SessionCollection([source], actor=LiveActor(access)))


class ServedLogins:
    """A `LoginKeeper` in the server's database: a login at one machine is valid at all of them."""

    def __init__(self, tokens: AuthTokens) -> None:
        self._tokens = tokens
        self._ended: RecentlyUsed[str, str] = RecentlyUsed(MAX_ENDED_LOGINS)
        """Logins that ended here a moment ago: the guard may still remember their callers."""

    async def add(self, id: str, token: str) -> bool:
        return await self._tokens.log_in(id, token)

    async def remove(self, id: str) -> None:
        self._ended.add(id, id)
        await self._tokens.log_out(id)

    async def has(self, id: str) -> bool:
        return await self._tokens.authenticate(f"{LOGIN_PREFIX}{id}") is not None

    def token_of(self, id: str) -> str:
        return "" if self._ended.get(id) else f"{LOGIN_PREFIX}{id}"


def served_inspector(service: Service) -> Inspector:
    """Return the inspector of a server, which asks for the server's own tokens."""
    logins = BrowserLogins(ServedLogins(AuthTokens(service.runtime.database, clock=service.runtime.clock)))
    return Inspector(
        ServedSessions(service).of,
        logins,
        LoginRules(_HINT, has_form=True),
        policies=lambda: service.runtime.config.named_policies,
    )
