"""The folder that an agent works in: which paths it may touch, and which of them it has seen as they are now.

A path is followed to where it really leads, links and all, before it is judged: a link inside the folder that
leads out of it is outside. What is outside is refused, unless its folder was allowed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO, NamedTuple

from foveal.core.wire.safe_print import one_line
from foveal.tools.tool_arguments import InvalidArguments


class FileStamp(NamedTuple):
    """A file as it was: another one in its place, or another content, has another stamp."""

    device: int
    inode: int
    size: int
    changed: int


class Workspace:
    """The working folder, with whatever else is allowed."""

    def __init__(self, root: str | Path, *, also: Iterable[str | Path] = ()) -> None:
        self.root = Path(os.path.realpath(Path(root).expanduser()))
        self._allowed = (self.root, *(Path(os.path.realpath(Path(path).expanduser())) for path in also))
        self._seen: dict[Path, FileStamp] = {}

    def find(self, path: str) -> Path:
        """Where a path really leads."""
        if "\0" in path:
            raise InvalidArguments("A path cannot have a NUL character in it.")
        try:
            real = Path(os.path.realpath(self.root / Path(path or ".").expanduser()))
            real.as_posix().encode("utf-8", "surrogateescape")
        except (OSError, RuntimeError, ValueError) as problem:
            raise InvalidArguments(
                f"{one_line(path)} is not a path that can be used: {one_line(str(problem))}."
            ) from None
        if not any(real.is_relative_to(folder) for folder in self._allowed):
            raise InvalidArguments(
                f"{one_line(path, width=300)} is outside of the working folder {self.root}, and was not touched. "
                f"Allowed is what lies in {', '.join(map(str, self._allowed))}."
            )
        return real

    def name(self, path: Path) -> str:
        """A path as people and models call it, on one line."""
        inside = path.is_relative_to(self.root)
        return one_line(str(path.relative_to(self.root) if inside else path), width=300)

    def open(self, path: Path) -> BinaryIO:
        """An ordinary file, to be read. Folders, pipes and devices are refused: they might never end."""
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            raise InvalidArguments(f"There is no file {self.name(path)}.{self._near(path)}") from None
        mode = os.fstat(handle).st_mode
        if stat.S_ISREG(mode):
            return os.fdopen(handle, "rb")
        os.close(handle)
        if stat.S_ISDIR(mode):
            raise InvalidArguments(f"{self.name(path)} is a folder. Use list for it.")
        raise InvalidArguments(f"{self.name(path)} is not an ordinary file, and was not opened.")

    def _near(self, path: Path) -> str:
        """Names in the same folder that somebody may have meant."""
        from difflib import get_close_matches

        with suppress(OSError):
            close = get_close_matches(path.name, os.listdir(path.parent)[:5_000], n=3)
            if close:
                return f" There is {', '.join(self.name(path.parent / name) for name in close)}."
        return ""

    # ── what has been seen ───────────────────────────────────────────────────────────────────────────────

    def saw(self, path: Path, found: os.stat_result) -> None:
        """The model knows this file as it is now."""
        self._seen[path] = FileStamp(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)

    def check(self, path: Path, *, needed: bool) -> None:
        """Refuse to write over what the model has not seen: changed since, or (if `needed`) never read."""
        try:
            found = os.stat(path)
        except FileNotFoundError:
            return
        if not stat.S_ISREG(found.st_mode):
            raise InvalidArguments(f"{self.name(path)} is not an ordinary file, so nothing was written.")
        seen = self._seen.get(path)
        if seen is None and needed:
            raise InvalidArguments(
                f"{self.name(path)} exists and has not been read yet, so nothing was written. "
                "Read it first, or change a part of it with edit."
            )
        if seen is not None and seen != (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns):
            raise InvalidArguments(
                f"{self.name(path)} has changed since it was read, so nothing was written. Read it again first."
            )

    def write(self, path: Path, data: bytes) -> None:
        """Put a file in its place, whole or not at all; a file that was there keeps its mode."""
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.parent / f".foveal-{token_hex(8)}"
        try:
            with open(temporary, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
                with suppress(FileNotFoundError):
                    os.fchmod(file.fileno(), stat.S_IMODE(os.stat(path).st_mode))
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        self.saw(path, os.stat(path))
