"""Runs the same conversation under several presets and a custom policy."""

from typing import Any

import foveal

messages: list[object] = [
    {"role": "system", "content": "Never push to main."},
    {"role": "user", "content": "Make the build green."},
]
requests: list[int] = []
for number in range(40):
    call = {
        "id": f"call_{number}",
        "type": "function",
        "function": {"name": "bash", "arguments": '{"command": "make"}'},
    }
    log = "\n".join(f"[{number}] cc -O2 -c src/part_{number}_{part}.c" for part in range(25))
    requests.append(len(messages))
    messages += [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"call_{number}", "content": log},
    ]

mine: dict[str, Any] = {
    "preset": "economy",
    "name": "mine",
    "keep_last": 1,
    "target": 0.3,
    "summary_tokens": 1_000,
}
for policy in ("economy", "rolling", "recent", mine):
    ctx = foveal.Context("gpt-4.1", window=12_000, policy=policy)
    for end in requests:
        ctx.fit(messages[:end])
    report = ctx.report()
    used, breaks = report.used, len(report.breaks)
    print(f"{report.policy:8} last request {used:>6,} tokens, {breaks:>2} prefix breaks in 40 calls")

try:
    foveal.Context("gpt-4.1", window=12_000, policy="off").fit(messages)
except foveal.ContextOverflow as problem:
    print(f"off      {problem}")

try:
    foveal.policy("economy", target=1.5)
except foveal.BadSetting as problem:
    print(f"a typo   {problem}")
