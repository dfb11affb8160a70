"""The reduction ladder: functions from a view to the next reduction, or None.

The rungs, from the gentlest to the last:

1. mask: old results and old call arguments become placeholders with a skeleton. Images above their own budget
   become placeholders too.
2. clip the newest: the results of the newest step share one limit.
3. compact: old turns become a summary. This rung returns a plan; the caller has the summary written. User messages
   stay as they are within their share of the room; beyond it long ones are clipped first.
4. cut: old results are hidden, and only then calls and texts are shortened and steps removed; also a plan.
5. force: what must go goes (`force_fit`), into a record without a model, merged summaries, clips, and drops.

The rungs read the view and return what to record; they change nothing in it but the caches that its messages own
(see `ShownMessage`). No rung touches instructions, pinned steps, the latest user message, or the calls of the
newest step.

Priorities (`priorities`) change the order inside a rung, and hold steps back: what is low goes first, what is high
last.

A policy decides when and how far to use which rung.
"""

from foveal.core.policies.ladder.cut import (
    MIN_FREED_SHARE,
    covers_reverted_summary,
    estimate_rewritten,
    foresee_compaction,
    plan_compaction,
    plan_cut,
    plan_oldest,
    plan_upcoming,
    record_room,
    saves_too_little,
    steps_before_newest,
    summary_terms,
)
from foveal.core.policies.ladder.drop import (
    clip_newest_results,
    clip_user_messages,
    drop_steps,
    droppable_steps,
    force_fit,
    irreducible_units,
    last_resort_steps,
    limit_messages,
    name_late_results,
    newest_excess,
)
from foveal.core.policies.ladder.mask import (
    exceeds_media_limits,
    mask_low_results,
    mask_media,
    mask_results,
    maskable_results,
)
from foveal.core.policies.ladder.priorities import has_priorities, high_steps

__all__ = [
    "MIN_FREED_SHARE",
    "clip_newest_results",
    "clip_user_messages",
    "covers_reverted_summary",
    "drop_steps",
    "droppable_steps",
    "estimate_rewritten",
    "exceeds_media_limits",
    "force_fit",
    "foresee_compaction",
    "has_priorities",
    "high_steps",
    "irreducible_units",
    "last_resort_steps",
    "limit_messages",
    "mask_low_results",
    "mask_media",
    "mask_results",
    "maskable_results",
    "name_late_results",
    "newest_excess",
    "plan_compaction",
    "plan_cut",
    "plan_oldest",
    "plan_upcoming",
    "record_room",
    "saves_too_little",
    "steps_before_newest",
    "summary_terms",
]
