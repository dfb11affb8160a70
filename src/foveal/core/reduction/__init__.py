"""Reductions of one text: truncation, placeholders, references to repeated lines."""

from foveal.core.reduction.placeholder import arguments_placeholder, call_subject
from foveal.core.reduction.truncation import (
    BYTES_10K,
    TOKENS_8K,
    UNLIMITED,
    Clip,
    Limits,
    Strategy,
    choose_limits,
    clip,
    clip_parts,
    join_pieces,
)

__all__ = [
    "BYTES_10K",
    "TOKENS_8K",
    "UNLIMITED",
    "Clip",
    "Limits",
    "Strategy",
    "arguments_placeholder",
    "call_subject",
    "choose_limits",
    "clip",
    "clip_parts",
    "join_pieces",
]
