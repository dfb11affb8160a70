"""Reductions of one text: truncation, placeholders, repeated lines, and their undo."""

from foveal.core.reduction.placeholder import arguments, bare, names, subject
from foveal.core.reduction.truncation import (
    BYTES_10K,
    TOKENS_8K,
    UNLIMITED,
    Clip,
    Limits,
    Strategy,
    choose,
    clip,
    clip_parts,
    shown,
)

__all__ = [
    "BYTES_10K",
    "TOKENS_8K",
    "UNLIMITED",
    "Clip",
    "Limits",
    "Strategy",
    "arguments",
    "bare",
    "choose",
    "clip",
    "clip_parts",
    "names",
    "shown",
    "subject",
]
