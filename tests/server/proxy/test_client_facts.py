"""Tests of the client's versions of messages, which one request keeps for the next."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from foveal.core import wire
from foveal.core.log import Dialect
from foveal.core.log.events import AnyFact, ModelSaid, calls_of
from foveal.core.models.model import model
from foveal.server.proxy.conversation import ClientFacts, ProxiedConversation
from foveal.sessions.session import Session
from foveal.stores.memory import MemoryStore
from foveal.transport import client_request
from foveal.transport.client_request import ClientRequest, RequestCache
from support.gated_provider import run

Json = dict[str, Any]
DIALECTS: list[Dialect] = ["openai_chat", "openai_responses", "anthropic"]
FIELD = {"openai_chat": "messages", "openai_responses": "input", "anthropic": "messages"}


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_request, "DIGESTED_BLOCK_BYTES", 64)


@dataclass
class Client:
    """A client whose requests all go to one conversation."""

    dialect: Dialect
    conversation: ProxiedConversation
    cache: RequestCache = field(default_factory=RequestCache)

    @classmethod
    async def open(cls, dialect: Dialect, id: str = "one") -> Client:
        made = model("gpt-4.1")
        return cls(
            dialect,
            ProxiedConversation(await Session.open(MemoryStore(), id, model=made), made, reserve=None),
        )

    async def send(self, *messages: str) -> list[AnyFact]:
        """Send messages as JSON; return their facts, which must be those that nothing is kept for."""
        body = f'{{"model": "gpt-4.1", "{FIELD[self.dialect]}": [{", ".join(messages)}]}}'
        request = ClientRequest(self.dialect, body.encode(), self.cache)
        assert not request.problem
        known = self.conversation.count_known(request.digests)
        count = self.conversation.count_up_to(request.digests[known - 1]) if known else 0
        if count < len(self.conversation.messages):
            await self.conversation.rewind(count)
        await self.conversation.append_new(request, known, request.chunks(known))
        fitted = await self.conversation.fit(request)
        facts = self.conversation.client_facts.restore(fitted, self.conversation, request)
        assert facts == ClientFacts().restore(fitted, self.conversation, request)
        return facts


def said(number: int, space: str = "") -> list[str]:
    """Return a turn of a chat; `space` stands where it makes no difference to a conversation."""
    arguments = json.dumps(f'{{"n":{space}{number}}}')
    return [
        f'{{"role": "user", "content": "question {number}"}}',
        f'{{"role": "assistant", "content": null, "tool_calls": [{{"id": "c{number}", "type": "function", '
        f'"function": {{"name": "look", "arguments": {arguments}}}}}]}}',
        f'{{"role": "tool", "tool_call_id": "c{number}", "content": "result {number}"}}',
    ]


def history(*turns: Sequence[str]) -> list[str]:
    return [message for turn in turns for message in turn]


def arguments_of(facts: Sequence[AnyFact]) -> list[str]:
    said = (fact for fact in facts if isinstance(fact, ModelSaid))
    return [call.arguments for fact in said for _, call in calls_of(fact.content)]


@run
async def test_a_later_request_reads_only_new_messages() -> None:
    client = await Client.open("openai_chat")
    first = await client.send(*history(*map(said, range(20))))
    second = await client.send(*history(*map(said, range(21))))
    kept = [one is other for one, other in zip(first, second, strict=False)]
    assert kept.count(False) <= 3


@run
async def test_a_message_that_comes_in_another_form_is_read_again() -> None:
    client, turns = await Client.open("openai_chat"), [said(number) for number in range(20)]
    await client.send(*history(*turns))
    turns[7] = said(7, " ")
    assert arguments_of(await client.send(*history(*turns)))[7] == '{"n": 7}'
    turns[7] = said(7, "\t")
    assert arguments_of(await client.send(*history(*turns, said(20))))[7] == '{"n":\t7}'


@run
async def test_an_edited_or_rewound_history_shows_the_new_messages() -> None:
    client, turns = await Client.open("openai_chat"), [said(number) for number in range(12)]
    await client.send(*history(*turns))
    await client.send(*history(*turns[:5]))
    assert arguments_of(await client.send(*history(*turns[:5], said(77))))[5:] == ['{"n":77}']
    assert arguments_of(await client.send(*history(*turns)))[5:] == [f'{{"n":{n}}}' for n in range(5, 12)]


@run
async def test_conversations_that_begin_alike_share_nothing() -> None:
    one, two = await Client.open("openai_chat", "one"), await Client.open("openai_chat", "two")
    two.cache = one.cache
    turns = [said(number) for number in range(10)]
    await one.send(*history(*turns, said(20)))
    await two.send(*history(*turns, said(21)))
    assert arguments_of(await one.send(*history(*turns, said(20), said(22))))[10:] == ['{"n":20}', '{"n":22}']
    assert arguments_of(await two.send(*history(*turns, said(21), said(22))))[10:] == ['{"n":21}', '{"n":22}']


@run
async def test_an_equal_fact_of_the_log_is_kept_in_place_of_a_copy() -> None:
    client = await Client.open("openai_chat")
    facts = await client.send(*history(*map(said, range(5))))
    logged = {id(event.fact) for event in await client.conversation.session.events()}
    assert all(id(fact) in logged for fact in facts)


def variants(dialect: Dialect, random: Random) -> Iterator[list[str]]:
    """Yield the messages of requests, each the one before with messages added, taken away, or in another form."""
    messages: list[str] = []
    for number in range(30):
        content: Any = [{"type": "input_text" if dialect == "openai_responses" else "text", "text": "x" * 40}]
        content = content if number % 3 else f"question {number}"
        messages.append(json.dumps({"role": "user", "content": content}))
        if random.random() < 0.3:
            del messages[random.randrange(len(messages)) :]
        if messages and random.random() < 0.5:
            at = random.randrange(len(messages))
            messages[at] = (
                messages[at].replace(": ", ":  ", 1) if random.random() < 0.7 else messages[at] + " "
            )
        if messages:
            yield messages


@pytest.mark.parametrize("dialect", DIALECTS)
@run
async def test_whatever_a_client_resends_is_shown_as_it_is_now(dialect: Dialect) -> None:
    client, writer = await Client.open(dialect), wire.wire_for(dialect)
    for messages in variants(dialect, Random(3)):
        facts = await client.send(*messages)
        written = writer.join([writer.write(fact) for fact in facts])
        assert written == writer.join([[json.loads(message)] for message in messages])
