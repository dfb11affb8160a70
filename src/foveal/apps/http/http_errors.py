"""How the server says no: one exception, written in the language of whoever asked.

`/v1/messages…` answers as Anthropic does, the rest of `/v1` as OpenAI does, and everything else with
`application/problem+json` (RFC 9457), so that a client finds an error where it looks for one.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

import msgspec
from starlette.responses import Response

from foveal.errors import (
    AnsweredElsewhere,
    BadSetting,
    Busy,
    Conflict,
    ContextOverflow,
    FovealError,
    MalformedMessage,
    NotCompacted,
    NothingToAsk,
    ProviderError,
    SessionExists,
    StoreError,
    UnknownHandle,
    UnknownSession,
)

Face: TypeAlias = Literal["problem", "openai", "anthropic"]

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
        429: "Too many requests",
        431: "Headers too large",
        500: "Internal error",
        501: "Not available",
        502: "The provider failed",
        503: "Not available now",
        504: "The provider is silent",
    }
)
_ANTHROPIC: Final[Mapping[int, str]] = MappingProxyType(
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
_OPENAI_CODES: Final[Mapping[int, str]] = MappingProxyType(
    {401: "invalid_api_key", 404: "not_found", 413: "request_too_large", 429: "rate_limit_exceeded"}
)


class HttpError(Exception):
    """A request that is not carried out; what is said about it is for the caller's eyes."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        title: str = "",
        code: str = "",
        headers: Mapping[str, str] | None = None,
        numbers: Mapping[str, Any] | None = None,
    ) -> None:
        """`code` is a short name of the problem for programs; `numbers` are further members of a problem."""
        super().__init__(detail)
        self.status = status
        self.title = title or TITLES.get(status, "Refused")
        self.detail = detail
        self.code = code
        self.headers = dict(headers or {})
        self.numbers = dict(numbers or {})


def http_error_of(problem: FovealError) -> HttpError:
    """What an error of ours means for a client."""
    detail = str(problem)
    match problem:
        case ContextOverflow():
            numbers = {
                name: getattr(problem, name)
                for name in ("needed", "available", "window", "reserve", "margin", "floor")
            }
            return HttpError(413, detail, code="context_length_exceeded", numbers=numbers)
        case UnknownSession():
            return HttpError(404, f"there is no session {problem.session!r}", code="unknown_session")
        case UnknownHandle():
            return HttpError(404, detail, code="unknown_handle")
        case SessionExists():
            return HttpError(409, detail, code="session_exists")
        case Busy():
            return HttpError(409, detail, code="busy")
        case AnsweredElsewhere():
            return HttpError(409, detail, code="answered_elsewhere")
        case NothingToAsk():
            return HttpError(409, detail, code="nothing_to_ask")
        case Conflict():
            return HttpError(409, detail, code="conflict")
        case NotCompacted():
            return HttpError(409, detail, code="not_compacted", numbers={"floor": problem.floor})
        case MalformedMessage():
            numbers = {"index": problem.index, "field": problem.field}
            return HttpError(400, detail, code="malformed_message", numbers=numbers)
        case BadSetting():
            return HttpError(400, detail, code="bad_setting", numbers={"field": problem.field})
        case ProviderError():
            return _provider(problem)
        case StoreError():
            told = "what is stored cannot be read or written now; the server's log says why"
            return HttpError(503, told, code="store", headers={"Retry-After": "5"})
    return HttpError(500, detail, code=_name(problem))


_PROVIDER: Final[Mapping[str, int]] = MappingProxyType({"rate": 503, "connection": 504})


def _provider(problem: ProviderError) -> HttpError:
    status = _PROVIDER.get(problem.code, 502)
    headers = {"Retry-After": "10"} if status == 503 else None
    return HttpError(status, str(problem), code=f"provider_{problem.code or 'error'}", headers=headers)


def _name(problem: Exception) -> str:
    """`TooLarge` as `too_large`."""
    name = type(problem).__name__
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")


# ── in whose language ────────────────────────────────────────────────────────────────────────────────────


def face_of(path: str) -> Face:
    """In whose shape the client of this path expects an error."""
    if path == "/v1/messages" or path.startswith("/v1/messages/"):
        return "anthropic"
    return "openai" if path == "/v1" or path.startswith("/v1/") else "problem"


def written(refusal: HttpError, face: Face) -> dict[str, Any]:
    """The body of a refusal."""
    if face == "anthropic":
        error_type = _ANTHROPIC.get(
            refusal.status, "invalid_request_error" if refusal.status < 500 else "api_error"
        )
        return {"type": "error", "error": {"type": error_type, "message": refusal.detail}}
    if face == "openai":
        error_type = "invalid_request_error" if refusal.status < 500 else "server_error"
        code = refusal.code or _OPENAI_CODES.get(refusal.status)
        return {"error": {"message": refusal.detail, "type": error_type, "param": None, "code": code}}
    return {
        "type": f"urn:foveal:{refusal.code}" if refusal.code else "about:blank",
        "title": refusal.title,
        "status": refusal.status,
        "detail": refusal.detail,
        **refusal.numbers,
    }


def answer(refusal: HttpError, face: Face) -> Response:
    """The whole answer to a request that is refused."""
    media = "application/problem+json" if face == "problem" else "application/json"
    return Response(
        encoded(written(refusal, face)),
        status_code=refusal.status,
        headers=refusal.headers,
        media_type=media,
    )


def last_words(refusal: HttpError, face: Face) -> bytes:
    """The event that ends a stream which cannot go on: after it nothing follows. The blank line in front ends an
    event that may have been cut."""
    name = "event: error\n" if face != "openai" else ""
    return f"\n\n{name}data: ".encode() + encoded(written(refusal, face)) + b"\n\n"


def encoded(value: Any) -> bytes:
    """JSON, whatever a text may contain: half a surrogate pair is written as U+FFFD."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_cleaned(value))


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return {name: _cleaned(inner) for name, inner in value.items()} if isinstance(value, dict) else value
