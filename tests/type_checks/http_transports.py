"""Types of the HTTP transports with the clients of both providers."""

from __future__ import annotations

import anthropic
import openai

import foveal


def clients() -> None:
    openai.OpenAI(http_client=foveal.transport.httpx2())
    openai.AsyncOpenAI(http_client=foveal.transport.httpx2_async())
    anthropic.Anthropic(http_client=foveal.transport.httpx2())
    anthropic.AsyncAnthropic(http_client=foveal.transport.httpx2_async())
