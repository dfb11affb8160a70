"""Reading a file that a stranger may have put there.

1. Nothing blocks: pipes, devices and sockets are not opened, whatever they are called.
2. Nothing is read through a link that leaves the folder that the file belongs to.
3. At most `most` bytes are read, however large the file is.
4. Whatever is wrong with a file is one sentence, an `Unusable`. That there is none is None.
"""

from __future__ import annotations

import os
import stat
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from foveal.errors import FovealError

_FILE_KINDS: Final = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
_FLAGS: Final = (
    os.O_RDONLY
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NOCTTY", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)


class UnusableFile(FovealError):
    """There is something of that name, and it cannot be read as text; says why."""


class FileText(NamedTuple):
    text: str
    identity: tuple[int, int]
    """The same for all names of one file."""
    unread: int = 0
    """Bytes that were not read because the file is so large."""
    damaged: bool = False
    """Bytes that are not UTF-8 were replaced by U+FFFD."""


def read(path: Path, *, most: int, within: Path | None = None) -> FileText | None:
    """The text of a file, or of its first `most` bytes up to a line end; None when there is no such file.
    `within` is the folder that no link may lead out of."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    except OSError as problem:
        raise UnusableFile(f"it cannot be read ({problem.strerror})") from None
    try:
        return _read(path, most, within)
    except FileNotFoundError:
        raise UnusableFile("it leads to nothing, or vanished while it was read") from None
    except OSError as problem:
        raise UnusableFile(f"it cannot be read ({problem.strerror})") from None


def _read(path: Path, most: int, within: Path | None) -> FileText:
    real = os.path.realpath(path, strict=True)
    if within is not None and not Path(real).is_relative_to(os.path.realpath(within)):
        raise UnusableFile("it is a link that leads out of the project")
    _check_regular(os.stat(real))
    with closing(_Opened(real)) as file:
        about = os.fstat(file.number)
        _check_regular(about)  # it may have been exchanged since
        data = file.read(most + 1)
    unread = 0
    if len(data) > most:
        data = data[: data.rfind(b"\n", 0, most) + 1]
        unread = max(about.st_size, most + 1) - len(data)
    if b"\0" in data:
        raise UnusableFile("it is not text (it has NUL bytes)")
    try:
        return FileText(data.decode("utf-8"), (about.st_dev, about.st_ino), unread)
    except UnicodeDecodeError:
        return FileText(data.decode("utf-8", "replace"), (about.st_dev, about.st_ino), unread, damaged=True)


def _check_regular(about: os.stat_result) -> None:
    if not stat.S_ISREG(about.st_mode):
        kind = next((name for test, name in _FILE_KINDS if test(about.st_mode)), "no regular file")
        raise UnusableFile(f"it is {kind}")


class _Opened:
    """A file descriptor; opening it never waits for anybody."""

    def __init__(self, path: str) -> None:
        self.number = os.open(path, _FLAGS)

    def read(self, most: int) -> bytes:
        pieces: list[bytes] = []
        while most > 0 and (piece := os.read(self.number, min(most, 1 << 20))):
            pieces.append(piece)
            most -= len(piece)
        return b"".join(pieces)

    def close(self) -> None:
        os.close(self.number)
