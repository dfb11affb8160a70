"""Keeps your own agent loop with the openai client inside its context window.

The three numbered lines are all that Foveal needs; the window is very small here. The example works with any
OpenAI-compatible provider: set OPENAI_BASE_URL and OPENAI_API_KEY.
"""

import openai
from openai.types.chat import ChatCompletionToolParam

import foveal

TOOLS: list[ChatCompletionToolParam] = [
    {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Search the logs.",
            "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
        },
    }
]


def search(query: str) -> str:
    return "\n".join(
        f"{query}: 12:{minute:02d} GET /orders/{minute * 37} 200 in {minute}ms" for minute in range(60)
    )


ctx = foveal.Context("gpt-4.1", window=8_000)  # 1
messages: list[object] = [{"role": "system", "content": "You find things in logs."}]

with openai.OpenAI() as client:
    for task in ("Which request was the slowest?", "How many were there?", "Did any of them fail?"):
        messages.append({"role": "user", "content": task})
        while True:
            reply = client.chat.completions.create(
                model="gpt-4.1",
                messages=ctx.fit(messages, tools=TOOLS),
                tools=TOOLS,
                max_tokens=900,  # 2
            )
            ctx.observe(reply.usage)  # 3
            message = reply.choices[0].message
            messages.append(message)
            for call in message.tool_calls or ():
                result = search(call.function.arguments) if call.type == "function" else "no such tool"
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
            if not message.tool_calls:
                break

print(ctx.report())
