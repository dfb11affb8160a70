"""Protocol of the places whose sessions the inspector shows and changes.

1. Reading never changes a place. Only `SessionReader.act` opens a store for writing, and closes it afterwards.
2. A session is named by its key, which is the same after a restart; its id, or the name of its file, also works.
3. Logs are read in parts of at most `MAX_PART_EVENTS`. No call holds a whole log of a store in memory.
4. What cannot be answered raises a `FovealError` that says what to do: `SessionMissing` for a key, `NotWritable`
   for an action on a transcript.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, TypeAlias

import msgspec

from foveal.core.engine.operations import OperationName, OperationRequest
from foveal.core.log.events import Event
from foveal.core.tokens.message_tokens import MessageCounts
from foveal.errors import FovealError
from foveal.recall.archive import ArchiveSource, PostgresSource, SqliteSource, StoreSource
from foveal.recall.archive.source import session_handle

if TYPE_CHECKING:
    from foveal.memory import MemoryEntry

MAX_PART_EVENTS: Final = 500
"""Events that one call of `SessionReader.read` returns."""
MAX_ROW_SHARES: Final = 60
"""Requests of which a row has the window use."""
MemoryAction: TypeAlias = Literal["forget", "undo", "accept", "reject"]
"""What an owner can do with an entry of a memory."""


class SessionMissing(FovealError, LookupError):
    """There is no session with this key, or it was erased."""


class NotWritable(FovealError):
    """The session can only be read; the message says why."""


class SessionRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A session in the overview."""

    key: str
    title: str = ""
    format: str = "foveal"
    model: str = ""
    active: float = 0.0
    """Time of its newest message, in seconds since 1970."""
    created: float = 0.0
    """0.0 if unknown."""
    events: int = 0
    """0 if unknown."""
    bytes: int = 0
    window: int = 0
    """Tokens in the model's window; 0 if unknown."""
    used: int = 0
    """Tokens of the last request with reported usage."""
    shares: tuple[float, ...] = ()
    """Share of the window that each request with reported usage took; of more than `MAX_ROW_SHARES`, an even
    choice."""
    requests: int = 0
    """Requests that the log shows, with reported usage or without."""
    reported: int = 0
    """Requests with reported usage."""
    spent: float | None = None
    """Dollars of the calls whose price is known; None if it is known of none."""
    unknown_calls: int = 0
    """Calls that are not part of `spent`."""
    cache_share: float | None = None
    """Share of all prompt tokens that came from the cache; None without reported usage."""
    reductions: int = 0
    error: str = ""
    """The last failure in one line."""
    error_at: float = 0.0
    """Time of the last failure; 0.0 if unknown."""
    origin: str = ""
    """Key of the session that this one continues, was forked from, or is a sub-agent of."""
    place: str = ""
    """The store or file."""
    writable: bool = False
    times: tuple[float, ...] = ()
    """First and last time of its events; empty if unknown."""
    partial: bool = False
    """Whether the figures are of the newest events only, or not computed yet."""


class SessionPage(NamedTuple):
    """A part of the list of sessions."""

    rows: tuple[SessionRow, ...]
    next: str
    """Cursor of the next page; "" if this is the last one."""
    problems: tuple[str, ...] = ()
    """What could not be read, for people."""
    searching: int = 0
    """Sessions that are still being indexed for this search: ask again to include them."""


class SessionChanges(NamedTuple):
    """What changed in the list of sessions."""

    rows: tuple[SessionRow, ...]
    cursor: str


class SessionAbout(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a session beside its events."""

    key: str
    id: str
    """Its name within its place."""
    title: str = ""
    format: str = "foveal"
    model: str = ""
    """The model that answers, as far as it is known; the log can name others later."""
    policy: str = ""
    """"" for a transcript: another program decides what its model sees."""
    settings: dict[str, Any] = {}
    """Settings of the session that its log does not record, such as `window`, as keyword arguments of `Session`."""
    origin: str = ""
    """Key of the session that this one continues."""
    place: str = ""
    writable: bool = False
    reason: str = ""
    """Why it is not writable."""
    problems: tuple[str, ...] = ()


class LogEnd(NamedTuple):
    """Where a log ends now."""

    next_seq: int
    """The seq of the next event, and so the number of events."""
    generation: int = 0
    """Changes when events that could be read before are others now, as in a transcript that regroups its last
    messages while it grows: read the log from the first event again."""


class SessionAction(OperationRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A change of what the next request shows."""

    operation: OperationName = msgspec.field(name="action")
    writer: str = ""
    """For `compact`: the name of the `OfferedWriter`; "" for the default one."""


class ActionResult(msgspec.Struct, frozen=True, kw_only=True):
    """What an action did."""

    event: str
    """The handle of the event that records it."""
    text: str
    """One sentence for people."""


class OfferedWriter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What can write the summary of `compact`. The first one of several is the default."""

    name: str
    title: str
    """For people: the model, or that none is needed."""
    calls_model: bool = False


class OwnedMemory(NamedTuple):
    """The memory of one owner in one place."""

    key: str
    owner: str
    place: str
    entries: tuple[MemoryEntry, ...]
    """All of them, also those that do not count."""
    refusal: str
    """Why it cannot be changed; "" if it can."""

    def session_key(self, session: str) -> str:
        """Return the key of a session of the same place."""
        return session_handle(self.place, session)


class MemoryChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the owner does with an entry."""

    memory: str
    """The key of the memory."""
    action: MemoryAction
    id: str = ""
    """The id of the entry; "" for the newest change."""


class MemoryList(NamedTuple):
    """The memories of several places."""

    memories: tuple[OwnedMemory, ...]
    problems: tuple[str, ...] = ()
    """What could not be read."""


class SessionReader(Protocol):
    """Reads one session, and acts on it. It needs no closing."""

    @property
    def about(self) -> SessionAbout: ...

    async def end(self) -> LogEnd:
        """Return where the log ends now; cheap for every length."""
        ...

    async def read(self, first: int, last: int) -> list[Event]:
        """Return the events from `first` to `last`, both included, but at most `MAX_PART_EVENTS` seqs; those that
        do not exist are left out."""
        ...

    async def pick(self, seqs: Sequence[int]) -> list[Event]:
        """Return single events, ascending; those that do not exist are left out."""
        ...

    async def counts(self) -> MessageCounts | None:
        """Return the units of messages that are stored with the session, if there are any."""
        ...

    async def wait(self, after: LogEnd, *, timeout: float) -> LogEnd:
        """Return as soon as the log ends elsewhere than `after`, or after `timeout` seconds."""
        ...

    async def act(self, action: SessionAction) -> ActionResult:
        """Carry out an action and return what it did; raises `FovealError` with advice if it cannot be done."""
        ...

    async def writers(self) -> tuple[OfferedWriter, ...]:
        """Return what can write the summary of `compact`; empty if the place has its own and offers no choice."""
        ...


class SessionSource(Protocol):
    """A place with sessions, or several."""

    async def rows(self, *, after: str = "", limit: int = 50, query: str = "") -> SessionPage:
        """Return a page of sessions, the most recently active first. With `query`, those whose title or text has
        its words, best first. `after` is `SessionPage.next` of the page before."""
        ...

    async def cursor(self) -> str:
        """Return the cursor of the list as it is now, for `wait_for_changes`."""
        ...

    async def wait_for_changes(self, cursor: str, *, timeout: float) -> SessionChanges:
        """Return the rows that changed since `cursor`, as soon as there are any; none after `timeout` seconds."""
        ...

    async def open(self, key: str) -> SessionReader:
        """Return the reader of a session; raises `SessionMissing`."""
        ...

    async def memories(self) -> MemoryList:
        """Return the memories of this place."""
        ...

    async def change_memory(self, change: MemoryChange) -> str:
        """Carry out a change of a memory and return its owner; raises `FovealError` with advice if it cannot be
        done."""
        ...

    async def close(self) -> None: ...


def store_refusal(source: ArchiveSource) -> str:
    """Return why the sessions of a source cannot be changed; "" if it is a store that can be written."""
    match source:
        case StoreSource() | PostgresSource():
            return ""
        case SqliteSource():
            folder = os.path.dirname(source.name)
            if os.access(source.name, os.W_OK) and os.access(folder, os.W_OK):
                return ""
            return f"{source.name} cannot be written by this user"
        case _:
            return (
                "a transcript of another program can only be read: what its model sees is decided there; "
                "`foveal import` copies it into a store, where you can change it"
            )
