"""Which projects the user trusts. Asked once, remembered by the path of the project's root, links resolved.

    trust = Trust()
    if trust.trusted(root) is None:             # nobody has said so yet
        trust.trust(root, yes=ask(f"Do you trust {root}?"))

The file is read each time, so what one process is told holds for the others. A file that cannot be understood
counts as empty: then the user is asked again.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Final

import msgspec

from foveal.project.paths import state_folder
from foveal.project.safe_read import UnusableFile, read

_MOST: Final = 4 * 1024 * 1024


class _Said(msgspec.Struct):
    projects: dict[str, bool] = {}


class Trust:
    def __init__(self, path: Path | None = None) -> None:
        self.path = path or state_folder() / "trust.json"

    def trusted(self, root: Path) -> bool | None:
        """What the user said of a project; None when nobody has asked yet."""
        return self._read().projects.get(_key(root))

    def trust(self, root: Path, *, yes: bool) -> None:
        """Remember what the user said."""
        said = self._read()
        said.projects[_key(root)] = yes
        self._write(msgspec.json.format(msgspec.json.encode(said), indent=2))

    def forget(self, root: Path) -> None:
        """Ask again the next time."""
        said = self._read()
        if said.projects.pop(_key(root), None) is not None:
            self._write(msgspec.json.format(msgspec.json.encode(said), indent=2))

    def _read(self) -> _Said:
        try:
            found = read(self.path, most=_MOST)
            return msgspec.json.decode(found.text, type=_Said) if found is not None else _Said()
        except (UnusableFile, msgspec.DecodeError):
            return _Said()

    def _write(self, data: bytes) -> None:
        """Whole or not at all: a crash leaves the old file."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        number, name = tempfile.mkstemp(dir=self.path.parent, prefix=self.path.name)
        try:
            with open(number, "wb") as file:
                file.write(data)
            os.replace(name, self.path)
        except BaseException:
            os.unlink(name)
            raise


def _key(root: Path) -> str:
    """A path as text that JSON can hold, whatever bytes its name has."""
    return os.fsencode(os.path.realpath(root)).decode("utf-8", "backslashreplace")
