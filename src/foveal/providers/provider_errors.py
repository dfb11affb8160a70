"""What went wrong with a request, told so that its reader knows what to do.

Both client libraries have the same tree of errors, so one reader serves both: it looks at the status, at the names
of the classes, and at the body. An error that says the request was too large is left as it is, because
`Session.overflowed` reads it. What a provider said is quoted on one line, without the key.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final

from foveal.core.wire.overflow_errors import recognise
from foveal.core.wire.safe_print import one_line
from foveal.errors import ProviderError
from foveal.providers.endpoint import Endpoint

TRIES: Final = 3
"""Retries of a request that could not be connected, came too often, or met a fault of the server."""
PATIENCE: Final = 30.0
"""Seconds that a retry waits at the most; a provider that asks for more is reported instead."""

_STATUS: Final = {
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
"""What an error in mid-stream calls itself, as the status that it would have had."""
_TOO_LONG: Final = re.compile(r"rendered prompt is (\d+) tokens; the model context is (\d+)")


def explained(
    error: Exception, place: Endpoint, model: str, *, said: str = "", began: bool = False
) -> Exception:
    """The error to raise: the same one for an overflow, else a `ProviderError`. `began` tells that a part of the
    answer had come, and `said` what of it was text."""
    _number(error)
    if isinstance(error, ProviderError) or recognise(error) is not None:
        return error
    status = _status(error)
    if status:
        return _refused(error, status, place, model, said)
    if began:
        return interrupted(place, said, _words(error, place))
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if kinds & {"APITimeoutError", "TimeoutException", "TimeoutError"}:
        return ProviderError(
            f"{place.provider} did not answer in time ({place.address}): try again, or a smaller model",
            code="connection",
        )
    if kinds & {"APIConnectionError", "TransportError", "OSError"}:
        return _unreachable(error, place)
    return malformed(place, _words(error, place))


def interrupted(place: Endpoint, said: str, why: str = "") -> ProviderError:
    """The answer broke off."""
    reason = f" ({why})" if why else ""
    heard = f"after {len(said):,} characters" if said else "before any text came"
    return ProviderError(
        f"the answer of {place.provider} broke off {heard}{reason}: say “go on”, or send it again",
        code="interrupted",
        partial=said,
    )


def broken_off(place: Endpoint, said: str, *, began: bool, kind: str) -> ProviderError:
    """A stream that ended without the end of the answer; `kind` is its content type."""
    if not began and not kind.startswith("text/event-stream"):
        return malformed(place, f"its type is {kind or 'not said'}")
    return interrupted(place, said)


def malformed(place: Endpoint, why: str) -> ProviderError:
    """What came is not an answer."""
    return ProviderError(
        f"{place.provider} sent what is not an answer ({why}): is {place.address} the address of its API?",
        code="server",
    )


def wait_of(headers: Mapping[str, str]) -> float | None:
    """Seconds after which a provider wants to be asked again."""
    for name, share in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) / share
        except ValueError:
            continue
        if math.isfinite(seconds) and seconds >= 0:
            return seconds
    return None


def _number(error: Any) -> None:
    """Give a refusal of our local server its numbers where `Session.overflowed` finds them, not in prose only."""
    found = _TOO_LONG.search(str(error))
    if found is not None and getattr(error, "status_code", 0) == 400:
        error.code = "exceed_context_size_error"
        error.n_prompt_tokens, error.n_ctx = int(found[1]), int(found[2])


def _status(error: Exception) -> int:
    status = getattr(error, "status_code", None)
    if isinstance(status, int) and status >= 400:
        return status
    named = {_inner(error).get("type"), _inner(error).get("code"), getattr(error, "type", None)}
    return next((_STATUS[name] for name in named if isinstance(name, str) and name in _STATUS), 0)


def _inner(error: Exception) -> Mapping[str, Any]:
    """The innermost object of an error's body."""
    body: Any = getattr(error, "body", None)
    while isinstance(body, Mapping) and isinstance(body.get("error"), Mapping):
        body = body["error"]
    return body if isinstance(body, Mapping) else {}


def _words(error: Exception, place: Endpoint) -> str:
    """What the provider or the library says, on one line, without the key."""
    told = _inner(error).get("message") or getattr(error, "message", None) or str(error)
    if not isinstance(told, str) or not told.strip():
        told = type(error).__name__
    return place.key.scrub(one_line(told, width=300)).rstrip(". ")


def _refused(error: Exception, status: int, place: Endpoint, model: str, said: str) -> ProviderError:
    match status:
        case 401:
            return _wrong_key(place)
        case 403:
            told = f"the key in {place.variable} may not use it" if place.variable else _words(error, place)
            return ProviderError(f"{place.provider} refuses {model} (403): {told}", code="key", partial=said)
        case 404:
            return ProviderError(
                f"{place.provider} has no model {model!r} at {place.address} (404): check its name, or the address",
                code="refused",
            )
        case 429:
            return _too_often(error, place, said)
        case _ if status >= 500 or status == 408:
            return ProviderError(
                f"{place.provider} has a fault of its own ({status}: {_words(error, place)}); it was tried "
                f"{TRIES + 1} times: try again later, or another model",
                code="server",
                partial=said,
            )
        case _:
            return ProviderError(
                f"{place.provider} refused the request ({status}): {_words(error, place)}",
                code="refused",
                partial=said,
            )


def _wrong_key(place: Endpoint) -> ProviderError:
    if not place.key:
        wanted = f"set {place.variable}" if place.variable else "it wants a key"
        return ProviderError(f"{place.provider} was asked without a key (401): {wanted}", code="key")
    return ProviderError(
        f"{place.provider} does not accept the key in {place.variable} (401): check it, or unset it and choose "
        "another model",
        code="key",
    )


def _too_often(error: Exception, place: Endpoint, said: str) -> ProviderError:
    if "insufficient_quota" in (_inner(error).get("code"), _inner(error).get("type")):
        problem = (
            f"the account at {place.provider} has no credit left (429): add some, or choose another model"
        )
        return ProviderError(problem, code="rate", partial=said)
    wait = wait_of(getattr(getattr(error, "response", None), "headers", {}))
    when = f"wait {wait:,.0f} s and try again" if wait else "wait a minute and try again"
    return ProviderError(
        f"{place.provider} was asked too often (429: {_words(error, place)}): {when}",
        code="rate",
        partial=said,
    )


def _unreachable(error: Exception, place: Endpoint) -> ProviderError:
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    why = place.key.scrub(one_line(str(cause) or type(cause).__name__, width=200))
    todo = "is its server running?" if place.here else "check the network, the proxy and the address"
    return ProviderError(
        f"{place.provider} cannot be reached at {place.address} ({why}): {todo}", code="connection"
    )
