"""State shared by all tenants, and the events that the service reports.

`Runtime` holds configuration, database, inbox, locks, providers and observers.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from hashlib import blake2b
from typing import Any, Final, Literal, Protocol
from weakref import WeakSet, WeakValueDictionary

import msgspec

from foveal.agent.tool import Tool
from foveal.config import Config
from foveal.config.config import provider_from_config
from foveal.core.log.events import AnyFact, Dialect, Event
from foveal.core.models.model import Model, model
from foveal.core.redaction import redact_fact, scrub
from foveal.core.view.request import Fitted
from foveal.errors import FovealError, ProviderError, StoreError
from foveal.ports import Provider, Reply, ReplyPiece
from foveal.server.audit import AuditTrail
from foveal.server.budgets import Budgets, ScopedStatus, Spender
from foveal.server.chat_questions import ChatQuestions
from foveal.server.daily_usage import DailyUsage
from foveal.server.databases import Database
from foveal.server.inbox import Inbox
from foveal.server.recently_used import RecentlyUsed
from foveal.server.storage import Storage
from foveal.server.webhook import Webhook
from foveal.stores.session_locks import Locks

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
    error: str = ""
    """The code of the server's own error, such as `budget_exceeded`; "" if `status` is that of upstream."""
    not_managed: str = ""
    """Why the request was forwarded without context management, without text of a message; "" if it was managed."""


class SoftLimitReached(ServiceEvent, frozen=True):
    """What was spent has reached a soft limit: once in each of its periods."""

    scope: str
    limit: str
    spent: float


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


class UsageNotUnderstood(ServiceEvent, frozen=True):
    """Upstream reported usage without any known count; it was ignored, so counts stay estimates."""

    dialect: str
    fields: str
    """The names of the report's fields."""


class InboxCounted(ServiceEvent, frozen=True):
    count: int | None
    """Messages that were acknowledged and not yet answered, of all tenants and sessions; None while the database
    cannot be read."""


class StoreFailed(ServiceEvent, frozen=True):
    """A store could not be used for a request. The session is "" where it is not known."""

    problem: str
    """The error's class name."""


def log_reason(problem: Exception) -> str:
    """Return what a log may say of an error: errors of stores have no text of messages, others may."""
    return str(problem) if isinstance(problem, StoreError) else type(problem).__name__


# ── Providers ────────────────────────────────────────────────────────────────────────────────────────


class UnavailableProvider:
    """A `Provider` that only raises an error: its session can still be read, searched and deleted."""

    dialect: Dialect = "openai_chat"

    def __init__(
        self,
        name: str,
        why: str = "",
        *,
        window: int | None,
        code: str = "refused",
        refusal: FovealError | None = None,
    ) -> None:
        """`refusal` is raised for every message; without it, messages wait until the provider is available."""
        self.name: str = name or "unknown"
        self.model: Model = model(self.name.partition("@")[0], window=window)
        self.refusal = refusal
        self._why = why
        self._code = code

    async def send(self, request: Fitted, *, max_tokens: int) -> AsyncIterator[ReplyPiece | Reply]:
        no_pieces: tuple[ReplyPiece, ...] = ()
        for piece in no_pieces:  # makes this an async generator, as the protocol requires
            yield piece
        raise ProviderError(self._why, code=self._code)

    async def close(self) -> None:
        """Do nothing: there is no connection."""


class ProviderFactory(Protocol):
    """Makes the provider of a model, None for the configured one, as `provider_from_config` does."""

    def __call__(
        self,
        config: Config,
        name: str | None,
        /,
        *,
        environment: Mapping[str, str],
        progress: Callable[[Any], None],
    ) -> Provider: ...


# ── Shared state ───────────────────────────────────────────────────────────────────────────────────────

LOG: Final = logging.getLogger("foveal.service")
"""Not "foveal.server": that logger carries the structured events of the HTTP server."""
MAX_IDLE_PROVIDERS: Final = 64
"""Providers of different models that are kept open while no session uses them."""
MAX_IDLE_SESSIONS: Final = 256
"""Live sessions of all tenants that stay open while they are not used."""
INBOX_COUNT_DELAY_S: Final = 0.2
"""Seconds after which a change of the inbox is reported."""
ANSWER_POLL_S: Final = 1.0
"""How often a process that waits for another one looks for its answers, if no wake-up arrives."""
STORE_FAILURE_TTL_S: Final = 60.0
"""A store counts as failing for this long after its last failure, unless it is used successfully before."""
Observer = Callable[[ServiceEvent], None]
DeleteHook = Callable[[str, str], Awaitable[None]]
"""Called with a tenant and a session before the session is deleted."""
RequestSummary = Callable[[str, str, int], Awaitable[None]]
"""Asks for a summary in the background: tenant, session, newest event."""


class BusyOrIdle(Protocol):
    @property
    def is_busy(self) -> bool: ...


def _provider_settings(config: Config, agent: str) -> tuple[Any, ...]:
    """Return what a provider depends on; () if there is no such agent."""
    if agent and agent not in config.agents:
        return ()
    chosen = config.agent(agent) if agent else config
    return chosen.model, chosen.get("base_url"), chosen.get("window")


class Runtime:
    def __init__(
        self,
        config: Config,
        storage: Storage,
        *,
        environment: Mapping[str, str],
        clock: Callable[[], float] = time.time,
        answer_poll_s: float = ANSWER_POLL_S,
        make_provider: ProviderFactory = provider_from_config,
    ) -> None:
        self.config = config
        self.answer_poll_s = answer_poll_s
        self.storage = storage
        self.environment = environment
        self.clock = clock
        self.webhook: Webhook | None = Webhook.of(config, clock)
        self.database: Database = storage.open_database()
        self.inbox: Inbox = Inbox(self.database)
        self.questions: ChatQuestions = ChatQuestions(
            self.database, storage.wakeups, clock=clock, poll_s=answer_poll_s
        )
        self.chat_tools: dict[str, Sequence[Tool]] = {}
        """Tools that the model gets in the chats of a chat app, by its name; what composes the server sets them."""
        self.audit: AuditTrail = AuditTrail(self.database, clock=clock)
        self.usage: DailyUsage = DailyUsage(self.database, clock=clock)
        self.budgets: Budgets = Budgets(
            config, self.database, clock=clock, on_soft_limit=self._soft_limit_reached
        )
        self.locks: Locks = storage.open_locks()
        self.redact: Callable[[AnyFact], AnyFact] | None = (
            redact_fact if config.get("server.redact") else None
        )
        """Removes secrets from a fact; None if redaction is off."""
        self.request_summary: RequestSummary | None = None
        """Set by `delegate_summaries`; None: each session writes its summaries itself."""
        self.is_closing: bool = False
        """No new turn begins."""
        self.recent_sessions: RecentlyUsed[tuple[str, str], BusyOrIdle] = RecentlyUsed(
            MAX_IDLE_SESSIONS, is_busy=lambda session: session.is_busy
        )
        """Live sessions of all tenants that are in use or were used last, by tenant and id."""
        self._store_failures: dict[str, float] = {}
        """The monotonic time of the last failure, by tenant."""
        self._counting: asyncio.Task[None] | None = None
        self._is_count_due = False
        """The inbox has changed since it was counted."""
        self._observers: list[Observer] = []
        self._delete_hooks: list[DeleteHook] = [self.budgets.forget_conversation]
        self._download_progress: Callable[[Any], None] = lambda _: None
        self._make_provider = make_provider
        self._providers: OrderedDict[tuple[str, str], Provider] = OrderedDict()
        """By agent and model, "" for the configured one; the one used last is at the end."""
        self._in_use: WeakValueDictionary[tuple[str, str], Provider] = WeakValueDictionary()
        """Includes providers that left `_providers` while a session still uses them."""
        self._replaced: WeakSet[Provider] = WeakSet()
        """Providers that sessions may still use, with the settings of an earlier configuration."""

    def use_config(self, config: Config) -> None:
        """Use another configuration from now on. What a component has derived from the one before, it derives again
        when it sees that `config` is another object; providers with other settings are made anew."""
        before, self.config = self.config, config
        self.budgets.use(config)
        self.redact = redact_fact if config.get("server.redact") else None
        for key, provider in {**self._in_use, **self._providers}.items():
            if _provider_settings(before, key[0]) != _provider_settings(config, key[0]):
                self._replaced.add(provider)
                self._providers.pop(key, None)
                self._in_use.pop(key, None)

    def check_provider(self, config: Config) -> None:
        """Raise `ProviderError` if a configuration names a model that cannot be used."""
        if config.get("model"):
            self._make_provider(config, None, environment=self.environment, progress=self._download_progress)

    def config_of(self, agent: str) -> Config:
        """Return the configuration of a named agent; "" is that of the server. Raises `BadSetting`."""
        return self.config.agent(agent) if agent else self.config

    def provider(self, model: str, *, agent: str = "") -> Provider:
        """Return the shared provider of a model; "" is the configured model, of the agent if one is named."""
        key = agent, model
        known = self._providers.get(key) or self._in_use.get(key)
        if known is None:
            known = self._make_provider(
                self.config_of(agent),
                model or None,
                environment=self.environment,
                progress=self._download_progress,
            )
        self._providers[key] = self._in_use[key] = known
        self._providers.move_to_end(key)
        if len(self._providers) > MAX_IDLE_PROVIDERS:
            del self._providers[next(key for key in self._providers if any(key))]
        return known

    def storable_key(self, key: str) -> str:
        """Return a message's key, or a hash of it if it contains a secret: some clients use secrets as keys."""
        if self.redact is None or scrub(key) == key:
            return key
        return f"key-{blake2b(key.encode('utf-8', 'surrogatepass'), digest_size=16).hexdigest()}"

    def storable_text(self, text: str) -> str:
        """Return a text of a user without its secrets, unless redaction is off."""
        return text if self.redact is None else scrub(text)

    # ── Failures of stores ───────────────────────────────────────────────────────────────────────────

    def store_failed(self, tenant: str, problem: StoreError) -> None:
        """Report that a tenant's sessions, or the service's own tables, could not be used. The first failure of an
        outage is logged; every one is counted, and `/healthz` is degraded."""
        if tenant not in self.failing_stores:
            LOG.error("the store of tenant %s cannot be used: %s", tenant, problem)
        self._store_failures[tenant] = time.monotonic()
        self.emit(StoreFailed(tenant=tenant, session="", problem=type(problem).__name__))

    def store_recovered(self, tenant: str) -> None:
        """Report that a tenant's store was used successfully; does nothing if it had not failed."""
        if self._store_failures.pop(tenant, None) is not None:
            LOG.warning("the store of tenant %s can be used again", tenant)

    @property
    def failing_stores(self) -> list[str]:
        """The tenants whose stores have failed and not been used successfully since."""
        oldest = time.monotonic() - STORE_FAILURE_TTL_S
        self._store_failures = {name: at for name, at in self._store_failures.items() if at > oldest}
        return list(self._store_failures)

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
        """Count the usage of stored events, and pass an event to all observers. Their errors are logged and
        ignored."""
        for observer in (self._count_usage, *self._observers):
            try:
                observer(event)
            except Exception as problem:  # noqa: BLE001 (an observer must not break the service)
                LOG.error("an observer failed: %s", type(problem).__name__)

    def _soft_limit_reached(self, spender: Spender, reached: ScopedStatus) -> None:
        scope, status = reached
        place = {"tenant": spender.tenant, "session": spender.conversation}
        self.emit(SoftLimitReached(**place, scope=scope, limit=status.limit, spent=status.spent))

    def _count_usage(self, event: ServiceEvent) -> None:
        if isinstance(event, EventsStored):
            self.usage.add(event.tenant, event.session, event.events)

    async def emit_inbox_count(self) -> None:
        """Report the number of unanswered messages."""
        if self._observers:
            count = None
            with suppress(StoreError):
                count = (await self.inbox.unanswered()).number
            self.emit(InboxCounted(tenant="", session="", count=count))

    def emit_inbox_count_soon(self) -> None:
        """Count once for all calls of the next `INBOX_COUNT_DELAY_S`: turns do not wait for it."""
        self._is_count_due = True
        if self._observers and self._counting is None and not self.is_closing:
            self._counting = asyncio.create_task(self._count_inbox())

    async def _count_inbox(self) -> None:
        try:
            while self._is_count_due:
                await asyncio.sleep(INBOX_COUNT_DELAY_S)
                self._is_count_due = False
                await self.emit_inbox_count()
        finally:
            self._counting = None

    async def run_delete_hooks(self, tenant: str, session: str) -> None:
        for hook in self._delete_hooks:
            await hook(tenant, session)

    # ── Closing ──────────────────────────────────────────────────────────────────────────────────────

    def begin_closing(self) -> None:
        """Let no new turn begin; messages are still accepted into the inbox."""
        self.is_closing = True

    async def close(self) -> None:
        if self._counting is not None:
            self._counting.cancel()
            await asyncio.wait([self._counting])
        await self.usage.close()
        await self.audit.close()
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.storage.close)
            stack.push_async_callback(self.locks.close)
            stack.push_async_callback(self.database.close)
            stack.push_async_callback(self.budgets.close)
            for provider in {*self._providers.values(), *self._in_use.values(), *self._replaced}:
                stack.push_async_callback(provider.close)
