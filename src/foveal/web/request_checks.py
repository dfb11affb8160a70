"""Checks of a request before any handler sees it: Host, Origin, sizes.

1. Host names this server, and the request is not sent by a page of another site (Origin, Sec-Fetch-Site).
2. The headers are of bounded size; the bytes of the body are counted as they arrive, whatever Content-Length says.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.types import Message, Receive

from foveal.web.http_errors import HttpError
from foveal.web.http_headers import (
    Headers,
    header_value,
    headers_too_large,
    host_of,
    is_allowed_host,
    is_cross_site,
)


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
        if not is_allowed_host(host_of(headers), self._hosts, addresses=self._addresses):
            detail = "the Host header does not name this server: add the name to `server.hosts` if it should"
            raise HttpError(421, detail, code="wrong_host")
        if not any_site and is_cross_site(headers):
            raise HttpError(403, "a page of another site may not use this server", code="cross_site")
        if header_value(headers, b"content-encoding").lower() not in (b"", b"identity"):
            raise HttpError(415, "send the body without compression", code="compressed")
        length = header_value(headers, b"content-length")
        if length.isdigit() and int(length[:20]) > self._max_body:
            raise self._too_large_error()

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
