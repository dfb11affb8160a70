"""All conversations of drop-in clients, tenant by tenant."""

from __future__ import annotations

from foveal.service.dropin.conversations import Conversations
from foveal.service.dropin.heads import Heads
from foveal.service.rooms import Service


class Registry:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._heads = Heads(service.ground.cabinet)
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
