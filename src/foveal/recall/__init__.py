"""Recall tools, with which the model searches and reads its whole log."""

from foveal.core.engine.asked_cut import context_tools
from foveal.recall.excerpts import LineSelection, compile_grep, excerpt, parse_line_range
from foveal.recall.recall import InMemoryLibrary, Library, Recall
from foveal.recall.schemas import tools
from foveal.recall.search_answer import spread_scores

__all__ = [
    "InMemoryLibrary",
    "Library",
    "LineSelection",
    "Recall",
    "compile_grep",
    "context_tools",
    "excerpt",
    "parse_line_range",
    "spread_scores",
    "tools",
]
