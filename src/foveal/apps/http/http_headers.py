"""What the headers of a request say about where it comes from, and what every answer carries. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from ipaddress import ip_address
from typing import Final, TypeAlias

from foveal.server.auth_tokens import PREFIX

Headers: TypeAlias = Sequence[tuple[bytes, bytes]]
"""As ASGI has them: names in small letters."""

MOST: Final = 200
LARGEST: Final = 64 * 1024
"""Headers of a request, and their bytes all together."""
SECURITY: Final[Headers] = (
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
)
NO_STORE: Final = (b"cache-control", b"no-store")
_SANE: Final = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_PORT: Final = re.compile(r":\d{0,5}$")


def every(headers: Headers, name: bytes) -> list[bytes]:
    return [value for found, value in headers if found == name]


def first(headers: Headers, name: bytes) -> bytes:
    return next((value for found, value in headers if found == name), b"")


def too_large(headers: Headers) -> bool:
    return len(headers) > MOST or sum(len(name) + len(value) for name, value in headers) > LARGEST


# ── where it comes from ──────────────────────────────────────────────────────────────────────────────────


def is_loopback(host: str) -> bool:
    """A name or address that never leaves this machine."""
    name = host.lower().rstrip(".").strip("[]")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def host_of(headers: Headers) -> str:
    """The host that the client believes to talk to, without a port; "" unless there is exactly one."""
    given = every(headers, b"host")
    return _PORT.sub("", given[0].decode("latin-1").strip()).lower() if len(given) == 1 else ""


def is_address(host: str) -> bool:
    """An address in figures; nobody can make it point elsewhere."""
    try:
        return bool(ip_address(host.strip("[]")))
    except ValueError:
        return False


def is_ours(host: str, names: Iterable[str], *, addresses: bool = False) -> bool:
    """Whether a host is this machine, or one of the names that the server was given. A page whose name was made to
    point here is neither: that is what the check is for. So any of its `addresses` will do where it has several."""
    return bool(host) and (
        is_loopback(host)
        or any(name in ("*", host) for name in map(str.lower, names) if name)
        or (addresses and is_address(host))
    )


def is_cross_site(headers: Headers) -> bool:
    """Whether a browser sends this on behalf of a page that is not ours; programs do not send these headers."""
    if first(headers, b"sec-fetch-site").lower() in (b"cross-site", b"same-site"):
        return True
    origins = every(headers, b"origin")
    if not origins:
        return False
    _, _, origin = origins[0].partition(b"://")
    return len(origins) > 1 or origin.lower() != first(headers, b"host").lower()


def secret_of(headers: Headers) -> str:
    """The token of ours that a request carries; "" when there is none. A provider's key is not one."""
    if given := first(headers, b"x-foveal-token"):
        return given.decode("latin-1").strip()
    scheme, _, credentials = first(headers, b"authorization").decode("latin-1").strip().partition(" ")
    bearer = credentials.strip() if scheme.lower() == "bearer" else ""
    for secret in (bearer, first(headers, b"x-api-key").decode("latin-1").strip()):
        if secret.startswith(PREFIX):
            return secret
    return ""


def request_id(headers: Headers) -> str:
    """The name that the client gave its request, if it is a sane one."""
    given = first(headers, b"x-request-id")
    return given.decode("ascii") if _SANE.fullmatch(given) else ""


# ── what every answer carries ────────────────────────────────────────────────────────────────────────────


def answered(headers: Iterable[tuple[bytes, bytes]], *, id: str) -> list[tuple[bytes, bytes]]:
    """The headers of an answer with what each of ours has. What an upstream calls its request is left to it."""
    ours = {name for name, _ in SECURITY}
    kept = [(name.lower(), value) for name, value in headers if name.lower() not in ours]
    names = {name for name, _ in kept}
    if b"cache-control" not in names:
        kept.append(NO_STORE)
    name = b"x-foveal-request-id" if b"x-request-id" in names else b"x-request-id"
    return [*kept, *SECURITY, (name, id.encode())]
