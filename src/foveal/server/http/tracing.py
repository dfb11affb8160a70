"""OpenTelemetry spans, named by the conventions for generative AI.

    POST /v1/chat/completions          an HTTP request; a child of the client's span if it sends `traceparent`
      chat MODEL                       the request to the upstream of a drop-in request
    invoke_agent foveal                a turn
      chat MODEL                       each answer of the model, with the tokens that the provider reported
      execute_tool NAME                each tool call

1. Spans contain no text of a message.
2. Tracing is active if OpenTelemetry is installed and configured, for example by
   `opentelemetry-instrument foveal serve`.
3. The spans of a turn are made from stored events, so tracing can neither delay nor break a turn.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import time_ns
from types import MappingProxyType
from typing import Any, Final, Self

from starlette.types import Scope

from foveal import __version__
from foveal.core.log.events import Event, ModelSaid, ToolReturned, Used, calls_of
from foveal.server.runtime import EventsStored, ProxyRequestEnded, ServiceEvent, TurnBegan, TurnEnded

PROVIDER_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "openai_chat": "openai",
        "openai_responses": "openai",
        "openai": "openai",
        "responses": "openai",
        "anthropic": "anthropic",
        "gemini": "gcp.gemini",
    }
)
"""Provider names of the conventions; other providers keep their own name."""
MAX_OPEN_TURNS: Final = 4_096
"""Open turns and pending usage records that are kept; above it the oldest is dropped."""
_NS_PER_S: Final = 1_000_000_000


class Tracing:
    """Makes spans from requests and service events."""

    def __init__(self, tracer: Any, trace: Any, propagate: Any) -> None:
        self._tracer = tracer
        self._trace = trace
        self._propagate = propagate
        self._turns: OrderedDict[tuple[str, str], _TurnSpan] = OrderedDict()
        self._used: OrderedDict[tuple[str, str], Used] = OrderedDict()
        """The usage reported for the latest request of a session outside a turn."""

    @classmethod
    def create(cls, provider: Any = None) -> Self | None:
        """Return tracing with the given or the process-wide tracer provider. None without OpenTelemetry, or if no
        provider is set: its spans would go nowhere."""
        try:
            from opentelemetry import propagate, trace
        except ImportError:
            return None
        if provider is None and isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            return None
        return cls(trace.get_tracer("foveal", __version__, tracer_provider=provider), trace, propagate)

    # ── Requests ─────────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def request(self, scope: Scope, result: Callable[[], tuple[str, str, int]]) -> Iterator[None]:
        """Wrap a request in a span; `result` returns method, route and status after its end."""
        carrier = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in scope["headers"]
            if name in (b"traceparent", b"tracestate")
        }
        span = self._tracer.start_span(
            "request", context=self._propagate.extract(carrier), kind=self._trace.SpanKind.SERVER
        )
        try:
            with self._trace.use_span(span, record_exception=False, set_status_on_exception=False):
                yield
        finally:
            method, route, status = result()
            span.update_name(f"{method} {route}")
            span.set_attributes(
                {"http.request.method": method, "http.route": route, "http.response.status_code": status}
            )
            if status >= 500 or not status:
                span.set_status(self._trace.Status(self._trace.StatusCode.ERROR))
            span.end()

    # ── Service events ───────────────────────────────────────────────────────────────────────────────

    def observe(self, service_event: ServiceEvent) -> None:
        match service_event:
            case TurnBegan():
                self._begin_turn(service_event)
            case EventsStored():
                self._add_events(service_event)
            case TurnEnded():
                turn = self._turns.pop((service_event.tenant, service_event.session), None)
                if turn is not None:
                    turn.end(service_event)
            case ProxyRequestEnded():
                self._add_proxy_request(service_event)

    def _begin_turn(self, began: TurnBegan) -> None:
        provider, model = _split_model(began.model)
        attributes = _common_attributes("invoke_agent", model, began.session, provider=provider)
        attributes |= {"gen_ai.agent.name": "foveal"}
        # A turn outlives the request that started it, so its span has no parent.
        no_parent = self._trace.set_span_in_context(self._trace.INVALID_SPAN)
        span = self._tracer.start_span("invoke_agent foveal", context=no_parent, attributes=attributes)
        self._turns[began.tenant, began.session] = _TurnSpan(self, span, began)
        while len(self._turns) > MAX_OPEN_TURNS:
            self._turns.popitem(last=False)[1].drop()

    def _add_events(self, stored: EventsStored) -> None:
        key = stored.tenant, stored.session
        turn = self._turns.get(key)
        for event in stored.events:
            if turn is not None:
                turn.add_event(event)
            elif isinstance(event.fact, Used):
                self._used[key] = event.fact
                self._used.move_to_end(key)
        while len(self._used) > MAX_OPEN_TURNS:
            self._used.popitem(last=False)

    def _add_proxy_request(self, done: ProxyRequestEnded) -> None:
        end, used = time_ns(), self._used.pop((done.tenant, done.session), None)
        attributes = _common_attributes("chat", done.model, done.session, provider=done.dialect) | {
            "gen_ai.request.stream": done.streamed,
            "foveal.request.tokens": done.tokens,
            "foveal.request.tokens_unreduced": done.unreduced_tokens,
            "foveal.request.overflows_recovered": done.overflow_retries,
            **(_usage_attributes(used) if used is not None else {}),
        }
        span = self.span(f"chat {done.model}", attributes, start=end - int(done.seconds * _NS_PER_S))
        if done.status >= 400:
            self.fail(span, str(done.status))
        span.end(end)

    def span(self, name: str, attributes: dict[str, Any], *, start: int, parent: Any = None) -> Any:
        context = None if parent is None else self._trace.set_span_in_context(parent)
        kind = self._trace.SpanKind.CLIENT if name.startswith("chat ") else self._trace.SpanKind.INTERNAL
        return self._tracer.start_span(
            name, context=context, kind=kind, attributes=attributes, start_time=start
        )

    def fail(self, span: Any, code: str) -> None:
        span.set_attribute("error.type", code or "other")
        span.set_status(self._trace.Status(self._trace.StatusCode.ERROR))


class _TurnSpan:
    """The span of a running turn, and the data for the spans of its steps."""

    def __init__(self, tracing: Tracing, span: Any, began: TurnBegan) -> None:
        self._tracing = tracing
        self._span = span
        self._provider, self._model = _split_model(began.model)
        self._session = began.session
        self._since = time_ns()
        """The end of the latest step, which is the start of the next one."""
        self._names: dict[str, str] = {}
        self._chat: tuple[int, int] | None = None
        """Start and end of the latest answer of the model, until its usage is known."""
        self._usage = dict.fromkeys(("input", "output"), 0)

    def add_event(self, event: Event) -> None:
        now, fact = time_ns(), event.fact
        if isinstance(fact, ModelSaid):
            self._finish_chat({})
            self._chat = self._since, now
            self._names |= {call.id: call.name for _, call in calls_of(fact.content)}
        elif isinstance(fact, Used):
            self._usage["input"] += fact.prompt
            self._usage["output"] += fact.output
            self._finish_chat(_usage_attributes(fact))
        elif isinstance(fact, ToolReturned):
            self._add_tool_span(fact, now)
        self._since = now

    def end(self, done: TurnEnded) -> None:
        self._finish_chat({})
        usage = {f"gen_ai.usage.{kind}_tokens": count for kind, count in self._usage.items()}
        self._span.set_attributes(usage | {"foveal.turn.why": done.why})
        if done.why == "failed":
            self._tracing.fail(self._span, done.problem)
        self._span.end()

    def drop(self) -> None:
        """End the span of a turn whose end was not reported."""
        self._span.end()

    def _finish_chat(self, usage: dict[str, Any]) -> None:
        if self._chat is not None:
            began, ended = self._chat
            attributes = (
                _common_attributes("chat", self._model, self._session, provider=self._provider) | usage
            )
            self._tracing.span(f"chat {self._model}", attributes, start=began, parent=self._span).end(ended)
            self._chat = None

    def _add_tool_span(self, fact: ToolReturned, now: int) -> None:
        name = fact.name or self._names.get(fact.call_id, "unknown")
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": name,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": fact.call_id,
        }
        span = self._tracing.span(f"execute_tool {name}", attributes, start=self._since, parent=self._span)
        if fact.error:
            self._tracing.fail(span, "tool_error")
        span.end(now)


def _split_model(model: str) -> tuple[str, str]:
    """Return the provider and the provider's name of a model."""
    provider, slash, name = model.partition("/")
    return (provider, name) if slash else ("", model)


def _common_attributes(operation: str, model: str, session: str, *, provider: str) -> dict[str, Any]:
    return {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": PROVIDER_NAMES.get(provider, provider),
        "gen_ai.request.model": model,
        "gen_ai.conversation.id": session,
    }


def _usage_attributes(used: Used) -> dict[str, Any]:
    return {
        "gen_ai.usage.input_tokens": used.prompt,
        "gen_ai.usage.output_tokens": used.output,
        "gen_ai.usage.cache_read.input_tokens": used.cache_read,
        "gen_ai.usage.cache_creation.input_tokens": used.cache_write,
    }
