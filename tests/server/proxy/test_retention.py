"""Retention of the sessions of drop-in clients."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from foveal.server.audit import AuditFilter
from foveal.server.proxy import digest_index
from support.upstream import DEADLINE, ProxyServer, RawUpstream, answer, until

REPLY = b'{"choices": [{"index": 0, "message": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop"}]}'
DAY_S = 86_400


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[ProxyServer]:
    with (
        RawUpstream(lambda seen, number: [answer(REPLY)]) as upstream,
        ProxyServer(tmp_path, openai=upstream.openai, server__proxy_retention_days=30) as made,
    ):
        yield made


def say(proxy: ProxyServer, text: str, token: str = "") -> str:
    """Send a request and return its session when the answer is stored."""
    body = {"model": "gpt-4.1", "messages": [{"role": "user", "content": text}]}
    headers = {"authorization": "Bearer sk-client-0123456789", **({"x-foveal-token": token} if token else {})}
    with httpx.Client(trust_env=False, timeout=DEADLINE) as http:
        reply = http.post(f"{proxy.openai}/chat/completions", json=body, headers=headers)
    assert reply.status_code == 200
    until(lambda: not proxy.upstreams.in_flight.responses)
    return str(reply.headers["x-foveal-session"])


def go_on(proxy: ProxyServer, *, days: float) -> None:
    """Let the server's clock show a later time."""
    proxy.service.runtime.clock = lambda: time.time() + days * DAY_S


def kept(proxy: ProxyServer, tenant: str = "default") -> list[str]:
    found = proxy.do(proxy.service.tenant(tenant).store.sessions(with_erased=False))
    return sorted(info.id for info in found)


def sweep(proxy: ProxyServer) -> int:
    return proxy.do(proxy.upstreams.conversations.retention.sweep())


def test_sessions_are_erased_when_they_were_not_used_for_the_configured_days(proxy: ProxyServer) -> None:
    first = say(proxy, "Hello")
    token = proxy.token("other")
    say(proxy, "Hello", token)
    go_on(proxy, days=29)
    assert (sweep(proxy), kept(proxy)) == (0, [first])
    go_on(proxy, days=31)
    assert (sweep(proxy), kept(proxy), kept(proxy, "other")) == (2, [], [])
    rows = proxy.do(proxy.service.runtime.audit.page(AuditFilter(action="erase"), limit=10))
    assert {(row.actor, row.tenant) for row in rows} == {("retention", "default"), ("retention", "other")}
    assert f"session:{first}" in {row.object for row in rows}
    assert say(proxy, "Hello", token) != first


def test_a_session_in_use_is_not_erased(proxy: ProxyServer) -> None:
    used, unused = say(proxy, "Hello"), say(proxy, "Good day")
    go_on(proxy, days=31)

    async def sweep_while_locked() -> int:
        async with proxy.service.runtime.locks.lock("default", used):
            return await proxy.upstreams.conversations.retention.sweep()

    assert (proxy.do(sweep_while_locked()), kept(proxy)) == (1, [used])
    assert unused not in kept(proxy)


def test_sessions_of_the_native_api_and_forks_are_kept(proxy: ProxyServer) -> None:
    session, tenant = say(proxy, "Hello"), proxy.service.tenant("default")
    proxy.do(tenant.create("native"))
    proxy.do(tenant.fork(session, "native-fork"))
    go_on(proxy, days=31)
    assert (sweep(proxy), kept(proxy)) == (1, ["native", "native-fork"])


def test_a_sweep_is_bounded_and_the_next_one_continues(
    proxy: ProxyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digest_index, "MAX_ERASED_PER_SWEEP", 2)
    monkeypatch.setattr(digest_index, "PAGE_SESSIONS", 1)
    for number in range(3):
        say(proxy, f"Hello {number}")
    go_on(proxy, days=31)
    assert [sweep(proxy), sweep(proxy), sweep(proxy)] == [2, 1, 0]
