"""HTTP errors, written in the format that the client of the path expects.

`/v1/messages…` uses Anthropic's error format, the rest of `/v1` and the inspector OpenAI's, and all other paths
`application/problem+json` (RFC 9457).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

import msgspec
from starlette.responses import Response

from foveal.errors import (
    AgentRemoved,
    AnsweredElsewhere,
    BadSetting,
    BudgetExceeded,
    Busy,
    Conflict,
    ContextOverflow,
    FovealError,
    KeyReused,
    MalformedMessage,
    NotCompacted,
    NotDropped,
    NothingToAsk,
    NotRemembered,
    PicklableError,
    ProviderError,
    SessionExists,
    StoreError,
    UnknownHandle,
    UnknownSession,
)

ErrorFormat: TypeAlias = Literal["problem", "openai", "responses", "anthropic"]
"""`problem` is `application/problem+json`; `responses` differs from `openai` in the events of a stream only."""

TITLES: Final[Mapping[int, str]] = MappingProxyType(
    {
        400: "Bad request",
        401: "No token",
        403: "Not allowed",
        404: "Not found",
        405: "Method not allowed",
        408: "Request timed out",
        409: "Conflict",
        413: "Too large",
        415: "Not JSON",
        421: "Wrong host",
        422: "Not possible",
        426: "No websockets",
        429: "Too many requests",
        431: "Headers too large",
        500: "Internal error",
        501: "Not available",
        502: "The provider failed",
        503: "Not available now",
        504: "The provider is silent",
    }
)
_ANTHROPIC_TYPES: Final[Mapping[int, str]] = MappingProxyType(
    {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        413: "request_too_large",
        429: "rate_limit_error",
        503: "overloaded_error",
        504: "timeout_error",
    }
)
MAX_ANNOUNCED_WAIT_S: Final = 60.0
"""The longest `Retry-After` of a budget: the libraries of OpenAI and Anthropic wait no longer, agents for weeks."""
_OPENAI_TYPES: Final[Mapping[str, str]] = MappingProxyType({"budget_exceeded": "insufficient_quota"})
"""OpenAI's own word by our code: Codex ends at this one at once."""
_OPENAI_CODES: Final[Mapping[int, str]] = MappingProxyType(
    {401: "invalid_api_key", 404: "not_found", 413: "request_too_large", 429: "rate_limit_exceeded"}
)


class HttpError(PicklableError, Exception):
    """A request that the server refuses; the client sees `detail`."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        title: str = "",
        code: str = "",
        headers: Mapping[str, str] | None = None,
        members: Mapping[str, Any] | None = None,
        about: str = "",
    ) -> None:
        """`code` is the machine-readable name; `members` are further members of a problem document. `about` is what
        the request was about, as the audit trail names it; the client does not see it."""
        super().__init__(detail)
        self.status = status
        self.title: str = title or TITLES.get(status, "Refused")
        self.detail = detail
        self.code = code
        self.headers: dict[str, str] = dict(headers or {})
        self.members: dict[str, Any] = dict(members or {})
        self.about = about


def http_error_of(problem: FovealError) -> HttpError:
    """Return the HTTP error for an error of the library."""
    detail = str(problem)
    match problem:
        case ContextOverflow():
            members = {
                name: getattr(problem, name)
                for name in ("needed", "available", "window", "reserve", "margin", "floor")
            }
            return HttpError(413, detail, code="context_length_exceeded", members=members)
        case BudgetExceeded():
            return _budget_error(problem)
        case UnknownSession():
            return HttpError(404, f"there is no session {problem.session!r}", code="unknown_session")
        case UnknownHandle():
            return HttpError(404, detail, code="unknown_handle")
        case SessionExists():
            return HttpError(409, detail, code="session_exists")
        case Busy():
            return HttpError(409, detail, code="busy")
        case AgentRemoved():
            return HttpError(409, detail, code="agent_removed", members={"agent": problem.agent})
        case AnsweredElsewhere():
            return HttpError(409, detail, code="answered_elsewhere")
        case KeyReused():
            return HttpError(409, detail, code="key_reused")
        case NothingToAsk():
            return HttpError(409, detail, code="nothing_to_ask")
        case Conflict():
            return HttpError(409, detail, code="conflict")
        case NotCompacted():
            return HttpError(409, detail, code="not_compacted", members={"floor": problem.floor})
        case NotDropped():
            return HttpError(409, detail, code="not_dropped")
        case NotRemembered():
            return HttpError(400, detail, code="not_remembered")
        case MalformedMessage():
            members = {"index": problem.index, "field": problem.field}
            return HttpError(400, detail, code="malformed_message", members=members)
        case BadSetting():
            return HttpError(400, detail, code="bad_setting", members={"field": problem.field})
        case ProviderError():
            return _provider_error(problem)
        case StoreError():
            message = "the store cannot be read or written now; the server's log has the reason"
            return HttpError(503, message, code="store", headers={"Retry-After": "5"})
    return HttpError(500, detail, code=_snake_case(problem))


def revoked_error() -> HttpError:
    """Return the error that ends a response whose token is revoked while it is sent."""
    return HttpError(
        401, "this token was revoked: the rest of the response is not sent", code="token_revoked"
    )


_PROVIDER_STATUSES: Final[Mapping[str, int]] = MappingProxyType({"rate": 503, "connection": 504})


def _provider_error(problem: ProviderError) -> HttpError:
    status = _PROVIDER_STATUSES.get(problem.code, 502)
    headers = {"Retry-After": "10"} if status == 503 else None
    return HttpError(status, str(problem), code=f"provider_{problem.code or 'error'}", headers=headers)


def _budget_error(problem: BudgetExceeded) -> HttpError:
    """Return the error for a request that would exceed a limit. `Retry-After` is set for short waits only, because
    coding agents wait in silence for as long as it says; `x-should-retry` keeps the libraries of OpenAI and
    Anthropic from sending the request again at once, which would be in vain."""
    headers = {"x-should-retry": "false"}
    if problem.estimate is None:
        return HttpError(403, str(problem), code="price_unknown", headers=headers)
    if problem.wait_s is not None and problem.wait_s <= MAX_ANNOUNCED_WAIT_S:
        headers = {"Retry-After": str(max(1, math.ceil(problem.wait_s)))}
    members = {
        name: getattr(problem, name) for name in ("limit", "unit", "spent", "left", "estimate", "until")
    }
    return HttpError(429, str(problem), code="budget_exceeded", headers=headers, members=members)


def _snake_case(problem: Exception) -> str:
    """Return the class name of an error in snake case: `TooLarge` becomes `too_large`."""
    name = type(problem).__name__
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")


# ── Error formats ────────────────────────────────────────────────────────────────────────────────────────


def error_format(path: str) -> ErrorFormat:
    """Return the error format of a path."""
    if path == "/v1/messages" or path.startswith("/v1/messages/"):
        return "anthropic"
    if path == "/v1/responses" or path.startswith("/v1/responses/"):
        return "responses"
    return "openai" if path == "/v1" or path.startswith(("/v1/", "/inspect/")) else "problem"


def error_body(error: HttpError, format: ErrorFormat) -> dict[str, Any]:
    """Return the body of an error response."""
    if format == "anthropic":
        error_type = _ANTHROPIC_TYPES.get(
            error.status, "invalid_request_error" if error.status < 500 else "api_error"
        )
        return {"type": "error", "error": {"type": error_type, "message": error.detail}}
    if format in ("openai", "responses"):
        error_type = _OPENAI_TYPES.get(
            error.code, "invalid_request_error" if error.status < 500 else "server_error"
        )
        code = error.code or _OPENAI_CODES.get(error.status)
        return {"error": {"message": error.detail, "type": error_type, "param": None, "code": code}}
    return {
        "type": f"urn:foveal:{error.code}" if error.code else "about:blank",
        "title": error.title,
        "status": error.status,
        "detail": error.detail,
        **error.members,
    }


def error_response(error: HttpError, format: ErrorFormat) -> Response:
    """Return the response to a refused request."""
    media = "application/problem+json" if format == "problem" else "application/json"
    return Response(
        encode_json(error_body(error, format)),
        status_code=error.status,
        headers=error.headers,
        media_type=media,
    )


def stream_error_event(error: HttpError, format: ErrorFormat, *, number: int = 0) -> bytes:
    """Return the server-sent event that ends a stream with an error; `number` is that of the event, where an API
    counts them.

    The blank line in front ends an event that may have been cut in the middle.
    """
    name = "event: error\n" if format != "openai" else ""
    body = error_body(error, format)
    if (
        format == "responses"
    ):  # documented flat, and sent with the member `error`, which client libraries look for
        fields = {key: body["error"][key] for key in ("code", "message", "param")}
        body = {"type": "error", "sequence_number": number, **fields, **body}
    return f"\n\n{name}data: ".encode() + encode_json(body) + b"\n\n"


def encode_json(value: Any) -> bytes:
    """Return a value as JSON; lone surrogates, which UTF-8 cannot hold, are replaced."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_without_lone_surrogates(value))


def _without_lone_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return (
        {name: _without_lone_surrogates(inner) for name, inner in value.items()}
        if isinstance(value, dict)
        else value
    )
