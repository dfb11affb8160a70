"""Recall: tools for the model to look back into the log."""

from foveal.recall.excerpts import Wanted, excerpt, finder, wanted_lines
from foveal.recall.recall import InMemoryLibrary, Library, Recall
from foveal.recall.recall_tools import tools
from foveal.recall.search_results import spread

__all__ = [
    "InMemoryLibrary",
    "Library",
    "Recall",
    "Wanted",
    "excerpt",
    "finder",
    "spread",
    "tools",
    "wanted_lines",
]
