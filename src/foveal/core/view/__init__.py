"""The view: what the model sees, folded from the log."""

from foveal.core.view.fold import advance, effective
from foveal.core.view.request import Fitted, Renderer
from foveal.core.view.steps import NO_RESULT, Step
from foveal.core.view.view import View, hidden_by, notice

__all__ = ["NO_RESULT", "Fitted", "Renderer", "Step", "View", "advance", "effective", "hidden_by", "notice"]
