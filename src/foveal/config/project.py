"""The project: its root, trust in items of a project, safe reading.

    trust = Trust()
    trust.state(root, item)                        # "new": the user was not asked about it
    trust.answer(root, [item], allowed={item.key})
    trust.state(root, item)                        # "allowed", until the item changes

1. A project is identified by the real path of its root and by its device and inode. A renamed or replaced folder, a
   copy, or the same folder mounted elsewhere is another project. Nothing in the project takes part in the identity.
2. An answer is bound to the digest of an item. The text that the user saw is stored, to show what has changed. An
   answer to an item whose text does not decide what runs counts in this process only.
3. Each project has a file of its own in the user's state folder. It is read on each call, so an answer that one
   process stores counts for all.
4. A file that cannot be parsed counts as empty: the user is asked again.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, Final, Literal, NamedTuple, Protocol

import msgspec

from foveal.core.wire.safe_print import one_line, visible
from foveal.errors import FovealError
from foveal.user_paths import state_folder


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


ItemState = Literal["allowed", "refused", "changed", "new", "unbound"]
ITEM_STATE_WORDS: Final[dict[ItemState, str]] = {
    "allowed": "you allow it",
    "refused": "you did not allow it",
    "changed": "it has changed since you were asked about it",
    "new": "you were not asked about it yet",
    "unbound": "an answer cannot be bound to its code, so a chat asks about it at each start",
}
ITEMS_HASH_CHARS: Final = 32
"""Hexadecimal digits of the hash of all items: 128 bits."""


class ProjectItem(msgspec.Struct, frozen=True):
    """One thing that a project brings."""

    key: str
    """Its name in the project, such as `server files`, `setting context.policy` or `file AGENTS.md`."""
    title: str
    """What it is, on one line."""
    source: str
    """The file that has it, with the line where there is one. The line is not part of the digest."""
    text: str
    """All that the user allows, word for word, including the scripts that a server names."""
    is_bound: bool = True
    """Whether the text decides what runs. If not, no answer is stored, and the user is asked at each start."""

    @property
    def name(self) -> str:
        """The key in a sentence, safe to print."""
        return one_line(self.key.removeprefix("setting ").removeprefix("file "), width=200)

    @property
    def digest(self) -> str:
        # JSON, so that no two pairs of key and text give the same bytes.
        return sha256(json.dumps([self.key, self.text]).encode()).hexdigest()


class ItemAnswer(NamedTuple):
    """An item and the user's answer to it."""

    item: ProjectItem
    state: ItemState

    @property
    def is_open(self) -> bool:
        """Whether the user has to be asked."""
        return self.state in ("new", "changed", "unbound")


def items_hash(items: Iterable[ProjectItem]) -> str:
    """Return the value of `--trust-hash` that allows exactly these items."""
    digests = sorted(item.digest for item in items)
    return sha256("\n".join(digests).encode()).hexdigest()[:ITEMS_HASH_CHARS]


_MAX_TRUST_FILE_BYTES: Final = 64 * 1024 * 1024


class ItemTrust(Protocol):
    """Decides which items of a project are used."""

    def state(self, root: Path, item: ProjectItem) -> ItemState:
        """Return the user's answer to an item."""
        ...


class EveryItem:
    """Allows every item, for a program that reads only projects of its own."""

    def state(self, root: Path, item: ProjectItem) -> ItemState:
        return "allowed"


class GivenItems:
    """Allows exactly the given items, in one process; stores nothing. An item whose text does not decide what runs
    is not allowed."""

    def __init__(self, items: Iterable[ProjectItem] = ()) -> None:
        self._digests = {item.key: item.digest for item in items}

    def state(self, root: Path, item: ProjectItem) -> ItemState:
        known = self._digests.get(item.key)
        if not item.is_bound:
            return "unbound"
        return "new" if known is None else "allowed" if known == item.digest else "changed"


# ── Stored answers ───────────────────────────────────────────────────────────────────────────────────────


class _StoredAnswer(msgspec.Struct, frozen=True):
    digest: str
    is_allowed: bool
    text: str
    """The text that the user saw."""


class _ProjectRecord(msgspec.Struct, frozen=True):
    """Content of the file of a project."""

    path: str
    device: int
    inode: int
    answers: dict[str, _StoredAnswer] = {}
    """By key of the item."""


class _OldTrustFile(msgspec.Struct):
    """Content of the `trust.json` of earlier versions: one answer for all of a project, by path."""

    projects: dict[str, bool] = {}


class Trust:
    """The user's answers, in the folder `folder`."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder: Path = folder or state_folder() / "trust"
        self._answers_here: dict[tuple[Path, str], bool] = {}
        """Answers that count in this process only, by root and digest: to items not bound to their code."""

    def state(self, root: Path, item: ProjectItem) -> ItemState:
        """Return the answer to an item: the stored one, or for an item that is not bound, this process's."""
        if not item.is_bound:
            here = self._answers_here.get((root, item.digest))
            return "unbound" if here is None else "allowed" if here else "refused"
        known = self._read(root).answers.get(item.key)
        if known is None:
            return "new"
        if known.digest != item.digest:
            return "changed"
        return "allowed" if known.is_allowed else "refused"

    def seen_text(self, root: Path, item: ProjectItem) -> str | None:
        """Return the text of the item when the user was asked about it; None if that never happened."""
        known = self._read(root).answers.get(item.key)
        return None if known is None or not item.is_bound else known.text

    def answer(self, root: Path, items: Iterable[ProjectItem], *, allowed: Collection[str]) -> None:
        """Store that the user was asked about these items and allows those with the given keys."""
        record, asked = self._read(root), tuple(items)
        self._answers_here |= {
            (root, item.digest): item.key in allowed for item in asked if not item.is_bound
        }
        new = {
            item.key: _StoredAnswer(digest=item.digest, is_allowed=item.key in allowed, text=item.text)
            for item in asked
            if item.is_bound
        }
        self._write(root, msgspec.structs.replace(record, answers=record.answers | new))

    def forget(self, root: Path) -> None:
        """Delete the answers, so that the user is asked again."""
        self._file(root).unlink(missing_ok=True)

    def has_answers(self, root: Path) -> bool:
        """Return whether the user was asked about any item of this project."""
        return bool(self._read(root).answers)

    def was_trusted_as_a_whole(self, root: Path) -> bool:
        """Return whether an earlier version stored that the user trusts the project. That answer allows nothing."""
        try:
            found = read_text_file(self.folder.with_name("trust.json"), max_bytes=_MAX_TRUST_FILE_BYTES)
            old = (
                msgspec.json.decode(found.text, type=_OldTrustFile) if found is not None else _OldTrustFile()
            )
        except (UnusableFile, msgspec.DecodeError):
            return False
        return old.projects.get(_path_text(root), False)

    # ── Files ────────────────────────────────────────────────────────────────────────────────────────────

    def _read(self, root: Path) -> _ProjectRecord:
        empty = _identity(root)
        try:
            found = read_text_file(self._file(root), max_bytes=_MAX_TRUST_FILE_BYTES)
            known = msgspec.json.decode(found.text, type=_ProjectRecord) if found is not None else empty
        except (UnusableFile, msgspec.DecodeError):
            return empty
        is_same = (known.path, known.device, known.inode) == (empty.path, empty.device, empty.inode)
        return known if is_same else empty

    def _file(self, root: Path) -> Path:
        project = _identity(root)
        name = f"{project.device}\0{project.inode}\0{project.path}".encode()
        return self.folder / f"{sha256(name).hexdigest()[:32]}.json"

    def _write(self, root: Path, record: _ProjectRecord) -> None:
        """Replace the file atomically: a crash leaves the old file."""
        path = self._file(root)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        number, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        try:
            with open(number, "wb") as file:
                file.write(msgspec.json.format(msgspec.json.encode(record), indent=2))
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise


def _identity(root: Path) -> _ProjectRecord:
    """Return a record without answers. A folder that does not exist has device and inode 0."""
    try:
        about = os.stat(root)
    except OSError:
        return _ProjectRecord(path=_path_text(root), device=0, inode=0)
    return _ProjectRecord(path=_path_text(root), device=about.st_dev, inode=about.st_ino)


def _path_text(root: Path) -> str:
    """Return a path as text for JSON, even if its name is not valid UTF-8."""
    return os.fsencode(os.path.realpath(root)).decode("utf-8", "backslashreplace")


# ── Safe reading in an untrusted folder, and files that commands write ───────────────────────────────────
# 1. Reading never blocks: pipes, devices and sockets are not opened.
# 2. Links that lead out of the given folder are not followed.
# 3. At most `max_bytes` bytes are read.
# 4. A file that cannot be read raises `UnusableFile`, whose text says why. A missing file gives None.
# 5. `open_folder` is for a folder in which another program may exchange folders for links at any moment.

_FILE_KINDS: Final = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
_OPEN_FLAGS: Final = (
    os.O_RDONLY
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NOCTTY", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)
FOLDER_FLAGS: Final = (
    os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
)
"""Open a folder, but no link to one."""


class UnusableFile(FovealError):
    """The path exists but cannot be read as text; says why."""


class FileText(NamedTuple):
    """The text of a file, and what is known about the file."""

    text: str
    identity: tuple[int, int]
    """Device and inode: equal for all names of one file."""
    unread: int = 0
    """Bytes beyond the limit, which were not read."""
    damaged: bool = False
    """Whether bytes that are not UTF-8 were replaced by U+FFFD."""


def read_text_file(path: Path, *, max_bytes: int, within: Path | None = None) -> FileText | None:
    """Return the text of a file, or of its first `max_bytes` bytes up to a line end; None if there is no such file.

    A link must not lead out of the folder `within`."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    except OSError as problem:
        raise UnusableFile(f"it cannot be read ({problem.strerror})") from None
    try:
        return _read_text(path, max_bytes, within)
    except FileNotFoundError:
        raise UnusableFile("it leads to nothing, or vanished while it was read") from None
    except OSError as problem:
        raise UnusableFile(f"it cannot be read ({problem.strerror})") from None


def _read_text(path: Path, max_bytes: int, within: Path | None) -> FileText:
    real = os.path.realpath(path, strict=True)
    if within is not None and not Path(real).is_relative_to(os.path.realpath(within)):
        raise UnusableFile("it is a link that leads out of the project")
    _check_regular(os.stat(real))
    with closing(_FileDescriptor(real)) as file:
        about = os.fstat(file.number)
        _check_regular(about)  # the file may have been replaced since the first check
        data = file.read(max_bytes + 1)
    unread = 0
    if len(data) > max_bytes:
        data = data[: data.rfind(b"\n", 0, max_bytes) + 1]
        unread = max(about.st_size, max_bytes + 1) - len(data)
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


class _FileDescriptor:
    """A file descriptor; opening it never blocks."""

    def __init__(self, path: str) -> None:
        self.number = os.open(path, _OPEN_FLAGS)

    def read(self, max_bytes: int) -> bytes:
        """Return up to `max_bytes` bytes."""
        pieces: list[bytes] = []
        while max_bytes > 0 and (piece := os.read(self.number, min(max_bytes, 1 << 20))):
            pieces.append(piece)
            max_bytes -= len(piece)
        return b"".join(pieces)

    def close(self) -> None:
        os.close(self.number)


@contextmanager
def open_folder(path: Path | str, base: Path, *, create: bool = False) -> Iterator[int]:
    """Open a folder that lies in `base`, or is it, one name after the other without following links; `create` makes
    folders that are missing. Raises `NotADirectoryError` with the name of what is a link or no folder."""
    folder = os.open(base, FOLDER_FLAGS)
    try:
        for name in Path(path).relative_to(base).parts:
            if create:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=folder)
            inner = os.open(name, FOLDER_FLAGS, dir_fd=folder)
            os.close(folder)
            folder = inner
        yield folder
    finally:
        os.close(folder)


@contextmanager
def open_output(path: Path, *, advice: str, replaces: bool = False) -> Iterator[BinaryIO]:
    """Open a file to write; `advice` says what to do if it exists. A new file is removed if writing it fails.

    Only its owner can read it, like a store: what is written are conversations."""
    try:
        file = open(path, "wb" if replaces else "xb", opener=_open_private)  # noqa: SIM115 (closed below)
    except FileExistsError:
        raise FovealError(f"{visible(str(path))} exists and was not overwritten: {advice}") from None
    try:
        with file:
            yield file
    except BaseException:
        if not replaces:
            path.unlink(missing_ok=True)
        raise


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
