"""The service: all tenants, what a crash has left of them, and how it ends."""

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
from foveal.server.data_folder import DataFolder, folder_of
from foveal.server.live_session import LiveSession
from foveal.server.runtime import LOG, Runtime
from foveal.server.tenants import Tenant

CARE: Final = 10.0
"""Seconds between two looks at what lies on the desk."""


class Service:
    def __init__(self, ground: Runtime) -> None:
        self.ground = ground
        self._tenants: dict[str, Tenant] = {}
        self._told: set[tuple[str, str]] = set()
        """Sessions of which it was told that they cannot be opened."""

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
        """The service in a folder: the one given, the configured one, or the usual place."""
        environment = os.environ if environment is None else environment
        places = DataFolder.made(folder_of(config, environment, given=folder))
        ground = Runtime(config, places, environment=environment, clock=clock)
        service = cls(ground)
        care = asyncio.create_task(service._take_care())
        try:
            yield service
        finally:
            care.cancel()
            await service.close()

    def tenant(self, name: str) -> Tenant:
        """A tenant, who begins to exist when he is first named."""
        if name not in self._tenants:
            self._tenants[name] = Tenant(self.ground, name)
        return self._tenants[name]

    @property
    def rooms(self) -> list[LiveSession]:
        """Those that are open in this process."""
        return [room for tenant in self._tenants.values() for room in tenant.rooms]

    async def recover(self, *, before: float = inf) -> int:
        """Take up the messages that a process has left which died, or could not store them; how many. Sessions that
        somebody works on are left to him."""
        found = 0
        for tenant, session, count in await self.ground.desk.waiting(before=before):
            hold = await self.ground.turnstile.try_hold(tenant, session)
            if hold is None:
                continue
            hold.release()
            found += count if await self._taken_up(tenant, session) else 0
        return found

    async def _taken_up(self, tenant: str, session: str) -> bool:
        try:
            room = await self.tenant(tenant).room(session)
        except FovealError as problem:  # its messages wait; the others need not
            if isinstance(problem, UnknownSession) and await self.tenant(tenant).erased(session):
                await self.ground.desk.forget(tenant, session)
            elif (tenant, session) not in self._told:
                self._told.add((tenant, session))
                LOG.error("messages of tenant %s cannot be taken up: %s", tenant, type(problem).__name__)
            return False
        self._told.discard((tenant, session))
        room.take_up()
        return True

    async def _take_care(self) -> None:
        """Now and then, see to messages that nobody has taken up."""
        while True:
            await asyncio.sleep(CARE)
            try:
                await self.recover(before=self.ground.clock() - CARE)
            except Exception as problem:  # noqa: BLE001 (whatever it is, the next look may be better)
                LOG.error("what lies on the desk is not known: %s", type(problem).__name__)

    async def end_turns(self, *, grace: float) -> None:
        """Begin nothing new, wait for the turns that run, and stop those that take longer than `grace` seconds:
        what they have said is stored. Messages that nobody has taken up wait for the next start."""
        self.ground.closing = True
        busy = [asyncio.create_task(room.at_rest()) for room in self.rooms if room.busy]
        if not busy:
            return
        _, late = await asyncio.wait(busy, timeout=grace)
        if late:
            for room in self.rooms:
                room.give_up()
            await asyncio.wait(late)

    async def close(self) -> None:
        await self.end_turns(grace=0.0)
        for tenant in self._tenants.values():
            await tenant.close()
        await self.ground.close()
