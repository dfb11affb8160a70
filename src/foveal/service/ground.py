"""What all tenants of a server stand on: its configuration, its desk, its models, and whoever watches."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from hashlib import blake2b
from typing import Any, Final
from weakref import WeakValueDictionary

from foveal import redact
from foveal.config import Config
from foveal.models_io.configured import configured
from foveal.ports import Provider
from foveal.service.cabinet import Cabinet
from foveal.service.desk import Desk
from foveal.service.occurrences import Occurrence, Waiting
from foveal.service.places import Places
from foveal.service.turnstile import Turnstile

LOG: Final = logging.getLogger("foveal.service")
PROVIDERS: Final = 64
"""Providers of different models that are kept although nobody uses them."""
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
        self._providers: OrderedDict[str, Provider] = OrderedDict()
        self._in_use: WeakValueDictionary[str, Provider] = WeakValueDictionary()
        """Those that are no longer kept, while a room has them."""

    def provider(self, model: str) -> Provider:
        """The provider of a model, "" for the configured one; one for all who ask."""
        known = self._providers.get(model) or self._in_use.get(model)
        if known is None:
            known = configured(
                self.config, model or None, environment=self.environment, progress=self.fetching
            )
        self._providers[model] = self._in_use[model] = known
        self._providers.move_to_end(model)
        if len(self._providers) > PROVIDERS:
            del self._providers[next(name for name in self._providers if name)]
        return known

    def harmless(self, key: str) -> str:
        """A message's key that may be stored: some clients use secrets for that, too."""
        if self.redact is None or redact.scrub(key) == key:
            return key
        return f"key-{blake2b(key.encode('utf-8', 'surrogatepass'), digest_size=16).hexdigest()}"

    def tell(self, occurrence: Occurrence) -> None:
        """Whoever watches has his own troubles: they change nothing here."""
        for watcher in self.watchers:
            try:
                watcher(occurrence)
            except Exception as problem:  # noqa: BLE001 (it may fail in any way)
                LOG.error("a watcher failed: %s", type(problem).__name__)

    async def tell_waiting(self) -> None:
        """How much lies in the inbox."""
        if self.watchers:
            count = sum(count for _, _, count in await self.desk.waiting())
            self.tell(Waiting(tenant="", session="", count=count))

    async def close(self) -> None:
        async with AsyncExitStack() as stack:
            stack.callback(self.turnstile.close)
            stack.push_async_callback(self.cabinet.close)
            for provider in {*self._providers.values(), *self._in_use.values()}:
                stack.push_async_callback(provider.close)
