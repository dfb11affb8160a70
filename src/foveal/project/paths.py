"""Paths of the user's own files, and the root of a project."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path


def config_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Return the folder of the user's `foveal.toml`, AGENTS.md and preferences.md."""
    return _folder("XDG_CONFIG_HOME", ".config", environ)


def state_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Return the folder of what Foveal remembers itself, such as which projects are trusted."""
    return _folder("XDG_STATE_HOME", ".local/state", environ)


def cache_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Return the folder of what Foveal can make again, such as weights and the index of past sessions."""
    return _folder("XDG_CACHE_HOME", ".cache", environ)


def store_path() -> Path:
    """Return the default path of the session store: `FOVEAL_STORE`, else the user's data folder."""
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(os.environ.get("FOVEAL_STORE") or Path(data) / "foveal" / "sessions.db")


def _folder(variable: str, default: str, environ: Mapping[str, str] | None) -> Path:
    variables = os.environ if environ is None else environ
    given, home = variables.get(variable, ""), variables.get("HOME") or Path.home()
    # The XDG specification says to ignore relative paths.
    base = Path(given) if os.path.isabs(given) else Path(home) / default
    return base / "foveal"


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
