"""The user's and the project's paths, trust in a project, safe reading of files."""

from foveal.project.paths import config_folder, find_root, state_folder
from foveal.project.safe_read import FileText, UnusableFile, read_text_file
from foveal.project.trust import Trust

__all__ = [
    "FileText",
    "Trust",
    "UnusableFile",
    "config_folder",
    "find_root",
    "read_text_file",
    "state_folder",
]
