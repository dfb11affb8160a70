"""Haystack inside the model's window: its OpenAI client sends through Foveal's transport."""

from typing import Any

import httpx
from haystack.components.generators.chat import OpenAIChatGenerator

import foveal

conversations = foveal.transport.ConversationPool(window=16_000, reserve=1_000)


def make_generator(*, is_async: bool = False, **options: Any) -> OpenAIChatGenerator:
    """Return a generator for any agent of Haystack. Its state keeps every message."""
    inner = httpx.AsyncHTTPTransport() if is_async else httpx.HTTPTransport()
    transport = foveal.transport.wrap(inner, conversations)
    return OpenAIChatGenerator(model="gpt-4.1", http_client_kwargs={"transport": transport}, **options)
