"""Keeps an agent loop with the anthropic client inside its context window.

The system text is a separate parameter; pass it to `fit` too, so that it is counted. Set ANTHROPIC_API_KEY, and
ANTHROPIC_BASE_URL for another provider.
"""

import anthropic
from anthropic.types import MessageParam, ToolParam, ToolResultBlockParam

import foveal

RULES = "You find things in logs."
TOOLS: list[ToolParam] = [
    {
        "name": "search",
        "description": "Search the logs.",
        "input_schema": {"type": "object", "properties": {"query": {"type": "string"}}},
    }
]


def search(query: str) -> str:
    return "\n".join(
        f"{query}: 12:{minute:02d} GET /orders/{minute * 37} 200 in {minute}ms" for minute in range(60)
    )


ctx = foveal.Context("claude-sonnet-4-6", window=8_000)
messages: list[MessageParam] = []

with anthropic.Anthropic() as client:
    for task in ("Which request was the slowest?", "How many were there?", "Did any of them fail?"):
        messages.append({"role": "user", "content": task})
        while True:
            reply = client.messages.create(
                model="claude-sonnet-4-6",
                max_tokens=900,
                system=RULES,
                messages=ctx.fit(messages, tools=TOOLS, system=RULES),
                tools=TOOLS,
                cache_control={"type": "ephemeral"},
            )
            ctx.observe(reply.usage)
            messages.append({"role": "assistant", "content": reply.content})
            calls = [block for block in reply.content if block.type == "tool_use"]
            if not calls:
                break
            results: list[ToolResultBlockParam] = [
                {"type": "tool_result", "tool_use_id": call.id, "content": search(str(call.input))}
                for call in calls
            ]
            messages.append({"role": "user", "content": results})

print(ctx.report())
