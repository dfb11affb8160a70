"""The project that somebody works in: where it begins, whether it is trusted, and reading its files with care."""

from foveal.project.careful import Found, Unusable, read
from foveal.project.places import config_folder, find_root, state_folder
from foveal.project.trust import Trust

__all__ = ["Found", "Trust", "Unusable", "config_folder", "find_root", "read", "state_folder"]
