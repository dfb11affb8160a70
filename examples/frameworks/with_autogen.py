"""AutoGen inside the model's window: its OpenAI client sends through Foveal's transport."""

from typing import Any

from autogen_ext.models.openai import OpenAIChatCompletionClient

import foveal

conversations = foveal.transport.ConversationPool(window=16_000, reserve=1_000)


def make_model_client(**options: Any) -> OpenAIChatCompletionClient:
    """Return a model client for any agent of AutoGen. Its model context keeps every message."""
    http_client = foveal.transport.httpx2_async(conversations)
    return OpenAIChatCompletionClient(model="gpt-4.1", http_client=http_client, max_tokens=1_000, **options)
