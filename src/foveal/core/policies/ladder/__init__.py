"""The reduction ladder: functions from a view to the next reduction, or None.

The rungs, from the gentlest to the last:

1. mask: old results and old call arguments become placeholders with a skeleton. Images above their own budget
   become placeholders too.
2. compact: old turns become a summary. This rung returns a plan; the caller has the summary written.
3. drop: the oldest whole steps leave the view, and a notice replaces them. Summaries go last.
4. squeeze: what must stay but is too large is clipped. It comes before dropping when what must stay takes most of
   the room, because dropping the rest would not be enough.

The rungs read the view and return what to record; they change nothing in it but the caches that its messages own
(see `ShownMessage`). No rung touches instructions, pinned steps, the latest user message, or the calls of the
newest step.

A policy decides when and how far to use which rung. `decide_after_overflow` uses all of them.
"""

from foveal.core.policies.ladder.after_overflow import decide_after_overflow
from foveal.core.policies.ladder.compact import (
    covers_reverted_summary,
    foresee_compaction,
    plan_compaction,
    summary_terms,
)
from foveal.core.policies.ladder.drop import drop_steps, droppable_steps, force_fit, limit_messages
from foveal.core.policies.ladder.mask import (
    MIN_MASKED_UNITS,
    has_maskable_arguments,
    mask_arguments,
    mask_result,
    mask_results,
    maskable_results,
)
from foveal.core.policies.ladder.media_limits import mask_media
from foveal.core.policies.ladder.squeeze import squeeze_results

__all__ = [
    "MIN_MASKED_UNITS",
    "covers_reverted_summary",
    "decide_after_overflow",
    "drop_steps",
    "droppable_steps",
    "force_fit",
    "foresee_compaction",
    "has_maskable_arguments",
    "limit_messages",
    "mask_arguments",
    "mask_media",
    "mask_result",
    "mask_results",
    "maskable_results",
    "plan_compaction",
    "squeeze_results",
    "summary_terms",
]
