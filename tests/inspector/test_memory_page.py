"""The page of the memories shows where each entry comes from, and its buttons change the memory."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import httpx
import pytest

from foveal import Memory, Session
from foveal.config.local_memories import project_owner
from foveal.core.log.events import UserSaid
from foveal.stores import open_store
from support.inspected_server import InspectedServer, page_token


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


async def fill(path: Path) -> None:
    async with open_store(str(path)) as store:
        memory = Memory("user", store=store)
        session = await Session.open(store, "monday", model="gpt-5", memory=memory)
        await session.append(UserSaid(content="Please remember that my name is Ada."))
        await session.append(UserSaid(content="Never push to main."))
        await session.append(UserSaid(content="Remember that my name is Grace."))
        await memory.propose(await session.events(), session="monday")
        await memory.forget((await memory.remember("I use <b>tabs</b>.")).id)
        await Memory(project_owner(path.parent), store=store, letter="p").remember("Run make test.")
        await memory.files.write("/memories/plan.md", "1. Parse")
        await session.close()


async def texts(path: Path, owner: str = "user") -> list[str]:
    async with open_store(str(path)) as store:
        return [entry.text for entry in await Memory(owner, store=store).entries()]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "a.db"
    run(fill(path))
    return path


def press(client: httpx.Client, page: str, id: str, action: str, /, **fields: str) -> httpx.Response:
    """Press a button of an entry, with the fields of its form."""
    item = page.partition(f'-{id}">')[2].partition("</li>")[0]
    form = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', item))
    assert f'value="{action}"' in item
    return client.post("/inspect/memory", data={**form, "action": action, **fields})


def test_the_page_shows_entries_with_their_origin(store: Path) -> None:
    with InspectedServer(store) as server:
        client = server.client()
        assert 'href="memory"' in client.get("/inspect/").text
        page = client.get("/inspect/memory").text
        assert "my name is Grace." in page
        assert "Remember that my name is Grace." in page
        assert "replaced by m1" in page
        assert "I use &lt;b&gt;tabs&lt;/b&gt;." in page
        assert f"project {store.parent}" in page
        assert "Run make test." in page
        assert "p0 · " in page
        assert "plan.md" not in page
        (link,) = set(re.findall(r'href="(session\?id=[^"#]+)#message=e\d+"', page))
        assert "remember that my name is Ada" in client.get(f"/inspect/{link}").text


def test_the_buttons_change_the_memory(store: Path) -> None:
    with InspectedServer(store) as server:
        client = server.client()

        def page() -> str:
            return client.get("/inspect/memory").text

        (waiting,) = set(re.findall(r'-(m\d+)"><p class="memory-text">Never push', page()))
        answer = press(client, page(), waiting, "accept")
        assert (answer.status_code, answer.headers["location"].partition("#")[0]) == (303, "memory")
        assert "Never push to main." in run(texts(store))
        assert press(client, page(), waiting, "forget").status_code == 303
        assert "Never push to main." not in run(texts(store))
        assert press(client, page(), waiting, "undo").status_code == 303
        assert "Never push to main." in run(texts(store))
        assert press(client, page(), waiting, "forget", id="m99").status_code == 400
        assert press(client, page(), waiting, "forget", action="erase").status_code == 422
        assert press(client, page(), waiting, "forget", memory="s0").status_code == 404


def test_a_change_needs_the_token_of_the_page_and_a_login(store: Path) -> None:
    with InspectedServer(store) as server:
        client = server.client()
        page = client.get("/inspect/memory").text
        assert page_token(page)
        assert press(client, page, "m1", "forget", write_token="").status_code == 403
        assert "my name is Grace." in run(texts(store))
        assert server.visitor().get("/inspect/memory").headers["location"] == "login"
        assert server.visitor().post("/inspect/memory", data={"action": "undo"}).status_code in (303, 403)


def test_a_store_that_cannot_be_written_has_no_buttons(store: Path) -> None:
    from foveal.inspector.sessions.actions import StoreActor

    class ReadOnly(StoreActor):
        def refusal(self, source: Any) -> str:
            return "this store can only be read"

    with InspectedServer(store, actor=ReadOnly()) as server:
        client = server.client()
        page = client.get("/inspect/memory").text
        assert "this store can only be read" in page
        assert 'name="action"' not in page
        key = page.partition('<h2 id="')[2].partition('"')[0]
        fields = {"write_token": page_token(page), "memory": key, "action": "undo"}
        assert client.post("/inspect/memory", data=fields).status_code == 409


def test_the_search_finds_entries_and_many_stay_bounded(tmp_path: Path) -> None:
    async def many() -> None:
        async with open_store(str(tmp_path / "a.db")) as store:
            lines = "".join(
                f'{{"id":"m{n}","kind":"fact","text":"Box {n} holds part {n * 7}.","origin":{{}}}}\n'
                for n in range(2_000)
            )
            await Memory("user", store=store).import_(lines)

    run(many())
    with InspectedServer(tmp_path / "a.db") as server:
        client = server.client()
        page = client.get("/inspect/memory").text
        assert page.count("<li ") == 300
        assert "1,700 older ones are found by the search." in page
        assert client.get("/inspect/memory", params={"q": "BOX part 13993"}).text.count("<li ") == 1


def test_without_entries_the_page_says_so(tmp_path: Path) -> None:
    async def empty() -> None:
        async with open_store(str(tmp_path / "a.db")) as store:
            await (await Session.open(store, "monday", model="gpt-5")).close()

    run(empty())
    with InspectedServer(tmp_path / "a.db") as server:
        assert "No memory has entries here." in server.client().get("/inspect/memory").text
