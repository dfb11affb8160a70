"""Headers of the proxy: those it forwards, and the `X-Foveal-…` headers of its responses.

Not forwarded: headers of one connection (hop by hop), cookies, headers that browsers add, and headers of Foveal.
`upstreams` decides which key goes where. All functions are pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from foveal.errors import BudgetExceeded, FovealError
from foveal.server.budgets import budget_header
from foveal.server.proxy.exchange import Exchange
from foveal.web.http_errors import HttpError, http_error_of
from foveal.web.http_headers import Headers, header_value

_HOP_BY_HOP: Final = frozenset(
    {
        b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
        b"trailer", b"transfer-encoding", b"upgrade",
    }
)  # fmt: skip
_NOT_TO_UPSTREAM: Final = _HOP_BY_HOP | {
    b"host", b"content-length", b"accept-encoding", b"cookie", b"origin", b"referer", b"forwarded", b"expect",
    b"authorization", b"x-api-key", b"x-request-id",
}  # fmt: skip
_PREFIXES_NOT_TO_UPSTREAM: Final = (b"x-foveal-", b"sec-", b"x-forwarded-", b"x-real-")
_NOT_TO_CLIENT: Final = _HOP_BY_HOP | {b"content-length", b"set-cookie", b"server", b"date", b"alt-svc"}
_PREFIXES_NOT_TO_CLIENT: Final = (b"x-foveal-", b"access-control-")
"""Only this server sets these; the upstream must not decide which sites may read a response."""
VIA_HEADER: Final = b"x-foveal-via"
"""Marks forwarded requests, so the server recognises a request that it sent to itself."""
MIN_SECRET_CHARS: Final = 16
"""Shorter keys are placeholders for upstreams that need none, and are not removed from responses."""
_MAX_VALUE_CHARS: Final = 200
MAX_HELD_EVENT_BYTES: Final = 1 << 16
"""A longer event is forwarded before it is complete."""
_EVENT_ENDS: Final = (b"\n\n", b"\r\n\r\n", b"\r\r")


def foveal_headers(
    model: str, exchange: Exchange | None, problem: str, *, is_unchanged: bool, budget: str = ""
) -> list[tuple[bytes, bytes]]:
    """Return the headers that say what Foveal did with a request. `problem` is why there is no exchange, or why a
    request that `is_unchanged` was not reduced; `budget` is what is left of the limits that apply."""
    values: dict[bytes, Any] = {b"x-foveal-model": model}
    if budget:
        values[b"x-foveal-budget"] = budget
    if exchange is None:
        values[b"x-foveal-reduced"] = f"none; not managed ({problem})"
    else:
        values[b"x-foveal-session"] = exchange.session_id
        values[b"x-foveal-tokens"] = exchange.tokens
        values[b"x-foveal-whole"] = exchange.unreduced_tokens
        values[b"x-foveal-reduced"] = exchange.reductions
        if is_unchanged and not exchange.reductions:
            values[b"x-foveal-reduced"] = f"none; forwarded unchanged ({problem})"
    return [(name, _safe_value(value)) for name, value in values.items()]


def budget_error(problem: FovealError) -> HttpError:
    """Return the HTTP error for a request that was not reserved; if a budget refuses it, with the header that says
    what is left."""
    error = http_error_of(problem)
    if isinstance(problem, BudgetExceeded):
        error.headers["X-Foveal-Budget"] = budget_header(problem.scope, problem)
    return error


def to_upstream(headers: Headers) -> list[tuple[str, str]]:
    """Return the client's headers for the upstream, without keys."""
    listed = {name.strip().lower() for name in header_value(headers, b"connection").split(b",")}
    return [
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in headers
        if name not in _NOT_TO_UPSTREAM
        and name not in listed
        and not name.startswith(_PREFIXES_NOT_TO_UPSTREAM)
    ]


def without_secret(secret: str, data: bytes) -> bytes:
    """Return data of a response with the server's own key replaced: some upstreams quote it in errors."""
    return data.replace(secret.encode(), b"***") if len(secret) >= MIN_SECRET_CHARS else data


def split_before_secret(secret: str, data: bytes) -> tuple[bytes, bytes]:
    """Return a part of a stream with the server's own key replaced, and the end of it in which the key may begin:
    the next part decides whether it does."""
    cleaned = without_secret(secret, data)
    if len(secret) < MIN_SECRET_CHARS or cleaned.endswith(b"\n"):  # most parts end with an event
        return cleaned, b""
    key = secret.encode()
    lengths = range(min(len(key) - 1, len(cleaned)), 0, -1)
    at = len(cleaned) - next((length for length in lengths if cleaned.endswith(key[:length])), 0)
    return cleaned[:at], cleaned[at:]


def split_after_event(data: bytes) -> tuple[bytes, bytes]:
    """Return the whole events of a part of a stream, and the beginning of the next event, if there is one."""
    end = max(data.rfind(mark) + len(mark) if mark in data else 0 for mark in _EVENT_ENDS)
    return (data[:end], data[end:]) if len(data) - end <= MAX_HELD_EVENT_BYTES else (data, b"")


def to_client(headers: Iterable[tuple[bytes, bytes]], secret: str = "") -> list[tuple[bytes, bytes]]:
    """Return the upstream's headers for the client, with the server's own key replaced."""
    cleaned = [(name.lower(), without_secret(secret, value)) for name, value in headers]
    return [
        (name, value)
        for name, value in cleaned
        if name not in _NOT_TO_CLIENT and not name.startswith(_PREFIXES_NOT_TO_CLIENT)
    ]


def _safe_value(value: object) -> bytes:
    """Return any value as the value of a header: printable ASCII, at most 200 characters."""
    text = str(value)[:_MAX_VALUE_CHARS]
    if not (text.isascii() and text.isprintable()):
        text = "".join(letter if 32 <= ord(letter) < 127 else "?" for letter in text)
    return text.strip().encode()
