"""The project that somebody works in: where it begins, whether it is trusted, and reading its files with care."""

from foveal.project.paths import config_folder, find_root, state_folder
from foveal.project.safe_read import FileText, UnusableFile, read
from foveal.project.trust import Trust

__all__ = ["FileText", "Trust", "UnusableFile", "config_folder", "find_root", "read", "state_folder"]
