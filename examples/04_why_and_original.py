"""Shows what the model saw, and why.

Every placeholder has a handle. `why` returns the rule that hid the text, `original` the whole text.
"""

from typing import Any

import foveal

ctx = foveal.Context("gpt-4.1", window=4_000, policy="rolling")
messages: list[dict[str, Any]] = [{"role": "user", "content": "Find the failing test."}]
for number in range(12):
    call = {
        "id": f"call_{number}",
        "type": "function",
        "function": {"name": "bash", "arguments": '{"command": "pytest"}'},
    }
    log = "\n".join(f"tests/test_{number}.py::test_{case} PASSED" for case in range(40))
    messages += [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"call_{number}", "content": log},
    ]

request = ctx.fit(messages)
placeholder = next(message["content"] for message in request if "foveal: masked" in str(message["content"]))
print("The model sees:", placeholder.splitlines()[0])

line = next(line for line in ctx.report().events if line.level == "masked")
print("Why:", ctx.why(line.handle))
print(
    "The original:",
    ctx.original(line.handle).splitlines()[-1],
    "and",
    ctx.original(line.handle).count("\n"),
    "more",
)

assert ctx.original(line.handle) in [message["content"] for message in messages]
