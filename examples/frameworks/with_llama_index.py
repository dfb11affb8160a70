"""LlamaIndex inside the model's window: its OpenAI client sends through Foveal's transport."""

from typing import Any

from llama_index.llms.openai import OpenAI

import foveal

conversations = foveal.transport.ConversationPool(window=16_000, reserve=1_000)


def make_llm(**options: Any) -> OpenAI:
    """Return a model for any agent of LlamaIndex. The memory of the agent keeps every message."""
    return OpenAI(
        model="gpt-4.1",
        http_client=foveal.transport.httpx(conversations),
        async_http_client=foveal.transport.httpx_async(conversations),
        additional_kwargs={"stream_options": {"include_usage": True}},
        max_tokens=1_000,
        **options,
    )
