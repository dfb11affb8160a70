"""What all tenants of a server stand on: its configuration, its desk, its models, and whoever watches."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any

from foveal import redact
from foveal.config import Config
from foveal.models_io.configured import configured
from foveal.ports import Provider
from foveal.service.cabinet import Cabinet
from foveal.service.desk import Desk
from foveal.service.occurrences import Occurrence, Waiting
from foveal.service.places import Places
from foveal.service.turnstile import Turnstile

Later = Callable[[str, str, int], Awaitable[None]]


class Ground:
    def __init__(
        self,
        config: Config,
        places: Places,
        *,
        environment: Mapping[str, str],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.config = config
        self.places = places
        self.environment = environment
        self.clock = clock
        self.cabinet: Cabinet = places.cabinet()
        self.desk = Desk(self.cabinet)
        self.turnstile = Turnstile(places.turnstile)
        self.redact = redact.facts if config.get("server.redact") else None
        """Takes out of a fact what may not be stored; None when all may."""
        self.watchers: list[Callable[[Occurrence], None]] = []
        self.forgetting: list[Callable[[str, str], Awaitable[None]]] = []
        """Who must hear, before it is done, that a tenant's session will be erased."""
        self.later: Later | None = None
        """Asks for a summary in the background (tenant, session, newest event); None: the process does it."""
        self.fetching: Callable[[Any], None] = lambda _: None
        """Is told how far a local model has been fetched."""
        self.closing = False
        """Nothing new is begun any more."""
        self._providers: dict[str, Provider] = {}

    def provider(self, model: str) -> Provider:
        """The provider of a model, "" for the configured one; one for all who ask."""
        if model not in self._providers:
            self._providers[model] = configured(
                self.config, model or None, environment=self.environment, progress=self.fetching
            )
        return self._providers[model]

    def tell(self, occurrence: Occurrence) -> None:
        for watcher in self.watchers:
            watcher(occurrence)

    async def tell_waiting(self) -> None:
        """How much lies in the inbox."""
        if self.watchers:
            count = sum(count for _, _, count in await self.desk.waiting())
            self.tell(Waiting(tenant="", session="", count=count))

    async def close(self) -> None:
        async with AsyncExitStack() as stack:
            stack.callback(self.turnstile.close)
            stack.push_async_callback(self.cabinet.close)
            for provider in self._providers.values():
                stack.push_async_callback(provider.close)
