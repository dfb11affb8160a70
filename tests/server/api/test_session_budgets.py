"""Budgets of the server's own sessions, over the API and in a bot: users are told, and nothing is lost."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from foveal.core.view.request import Fitted
from foveal.ports import Reply, ReplyPiece
from foveal.server.auth_tokens import AuthTokens, MemoryChoice
from foveal.testing import Scripted
from support.api_server import ApiServer
from support.gated_provider import run
from support.telegram_bot import USER, running_bot

Json = dict[str, Any]
OTHER = 77
EACH = 55
"""Tokens of each request that the stand-in reports."""


class Metered(Scripted):
    """Reports the same usage for every request."""

    async def send(self, request: Fitted, *, max_tokens: int) -> AsyncIterator[ReplyPiece | Reply]:
        async for piece in super().send(request, max_tokens=max_tokens):
            usage = {"prompt_tokens": 495, "completion_tokens": 5}
            yield replace(piece, usage=usage) if isinstance(piece, Reply) else piece


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    limits = {"budgets__user": ["soft 100 tokens per day", "3,000 tokens per day"]}
    with ApiServer(tmp_path, **limits) as made:
        yield made


def turn(client: Any, session: str, text: str, **more: Any) -> Any:
    return client.post(f"/api/sessions/{session}/turns", json={"text": text, "stream": False, **more})


def test_a_turn_beyond_the_limit_fails_with_429_and_its_message_stays(server: ApiServer) -> None:
    with server.client() as client:
        client.post("/api/sessions", json={"id": "one", "user": "ada"})
        assert turn(client, "one", "Hello.").status_code == 200
        refused = turn(client, "one", "word " * 99_000)
        problem = refused.json()
        assert (refused.status_code, problem["cause"]) == (429, "budget_exceeded")
        assert 0 < int(refused.headers["retry-after"]) <= 86_400
        assert "3,000 tokens per day" in problem["detail"]
        events = client.get("/api/sessions/one/events").json()["events"]
        assert any("word word" in json.dumps(event) for event in events)
        client.post("/api/sessions", json={"id": "two", "user": "bob"})
        assert turn(client, "two", "Hello.").status_code == 200


def test_a_model_without_a_price_is_refused_as_for_drop_in_clients(tmp_path: Path) -> None:
    with ApiServer(tmp_path, budgets__tenant="5 USD per day") as server, server.client() as client:
        client.post("/api/sessions", json={"id": "one"})
        refused = turn(client, "one", "Hello.")
        assert (refused.status_code, refused.json()["cause"]) == (403, "price_unknown")
        assert "retry-after" not in refused.headers


def test_a_soft_limit_is_an_event_of_the_turn_that_reaches_it(server: ApiServer) -> None:
    with server.client() as client:
        client.post("/api/sessions", json={"id": "one", "user": "ada"})
        streams = [turn(client, "one", f"Hello {number}.", stream=True).text for number in range(3)]
    told = [stream.count("event: budget_reached") for stream in streams]
    assert told == [0, 1, 0]
    assert f"{2 * EACH} tokens of soft 100 tokens per day" in streams[1]


def test_an_erased_user_stays_at_the_limit_and_is_not_named(tmp_path: Path) -> None:
    with ApiServer(tmp_path, budgets__user="3,000 tokens per month") as server, server.client() as client:
        client.post("/api/sessions", json={"id": "two", "user": "ada"})
        assert turn(client, "two", "Hello.").status_code == 200
        assert client.delete("/api/users/ada").status_code == 200
        database = server.service.runtime.database
        rows = server.do(database.read(lambda db: db.fetch("SELECT key, tokens FROM spending")))
        assert [tokens for _, tokens in rows] == [EACH]
        assert re.search(r"\bada\b", str(rows)) is None  # a digest may have these letters
    with ApiServer(tmp_path, budgets__user="50 tokens per month") as server, server.client() as client:
        client.post("/api/sessions", json={"id": "three", "user": "ada"})
        assert f"{EACH} tokens spent" in turn(client, "three", "Hello.").json()["detail"]
        assert client.delete("/api/users/ada").status_code == 200
        client.post("/api/sessions", json={"id": "four", "user": "ada"})
        assert f"{EACH} tokens spent" in turn(client, "four", "Hello.").json()["detail"]


def bound(server: ApiServer, user: str) -> Any:
    """Return a client whose token belongs to one user."""
    tokens = AuthTokens(server.service.runtime.database)
    return server.client(server.do(tokens.create("default", memory=MemoryChoice(user), now=0.0))[1])


def test_a_token_of_a_user_acts_as_this_user_and_no_other(server: ApiServer) -> None:
    with server.client(server.token("default")) as owner, bound(server, "carl") as carl:
        for body in ({"id": "nobody"}, {"id": "ada", "user": "ada"}):
            assert owner.post("/api/sessions", json=body).status_code == 201
        mine = carl.post("/api/sessions", json={"id": "mine"})
        assert (mine.status_code, mine.json()["user"]) == (201, "carl")
        assert carl.post("/api/sessions", json={"user": "carl"}).status_code == 201
        assert turn(carl, "mine", "Hello.").status_code == 200
        schedule = {"name": "daily", "session": "new", "cron": "0 9 * * *", "prompt": "Hello."}
        refused = [
            carl.post("/api/sessions", json={"user": "ada"}),
            turn(carl, "ada", "Hello."),
            turn(carl, "nobody", "Hello."),
            turn(carl, "nobody", "Hello.", background=True),
            carl.post("/api/sessions/nobody/compact", json={}),
            carl.post("/api/sessions/ada/fork", json={}),
            carl.get("/api/sessions/ada/events"),
            carl.delete("/api/sessions/ada"),
            carl.delete("/api/users/ada"),
            carl.get("/api/memory/ada"),
            carl.post("/api/schedules", json=schedule),
        ]
        assert [(one.status_code, one.json()["type"]) for one in refused] == [
            (403, "urn:foveal:other_user")
        ] * len(refused)
        assert turn(carl, "missing", "Hello.").status_code == 404
        assert carl.delete("/api/users/carl").status_code == 200
        assert turn(owner, "ada", "Hello.").status_code == 200


def test_the_model_is_told_what_is_left_if_that_is_on(tmp_path: Path) -> None:
    limits = {"budgets__user": "2,000 tokens per day", "budgets__tell_model": True}
    with ApiServer(tmp_path, **limits) as server, server.client() as client:
        client.post("/api/sessions", json={"id": "one", "user": "ada"})
        for _ in range(20):
            assert turn(client, "one", "Hello.").status_code == 200
        events = json.dumps(client.get("/api/sessions/one/events").json())
    assert events.count("more than 50% of the budget (2,000 tokens per day) is left") == 1
    assert events.count("less than 50% of the budget (2,000 tokens per day) is left") == 1


@run
async def test_a_bot_tells_once_of_a_soft_limit_and_refuses_beyond_a_hard_one(tmp_path: Path) -> None:
    provider = Metered(*[f"Answer {number}." for number in range(9)])
    settings = {
        "telegram.allowed": [USER, OTHER],
        "budgets.user": ["soft 900 tokens per day", "3,000 tokens per day"],
    }
    async with running_bot(tmp_path, provider, **settings) as bot:

        async def tell(text: str, user: int = USER) -> str:
            count = len(bot.api.messages)
            bot.api.hear(text, user=user)
            return str((await bot.api.said(count + 1))[-1]["text"])

        said = [await tell(f"Hello {number}.") for number in range(7)]
        told = ["💰 The soft limit of the user is reached" in text for text in said]
        assert told == [False, True, *[False] * 5]
        refused = ["the limit of 3,000 tokens per day is reached" in text for text in said]
        assert refused[:4] == [False] * 4
        assert refused[6]
        assert "Answer" in await tell("Hello.", OTHER)
