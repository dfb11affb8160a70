"""Models: windows, prices, the token budget of a request, and cost."""

from foveal.core.models.budget import Caps

__all__ = [
    "Caps",
]
