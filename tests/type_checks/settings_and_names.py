"""Types of the settings and of the names that a plain `import foveal` gives."""

from __future__ import annotations

from typing import assert_type

import foveal
from foveal.events import Compacted, Known

economy = foveal.policy("economy", keep_last=5, target=0.3, exempt_tools=["read_plan"], mode="confirm")
assert_type(economy, foveal.Policy)
assert_type(foveal.policy(economy, clip=foveal.Limits(tokens=300)), foveal.Policy)
foveal.policy({"preset": "economy", "name": "mine"}, clip_tools={"tail": {"strategy": "tail", "lines": 6}})

for preset in foveal.PRESETS:
    foveal.Context("gpt-4.1", policy=preset, window=8_000, dialect="anthropic")
foveal.Context(foveal.model("gpt-4.1"), policy=economy, reserve=900)
foveal.Context("gpt-4.1", policy={"preset": "economy", "clip": {"strategy": "both", "lines": 256}})

ctx = foveal.Context("gpt-4.1")
assert_type(ctx.log, tuple[foveal.Event, ...])
assert_type(
    [event.fact for event in ctx.log if isinstance(event.fact, foveal.events.UserSaid)], list[foveal.UserSaid]
)
assert_type(ctx.report().used, int)
foveal.errors.BadSetting("window", -1, "a whole number")
summary = Compacted(first=1, last=4, summary="Parts 1 and 2 fail.")
known: Known = summary
assert_type(summary, foveal.events.Compacted)
