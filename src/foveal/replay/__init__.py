"""The replay lab: what a context policy costs and forgets, measured on recorded conversations, without a model.

    recordings = load(["logs/"])
    rows = run(recordings, ["economy", "rolling"], window=32_000, reserve=4_000)
    print(table(rows))

Every request goes through the same `Context` that users call; see docs/replay.md for what the figures mean.
"""

from foveal.replay.play import Loss, RecallCount, ReplaySetting, Trace
from foveal.replay.policy_choice import PolicyChoice, policy_choices
from foveal.replay.recall_score import Need, needs, vocabulary
from foveal.replay.run import choose, load, run
from foveal.replay.statistics import HiddenResult, PolicyStatistics, worst
from foveal.replay.table import as_json, table

__all__ = [
    "HiddenResult",
    "Loss",
    "Need",
    "PolicyChoice",
    "PolicyStatistics",
    "RecallCount",
    "ReplaySetting",
    "Trace",
    "as_json",
    "choose",
    "load",
    "needs",
    "policy_choices",
    "run",
    "table",
    "vocabulary",
    "worst",
]
