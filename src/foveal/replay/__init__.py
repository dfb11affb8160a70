"""The replay lab: what a context policy costs and forgets, measured on recorded conversations, without a model.

    recordings = load(["logs/"])
    rows = run(recordings, ["economy", "rolling"], window=32_000, reserve=4_000)
    print(table(rows))

Every request goes through the same `Context` that users call; see docs/replay.md for what the figures mean.
"""

from foveal.replay.cache_cost import PromptCache, RelativePrices, common_prefix
from foveal.replay.html import page
from foveal.replay.play import Loss, RecallCount, ReplaySetting, Trace
from foveal.replay.policy_choice import PolicyChoice, policy_choices
from foveal.replay.recall_score import (
    MessageText,
    Need,
    RequestReader,
    argument_texts,
    facts_of,
    needs,
    stands,
    vocabulary,
    whole,
)
from foveal.replay.recorded_calls import conversation
from foveal.replay.run import choose, load, run, tokens
from foveal.replay.statistics import HiddenResult, PolicyStatistics, worst
from foveal.replay.table import as_json, table
from foveal.replay.upper_bound import ORACLE_ARGUMENTS
from foveal.replay.why import answer_text, reduced

__all__ = [
    "ORACLE_ARGUMENTS",
    "HiddenResult",
    "Loss",
    "MessageText",
    "Need",
    "PolicyChoice",
    "PolicyStatistics",
    "PromptCache",
    "RecallCount",
    "RelativePrices",
    "ReplaySetting",
    "RequestReader",
    "Trace",
    "answer_text",
    "argument_texts",
    "as_json",
    "choose",
    "common_prefix",
    "conversation",
    "facts_of",
    "load",
    "needs",
    "page",
    "policy_choices",
    "reduced",
    "run",
    "stands",
    "table",
    "tokens",
    "vocabulary",
    "whole",
    "worst",
]
