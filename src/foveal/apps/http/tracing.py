"""Spans for OpenTelemetry, with the names of its conventions for generative AI, and without a word of a message.

    POST /v1/chat/completions          every request, as a child of what the client says in `traceparent`
      chat MODEL                       what a drop-in request asked upstream
    invoke_agent foveal                a turn
      chat MODEL                       each answer of the model, with the tokens that the provider reported
      execute_tool NAME                each tool that ran

It is there when OpenTelemetry is installed, and does something when somebody has set it up, with
`opentelemetry-instrument foveal serve` say. Spans of a turn are derived from what was stored, so that tracing can
neither slow a turn down nor break it.
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
from foveal.server.runtime import EventsStored, Exchanged, ServiceEvent, TurnBegan, TurnEnded

PROVIDERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "openai_chat": "openai",
        "openai_responses": "openai",
        "openai": "openai",
        "responses": "openai",
        "anthropic": "anthropic",
        "gemini": "gcp.gemini",
    }
)
"""What the conventions call those whom they know; another is called what we call it."""
MOST: Final = 4_096
"""Turns that may be open at once; the oldest is given up before it leaks."""
_BILLION: Final = 1_000_000_000


class Tracing:
    def __init__(self, tracer: Any, trace: Any, propagate: Any) -> None:
        self._tracer = tracer
        self._trace = trace
        self._propagate = propagate
        self._turns: OrderedDict[tuple[str, str], _Turn] = OrderedDict()
        self._used: OrderedDict[tuple[str, str], Used] = OrderedDict()
        """What was reported for the newest request of a session outside of a turn."""

    @classmethod
    def found(cls, provider: Any = None) -> Self | None:
        """Tracing with whatever the process has set up, or with the provider given; None without OpenTelemetry."""
        try:
            from opentelemetry import propagate, trace
        except ImportError:
            return None
        return cls(trace.get_tracer("foveal", __version__, tracer_provider=provider), trace, propagate)

    # ── requests ─────────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def request(self, scope: Scope, told: Callable[[], tuple[str, str, int]]) -> Iterator[None]:
        """A span around a request; `told` gives its method, its route and its status when it has ended."""
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
            method, route, status = told()
            span.update_name(f"{method} {route}")
            span.set_attributes(
                {"http.request.method": method, "http.route": route, "http.response.status_code": status}
            )
            if status >= 500 or not status:
                span.set_status(self._trace.Status(self._trace.StatusCode.ERROR))
            span.end()

    # ── what the service tells ───────────────────────────────────────────────────────────────────────

    def watch(self, occurrence: ServiceEvent) -> None:
        match occurrence:
            case TurnBegan():
                self._began(occurrence)
            case EventsStored():
                self._stored(occurrence)
            case TurnEnded():
                turn = self._turns.pop((occurrence.tenant, occurrence.session), None)
                if turn is not None:
                    turn.ended(occurrence)
            case Exchanged():
                self._exchanged(occurrence)

    def _began(self, began: TurnBegan) -> None:
        provider, model = _served(began.model)
        attributes = _common("invoke_agent", model, began.session, provider=provider)
        attributes |= {"gen_ai.agent.name": "foveal"}
        nobody = self._trace.set_span_in_context(self._trace.INVALID_SPAN)  # a turn outlives who asked for it
        span = self._tracer.start_span("invoke_agent foveal", context=nobody, attributes=attributes)
        self._turns[began.tenant, began.session] = _Turn(self, span, began)
        while len(self._turns) > MOST:
            self._turns.popitem(last=False)[1].given_up()

    def _stored(self, stored: EventsStored) -> None:
        place = stored.tenant, stored.session
        turn = self._turns.get(place)
        for event in stored.events:
            if turn is not None:
                turn.stored(event)
            elif isinstance(event.fact, Used):
                self._used[place] = event.fact
                self._used.move_to_end(place)
        while len(self._used) > MOST:
            self._used.popitem(last=False)

    def _exchanged(self, done: Exchanged) -> None:
        end, used = time_ns(), self._used.pop((done.tenant, done.session), None)
        attributes = _common("chat", done.model, done.session, provider=done.dialect) | {
            "gen_ai.request.stream": done.streamed,
            "foveal.request.tokens": done.tokens,
            "foveal.request.tokens_unreduced": done.whole,
            "foveal.request.overflows_recovered": done.recovered,
            **(_usage(used) if used is not None else {}),
        }
        span = self.span(f"chat {done.model}", attributes, start=end - int(done.seconds * _BILLION))
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


class _Turn:
    """A turn that runs: its span, and what is needed for those of its steps."""

    def __init__(self, tracing: Tracing, span: Any, began: TurnBegan) -> None:
        self._tracing = tracing
        self._span = span
        self._provider, self._model = _served(began.model)
        self._session = began.session
        self._since = time_ns()
        """When the newest step ended: the next one began then."""
        self._names: dict[str, str] = {}
        self._chat: tuple[int, int] | None = None
        """When the model's newest answer began and ended, until its usage is known."""
        self._usage = dict.fromkeys(("input", "output"), 0)

    def stored(self, event: Event) -> None:
        now, fact = time_ns(), event.fact
        if isinstance(fact, ModelSaid):
            self._finish_chat({})
            self._chat = self._since, now
            self._names |= {call.id: call.name for _, call in calls_of(fact.content)}
        elif isinstance(fact, Used):
            self._usage["input"] += fact.prompt
            self._usage["output"] += fact.output
            self._finish_chat(_usage(fact))
        elif isinstance(fact, ToolReturned):
            self._tool(fact, now)
        self._since = now

    def ended(self, done: TurnEnded) -> None:
        self._finish_chat({})
        usage = {f"gen_ai.usage.{kind}_tokens": count for kind, count in self._usage.items()}
        self._span.set_attributes(usage | {"foveal.turn.why": done.why})
        if done.why == "failed":
            self._tracing.fail(self._span, done.problem)
        self._span.end()

    def given_up(self) -> None:
        self._span.end()

    def _finish_chat(self, usage: dict[str, Any]) -> None:
        if self._chat is not None:
            began, ended = self._chat
            attributes = _common("chat", self._model, self._session, provider=self._provider) | usage
            self._tracing.span(f"chat {self._model}", attributes, start=began, parent=self._span).end(ended)
            self._chat = None

    def _tool(self, fact: ToolReturned, now: int) -> None:
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


def _served(model: str) -> tuple[str, str]:
    """Whose a model is, and what they call it."""
    provider, slash, name = model.partition("/")
    return (provider, name) if slash else ("", model)


def _common(operation: str, model: str, session: str, *, provider: str) -> dict[str, Any]:
    return {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": PROVIDERS.get(provider, provider),
        "gen_ai.request.model": model,
        "gen_ai.conversation.id": session,
    }


def _usage(used: Used) -> dict[str, Any]:
    return {
        "gen_ai.usage.input_tokens": used.prompt,
        "gen_ai.usage.output_tokens": used.output,
        "gen_ai.usage.cache_read.input_tokens": used.cache_read,
        "gen_ai.usage.cache_creation.input_tokens": used.cache_write,
    }
