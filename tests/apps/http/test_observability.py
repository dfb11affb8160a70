"""What the server tells about itself: figures, lines and spans that are true, and never a word of a message."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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

from foveal.apps.http.json_logs import NAME, JsonLines, tell
from foveal.apps.http.prometheus import PrometheusMetrics
from foveal.apps.http.request_log import RequestLogMiddleware
from foveal.apps.http.tracing import Tracing
from foveal.core.log import Compacted, Event, Overflowed, Used
from foveal.errors import ProviderError
from foveal.server import EventsStored, Exchanged, LockWaited, TurnEnded
from foveal.testing import Scripted
from support.paths import ROOT
from support.provider_stand_in import Answer, StandIn
from support.serve_process import CANARY, ask
from support.upstream import Front, until

SETTINGS: Final[dict[str, Any]] = {"tokenizer": "estimate", "server__models": ["*"]}
PLACE: Final = {"tenant": "default", "session": "demo"}


def make(name: str | None, *, environment: Mapping[str, str], window: int | None, progress: Any) -> Scripted:
    """Looks something up, answers, fails, and breaks."""
    if name == "broken/model":
        raise RuntimeError(f"{CANARY}: nobody expected this")
    call = ("Let me look. ", [("recall_search", {"query": f"{CANARY} plan"})])
    return Scripted(
        call,
        f"The plan is {CANARY}.",
        ProviderError(f"{CANARY} is not available", code="rate"),
        name=name or "scripted/model",
    )


@contextmanager
def logged() -> Iterator[io.StringIO]:
    """The log of the server, while the block lasts."""
    written, log = io.StringIO(), logging.getLogger()
    handler = logging.StreamHandler(written)
    handler.setFormatter(JsonLines())
    log.addHandler(handler)
    own = logging.getLogger(NAME)
    before = own.level
    own.setLevel(logging.INFO)
    try:
        yield written
    finally:
        own.setLevel(before)
        log.removeHandler(handler)


def figures(text: str) -> dict[tuple[str, ...], float]:
    """All samples, each by its name and the values of its labels; every family is there once."""
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families)
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


class Watched:
    """A server that has been used in all ways, and what was seen of it."""

    def __init__(self, folder: Path) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        tracing = Tracing.found(provider)
        assert tracing is not None
        environment = {"FOVEAL_PROVIDER": f"{__name__}:make"}
        with (
            logged() as log,
            StandIn(script=lambda number: Answer(text=f"{CANARY} indeed")) as upstream,
            Front(folder, openai=upstream.openai, environment=environment, **SETTINGS) as front,
        ):
            front.service.ground.watchers.append(tracing.watch)
            self._use(front)
            self.metrics = ask(front.url, "/metrics")
            until(lambda: "/metrics" in log.getvalue())
        self.log = log.getvalue()
        self.lines = [json.loads(line) for line in self.log.splitlines()]
        self.spans = self.exporter.get_finished_spans()

    def _use(self, front: Front) -> None:
        assert ask(front.url, "/api/sessions", body={"id": "demo", "title": CANARY}).status == 201
        said = {"text": f"What is the {CANARY} plan?", "stream": False}
        assert ask(front.url, "/api/sessions/demo/turns", body=said).status == 200
        assert ask(front.url, "/api/sessions/demo/turns", body=said).status >= 500
        assert ask(front.url, f"/api/sessions/demo/search?q={CANARY}").status == 200
        assert ask(front.url, f"/{CANARY}/nowhere?key={CANARY}").status == 404
        assert ask(front.url, "/api/sessions", body={"model": "broken/model"}).status == 500
        asked = {"model": "gpt-5", "messages": [{"role": "user", "content": f"Is it {CANARY}?"}]}
        key = {"Authorization": f"Bearer sk-{CANARY}", "Cookie": CANARY, "X-Request-Id": "request-1"}
        assert ask(front.url, "/v1/chat/completions", body=asked, headers=key).status == 200

    def find(self, event: str, **fields: Any) -> list[dict[str, Any]]:
        wanted = {"event": event, **fields}
        return [line for line in self.lines if wanted.items() <= line.items()]

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    return Watched(tmp_path_factory.mktemp("watched"))


def test_no_figure_line_or_span_has_a_word_of_a_message_a_key_or_a_query(watched: Watched) -> None:
    assert CANARY not in watched.log
    assert CANARY not in watched.metrics.body.decode()
    assert CANARY not in "".join(span.to_json() for span in watched.spans)


# ── lines ────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_request_has_a_line_with_its_route_and_not_its_path(watched: Watched) -> None:
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


def test_turns_and_exchanges_have_lines_with_numbers(watched: Watched) -> None:
    (answered,) = watched.find("turn", why="answered", **PLACE)
    assert (answered["model"], answered["level"]) == ("scripted/model", "info")
    (failed,) = watched.find("turn", why="failed")
    assert (failed["error"], failed["level"]) == ("rate", "warning")
    (exchange,) = watched.find("exchange", dialect="openai_chat", status=200)
    assert exchange["tokens"] > 0
    assert exchange["added_ms"] >= 0


def test_an_error_is_told_by_its_type_and_its_places(watched: Watched) -> None:
    (line,) = watched.find("error")
    assert (line["error"], line["level"], line["route"]) == ("RuntimeError", "error", "/api/sessions")
    assert any(place.endswith(" make") for place in line["places"])


def test_what_other_libraries_log_is_told_without_its_words() -> None:
    with logged() as log:
        try:
            raise ValueError(CANARY)
        except ValueError:
            logging.getLogger("some.library").exception("about %s", CANARY)
        tell("named", {"model": "m" * 1_000})
    first, second = map(json.loads, log.getvalue().splitlines())
    assert (first["event"], first["logger"], first["error"]) == ("library", "some.library", "ValueError")
    assert CANARY not in log.getvalue()
    assert len(second["model"]) == 200


# ── figures ──────────────────────────────────────────────────────────────────────────────────────────────


def test_figures_count_what_was_done(watched: Watched) -> None:
    assert watched.metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = figures(watched.metrics.body.decode())
    assert found["foveal_turns_total", "answered"] == 1
    assert found["foveal_turns_total", "failed"] == 1
    assert found["foveal_errors_total", "rate"] == 1
    assert found["foveal_exchanges_total", "openai_chat", "200"] == 1
    assert found["foveal_requests_total", "POST", "/v1/chat/completions", "200"] == 1
    assert found["foveal_requests_total", "GET", "unknown", "404"] == 1
    assert found["foveal_tokens_total", "input"] > 0
    assert found["foveal_tokens_total", "output"] > 0
    assert found["foveal_inbox_waiting",] == 0
    assert found["foveal_streams_open",] == 0
    assert found["foveal_request_seconds_count", "/v1/chat/completions"] == 1
    assert found["foveal_compaction_rejected_total",] == 0


def test_figures_follow_what_the_service_tells() -> None:
    meters = PrometheusMetrics()
    used = Used(input=10, cache_read=30, cache_write=10, output=5)
    refused = Overflowed(model="m", limit_kind="tokens")
    summary = Compacted(first=1, last=2, summary=CANARY, by="m", reason="tokens")
    meters.watch(
        EventsStored(**PLACE, events=tuple(Event(n, fact) for n, fact in enumerate((used, refused, summary))))
    )
    done = {"turn": "t1", "model": "m", "seconds": 0.2}
    meters.watch(TurnEnded(**PLACE, **done, why="failed", problem="SomethingNobodyKnows"))
    sizes = {"seconds": 1.0, "added": 0.002, "tokens": 100, "whole": 900, "recovered": 2}
    for status in (200, 500):
        meters.watch(
            Exchanged(**PLACE, **sizes, dialect="anthropic", model=CANARY, status=status, streamed=True)
        )
    meters.watch(LockWaited(tenant="", session="", count=7))
    meters.stream_began()
    text = meters.text().decode()
    found = figures(text)
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


def test_every_figure_is_documented() -> None:
    page = (ROOT / "docs" / "observability.md").read_text(encoding="utf-8")
    names = {family.name for family in text_string_to_metric_families(PrometheusMetrics().text().decode())}
    assert {name for name in names if name not in page and not name.startswith("process_")} == set()


# ── spans ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_turn_is_a_tree_of_spans_with_the_names_of_the_conventions(watched: Watched) -> None:
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
    told = dict(turn.attributes or {})
    assert told["gen_ai.operation.name"] == "invoke_agent"
    assert told["gen_ai.usage.input_tokens"] == sum(tokens)
    assert dict(tool.attributes or {})["gen_ai.tool.name"] == "recall_search"
    assert [span.start_time for span in (turn, chats[0], tool, chats[1])] == sorted(
        span.start_time or 0 for span in (turn, chats[0], tool, chats[1])
    )
    assert failed.status.status_code is StatusCode.ERROR
    assert dict(failed.attributes or {})["error.type"] == "rate"


def test_a_drop_in_request_is_a_span_with_what_was_reported(watched: Watched) -> None:
    (span,) = watched.named("chat gpt-5")
    told = dict(span.attributes or {})
    assert (told["gen_ai.provider.name"], told["gen_ai.request.stream"]) == ("openai", False)
    assert int(told["gen_ai.usage.output_tokens"]) > 0  # type: ignore[call-overload]


def test_a_request_is_a_span_below_the_clients_own() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    async def fail(request: Request) -> Response:
        raise RuntimeError(CANARY)

    watching = RequestLogMiddleware(
        Starlette(routes=[Route("/of/{name}", fail)]).router,
        meters=PrometheusMetrics(),
        tracing=Tracing.found(provider),
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
