"""Sees each cut before it is made: a hook keeps the failing test, and logs go first."""

import foveal


def tool_step(number: int, tool: str, output: str) -> list[object]:
    call = {"id": f"call_{number}", "type": "function", "function": {"name": tool, "arguments": "{}"}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"call_{number}", "content": output},
    ]


def keep_failures(cut: foveal.ProposedCut) -> foveal.Steering | None:
    print(f"{cut.kind} of {len(cut.events)} events frees {cut.freed:,} tokens ({cut.reason})")
    failed = [event.handle for event in cut.events if "FAILED" in event.text]
    return {"keep": failed, "focus": "the failing tests"} if failed else None


policy = foveal.policy("economy", tool_priorities={"server_logs": "low"})
ctx = foveal.Context("gpt-4.1", window=8_000, policy=policy, on_reduction=keep_failures)

history: list[object] = [
    {"role": "user", "content": "Find out why the build is red."},
    *tool_step(0, "bash", "tests/test_price.py::test_bound FAILED\n" + "expected 12, got 11\n" * 40),
]
for number in range(1, 30):
    tool = "server_logs" if number % 2 else "bash"
    history += tool_step(number, tool, "\n".join(f"line {line} of run {number}" for line in range(60)))
ctx.fit(history)

print(f"the failing test is shown: {ctx.why('e3').level}")
for event in ctx.log:
    if isinstance(event.fact, foveal.events.Steered):
        print(f"{event.handle}: a {event.fact.by} kept {event.fact.keep} with focus {event.fact.focus!r}")
assert ctx.why("e3").level == "full"
