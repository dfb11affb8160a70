"""Drop-in conversations across processes: two servers on one folder or database, one is killed under load, and both
get equal requests at once."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from foveal.core.log import ModelSaid, UserSaid, text_of
from foveal.core.view import effective_events
from foveal.server.proxy.digest_index import DigestIndex
from foveal.stores import SqliteStore
from foveal.stores.postgres.leases import SessionLeases
from foveal.stores.session_locks import SessionLocks
from support.serve_process import HttpReply, Server, ask, serving
from support.service_databases import service_database_url
from support.upstream import DEADLINE, Piece, ProxyServer, RawUpstream, ReceivedRequest, answer, until

Json = dict[str, Any]
CONVERSATIONS = 6
TURNS = 6


def echo(seen: ReceivedRequest, number: int) -> Iterator[Piece]:
    last = json.loads(seen.body)["messages"][-1]["content"]
    message = {"role": "assistant", "content": f"{number}: {last}"}
    yield answer(
        json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}).encode()
    )


class Conversation:
    """A client that keeps its history, and asks another server when one dies."""

    def __init__(self, name: str, servers: list[Server]) -> None:
        self.name = name
        self.servers = servers
        self.history: list[Json] = [{"role": "system", "content": "You repeat."}]
        self.sessions: list[str] = []

    def ask(self, words: str, *, at: int) -> None:
        self.history.append({"role": "user", "content": words})
        body = {"model": "gpt-4.1", "messages": self.history}
        headers = {"authorization": "Bearer sk-of-the-client"}
        for server in (self.servers[at], *self.servers):
            try:
                reply = server.ask("/v1/chat/completions", body=body, headers=headers)
            except (OSError, HTTPException):
                continue
            assert reply.status == 200, reply.body
            self.history.append(reply.json["choices"][0]["message"])
            self.sessions.append(reply.headers["x-foveal-session"])
            return
        raise AssertionError("no server answers")

    @property
    def texts(self) -> list[str]:
        return [message["content"] for message in self.history[1:]]


async def stored_messages(folder: Path, session: str) -> list[str]:
    """Return the stored messages of a session."""
    async with SqliteStore(folder / "tenants" / "default.db") as store:
        events = effective_events(await store.read(session))
    return [text_of(e.fact.content) for e in events if isinstance(e.fact, UserSaid | ModelSaid)]


def test_conversations_survive_a_killed_server(tmp_path: Path) -> None:
    folder = tmp_path / "server"
    with RawUpstream(echo) as raw:
        settings = {"server.openai_url": raw.openai, "server.rate": 0}
        with (
            serving(folder=folder, settings=settings) as first,
            serving(folder=folder, settings=settings) as second,
        ):
            conversations = [
                Conversation(f"conversation {number}", [first, second]) for number in range(CONVERSATIONS)
            ]
            for turn in range(3):  # alternately at both servers
                conversations[0].ask(f"{conversations[0].name}, turn {turn}", at=turn % 2)

            def finish(one: Conversation) -> None:
                for turn in range(3 if one is conversations[0] else 0, TURNS):
                    one.ask(f"{one.name}, turn {turn}", at=0)

            with ThreadPoolExecutor(CONVERSATIONS) as pool:
                work = [pool.submit(finish, one) for one in conversations]
                until(lambda: len(raw.seen) > CONVERSATIONS * TURNS // 2)
                first.kill()
                for done in work:
                    done.result()
            for one in conversations:  # what the first had not recorded when it died is recorded now
                one.ask(f"{one.name}, the end", at=1)
            second.stop()
    assert conversations[0].sessions[0] == conversations[0].sessions[1] == conversations[0].sessions[2]
    for one in conversations:
        assert asyncio.run(stored_messages(folder, one.sessions[-1])) == one.texts


class TwoServers:
    """Two servers that share their data, and an upstream that answers "<number>: <last message>" when it is told
    to."""

    def __init__(self, stack: ExitStack, folder: Path | None, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self._answers = threading.Event()
        self._raw = stack.enter_context(RawUpstream(self._reply))
        self._threads = stack.enter_context(ThreadPoolExecutor())
        settings = {"server.openai_url": self._raw.openai, "server.rate": 0}
        self.one, self.two = (
            stack.enter_context(serving(folder=folder, settings=settings, environment=environment))
            for _ in range(2)
        )

    def _reply(self, seen: ReceivedRequest, number: int) -> Iterator[Piece]:
        yield self._answers
        yield from echo(seen, number)

    def ask_while_answering(self, *asked: tuple[Server, list[str]]) -> list[HttpReply]:
        """Send histories to servers, each when the upstream has the one before; then let it answer all of them."""
        self._answers.clear()
        waiting: list[Future[HttpReply]] = []
        for server, texts in asked:
            count = len(self._raw.seen)
            waiting.append(self._threads.submit(self._ask, server, texts))
            until(lambda before=count: len(self._raw.seen) > before)
        self._answers.set()
        return [one.result() for one in waiting]

    def ask(self, server: Server, texts: list[str]) -> HttpReply:
        (reply,) = self.ask_while_answering((server, texts))
        return reply

    def _ask(self, server: Server, texts: list[str]) -> HttpReply:
        reply = server.ask("/v1/chat/completions", body=request_of(texts))
        assert reply.status == 200, reply.body
        return reply


def request_of(texts: list[str]) -> Json:
    roles = ("user", "assistant")
    messages = [{"role": roles[at % 2], "content": text} for at, text in enumerate(texts)]
    return {"model": "gpt-4.1", "messages": messages}


def text_of_answer(reply: HttpReply) -> str:
    text: str = reply.json["choices"][0]["message"]["content"]
    return text


def session_of(reply: HttpReply) -> str:
    return reply.headers["x-foveal-session"]


@pytest.fixture(params=["folder", "postgres"], scope="module")
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoServers]:
    """Two servers for several tests: each has conversations that begin with other words."""
    with ExitStack() as stack:
        if request.param == "folder":
            yield TwoServers(stack, tmp_path_factory.mktemp("two") / "server", {})
        else:
            environment = {"FOVEAL_DATABASE": stack.enter_context(service_database_url())}
            yield TwoServers(stack, None, environment)


def test_equal_requests_at_two_servers_are_two_conversations(servers: TwoServers) -> None:
    one, two = servers.one, servers.two
    first, other, third = servers.ask_while_answering((one, ["Hi"]), (two, ["Hi"]), (one, ["Hi"]))
    assert len({session_of(first), session_of(other), session_of(third)}) == 3

    history = ["Hi", text_of_answer(first), "Go on"]
    later, same = servers.ask_while_answering((two, history), (one, history))
    assert session_of(later) == session_of(first) != session_of(same)


def test_a_conversation_that_another_server_is_answering_is_forked(servers: TwoServers) -> None:
    one, two = servers.one, servers.two
    first = servers.ask(one, ["Good morning"])
    history = ["Good morning", text_of_answer(first), "Go on"]
    later, forked = servers.ask_while_answering((two, history), (one, [*history, "Not yet sent", "And now?"]))
    assert session_of(later) == session_of(first) != session_of(forked)
    again = servers.ask(two, [*history, text_of_answer(later), "Further"])
    assert session_of(again) == session_of(first)


@pytest.mark.parametrize("servers", ["folder"], indirect=True)
def test_a_server_that_is_slow_to_release_a_recorded_reply_causes_no_fork(servers: TwoServers) -> None:
    assert servers.folder is not None
    locks_file = servers.folder / "turnstile.lock"
    first = servers.ask(servers.one, ["Hello"])
    name = f"exchange/{session_of(first)}"

    async def ask_while_held() -> HttpReply:
        locks = SessionLocks(locks_file)
        async with locks.lock("default", name):
            asking = asyncio.to_thread(servers.ask, servers.two, ["Hello", text_of_answer(first), "Go on"])
            later = asyncio.create_task(asking)
            await asyncio.sleep(0.5)
        await locks.close()
        return await later

    assert session_of(asyncio.run(ask_while_held())) == session_of(first)


def test_a_request_that_waited_for_a_killed_server_continues_its_conversation(tmp_path: Path) -> None:
    def upstream(seen: ReceivedRequest, number: int) -> Iterator[Piece]:
        if number == 1:
            # As if a server had recorded the request, and was killed before the reply.
            yield answer(b"{}", status="500 Internal Server Error")
        else:
            yield from echo(seen, number)

    async def ask_while_held(server: Server, body: Json, session: str) -> HttpReply:
        locks = SessionLocks(tmp_path / "server" / "turnstile.lock")
        async with locks.lock("default", session), locks.lock("default", f"exchange/{session}"):
            asking = asyncio.create_task(asyncio.to_thread(server.ask, "/v1/chat/completions", body=body))
            await asyncio.sleep(0.5)
            assert not asking.done()
        await locks.close()
        return await asking

    with RawUpstream(upstream) as raw:
        settings = {"server.openai_url": raw.openai, "server.rate": 0}
        with serving(folder=tmp_path / "server", settings=settings) as server:
            body = {"model": "gpt-4.1", "messages": [{"role": "user", "content": "Hi"}]}
            failed = server.ask("/v1/chat/completions", body=body)
            assert failed.status == 500
            reply = asyncio.run(ask_while_held(server, body, session_of(failed)))
    assert reply.status == 200
    assert session_of(reply) == session_of(failed)


def test_a_reply_that_another_server_records_during_the_search_is_found(
    service_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, unlocked = DigestIndex.add, SessionLeases.unlocked
    may_write, written = threading.Event(), threading.Semaphore(0)
    begun: set[str] = set()

    async def add_late(self: DigestIndex, tenant: str, session: str, *rest: Any, **more: Any) -> None:
        is_reply = session in begun
        begun.add(session)
        if is_reply:
            await asyncio.to_thread(may_write.wait, DEADLINE)
        await add(self, tenant, session, *rest, **more)
        if is_reply:
            asyncio.get_running_loop().call_later(0.1, written.release)  # when the claim is released

    async def unlocked_after_writes(self: SessionLeases, names: list[tuple[str, str]]) -> Any:
        may_write.set()
        for _ in names:
            await asyncio.to_thread(written.acquire, timeout=DEADLINE)
        return await unlocked(self, names)

    monkeypatch.setattr(DigestIndex, "add", add_late)
    monkeypatch.setattr(SessionLeases, "unlocked", unlocked_after_writes)
    with RawUpstream(echo) as raw:
        settings: Json = {"openai": raw.openai, "server__database": service_url}
        with (
            ProxyServer(tmp_path / "one", **settings) as one,
            ProxyServer(tmp_path / "two", **settings) as two,
        ):

            def send(server: ProxyServer, texts: list[str], session: str = "") -> HttpReply:
                headers = {"x-foveal-session": session} if session else {}
                return ask(server.url, "/v1/chat/completions", body=request_of(texts), headers=headers)

            first = send(one, ["Hi"], "second-in-order")
            send(one, ["Hi"], "first-in-order")
            later = send(two, ["Hi", text_of_answer(first), "Go on"])
    assert session_of(later) == session_of(first) == "second-in-order"
