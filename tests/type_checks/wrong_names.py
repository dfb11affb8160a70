"""Mistakes that a type checker reports: each line that ends in `# wrong`, and no other."""

from __future__ import annotations

import foveal

foveal.Contxt("gpt-4.1")  # wrong
events = foveal.evnts  # wrong
foveal.policy("economy", treshold=0.5)  # wrong
foveal.policy("econmy")  # wrong
foveal.policy("economy", mode="ask")  # wrong
foveal.policy("economy", keep_last="5")  # wrong
foveal.Context("gpt-4.1", windw=8_000)  # wrong
foveal.Context("gpt-4.1", policy="econmy")  # wrong
foveal.Context("gpt-4.1", dialect="opnai")  # wrong
foveal.recall.tools("opnai")  # wrong
foveal.Limits(strategy="middle")  # wrong

ctx = foveal.Context("gpt-4.1")
ctx.fit([{"role": "user", "content": "Why?"}], tols=[])  # wrong
ctx.fitt([])  # wrong
used = ctx.report().usde  # wrong
ctx.pin(events="e1")  # wrong
