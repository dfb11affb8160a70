"""Types of a durable session with the clients of both providers."""

from __future__ import annotations

import anthropic
import openai
from openai.types.chat import ChatCompletionMessage, ChatCompletionToolParam

import foveal


def summarise(client: openai.OpenAI) -> foveal.Summariser:
    def write(request: foveal.SummaryRequest) -> object:
        return client.chat.completions.create(
            model="gpt-4.1-mini", messages=request.messages, max_tokens=request.max_tokens
        )

    return foveal.Summariser(write, model="gpt-4.1-mini")


async def talk(
    client: openai.OpenAI,
    claude: anthropic.Anthropic,
    reply: ChatCompletionMessage,
    tools: list[ChatCompletionToolParam],
) -> None:
    async with foveal.open_store("chats.db") as store:
        session = await foveal.Session.open(
            store, "demo", model="gpt-4.1", policy="economy", window=8_000, summarise=summarise(client)
        )
        await session.append(
            foveal.UserSaid(content="Why is CI red?"), foveal.events.Noted(text="From the user.")
        )
        await session.take({"role": "user", "content": "Go on."}, reply)
        await session.equip(tools)
        fitted = await session.fit()
        client.chat.completions.create(model="gpt-4.1", messages=fitted.to_openai(), tools=tools)
        client.responses.create(model="gpt-4.1", input=fitted.to_responses())
        done = claude.messages.create(
            model="claude-sonnet-4-6", max_tokens=900, system=fitted.system, messages=fitted.to_anthropic()
        )
        await session.observe(done.usage)
