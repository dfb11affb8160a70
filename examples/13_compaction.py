"""Compacts a conversation, expands the summary, and undoes it. The log only grows."""

from typing import Any

import foveal
from foveal.core.log import kind

RECORD = """<summary>
## Goal
Make CI green; the public API stays as it is.
## Decisions
The bound in src/price.py was wrong: `<` instead of `<=`.
## State
tests/test_price.py is fixed and green.
## Next
-
## Dead ends
Changing the tests: the user forbade it.
</summary>"""


def write(request: foveal.SummaryRequest) -> str:
    """A scripted model. Send `request.messages` to a real one, with at most `request.max_tokens` of output."""
    print(f"the model is asked: {request.form}, {len(request.messages)} messages, stage {request.stage!r}")
    return RECORD


def tool_step(number: int, command: str, output: str) -> list[object]:
    function = {"name": "bash", "arguments": f'{{"command": "{command}"}}'}
    call = {"id": f"call_{number}", "type": "function", "function": function}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"call_{number}", "content": output},
    ]


def show(title: str) -> list[Any]:
    """Print the log with the level of each event; return the request."""
    request = ctx.fit(history)
    print(f"\n{title}: {len(ctx.log)} events in the log, {len(request)} messages, {ctx.report().used} tokens")
    for event in ctx.log:
        line = ctx.why(event.handle)
        print(f"  {event.handle:4}{kind(event.fact):14}{line.level:11}{line.tokens or ''}".rstrip())
    return request


passed = "\n".join(["the price list: a case passed"] * 90)
history: list[object] = [
    {"role": "user", "content": "Make CI green, and leave the tests as they are."},
    *tool_step(1, "pytest", passed + "\ntests/test_price.py::test_bound FAILED\nexit code: 1"),
    {"role": "assistant", "content": "The bound in src/price.py is wrong: `<` instead of `<=`."},
    {"role": "user", "content": "Then fix it."},
    *tool_step(2, "sed -i s/</<=/ src/price.py", "exit code: 0"),
    *tool_step(3, "pytest", passed + "\n91 passed\nexit code: 0"),
    {"role": "assistant", "content": "tests/test_price.py is fixed and green."},
    {"role": "user", "content": "What was it?"},
]

ctx = foveal.Context("gpt-4.1", window=16_000, policy="handoff", summarise=write)
ctx.pin("The public API stays as it is.")
before = show("before")

summary = ctx.compact()  # explicit here; `fit` compacts automatically above 70 % of the room
request = show("after a compaction")
print()
for message in request:
    print(f"{message['role']}: {message['content']}")

ctx.expand(summary)  # show what it replaces, until the next user message
show("expanded for this turn")
history += [{"role": "assistant", "content": "A bound."}, {"role": "user", "content": "Thank you."}]
show("after the next user message")

ctx.undo(summary)  # even after later turns
after = show("after undo")
assert after[: len(before)] == before

(fact,) = [event.fact for event in ctx.log if isinstance(event.fact, foveal.events.Compacted)]
print(f"\n{summary} is still in the log: {fact.first} to {fact.last}, by {fact.by}")
