"""Requests that are meant to break the inspector: bodies, headers and cursors that no page sends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest

from foveal.core.log.events import ModelSaid, UserSaid
from foveal.inspector.app import MAX_FORM_BYTES
from foveal.inspector.loopback_server import LoopbackServer
from foveal.inspector.sessions.collection import SessionCollection
from foveal.inspector.sessions.source import SessionPage
from foveal.recall.archive.listing import SessionList, given_sources
from foveal.web.http_headers import PAGE_SECURITY_HEADERS
from foveal.web.listener import bind
from support.inspected_server import InspectedServer, write_session

CHUNK_BYTES = 1_000


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "sessions.db"
    write_session(path, "one", [UserSaid(content="Hello."), ModelSaid(content="Hi.")], title="Short")
    return path


class BrokenCollection(SessionCollection):
    """A collection with a mistake."""

    async def rows(self, **arguments: Any) -> SessionPage:
        raise RuntimeError("a mistake")


def client_of(server: LoopbackServer) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(server.app(), raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1")


def test_a_mistake_of_the_inspector_is_answered_with_the_security_headers(store: Path) -> None:
    async def ask() -> httpx.Response:
        with bind("127.0.0.1", 0) as listener:
            server = LoopbackServer(BrokenCollection(given_sources([str(store)])), listener)
            async with client_of(server) as client:
                await client.get(httpx.URL(server.url()).raw_path.decode())
                return await client.get("/inspect/api/sessions")

    answer = asyncio.run(ask())
    assert answer.json()["error"]["code"] == "internal"
    assert "a mistake" not in answer.text
    for name, value in PAGE_SECURITY_HEADERS:
        assert answer.headers[name.decode()] == value.decode()


def test_a_form_is_read_only_up_to_its_limit(store: Path) -> None:
    sent = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(900):
            sent += CHUNK_BYTES
            yield b"x" * CHUNK_BYTES

    async def ask() -> httpx.Response:
        with bind("127.0.0.1", 0) as listener:
            server = LoopbackServer(SessionCollection(given_sources([str(store)])), listener)
            async with client_of(server) as client:
                return await client.post("/inspect/login", content=body())

    assert asyncio.run(ask()).status_code == 413
    assert sent <= MAX_FORM_BYTES + 2 * CHUNK_BYTES


def test_a_token_of_another_kind_does_not_replace_the_token_of_the_page(store: Path) -> None:
    with InspectedServer(store) as server:
        client, url = server.client(), f"/inspect/api/act?id={server.keys()['Short']}"
        for headers in ({"X-Foveal-Token": "x"}, {"Authorization": "Bearer fv_x"}, {"X-Api-Key": "fv_x"}):
            answer = client.post(url, json={"action": "pin", "text": "Be kind."}, headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "no_write_token")


def test_any_cursor_is_answered(store: Path) -> None:
    cursors = ("9" * 5_000, "nan e1", "inf", "-1", "1e999 x", "\0", "٣", "²")
    with InspectedServer(store) as server:
        client = server.client()
        for query, after in product(("", "hello"), cursors):
            answer = client.get("/inspect/api/sessions", params={"q": query, "after": after})
            assert answer.status_code == 200, (query, after)


def test_a_stream_of_the_list_resumes_after_any_number() -> None:
    sessions = SessionList([])
    run = sessions.cursor.partition("-")[0]
    assert [sessions.changed_since(f"{run}-{number}") for number in ("9" * 5_000, "x", "")] == [[], [], []]


def test_a_store_that_was_replaced_is_read_again(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foveal.inspector.sessions.collection.MAX_ABOUT_AGE_S", 0.0)
    with InspectedServer(store) as server:
        client, key = server.client(), server.keys()["Short"]
        assert "Hello." in client.get("/inspect/api/timeline", params={"id": key}).text
        for file in store.parent.glob(f"{store.name}*"):
            file.unlink()
        facts = [UserSaid(content="Another."), ModelSaid(content="Hi."), UserSaid(content="More.")]
        write_session(store, "one", facts, title="Short")
        rows = client.get("/inspect/api/timeline", params={"id": key}).json()["rows"]
        assert [row.get("preview") for row in rows[2:]] == ["Another.", "Hi.", "More."]
