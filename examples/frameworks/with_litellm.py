"""litellm inside the model's window: Foveal's functions in place of litellm's, and a callback."""

import asyncio
from typing import Any

import litellm

from foveal.adapters.litellm import FovealCallback

fitted = FovealCallback(recall_tools=True, summarise="own", store="contexts.db")
litellm.callbacks = [fitted]  # for acompletion, the Router and the proxy

MODEL = "openai/gpt-4.1"
CONVERSATION = {"session_id": "ci"}


def ask(messages: list[Any]) -> str:
    """Return the answer, after all calls of recall tools that the model makes."""
    while True:
        reply = fitted.completion(MODEL, messages, metadata=CONVERSATION)
        message = reply.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return str(message.content)
        for call in message.tool_calls:
            function = call.function
            found = fitted.recall(function.name, function.arguments, messages, metadata=CONVERSATION)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": found})


async def stream(messages: list[Any]) -> None:
    reply = await fitted.acompletion(MODEL, messages, metadata=CONVERSATION, stream=True)
    async for chunk in reply:
        print(chunk.choices[0].delta.content or "", end="")


if __name__ == "__main__":
    history: list[Any] = [{"role": "user", "content": "Why is CI red?"}]
    print(ask(history))
    asyncio.run(stream([*history, {"role": "user", "content": "And yesterday?"}]))
    conversation = fitted.conversations.find("ci")
    assert conversation is not None
    print(conversation.context.report())
    print(conversation.context.why("e1"))
    fitted.conversations.close()
