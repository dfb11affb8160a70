"""The project: its root, trust in items of a project, safe reading."""

from foveal.config.project.safe_read import (
    FOLDER_FLAGS,
    FileText,
    UnusableFile,
    open_folder,
    read_text_file,
)
from foveal.config.project.trust import (
    ITEM_STATE_WORDS,
    EveryItem,
    GivenItems,
    ItemAnswer,
    ItemState,
    ItemTrust,
    ProjectItem,
    Trust,
    find_root,
    items_hash,
    resolve_links,
)

__all__ = [
    "FOLDER_FLAGS",
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
    "open_folder",
    "read_text_file",
    "resolve_links",
]
