"""What the server does, in numbers for Prometheus. What summaries and refusals did is counted by `foveal.core.engine.metrics`;
this adds what only a server has. Labels come from closed sets: no session, no tenant, no model, no text."""

from __future__ import annotations

from typing import Final

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
from foveal.server.runtime import EventsStored, Exchanged, LockWaited, ServiceEvent, TurnEnded

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
SECONDS: Final = (
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
KINDS: Final = ("input", "cache_read", "cache_write", "output")
ERROR_CODES: Final = frozenset(
    {"key", "rate", "connection", "interrupted", "refused", "server"}
    | {
        "ContextOverflow",
        "NotCompacted",
        "StoreError",
        "StoreUnusable",
        "Conflict",
        "ProviderError",
        "BadSetting",
    }
)
"""What a failed turn may be counted as; anything else is `other`."""


class PrometheusMetrics:
    def __init__(self) -> None:
        # When each was first counted is of no use to anybody, and doubles their number.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._core = Metrics()
        ProcessCollector(registry=self.registry)
        self._gauge("foveal_build", "The version that runs.", ("version",)).labels(__version__).set(1)
        self._requests = self._counter("foveal_requests", "Requests answered.", ("method", "route", "status"))
        self._request_seconds = self._histogram(
            "foveal_request_seconds", "Until the answer was whole.", ("route",)
        )
        self._streams = self._gauge("foveal_streams_open", "Streams that are being sent.")
        self._exchanges = self._counter(
            "foveal_exchanges", "Drop-in requests, by what upstream said.", ("dialect", "status")
        )
        self._added = self._histogram("foveal_added_seconds", "What this server added to them.", ("dialect",))
        self._spared = self._counter("foveal_spared_tokens", "Tokens that reductions kept from upstream.")
        self._recovered = self._counter(
            "foveal_overflows_recovered", "Refusals as too large that no client saw."
        )
        self._turns = self._counter("foveal_turns", "Turns, by how they ended.", ("why",))
        self._turn_seconds = self._histogram("foveal_turn_seconds", "Time that turns took.")
        self._errors = self._counter("foveal_errors", "Turns that failed, by error code.", ("code",))
        self._tokens = self._counter("foveal_tokens", "Tokens that providers reported.", ("kind",))
        self._share = self._gauge("foveal_cache_share", "Part of all prompt tokens that came from caches.")
        self._waiting = self._gauge("foveal_inbox_waiting", "Messages that are stored and not yet answered.")
        self._prompt = self._cached = 0

    def text(self) -> bytes:
        """All of it, as a scraper expects it."""
        return generate_latest(self.registry) + self._core.text().encode()

    # ── what happens ─────────────────────────────────────────────────────────────────────────────────

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """A request was answered; status 0 when nobody waited for it."""
        self._requests.labels(method, route, str(status)).inc()
        self._request_seconds.labels(route).observe(seconds)

    def stream_began(self) -> None:
        self._streams.inc()

    def stream_ended(self) -> None:
        self._streams.dec()

    def watch(self, occurrence: ServiceEvent) -> None:
        """Count what the service tells."""
        match occurrence:
            case EventsStored():
                for event in occurrence.events:
                    self._stored(event)
            case TurnEnded():
                self._turns.labels(occurrence.why).inc()
                self._turn_seconds.observe(occurrence.seconds)
                if occurrence.why == "failed":
                    code = occurrence.problem
                    self._errors.labels(code if code in ERROR_CODES else "other").inc()
            case Exchanged():
                self._exchanged(occurrence)
            case LockWaited():
                self._waiting.set(occurrence.count)

    def _stored(self, event: Event) -> None:
        self._core.add(event)
        if isinstance(event.fact, Used):
            for kind in KINDS:
                self._tokens.labels(kind).inc(getattr(event.fact, kind))
            self._prompt += event.fact.prompt
            self._cached += event.fact.cache_read
            self._share.set(self._cached / self._prompt if self._prompt else 0.0)

    def _exchanged(self, done: Exchanged) -> None:
        self._exchanges.labels(done.dialect, str(done.status)).inc()
        self._added.labels(done.dialect).observe(done.added)
        self._spared.inc(max(0, done.whole - done.tokens))
        self._recovered.inc(done.recovered)

    # ── making ───────────────────────────────────────────────────────────────────────────────────────

    def _counter(self, name: str, about: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(name, about, labels, registry=self.registry)

    def _gauge(self, name: str, about: str, labels: tuple[str, ...] = ()) -> Gauge:
        return Gauge(name, about, labels, registry=self.registry)

    def _histogram(self, name: str, about: str, labels: tuple[str, ...] = ()) -> Histogram:
        return Histogram(name, about, labels, registry=self.registry, buckets=SECONDS)
