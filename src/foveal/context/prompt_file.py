"""Summary prompt, given as text or as a file."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

from foveal.errors import BadSetting

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
