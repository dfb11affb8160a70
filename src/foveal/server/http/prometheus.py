"""Prometheus metrics of the server.

`foveal.core.engine.metrics` counts summaries and overflows; this module adds what only a server has. Label
values come from closed sets, or from a bounded number of tenants and models: no session and no text of a message.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from math import nan
from typing import TYPE_CHECKING, Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from foveal import __version__
from foveal.core.engine.metrics import Metrics
from foveal.core.log.events import Event, Used
from foveal.server.daily_usage import UsageCount, counted_usage, model_label
from foveal.server.runtime import (
    EventsStored,
    IllegalRequestMade,
    InboxCounted,
    ProxyRequestEnded,
    ServiceEvent,
    SoftLimitReached,
    StoreFailed,
    SummaryRequestEnded,
    TurnEnded,
    UsageNotUnderstood,
)

if TYPE_CHECKING:
    from foveal.server.gateways.gateway import GatewayHealth

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
_DURATION_BUCKETS_S: Final = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
)
TOKEN_KINDS: Final = ("input", "cache_read", "cache_write", "output")
ERROR_CODES: Final = frozenset(
    {"key", "rate", "connection", "interrupted", "refused", "server"}
    | {
        "budget_exceeded",
        "price_unknown",
        "ContextOverflow",
        "NotCompacted",
        "StoreError",
        "StoreUnusable",
        "Conflict",
        "ProviderError",
        "BadSetting",
    }
)
"""Values of the label `code` of failed turns; any other code is counted as `other`."""

MAX_TENANT_LABELS: Final = 50
MAX_MODEL_LABELS: Final = 30
"""Tenants and models that have a label of their own; the others are counted together as `OTHER_LABEL`."""
MAX_UNREAD_COUNTS: Final = 10_000
"""Tenants with a model that are counted apart between two scrapes."""
OTHER_LABEL: Final = "other"

GATEWAY_GAUGES: Final = {
    "up": "Whether a chat bot receives messages.",
    "refused": "Whether the chat app refuses the bot, so that the operator has to change something.",
    "connected_since_seconds": "Time at which a chat bot began to receive messages; 0 while it does not.",
    "last_update_seconds": "Time of the newest message to a chat bot; 0 if none arrived since the start.",
    "owed_answers": "Answers that are ready and not delivered.",
    "owed_oldest_seconds": "Age of the oldest answer that is ready and not delivered.",
    "given_up_answers": "Answers since the start that were not delivered within two days.",
    "refused_answers": "Answers since the start that their place refused, such as a closed topic.",
}
"""The metrics of a chat bot: name after `foveal_gateway_`, and description."""


class BoundedLabels:
    """Gives the first `limit` names a label of their own, for good: a counter must not move to another label."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._named: set[str] = set()

    def of(self, name: str) -> str:
        """Return the label of a name."""
        if name not in self._named and len(self._named) < self._limit:
            self._named.add(name)
        return name if name in self._named else OTHER_LABEL


class TenantMetrics:
    """Requests, tokens and dollars by tenant and model.

    Counts get their labels when they are read, the busiest first. Before the first time, the caller names the
    tenants that were the busiest lately."""

    def __init__(self, registry: CollectorRegistry) -> None:
        names = "tenant", "model"
        self._requests = Counter(
            "foveal_tenant_requests",
            "Drop-in requests and turns, also refused ones.",
            names,
            registry=registry,
        )
        self._tokens = Counter(
            "foveal_tenant_tokens", "Tokens that providers reported.", (*names, "kind"), registry=registry
        )
        self._dollars = Counter(
            "foveal_tenant_dollars", "Dollars of calls with a known price.", names, registry=registry
        )
        self._unpriced = Counter(
            "foveal_tenant_unpriced_calls", "Calls whose price is not known.", names, registry=registry
        )
        self._tenants, self._models = BoundedLabels(MAX_TENANT_LABELS), BoundedLabels(MAX_MODEL_LABELS)
        self._unread_usage: dict[tuple[str, str], UsageCount] = {}
        self._unread_requests: dict[tuple[str, str], int] = {}

    def add_usage(self, tenant: str, model: str, count: UsageCount) -> None:
        key = _bounded_key(self._unread_usage, tenant, model)
        self._unread_usage[key] = self._unread_usage.get(key, UsageCount()).plus(count)

    def add_request(self, tenant: str, model: str) -> None:
        key = _bounded_key(self._unread_requests, tenant, model)
        self._unread_requests[key] = self._unread_requests.get(key, 0) + 1

    def update(self, busiest: Iterable[str] = ()) -> None:
        """Move all counts into the metrics; `busiest` get the first labels."""
        usage, self._unread_usage = self._unread_usage, {}
        requests, self._unread_requests = self._unread_requests, {}
        for tenant in busiest:
            self._tenants.of(tenant)
        for (tenant, model), count in sorted(usage.items(), key=lambda item: -sum(item[1][1:5])):
            labels = self._tenants.of(tenant), self._models.of(model)
            for kind in TOKEN_KINDS:
                self._tokens.labels(*labels, kind).inc(getattr(count, kind))
            self._dollars.labels(*labels).inc(count.dollars)
            self._unpriced.labels(*labels).inc(count.unpriced)
        for (tenant, model), number in sorted(requests.items(), key=lambda item: -item[1]):
            self._requests.labels(self._tenants.of(tenant), self._models.of(model)).inc(number)


def _bounded_key(counts: Mapping[tuple[str, str], object], tenant: str, model: str) -> tuple[str, str]:
    """Return where to count; clients can send any name of a model, so the number of keys is bounded."""
    key = tenant, model_label(model)
    return key if key in counts or len(counts) < MAX_UNREAD_COUNTS else (OTHER_LABEL, OTHER_LABEL)


class PrometheusMetrics:
    """All metrics of the server; an observer of service events."""

    def __init__(self) -> None:
        # The creation times of metrics are not used, and would double the number of series.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry: CollectorRegistry = CollectorRegistry()
        self._core = Metrics()
        ProcessCollector(registry=self.registry)
        self._gauge("foveal_build", "The running version.", ("version",)).labels(__version__).set(1)
        self._requests = self._counter("foveal_requests", "HTTP requests.", ("method", "route", "status"))
        self._request_seconds = self._histogram(
            "foveal_request_seconds", "Time until the response was complete.", ("route",)
        )
        self._streams = self._gauge("foveal_streams_open", "Streams that are being sent.")
        self._exchanges = self._counter(
            "foveal_exchanges",
            "Drop-in requests, by status; `error` is the code of the server's own errors.",
            ("dialect", "status", "error"),
        )
        self._soft_limits = self._counter(
            "foveal_soft_limits_reached", "Soft spending limits that were reached.", ("scope",)
        )
        self._added_seconds = self._histogram(
            "foveal_added_seconds", "Time that this server added to drop-in requests.", ("dialect",)
        )
        self._saved_tokens = self._counter(
            "foveal_spared_tokens", "Tokens of drop-in requests that reductions removed."
        )
        self._recovered = self._counter(
            "foveal_overflows_recovered", "Refusals as too large that a reduction recovered."
        )
        self._summary_requests = self._counter(
            "foveal_summary_requests",
            "Requests for summaries of drop-in conversations, by the status from upstream.",
            ("dialect", "status"),
        )
        self._illegal_requests = self._counter(
            "foveal_illegal_requests",
            "Requests of drop-in conversations that this server wrote in a form that providers refuse.",
            ("dialect", "origin"),
        )
        self._unknown_usage = self._counter(
            "foveal_unknown_usage", "Replies whose usage report was not understood.", ("dialect",)
        )
        self._store_failures = self._counter(
            "foveal_store_failures",
            "Requests that could not be stored; drop-in requests are forwarded anyway.",
        )
        self._turns = self._counter("foveal_turns", "Turns, by how they ended.", ("why",))
        self._turn_seconds = self._histogram("foveal_turn_seconds", "Duration of turns.")
        self._turn_errors = self._counter("foveal_errors", "Turns that failed, by error code.", ("code",))
        self._tokens = self._counter("foveal_tokens", "Tokens that providers reported.", ("kind",))
        self._cache_share = self._gauge(
            "foveal_cache_share", "Share of all prompt tokens that came from prompt caches."
        )
        self._waiting = self._gauge("foveal_inbox_waiting", "Messages that are stored and not yet answered.")
        self._waiting.set(nan)  # until they were counted
        self._gateways = {
            name: self._gauge(f"foveal_gateway_{name}", about, ("platform",))
            for name, about in GATEWAY_GAUGES.items()
        }
        self.tenants: TenantMetrics = TenantMetrics(self.registry)
        self._prompt_tokens = self._cached_tokens = 0
        # `labels` checks its arguments and takes a lock, so the metrics of every request are kept by label.
        self._requests_with = cache(self._requests.labels)
        self._request_seconds_of = cache(self._request_seconds.labels)
        self._exchanges_with = cache(self._exchanges.labels)
        self._added_seconds_of = cache(self._added_seconds.labels)

    def text(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        return generate_latest(self.registry) + self._core.text().encode()

    # ── Recording ────────────────────────────────────────────────────────────────────────────────────

    def count_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request; status 0 means that the client left before the response began."""
        self._requests_with(method, route, str(status)).inc()
        self._request_seconds_of(route).observe(seconds)

    def set_gateways(self, gateways: Iterable[GatewayHealth], *, now: float) -> None:
        """Set the metrics of the chat bots."""
        for gateway in gateways:
            oldest_at = now if gateway.owed_oldest_at is None else gateway.owed_oldest_at
            values = {
                "up": gateway.status == "listening",
                "refused": gateway.status == "refused",
                "connected_since_seconds": gateway.connected_since or 0.0,
                "last_update_seconds": gateway.last_update or 0.0,
                "owed_answers": gateway.owed,
                "owed_oldest_seconds": max(0.0, now - oldest_at),
                "given_up_answers": gateway.given_up,
                "refused_answers": gateway.refused,
            }
            for name, value in values.items():
                self._gateways[name].labels(gateway.platform).set(value)

    def stream_started(self) -> None:
        self._streams.inc()

    def stream_ended(self) -> None:
        self._streams.dec()

    def observe(self, service_event: ServiceEvent) -> None:
        """Count a service event."""
        match service_event:
            case EventsStored():
                for event in service_event.events:
                    self._count_event(event)
                    if (used := counted_usage(event.fact)) is not None:
                        self.tenants.add_usage(service_event.tenant, *used)
            case TurnEnded():
                self.tenants.add_request(service_event.tenant, service_event.model)
                self._turns.labels(service_event.why).inc()
                self._turn_seconds.observe(service_event.seconds)
                if service_event.why == "failed":
                    code = service_event.problem
                    self._turn_errors.labels(code if code in ERROR_CODES else "other").inc()
            case ProxyRequestEnded():
                self._count_proxy_request(service_event)
            case SoftLimitReached():
                self._soft_limits.labels(service_event.scope).inc()
            case SummaryRequestEnded():
                self._summary_requests.labels(service_event.dialect, str(service_event.status)).inc()
            case IllegalRequestMade():
                self._illegal_requests.labels(service_event.dialect, service_event.origin).inc()
            case UsageNotUnderstood():
                self._unknown_usage.labels(service_event.dialect).inc()
            case StoreFailed():
                self._store_failures.inc()
            case InboxCounted():
                self._waiting.set(nan if service_event.count is None else service_event.count)

    def _count_event(self, event: Event) -> None:
        self._core.add(event)
        if isinstance(event.fact, Used):
            for kind in TOKEN_KINDS:
                self._tokens.labels(kind).inc(getattr(event.fact, kind))
            self._prompt_tokens += event.fact.prompt
            self._cached_tokens += event.fact.cache_read
            self._cache_share.set(self._cached_tokens / self._prompt_tokens if self._prompt_tokens else 0.0)

    def _count_proxy_request(self, done: ProxyRequestEnded) -> None:
        self.tenants.add_request(done.tenant, done.model)
        self._exchanges_with(done.dialect, str(done.status), done.error).inc()
        self._added_seconds_of(done.dialect).observe(done.added_seconds)
        self._saved_tokens.inc(max(0, done.unreduced_tokens - done.tokens))
        self._recovered.inc(done.overflow_retries)

    # ── Creating metrics ─────────────────────────────────────────────────────────────────────────────

    def _counter(self, name: str, about: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(name, about, labels, registry=self.registry)

    def _gauge(self, name: str, about: str, labels: tuple[str, ...] = ()) -> Gauge:
        return Gauge(name, about, labels, registry=self.registry)

    def _histogram(self, name: str, about: str, labels: tuple[str, ...] = ()) -> Histogram:
        return Histogram(name, about, labels, registry=self.registry, buckets=_DURATION_BUCKETS_S)
