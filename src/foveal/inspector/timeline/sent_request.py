"""The request that was sent after an event, and where it shows the user's statements.

1. The messages, the system text and the tools are those of `request_content`. Sampling parameters, headers and the
   client's own fields are not in the log; `note` says so.
2. `curl` is a command that sends the request. Its address is the provider's, never one from the log, and no text of
   the log is read by the shell.
3. `shown_statements` says of each statement whether it holds or was replaced.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from shlex import quote
from typing import Any, Final
from urllib.parse import quote as quote_url

import msgspec

from foveal.core.engine.user_statements import UserStatement, list_statements, unseen
from foveal.core.log.events import Event, UserSaid, raw
from foveal.core.models.model import DEFAULT_MAX_OUTPUT
from foveal.core.view.fold import effective_events
from foveal.core.view.steps import ProviderMessage
from foveal.core.view.view import View
from foveal.inspector.timeline.message_text import LogViews, log_until
from foveal.inspector.timeline.request_content import (
    REQUEST_DIALECTS,
    RequestContent,
    request_content,
    service_model,
    service_of,
    system_text,
)
from foveal.providers.selection import SERVICES

_HEREDOC_END: Final = "FOVEAL_REQUEST"
_UNKNOWN_FIELDS_NOTE: Final = (
    "The log does not have the sampling parameters, the output limit, the headers and the other fields of the "
    "request."
)
_MARKS_NOTE: Final = (
    "Cache breakpoints are set by the rule of Foveal's client; after a summary they may have been elsewhere."
)
_CLIENT_NOTE: Final = (
    "A client that sends through Foveal sends messages that are shown whole in its own form: fields may have "
    "another order, its cache marks may be elsewhere, and secrets are redacted only in the log."
)


class RequestMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message of a request, in the provider's form."""

    json: str
    """Indented JSON."""
    role: str = ""
    keys: tuple[str, ...] = ()
    """The messages of the log that it shows, by their keys in the timeline."""
    bytes: int = 0
    """Bytes of its compact JSON."""


class InspectedRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request in one dialect."""

    at: int
    """The newest event that it can show."""
    dialect: str
    dialects: tuple[str, ...]
    """All dialects that it can be written in."""
    messages: tuple[RequestMessage, ...] = ()
    system: str = ""
    """The system text beside the messages."""
    tools: str = ""
    """Indented JSON; "" if no tools are offered."""
    bytes: int = 0
    """Bytes of the compact JSON of the body."""
    curl: str = ""
    note: str = ""
    """What can differ from the bytes that were sent."""


def sent_request(
    log: Sequence[Event], *, at: int, dialect: str = "", views: LogViews | None = None
) -> InspectedRequest:
    """Return the request after event `at`, by default in the dialect that was used.

    `views` are those of this log, if the caller keeps them. Raises `UnknownHandle` for an event that the log does
    not have, and `BadSetting` for an unknown dialect.
    """
    content = request_content(log, at=at, dialect=dialect, views=views)
    body = content.body()
    return InspectedRequest(
        at=at,
        dialect=content.dialect,
        dialects=REQUEST_DIALECTS,
        messages=tuple(map(_described, content.messages, content.keys)),
        system=system_text(content.system),
        tools=_indented(content.tools) if content.tools else "",
        bytes=len(raw(body)),
        curl=curl_command(content, body),
        note=_note(content),
    )


def _described(message: ProviderMessage, keys: tuple[str, ...]) -> RequestMessage:
    compact = bytes(raw(message))
    role = message.get("role") or message.get("type") or ""
    return RequestMessage(json=_format(compact), role=str(role), keys=keys, bytes=len(compact))


def _indented(value: Any) -> str:
    return _format(bytes(raw(value)))


def _format(compact: bytes) -> str:
    try:
        return msgspec.json.format(compact, indent=2).decode("utf-8", "replace")
    except msgspec.DecodeError:  # escapes of lone surrogates
        return json.dumps(json.loads(compact), indent=2)


def _note(content: RequestContent) -> str:
    if not content.is_agents:
        return f"{_UNKNOWN_FIELDS_NOTE} {_CLIENT_NOTE}"
    return f"{_UNKNOWN_FIELDS_NOTE} {_MARKS_NOTE}" if content.dialect == "anthropic" else _UNKNOWN_FIELDS_NOTE


# ── A command that sends it ───────────────────────────────────────────────────────────────────────


def curl_command(content: RequestContent, body: dict[str, Any], *, url: str = "") -> str:
    """Return a shell command that sends a body, by default to the provider of the dialect."""
    given, headers = _endpoint(content)
    if content.dialect == "anthropic":
        body = {**body, "max_tokens": DEFAULT_MAX_OUTPUT}  # Anthropic refuses a request without it
    # Only ASCII, without the one control character that JSON allows: a terminal may act on others when pasted.
    text = json.dumps(json.loads(bytes(raw(body)))).replace("\x7f", "\\u007f")
    end = _HEREDOC_END
    while end in text:
        end += "_"
    lines = [f"curl -sS {quote(url or given)}", *(f"-H {header}" for header in headers)]
    command = " \\\n  ".join([*lines, f"--data-binary @- <<'{end}'"])
    return f"{command}\n{text}\n{end}\n"


def _endpoint(content: RequestContent) -> tuple[str, list[str]]:
    """Return the address and the headers, each as a word of the shell; the key is a variable of it."""
    model = quote_url(service_model(content.model), safe="", errors="replace")
    json_type = "'content-type: application/json'"
    match content.dialect:
        case "anthropic":
            headers = ['"x-api-key: $ANTHROPIC_API_KEY"', "'anthropic-version: 2023-06-01'", json_type]
            return f"{SERVICES['anthropic'].url}/v1/messages", headers
        case "gemini":
            address = "https://generativelanguage.googleapis.com/v1beta/models"
            return f"{address}/{model}:generateContent", ['"x-goog-api-key: $GEMINI_API_KEY"', json_type]
        case "bedrock":
            address = "https://bedrock-runtime.us-east-1.amazonaws.com/model"
            return f"{address}/{model}/converse", [
                '"authorization: Bearer $AWS_BEARER_TOKEN_BEDROCK"',
                json_type,
            ]
        case _:
            path = "responses" if content.dialect == "openai_responses" else "chat/completions"
            service = SERVICES.get(service_of(content.model), SERVICES["openai"])
            if service is SERVICES["anthropic"]:
                service = SERVICES["openai"]
            variables = (*service.key_variables, *service.optional_key_variables)
            headers = [f'"authorization: Bearer ${variables[0]}"', json_type]
            return f"{service.url.rstrip('/')}/{path}", headers


# ── Statements of the user ─────────────────────────────────────────────────────────────────────────────


MAX_SHOWN_STATEMENTS: Final = 2_000
"""Statements that a page gets: those that hold and are shown nowhere come first, then the newest."""


class ShownStatements(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the user said up to an event."""

    at: int
    """The newest event of the request that was looked at."""
    statements: tuple[UserStatement, ...] = ()
    """Oldest first."""
    left_out: int = 0
    """Further statements that are not listed."""


def shown_statements(log: Sequence[Event], *, at: int, views: LogViews) -> ShownStatements:
    """Return the statements up to event `at`, and where the request after it shows them. Raises `UnknownHandle`."""
    until = log_until(log, at)
    with views.at(log, at) as view:
        return statements_in(until, view)


def statements_in(log: Sequence[Event], view: View) -> ShownStatements:
    """Return the statements of a log; `view` is the one after its last event."""
    said = [event for event in effective_events(log) if isinstance(event.fact, UserSaid)]
    found = list_statements(said, view)
    listed = found
    if len(found) > MAX_SHOWN_STATEMENTS:
        lost = set(unseen(found))
        places = sorted(range(len(found)), key=lambda place: (found[place] not in lost, -place))
        listed = tuple(found[place] for place in sorted(places[:MAX_SHOWN_STATEMENTS]))
    return ShownStatements(
        at=log[-1].seq if log else -1, statements=listed, left_out=len(found) - len(listed)
    )
