"""The proxied conversations of all tenants, closed when they are not used."""

from __future__ import annotations

import asyncio

from foveal.server.proxy.conversations import MAX_IDLE_CONVERSATIONS, TenantConversations
from foveal.server.proxy.digest_index import DigestIndex
from foveal.server.proxy.retention import ProxyRetention
from foveal.server.recently_used import RecentlyUsed
from foveal.server.service import MAX_IDLE_TENANTS, Service


class ProxyConversations:
    """The proxied conversations of all tenants. Those of tenants that are not used are closed."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._index = DigestIndex(service.runtime.database)
        self._tenants: RecentlyUsed[str, TenantConversations] = RecentlyUsed(
            MAX_IDLE_TENANTS, is_busy=lambda conversations: conversations.is_busy
        )
        self._closing: dict[str, asyncio.Task[None]] = {}
        service.runtime.add_delete_hook(self._delete_session)
        days: int = service.runtime.config.get("server.proxy_retention_days")
        self.retention: ProxyRetention = ProxyRetention(service, self._index, days=days)
        self._sweeping = asyncio.create_task(self.retention.run()) if days else None

    def tenant(self, name: str) -> TenantConversations:
        """Return the conversations of a tenant."""
        known = self._tenants.get(name)
        if known is None:
            tenant = self._service.tenant(name)
            known = TenantConversations(
                self._service.runtime, tenant, self._index, predecessor=self._closing.get(name)
            )
        for idle in self._tenants.add(name, known):
            self._start_closing(idle)
        if self.open_count > MAX_IDLE_CONVERSATIONS and len(self._tenants) > 1:
            for idle in self._tenants.remove_oldest():
                self._start_closing(idle)
        return known

    @property
    def open_count(self) -> int:
        return sum(conversations.open_count for conversations in self._tenants.values())

    async def close(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait([self._sweeping])
        for conversations in self._tenants.values():
            await conversations.close()
        if self._closing:
            await asyncio.wait(self._closing.values())

    def _start_closing(self, conversations: TenantConversations) -> None:
        name = conversations.tenant_name
        task = self._closing[name] = asyncio.create_task(conversations.close())

        def forget(ended: asyncio.Task[None]) -> None:
            if self._closing.get(name) is ended:
                del self._closing[name]

        task.add_done_callback(forget)

    async def _delete_session(self, tenant: str, session: str) -> None:
        await self.tenant(tenant).delete_session(session)
