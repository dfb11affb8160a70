"""Which headers pass, in either direction. Pure.

Those that belong to one connection do not, nor do cookies, what a browser adds, and what is ours; keys are handled
by whoever knows where a request goes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from foveal.apps.http.http_headers import Headers, first
from foveal.server.auth_tokens import PREFIX

_HOP: Final = frozenset(
    {
        b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
        b"trailer", b"transfer-encoding", b"upgrade",
    }
)  # fmt: skip
_NOT_UPSTREAM: Final = _HOP | {
    b"host", b"content-length", b"accept-encoding", b"cookie", b"origin", b"referer", b"forwarded", b"expect",
    b"authorization", b"x-api-key", b"x-request-id",
}  # fmt: skip
_NOT_BACK: Final = _HOP | {b"content-length", b"set-cookie", b"server", b"date", b"alt-svc"}
_OURS: Final = (b"x-foveal-", b"sec-", b"x-forwarded-", b"x-real-")
VIA: Final = b"x-foveal-via"
"""By which a request that comes back to the server that sent it is known."""
_OWN: Final = (b"x-foveal-", b"access-control-")
"""How headers begin that only this server speaks with: who may read an answer is not upstream's to say."""
SHORTEST: Final = 16
"""Characters of a key that is one."""
_DUMMIES: Final = frozenset({"none", "empty", "local", "dummy", "unused", "sk-no-key-required", "no-key"})
"""What people write where a library insists on a key and there is none."""
_LONGEST: Final = 200


class ClientKey(NamedTuple):
    """The provider's key that a client brings along, in the header that it used."""

    header: bytes = b""
    value: bytes = b""

    @property
    def real(self) -> bool:
        """It can be a key; libraries insist on one, and people write anything there."""
        secret = self.value.decode("latin-1").rpartition(" ")[2].strip()
        return len(secret) >= 8 and secret.lower() not in _DUMMIES


def key_of(headers: Headers) -> ClientKey:
    """A key that is not one of our tokens."""
    for name in (b"authorization", b"x-api-key"):
        value = first(headers, name)
        secret = value.decode("latin-1").strip().rpartition(" ")[2]
        if secret and not secret.startswith(PREFIX):
            return ClientKey(name, value)
    return ClientKey()


def upstream(headers: Headers) -> list[tuple[str, str]]:
    """What goes on from the client, without its keys."""
    listed = {name.strip().lower() for name in first(headers, b"connection").split(b",")}
    return [
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in headers
        if name not in _NOT_UPSTREAM and name not in listed and not name.startswith(_OURS)
    ]


def without(secret: str, data: bytes) -> bytes:
    """What comes back, without the server's own key: some upstreams quote it in their errors. A short one is no key
    but a word that somebody put there for an upstream that asks for none."""
    return data.replace(secret.encode(), b"***") if len(secret) >= SHORTEST else data


def back(headers: Iterable[tuple[bytes, bytes]], secret: str = "") -> list[tuple[bytes, bytes]]:
    """What comes back from upstream."""
    small = [(name.lower(), without(secret, value)) for name, value in headers]
    return [(name, value) for name, value in small if name not in _NOT_BACK and not name.startswith(_OWN)]


def safe(value: object) -> bytes:
    """Anything as the value of a header."""
    text = "".join(letter if 32 <= ord(letter) < 127 else "?" for letter in str(value)[:_LONGEST])
    return text.strip().encode()
