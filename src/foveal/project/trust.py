"""Stored answers to whether the user trusts a project.

    trust = Trust()
    if trust.is_trusted(root) is None:             # no answer is stored yet
        trust.set_trusted(root, trusted=ask(f"Do you trust {root}?"))

1. A project is identified by the path of its root, links resolved.
2. The file is read on each call, so an answer stored by one process counts for all.
3. A file that cannot be parsed counts as empty: the user is asked again.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Final

import msgspec

from foveal.project.paths import state_folder
from foveal.project.safe_read import UnusableFile, read_text_file

_MAX_TRUST_FILE_BYTES: Final = 4 * 1024 * 1024


class _TrustFile(msgspec.Struct):
    """Content of `trust.json`: the answer by path of the root."""

    projects: dict[str, bool] = {}


class Trust:
    """The user's answers, in the file `path`."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or state_folder() / "trust.json"

    def is_trusted(self, root: Path) -> bool | None:
        """Return the stored answer; None if the user was not asked yet."""
        return self._read().projects.get(_key(root))

    def set_trusted(self, root: Path, *, trusted: bool) -> None:
        """Store the user's answer."""
        content = self._read()
        content.projects[_key(root)] = trusted
        self._write(msgspec.json.format(msgspec.json.encode(content), indent=2))

    def forget(self, root: Path) -> None:
        """Delete the answer, so that the user is asked again."""
        content = self._read()
        if content.projects.pop(_key(root), None) is not None:
            self._write(msgspec.json.format(msgspec.json.encode(content), indent=2))

    def _read(self) -> _TrustFile:
        try:
            found = read_text_file(self.path, max_bytes=_MAX_TRUST_FILE_BYTES)
            return msgspec.json.decode(found.text, type=_TrustFile) if found is not None else _TrustFile()
        except (UnusableFile, msgspec.DecodeError):
            return _TrustFile()

    def _write(self, data: bytes) -> None:
        """Replace the file atomically: a crash leaves the old file."""
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
    """Return a path as text for JSON, even if its name is not valid UTF-8."""
    return os.fsencode(os.path.realpath(root)).decode("utf-8", "backslashreplace")
