"""The root of a project, and real paths."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path


def resolve_links(path: str, root: Path) -> str:
    """Return the real path of a path that begins at `root`, as the kernel finds it.

    Links are resolved before `..`: behind a link, `..` is the folder above the link's target."""
    return os.path.realpath(os.path.join(root, os.path.expanduser(path)))


def find_root(cwd: Path, markers: Sequence[str]) -> Path:
    """Return the root folder of the project of a working directory, links resolved.

    Markers are tried in their order, so that a package inside a repository is not the root. The user's home folder,
    and the folders above it, are never the root of a folder below them, because a home is not one project. Without
    markers, or if none is found, the working directory is the root."""
    here = Path(os.path.realpath(cwd))
    home = Path(os.path.realpath(Path.home()))
    folders = [here, *(folder for folder in here.parents if not home.is_relative_to(folder))]
    for marker in markers:
        for folder in folders:
            if os.path.lexists(folder / marker):
                return folder
    return here
