"""The sessions of a server's tenants for the inspector.

Actions go through the service's own live sessions, as those of the API do: a running turn and the inspector never
write at the same time.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from foveal.inspector.app import BrowserLogins, Inspector, LoginRules
from foveal.inspector.sessions.actions import action_result
from foveal.inspector.sessions.collection import SessionCollection
from foveal.inspector.sessions.source import ActionResult, OfferedWriter, SessionAction, SessionSource
from foveal.recall.archive import ArchiveSource, StoreSource
from foveal.server import Service, Tenant
from foveal.server.auth_tokens import LOGIN_PREFIX, AuthTokens
from foveal.server.recently_used import RecentlyUsed

MAX_OPEN_TENANTS: Final = 64
"""Tenants whose lists of sessions stay in memory after their last use."""
MAX_ENDED_LOGINS: Final = 1_000
_HINT: Final = "Log in with a token of a tenant of this server; foveal token create makes one."


class LiveActor:
    """A `SessionActor` for one tenant."""

    def __init__(self, tenant: Tenant) -> None:
        self._tenant = tenant

    def refusal(self, source: ArchiveSource) -> str:
        return ""

    async def writers(self) -> tuple[OfferedWriter, ...]:
        return ()  # the agent's own model writes

    async def act(self, source: ArchiveSource, session: str, action: SessionAction) -> ActionResult:
        live = await self._tenant.session(session)
        return await action_result(live.session, action, await live.perform(action))


class _OpenTenant(NamedTuple):
    tenant: Tenant
    """Held, because a tenant that is used nowhere closes its store."""
    sessions: SessionSource


class ServedSessions:
    """The sessions of all tenants of a service."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._open: RecentlyUsed[str, _OpenTenant] = RecentlyUsed(MAX_OPEN_TENANTS)

    def of(self, name: str) -> SessionSource:
        """Return the sessions of a tenant."""
        found = self._open.get(name)
        if found is None:
            tenant = self._service.tenant(name)
            window = self._service.runtime.config.get("window")
            found = _OpenTenant(
                tenant,
                SessionCollection(
                    [StoreSource(tenant.store, f"tenant {name}")],
                    actor=LiveActor(tenant),
                    settings={} if window is None else {"window": window},
                ),
            )
        self._open.add(name, found)
        return found.sessions


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
