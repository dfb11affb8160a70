"""The doors to the world outside: Protocols that name core types only.

A provider answers requests with a model. Its contract:

1. `send` yields pieces of the answer as they come and, last of all, exactly one `Reply`.
2. The reply's message is as the provider sent it, in its own dialect, so that nothing that must be sent back
   (thinking, signatures, ids) is lost; `Session.take` reads it.
3. What goes wrong is a `ProviderError` that says what to do; an overflow is raised as the library raised it,
   because `Session.overflowed` reads it.

A store keeps sessions as append-only logs. Its contract, which the suite in `tests/store_contract.py` checks for
every implementation:

1. `append` is one transaction: all of the events are durable when it returns, or none of them is there.
2. Seqs are gapless. The first event must have the next seq of its session, or `Conflict` is raised and nothing is
   written: of several writers exactly one wins each seq, and the others read again.
3. What was read equals what was appended, byte for byte, whatever the text.
4. A checkpoint is a cache: losing it costs time, never content.
5. `erase` takes the text of a session out of the store for good; its seqs remain, gapless, as `Erased` facts.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal, Protocol

import msgspec

from foveal.core.log.events import Dialect, Event
from foveal.core.models.model import Model
from foveal.core.view.request import Fitted


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a store tells of a session without reading it."""

    id: str
    title: str = ""
    created: float = 0.0
    active: float = 0.0
    """When the newest event was appended."""
    events: int = 0
    bytes: int = 0
    """Room on disk for its events, with its share of what it has in common with others."""
    erased: bool = False


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """From where a session can be opened without reading it from the start."""

    seq: int
    """The newest event that it takes into account."""
    needed: tuple[int, ...]
    """The earlier events that the view still needs, ascending."""
    state: bytes
    """What else the view had counted by then; opaque to the store."""


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """An event that a search found."""

    seq: int
    score: float
    """Higher is better; comparable within one search only."""


class Store(Protocol):
    async def append(self, session: str, events: Sequence[Event]) -> None:
        """Add events to a session, which begins with its event 0. Raises `Conflict`."""
        ...

    async def read(self, session: str, *, first: int = 0, last: int | None = None) -> list[Event]:
        """The events from `first` to `last`, both included; raises `UnknownSession`."""
        ...

    async def news(self, session: str, *, first: int) -> tuple[list[Event], bool]:
        """The events from `first` on, and whether the session was erased: what a reader must ask for before it goes
        on, in one question."""
        ...

    async def pick(self, session: str, seqs: Sequence[int]) -> list[Event]:
        """Single events, ascending; those that do not exist are left out."""
        ...

    async def checkpoint(self, session: str) -> Checkpoint | None: ...

    async def keep_checkpoint(self, session: str, checkpoint: Checkpoint) -> None: ...

    async def search(self, session: str, query: str, *, limit: int = 50) -> list[Hit]:
        """Events whose text has words of the query, best first; any text is a valid query."""
        ...

    async def sessions(self) -> list[SessionInfo]:
        """All sessions, the most recently active first."""
        ...

    async def info(self, session: str) -> SessionInfo:
        """Raises `UnknownSession`."""
        ...

    async def rename(self, session: str, title: str) -> None: ...

    async def fork(self, session: str, new: str, *, at: int) -> None:
        """A new session with the events up to `at`, both included. Raises `Conflict` when `new` exists."""
        ...

    async def erase(self, session: str) -> None: ...

    async def close(self) -> None: ...


class ReplyPiece(msgspec.Struct, frozen=True, kw_only=True):
    """A bit of an answer as it comes."""

    text: str
    kind: Literal["text", "thinking", "call"] = "text"
    """`call`: the name of a tool that is being called."""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer."""

    message: Any
    """As the provider's dialect has it: what `Session.take` reads; a list where one answer is several items."""
    usage: Any = None
    """What the provider reported, for `Session.observe`; None when it said nothing."""
    stop: str = ""
    """Why it ended, in the provider's word."""

    @property
    def messages(self) -> list[Any]:
        return self.message if isinstance(self.message, list) else [self.message]


class Provider(Protocol):
    @property
    def name(self) -> str:
        """`provider/model`, as the user writes it."""
        ...

    @property
    def model(self) -> Model: ...

    @property
    def dialect(self) -> Dialect: ...

    def send(self, request: Fitted, *, max_tokens: int) -> AsyncIterator[ReplyPiece | Reply]:
        """Ask for an answer to a fitted request, with the tools that it offers (`{"name", "description",
        "parameters"}` each)."""
        ...

    async def close(self) -> None: ...
