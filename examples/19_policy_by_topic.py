"""A policy of your own: what is about another topic than the latest message becomes a summary."""

import re
from typing import Any

import foveal
from foveal.policies import Budget, Decision, Moment, PolicyStep, PolicyView


class ByTopic(foveal.Policy, frozen=True):
    """Summarises what is about no word of the latest user message."""

    share: float = 0.5
    """Share of the room from which it acts."""

    def decide(self, view: PolicyView, budget: Budget, moment: Moment) -> Decision:
        if view.units <= budget.hard * self.share:
            return None
        users = [step for step in view.steps if step.kind == "user"]
        if not users:
            return None
        topic = words(users[-1].text)
        return view.summarise(step for step in view.steps if not topic & words_of(step))


def words(text: str) -> set[str]:
    return set(re.findall(r"[a-z]{5,}", text.lower()))


def words_of(step: PolicyStep) -> set[str]:
    return words(step.text).union(*(words(result.text) for result in step.results))


messages: list[dict[str, Any]] = []
for topic in ("billing", "parser", "billing"):
    messages.append({"role": "user", "content": f"What is wrong with the {topic}?"})
    for number in range(3):
        id = f"call_{len(messages)}"
        function = {"name": "read_file", "arguments": f'{{"path": "{topic}_{number}.py"}}'}
        text = "\n".join(f"{topic} line {number}.{line}" for line in range(60))
        messages += [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": id, "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": id, "content": text},
        ]

ctx = foveal.Context("gpt-4.1", window=6_000, reserve=1_000, policy=ByTopic())
request: list[dict[str, Any]] = []
for end in range(1, len(messages) + 1):
    if messages[end - 1]["role"] != "assistant":
        request = ctx.fit(messages[:end])

print(ctx.report())
shown = "\n".join(str(message.get("content")) for message in request)
print(f"billing is shown whole: {'billing line 0.30' in shown}")
print(f"parser is shown whole: {'parser line 0.30' in shown}")
print(foveal.testing.check_policy(ByTopic(), histories=3).reductions)
