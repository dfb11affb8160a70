"""Logins of browsers: cookies of other programs on the same machine, and the token for changes."""

from __future__ import annotations

import asyncio

import pytest

from foveal.inspector.app import BrowserLogins, MemoryLogins

HOST = (b"host", b"127.0.0.1:8791")


async def _accept(token: str) -> bool:
    return token == "right"


def cookie_of(logins: BrowserLogins) -> bytes:
    """The cookie of a browser that has logged in."""
    return asyncio.run(logins.log_in("right", [HOST])).partition(";")[0].encode()


@pytest.mark.parametrize(
    "other",
    [b'a={"x":1}', b'b="open', b"c=\xe9", b"without a value", b"d[0]=1", b"=e", b"", b"foveal_inspect_1=x"],
)
def test_cookies_of_other_programs_do_not_hide_a_login(other: bytes) -> None:
    logins = BrowserLogins(MemoryLogins(_accept))
    cookie = cookie_of(logins)
    for value in (other + b"; " + cookie, cookie + b"; " + other, other + b";" + cookie):
        assert logins.token_of([HOST, (b"cookie", value)]) == "right"
    assert logins.token_of([HOST, (b"cookie", other), (b"cookie", cookie)]) == "right"
    assert logins.token_of([HOST, (b"cookie", other)]) == ""


def test_a_login_counts_for_its_port_only() -> None:
    logins = BrowserLogins(MemoryLogins(_accept))
    cookie = cookie_of(logins)
    assert logins.token_of([(b"host", b"127.0.0.1:8792"), (b"cookie", cookie)]) == ""
