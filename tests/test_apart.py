"""Law 16: no text of one conversation reaches another, wherever conversations are recognised by their messages.

Users talk at the same time, in any order. Their conversations begin alike and part at some message: one tree, whose
leaves are the users. Some edit their newest message, some send a request again. What a user said after the parting
has a word that only this user knows; the summariser writes down all that it was shown."""

from __future__ import annotations

import asyncio
import json
import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, Final

import pytest

import foveal
from foveal import Context, SummaryRequest
from foveal.adapters import Conversations, Piece
from foveal.core.log.events import Dialect
from foveal.transport import ConversationPool
from foveal.transport.client_request import ClientRequest, RequestCache
from foveal.transport.fitted_exchange import FittedExchange
from support.effort import rest_in_soak

Message = dict[str, Any]
SEEDS: Final = range(20) if os.environ.get("FOVEAL_SOAK") else range(1, 2)
WINDOW: Final = 4_000
FILLING: Final = "The build has a step that takes long and says little about why. " * 40
QUERIES: Final = ("password", "continue", "build step", "SECRET")


class User:
    """One leaf of the tree: a conversation of which the first turns are those of others."""

    def __init__(self, name: str, common_turns: int, turns: int) -> None:
        self.name = name
        self.said: list[Message] = []
        self.turns = turns
        self._turn = 0
        self._common = common_turns

    @property
    def is_done(self) -> bool:
        return self._turn >= self.turns

    def speak(self, random: Random) -> list[Message]:
        """Return the history of the next request: a new message, the newest one edited, or the same again."""
        if self.said and random.random() < 0.25:
            if self._turn > self._common and random.random() < 0.5:
                self.said[-1] = self._message(f"{FILLING} edited password SECRET-{self.name}-{self._turn}")
            return list(self.said)
        if self.said:
            self.said.append({"role": "assistant", "content": "Fine."})
        text = "continue" if self._turn % 2 else f"{FILLING} part {self._turn}"
        if self._turn == self._common or (self._turn > self._common and random.random() < 0.7):
            text = f"{FILLING} password SECRET-{self.name}-{self._turn}"
        self.said.append(self._message(text))
        self._turn += 1
        return list(self.said)

    def _message(self, text: str) -> Message:
        return {"role": "user", "content": text}


def echo(request: SummaryRequest) -> str:
    """Write a summary as bad as it can be for the law: every secret that the model was shown."""
    shown = (
        " ".join(dict.fromkeys(re.findall(r"SECRET-\w+-\d+", json.dumps(request.messages)))) or "no password"
    )
    sections = ("Goal", "Decisions", "State", "Next", "Dead ends")
    text = "\n".join(f"## {section}\nThe build step takes {shown}." for section in sections)
    return f"<summary>\n{text}\n</summary>"


Answers = Callable[[User, list[Message]], Iterator[str]]
"""Sends the request of a user and returns all that this user, and their model, may then read."""


def read_all(context: Context) -> Iterator[str]:
    yield str(context.report())
    yield str(context.statements())
    for query in QUERIES:
        yield "\n".join(context.recall("recall_search", {"query": query}).split("\n")[1:])
    yield context.recall("recall_read", {"handle": f"e0-e{len(context.log)}"})


class ChatFormat:
    dialect: Dialect = "openai_chat"

    def write(self, message: Message) -> Sequence[Message]:
        return [message]

    def build(self, pieces: Sequence[Piece], original: Message | None) -> Sequence[Message]:
        return [piece.message for piece in pieces]


def one_context(**settings: Any) -> Answers:
    context = Context("gpt-4.1", window=WINDOW, reserve=300, **settings)

    def send(user: User, said: list[Message]) -> Iterator[str]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield json.dumps(context.fit(said))
        yield from read_all(context)

    return send


def an_adapter(**settings: Any) -> Answers:
    conversations = Conversations(ChatFormat(), "gpt-4.1", window=WINDOW, reserve=300, **settings)

    def send(user: User, said: list[Message]) -> Iterator[str]:
        found = conversations.get(conversations.recognise(said, how=""))
        yield json.dumps(found.fit(said))
        yield from read_all(found.context)
        yield found.context.save().decode()

    return send


def a_transport(**settings: Any) -> Answers:
    pool = ConversationPool(window=WINDOW, **settings)

    def send(user: User, said: list[Message]) -> Iterator[str]:
        body = json.dumps({"model": "gpt-4.1", "messages": said, "max_tokens": 300}).encode()
        request = ClientRequest("openai_chat", body, RequestCache())
        exchange = FittedExchange(pool, request, name="", is_retry=False)
        context = pool.contexts[-1]
        exchange.end()
        yield exchange.body.decode()
        yield from read_all(context)
        yield context.save().decode()

    return send


@pytest.mark.parametrize(
    ("place", "summarise"),
    rest_in_soak(
        [
            (one_context, None), (an_adapter, echo), (a_transport, echo),
            (one_context, echo), (an_adapter, None), (a_transport, None),
        ],
        kept=3,
    ),
    ids=lambda one: one.__name__ if one else "ledger",
)  # fmt: skip
def test_no_text_of_a_user_reaches_another(place: Callable[..., Answers], summarise: Any) -> None:
    summaries = 0
    for seed in SEEDS:
        random = Random(seed)
        users = [User(name, random.randint(0, 8), random.randint(6, 16)) for name in ("ANN", "BOB", "CAT")]
        send = place(summarise=summarise)
        while talking := [user for user in users if not user.is_done]:
            user = random.choice(talking)
            for number, read in enumerate(send(user, user.speak(random))):
                others = [
                    other.name for other in users if f"SECRET-{other.name}" in read and other is not user
                ]
                assert others == [], f"seed {seed}, request of {user.name}, text {number}"
                summaries += bool(re.search(r"foveal: (record|summary) of e", read))
    assert summaries, "nothing was summarised"


# ── Recall in a session ──────────────────────────────────────────────────────────────────────────────────


def test_recall_neither_finds_nor_reads_what_a_session_has_rewound() -> None:
    async def answers() -> list[str]:
        async with foveal.stores.MemoryStore() as store:
            session = await foveal.Session.open(store, "shared", model="gpt-4.1")
            await session.take({"role": "user", "content": "Hi, the ticket is OPS-17."})
            start = session.last
            await session.take({"role": "user", "content": "My password is SECRET-A of ticket OPS-17."})
            recall = foveal.Recall(session)
            before = await recall.search("ticket OPS-17")
            await session.rewind(start)
            await session.take({"role": "user", "content": "My password is SECRET-B of ticket OPS-17."})
            found, read = (
                await recall.search("ticket OPS-17 password"),
                await recall.read(start + 1, start + 1),
            )
            await session.undo()
            return [before, found, read, await recall.search("ticket OPS-17 password")]

    before, found, read, again = asyncio.run(answers())
    assert "SECRET-A" in before
    assert "SECRET-A" not in found
    assert "SECRET-B" in found
    assert "OPS-17" in found
    assert "SECRET-A" not in read
    assert "no part of the conversation any more" in read
    assert "SECRET-A" in again  # the rewind is undone
