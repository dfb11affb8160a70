"""Request and response headers: size limits, Host and Origin checks, tokens, security headers.

All functions are pure and work on headers as ASGI has them.

`RequestChecks` checks a request before any handler sees it:

1. Host names this server, and the request is not sent by a page of another site (Origin, Sec-Fetch-Site).
2. The headers are of bounded size; the bytes of the body are counted as they arrive, whatever Content-Length says.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from ipaddress import ip_address
from typing import Final, TypeAlias

from starlette.types import Message, Receive

from foveal.web.http_errors import HttpError

Headers: TypeAlias = Sequence[tuple[bytes, bytes]]
"""Headers as ASGI has them: names in lower case."""

TOKEN_PREFIX: Final = "fv_"
"""Start of every secret of a token, so that a token and a provider's key are never mistaken for each other."""
MAX_HEADERS: Final = 200
"""Headers in one request."""
MAX_HEADER_BYTES: Final = 64 * 1024
"""Bytes of all header names and values of one request together."""
SECURITY_HEADERS: Final[Headers] = (
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
)
PAGE_SECURITY_HEADERS: Final[Headers] = (
    (b"x-content-type-options", b"nosniff"),
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        b"base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    ),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"same-origin"),
)
"""For pages that run scripts of this server, and load nothing from elsewhere. With `no-referrer`, a browser would
send their forms with `Origin: null`, as those of other sites."""
NO_STORE: Final = (b"cache-control", b"no-store")
_SECURITY_HEADER_NAMES: Final = frozenset(name for name, _ in SECURITY_HEADERS)
MAX_CACHED_HOSTS: Final = 64
"""Host names for which it is kept whether they are loopback: parsing an address takes longer than most checks."""
REQUEST_LINE_HOST: Final = b":authority"
"""The host that a request line names beside another one in the Host header; no client can send this header."""
_VALID_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_PORT: Final = re.compile(r":\d{0,5}$")


def header_values(headers: Headers, name: bytes) -> list[bytes]:
    """Return all values of a header, in order."""
    return [value for found, value in headers if found == name]


def header_value(headers: Headers, name: bytes) -> bytes:
    """Return the first value of a header, or b"" if it is absent."""
    return next((value for found, value in headers if found == name), b"")


def headers_too_large(headers: Headers) -> bool:
    """Return whether the headers exceed `MAX_HEADERS` or `MAX_HEADER_BYTES`."""
    return (
        len(headers) > MAX_HEADERS
        or sum(len(name) + len(value) for name, value in headers) > MAX_HEADER_BYTES
    )


# ── Origin of a request ──────────────────────────────────────────────────────────────────────────────────


@lru_cache(maxsize=MAX_CACHED_HOSTS)
def is_loopback(host: str) -> bool:
    """Return whether a host name or address is the loopback interface of this machine."""
    name = host.lower().rstrip(".").strip("[]")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def host_of(headers: Headers) -> str:
    """Return the Host header without the port; "" unless there is exactly one Host header."""
    hosts = header_values(headers, b"host")
    return _PORT.sub("", hosts[0].decode("latin-1").strip()).lower() if len(hosts) == 1 else ""


def is_ip_address(host: str) -> bool:
    """Return whether a host is a numeric IP address, which DNS cannot redirect."""
    try:
        return bool(ip_address(host.strip("[]")))
    except ValueError:
        return False


def is_allowed_host(host: str, names: Iterable[str], *, addresses: bool = False) -> bool:
    """Return whether a Host value is loopback or one of the configured `names` ("*" allows every host).

    The check stops DNS rebinding: a web page whose domain resolves to this machine sends its own name as Host.
    `addresses` also allows every numeric address, for servers that listen on more than loopback.
    """
    return bool(host) and (
        is_loopback(host)
        or any(name in ("*", host) for name in map(str.lower, names) if name)
        or (addresses and is_ip_address(host))
    )


def is_cross_site(headers: Headers) -> bool:
    """Return whether a browser sends the request for a page of another site.

    Only browsers send `Sec-Fetch-Site` and `Origin`, so requests of other programs pass.
    """
    if header_value(headers, b"sec-fetch-site").lower() in (b"cross-site", b"same-site"):
        return True
    origins = header_values(headers, b"origin")
    if not origins:
        return False
    _, _, origin = origins[0].partition(b"://")
    return len(origins) > 1 or origin.lower() != header_value(headers, b"host").lower()


def token_of(headers: Headers) -> str:
    """Return the Foveal token of a request, or "" if it has none.

    `X-Foveal-Token` comes first. `Authorization` and `X-Api-Key` count only if their value starts with the
    prefix of Foveal tokens, because clients put a provider's key there.
    """
    if token := header_value(headers, b"x-foveal-token"):
        return token.decode("latin-1").strip()
    scheme, _, credentials = header_value(headers, b"authorization").decode("latin-1").strip().partition(" ")
    bearer = credentials.strip() if scheme.lower() == "bearer" else ""
    for secret in (bearer, header_value(headers, b"x-api-key").decode("latin-1").strip()):
        if secret.startswith(TOKEN_PREFIX):
            return secret
    return ""


def request_id(headers: Headers) -> str:
    """Return the client's `X-Request-Id`, or "" if it is absent or not 1 to 64 of A-Z a-z 0-9 . _ -."""
    given = header_value(headers, b"x-request-id")
    return given.decode("ascii") if _VALID_REQUEST_ID.fullmatch(given) else ""


# ── Response headers ─────────────────────────────────────────────────────────────────────────────────────


def response_headers(
    headers: Iterable[tuple[bytes, bytes]], *, id: str, security: Headers = SECURITY_HEADERS
) -> list[tuple[bytes, bytes]]:
    """Return response headers with the security headers, `Cache-Control` and the request id added.

    An upstream's own `X-Request-Id` stays; the id then goes into `X-Foveal-Request-Id`.
    """
    lower = [(name.lower(), value) for name, value in headers]
    kept = [(name, value) for name, value in lower if name not in _SECURITY_HEADER_NAMES]
    names = {name for name, _ in kept}
    if b"cache-control" not in names:
        kept.append(NO_STORE)
    name = b"x-foveal-request-id" if b"x-request-id" in names else b"x-request-id"
    return [*kept, *security, (name, id.encode())]


class RequestChecks:
    """The checks of one server."""

    def __init__(
        self, *, hosts: Sequence[str] = (), addresses: bool = False, max_body: int, body_setting: str = ""
    ) -> None:
        """`hosts` and `addresses`: see `is_allowed_host`; `body_setting` names the setting of `max_body`."""
        self._hosts = tuple(hosts)
        self._addresses = addresses
        self._max_body = max_body
        self._body_setting = body_setting

    def check(self, headers: Headers, *, any_site: bool = False) -> None:
        """Raise `HttpError` for a request that is refused; `any_site`: pages of other sites may send it."""
        if headers_too_large(headers):
            raise HttpError(431, "this request has too many headers, or too large ones", code="headers")
        if problem := self._host_problem(headers):
            raise HttpError(421, problem, code="wrong_host")
        if not any_site and is_cross_site(headers):
            raise HttpError(403, "a page of another site may not use this server", code="cross_site")
        if header_value(headers, b"content-encoding").lower() not in (b"", b"identity"):
            raise HttpError(415, "send the body without compression", code="compressed")
        length = header_value(headers, b"content-length")
        if length.isdigit() and int(length[:20]) > self._max_body:
            raise self._too_large_error()

    def _host_problem(self, headers: Headers) -> str:
        """Return which part of a request does not name this server; "" if all do."""
        if len(header_values(headers, b"host")) > 1:
            return "more than one Host header does not name this server: send one"
        if not is_allowed_host(host_of(headers), self._hosts, addresses=self._addresses):
            return "the Host header does not name this server: add the name to `server.hosts` if it should"
        if header_values(headers, REQUEST_LINE_HOST):
            return (
                "the request line does not name this server as the Host header does: send the path alone, or a URL "
                "with the host and port of that header"
            )
        return ""

    def bounded(self, receive: Receive) -> Receive:
        """Return a `receive` that raises when the body exceeds `max_body` bytes."""
        received = 0

        async def bounded() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_body:
                raise self._too_large_error()
            return message

        return bounded

    def _too_large_error(self) -> HttpError:
        setting = f" (`{self._body_setting}`)" if self._body_setting else ""
        detail = f"the body has more than {self._max_body:,} bytes{setting}"
        return HttpError(413, detail, code="request_too_large")
