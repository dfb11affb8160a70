"""Paths of the user's own files."""

from __future__ import annotations

import os
from collections.abc import Mapping
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
