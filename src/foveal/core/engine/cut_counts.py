"""What one cut did, counted and in words.

A cut is a compaction with masks: results are hidden, long messages of the agent are shortened, and the oldest
steps go. The event says all of it but the number of steps that went: a range also has what earlier cuts had
taken out, and only the log tells these apart.
"""

from __future__ import annotations

from typing import NamedTuple

from foveal.core.compaction.health import read_metrics
from foveal.core.log.events import Compacted


class CutCounts(NamedTuple):
    """How many results and messages one cut changed."""

    results: int
    """Results that it hid behind placeholders."""
    shortened: int
    """Messages of the agent with shorter arguments or texts."""

    @classmethod
    def of(cls, fact: Compacted) -> CutCounts:
        """Count the messages that masks change. Those of the agent stay, so they are in `keep`."""
        targets, keep = {mask.target for mask in fact.masks}, set(fact.keep)
        return cls(len(targets - keep), len(targets & keep))


def cut_text(fact: Compacted, *, steps: int = 0) -> str:
    """Return what a cut did, such as `hid 14 results, shortened 2 messages and removed 6 steps (34,400
    tokens), with a record of 2,300 tokens`. `steps` is the number of steps that went, if the caller has the log."""
    counts, sizes = CutCounts.of(fact), read_metrics(fact)
    done = [
        f"{verb} {number:,} {noun}{'' if number == 1 else 's'}"
        for verb, number, noun in (
            ("hid", counts.results, "result"),
            ("shortened", counts.shortened, "message"),
            ("removed", steps, "step"),
        )
        if number
    ]
    text = " and ".join(filter(None, (", ".join(done[:-1]), *done[-1:])))
    return (
        f"{text} ({sizes.before:,} tokens), with a record of {sizes.after:,} tokens" if sizes.before else text
    )
