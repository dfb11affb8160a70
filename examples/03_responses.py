"""Keeps an agent loop with the OpenAI Responses API inside its context window.

The items of each reply go into the history unchanged, including reasoning items.
"""

import openai
from openai.types.responses import ToolParam

import foveal

RULES = "You find things in logs."
TOOLS: list[ToolParam] = [
    {
        "type": "function",
        "name": "search",
        "description": "Search the logs.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
        "strict": False,
    }
]


def search(query: str) -> str:
    return "\n".join(
        f"{query}: 12:{minute:02d} GET /orders/{minute * 37} 200 in {minute}ms" for minute in range(60)
    )


ctx = foveal.Context("gpt-5.1", window=8_000, reserve=900)
items: list[object] = []

with openai.OpenAI() as client:
    for task in ("Which request was the slowest?", "How many were there?", "Did any of them fail?"):
        items.append({"role": "user", "content": task})
        while True:
            reply = client.responses.create(
                model="gpt-5.1",
                instructions=RULES,
                input=ctx.fit(items, tools=TOOLS, system=RULES),
                tools=TOOLS,
                max_output_tokens=900,
                include=["reasoning.encrypted_content"],
                store=False,
            )
            ctx.observe(reply.usage)
            items += reply.output
            calls = [item for item in reply.output if item.type == "function_call"]
            for call in calls:
                found = search(call.arguments)
                items.append({"type": "function_call_output", "call_id": call.call_id, "output": found})
            if not calls:
                break

print(ctx.report())
