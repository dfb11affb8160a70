"""Compact now: who writes, one at a time, and what happens when the page is closed meanwhile."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import pytest

from foveal.cli.inspect_command import ConfiguredActor
from foveal.core.log.events import ModelSaid, UserSaid
from foveal.core.view.request import Fitted
from foveal.ports import Reply, ReplyPiece
from foveal.testing import Scripted
from support.inspected_server import DEADLINE_S, TOKEN_HEADER, InspectedServer, page_token, write_session


class Watched(Scripted):
    """A scripted provider whose first answer never ends; says when it is asked and when it is closed."""

    def __init__(self, name: str) -> None:
        super().__init__("\n".join("word" for _ in range(1_000)), name=name, delay=3_600)
        self.asked = threading.Event()
        self.closed = threading.Event()
        PROVIDERS.append(self)

    async def send(self, request: Fitted, *, max_tokens: int) -> AsyncIterator[ReplyPiece | Reply]:
        self.asked.set()
        async for item in super().send(request, max_tokens=max_tokens):
            yield item

    async def close(self) -> None:
        self.closed.set()


PROVIDERS: list[Watched] = []


def remote(name: str | None, **options: Any) -> Watched:
    return Watched("openai/gpt-5")


def local(name: str | None, **options: Any) -> Watched:
    return Watched("local/small")


class Page:
    """A browser with a session open."""

    def __init__(self, server: InspectedServer) -> None:
        self.client = server.client()
        self.url = f"/inspect/api/act?id={server.keys()['Long']}"
        self.headers = {TOKEN_HEADER: page_token(self.client.get("/inspect/").text)}

    def compact(self, **body: str) -> httpx.Response:
        return self.client.post(self.url, json={"action": "compact", **body}, headers=self.headers)

    def start_compaction(self, **body: str) -> HTTPConnection:
        """Send the request without waiting for the answer, and return when the provider is asked."""
        cookies = "; ".join(f"{name}={value}" for name, value in self.client.cookies.items())
        connection = HTTPConnection(self.client.base_url.host, self.client.base_url.port, timeout=DEADLINE_S)
        headers = {**self.headers, "Cookie": cookies, "Content-Type": "application/json"}
        connection.request("POST", self.url, json.dumps({"action": "compact", **body}), headers)
        for _ in range(int(DEADLINE_S / 0.05)):
            if any(provider.asked.wait(0.05) for provider in PROVIDERS):
                return connection
            threading.Event().wait(0.05)
        raise AssertionError("the provider was not asked")

    def writers(self) -> list[str]:
        found = self.client.get(self.url.replace("/act", "/writers")).json()["writers"]
        return [f"{writer['name']}: {writer['title']}" for writer in found]

    def events(self) -> int:
        next_seq: int = self.client.get(self.url.replace("/act", "/timeline")).json()["next"]
        return next_seq


@pytest.fixture
def server(tmp_path: Path) -> Iterator[InspectedServer]:
    PROVIDERS.clear()
    path = tmp_path / "sessions.db"
    talk = [fact(content=f"{n} {'word ' * 60}") for n in range(30) for fact in (UserSaid, ModelSaid)]
    write_session(path, "long", talk, title="Long", window=16_000)
    with InspectedServer(path, actor=ConfiguredActor()) as running:
        yield running


@pytest.fixture
def configure(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    return lambda factory: monkeypatch.setenv("FOVEAL_PROVIDER", f"{__name__}:{factory.__name__}")


def wait_for(event: threading.Event) -> None:
    assert event.wait(DEADLINE_S)


def test_a_local_model_is_offered_but_does_not_write_by_default(
    server: InspectedServer, configure: Callable[[Any], None]
) -> None:
    configure(local)
    page = Page(server)
    assert page.writers() == [
        "ledger: from the log, without a model (at once)",
        "model: local/small, on this machine (can take minutes)",
    ]
    answer = page.compact(focus="the words")
    assert answer.status_code == 200, answer.text
    assert not any(provider.asked.is_set() for provider in PROVIDERS)
    assert all(provider.closed.is_set() for provider in PROVIDERS)


def test_another_model_writes_by_default(server: InspectedServer, configure: Callable[[Any], None]) -> None:
    configure(remote)
    assert Page(server).writers() == [
        "model: openai/gpt-5",
        "ledger: from the log, without a model (at once)",
    ]


def test_the_ledger_writes_where_it_is_chosen(
    server: InspectedServer, configure: Callable[[Any], None]
) -> None:
    configure(remote)
    answer = Page(server).compact(writer="ledger")
    assert answer.status_code == 200, answer.text
    assert PROVIDERS == []


def test_an_unknown_writer_is_refused(server: InspectedServer) -> None:
    answer = Page(server).compact(writer="parrot")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_setting")


def test_one_compaction_of_a_session_at_a_time_and_none_after_the_page_is_closed(
    server: InspectedServer, configure: Callable[[Any], None]
) -> None:
    configure(local)
    page, other = Page(server), Page(server)
    before = other.events()
    connection = page.start_compaction(writer="model")
    refused = other.compact(writer="ledger")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "compaction_running")
    connection.close()
    wait_for(PROVIDERS[0].closed)
    assert other.events() == before
    assert other.compact(writer="ledger").status_code == 200


def test_a_compaction_ends_when_the_server_stops(
    server: InspectedServer, configure: Callable[[Any], None]
) -> None:
    configure(remote)
    connection = Page(server).start_compaction()
    server.end()
    wait_for(PROVIDERS[0].closed)
    answer = connection.getresponse()
    assert (answer.status, json.loads(answer.read())["error"]["code"]) == (409, "cancelled")
    connection.close()
