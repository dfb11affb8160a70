"""The tool `fetch`: what it reads, and which addresses it never contacts."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from foveal.agent.tool import Toolbox
from foveal.server.fetch_tool import MAX_FETCH_BYTES, fetch_tool, is_public
from support.gated_provider import run

PAGE = "<title>A</title><style>x{}</style><p>One <b>two</b></p><script>evil()</script><p>three &amp; four</p>"


@asynccontextmanager
async def site() -> AsyncIterator[tuple[str, list[str]]]:
    """Serve pages on this machine; yield the address and the list of paths that were asked for."""
    asked: list[str] = []

    async def respond(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        match request.path:
            case "/page":
                return web.Response(text=PAGE, content_type="text/html")
            case "/long":
                return web.Response(text="x" * (MAX_FETCH_BYTES + 10))
            case "/binary":
                return web.Response(body=b"\x89PNG", content_type="image/png")
            case "/loop":
                raise web.HTTPFound("/loop")
            case _:
                raise web.HTTPFound(request.query["to"])

    app = web.Application()
    app.router.add_get("/{path:.*}", respond)
    runner = web.AppRunner(app)
    await runner.setup()
    listener = web.TCPSite(runner, "127.0.0.1", 0)
    await listener.start()
    port = runner.addresses[0][1]
    try:
        yield f"http://localhost:{port}", asked
    finally:
        await runner.cleanup()


async def fetched(url: str, **options: Any) -> tuple[str, bool]:
    box = Toolbox([fetch_tool(**options)])
    output = await box.call("fetch", json.dumps({"url": url}))
    assert isinstance(output.content, str)
    return output.content, output.error


@run
async def test_a_page_is_read_as_text() -> None:
    async with site() as (url, _):
        text, is_error = await fetched(f"{url}/page", is_allowed=lambda _: True)
        assert (text, is_error) == (f"[{url}/page, status 200]\nA\nOne two\nthree & four", False)
        text, _ = await fetched(f"{url}/go?to=/page", is_allowed=lambda _: True)
        assert text.startswith(f"[{url}/page, status 200]\nA\n"), "a redirect is followed, and named"


@run
async def test_a_long_page_is_cut_and_says_so_and_other_files_are_not_read() -> None:
    async with site() as (url, _):
        text, _ = await fetched(f"{url}/long", is_allowed=lambda _: True)
        assert text.endswith(f"x\n[the page is longer: only its first {MAX_FETCH_BYTES:,} bytes were read]")
        assert len(text) < MAX_FETCH_BYTES + 200
        assert await fetched(f"{url}/binary", is_allowed=lambda _: True) == (
            "The page was not read: it is no text but image/png.",
            True,
        )
        assert (await fetched(f"{url}/loop", is_allowed=lambda _: True))[0] == (
            "The page was not read: it redirects more than 5 times."
        )


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.1", "2130706433", "0x7f000001", "[::1]"])
@run
async def test_this_machine_is_not_contacted(host: str) -> None:
    async with site() as (url, asked):
        port = url.rpartition(":")[2]
        text, is_error = await fetched(f"http://{host}:{port}/page")
        assert is_error
        assert "public" in text
        assert asked == []


@run
async def test_a_redirect_to_a_private_address_is_not_followed() -> None:
    async with site() as (url, asked):
        port = url.rpartition(":")[2]

        def is_allowed(address: str) -> bool:  # the first page is allowed, and the literal address is not
            return address == "127.0.0.1" and not asked

        text, is_error = await fetched(f"{url}/go?to=http://127.0.0.1:{port}/page", is_allowed=is_allowed)
        assert (text, is_error) == ("The page was not read: 127.0.0.1 is not a public address.", True)
        assert asked == ["/go"]
        asked.clear()
        text, _ = await fetched(f"{url}/go?to={url}/page", is_allowed=is_allowed)
        assert text == "The page was not read: localhost has an address that is not public."
        assert asked == ["/go"], "a name is checked again: it may have another address now"


@pytest.mark.parametrize(
    "address",
    ["10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1", "::1", "::",
     "fe80::1%eth0", "fd00::1", "::ffff:127.0.0.1", "64:ff9b::a00:1", "2002:7f00:1::", "ff02::1", "255.255.255.255",
     "127.1", ""],
)  # fmt: skip
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946", "::ffff:8.8.8.8"])
def test_addresses_that_are_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://a.org/", "https://user:word@a.org/", "https://", "x"]
)
@run
async def test_only_web_addresses_without_passwords_are_taken(url: str) -> None:
    box = Toolbox([fetch_tool()])
    problem = box.find_problem("fetch", json.dumps({"url": url}))
    assert problem is not None
    assert str(problem.content).startswith("url must ")
