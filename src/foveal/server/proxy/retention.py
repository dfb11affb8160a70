"""Retention of proxied sessions: erases those that were not used for a number of days.

1. A session is erased only under its lock, after a second look at when it was last used. So none is erased while a
   request is recorded, and none that a request has just continued.
2. A sweep is bounded: it reads sessions in pages and erases at most `MAX_ERASED_PER_SWEEP` of them, with pauses, so
   that clients do not wait. The next sweep continues.
3. Sessions of the native API and of gateways are kept, and so are forks that the native API made.
"""

from __future__ import annotations

import asyncio
from typing import Final

from foveal.core.log.events import Opened
from foveal.errors import FovealError, UnknownSession
from foveal.ports import SessionInfo
from foveal.server.proxy.digest_index import DigestIndex
from foveal.server.runtime import LOG
from foveal.server.service import Service
from foveal.server.tenants import PROXY_ORIGIN, Tenant

SECONDS_PER_DAY: Final = 86_400
FIRST_SWEEP_DELAY_S: Final = 60.0
SWEEP_INTERVAL_S: Final = 3_600.0
MAX_ERASED_PER_SWEEP: Final = 1_000
PAGE_SESSIONS: Final = 100
"""Sessions that are read at once."""
ERASE_PAUSE_S: Final = 0.02
"""Pause after each erased session."""


class ProxyRetention:
    def __init__(self, service: Service, index: DigestIndex, *, days: int) -> None:
        self._service, self._index = service, index
        self._runtime = service.runtime
        self._days = days

    async def run(self) -> None:
        """Sweep at intervals until the task is cancelled."""
        await asyncio.sleep(FIRST_SWEEP_DELAY_S)
        while True:
            try:
                await self.sweep()
            except FovealError as problem:  # the next sweep may succeed
                LOG.error("old sessions of drop-in clients cannot be erased: %s", type(problem).__name__)
            await asyncio.sleep(SWEEP_INTERVAL_S)

    async def sweep(self) -> int:
        """Erase the sessions of all tenants that are due; return their number."""
        cutoff = self._runtime.clock() - self._days * SECONDS_PER_DAY
        erased, name = 0, await self._index.next_tenant("")
        while name is not None and erased < MAX_ERASED_PER_SWEEP:
            erased += await self._sweep_tenant(
                self._service.tenant(name), cutoff, MAX_ERASED_PER_SWEEP - erased
            )
            name = await self._index.next_tenant(name)
        if erased:
            LOG.info("erased %d sessions of drop-in clients, unused for %d days", erased, self._days)
        return erased

    async def _sweep_tenant(self, tenant: Tenant, cutoff: float, limit: int) -> int:
        erased, before = 0, (cutoff, "")
        while page := await tenant.store.sessions(limit=PAGE_SESSIONS, before=before, with_erased=False):
            for info in page:
                if erased == limit:
                    return erased
                if await self._is_proxied(tenant, info) and await self._erase(tenant, info.id, cutoff):
                    erased += 1
                    await asyncio.sleep(ERASE_PAUSE_S)
            before = page[-1].active, page[-1].id
        return erased

    async def _is_proxied(self, tenant: Tenant, info: SessionInfo) -> bool:
        """Return whether a session is one of a proxy client, and not a fork of it that the native API made."""
        if await self._runtime.inbox.session_setup(tenant.name, info.id) is not None:
            return False
        try:
            first = (await tenant.store.read(info.id, first=0, last=0))[0].fact
        except (UnknownSession, IndexError):  # erased meanwhile
            return False
        return isinstance(first, Opened) and first.origin == PROXY_ORIGIN

    async def _erase(self, tenant: Tenant, id: str, cutoff: float) -> bool:
        lock = await self._runtime.locks.try_lock(tenant.name, id)
        if lock is None:
            return False
        try:
            info = await tenant.store.info(id)
            if info.erased or info.active >= cutoff:
                return False
            await self._runtime.run_delete_hooks(tenant.name, id)
            await tenant.store.erase(id)
            return True
        finally:
            lock.release()
