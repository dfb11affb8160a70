"""The content of a request, rebuilt from the log: messages, system text and tools.

1. The messages are those that `fit` returned: the view after an event, written by the same code. Each has the keys
   of the messages of the log that it shows.
2. The system text and the tools stand where the client of the dialect puts them. Sessions of Foveal's own agent get
   the tool form and the cache breakpoints of its clients.
3. The log has no event for the dialect. It is that of the agent's provider, or of what the client sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple

import msgspec

from foveal.core.log.events import (
    Dialect,
    Event,
    Instructed,
    ModelSaid,
    Opened,
    Text,
    ToolReturned,
    Used,
    UserSaid,
    extras,
    handle,
    text_of,
    unraw,
)
from foveal.core.view.request import Fitted, render_view
from foveal.core.view.steps import ProviderMessage, Step
from foveal.core.view.view import View
from foveal.core.wire import Wire, detect_dialect, likely_dialect, wire_for
from foveal.errors import BadSetting
from foveal.inspector.timeline.message_text import LogViews, log_until
from foveal.providers.anthropic import add_breakpoints
from foveal.providers.base import anthropic_tools, chat_tools, responses_tools
from foveal.providers.openai_responses import with_item_type
from foveal.providers.selection import SERVICE_ALIASES, SERVICES

REQUEST_DIALECTS: Final[tuple[Dialect, ...]] = (
    "openai_chat",
    "openai_responses",
    "anthropic",
    "gemini",
    "bedrock",
)
_MESSAGES_FIELD: Final = {"openai_responses": "input", "gemini": "contents"}
"""Names of the field with the messages; the other dialects call it `messages`."""
_MODEL_ROLES: Final = frozenset({"assistant", "model"})
_AGENT_TOOLS: Final = {
    "openai_chat": chat_tools,
    "openai_responses": responses_tools,
    "anthropic": anthropic_tools,
}


class RequestContent(NamedTuple):
    """A request before it is described: the messages as JSON values, and what stands beside them."""

    at: int
    dialect: Dialect
    model: str
    messages: list[ProviderMessage]
    keys: list[tuple[str, ...]]
    """For each message, the messages of the log that it shows."""
    system: Any
    """A text, or the blocks that the client sent; None if there is none."""
    tools: list[Any]
    is_agents: bool
    """Whether Foveal's own agent sent it."""

    def body(self) -> dict[str, Any]:
        """Return the body in the order in which providers read it: tools, system text, messages."""
        return _BODIES.get(self.dialect, _plain_body)(self)


def request_content(
    log: Sequence[Event],
    *,
    at: int,
    dialect: str = "",
    views: LogViews | None = None,
    sets_breakpoints: bool = True,
) -> RequestContent:
    """Return the content of the request after event `at`; see `sent_request`. Without `sets_breakpoints`, the marks
    of Foveal's own client are left out."""
    views = LogViews() if views is None else views
    before = log_until(log, at)
    if dialect not in ("", *REQUEST_DIALECTS):
        raise BadSetting("dialect", dialect, f"one of {', '.join(REQUEST_DIALECTS)}")
    with views.at(log, at) as view:
        model, tools = _model_of(before), _tools_of(view)
        is_agents = _is_agents(before, tools)
        chosen = dialect or _used_dialect(log, before, view, tools, model, is_agents=is_agents)
        content = _written(view, wire_for(chosen), keeps_system_beside=not is_agents and bool(tools))
    content = content._replace(at=at, model=model, tools=tools, is_agents=is_agents)
    if not is_agents:
        return content
    convert = _AGENT_TOOLS.get(chosen)
    content = content._replace(tools=content.tools if convert is None else convert(tools))
    if chosen == "openai_responses":
        return content._replace(messages=[with_item_type(item) for item in content.messages])
    if chosen != "anthropic" or not sets_breakpoints:
        return content
    return _with_breakpoints(content, log, before, views)


def _written(view: View, wire: Wire, *, keeps_system_beside: bool) -> RequestContent:
    """Write a view as `Context.fit` does if the client sends a system text of its own, else as `Fitted` does."""
    asides = [shown.fact for shown in view.asides.values() if isinstance(shown.fact, Instructed)]
    is_clients = bool(asides) and (keeps_system_beside or any(fact.dialect for fact in asides))
    system: Any = None
    if is_clients:
        messages, steps = render_view(view, wire)[0], view.steps
        system = _client_system(asides, wire)
        keys = _message_keys(steps, wire, messages)
    elif wire.has_system_beside:
        fitted = Fitted.of(view)
        messages, system = _write_fitted(fitted, wire), fitted.system or None
        leading = next((at for at, step in enumerate(view.steps) if not _is_instruction(step)), None)
        keys = _message_keys([] if leading is None else view.steps[leading:], wire, messages)
    else:
        messages = _write_fitted(Fitted.of(view), wire)
        inlined = [(handle(shown.seq),) for shown in view.asides.values() if _writes_inline(shown.fact, wire)]
        keys = [*inlined, *_message_keys(view.steps, wire, messages[len(inlined) :])]
    return RequestContent(-1, wire.dialect, "", messages, keys, system, [], is_agents=False)


def _write_fitted(fitted: Fitted, wire: Wire) -> list[ProviderMessage]:
    write = {
        "openai_chat": fitted.to_openai,
        "openai_responses": fitted.to_responses,
        "anthropic": fitted.to_anthropic,
        "gemini": fitted.to_gemini,
        "bedrock": fitted.to_bedrock,
    }[wire.dialect]
    return write()


def _is_instruction(step: Step) -> bool:
    return isinstance(step.utterance.fact, Instructed)


def _writes_inline(fact: Any, wire: Wire) -> bool:
    return bool(wire.write(msgspec.structs.replace(fact, aside=False)))


def _client_system(asides: Sequence[Instructed], wire: Wire) -> Any:
    """Return the system text as the client sent it: blocks if it sent blocks."""
    content = asides[0].content
    if len(asides) > 1 or isinstance(content, str) or not all(isinstance(part, Text) for part in content):
        return "\n\n".join(text_of(fact.content) for fact in asides) or None
    kind = {"type": "text"} if wire.dialect == "anthropic" else {}
    return [
        {**kind, "text": part.text, **(extras(part.extra) if wire.dialect == "anthropic" else {})}
        for part in content
        if isinstance(part, Text)
    ]


# ── Keys ──────────────────────────────────────────────────────────────────────────────────────────


def _message_keys(
    steps: Sequence[Step], wire: Wire, joined: Sequence[ProviderMessage]
) -> list[tuple[str, ...]]:
    """Return for each message the keys of what it shows. A dialect joins neighbours of the same role."""
    written = [pair for step in steps for pair in _keyed_messages(step, wire)]
    runs = wire.runs(written, itemgetter(1))
    if len(joined) > len(runs):  # an opening in front of an answer that nothing came before
        roles = [run[0][1].get("role") for run in runs]
        runs.insert(next((at for at, role in enumerate(roles) if role in _MODEL_ROLES), 0), [])
    return [tuple(dict.fromkeys(key for key, _ in run)) for run in runs]


def _keyed_messages(step: Step, wire: Wire) -> Iterator[tuple[str, ProviderMessage]]:
    for key, messages in _by_key([step], wire):
        yield from ((key, message) for message in messages)


class LoggedMessages(NamedTuple):
    """The messages of a request one by one, before a dialect joins neighbours of the same role."""

    opening: list[tuple[str, list[ProviderMessage]]]
    """The system text and the instructions in front of the first other message, by key."""
    others: list[tuple[str, list[ProviderMessage]]]


def messages_one_by_one(view: View, dialect: Dialect) -> LoggedMessages:
    """Return each message of the log that a request shows, as it is written alone."""
    wire = wire_for(dialect).for_thinking(is_bound=view.thinking.is_bound)
    leading = next((at for at, step in enumerate(view.steps) if not _is_instruction(step)), len(view.steps))
    asides = [
        (handle(shown.seq), list(wire.write(msgspec.structs.replace(shown.fact, aside=False))))
        for shown in view.asides.values()
        if isinstance(shown.fact, Instructed)
    ]
    return LoggedMessages(
        [*asides, *_by_key(view.steps[:leading], wire)], list(_by_key(view.steps[leading:], wire))
    )


def _by_key(steps: Sequence[Step], wire: Wire) -> Iterator[tuple[str, list[ProviderMessage]]]:
    for step in steps:
        for key, fact in zip(step_keys(step), step.facts(), strict=True):
            yield key, list(wire.write(fact))


def step_keys(step: Step) -> Iterator[str]:
    """Yield the keys of the messages of a step: the utterance, and one result for each call."""
    seq = step.utterance.seq
    yield handle(seq) if seq >= 0 else f"n{-1 - seq}"
    for place, slot in enumerate(step.all_slots):
        yield f"m{step.seq}.{place}" if slot.result is None else handle(slot.result.seq)


# ── The dialect that was used ─────────────────────────────────────────────────────────────────────


def _model_of(log: Sequence[Event]) -> str:
    return next((event.fact.model for event in reversed(log) if isinstance(event.fact, Opened)), "")


def _tools_of(view: View) -> list[Any]:
    tools = [] if view.tools is None else unraw(view.tools[1].tools)
    return tools if isinstance(tools, list) else []


def _is_agents(log: Sequence[Event], tools: Sequence[Any]) -> bool:
    """Return whether Foveal's own agent has the session: it offers tools in no provider's form, or names its
    folder."""
    if tools:
        return all(isinstance(tool, dict) and "parameters" in tool and "type" not in tool for tool in tools)
    opened = (event.fact for event in log if isinstance(event.fact, Opened))
    return any("folder" in extras(fact.settings) for fact in opened)


def _used_dialect(
    log: Sequence[Event],
    before: Sequence[Event],
    view: View,
    tools: Sequence[Any],
    model: str,
    *,
    is_agents: bool,
) -> Dialect:
    """Return the dialect of the provider for an agent of Foveal, else that of the newest message with one, of the
    tools, or of the first message with one after the request. Many messages are the same in all dialects."""
    newest = _first_dialect(reversed(before))
    known = newest or detect_dialect((), tools=tools) or _first_dialect(iter(log[len(before) :]))
    if is_agents and (own := _service_dialect(model)):
        # A session through OpenAI's Responses API names the same model as one through chat completions.
        is_responses = known == "openai_responses" and service_of(model) == "openai"
        return known if is_responses else own
    system = next(iter(view.asides.values()), None)
    likely = likely_dialect(
        (),
        model=model,
        system=system,
        has_system_message=any(step.kind == "instructed" for step in view.permanent_steps),
    )
    return known or likely or "openai_chat"


def _first_dialect(events: Iterator[Event]) -> Dialect:
    """Return the dialect of the first message with one. A system text beside the messages has none of its own."""
    for event in events:
        fact = event.fact
        if isinstance(fact, UserSaid | ModelSaid | ToolReturned) and fact.dialect:
            return fact.dialect
    return ""


def service_of(model: str) -> str:
    """Return the service that a model's name begins with, as far as it names one."""
    service = model.partition("/")[0].lower()
    return SERVICE_ALIASES.get(service, service)


def _service_dialect(model: str) -> Dialect:
    service = service_of(model)
    if service == "responses":
        return "openai_responses"
    if service == "anthropic":
        return "anthropic"
    return "openai_chat" if service in SERVICES or service == "local" else ""


# ── Cache breakpoints of the agent ────────────────────────────────────────────────────────────────


def _with_breakpoints(
    content: RequestContent, log: Sequence[Event], before: Sequence[Event], views: LogViews
) -> RequestContent:
    previous_at = _previous_request(before)
    previous: list[ProviderMessage] = []
    if previous_at is not None:
        with views.at(log, previous_at) as view:
            previous = _written(view, wire_for("anthropic"), keeps_system_beside=False).messages
    given = {"system": content.system, "tools": content.tools, "messages": content.messages}
    body = add_breakpoints({name: value for name, value in given.items() if value}, previous)
    return content._replace(
        messages=body["messages"], system=body.get("system"), tools=body.get("tools", content.tools)
    )


def _previous_request(before: Sequence[Event]) -> int | None:
    """Return the newest event that the last answered request could show; None before the first answer."""
    for place in range(len(before) - 1, 0, -1):
        if isinstance(before[place].fact, ModelSaid):
            for event in before[place + 1 : place + 4]:
                if isinstance(event.fact, Used) and before[0].seq < event.fact.until <= before[place].seq:
                    return event.fact.until - 1
            return before[place - 1].seq
    return None


# ── The body ──────────────────────────────────────────────────────────────────────────────────────


def _plain_body(content: RequestContent) -> dict[str, Any]:
    """Return the body of OpenAI's and Anthropic's requests."""
    body: dict[str, Any] = {"model": service_model(content.model)}
    if content.tools:
        body["tools"] = content.tools
    if content.system is not None:
        body["instructions" if content.dialect == "openai_responses" else "system"] = content.system
    return {**body, _MESSAGES_FIELD.get(content.dialect, "messages"): content.messages}


def _gemini_body(content: RequestContent) -> dict[str, Any]:
    body: dict[str, Any] = {"tools": content.tools} if content.tools else {}
    if content.system is not None:
        body["systemInstruction"] = {"parts": [{"text": system_text(content.system)}]}
    return {**body, "contents": content.messages}


def system_text(system: Any) -> str:
    """Return the text of a system text, which may be a list of blocks."""
    if system is None or isinstance(system, str):
        return system or ""
    return "\n\n".join(str(block.get("text", "")) for block in system)


def _bedrock_body(content: RequestContent) -> dict[str, Any]:
    body: dict[str, Any] = {"toolConfig": {"tools": content.tools}} if content.tools else {}
    if content.system is not None:
        is_text = isinstance(content.system, str)
        body["system"] = [{"text": content.system}] if is_text else content.system
    return {**body, "messages": content.messages}


_BODIES: Final = {"gemini": _gemini_body, "bedrock": _bedrock_body}


def service_model(model: str) -> str:
    """Return the provider's name of a model: without the service, if it names one."""
    before, slash, after = model.partition("/")
    is_service = slash and (before.lower() in SERVICES or before.lower() in SERVICE_ALIASES)
    return after if is_service else model
