"""AG2 inside the model's window: its OpenAI client sends through Foveal's transport."""

from typing import Any

from ag2.config import OpenAIConfig

import foveal

conversations = foveal.transport.ConversationPool(window=16_000, reserve=1_000)


def make_config(**options: Any) -> OpenAIConfig:
    """Return a model configuration for any agent of AG2. Its stream keeps every event."""
    http_client = foveal.transport.httpx2_async(conversations)
    return OpenAIConfig(model="gpt-4.1", http_client=http_client, max_completion_tokens=1_000, **options)
