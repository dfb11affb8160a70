"""Paths of the user's own files, and the prompt that is in one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from foveal.errors import BadSetting


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


MAX_PROMPT_BYTES: Final = 64 * 1024
_FILE_URL: Final = "file://"


def prompt_text(setting: str) -> str:
    """Return the prompt of a `prompt` setting: "" for the bundled one, a text, or the content of `file://path`."""
    if not setting.startswith(_FILE_URL):
        return setting
    path = Path(setting[len(_FILE_URL) :]).expanduser()
    with suppress(OSError, UnicodeDecodeError):
        if path.is_file() and path.stat().st_size <= MAX_PROMPT_BYTES:
            return path.read_text("utf-8")
    raise BadSetting(
        "prompt", setting, f"a file that exists, in UTF-8, of at most {MAX_PROMPT_BYTES:,} bytes"
    )
