"""A model that manages its own context: it asks what fills its window, and for a cut."""

import foveal


def tool_step(number: int) -> list[object]:
    call = {"id": f"call_{number}", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
    output = "\n".join(f"part{number}/test_{line}.py passed in {line} ms" for line in range(40))
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"call_{number}", "content": output},
    ]


ctx = foveal.Context("gpt-4.1", window=128_000, policy=foveal.policy("economy", early=False))
tools = [*foveal.recall.tools("openai_chat"), *foveal.recall.context_tools("openai_chat")]
history: list[object] = [{"role": "user", "content": "Which part of the tests is slow?"}]
for number in range(70):
    history += tool_step(number)
    ctx.fit(history, tools=tools)  # send it, with `tools`

# What the model calls; send the answers as results of its calls.
print(ctx.recall("context_status", "{}"))
print(ctx.recall("context_cut", '{"why": "the first half is done", "keep": ["e5"]}'))
again = ctx.recall("context_cut", '{"why": "to be on the safe side"}')
print(again)
assert "refused" in again
assert ctx.why("e5").level == "full"
