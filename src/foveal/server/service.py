"""The service: all tenants of one data folder, crash recovery, and shutdown."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from math import inf
from pathlib import Path
from typing import Final

from foveal.config import Config
from foveal.errors import FovealError, UnknownSession
from foveal.server.data_folder import DataFolder, data_folder_path
from foveal.server.live_session import LiveSession
from foveal.server.runtime import LOG, Runtime
from foveal.server.tenants import Tenant

RECOVERY_INTERVAL_S: Final = 10.0
"""Seconds between two checks for messages in the inbox that no process answers."""


class Service:
    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._tenants: dict[str, Tenant] = {}
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
    ) -> AsyncIterator[Service]:
        """Open the service in the given folder, the configured one, or the default."""
        environment = os.environ if environment is None else environment
        data_folder = DataFolder.create(data_folder_path(config, environment, given=folder))
        service = cls(Runtime(config, data_folder, environment=environment, clock=clock))
        recovery = asyncio.create_task(service._recover_periodically())
        try:
            yield service
        finally:
            recovery.cancel()
            await service.close()

    def tenant(self, name: str) -> Tenant:
        """Return the tenant, creating it on first use."""
        if name not in self._tenants:
            self._tenants[name] = Tenant(self.runtime, name)
        return self._tenants[name]

    @property
    def live_sessions(self) -> list[LiveSession]:
        """The sessions of all tenants that are open in this process."""
        return [live for tenant in self._tenants.values() for live in tenant.live_sessions]

    async def recover(self, *, before: float = inf) -> int:
        """Answer messages that a process left behind because it died or could not store them; return their number.
        Sessions that are locked are skipped: their holder answers them."""
        found = 0
        for tenant, session, count in await self.runtime.inbox.unfinished(before=before):
            lock = await self.runtime.locks.try_lock(tenant, session)
            if lock is None:
                continue
            lock.release()
            found += count if await self._resume_session(tenant, session) else 0
        return found

    async def _resume_session(self, tenant: str, session: str) -> bool:
        try:
            live = await self.tenant(tenant).session(session)
        except FovealError as problem:  # its messages wait, those of other sessions need not
            if isinstance(problem, UnknownSession) and await self.tenant(tenant).is_erased(session):
                await self.runtime.inbox.delete_session(tenant, session)
            elif (tenant, session) not in self._reported:
                self._reported.add((tenant, session))
                LOG.error("messages of tenant %s cannot be answered: %s", tenant, type(problem).__name__)
            return False
        self._reported.discard((tenant, session))
        live.process_inbox()
        return True

    async def _recover_periodically(self) -> None:
        while True:
            await asyncio.sleep(RECOVERY_INTERVAL_S)
            try:
                await self.recover(before=self.runtime.clock() - RECOVERY_INTERVAL_S)
            except Exception as problem:  # noqa: BLE001 (the next check may succeed)
                LOG.error("the inbox cannot be read: %s", type(problem).__name__)

    async def end_turns(self, *, grace: float) -> None:
        """Begin no new turn, wait up to `grace` seconds for the running ones, then stop the rest and store their
        text so far. Messages that were not taken wait for the next start."""
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
        for tenant in self._tenants.values():
            await tenant.close()
        await self.runtime.close()
