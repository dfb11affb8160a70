"""The project: its root, trust in items of a project, safe reading."""

from foveal.project.paths import find_root, resolve_links
from foveal.project.project_item import ITEM_STATE_WORDS, ItemAnswer, ItemState, ProjectItem, items_hash
from foveal.project.safe_read import FileText, UnusableFile, read_text_file
from foveal.project.trust import EveryItem, GivenItems, ItemTrust, Trust

__all__ = [
    "ITEM_STATE_WORDS",
    "EveryItem",
    "FileText",
    "GivenItems",
    "ItemAnswer",
    "ItemState",
    "ItemTrust",
    "ProjectItem",
    "Trust",
    "UnusableFile",
    "find_root",
    "items_hash",
    "read_text_file",
    "resolve_links",
]
