"""The replay lab: what context policies cost and forget on recorded conversations.

    recordings = load(["logs/"])
    rows = run(recordings, ["economy", "rolling"], window=32_000, reserve=4_000)
    print(table(rows))

No model is called. Every request goes through the same `Context` that users call; docs/measure/replay.md explains
the figures.

run.py             policies by name, file or sweep; load, select and replay many conversations
play.py            one conversation under one policy
recorded_calls.py  a recorded conversation as the calls of its agent; a request as texts with token counts
recall_score.py    needed-later recall: needs, and whether requests contain them
cache_cost.py      bills with the prompt cache, prefix breaks
surprise.py        surprise: what a request says less about the next step than the whole history
upper_bound.py     the upper bound: oracles that know later calls
statistics.py      statistics of a policy, worst losses, most surprising calls
strata.py          the same for groups of conversations: by pressure, window and source
choice.py          the rule that chooses a policy, and leave-one-source-out
conclusion.py      which policy for these conversations, how sure, and the lines for foveal.toml
tune.py            the constants of economy for these conversations, with half of them kept back
table.py html.py           the results as text, JSON, and a page with plots
why.py             whether and why a text was not in a request
"""

from foveal.core.wire.request_text import (
    MessageText,
    RequestReader,
    argument_texts,
    common_prefix_chars,
    make_request,
)
from foveal.replay.cache_cost import PromptCache, RelativePrices
from foveal.replay.choice import LeftOutSource, SourceValidation, leave_one_source_out
from foveal.replay.conclusion import Conclusion, FigureRange, OtherChoice, conclude
from foveal.replay.html import html_page
from foveal.replay.play import Loss, RecallCount, ReplaySetting, Trace
from foveal.replay.recall_score import Need, common_names, contains_word, find_needs, to_facts
from foveal.replay.recorded_calls import recorded_conversation
from foveal.replay.run import (
    PolicyChoice,
    ReplayArguments,
    count_tokens,
    half_of,
    load,
    policy_choices,
    read_session,
    run,
    select,
)
from foveal.replay.statistics import (
    HiddenResult,
    PolicyStatistics,
    SurprisingCall,
    most_surprising_calls,
    worst_losses,
)
from foveal.replay.strata import FigureSpread, GroupStatistics, pressure
from foveal.replay.surprise import CallSurprise, GoneQuote
from foveal.replay.table import as_json, table
from foveal.replay.tune import HalfFigures, Tuning, tune, tuning_text
from foveal.replay.upper_bound import ORACLE, ORACLE_ARGUMENTS
from foveal.replay.why import answer_text, is_session_log

__all__ = [
    "ORACLE",
    "ORACLE_ARGUMENTS",
    "CallSurprise",
    "Conclusion",
    "FigureRange",
    "FigureSpread",
    "GoneQuote",
    "GroupStatistics",
    "HalfFigures",
    "HiddenResult",
    "LeftOutSource",
    "Loss",
    "MessageText",
    "Need",
    "OtherChoice",
    "PolicyChoice",
    "PolicyStatistics",
    "PromptCache",
    "RecallCount",
    "RelativePrices",
    "ReplayArguments",
    "ReplaySetting",
    "RequestReader",
    "SourceValidation",
    "SurprisingCall",
    "Trace",
    "Tuning",
    "answer_text",
    "argument_texts",
    "as_json",
    "common_names",
    "common_prefix_chars",
    "conclude",
    "contains_word",
    "count_tokens",
    "find_needs",
    "half_of",
    "html_page",
    "is_session_log",
    "leave_one_source_out",
    "load",
    "make_request",
    "most_surprising_calls",
    "policy_choices",
    "pressure",
    "read_session",
    "recorded_conversation",
    "run",
    "select",
    "table",
    "to_facts",
    "tune",
    "tuning_text",
    "worst_losses",
]
