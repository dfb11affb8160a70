"""Reductions of one text: truncation, placeholders, references to repeated lines."""

from foveal.core.reduction.truncation import Limits, Strategy, clip

__all__ = [
    "Limits",
    "Strategy",
    "clip",
]
