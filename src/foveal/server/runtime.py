"""What all tenants of a server stand on: its configuration, its desk, its models, and whoever watches."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from hashlib import blake2b
from typing import Any, Final, Literal
from weakref import WeakValueDictionary

import msgspec

from foveal.config import Config
from foveal.core.log.events import Event
from foveal.core.redaction import redact
from foveal.ports import Provider
from foveal.providers.selection import configured
from foveal.server.data_folder import DataFolder
from foveal.server.database import Database
from foveal.server.inbox import Inbox
from foveal.server.locks import SessionLocks

# ── occurrences ───────────────────────────────────────────────────────────────────────────────────
# What the service tells to whoever watches it: metrics, logs, traces. Never the text of a message.


class ServiceEvent(msgspec.Struct, frozen=True, kw_only=True):
    tenant: str
    session: str


class EventsStored(ServiceEvent, frozen=True):
    """This process has stored something. The events hold text; only their kinds and numbers may be told on."""

    events: tuple[Event, ...]


class TurnBegan(ServiceEvent, frozen=True):
    turn: str
    model: str


class TurnEnded(ServiceEvent, frozen=True):
    turn: str
    model: str
    seconds: float
    why: Literal["answered", "steps", "denied", "stopped", "failed"]
    problem: str = ""
    """The sort of what went wrong: the name of an error, never its words."""


class Exchanged(ServiceEvent, frozen=True):
    """A request of a drop-in client was answered."""

    dialect: str
    model: str
    status: int
    seconds: float
    added: float
    """Our own share of the seconds."""
    tokens: int
    whole: int
    """What the request would have taken without any reduction."""
    recovered: int
    """How often upstream said that it was too large before it took it."""
    streamed: bool


class LockWaited(ServiceEvent, frozen=True):
    count: int
    """Messages that are stored and not yet taken up, of all sessions."""


# ── ground ────────────────────────────────────────────────────────────────────────────────────────

LOG: Final = logging.getLogger("foveal.server")
PROVIDERS: Final = 64
"""Providers of different models that are kept although nobody uses them."""
Later = Callable[[str, str, int], Awaitable[None]]


class Runtime:
    def __init__(
        self,
        config: Config,
        places: DataFolder,
        *,
        environment: Mapping[str, str],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.config = config
        self.places = places
        self.environment = environment
        self.clock = clock
        self.database: Database = places.database()
        self.desk = Inbox(self.database)
        self.turnstile = SessionLocks(places.turnstile)
        self.redact = redact.facts if config.get("server.redact") else None
        """Takes out of a fact what may not be stored; None when all may."""
        self.watchers: list[Callable[[ServiceEvent], None]] = []
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

    def tell(self, occurrence: ServiceEvent) -> None:
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
            self.tell(LockWaited(tenant="", session="", count=count))

    async def close(self) -> None:
        async with AsyncExitStack() as stack:
            stack.callback(self.turnstile.close)
            stack.push_async_callback(self.database.close)
            for provider in {*self._providers.values(), *self._in_use.values()}:
                stack.push_async_callback(provider.close)
