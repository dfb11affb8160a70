"""What one server learns, another one on the same PostgreSQL database knows: two processes, in every front."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, NamedTuple

import psycopg
import pytest

from foveal.server.auth_tokens import AuthTokens, MemoryChoice
from support.gated_provider import run
from support.serve_process import DEADLINE, Server, serving
from support.service_databases import open_database, service_database_url, tables_with
from support.telegram_bot import USER
from support.telegram_stand_in import NAME, TOKEN, BotApi
from support.upstream import Piece, RawUpstream, ReceivedRequest, answer

PROVIDER = "support.serve_process:telling"
STORY = (
    "Remember that my name is Ada.",
    "Remember: never push to main.",
    "Remember that the deadline is 14 March.",
    "Remember that the deadline moved to 2 April.",
)
KNOWN = ("name is Ada", "ever push to main", "2 April")


class Machines(NamedTuple):
    one: Server
    two: Server
    upstream: RawUpstream
    url: str
    """The URL of the database."""

    def token(self, tenant: str, memory: str = "") -> str:
        async def create() -> str:
            async with open_database(self.url) as database:
                choice = MemoryChoice.read(memory)
                return (await AuthTokens(database).create(tenant, memory=choice, now=0.0))[1]

        return asyncio.run(create())


def speak(seen: ReceivedRequest, number: int) -> Iterator[Piece]:
    message = {"role": "assistant", "content": f"Answer {number}."}
    yield answer(
        json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}).encode()
    )


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    """Two servers for several tests: each has tenants of its own."""
    with ExitStack() as stack:
        url = stack.enter_context(service_database_url())
        upstream = stack.enter_context(RawUpstream(speak))
        settings = {"server.openai_url": upstream.openai, "server.rate": 0, "server.memory_budget": 300}
        environment = {"FOVEAL_DATABASE": url}
        one, two = (
            stack.enter_context(serving(settings=settings, environment=environment, provider=PROVIDER))
            for _ in range(2)
        )
        yield Machines(one, two, upstream, url)


def say(server: Server, session: str, text: str, *, token: str, user: str = "ada") -> str:
    """Say something in a session of a user, and return the answer: what the model was shown of the memory."""
    server.ask("/api/sessions", body={"id": session, "user": user}, token=token)
    turn = server.ask(f"/api/sessions/{session}/turns", body={"text": text, "stream": False}, token=token)
    assert turn.status == 200, turn.body
    return str(turn.json["outcome"]["text"])


def entries(server: Server, token: str, user: str = "ada", **query: Any) -> list[dict[str, Any]]:
    asked = "&".join(f"{name}={value}" for name, value in query.items())
    found: list[dict[str, Any]] = server.ask(f"/api/memory/{user}?{asked}", token=token).json["entries"]
    return found


def forget_all(server: Server, token: str) -> None:
    for entry in entries(server, token):
        path = f"/api/memory/ada/entries/{entry['id']}"
        assert server.ask(path, method="DELETE", token=token).json["forgotten"]


def check_story(ask: Callable[[Server, str], str], machines: Machines, token: str) -> None:
    """Tell one machine a name, a rule and a correction; the other one knows it until it is forgotten."""
    for text in STORY:
        ask(machines.one, text)
    shown = ask(machines.two, "Hello.")
    assert [text for text in KNOWN if text not in shown] == []
    assert "14 March" not in shown
    forget_all(machines.two, token)
    assert not any(text in ask(machines.one, "And now?") for text in KNOWN)


def test_the_story_in_the_native_api(machines: Machines) -> None:
    token, other = machines.token("native"), machines.token("native-rival")

    def ask(server: Server, text: str) -> str:
        session = "monday" if server is machines.one else "tuesday"
        return say(server, session, text, token=token)

    check_story(ask, machines, token)
    say(machines.one, "wednesday", STORY[0], token=token)
    assert "Ada" in say(machines.two, "thursday", "Hello.", token=token)
    assert "Ada" not in say(machines.two, "tuesday", "Hello.", token=other)
    assert "Ada" not in say(machines.two, "friday", "Hello.", token=token, user="Ada")
    assert entries(machines.two, other, all="true") == []


def test_the_story_of_drop_in_clients(machines: Machines) -> None:
    token, owner = machines.token("drop-in", "ada; hears"), machines.token("drop-in")
    other = machines.token("drop-in-rival", "ada")

    def ask(server: Server, text: str, *, token: str = token) -> str:
        body = {"model": "gpt-4.1", "messages": [{"role": "user", "content": text}]}
        assert server.ask("/v1/chat/completions", body=body, token=token).status == 200
        return str(machines.upstream.seen[-1].body)

    check_story(ask, machines, owner)
    ask(machines.one, "Please remember that my name is Ada.")
    assert "[m" in ask(machines.two, "Hello.")
    assert "[m" not in ask(machines.two, "Hello.", token=other)


def end_leases(url: str) -> None:
    """End the leases of a killed server, as some seconds do."""
    with psycopg.connect(url) as connection:
        connection.execute("UPDATE foveal.lease SET until = clock_timestamp()")


def write_until_killed(server: Server, has_begun: threading.Event) -> list[str]:
    """Tell a server statements until it is gone, and return those that it has confirmed."""
    confirmed = list[str]()
    for number in range(1_000):
        text = statement(0, number)
        try:
            added = server.ask("/api/memory/ada", body={"text": text})
        except OSError:
            break
        if added.status == 201:
            confirmed.append(text)
        if number == 12:
            has_begun.set()
    return confirmed


@pytest.mark.soak  # `test_telegram.py` has the kill, `test_postgres_faults.py` what was confirmed
@run
async def test_a_killed_machine_loses_no_entry_that_it_has_confirmed_and_its_bot_continues_elsewhere(
    service_url: str,
) -> None:
    async with BotApi() as api:
        settings = {"telegram.allowed": [USER, 77], "telegram.base_url": api.url, "server.rate": 0}
        environment = {"FOVEAL_DATABASE": service_url, "TELEGRAM_BOT_TOKEN": TOKEN}

        async def tell(text: str, **more: Any) -> str:
            count = len(api.messages)
            api.hear(text, **({"user": USER} | more))
            return str((await api.said(count + 1))[-1]["text"])

        def machine() -> Any:
            return serving(settings=settings, environment=environment, provider=PROVIDER)

        with machine() as one:
            for text in STORY:
                await tell(text)
            has_begun = threading.Event()
            writing = asyncio.create_task(asyncio.to_thread(write_until_killed, one, has_begun))
            assert await asyncio.to_thread(has_begun.wait, DEADLINE)
            await asyncio.to_thread(one.kill)
            confirmed = await writing
        end_leases(service_url)
        with machine() as two:
            api.hear("/new", user=USER)  # the answer before it may come once more, because of the kill
            await api.until(lambda: "Let us start afresh" in api.messages[-1]["text"])
            shown = await tell("Hello.")
            assert [text for text in KNOWN if text not in shown] == []
            assert "14 March" not in shown
            assert "Ada" in await tell(f"@{NAME} Hello.", chat=-100)
            assert "Ada" not in await tell(f"@{NAME} Hello.", chat=-100, user=77)
            await tell("/forget Ada")
            assert "name is Ada" not in await tell("And now?")
            await asyncio.to_thread(check_entries, two, confirmed)


def check_entries(server: Server, confirmed: list[str]) -> None:
    """Check that a server has what another one confirmed, and at most the one that this one had begun."""
    kept = [entry["text"] for entry in entries(server, "", limit=500)]
    assert kept[: len(confirmed)] == confirmed
    assert len(kept) <= len(confirmed) + 1
    assert kept == [statement(0, number) for number in range(len(kept))]
    assert "Shelf" in say(server, "demo", "Hello.", token="")


def test_a_user_who_is_erased_on_one_server_leaves_nothing_on_the_other(machines: Machines) -> None:
    token, owner = machines.token("erased", "ada"), machines.token("erased")

    def ask(text: str) -> str:
        body = {"model": "gpt-4.1", "messages": [{"role": "user", "content": text}]}
        reply = machines.one.ask("/v1/chat/completions", body=body, token=token)
        assert reply.status == 200
        return reply.headers["x-foveal-session"]

    say(machines.one, "monday", "Remember that my dog is called Quetzalcoatl.", token=owner)
    shown = ask("Is Quetzalcoatl ill?")
    assert "dog is called Quetzalcoatl" in str(machines.upstream.seen[-1].body)
    assert tables_with(machines.url, "quetzalcoatl")
    erased = machines.two.ask("/api/users/ada", method="DELETE", token=owner).json
    assert erased == {"sessions": sorted([shown, "monday"]), "kept": []}
    assert ask("Is it ill?") != shown
    assert "Quetzalcoatl" not in str(machines.upstream.seen[-1].body)
    assert tables_with(machines.url, "quetzalcoatl") == []


# ── Many writers ─────────────────────────────────────────────────────────────────────────────────


def statement(writer: int, number: int) -> str:
    return f"Shelf {writer}x{number} holds box {writer}y{number}."


def test_entries_of_writers_on_two_servers_are_all_kept(machines: Machines) -> None:
    token, servers = machines.token("writers"), (machines.one, machines.two)

    def write(writer: int) -> list[int]:
        path, server = "/api/memory/ada", servers[writer % 2]
        return [
            server.ask(path, body={"text": statement(writer, number)}, token=token).status
            for number in range(10)
        ]

    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(write, range(4))] == [[201] * 10] * 4
    kept = entries(machines.one, token)
    assert kept == entries(machines.two, token)
    assert {entry["text"] for entry in kept} == {statement(w, n) for w in range(4) for n in range(10)}
    assert len({entry["id"] for entry in kept}) == 40
