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
6. A log whose id begins with `events.MEMORY_LOG_PREFIX` is a memory (`foveal.Memory`). `sessions` returns it only
   if it is asked for memories, and then it returns nothing else.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import msgspec

from foveal.core.log.events import Dialect, Event
from foveal.core.models.model import Model
from foveal.core.view.request import Fitted


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a store knows of a session without reading its events.

    Examples:
        ```python
        import foveal

        async with foveal.stores.MemoryStore() as store:
            await store.append("demo", [foveal.Event(0, foveal.UserSaid(content="Hello."))])
            assert (await store.info("demo")).events == 1
        ```
    """

    id: str
    """The id of the session."""
    title: str = ""
    """The title; "" if it has none."""
    created: float = 0.0
    """When the first event was appended, in seconds since 1970."""
    active: float = 0.0
    """When the newest event was appended, in seconds since 1970."""
    events: int = 0
    """The number of events."""
    bytes: int = 0
    """Bytes on disk for its events, with its share of the data that sessions have in common."""
    erased: bool = False
    """Whether the text of the session was erased."""


class SessionEnd(NamedTuple):
    """Where the log of a session ends.

    Examples:
        ```python
        import foveal

        async with foveal.stores.MemoryStore() as store:
            await store.append("demo", [foveal.Event(0, foveal.UserSaid(content="Hello."))])
            assert await store.end("demo") == foveal.ports.SessionEnd(next_seq=1, erased=False)
        ```
    """

    next_seq: int
    """The seq of the next event, and so the number of events."""
    erased: bool
    """Whether the text of the session was erased."""


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A state from which a session can be opened without reading all of its events.

    Examples:
        ```python
        import foveal

        checkpoint = foveal.ports.Checkpoint(seq=12, needed=(0, 3), state=b"{}")
        ```
    """

    seq: int
    """The newest event that the state includes."""
    needed: tuple[int, ...]
    """The earlier events that the view still needs, ascending."""
    state: bytes
    """The rest of the state; opaque to the store."""


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """An event that a search found.

    Examples:
        ```python
        import foveal

        async with foveal.stores.MemoryStore() as store:
            await store.append("demo", [foveal.Event(0, foveal.UserSaid(content="The ticket is OPS-17."))])
            (hit,) = await store.search("demo", "ticket")
            assert hit.seq == 0
        ```
    """

    seq: int
    """The seq of the event."""
    score: float
    """Higher is better; scores are comparable within one search only."""


class Store(Protocol):
    """Keeps sessions as append-only logs.

    `open_store`, `SqliteStore` and `MemoryStore` implement this protocol. The docstring of `foveal.ports` has
    its contract.

    Examples:
        ```python
        import foveal


        async def count_events(store: foveal.ports.Store) -> int:
            return sum(info.events for info in await store.sessions())


        async with foveal.stores.MemoryStore() as store:
            assert await count_events(store) == 0
        ```
    """

    async def append(self, session: str, events: Sequence[Event]) -> None:
        """Append events to a session in one transaction; event 0 creates it.

        Args:
            session: The id of the session.
            events: Events with gapless seqs, which begin with the next seq of the session.

        Raises:
            Conflict: Another writer appended first.
            StoreError: The seqs have a gap, or the store cannot write.
        """
        ...

    async def read(self, session: str, *, first: int = 0, last: int | None = None) -> list[Event]:
        """Return the events of a range, oldest first.

        Args:
            session: The id of the session.
            first: The first seq.
            last: The last seq, included. None reads to the end.

        Raises:
            UnknownSession: No session has this id.
        """
        ...

    async def read_new(self, session: str, *, first: int) -> tuple[list[Event], bool]:
        """Return new events and whether the session was erased, in one query.

        Args:
            session: The id of the session.
            first: The first seq to read.

        Raises:
            UnknownSession: No session has this id.
        """
        ...

    async def pick(self, session: str, seqs: Sequence[int]) -> list[Event]:
        """Return single events, ascending.

        Args:
            session: The id of the session.
            seqs: The seqs. Those that do not exist are left out.

        Raises:
            UnknownSession: No session has this id.
        """
        ...

    async def checkpoint(self, session: str) -> Checkpoint | None:
        """Return the newest checkpoint; None if there is none.

        Args:
            session: The id of the session.

        Raises:
            UnknownSession: No session has this id.
        """
        ...

    async def keep_checkpoint(self, session: str, checkpoint: Checkpoint) -> None:
        """Store a checkpoint in place of the previous one.

        Args:
            session: The id of the session.
            checkpoint: The checkpoint.

        Raises:
            UnknownSession: No session has this id.
        """
        ...

    async def search(self, session: str, query: str, *, limit: int = 50) -> list[Hit]:
        """Return events whose text has words of the query, best first.

        Args:
            session: The id of the session.
            query: Any text.
            limit: Most events to return.

        Raises:
            UnknownSession: No session has this id.
        """
        ...

    async def sessions(
        self,
        *,
        limit: int | None = None,
        before: tuple[float, str] | None = None,
        with_erased: bool = True,
        memories: bool = False,
    ) -> list[SessionInfo]:
        """Return sessions, the most recently active first.

        Of equally active ones, the greater id comes first. The cost of a page does not depend on the number of
        sessions.

        Args:
            limit: Most sessions to return. None returns all.
            before: `(active, id)` of the last session of the page before. None begins with the first page.
            with_erased: Whether erased sessions are included.
            memories: Whether to return the logs of memories, and no sessions.
        """
        ...

    async def end(self, session: str) -> SessionEnd:
        """Return where a session ends, at the same cost for every length.

        Args:
            session: The id of the session.

        Raises:
            UnknownSession: No session has this id.
        """
        ...

    async def info(self, session: str) -> SessionInfo:
        """Return what is known of a session without its events.

        Args:
            session: The id of the session.

        Raises:
            UnknownSession: No session has this id.
        """
        ...

    async def rename(self, session: str, title: str) -> None:
        """Set the title of a session.

        Args:
            session: The id of the session.
            title: The new title.

        Raises:
            UnknownSession: No session has this id.
        """
        ...

    async def fork(self, session: str, new: str, *, at: int) -> None:
        """Create a session with the first events of another one.

        Args:
            session: The id of the existing session.
            new: The id of the new session.
            at: The seq of the last event to copy.

        Raises:
            UnknownSession: No session has the id `session`.
            Conflict: A session with the id `new` exists.
        """
        ...

    async def erase(self, session: str) -> None:
        """Remove the text of a session for good.

        Args:
            session: The id of the session.

        Raises:
            UnknownSession: No session has this id.
        """
        ...

    async def close(self) -> None:
        """Close the store; `async with` does it."""
        ...


class ReplyPiece(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of an answer as it arrives.

    Examples:
        ```python
        import foveal

        piece = foveal.ports.ReplyPiece(text="Because of")
        ```
    """

    text: str
    """The text of the piece."""
    kind: Literal["text", "thinking", "call"] = "text"
    """In a piece of kind `call`, the text is the name of the tool that is called."""


class RetryWait(msgspec.Struct, frozen=True, kw_only=True):
    """A request has failed and is sent again after a wait.

    Examples:
        ```python
        import foveal

        wait = foveal.ports.RetryWait(reason="too many requests", seconds=2.0, attempt=2, attempts=4)
        ```
    """

    reason: str
    """What has failed, in words."""
    seconds: float
    """The wait before the next attempt."""
    attempt: int
    """The number of the next attempt."""
    attempts: int
    """Most attempts in all."""


class PromptProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a request a slow model has read before its answer begins.

    Examples:
        ```python
        import foveal

        progress = foveal.ports.PromptProgress(read=2_000, total=8_000)
        ```
    """

    read: int
    """Tokens, with those from the prompt cache."""
    total: int
    """Tokens of the whole request."""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """A complete answer.

    Examples:
        ```python
        import foveal

        reply = foveal.ports.Reply(message={"role": "assistant", "content": "Because of a bound."}, stop="stop")
        assert len(reply.messages) == 1
        ```
    """

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
    """Answers requests with one model.

    The docstring of `foveal.ports` has the contract. `foveal.testing.Scripted` implements the protocol.

    Examples:
        ```python
        import foveal

        provider: foveal.ports.Provider = foveal.testing.Scripted("Because of a bound.")
        ```
    """

    @property
    def name(self) -> str:
        """`provider/model`, as the user writes it."""
        ...

    @property
    def model(self) -> Model:
        """The limits and prices of the model."""
        ...

    @property
    def dialect(self) -> Dialect:
        """The dialect of the messages that `send` yields."""
        ...

    def send(self, request: Fitted, *, max_tokens: int) -> AsyncIterator[ReplyItem]:
        """Send a fitted request and yield the answer.

        Args:
            request: The request, with its tools as `{"name", "description", "parameters"}`.
            max_tokens: Most tokens that the answer may take.

        Returns:
            Pieces of the answer as they arrive, and at the end one `Reply`.

        Raises:
            ProviderError: The provider did not answer; the message says what to do.
        """
        ...

    async def close(self) -> None:
        """Close the connections of the provider."""
        ...
