"""The view: what the model sees, folded from the log."""

from foveal.core.view.fold import advance, effective_events
from foveal.core.view.request import Fitted, render_view
from foveal.core.view.steps import Step, hidden_ranges
from foveal.core.view.synthetic_results import NO_RESULT
from foveal.core.view.text_facts import find_names
from foveal.core.view.view import View

__all__ = [
    "NO_RESULT",
    "Fitted",
    "Step",
    "View",
    "advance",
    "effective_events",
    "find_names",
    "hidden_ranges",
    "render_view",
]
