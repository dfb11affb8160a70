"""The webhook of a server: signed, bounded, and never at a private address unless that is allowed."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from foveal import BadSetting, FovealError, ProposedCut
from foveal.server.webhook import MAX_WEBHOOK_ANSWER_BYTES, SIGNATURE_HEADER, TIMESTAMP_HEADER, Webhook, sign

CUT = ProposedCut(
    kind="mask",
    reason="tokens",
    rule="economy",
    events=(),
    freed=9,
    used=99,
    limit=90,
    is_forced=True,
    rewritten=3,
)


async def ask(answer: Callable[[web.Request], Awaitable[web.Response]]) -> object:
    app = web.Application()
    app.router.add_post("/", answer)
    async with TestServer(app, host="127.0.0.1") as server:
        hook = Webhook(str(server.make_url("/")), secret="s", clock=lambda: 5.0, is_allowed=lambda _: True)
        return await hook.ask(CUT, tenant="default", session="demo")


@pytest.mark.anyio
async def test_a_call_is_signed_and_its_answer_is_a_wish() -> None:
    async def answer(request: web.Request) -> web.Response:
        body = await request.read()
        assert request.headers[TIMESTAMP_HEADER] == "5"
        assert request.headers[SIGNATURE_HEADER] == sign(body, "s", timestamp="5")
        assert json.loads(body)["session"] == "demo"
        return web.json_response({"keep": ["e4"]})

    assert await ask(answer) == {"keep": ["e4"]}


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("response", "problem"),
    [
        (lambda: web.Response(status=500), "status 500"),
        (lambda: web.Response(status=302, headers={"Location": "http://example.org/"}), "status 302"),
        (lambda: web.Response(body=b"x" * (MAX_WEBHOOK_ANSWER_BYTES + 1)), "more than 65,536 bytes"),
    ],
)
async def test_another_answer_is_an_error(response: Callable[[], web.Response], problem: str) -> None:
    async def answer(request: web.Request) -> web.Response:
        return response()

    with pytest.raises(FovealError, match=problem):
        await ask(answer)


@pytest.mark.anyio
@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:9/", "http://localhost:9/", "http://[::1]:9/", "http://10.0.0.1/"]
)
async def test_a_private_address_is_not_called(url: str) -> None:
    with pytest.raises(FovealError, match=r"not (a )?public"):
        await Webhook(url, secret="s", clock=lambda: 5.0).ask(CUT, tenant="default", session="demo")


def test_a_webhook_needs_a_secret() -> None:
    with pytest.raises(BadSetting, match=r"server\.webhook_secret"):
        Webhook("https://example.org/", secret="", clock=lambda: 5.0)
