"""Drop-in conversations across processes: two servers on one folder, one is killed under load."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from typing import Any

from foveal.core.log import ModelSaid, UserSaid, text_of
from foveal.core.view import effective_events
from foveal.stores import SqliteStore
from support.serve_process import Server, serving
from support.upstream import Piece, RawUpstream, ReceivedRequest, answer, until

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
