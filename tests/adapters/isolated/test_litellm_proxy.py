"""A litellm proxy with Foveal's callback, between an OpenAI client and a provider that refuses illegal requests."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import openai
import pytest

from foveal.adapters.litellm import API_KEY_FIELD
from foveal.core.log import Used
from foveal.stores import open_store
from support.adapter_runs import TURNS, WINDOW, check_run, search
from support.provider_stand_in import StandIn, looping
from support.waiting import wait_until

START_TIMEOUT_S = 300
PARAMETERS = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
TOOL = {
    "type": "function",
    "function": {"name": "search", "description": "Search.", "parameters": PARAMETERS},
}
CALLBACKS = f"""
from litellm.proxy._types import UserAPIKeyAuth

from foveal.adapters.litellm import FovealCallback

fitted = FovealCallback(window={WINDOW}, reserve=1_000, store="contexts.db")


async def accept(request, api_key):
    return UserAPIKeyAuth(api_key=api_key)
"""
CONFIG = """
model_list:
  - model_name: careful
    litellm_params:
      model: openai/gpt-4.1
      api_base: {url}
      api_key: none
litellm_settings:
  callbacks: foveal_callbacks.fitted
  num_retries: 0
general_settings:
  master_key: sk-master-0123456789abcdef
  custom_auth: foveal_callbacks.accept
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running_proxy(folder: Path, upstream: str) -> Iterator[str]:
    """Run `litellm --config` until the block ends; yields the address of its OpenAI endpoints."""
    (folder / "foveal_callbacks.py").write_text(CALLBACKS)
    (folder / "config.yaml").write_text(CONFIG.format(url=upstream))
    port = free_port()
    command = [Path(sys.prefix) / "bin" / "litellm", "--config", "config.yaml", "--host", "127.0.0.1"]
    environment = {**os.environ, "NO_PROXY": "127.0.0.1"}
    with (folder / "proxy.log").open("w") as log:
        process = subprocess.Popen(
            [*command, "--port", str(port)], cwd=folder, env=environment, stdout=log, stderr=log
        )

        def answers() -> bool:
            assert process.poll() is None, (folder / "proxy.log").read_text()
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        try:
            wait_until(answers, seconds=START_TIMEOUT_S)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()
            process.wait()


@pytest.fixture(scope="module")
def provider() -> Iterator[StandIn]:
    with StandIn(window=WINDOW) as standin:
        yield standin


@pytest.fixture(scope="module")
def proxy(provider: StandIn, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    folder = tmp_path_factory.mktemp("proxy")
    with running_proxy(folder, provider.openai) as url:
        yield url, folder / "contexts.db"


class ChatClient:
    """A tool loop on the client of OpenAI, which keeps every message."""

    def __init__(
        self, url: str, session: str, *, key: str = "sk-one", streaming: bool = False, **metadata: str
    ) -> None:
        self._client = openai.OpenAI(base_url=url, api_key=key, max_retries=0)
        self._options: dict[str, Any] = {
            "model": "careful",
            "tools": [TOOL],
            "max_completion_tokens": 1_000,
            "extra_body": {"litellm_session_id": session, "metadata": metadata},
        }
        self._streaming = streaming
        self.messages: list[Any] = [{"role": "system", "content": "You are a careful agent."}]

    def ask(self, question: str) -> None:
        self.messages.append({"role": "user", "content": question})
        while True:
            before = deepcopy(self.messages)
            answer = self._answer()
            assert self.messages == before
            self.messages.append(answer)
            if not answer.get("tool_calls"):
                return
            for call in answer["tool_calls"]:
                result = search(**json.loads(call["function"]["arguments"]))
                self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})

    def _answer(self) -> dict[str, Any]:
        if self._streaming:
            with self._client.chat.completions.stream(messages=self.messages, **self._options) as stream:
                reply = stream.get_final_completion()
        else:
            reply = self._client.chat.completions.create(messages=self.messages, **self._options)
        answer = reply.choices[0].message.model_dump(exclude_none=True)
        return {name: answer[name] for name in ("role", "content", "tool_calls") if answer.get(name)}


def stored_usages(path: Path) -> dict[str, int]:
    """Return how many usages each stored conversation has seen."""

    async def read() -> dict[str, int]:
        async with open_store(path) as store:
            names = [info.id for info in await store.sessions()]
            return {
                name: sum(isinstance(event.fact, Used) for event in await store.read(name)) for name in names
            }

    return asyncio.run(read())


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streaming"])
def test_an_agent_stays_inside_the_window(
    provider: StandIn, proxy: tuple[str, Path], streaming: bool
) -> None:
    provider.requests.clear()
    answered, script = provider.attempts, looping()
    provider.script = lambda number: script(number - answered)
    url, store = proxy
    session = f"streaming {streaming}"
    client = ChatClient(url, session, streaming=streaming)
    for turn in range(TURNS):
        client.ask(f"Question {turn}: look it up.")
    check_run(provider)
    (seen,) = [usages for name, usages in stored_usages(store).items() if name.endswith(f"/{session}")]
    # The usage of the last request is stored with the next one.
    assert seen == len(provider.requests) - 1


def test_keys_have_conversations_of_their_own(provider: StandIn, proxy: tuple[str, Path]) -> None:
    url, store = proxy
    before = set(stored_usages(store))
    for client in (
        ChatClient(url, "shared"),
        ChatClient(url, "shared", key="sk-two"),
        ChatClient(url, "shared", key="sk-three", **{API_KEY_FIELD: "sk-one"}),
    ):
        client.ask("Question: look it up.")
    new = set(stored_usages(store)) - before
    assert len(new) == 3
    assert all(name.endswith("/shared") for name in new)
