"""Errors of the client libraries: retried, or as `ProviderError` with advice.

1. Both libraries have the same tree of errors, so the same code reads both: it looks at the status, the class names
   and the body.
2. An error about a request that is too long, or about thinking or encrypted content in it, is returned unchanged,
   because `Session.overflowed` reads it.
3. The provider's own message is quoted on one line, without the API key.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping
from typing import Any, Final

from foveal.core.wire.overflow_errors import recognise_overflow, refused_encryption, refused_thinking
from foveal.core.wire.safe_print import one_line
from foveal.errors import ProviderError
from foveal.ports import RetryWait
from foveal.providers.endpoint import ProviderEndpoint

CREDIT_ERROR_CODES: Final = frozenset(
    {"insufficient_quota", "billing_hard_limit_reached", "billing_not_active"}
)
"""Errors of an account that come with status 429, as rate limits do, but do not heal by waiting."""
_STATUS_BY_ERROR_TYPE: Final = {
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "insufficient_quota": 429,
    "api_error": 500,
    "server_error": 500,
    "overloaded_error": 529,
    "timeout_error": 504,
}
"""The status that an error in mid-stream, which has only a type, would have had as a response."""
_LOCAL_OVERFLOW: Final = re.compile(r"rendered prompt is (\d+) tokens; the model context is (\d+)")


def explain(
    error: Exception, endpoint: ProviderEndpoint, model_id: str, *, text: str = "", has_started: bool = False
) -> Exception:
    """Return the error to raise: the same for an overflow and the like, else a `ProviderError`.

    `has_started` says whether a part of the reply had arrived, and `text` is the text in it.
    """
    _add_overflow_numbers(error)
    if isinstance(error, ProviderError) or _is_for_session(error):
        return error
    status = status_of(error)
    if status:
        return _status_error(error, status, endpoint, model_id, text)
    if has_started:
        return interrupted_error(endpoint, text, _message(error, endpoint))
    classes = {kind.__name__ for kind in type(error).__mro__}
    if classes & {"APITimeoutError", "TimeoutException", "TimeoutError"}:
        return ProviderError(
            f"{endpoint.provider} did not answer in time ({endpoint.display_url}): try again, or use a smaller "
            "model",
            code="connection",
        )
    if classes & {"APIConnectionError", "TransportError", "OSError"}:
        return _connection_error(error, endpoint)
    return malformed_error(endpoint, _message(error, endpoint))


def _is_for_session(error: Exception) -> bool:
    """Return whether `Session.overflowed` may make another request of the one that was refused."""
    found = recognise_overflow(error), refused_thinking(error), refused_encryption(error)
    return any(each is not None for each in found)


def interrupted_error(endpoint: ProviderEndpoint, text: str, reason: str = "") -> ProviderError:
    """Return the error for a reply that broke off."""
    because = f" ({reason})" if reason else ""
    when = f"after {len(text):,} characters" if text else "before any text arrived"
    return ProviderError(
        f"the answer of {endpoint.provider} broke off {when}{because}: say “go on”, or send it again",
        code="interrupted",
        partial=text,
    )


def incomplete_stream_error(
    endpoint: ProviderEndpoint, text: str, *, has_started: bool, content_type: str
) -> ProviderError:
    """Return the error for a stream that ended before the end of the reply."""
    if not has_started and not content_type.startswith("text/event-stream"):
        return malformed_error(endpoint, f"content type: {content_type or 'none'}")
    return interrupted_error(endpoint, text)


def malformed_error(endpoint: ProviderEndpoint, reason: str) -> ProviderError:
    """Return the error for a response that is not an answer of the API."""
    return ProviderError(
        f"the response of {endpoint.provider} is not an answer ({reason}): is {endpoint.display_url} the address "
        "of its API?",
        code="server",
    )


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that a provider asks to wait before a retry, None if it does not say."""
    for name, per_second in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) / per_second
        except ValueError:
            continue
        if math.isfinite(seconds) and seconds >= 0:
            return seconds
    return None


def _add_overflow_numbers(error: Any) -> None:
    """Copy the numbers in the local server's overflow message to the attributes that `Session.overflowed` reads."""
    found = _LOCAL_OVERFLOW.search(str(error))
    if found is not None and getattr(error, "status_code", 0) == 400:
        error.code = "exceed_context_size_error"
        error.n_prompt_tokens, error.n_ctx = int(found[1]), int(found[2])


def status_of(error: Exception) -> int:
    """Return the HTTP status of an error, 0 if it has none."""
    status = getattr(error, "status_code", None)
    if isinstance(status, int) and status >= 400:
        return status
    body = _error_body(error)
    types = {body.get("type"), body.get("code"), getattr(error, "type", None)}
    known = (_STATUS_BY_ERROR_TYPE.get(name, 0) for name in types if isinstance(name, str))
    return next(filter(None, known), 0)


def is_out_of_credit(error: Exception) -> bool:
    """Return whether the account has no credit left."""
    body = _error_body(error)
    return any(code in (body.get("code"), body.get("type")) for code in CREDIT_ERROR_CODES)


def _error_body(error: Exception) -> Mapping[str, Any]:
    """Return the innermost object of the error's body."""
    body: Any = getattr(error, "body", None)
    while isinstance(body, Mapping) and isinstance(body.get("error"), Mapping):
        body = body["error"]
    return body if isinstance(body, Mapping) else {}


def _message(error: Exception, endpoint: ProviderEndpoint) -> str:
    """Return the message of the provider or the library on one line, without the key."""
    message = _error_body(error).get("message") or getattr(error, "message", None) or str(error)
    if not isinstance(message, str) or not message.strip():
        message = type(error).__name__
    return endpoint.key.redact(one_line(message, width=300)).rstrip(". ")


def _status_error(
    error: Exception, status: int, endpoint: ProviderEndpoint, model_id: str, text: str
) -> ProviderError:
    provider = endpoint.provider
    match status:
        case 401:
            return _key_error(endpoint)
        case 403:
            variable = endpoint.key_variable
            reason = f"the key in {variable} may not use it" if variable else _message(error, endpoint)
            return ProviderError(f"{provider} refuses {model_id} (403): {reason}", code="key", partial=text)
        case 404:
            return ProviderError(
                f"{provider} has no model {model_id!r} at {endpoint.display_url} (404): check its name, or the "
                "address",
                code="refused",
            )
        case 429:
            return _rate_error(error, endpoint, text)
        case _ if status >= 500 or status == 408:
            return ProviderError(
                f"{provider} reported a server error ({status}: {_message(error, endpoint)}): try "
                "again later, or use another model",
                code="server",
                partial=text,
            )
        case _:
            return ProviderError(
                f"{provider} refused the request ({status}): {_message(error, endpoint)}",
                code="refused",
                partial=text,
            )


def _key_error(endpoint: ProviderEndpoint) -> ProviderError:
    if not endpoint.key:
        advice = f"set {endpoint.key_variable}" if endpoint.key_variable else "it needs a key"
        return ProviderError(f"{endpoint.provider} got no key (401): {advice}", code="key")
    return ProviderError(
        f"{endpoint.provider} does not accept the key in {endpoint.key_variable} (401): check it, or unset it and "
        "choose another model",
        code="key",
    )


def _rate_error(error: Exception, endpoint: ProviderEndpoint, text: str) -> ProviderError:
    if is_out_of_credit(error):
        return ProviderError(
            f"the account at {endpoint.provider} has no credit left (429): add credit, or choose another model",
            code="rate",
            partial=text,
        )
    wait = retry_after_s(getattr(getattr(error, "response", None), "headers", {}))
    advice = f"wait {wait:,.0f} s and try again" if wait else "wait a minute and try again"
    return ProviderError(
        f"{endpoint.provider} limits the rate of requests (429: {_message(error, endpoint)}): {advice}",
        code="rate",
        partial=text,
    )


def _connection_error(error: Exception, endpoint: ProviderEndpoint) -> ProviderError:
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    reason = endpoint.key.redact(one_line(str(cause) or type(cause).__name__, width=200))
    advice = "is its server running?" if endpoint.is_local else "check the network, the proxy and the address"
    return ProviderError(
        f"{endpoint.provider} cannot be reached at {endpoint.display_url} ({reason}): {advice}",
        code="connection",
    )


# ── Retries ───────────────────────────────────────────────────────────────────────────────────────
# Only a request without any part of an answer is retried. The client libraries retry nothing: their retries are
# silent, and they retry errors that cannot heal.

MAX_RETRIES: Final = 4
"""Retries after a failed connection, a rate limit or a server error."""
MAX_RETRY_WAIT_S: Final = 30.0
"""Longest wait before a retry."""
FIRST_RETRY_WAIT_S: Final = 1.0
RETRIED_STATUSES: Final = frozenset({408, 409, 429})
"""Statuses that may heal, beside those of server errors (500 and above)."""


def retry_wait(error: Exception, attempt: int) -> RetryWait | None:
    """Return the wait after a failed attempt, counted from 1; None if the error is to be reported.

    The wait is what the provider asks for, else it doubles from `FIRST_RETRY_WAIT_S`. If the provider asks for
    more than `MAX_RETRY_WAIT_S`, the error is reported instead."""
    reason = _healing_reason(error)
    if not reason or attempt > MAX_RETRIES:
        return None
    headers = getattr(getattr(error, "response", None), "headers", {})
    asked = retry_after_s(headers)
    if headers.get("x-should-retry") == "false" or (asked is not None and asked > MAX_RETRY_WAIT_S):
        return None
    # A random part, so that clients that failed together do not come back together.
    seconds = (
        asked if asked is not None else FIRST_RETRY_WAIT_S * 2 ** (attempt - 1) * random.uniform(0.75, 1)
    )
    return RetryWait(reason=reason, seconds=seconds, attempt=attempt + 1, attempts=MAX_RETRIES + 1)


def _healing_reason(error: Exception) -> str:
    """Return in words what has failed, "" for an error that does not heal by waiting."""
    status = status_of(error)
    if status == 429:
        return "" if is_out_of_credit(error) else "rate limited (429)"
    if status in RETRIED_STATUSES or status >= 500:
        return f"overloaded ({status})" if status in (503, 529) else f"server error ({status})"
    return "no connection" if not status and _is_connection_error(error) else ""


def _is_connection_error(error: Any) -> bool:
    """Whether no connection was made or it was lost; a server that is silent for too long is not asked again."""
    classes = {kind.__name__ for kind in type(error).__mro__}
    if "APITimeoutError" in classes:
        return type(error.__cause__).__name__ == "ConnectTimeout"
    return "APIConnectionError" in classes
