"""Drop-in requests while the database of the server is away, or a part of what it stores cannot be written."""

from __future__ import annotations

import json
import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from foveal.server.auth_tokens import AuthTokens
from foveal.server.runtime import StoreFailed
from foveal.server.service import INBOX_TOPIC
from foveal.stores.postgres.connection import PostgresPool
from support.cutting_proxy import CuttingProxy
from support.upstream import DEADLINE, ProxyServer, RawUpstream, answer, until

REPLY = (
    b'{"choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}]}'
)


@pytest.mark.long
def test_requests_pass_while_postgresql_is_away(
    service_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: Any = PostgresPool.__init__.__kwdefaults__
    monkeypatch.setitem(options, "wait_s", 1.0)  # the first request waits so long for the database
    with (
        CuttingProxy(service_url) as database,
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
        database.refuse()
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
        database.restore()
        assert len([record for record in caplog.records if "inbox cannot be read" in record.message]) <= 1
        until(lambda: _ask(proxy, unused, "six").status_code == 200)
        until(lambda: "not managed" not in _ask(proxy, unused, "seven").headers.get("x-foveal-reduced", ""))


@pytest.mark.parametrize(("file", "table"), [("tenants/default.db", "blobs"), ("service.db", "heads")])
def test_an_outage_is_one_line_of_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, file: str, table: str
) -> None:
    """The request fits onto the disk, and its reply or the digests of both do not."""
    long = random.Random(1).randbytes(20_000).hex()
    choice = {"index": 0, "message": {"role": "assistant", "content": long}, "finish_reason": "stop"}
    reply = answer(json.dumps({"choices": [choice]}).encode())
    with (
        RawUpstream(lambda seen, number: iter([reply])) as upstream,
        ProxyServer(tmp_path, openai=upstream.openai) as proxy,
    ):
        token = proxy.token("default")

        def lines() -> list[str]:
            return [one.message for one in caplog.records if one.message.startswith("the store of tenant")]

        def failures() -> int:
            return sum(isinstance(event, StoreFailed) for event in proxy.service_events)

        proxy.do(proxy.service.tenant("default").create("makes-the-file"))
        with closing(sqlite3.connect(proxy.folder / "server" / file)) as database:
            database.execute(
                f"CREATE TRIGGER full BEFORE INSERT ON {table} BEGIN SELECT RAISE(ABORT, 'no room'); END"
            )
            for number in range(3):
                before = failures()
                assert _ask(proxy, token, f"number {number}").status_code == 200
                until(lambda before=before: failures() > before)
            assert (len(lines()), "cannot be used" in lines()[0]) == (1, True)
            database.execute("DROP TRIGGER full")
        until(lambda: _ask(proxy, token, "again").status_code == 200 and len(lines()) == 2)
        assert lines()[1] == "the store of tenant default can be used again"


def _ask(proxy: ProxyServer, token: str, text: str) -> httpx.Response:
    body = {"model": "gpt-4.1", "messages": [{"role": "user", "content": text}]}
    headers = {"X-Foveal-Token": token, "Authorization": "Bearer sk-client-0123456789abcdef"}
    return httpx.post(f"{proxy.openai}/chat/completions", json=body, headers=headers, timeout=DEADLINE)
