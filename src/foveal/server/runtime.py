"""State shared by all tenants, and the events that the service reports.

`Runtime` holds configuration, database, inbox, locks, providers and observers.
"""

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
from foveal.core.redaction import redact_fact, scrub
from foveal.ports import Provider
from foveal.providers.selection import provider_from_config
from foveal.server.data_folder import DataFolder
from foveal.server.database import Database
from foveal.server.inbox import Inbox
from foveal.stores.session_locks import SessionLocks

# ── Service events ─────────────────────────────────────────────────────────────────────────────────────
# What the service reports to metrics, logs and traces. No event carries the text of a message, except
# `EventsStored`: its observers use only kinds and numbers.


class ServiceEvent(msgspec.Struct, frozen=True, kw_only=True):
    tenant: str
    session: str


class EventsStored(ServiceEvent, frozen=True):
    """This process appended events to a session's log. The events contain text that observers must not export."""

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
    """The error's code or class name, never its message."""


class ProxyRequestEnded(ServiceEvent, frozen=True):
    """A request of a proxy client was answered or failed."""

    dialect: str
    model: str
    status: int
    seconds: float
    added_seconds: float
    """The part of `seconds` that Foveal itself took."""
    tokens: int
    unreduced_tokens: int
    """Tokens of the request without any reduction."""
    overflow_retries: int
    """How often upstream rejected the request as too large before it accepted it."""
    streamed: bool


class SummaryRequestEnded(ServiceEvent, frozen=True):
    """Upstream answered a request for a summary of a proxied conversation."""

    dialect: str
    status: int


class IllegalRequestMade(ServiceEvent, frozen=True):
    """A request that this server wrote has faults for which a provider would refuse it."""

    dialect: str
    origin: Literal["reduced", "summary"]
    faults: tuple[str, ...]
    """What is wrong, without text of a message."""


class InboxCounted(ServiceEvent, frozen=True):
    count: int
    """Unanswered messages in the inbox, of all tenants and sessions."""


# ── Shared state ───────────────────────────────────────────────────────────────────────────────────────

LOG: Final = logging.getLogger("foveal.service")
"""Not "foveal.server": that logger carries the structured events of the HTTP server."""
MAX_IDLE_PROVIDERS: Final = 64
"""Providers of different models that are kept open while no session uses them."""
Observer = Callable[[ServiceEvent], None]
DeleteHook = Callable[[str, str], Awaitable[None]]
"""Called with a tenant and a session before the session is deleted."""
RequestSummary = Callable[[str, str, int], Awaitable[None]]
"""Asks for a summary in the background: tenant, session, newest event."""


class Runtime:
    def __init__(
        self,
        config: Config,
        data_folder: DataFolder,
        *,
        environment: Mapping[str, str],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.config = config
        self.data_folder = data_folder
        self.environment = environment
        self.clock = clock
        self.database: Database = data_folder.open_database()
        self.inbox = Inbox(self.database)
        self.locks = SessionLocks(data_folder.lock_file)
        self.redact = redact_fact if config.get("server.redact") else None
        """Removes secrets from a fact; None if redaction is off."""
        self.request_summary: RequestSummary | None = None
        """Set by `delegate_summaries`; None: each session writes its summaries itself."""
        self.is_closing = False
        """No new turn begins."""
        self._observers: list[Observer] = []
        self._delete_hooks: list[DeleteHook] = []
        self._download_progress: Callable[[Any], None] = lambda _: None
        self._providers: OrderedDict[str, Provider] = OrderedDict()
        self._in_use: WeakValueDictionary[str, Provider] = WeakValueDictionary()
        """Includes providers that left `_providers` while a session still uses them."""

    def provider(self, model: str) -> Provider:
        """Return the shared provider of a model; "" is the configured model."""
        known = self._providers.get(model) or self._in_use.get(model)
        if known is None:
            known = provider_from_config(
                self.config, model or None, environment=self.environment, progress=self._download_progress
            )
        self._providers[model] = self._in_use[model] = known
        self._providers.move_to_end(model)
        if len(self._providers) > MAX_IDLE_PROVIDERS:
            del self._providers[next(name for name in self._providers if name)]
        return known

    def storable_key(self, key: str) -> str:
        """Return a message's key, or a hash of it if it contains a secret: some clients use secrets as keys."""
        if self.redact is None or scrub(key) == key:
            return key
        return f"key-{blake2b(key.encode('utf-8', 'surrogatepass'), digest_size=16).hexdigest()}"

    # ── Hooks ────────────────────────────────────────────────────────────────────────────────────────

    def add_observer(self, observer: Observer) -> None:
        self._observers.append(observer)

    def add_delete_hook(self, hook: DeleteHook) -> None:
        self._delete_hooks.append(hook)

    def remove_delete_hook(self, hook: DeleteHook) -> None:
        self._delete_hooks.remove(hook)

    def delegate_summaries(self, request_summary: RequestSummary | None) -> None:
        """Have summaries written by a job worker; None: by the sessions themselves."""
        self.request_summary = request_summary

    def report_downloads_to(self, progress: Callable[[Any], None]) -> None:
        """Pass the progress of local model downloads to `progress`."""
        self._download_progress = progress

    def emit(self, event: ServiceEvent) -> None:
        """Pass an event to all observers. Their errors are logged and ignored."""
        for observer in self._observers:
            try:
                observer(event)
            except Exception as problem:  # noqa: BLE001 (an observer must not break the service)
                LOG.error("an observer failed: %s", type(problem).__name__)

    async def emit_inbox_count(self) -> None:
        if self._observers:
            count = sum(count for _, _, count in await self.inbox.unfinished())
            self.emit(InboxCounted(tenant="", session="", count=count))

    async def run_delete_hooks(self, tenant: str, session: str) -> None:
        for hook in self._delete_hooks:
            await hook(tenant, session)

    # ── Closing ──────────────────────────────────────────────────────────────────────────────────────

    def begin_closing(self) -> None:
        """Let no new turn begin; messages are still accepted into the inbox."""
        self.is_closing = True

    async def close(self) -> None:
        async with AsyncExitStack() as stack:
            stack.callback(self.locks.close)
            stack.push_async_callback(self.database.close)
            for provider in {*self._providers.values(), *self._in_use.values()}:
                stack.push_async_callback(provider.close)
