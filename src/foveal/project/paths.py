"""Where the user's own files are, and where a project begins."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path


def config_folder(environ: Mapping[str, str] | None = None) -> Path:
    """`foveal.toml`, AGENTS.md and preferences.md of the user."""
    return _folder("XDG_CONFIG_HOME", ".config", environ)


def state_folder(environ: Mapping[str, str] | None = None) -> Path:
    """What Foveal remembers by itself: which projects are trusted."""
    return _folder("XDG_STATE_HOME", ".local/state", environ)


def _folder(variable: str, default: str, environ: Mapping[str, str] | None) -> Path:
    given = (os.environ if environ is None else environ).get(variable, "")
    base = Path(given) if os.path.isabs(given) else Path.home() / default  # relative ones do not count
    return base / "foveal"


def find_root(cwd: Path, markers: Sequence[str]) -> Path:
    """The folder where the project of a working directory begins, links resolved.

    Markers are tried in their order, so that a package inside a repository does not end the search. A folder that
    the user's home lies in is never the root of what lies deeper: not all that is in a home is one project. Without
    a marker, or when none is found, the working directory is the root."""
    here = Path(os.path.realpath(cwd))
    home = Path(os.path.realpath(Path.home()))
    folders = [here, *(folder for folder in here.parents if not home.is_relative_to(folder))]
    for marker in markers:
        for folder in folders:
            if os.path.lexists(folder / marker):
                return folder
    return here
