"""Protocol of a source of past sessions, and what it says of a session.

1. A source only reads. `entries` is cheap: of a session it reads at most the end, and that once per version.
2. An entry's version changes whenever its session changes, so that a caller knows what to read again.
3. The handle of a session is derived from its place and its key: it is the same after a restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, NamedTuple, Protocol

from foveal.core.log.events import AnyFact, Event, Opened, UserSaid, extras, text_of
from foveal.core.redaction import scrub
from foveal.core.wire.safe_print import one_line
from foveal.errors import FovealError
from foveal.ports import Checkpoint
from foveal.transcripts.transcript import TimedFact, derive_title

SESSION_HANDLE_BYTES: Final = 5
"""Bytes of the digest in a session's handle: two of 10,000 sessions have the same one once in 20,000 archives."""
MAX_SOURCE_SESSIONS: Final = 20_000
"""Sessions of one source that are listed, the newest first."""
MAX_SESSION_TITLE_CHARS: Final = 120
_SAME_TITLE_CHARS: Final = 12
"""Characters by which a title is recognised as the start of a message."""


class RecallProblem(FovealError, LookupError):
    """A recall call that cannot be answered; the message says what to do instead."""


class SessionEntry(NamedTuple):
    """A session as its source lists it."""

    handle: str
    key: str
    """Its name within the source."""
    name: str
    """Its id, or the name of its file, by which a caller may also ask for it."""
    active: float
    """Time of its newest message, in seconds since 1970."""
    version: tuple[float, ...]
    size: int
    """Bytes that reading it takes, roughly."""
    is_file_time: bool = False
    """Whether `active` is when its file was changed, because its messages have no times."""


class SessionDetails(NamedTuple):
    """What a list shows of a session."""

    kind: str
    """Name of the format, such as `claude_code`."""
    title: str = ""
    folder: str = ""
    """The working folder, if it is known."""
    events: int | None = None
    """None if the session has not been read yet."""
    newest: float | None = None
    """Time of its newest message; None if that is unknown, or if the session has not been read yet."""
    created: float | None = None
    """When it began; None if that is unknown."""
    model: str = ""
    """The model that answers, if it is known."""
    parent: str = ""
    """The id of the session that started it as a sub-agent."""
    window: int = 0
    """Tokens in the model's window, if the session records them; else 0."""
    unknown: int = 0
    """Lines that were not understood, in what was read of it."""


class SessionLog(Protocol):
    """The events of one session."""

    @property
    def is_append_only(self) -> bool:
        """Whether events that were read once never change. A transcript that grows can regroup its last ones."""
        ...

    @property
    def is_lasting(self) -> bool:
        """Whether an index may keep its words after this process. Those of a store may not: an erasure there would
        not reach them."""
        ...

    @property
    def parts(self) -> int:
        """Sessions of its file, if it is the first of them."""
        ...

    @property
    def end(self) -> int:
        """The next seq."""
        ...

    async def pick(self, seqs: Sequence[int]) -> list[Event]:
        """Return these events, ascending; those that do not exist are left out."""
        ...

    async def skim(self, seqs: range) -> list[Event]:
        """Return these events for what they say beside their texts: long texts may be missing."""
        ...

    async def checkpoint(self) -> Checkpoint | None:
        """Return the checkpoint of a session in a store, if it has one."""
        ...


class ArchiveSource(Protocol):
    """A place with past sessions."""

    @property
    def name(self) -> str:
        """The path or address, without secrets."""
        ...

    @property
    def problems(self) -> Sequence[str]:
        """What could not be read, and why, as of the last `entries`."""
        ...

    async def entries(self) -> list[SessionEntry]:
        """Return the sessions of the source, in any order."""
        ...

    async def describe(self, entry: SessionEntry) -> SessionDetails: ...

    async def open(self, entry: SessionEntry) -> SessionLog: ...

    async def find_raw(self, entry: SessionEntry, words: Sequence[bytes]) -> frozenset[int] | None:
        """Return which of these words, in lower case, occur in the bytes of a session, by their numbers. None if
        the bytes do not show that."""
        ...

    async def close(self) -> None: ...


def session_handle(place: str, key: str) -> str:
    """Return the handle of a session, such as `s1f3a9c2e07`."""
    text = f"{place}\0{key}"
    try:
        named = text.encode("utf-8", "surrogateescape")  # a path whose bytes are not UTF-8
    except UnicodeEncodeError:  # text of a log
        named = text.encode("utf-8", "surrogatepass")
    return f"s{blake2b(named, digest_size=SESSION_HANDLE_BYTES).hexdigest()}"


def whole_title(title: str, first: Sequence[TimedFact]) -> str:
    """Return the title, redacted. A title that was cut is made again from its message, because the part of a secret
    at its end would not be recognised; `first` are the first facts of the session."""
    if not title:
        return derive_title(first)
    begin = title.removesuffix("…")[:_SAME_TITLE_CHARS]
    texts = (text_of(fact.content) for fact, _ in first if isinstance(fact, UserSaid))
    is_cut = title.endswith("…")
    found = next((text for text in texts if is_cut and one_line(text).startswith(begin)), title)
    return one_line(scrub(found), width=MAX_SESSION_TITLE_CHARS)


def recorded_folder(first: AnyFact | None) -> str:
    """Return the working folder that the first fact of a session of Foveal records; "" if it records none."""
    folder = extras(first.settings).get("folder") if isinstance(first, Opened) else None
    return folder if isinstance(folder, str) else ""
