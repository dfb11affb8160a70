"""Providers of the agent compact a conversation with their own API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

import foveal
from foveal.config import load
from foveal.core.log.events import Compacted, ModelSaid, UserSaid, unraw
from foveal.core.wire.native_compaction import COMPACTION_BETA
from foveal.ports import Provider
from foveal.providers.anthropic import Anthropic
from foveal.providers.base import BaseProvider
from foveal.providers.endpoint import ProviderEndpoint
from foveal.providers.openai_chat import OpenAIChat
from foveal.providers.openai_responses import OpenAIResponses
from foveal.providers.summariser import native_summariser_for
from support.raw_upstream import Piece, RawUpstream, ReceivedRequest, stream_head

Json = dict[str, Any]
BLOCK = {"type": "compaction", "content": "The user counts words.", "signature": "c2ln"}
ITEM = {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAA" * 30}
PROVIDERS: dict[str, type[BaseProvider]] = {
    "claude-opus-5-5": Anthropic,
    "gpt-5.1": OpenAIResponses,
    "gpt-4.1": OpenAIChat,
}


def events(*listed: Json) -> Iterator[Piece]:
    yield stream_head()
    for one in listed:
        yield f"event: {one['type']}\ndata: {json.dumps(one)}\n\n".encode()


def script(seen: ReceivedRequest, number: int) -> Iterator[Piece]:
    """Stream a compaction, as Anthropic or OpenAI do."""
    usage = {"input_tokens": 900, "output_tokens": 30}
    if "messages" in json.loads(seen.body):
        start = {"role": "assistant", "content": [], "usage": usage}
        yield from events(
            {"type": "message_start", "message": start},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "compaction"}},
            {"type": "content_block_delta", "index": 0, "delta": {**BLOCK, "type": "compaction_delta"}},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "compaction"}, "usage": usage},
            {"type": "message_stop"},
        )
    else:
        response = {"object": "response", "status": "completed", "output": [ITEM], "usage": usage}
        yield from events(
            {"type": "response.output_item.done", "output_index": 0, "item": ITEM},
            {"type": "response.completed", "response": response},
        )


def provider(model: str, upstream: RawUpstream) -> Provider:
    url = upstream.anthropic if model.startswith("claude") else upstream.openai
    return PROVIDERS[model](
        ProviderEndpoint("Stand-in", url=url, key="k"), foveal.model(model, window=12_000)
    )


async def compacted(writer: Provider) -> tuple[Compacted, foveal.Fitted]:
    """Return what a session records when it is compacted, and its next request."""
    async with foveal.stores.MemoryStore() as store:
        session = await foveal.Session.open(
            store,
            "demo",
            model=writer.model,
            policy="handoff",
            summarise=native_summariser_for(writer),
        )
        for turn in range(8):
            await session.append(UserSaid(content=f"Count the words of part {turn}."))
            await session.append(ModelSaid(content=f"Part {turn}: " + "word " * 300))
        await session.append(UserSaid(content="And in all?"))
        await session.fit()
        await session.compact()
        (fact,) = [event.fact for event in await store.read("demo") if isinstance(event.fact, Compacted)]
        request = await session.fit()
        await session.close()
    await writer.close()
    return fact, request


def test_anthropic_compacts_a_session() -> None:
    with RawUpstream(script) as raw:
        fact, request = asyncio.run(compacted(provider("claude-opus-5-5", raw)))
        sent, body = raw.seen[0], json.loads(raw.seen[0].body)
    assert body["compaction"] == {"type": "summarize"}
    assert COMPACTION_BETA in sent.headers["anthropic-beta"].split(",")
    assert (unraw(fact.native), fact.dialect, fact.by) == (BLOCK, "anthropic", "claude-opus-5-5")
    assert request.to_anthropic()[0] == {"role": "assistant", "content": [BLOCK]}
    assert "[foveal: record of" in str(request.to_openai())


def test_openai_compacts_a_session() -> None:
    with RawUpstream(script) as raw:
        fact, request = asyncio.run(compacted(provider("gpt-5.1", raw)))
        body = json.loads(raw.seen[0].body)
    assert body["input"][-1] == {"type": "compaction_trigger"}
    assert (unraw(fact.native), fact.dialect) == (ITEM, "openai_responses")
    assert request.to_responses()[0] == ITEM
    assert "[foveal: record of" in str(request.to_anthropic())


def test_chat_completions_have_no_such_api() -> None:
    with RawUpstream(script) as raw:
        fact, _ = asyncio.run(compacted(provider("gpt-4.1", raw)))
        assert raw.seen == []
    assert (fact.by, bool(fact.native)) == ("ledger", False)


@pytest.mark.parametrize("value", ["auto", "native"])
def test_the_configuration_has_a_key(value: str) -> None:
    loaded = load(flags={"compaction.summarise": value}, environ={})
    assert loaded.summarises_natively is (value == "native")


def test_the_configuration_says_whether_thinking_is_bound() -> None:
    loaded = load(flags={"binds_thinking": True}, environ={})
    assert loaded.session("gpt-4.1")["binds_thinking"] is True
    assert "binds_thinking" not in load(environ={}).session("claude-opus-5-5")
