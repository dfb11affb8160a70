"""Token counting and its calibration by reported usage."""

from foveal.core.tokens.calibration import Calibration
from foveal.core.tokens.counter import Estimate
from foveal.core.tokens.message_tokens import MessageTokens

__all__ = ["Calibration", "Estimate", "MessageTokens"]
