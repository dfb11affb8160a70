"""The service: all tenants of one storage, crash recovery, and shutdown."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Container, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import shuffle
from typing import Final
from weakref import WeakValueDictionary

from foveal.config import Config
from foveal.config.config import provider_from_config
from foveal.errors import FovealError, UnknownSession
from foveal.server.live_session import LiveSession
from foveal.server.recently_used import RecentlyUsed
from foveal.server.runtime import LOG, ProviderFactory, Runtime, log_reason
from foveal.server.storage import open_storage
from foveal.server.tenants import Tenant

RECOVERY_INTERVAL_S: Final = 1.5
"""Seconds between two checks for messages in the inbox that no process answers."""
INBOX_TOPIC: Final = "inbox"
"""Topic of the wake-up after a process has left messages in the inbox."""
BACKLOG_INTERVAL_S: Final = 1.0
"""The same while sessions are left from the last check."""
MAX_RECOVERING: Final = 64
"""Busy sessions up to which a check resumes further ones."""
MAX_IDLE_TENANTS: Final = 64
"""Tenants that are kept while they are not used."""


class Service:
    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._tenants: WeakValueDictionary[str, Tenant] = WeakValueDictionary()
        self._recent_tenants: RecentlyUsed[str, Tenant] = RecentlyUsed(MAX_IDLE_TENANTS)
        self._has_backlog = False
        """The last check for unanswered messages found more sessions than it resumed."""
        self._reported: set[tuple[str, str]] = set()
        """Sessions that could not be opened and whose error was logged."""

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        config: Config,
        *,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.time,
        make_provider: ProviderFactory = provider_from_config,
    ) -> AsyncIterator[Service]:
        """Open the service in the configured database, or else in the given folder, the configured one, or the
        default. `make_provider` makes the provider of each model, once while it is used."""
        environment = os.environ if environment is None else environment
        storage = open_storage(config, environment, folder=folder)
        runtime = Runtime(config, storage, environment=environment, clock=clock, make_provider=make_provider)
        service = cls(runtime)
        recovery = asyncio.create_task(service._recover_periodically())
        try:
            yield service
        finally:
            recovery.cancel()
            await service.close()

    def tenant(self, name: str) -> Tenant:
        """Return the tenant: the same object as long as it is used anywhere."""
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = self._tenants[name] = Tenant(self.runtime, name)
        self._recent_tenants.add(name, tenant)
        return tenant

    @property
    def live_sessions(self) -> list[LiveSession]:
        """The sessions of all tenants that are open in this process."""
        return [live for tenant in list(self._tenants.values()) for live in tenant.live_sessions]

    async def recover(self, *, among: Container[tuple[str, str]] | None = None) -> int:
        """Answer messages that a process left behind because it died or could not store them; return their number.
        Sessions that are locked are skipped: their holder answers them. At most `MAX_RECOVERING` sessions are
        busy at once; later checks take the rest. `among`: only sessions of these."""
        unfinished = {
            (tenant, session): count
            for tenant, session, count in await self.runtime.inbox.unfinished()
            if among is None or (tenant, session) in among
        }
        left = list(unfinished)
        shuffle(left)  # sessions that fail each time must not keep others from their turn
        busy, found = sum(live.is_busy for live in self.live_sessions), 0
        while left and busy < MAX_RECOVERING:
            some, left = left[: MAX_RECOVERING - busy], left[MAX_RECOVERING - busy :]
            for tenant, session in await self.runtime.locks.unlocked(some):
                if await self._resume_session(tenant, session):
                    busy, found = busy + 1, found + unfinished[tenant, session]
        self._has_backlog = bool(left)
        return found

    async def _resume_session(self, tenant: str, session: str) -> bool:
        try:
            live = await self.tenant(tenant).session(session)
        except FovealError as problem:  # its messages wait, those of other sessions need not
            if isinstance(problem, UnknownSession) and await self.tenant(tenant).is_erased(session):
                await self.runtime.inbox.delete_session(tenant, session)
            elif (tenant, session) not in self._reported:
                self._reported.add((tenant, session))
                LOG.error("messages of tenant %s cannot be answered: %s", tenant, log_reason(problem))
            return False
        self._reported.discard((tenant, session))
        live.process_inbox()
        return True

    async def _recover_periodically(self) -> None:
        """Recover what was unfinished in two checks in a row: clocks of several machines differ."""
        woken, before = asyncio.Event(), set[tuple[str, str]]()
        is_woken = is_failing = False
        unsubscribe = self.runtime.storage.wakeups.subscribe(INBOX_TOPIC, woken.set)
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(
                        BACKLOG_INTERVAL_S if self._has_backlog else RECOVERY_INTERVAL_S
                    ):
                        await woken.wait()
                is_woken |= woken.is_set()
                woken.clear()  # before the check: one that fails must not begin again at once
                try:
                    now = {(tenant, session) for tenant, session, _ in await self.runtime.inbox.unfinished()}
                    left, before, is_woken = (now if is_woken else now & before), now, False
                    if left:
                        await self.recover(among=left)
                    is_failing = False
                except Exception as problem:  # noqa: BLE001 (the next check may succeed)
                    if not is_failing:
                        LOG.error("the inbox cannot be read: %s", log_reason(problem))
                    is_failing = True
        finally:
            unsubscribe()

    async def end_turns(self, *, grace: float) -> None:
        """Begin no new turn, wait up to `grace` seconds for the running ones, then stop the rest. Messages without
        an answer stay in the inbox: another process answers them, or the next start."""
        self.runtime.begin_closing()
        busy = [asyncio.create_task(live.wait_idle()) for live in self.live_sessions if live.is_busy]
        if not busy:
            return
        _, late = await asyncio.wait(busy, timeout=grace)
        if late:
            for live in self.live_sessions:
                live.abort()
            await asyncio.wait(late)

    async def close(self) -> None:
        await self.end_turns(grace=0.0)
        await self.runtime.storage.wakeups.notify(INBOX_TOPIC)  # other processes answer what is left
        for tenant in list(self._tenants.values()):
            await tenant.close()
        await self.runtime.close()
