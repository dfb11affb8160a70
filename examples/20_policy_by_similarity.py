"""A policy of your own: hides the results that are least similar to what the user asks now, by any embedding."""

import math
import re
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import foveal
from foveal.policies import Budget, Decision, Moment, PolicyResult, PolicyView

Embed = Callable[[str], Sequence[float]]


def hashed_words(text: str) -> list[float]:
    """A stand-in for a model: counts of words, hashed to 256 numbers of length 1."""
    counts = Counter(zlib.crc32(word.encode()) % 256 for word in re.findall(r"[a-z]{3,}", text.lower()))
    length = math.sqrt(sum(count * count for count in counts.values())) or 1.0
    return [counts[place] / length for place in range(256)]


class BySimilarity(foveal.Policy, frozen=True):
    """Above a share of the room, hides the results that the latest user message is least about."""

    embed: Embed = hashed_words
    """Returns the embedding of a text: numbers of length 1. The same text must always give the same numbers."""
    share: float = 0.6
    """Share of the room from which it acts."""
    keep: float = 0.6
    """Part of the results that stays."""

    def decide(self, view: PolicyView, budget: Budget, moment: Moment) -> Decision:
        if view.units <= budget.hard * self.share or moment.cutting:  # one cut for a request
            return None
        asked = self.embed(next(step.text for step in reversed(view.steps) if step.kind == "user"))

        def similarity(result: PolicyResult) -> float:
            found = self.embed(result.text)
            return sum(one * other for one, other in zip(asked, found, strict=True))

        hidable = sorted((result for result in view.results if result.can_hide), key=similarity)
        return view.hide(hidable[: math.ceil(len(hidable) * (1 - self.keep))])


messages: list[dict[str, Any]] = [{"role": "user", "content": "Which rule does the parser break?"}]
for number in range(8):
    subject = ("parser rule token grammar", "invoice price tax customer")[number % 2]
    function = {"name": "search", "arguments": f'{{"query": "{number}"}}'}
    call = {"id": f"call_{number}", "type": "function", "function": function}
    messages += [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"call_{number}", "content": f"{number}: {subject}\n" * 40},
    ]

ctx = foveal.Context("gpt-4.1", window=4_000, reserve=1_000, policy=BySimilarity())
ctx.fit(messages)
hidden = [
    ctx.original(mask.target).split("\n")[0]
    for event in ctx.log
    if isinstance(event.fact, foveal.events.Masked)
    for mask in event.fact.masks
]
print("hidden:", *hidden, sep="\n  ")
print(foveal.testing.check_policy(BySimilarity(), histories=3).reductions)
