"""Metrics, log lines and spans: they are correct, and contain no text of a message."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import isnan
from pathlib import Path
from typing import Any, Final

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from foveal.core.log import Compacted, Event, Overflowed, Used
from foveal.errors import ProviderError
from foveal.server import EventsStored, InboxCounted, ProxyRequestEnded, TurnEnded
from foveal.server.http.json_logs import (
    LOGGER_NAME,
    JsonFormatter,
    RequestLogMiddleware,
    log_event,
    log_to_stderr,
)
from foveal.server.http.prometheus import MAX_MODEL_LABELS, MAX_TENANT_LABELS, PrometheusMetrics
from foveal.server.http.tracing import Tracing
from foveal.testing import Scripted
from support.paths import ROOT
from support.provider_stand_in import Answer, StandIn
from support.serve_process import CANARY, ask
from support.upstream import ProxyServer, until

SETTINGS: Final[dict[str, Any]] = {"tokenizer": "estimate", "server__models": ["*"]}
PLACE: Final = {"tenant": "default", "session": "demo"}


def make(name: str | None, *, environment: Mapping[str, str], window: int | None, progress: Any) -> Scripted:
    """Return a model that calls a tool, answers, fails, and breaks."""
    if name == "broken/model":
        raise RuntimeError(f"{CANARY}: unexpected")
    call = ("Let me look. ", [("recall_search", {"query": f"{CANARY} plan"})])
    return Scripted(
        call,
        f"The plan is {CANARY}.",
        ProviderError(f"{CANARY} is not available", code="rate"),
        name=name or "scripted/model",
    )


@contextmanager
def captured_log() -> Iterator[io.StringIO]:
    """Capture the server's log during the block."""
    written, log = io.StringIO(), logging.getLogger()
    handler = logging.StreamHandler(written)
    handler.setFormatter(JsonFormatter())
    log.addHandler(handler)
    own = logging.getLogger(LOGGER_NAME)
    before = own.level
    own.setLevel(logging.INFO)
    try:
        yield written
    finally:
        own.setLevel(before)
        log.removeHandler(handler)


def parse_metrics(text: str) -> dict[tuple[str, ...], float]:
    """Return all samples by name and label values; assert that every metric is there once."""
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families)
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


class Watched:
    """A server after requests of every kind, with its metrics, log and spans."""

    def __init__(self, folder: Path) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        tracing = Tracing.create(provider)
        assert tracing is not None
        environment = {"FOVEAL_PROVIDER": f"{__name__}:make"}
        with (
            captured_log() as log,
            StandIn(script=lambda number: Answer(text=f"{CANARY} indeed")) as upstream,
            ProxyServer(folder, openai=upstream.openai, environment=environment, **SETTINGS) as proxy,
        ):
            proxy.service.runtime.add_observer(tracing.observe)
            self._use(proxy)
            self.metrics = ask(proxy.url, "/metrics")
            until(lambda: "/metrics" in log.getvalue())
        self.log = log.getvalue()
        self.lines = [json.loads(line) for line in self.log.splitlines()]
        self.spans = self.exporter.get_finished_spans()

    def _use(self, proxy: ProxyServer) -> None:
        assert ask(proxy.url, "/api/sessions", body={"id": "demo", "title": CANARY}).status == 201
        body = {"text": f"What is the {CANARY} plan?", "stream": False}
        assert ask(proxy.url, "/api/sessions/demo/turns", body=body).status == 200
        assert ask(proxy.url, "/api/sessions/demo/turns", body=body).status >= 500
        assert ask(proxy.url, f"/api/sessions/demo/search?q={CANARY}").status == 200
        assert ask(proxy.url, f"/{CANARY}/nowhere?key={CANARY}").status == 404
        assert ask(proxy.url, "/api/sessions", body={"model": "broken/model"}).status == 500
        asked = {"model": "gpt-5", "messages": [{"role": "user", "content": f"Is it {CANARY}?"}]}
        key = {"Authorization": f"Bearer sk-{CANARY}", "Cookie": CANARY, "X-Request-Id": "request-1"}
        assert ask(proxy.url, "/v1/chat/completions", body=asked, headers=key).status == 200

    def find(self, event: str, **fields: Any) -> list[dict[str, Any]]:
        wanted = {"event": event, **fields}
        return [line for line in self.lines if wanted.items() <= line.items()]

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    return Watched(tmp_path_factory.mktemp("watched"))


def test_no_metric_log_line_or_span_contains_text_or_keys(watched: Watched) -> None:
    assert CANARY not in watched.log
    assert CANARY not in watched.metrics.body.decode()
    assert CANARY not in "".join(span.to_json() for span in watched.spans)


# ── Log ────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_request_is_logged_with_its_route(watched: Watched) -> None:
    (line,) = watched.find("request", route="/v1/chat/completions")
    assert set(line) == {
        "at",
        "level",
        "event",
        "request",
        "method",
        "route",
        "status",
        "ms",
        "bytes",
        "tenant",
    }
    assert (line["request"], line["method"], line["status"]) == ("request-1", "POST", 200)
    assert watched.find("request", route="/api/sessions/{session}/search", method="GET", status=200)
    assert watched.find("request", route="unknown", status=404)


def test_turns_and_exchanges_are_logged_with_numbers(watched: Watched) -> None:
    (answered,) = watched.find("turn", why="answered", **PLACE)
    assert (answered["model"], answered["level"]) == ("scripted/model", "info")
    (failed,) = watched.find("turn", why="failed")
    assert (failed["error"], failed["level"]) == ("rate", "warning")
    (exchange,) = watched.find("exchange", dialect="openai_chat", status=200)
    assert exchange["tokens"] > 0
    assert exchange["added_ms"] >= 0


def test_an_error_is_logged_by_type_and_code_locations(watched: Watched) -> None:
    (line,) = watched.find("error")
    assert (line["error"], line["level"], line["route"]) == ("RuntimeError", "error", "/api/sessions")
    assert any(place.endswith(" make") for place in line["places"])


def test_a_log_that_cannot_be_written_ends_no_request(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("logThreads", "logProcesses", "logMultiprocessing"):
        monkeypatch.setattr(logging, name, getattr(logging, name))
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    loggers = [logging.getLogger(name) for name in ("", "foveal", "psycopg.pool", "dbos")]
    levels, written = [logger.level for logger in loggers], io.StringIO()
    try:
        log_to_stderr(written)
        log_event("first")
        assert json.loads(written.getvalue())["event"] == "first"
        written.close()
        log_event("second")
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
    assert "ValueError" in capsys.readouterr().err


def test_lines_of_other_libraries_are_logged_without_message() -> None:
    with captured_log() as log:
        try:
            raise ValueError(CANARY)
        except ValueError:
            logging.getLogger("some.library").exception("about %s", CANARY)
        log_event("named", {"model": "m" * 1_000})
    first, second = map(json.loads, log.getvalue().splitlines())
    assert (first["event"], first["logger"], first["error"]) == ("library", "some.library", "ValueError")
    assert CANARY not in log.getvalue()
    assert len(second["model"]) == 200


def test_a_line_of_a_library_has_the_type_of_the_error_that_it_handles() -> None:
    with captured_log() as log:
        try:
            raise ConnectionError(CANARY)
        except ConnectionError as problem:
            logging.getLogger("some.library").warning(f"it failed: {problem}")
    line = json.loads(log.getvalue())
    assert (line["event"], line["error"]) == ("library", "ConnectionError")
    assert CANARY not in log.getvalue()


# ── Metrics ────────────────────────────────────────────────────────────────────────────────────────────


def test_metrics_count_requests_turns_and_tokens(watched: Watched) -> None:
    assert watched.metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = parse_metrics(watched.metrics.body.decode())
    assert found["foveal_turns_total", "answered"] == 1
    assert found["foveal_turns_total", "failed"] == 1
    assert found["foveal_errors_total", "rate"] == 1
    assert found["foveal_exchanges_total", "openai_chat", "", "200"] == 1
    assert found["foveal_requests_total", "POST", "/v1/chat/completions", "200"] == 1
    assert found["foveal_requests_total", "GET", "unknown", "404"] == 1
    assert found["foveal_tokens_total", "input"] > 0
    assert found["foveal_tokens_total", "output"] > 0
    assert found["foveal_inbox_waiting",] == 0
    assert found["foveal_streams_open",] == 0
    assert found["foveal_request_seconds_count", "/v1/chat/completions"] == 1
    assert found["foveal_compaction_rejected_total",] == 0


def test_the_size_of_an_inbox_that_cannot_be_read_is_unknown_and_not_0() -> None:
    metrics = PrometheusMetrics()
    sizes = []
    for count in (None, 0, None):
        metrics.observe(InboxCounted(tenant="", session="", count=count))
        sizes.append(parse_metrics(metrics.text().decode())["foveal_inbox_waiting",])
    assert [isnan(size) for size in sizes] == [True, False, True]
    assert isnan(parse_metrics(PrometheusMetrics().text().decode())["foveal_inbox_waiting",])


def test_metrics_follow_the_service_events() -> None:
    metrics = PrometheusMetrics()
    used = Used(input=10, cache_read=30, cache_write=10, output=5)
    refused = Overflowed(model="m", limit_kind="tokens")
    summary = Compacted(first=1, last=2, summary=CANARY, by="m", reason="tokens")
    metrics.observe(
        EventsStored(**PLACE, events=tuple(Event(n, fact) for n, fact in enumerate((used, refused, summary))))
    )
    done = {"turn": "t1", "model": "m", "seconds": 0.2}
    metrics.observe(TurnEnded(**PLACE, **done, why="failed", problem="UnknownCode"))
    sizes: dict[str, Any] = {"seconds": 1.0, "added_seconds": 0.002, "tokens": 100}
    sizes |= {"unreduced_tokens": 900, "overflow_retries": 2}
    for status in (200, 500):
        metrics.observe(
            ProxyRequestEnded(
                **PLACE, **sizes, dialect="anthropic", model=CANARY, status=status, streamed=True
            )
        )
    metrics.observe(InboxCounted(tenant="", session="", count=7))
    metrics.stream_started()
    text = metrics.text().decode()
    found = parse_metrics(text)
    kinds = {
        kind: found["foveal_tokens_total", kind] for kind in ("input", "cache_read", "cache_write", "output")
    }
    assert kinds == {"input": 10, "cache_read": 30, "cache_write": 10, "output": 5}
    assert found["foveal_cache_share",] == pytest.approx(0.6)
    assert found["foveal_compactions_total", "model", "tokens"] == 1
    assert found["foveal_overflows_total", "tokens"] == 1
    assert found["foveal_overflows_recovered_total",] == 4
    assert found["foveal_spared_tokens_total",] == 1_600
    assert found["foveal_errors_total", "other"] == 1
    assert found["foveal_added_seconds_bucket", "anthropic", "0.0025"] == 2
    assert found["foveal_inbox_waiting",] == 7
    assert found["foveal_streams_open",] == 1
    assert CANARY not in text
    assert "demo" not in text


def of_tenants(metrics: PrometheusMetrics, name: str) -> dict[tuple[str, ...], float]:
    """Return the samples of a metric by its labels."""
    found = parse_metrics(metrics.text().decode())
    return {tuple(labels): value for (known, *labels), value in found.items() if known == name}


def test_metrics_by_tenant_and_model() -> None:
    metrics = PrometheusMetrics()
    used = Used(input=500_000, output=250_000, model="gpt-4.1"), Used(input=7, model="unheard/of")
    events = tuple(Event(seq, fact) for seq, fact in enumerate(used))
    metrics.observe(EventsStored(tenant="alice", session="s", events=events))
    metrics.observe(
        TurnEnded(tenant="alice", session="s", turn="t", model="gpt-4.1", seconds=1.0, why="answered")
    )
    metrics.tenants.update()
    assert of_tenants(metrics, "foveal_tenant_requests_total") == {("gpt-4.1", "alice"): 1}
    assert of_tenants(metrics, "foveal_tenant_dollars_total") == {
        ("gpt-4.1", "alice"): pytest.approx(3.0),
        ("unheard/of", "alice"): 0,
    }
    assert of_tenants(metrics, "foveal_tenant_unpriced_calls_total")["unheard/of", "alice"] == 1
    assert of_tenants(metrics, "foveal_tenant_tokens_total")["output", "gpt-4.1", "alice"] == 250_000


def test_the_labels_of_tenants_and_models_are_bounded() -> None:
    metrics = PrometheusMetrics()

    def use(tenant: str, model: str, tokens: int) -> None:
        events = (Event(0, Used(input=tokens, model=model)),)
        metrics.observe(EventsStored(tenant=tenant, session="s", events=events))

    for number in range(1_000):
        use(f"small-{number}", f"m{number}", 1)
    use("large", "m0", 1_000)
    metrics.tenants.update(["lately"])
    use("lately", "m0", 5)
    use("small-999", "m0", 1)
    metrics.tenants.update()
    counts = of_tenants(metrics, "foveal_tenant_tokens_total")
    assert sum(counts.values()) == 2_006, "nothing is counted twice or lost"
    tenants, models = {labels[2] for labels in counts}, {labels[1] for labels in counts}
    assert len(tenants) == MAX_TENANT_LABELS + 1
    assert len(models) == MAX_MODEL_LABELS + 1
    assert {"large", "lately", "other"} <= tenants
    assert "small-999" not in tenants


def test_every_metric_is_documented() -> None:
    page = (ROOT / "docs/service/observability.md").read_text(encoding="utf-8")
    names = {family.name for family in text_string_to_metric_families(PrometheusMetrics().text().decode())}
    assert {name for name in names if name not in page and not name.startswith("process_")} == set()


# ── Spans ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_turn_is_a_tree_of_spans(watched: Watched) -> None:
    turn, failed = watched.named("invoke_agent foveal")
    chats, (tool,) = watched.named("chat model"), watched.named("execute_tool recall_search")
    assert len(chats) == 2
    assert turn.parent is None
    assert {span.parent.span_id for span in (*chats, tool) if span.parent} == {turn.context.span_id}
    common = {
        "gen_ai.provider.name": "scripted",
        "gen_ai.request.model": "model",
        "gen_ai.conversation.id": "demo",
    }
    assert (common | {"gen_ai.operation.name": "chat"}).items() <= dict(chats[0].attributes or {}).items()
    assert chats[0].kind is SpanKind.CLIENT
    tokens = [int((span.attributes or {})["gen_ai.usage.input_tokens"]) for span in chats]  # type: ignore[call-overload]
    assert min(tokens) > 0
    attributes = dict(turn.attributes or {})
    assert attributes["gen_ai.operation.name"] == "invoke_agent"
    assert attributes["gen_ai.usage.input_tokens"] == sum(tokens)
    assert dict(tool.attributes or {})["gen_ai.tool.name"] == "recall_search"
    assert [span.start_time for span in (turn, chats[0], tool, chats[1])] == sorted(
        span.start_time or 0 for span in (turn, chats[0], tool, chats[1])
    )
    assert failed.status.status_code is StatusCode.ERROR
    assert dict(failed.attributes or {})["error.type"] == "rate"


def test_a_drop_in_request_is_a_span_with_usage(watched: Watched) -> None:
    (span,) = watched.named("chat gpt-5")
    attributes = dict(span.attributes or {})
    assert (attributes["gen_ai.provider.name"], attributes["gen_ai.request.stream"]) == ("openai", False)
    assert int(attributes["gen_ai.usage.output_tokens"]) > 0  # type: ignore[call-overload]


def test_a_request_is_a_child_of_the_clients_span() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    async def fail(request: Request) -> Response:
        raise RuntimeError(CANARY)

    watching = RequestLogMiddleware(
        Starlette(routes=[Route("/of/{name}", fail)]).router,
        metrics=PrometheusMetrics(),
        tracing=Tracing.create(provider),
    )
    trace = "0af7651916cd43dd8448eb211c80319c"
    scope = {
        "type": "http",
        "method": "GET",
        "path": f"/of/{CANARY}",
        "query_string": b"",
        "root_path": "",
        "headers": [(b"traceparent", f"00-{trace}-b7ad6b7169203331-01".encode())],
    }
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request"}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(watching(scope, receive, send))
    (span,) = exporter.get_finished_spans()
    assert sent[0]["status"] == 500
    assert (span.name, span.kind, span.status.status_code) == (
        "GET /of/{name}",
        SpanKind.SERVER,
        StatusCode.ERROR,
    )
    assert format(span.context.trace_id, "032x") == trace
    assert dict(span.attributes or {})["http.response.status_code"] == 500
    assert CANARY not in span.to_json()


def test_there_is_no_tracing_without_a_tracer_provider() -> None:
    assert Tracing.create() is None
