"""Drop-in requests while the database of the server is away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from foveal.server.auth_tokens import AuthTokens
from foveal.server.service import INBOX_TOPIC
from foveal.stores.postgres.connection import PostgresPool
from support.postgres_server import FAST, own_server
from support.upstream import DEADLINE, ProxyServer, RawUpstream, answer, until

REPLY = (
    b'{"choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}]}'
)


@pytest.mark.long
def test_requests_pass_while_postgresql_is_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: Any = PostgresPool.__init__.__kwdefaults__
    monkeypatch.setitem(options, "wait_s", 1.0)  # the first request waits so long for the database
    with (
        own_server(settings=FAST) as database,
        RawUpstream(lambda seen, number: iter([answer(REPLY)])) as upstream,
        ProxyServer(tmp_path, openai=upstream.openai, server__database=database.url) as proxy,
    ):
        tokens = AuthTokens(proxy.service.runtime.database)
        _, known = proxy.do(tokens.create("default", now=0.0))
        _, unused = proxy.do(tokens.create("default", now=0.0))
        _, monitor = proxy.do(tokens.create("", role="metrics", now=0.0))
        headers = {"Authorization": f"Bearer {monitor}"}
        assert httpx.get(f"{proxy.url}/metrics", headers=headers, timeout=DEADLINE).status_code == 200
        assert _ask(proxy, known, "one").status_code == 200
        database.stop("immediate")
        replies = [_ask(proxy, known, text) for text in ("two", "three")]
        assert [(reply.status_code, reply.content) for reply in replies] == [(200, REPLY)] * 2
        assert all("not managed" in reply.headers["x-foveal-reduced"] for reply in replies)
        proxy.do(proxy.service.runtime.storage.wakeups.notify(INBOX_TOPIC))
        metrics = httpx.get(f"{proxy.url}/metrics", headers=headers, timeout=DEADLINE)
        assert (metrics.status_code, "foveal_store_failures_total" in metrics.text) == (200, True)
        assert _ask(proxy, "fv_invented", "four").status_code == 503
        assert _ask(proxy, unused, "five").status_code == 503, (
            "a token that was not seen before cannot be checked"
        )
        database.start()
        assert len([record for record in caplog.records if "inbox cannot be read" in record.message]) <= 1
        until(lambda: _ask(proxy, unused, "six").status_code == 200)
        until(lambda: "not managed" not in _ask(proxy, unused, "seven").headers.get("x-foveal-reduced", ""))


def _ask(proxy: ProxyServer, token: str, text: str) -> httpx.Response:
    body = {"model": "gpt-4.1", "messages": [{"role": "user", "content": text}]}
    headers = {"X-Foveal-Token": token, "Authorization": "Bearer sk-client-0123456789abcdef"}
    return httpx.post(f"{proxy.openai}/chat/completions", json=body, headers=headers, timeout=DEADLINE)
