"""The drop-in endpoint in front of the real local model, without key and address.

The weights come from the user's cache folder, or are downloaded if that takes less than a minute."""

from __future__ import annotations

import asyncio
import importlib.util
import os
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from foveal.errors import ProviderError
from foveal.providers.local import download
from support.upstream import DEADLINE, ProxyServer

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("dasllama") is None, reason="the server is missing: pip install 'foveal[local]'"
)
WINDOW = 256


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment with the weights and without any key."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    folder = download.weights_folder(os.environ)
    try:
        asyncio.run(asyncio.wait_for(download.fetch(download.QWEN_05B, folder), 60))
    except (ProviderError, TimeoutError) as problem:
        pytest.skip(f"the local model cannot be fetched: {problem or 'it takes longer than a minute'}")
    names = ("HOME", "XDG_CACHE_HOME", "PATH")
    return {name: os.environ[name] for name in names if name in os.environ}


@pytest.mark.soak
def test_without_key_and_address_the_local_model_answers(tmp_path: Path, home: dict[str, str]) -> None:
    """One test also for what the model remembers beyond its window, because a start takes seconds."""
    messages: list[Any] = [{"role": "system", "content": "You answer briefly."}]
    with (
        ProxyServer(
            tmp_path, environment=home, window=WINDOW, tokenizer="auto", compaction__mode="off"
        ) as proxy,
        openai.OpenAI(base_url=proxy.openai, api_key="none", max_retries=0, timeout=600) as client,
    ):
        replies: list[tuple[str, httpx.Headers]] = []
        fillers = [f"Note {number}: " + f"box {number} holds pears; " * 11 for number in range(3)]
        for words in (
            *(f"{text} Say only: noted." for text in fillers),
            "What is the capital of France?",
            "And of Italy?",
        ):
            messages.append({"role": "user", "content": words})
            reply = client.chat.completions.with_raw_response.create(
                model="whatever", messages=messages, max_tokens=12, temperature=0
            )
            text = reply.parse().choices[0].message.content or ""
            messages.append({"role": "assistant", "content": text})
            replies.append((text, reply.headers))
        assert "Paris" in replies[-2][0]
        assert "Rome" in replies[-1][0]
        assert {headers["x-foveal-model"] for _, headers in replies} == {"local/qwen2.5-coder-0.5b"}
        assert len({headers["x-foveal-session"] for _, headers in replies}) == 1
        assert int(replies[-1][1]["x-foveal-whole"]) > WINDOW
        assert int(replies[-1][1]["x-foveal-tokens"]) < WINDOW
        assert replies[-1][1]["x-foveal-reduced"] != "none"
        with httpx.Client(trust_env=False, verify=False, timeout=DEADLINE) as http:
            other = http.post(f"{proxy.url}/v1/messages", json={"model": "x", "messages": messages[1:2]})
        assert other.status_code == 501
        assert "server.anthropic_url" in other.json()["error"]["message"]
