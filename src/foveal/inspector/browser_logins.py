"""Logins of browsers: cookies, and the token that a page needs to change something.

1. The cookie holds a random id, never the token. The ids are in memory: a restart ends all logins.
2. The cookie has no `Path`, so it is sent below the folder of the login page only, whatever prefix a proxy adds.
   Its name has the port, because browsers send cookies to all ports of a host.
3. A page that changes something sends its write token in a header besides the cookie. Other sites cannot read it.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

from foveal.web.http_headers import Headers, header_value, header_values

WRITE_TOKEN_HEADER: Final = "X-Foveal-Inspect"
MAX_BROWSER_LOGINS: Final = 1_000
"""Logins that are kept; the oldest ends first."""
_ID_BYTES: Final = 32
_HOST_PORT: Final = re.compile(rb":(\d{1,5})$")

CheckToken = Callable[[str], Awaitable[bool]]


class BrowserLogins:
    """The browsers that have logged in, each with the token that it gave."""

    def __init__(self, check: CheckToken) -> None:
        """`check` returns whether a token may log in now."""
        self._check = check
        self._tokens: OrderedDict[str, str] = OrderedDict()
        self._key = secrets.token_bytes(_ID_BYTES)

    async def log_in(self, token: str, headers: Headers) -> str:
        """Return the `Set-Cookie` value for a browser; "" if the token is wrong."""
        if not token or not await self._check(token):
            return ""
        id = secrets.token_urlsafe(_ID_BYTES)
        self._tokens[id] = token
        if len(self._tokens) > MAX_BROWSER_LOGINS:
            self._tokens.popitem(last=False)
        is_https = header_value(headers, b"origin").lower().startswith(b"https://")
        return f"{_cookie_name(headers)}={id}; HttpOnly; SameSite=Strict{'; Secure' if is_https else ''}"

    def log_out(self, headers: Headers) -> str:
        """End a login, and return the `Set-Cookie` value that removes the cookie."""
        self._tokens.pop(self._id_of(headers), None)
        return f"{_cookie_name(headers)}=; HttpOnly; SameSite=Strict; Max-Age=0"

    def token_of(self, headers: Headers) -> str:
        """Return the token with which the browser has logged in; "" if it has not."""
        return self._tokens.get(self._id_of(headers), "")

    def write_token(self, headers: Headers) -> str:
        """Return the token that pages of this browser send with each change."""
        id = self._id_of(headers)
        known = id if id in self._tokens else ""
        return hmac.new(self._key, known.encode(), "sha256").hexdigest()

    def is_write_token(self, given: str, headers: Headers) -> bool:
        """Return whether a page of this browser sent its own write token."""
        return hmac.compare_digest(given.encode("utf-8", "replace"), self.write_token(headers).encode())

    def _id_of(self, headers: Headers) -> str:
        # `http.cookies` reads nothing if any cookie is malformed, and browsers send those of other programs on the
        # same machine too.
        name = _cookie_name(headers).encode()
        for value in header_values(headers, b"cookie"):
            for cookie in value.split(b";"):
                found, _, id = cookie.strip().partition(b"=")
                if found == name:
                    return id.decode("latin-1")
        return ""


def _cookie_name(headers: Headers) -> str:
    port = _HOST_PORT.search(header_value(headers, b"host"))
    return f"foveal_inspect_{port[1].decode()}" if port else "foveal_inspect"
