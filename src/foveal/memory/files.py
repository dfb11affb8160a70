"""The files of a memory: notes that the model keeps under `/memories`, with their versions.

1. They are a log of its own beside the entries of the same owner. No file exists on a disk, so a path leads nowhere
   else; `checked_path` refuses all but plain names under `/memories` anyway.
2. A folder exists while a file is in it.
3. Each change is an event and can be undone. The log keeps all versions until `erase`.
4. The model writes files, so requests do not show them: it reads them with its tool. Secrets are not kept.
"""

from __future__ import annotations

import re
import time
import unicodedata
from collections.abc import Callable, Iterable
from threading import Lock
from typing import Final, NamedTuple, TypeAlias

import msgspec

from foveal.core.log.events import MEMORY_LOG_PREFIX, Erased, Event, Unknown
from foveal.core.redaction import scrub
from foveal.errors import NotRemembered, UnknownSession
from foveal.memory.facts import MemoryFact, append_decided, to_event
from foveal.ports import Store

FILES_ROOT: Final = "/memories"
FILES_LOG_SUFFIX: Final = "\x1ffiles"
"""The ending of the log of the files, after the owner."""
MAX_FILE_BYTES: Final = 100_000
MAX_FILES: Final = 1_000
MAX_FILES_BYTES: Final = 10_000_000
"""Bytes of all files as they are now; older versions do not count."""
MAX_PATH_CHARS: Final = 400
_ESCAPES: Final = re.compile(r"%(?:2e|2f|5c|25|00)", re.IGNORECASE)
"""Characters of paths that some programs decode: a dot, slashes, the percent sign itself and a zero byte."""


class FileWritten(MemoryFact, frozen=True, tag="file_written"):
    """A file has this text now."""

    path: str
    text: str


class FileDeleted(MemoryFact, frozen=True, tag="file_deleted"):
    """A file, or a folder with all its files, is deleted."""

    path: str


class FileRenamed(MemoryFact, frozen=True, tag="file_renamed"):
    """A file, or a folder with all its files, has another path."""

    path: str
    to: str


class FileUndone(MemoryFact, frozen=True, tag="file_undone"):
    """An earlier change is taken back."""

    target: int


class FilesCleared(MemoryFact, frozen=True, tag="files_cleared"):
    """Everything before this was erased."""


AnyFileFact: TypeAlias = FileWritten | FileDeleted | FileRenamed | FileUndone | FilesCleared
_decoder: Final = msgspec.json.Decoder(AnyFileFact)


class MemoryFileVersion(NamedTuple):
    """One text that a file had.

    Examples:
        ```python
        import foveal

        async with foveal.stores.MemoryStore() as store:
            files = foveal.Memory("ada", store=store).files
            await files.write("/memories/plan.md", "1. Parse")
            (version,) = await files.versions("/memories/plan.md")
            assert version.text == "1. Parse"
        ```
    """

    seq: int
    """The number of the change."""
    text: str
    """The whole text."""
    at: float | None
    """When it was written, in seconds since 1970."""


def checked_path(path: object) -> str:
    """Return a path as it is kept; raises `NotRemembered` for one that is not plainly under `/memories`."""
    if not isinstance(path, str) or not path or len(path) > MAX_PATH_CHARS:
        raise NotRemembered(
            f"a path is a text of 1 to {MAX_PATH_CHARS} characters, such as {FILES_ROOT}/plan.md"
        )
    plain = unicodedata.normalize("NFC", path)
    is_odd = unicodedata.normalize("NFKC", plain) != plain or "\\" in plain or _ESCAPES.search(plain)
    if is_odd or any(unicodedata.category(one)[0] == "C" for one in plain):
        raise NotRemembered("the path has characters that are not seen, look like others or stand for others")
    names = plain.removesuffix("/").split("/")
    if names[:2] != ["", FILES_ROOT[1:]] or any(name.strip() in ("", ".", "..") for name in names[2:]):
        raise NotRemembered(f"the path must be under {FILES_ROOT}, without empty names, `.` and `..`")
    return "/".join(names)


def is_within(path: str, folder: str) -> bool:
    """Return whether a path is a folder or is in it."""
    return path == folder or path.startswith(f"{folder}/")


class FilesState:
    """The files after the events so far. Folding is pure; an undo folds again."""

    def __init__(self) -> None:
        self.next_seq = 0
        self.texts: dict[str, str] = {}
        """The text of each file by its path."""
        self._steps: list[tuple[int, AnyFileFact, float | None]] = []

    def advance(self, event: Event) -> None:
        """Take over the next event of the log."""
        self.next_seq = event.seq + 1
        fact = _read_fact(event)
        if isinstance(fact, FilesCleared):
            self.texts, self._steps = {}, []
        elif fact is not None:
            self._steps.append((event.seq, fact, event.at))
            if isinstance(fact, FileUndone):
                self._fold_again()
            else:
                self._apply(fact)

    def newest_change(self) -> tuple[int, str] | None:
        """Return the newest change that holds, and its path; None if there is none."""
        undone = self._undone()
        for seq, fact, _ in reversed(self._steps):
            if seq not in undone and isinstance(fact, FileWritten | FileDeleted | FileRenamed):
                return seq, fact.path
        return None

    def versions(self, path: str) -> list[MemoryFileVersion]:
        """Return the texts that were written to a path, oldest first."""
        return [
            MemoryFileVersion(seq, fact.text, at)
            for seq, fact, at in self._steps
            if isinstance(fact, FileWritten) and fact.path == path
        ]

    def has(self, path: str) -> bool:
        """Return whether there is a file or a folder with this path."""
        return path == FILES_ROOT or any(is_within(known, path) for known in self.texts)

    def _undone(self) -> set[int]:
        return {fact.target for _, fact, _ in self._steps if isinstance(fact, FileUndone)}

    def _fold_again(self) -> None:
        self.texts, undone = {}, self._undone()
        for seq, fact, _ in self._steps:
            if seq not in undone:
                self._apply(fact)

    def _apply(self, fact: AnyFileFact) -> None:
        match fact:
            case FileWritten():
                self.texts[fact.path] = fact.text
            case FileDeleted():
                self.texts = {
                    path: text for path, text in self.texts.items() if not is_within(path, fact.path)
                }
            case FileRenamed():
                self.texts = {
                    f"{fact.to}{path[len(fact.path) :]}" if is_within(path, fact.path) else path: text
                    for path, text in self.texts.items()
                }
            case _:  # what is undone is left out, and nothing stands before a clearing
                pass


class MemoryFiles:
    """The files that a model keeps for one owner. `Memory.files` has them.

    Args:
        owner: Whose files they are.
        store: The store that keeps them.
        clock: Returns the time in seconds since 1970.

    Examples:
        ```python
        import foveal

        async with foveal.stores.MemoryStore() as store:
            files = foveal.Memory("ada", store=store).files
            await files.write("/memories/plan.md", "1. Parse")
            await files.write("/memories/plan.md", "1. Render")
            await files.undo()
            assert await files.texts() == {"/memories/plan.md": "1. Parse"}
        ```
    """

    def __init__(self, owner: str, *, store: Store, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._log = f"{MEMORY_LOG_PREFIX}{owner}{FILES_LOG_SUFFIX}"
        self._clock = clock
        self._lock = Lock()
        self._state = FilesState()

    @property
    def state(self) -> FilesState:
        """The files as they were read last."""
        return self._state

    async def refresh(self) -> FilesState:
        """Read what is new in the store, and return the files.

        Raises:
            StoreError: The store cannot be read.
        """
        try:
            events, _ = await self._store.read_new(self._log, first=self._state.next_seq)
        except UnknownSession:
            events = []
        self._take(events)
        return self._state

    async def texts(self) -> dict[str, str]:
        """Return the text of each file by its path.

        Raises:
            StoreError: The store cannot be read.
        """
        return dict((await self.refresh()).texts)

    async def versions(self, path: str) -> list[MemoryFileVersion]:
        """Return the texts that a file had, oldest first.

        Those that do not hold any more are among them.

        Args:
            path: The path of the file.

        Raises:
            NotRemembered: The path is not allowed.
            StoreError: The store cannot be read.
        """
        return (await self.refresh()).versions(checked_path(path))

    async def write(self, path: str, text: str) -> None:
        """Give a file a text; the file need not exist.

        Args:
            path: The path of the file.
            text: The whole text.

        Raises:
            NotRemembered: The path is not allowed or is that of a folder, or the text is too large.
            StoreError: The store cannot write.
        """
        await self.change(lambda state: written(state, checked_path(path), text))

    async def undo(self) -> str:
        """Take back the newest change, and return the path that it was about.

        Raises:
            NotRemembered: There is nothing to take back.
            StoreError: The store cannot write.
        """
        paths: list[str] = []

        def decide(state: FilesState) -> AnyFileFact:
            newest = state.newest_change()
            if newest is None:
                raise NotRemembered("there is nothing to take back")
            paths[:] = [newest[1]]
            return FileUndone(target=newest[0])

        await self.change(decide)
        return paths[0]

    async def erase(self) -> None:
        """Delete the text of all files and versions from the store for good.

        Raises:
            StoreError: The store cannot write.
        """
        if (await self.refresh()).next_seq:
            await self.change(lambda state: FilesCleared())
            await self._store.erase(self._log)

    async def change(self, decide: Callable[[FilesState], AnyFileFact]) -> None:
        """Append the fact that `decide` returns for the newest files.

        Args:
            decide: Raises `NotRemembered` if nothing is to be changed.

        Raises:
            StoreError: The store cannot write.
        """

        def decided() -> list[Event]:
            with self._lock:
                return [to_event(self._state.next_seq, decide(self._state), self._clock())]

        async def read() -> None:
            await self.refresh()

        self._take(await append_decided(self._store, self._log, decided, read))

    def _take(self, events: Iterable[Event]) -> None:
        with self._lock:
            for event in events:
                if event.seq == self._state.next_seq:
                    self._state.advance(event)


def written(state: FilesState, path: str, text: str) -> FileWritten:
    """Return the fact that a file has a text; raises `NotRemembered` if it cannot have it."""
    if path == FILES_ROOT or any(is_within(known, path) and known != path for known in state.texts):
        raise NotRemembered(f"{path} is a folder")
    if any(is_within(path, known) and known != path for known in state.texts):
        raise NotRemembered(f"{path} would be in a file: choose another path")
    kept = scrub(text.encode("utf-8", "replace").decode())
    size = len(kept.encode())
    others = sum(len(one.encode()) for known, one in state.texts.items() if known != path)
    if size > MAX_FILE_BYTES:
        raise NotRemembered(
            f"the file would have {size:,} bytes, and at most {MAX_FILE_BYTES:,} are kept: split or shorten it"
        )
    if others + size > MAX_FILES_BYTES or (path not in state.texts and len(state.texts) >= MAX_FILES):
        raise NotRemembered(
            f"the files would exceed {MAX_FILES:,} files or {MAX_FILES_BYTES:,} bytes: delete what is not needed"
        )
    return FileWritten(path=path, text=kept)


def _read_fact(event: Event) -> AnyFileFact | None:
    if isinstance(event.fact, Erased):
        return FilesCleared()
    if not isinstance(event.fact, Unknown):
        return None
    try:
        found: AnyFileFact = _decoder.decode(event.fact.raw)
    except msgspec.DecodeError:
        return None  # of a later version
    return found
