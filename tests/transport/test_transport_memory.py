"""A memory in the requests of client libraries through a transport: in one place, until it is forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

import foveal.transport
from foveal.transport import ConversationPool
from support.adapter_runs import WINDOW, Talk, check_memory
from support.provider_stand_in import Answer, StandIn


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with StandIn(window=WINDOW, script=lambda number: Answer(text=f"Turn {number} is done.")) as standin:
        yield standin


class Chat:
    """A conversation with a client library, whose history is here."""

    def __init__(self, provider: StandIn, http: Any, dialect: str) -> None:
        self._openai = openai.OpenAI(
            base_url=provider.openai, api_key="none", max_retries=0, http_client=http
        )
        self._anthropic = anthropic.Anthropic(
            base_url=provider.anthropic, api_key="none", max_retries=0, http_client=http
        )
        self._dialect = dialect
        self._history: list[Any] = []

    async def ask(self, question: str) -> None:
        self._history.append({"role": "user", "content": question})
        answer = await asyncio.to_thread(getattr(self, f"_{self._dialect}_answer"))
        self._history.append({"role": "assistant", "content": answer})

    def _openai_chat_answer(self) -> str:
        messages = [{"role": "system", "content": "Be careful."}, *self._history]
        reply = self._openai.chat.completions.create(model="gpt-4.1", messages=messages)
        return str(reply.choices[0].message.content)

    def _openai_responses_answer(self) -> str:
        reply = self._openai.responses.create(
            model="gpt-4.1", instructions="Be careful.", input=list(self._history), store=False
        )
        return reply.output_text

    def _anthropic_answer(self) -> str:
        reply = self._anthropic.messages.create(
            model="claude-sonnet-4-6", max_tokens=500, system="Be careful.", messages=list(self._history)
        )
        return "".join(block.text for block in reply.content if block.type == "text")


@pytest.mark.parametrize("dialect", ["openai_chat", "openai_responses", "anthropic"])
def test_a_transport_shows_a_memory_in_one_place_and_learns(
    provider: StandIn, tmp_path: Path, dialect: str
) -> None:
    async def run(settings: dict[str, Any], talk: Talk) -> None:
        with foveal.transport.httpx2(ConversationPool(**settings)) as http:
            await talk(Chat(provider, http, dialect).ask)

    asyncio.run(check_memory(provider, tmp_path / "a.db", run))
