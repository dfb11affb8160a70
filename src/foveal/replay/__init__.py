"""The replay lab: what a context policy costs and forgets, measured on recorded conversations, without a model.

    recordings = load(["logs/"])
    rows = run(recordings, ["economy", "rolling"], window=32_000, reserve=4_000)
    print(table(rows))

Every request goes through the same `Context` that users call; see docs/replay.md for what the figures mean.
"""

from foveal.replay.contenders import Contender, contenders
from foveal.replay.figures import Figures
from foveal.replay.loading import choose, load
from foveal.replay.losses import Hidden, worst
from foveal.replay.needs import Need, needs, vocabulary
from foveal.replay.running import run
from foveal.replay.table import as_json, table
from foveal.replay.traces import Loss, Recall, Setting, Trace

__all__ = [
    "Contender",
    "Figures",
    "Hidden",
    "Loss",
    "Need",
    "Recall",
    "Setting",
    "Trace",
    "as_json",
    "choose",
    "contenders",
    "load",
    "needs",
    "run",
    "table",
    "vocabulary",
    "worst",
]
