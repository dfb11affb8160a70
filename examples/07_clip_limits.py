"""Clips tool results on arrival, with limits per policy, per tool and per call."""

import foveal
from foveal import Limits

LOG = "\n".join(
    "ERROR: disk quota exceeded on /var/lib" if line == 700 else f"12:00:{line:04d} copied block {line}"
    for line in range(2_000)
)


def tool_call(call_id: str, tool: str) -> list[object]:
    call = {"id": call_id, "type": "function", "function": {"name": tool, "arguments": "{}"}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call_id, "content": LOG},
    ]


policy = foveal.policy(
    "economy",
    clip=Limits(strategy="smart", tokens=300),
    clip_tools={"tail": Limits(strategy="tail", lines=6)},
)
ctx = foveal.Context("gpt-4.1", policy=policy)
ctx.limit("call_3", Limits(strategy="both", bytes=400, lines=20))
history: list[object] = [{"role": "user", "content": "What went wrong?"}]
history += tool_call("call_1", "backup") + tool_call("call_2", "tail") + tool_call("call_3", "backup")

for message in ctx.fit(history):
    if message["role"] == "tool":
        print(f"── {message['tool_call_id']}\n{message['content']}")

whole = [line.handle for line in ctx.report().events if line.level == "clipped"]
assert all(ctx.original(handle) == LOG for handle in whole)
