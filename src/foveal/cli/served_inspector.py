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
from foveal.server.auth_tokens import AuthTokens
from foveal.server.recently_used import RecentlyUsed

MAX_OPEN_TENANTS: Final = 64
"""Tenants whose lists of sessions stay in memory after their last use."""
_HINT: Final = "Log in with a token of this server; foveal token create makes one."


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


def served_inspector(service: Service) -> Inspector:
    """Return the inspector of a server, which asks for the server's own tokens."""
    tokens = AuthTokens(service.runtime.database)

    async def check(token: str) -> bool:
        return await tokens.authenticate(token) is not None

    return Inspector(ServedSessions(service).of, BrowserLogins(check), LoginRules(_HINT, has_form=True))
