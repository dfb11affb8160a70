"""Haystack inside the model's window: its OpenAI client sends through Foveal's transport."""

from typing import Any

import httpx
from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.components.generators.utils import print_streaming_chunk
from haystack.dataclasses import ChatMessage
from haystack.tools import create_tool_from_function

import foveal

conversations = foveal.transport.ConversationPool(window=16_000, reserve=1_000)


def make_generator(
    *, is_async: bool = False, headers: dict[str, str] | None = None, **options: Any
) -> OpenAIChatGenerator:
    """Return a generator for any agent of Haystack. Its state keeps every message."""
    inner = httpx.AsyncHTTPTransport() if is_async else httpx.HTTPTransport()
    client = {"transport": foveal.transport.wrap(inner, conversations), "headers": headers or {}}
    return OpenAIChatGenerator(model="gpt-4.1", http_client_kwargs=client, **options)


def search(query: str) -> str:
    """Search the sources."""
    return f"{query}: no match"


def main() -> None:
    generator = make_generator(
        headers={"X-Foveal-Session": "ci"},
        generation_kwargs={"stream_options": {"include_usage": True}},
        streaming_callback=print_streaming_chunk,
    )
    agent = Agent(chat_generator=generator, tools=[create_tool_from_function(search)])
    history = agent.run([ChatMessage.from_user("Why is CI red?")])["messages"]
    history = agent.run([*history, ChatMessage.from_user("And yesterday?")])["messages"]
    context = conversations.context("ci")
    assert context is not None
    print(context.report())
    print(context.why("e1"))


if __name__ == "__main__":
    main()
