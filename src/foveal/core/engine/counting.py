"""Calibration of an engine: folded from the log, and anchored at the current view."""

from __future__ import annotations

from foveal.core.engine.overflow import silent_overflow_reason
from foveal.core.engine.prefix import may_move_prefix
from foveal.core.log.events import Event, Expanded, Pinned, Reverted, Rewound, Used
from foveal.core.tokens.calibration import NEVER_MEASURED, Calibration
from foveal.core.view.view import View


def calibrate(calibration: Calibration, event: Event, *, window: int) -> Calibration:
    """Return what is known of the provider's counting after one more event. Reports of other models are ignored,
    so the log gives the same calibration whenever it is folded."""
    fact = event.fact
    if isinstance(fact, Reverted):
        return calibration.reverted(fact.target, event.seq)
    shows_again = isinstance(fact, Rewound | Expanded) or (isinstance(fact, Pinned) and fact.whole)
    if shows_again or may_move_prefix(fact):
        return calibration.reduced(event.seq)
    if not isinstance(fact, Used) or silent_overflow_reason(
        prompt=fact.prompt, predicted=fact.predicted, window=window
    ):
        return calibration
    return calibration.observe(
        fact.units,
        fact.prompt,
        model=fact.model,
        until=fact.until,
        unreduced=fact.unreduced,
        predicted=fact.predicted,
    )


def anchor_at_view(calibration: Calibration, view: View, *, units: int) -> Calibration:
    """Return the calibration with the anchor at the request of a view, which takes `units` in all."""
    # The span of a summary's seq measures the events around it. A summary is often larger than these, so their
    # error would grow with every further summary: it counts as text that was not measured.
    shown = (
        (NEVER_MEASURED if step.covers else step.utterance.seq, view.units_of(step)) for step in view.steps
    )
    return calibration.anchored(units, shown)
