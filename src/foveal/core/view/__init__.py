"""The view: what the model sees, folded from the log."""

from foveal.core.view.fold import advance, effective_events
from foveal.core.view.request import render_view

__all__ = [
    "advance",
    "effective_events",
    "render_view",
]
