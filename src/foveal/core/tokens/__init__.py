"""Token counting and its calibration by reported usage."""

from foveal.core.tokens.calibration import Calibration
from foveal.core.tokens.counter import Counter, Estimate, Exact
from foveal.core.tokens.message_tokens import PER_MESSAGE, MessageTokens

__all__ = ["PER_MESSAGE", "Calibration", "Counter", "Estimate", "Exact", "MessageTokens"]
