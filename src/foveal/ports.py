"""Protocols for stores and providers; they use core types only.

A provider answers requests with a model. Its contract:

1. `send` yields pieces of the answer as they arrive and, at the end, exactly one `Reply`. Before the first piece it
   yields a `RetryWait` for each further attempt, and `PromptProgress` if the model reads slowly.
2. The reply's message is in the provider's dialect, exactly as it was sent, so that nothing that must be sent back
   (thinking, signatures, ids) is lost; `Session.take` reads it.
3. Failures raise a `ProviderError` that says what to do. An overflow is raised as the provider's library raised it,
   because `Session.overflowed` reads it.

A store keeps sessions as append-only logs. The suite in `tests/support/store_contract.py` checks its contract for
every implementation:

1. `append` is one transaction: either all events are durable when it returns, or none is stored.
2. Seqs are gapless. The first event must have the next seq of its session; otherwise `append` raises `Conflict` and
   writes nothing. Of several writers exactly one gets each seq, and the others read again.
3. Events are read back byte for byte as they were appended, whatever their text.
4. A checkpoint is a cache: losing it costs time, never content.
5. `erase` removes the text of a session from the store for good; its seqs remain, gapless, as `Erased` facts.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import msgspec

from foveal.core.log.events import Dialect, Event
from foveal.core.models.model import Model
from foveal.core.view.request import Fitted


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a store knows of a session without reading its events."""

    id: str
    title: str = ""
    created: float = 0.0
    active: float = 0.0
    """When the newest event was appended."""
    events: int = 0
    bytes: int = 0
    """Bytes on disk for its events, with its share of the data that sessions have in common."""
    erased: bool = False


class SessionEnd(NamedTuple):
    """Where the log of a session ends."""

    next_seq: int
    """The seq of the next event, and so the number of events."""
    erased: bool


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A state from which a session can be opened without reading all of its events."""

    seq: int
    """The newest event that the state includes."""
    needed: tuple[int, ...]
    """The earlier events that the view still needs, ascending."""
    state: bytes
    """The rest of the state; opaque to the store."""


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """An event that a search found."""

    seq: int
    score: float
    """Higher is better; scores are comparable within one search only."""


class Store(Protocol):
    """Keeps sessions as append-only logs."""

    async def append(self, session: str, events: Sequence[Event]) -> None:
        """Append events to a session; event 0 creates it. Raises `Conflict`."""
        ...

    async def read(self, session: str, *, first: int = 0, last: int | None = None) -> list[Event]:
        """Return the events from `first` to `last`, both included; raises `UnknownSession`."""
        ...

    async def read_new(self, session: str, *, first: int) -> tuple[list[Event], bool]:
        """Return the events from `first` on, and whether the session was erased, in one query: what a reader
        needs to catch up."""
        ...

    async def pick(self, session: str, seqs: Sequence[int]) -> list[Event]:
        """Return single events, ascending; those that do not exist are left out."""
        ...

    async def checkpoint(self, session: str) -> Checkpoint | None:
        """Return the newest checkpoint, if there is one; raises `UnknownSession`."""
        ...

    async def keep_checkpoint(self, session: str, checkpoint: Checkpoint) -> None:
        """Store a checkpoint in place of the previous one."""
        ...

    async def search(self, session: str, query: str, *, limit: int = 50) -> list[Hit]:
        """Return events whose text has words of the query, best first; any text is a valid query."""
        ...

    async def sessions(
        self, *, limit: int | None = None, before: tuple[float, str] | None = None, with_erased: bool = True
    ) -> list[SessionInfo]:
        """Return at most `limit` sessions, the most recently active first, of equally active ones the greater id.
        `before` is `(active, id)` of the last session of the page before. The cost of a page does not depend on
        the number of sessions."""
        ...

    async def end(self, session: str) -> SessionEnd:
        """Return where a session ends, at the same price for every length; raises `UnknownSession`."""
        ...

    async def info(self, session: str) -> SessionInfo:
        """Return what is known of a session; raises `UnknownSession`."""
        ...

    async def rename(self, session: str, title: str) -> None:
        """Set the title of a session."""
        ...

    async def fork(self, session: str, new: str, *, at: int) -> None:
        """Create a session with the events up to and including `at`. Raises `Conflict` when `new` exists."""
        ...

    async def erase(self, session: str) -> None:
        """Remove the text of a session for good."""
        ...

    async def close(self) -> None: ...


class ReplyPiece(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of an answer as it arrives."""

    text: str
    kind: Literal["text", "thinking", "call"] = "text"
    """In a piece of kind `call`, the text is the name of the tool that is called."""


class RetryWait(msgspec.Struct, frozen=True, kw_only=True):
    """A request has failed and is sent again after a wait."""

    reason: str
    """What has failed, in words."""
    seconds: float
    """The wait before the next attempt."""
    attempt: int
    """The number of the next attempt."""
    attempts: int
    """Most attempts in all."""


class PromptProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a request a slow model has read before its answer begins."""

    read: int
    """Tokens, with those from the prompt cache."""
    total: int


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """A complete answer."""

    message: Any
    """The message in the provider's dialect, for `Session.take`; a list where one answer is several items."""
    usage: Any = None
    """The usage that the provider reported, for `Session.observe`; None when it reported none."""
    stop: str = ""
    """Why the answer ended, in the provider's own word."""

    @property
    def messages(self) -> list[Any]:
        """The message as a list, for `Session.take`."""
        return self.message if isinstance(self.message, list) else [self.message]


ReplyItem: TypeAlias = RetryWait | PromptProgress | ReplyPiece | Reply
"""What `Provider.send` yields."""


class Provider(Protocol):
    """Answers requests with one model."""

    @property
    def name(self) -> str:
        """`provider/model`, as the user writes it."""
        ...

    @property
    def model(self) -> Model: ...

    @property
    def dialect(self) -> Dialect: ...

    def send(self, request: Fitted, *, max_tokens: int) -> AsyncIterator[ReplyItem]:
        """Send a fitted request with its tools (each `{"name", "description", "parameters"}`), and yield the
        answer."""
        ...

    async def close(self) -> None: ...
