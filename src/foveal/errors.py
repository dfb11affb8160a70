"""Everything Foveal raises on purpose, in one tree.

    FovealError
    ├── ContextOverflow     what must stay is larger than the room; carries the numbers and the floor
    ├── NotCompacted        there was nothing to summarise, or nothing came of it; what is shown has not changed
    ├── MalformedMessage    a message that no dialect allows; names its index and field
    ├── BadSetting          a setting outside its range; names the field and what is allowed
    ├── Busy                a session is answering; what was asked for has to wait
    ├── NothingToAsk        the last turn was answered, so the model is not asked again
    ├── AnsweredElsewhere   a session that another program speaks in, through the drop-in endpoints
    ├── UnknownHandle       a handle that no event of this log has
    ├── UnreadableEvent     bytes in the log that are not an event
    ├── UnreadableTranscript  (in `foveal.transcripts`) a file that is no recorded conversation
    ├── ProviderError       a model's provider could not answer; says what to do
    └── StoreError          a store could not do what it was asked
        ├── Conflict        somebody else appended first; carries the seq that is next
        ├── UnknownSession  no session has that id
        ├── SessionExists   a new session was to have an id that one has, or had
        └── StoreUnusable   not a store, a newer version's, read-only, locked, full or damaged

What a *model* does wrong (a call with broken arguments, say) is an answer to the model, not an exception.
"""

from __future__ import annotations

from typing import Final


class FovealError(Exception):
    """The root: catch this to catch whatever Foveal raises on purpose."""


class ContextOverflow(FovealError):
    """The parts that may never be cut do not fit; nothing was sent and nothing was lost."""

    def __init__(
        self, message: str, *, needed: int, available: int, window: int, reserve: int, margin: int, floor: int
    ) -> None:
        super().__init__(message)
        self.needed = needed
        """Tokens of the request as it stands after every reduction that was allowed."""
        self.available = available
        """Tokens a request may take: window − reserve − margin."""
        self.window = window
        self.reserve = reserve
        self.margin = margin
        self.floor = floor
        """Tokens of the smallest possible request: what no reduction may touch."""


class NotCompacted(FovealError):
    """No summary was recorded; says why."""

    def __init__(self, problem: str, *, floor: int = 0) -> None:
        super().__init__(f"nothing was summarised: {problem}")
        self.problem = problem
        self.floor = floor
        """Tokens that no summary can remove, if that is what stood in the way."""


class MalformedMessage(FovealError, ValueError):
    """A message that cannot be read; `index` counts from 0 in the list that was given."""

    def __init__(self, index: int, field: str, problem: str) -> None:
        super().__init__(
            f"messages[{index}].{field}: {problem}" if field else f"messages[{index}]: {problem}"
        )
        self.index = index
        self.field = field
        self.problem = problem


class BadSetting(FovealError, ValueError):
    """A setting that is not allowed; says which and what would be."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(f"{field} = {value!r} is not allowed: {allowed}")
        self.field = field
        self.value = value
        self.allowed = allowed


class Busy(FovealError):
    """A session is answering, and what was asked for cannot be done meanwhile."""


class NothingToAsk(FovealError):
    """The last turn was answered, or there was none."""


class AnsweredElsewhere(FovealError):
    """A session that a program speaks in which resends its history: nobody else does."""


class UnknownHandle(FovealError, LookupError):
    """No event of this log has that handle."""


class UnreadableEvent(FovealError, ValueError):
    """Bytes that are not an event of any version."""


class StoreError(FovealError):
    """A store could not do what it was asked; what had been appended before is intact."""


class Conflict(StoreError):
    """Somebody else appended first: read what was missed, from `given` on, and decide anew."""

    def __init__(self, session: str, *, given: int, next_seq: int) -> None:
        super().__init__(
            f"session {session!r}: event {given} was to be appended, but the next one is {next_seq}"
        )
        self.session = session
        self.given = given
        self.next_seq = next_seq


class UnknownSession(StoreError, LookupError):
    """No session has that id."""

    def __init__(self, session: str) -> None:
        super().__init__(f"no session {session!r}; `foveal sessions` lists those that there are")
        self.session = session


class SessionExists(StoreError):
    """A session has that id, or had it before it was erased."""

    def __init__(self, session: str) -> None:
        super().__init__(f"there is, or was, a session {session!r}: choose another id")
        self.session = session


class StoreUnusable(StoreError):
    """The file cannot be used: what is wrong with it, and what to do."""


PASSING: Final = ("rate", "connection", "interrupted", "server")
"""Sorts of a provider's troubles that may be over when it is asked again later."""


class ProviderError(FovealError):
    """A provider gave no answer: no key, a wrong one, too many requests, no connection, or one that broke off."""

    def __init__(self, problem: str, *, code: str = "", partial: str = "") -> None:
        super().__init__(problem)
        self.code = code
        """`key`, `rate`, `connection`, `interrupted`, `refused` or `server`."""
        self.partial = partial
        """What had been said before the connection broke."""
