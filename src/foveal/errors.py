"""The exceptions of Foveal, in one tree.

    FovealError
    ├── ContextOverflow     the parts that must stay do not fit; carries the numbers and the floor
    ├── NotCompacted        nothing could be summarised, or no summary was written; the view is unchanged
    ├── NotDropped          what should be dropped is in every request; the message says why
    ├── MalformedMessage    a message that no dialect allows; names its index and field
    ├── BadSetting          a setting outside its range; names the field and what is allowed
    ├── Busy                a session is answering; the operation has to wait
    ├── NothingToAsk        the last turn was answered, so the model is not called again
    ├── KeyReused           the key of a message was sent again with another text
    ├── AnsweredElsewhere   another program writes this session through the drop-in endpoints
    ├── UnknownHandle       a handle that no event of this log has
    ├── UnreadableEvent     bytes in the log that are not an event
    ├── UnreadableTranscript  (in `foveal.transcripts`) a file that is not a recorded conversation
    ├── RecallProblem       (in `foveal.recall.archive`) a recall call that cannot be answered; says what to do
    ├── UnusableFile        (in `foveal.project`) a path that cannot be read as text; says why
    ├── ProviderError       a model's provider could not answer; says what to do
    └── StoreError          a store could not perform an operation
        ├── Conflict        another writer appended first; carries the next seq
        ├── LeaseLost       another process has taken over the session; nothing was written
        ├── UnknownSession  no session has that id
        ├── SessionExists   the id of a new session is or was in use
        └── StoreUnusable   not a store, a newer version's, read-only, locked, full or damaged

`SummariserFailed`, `UnrelatedConversation` and `UsageMissing` are warnings, not errors.

A mistake of a *model*, such as a call with broken arguments, is answered to the model; it raises no exception.
"""

from __future__ import annotations

from typing import Final


class FovealError(Exception):
    """The base class of all errors that Foveal raises on purpose."""


class ContextOverflow(FovealError):
    """The parts that may not be cut do not fit. Nothing was sent, and nothing is lost.

    `foveal.core.engine.overflow` writes the message: what is too large, and what to do."""

    def __init__(
        self,
        message: str,
        *,
        needed: int,
        available: int,
        window: int,
        reserve: int,
        margin: int,
        floor: int,
        capped: int = 0,
    ) -> None:
        super().__init__(message)
        self.needed = needed
        """Tokens of the request after every allowed reduction."""
        self.available = available
        """Tokens that a request may take: window − reserve − margin − capped."""
        self.window = window
        self.reserve = reserve
        self.margin = margin
        self.capped = capped
        """Tokens that the input limit of the model, or a cap of the caller, leaves unused."""
        self.floor = floor
        """Tokens of the smallest possible request, with only what no reduction may touch."""


class NotCompacted(FovealError):
    """No summary was recorded; `problem` says why."""

    def __init__(self, problem: str, *, floor: int = 0) -> None:
        super().__init__(f"nothing was summarised: {problem}")
        self.problem = problem
        self.floor = floor
        """Tokens that no summary can remove, if they are the reason; otherwise 0."""


class NotDropped(FovealError):
    """What should be dropped must stay in every request; the message says why, and what to do. The view is
    unchanged."""


class MalformedMessage(FovealError, ValueError):
    """A message that cannot be read; `index` counts from 0 in the given list."""

    def __init__(self, index: int, field: str, problem: str) -> None:
        super().__init__(
            f"messages[{index}].{field}: {problem}" if field else f"messages[{index}]: {problem}"
        )
        self.index = index
        self.field = field
        self.problem = problem


class BadSetting(FovealError, ValueError):
    """A setting with a value that is not allowed; names the setting and the allowed values."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(f"{field} = {value!r} is not allowed: {allowed}")
        self.field = field
        self.value = value
        self.allowed = allowed


class Busy(FovealError):
    """A session is answering, and the operation is not possible meanwhile."""


class NothingToAsk(FovealError):
    """There is no unanswered turn, so the model is not called."""


class KeyReused(FovealError):
    """The key of a message was sent again with another text; nothing was stored."""

    def __init__(self, session: str) -> None:
        super().__init__(
            f"session {session!r} has another message with this key: send the same text again, or use a new key"
        )
        self.session = session


class AnsweredElsewhere(FovealError):
    """Another program writes this session by resending its history; only that program may add messages."""


class UnknownHandle(FovealError, LookupError):
    """No event of this log has that handle."""


class UnreadableEvent(FovealError, ValueError):
    """Bytes that are not an event of any version."""


class StoreError(FovealError):
    """A store could not perform an operation; what was appended before is intact."""


class Conflict(StoreError):
    """Another writer appended first: read the events from seq `given` on, and decide again."""

    def __init__(self, session: str, *, given: int, next_seq: int) -> None:
        super().__init__(
            f"session {session!r}: cannot append event {given}, because the next one is {next_seq}"
        )
        self.session = session
        self.given = given
        self.next_seq = next_seq


class LeaseLost(StoreError):
    """This process held the session's lease, and another one may have taken it over: nothing was written."""

    def __init__(self, session: str) -> None:
        super().__init__(
            f"session {session!r} was taken over by another process, because this one did not renew its lease in"
            " time; nothing was written: the other process continues"
        )
        self.session = session


class UnknownSession(StoreError, LookupError):
    """No session has that id."""

    def __init__(self, session: str) -> None:
        super().__init__(f"no session {session!r}; `foveal sessions` lists the existing ones")
        self.session = session


class SessionExists(StoreError):
    """The id of a new session is in use, or was before its session was erased."""

    def __init__(self, session: str) -> None:
        super().__init__(f"a session {session!r} exists, or existed and was erased: choose another id")
        self.session = session


class StoreUnusable(StoreError):
    """The store's file cannot be used; the message says why, and what to do."""


TRANSIENT_CODES: Final = ("rate", "connection", "interrupted", "server")
"""Codes of `ProviderError`s that a later retry can resolve."""


class ProviderError(FovealError):
    """A provider did not answer: a missing or wrong key, too many requests, no connection, or a lost one."""

    def __init__(self, problem: str, *, code: str = "", partial: str = "") -> None:
        super().__init__(problem)
        self.code = code
        """`key`, `rate`, `connection`, `interrupted`, `refused` or `server`."""
        self.partial = partial
        """The text that arrived before the connection was lost."""


class SummariserFailed(UserWarning):
    """A summariser of a `Context` raised an error. The next one is called, or the log alone is summarised."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"a summariser failed ({problem}); this is told once, see report().summaries")


class UnrelatedConversation(UserWarning):
    """A `Context` was given a history that shares no message with the one before."""

    def __init__(self, recorded: int) -> None:
        super().__init__(
            f"the messages have nothing in common with the {recorded:,} recorded ones: a new conversation begins, "
            "and recall does not find the old one. Use one Context for each conversation, or call "
            "`new_conversation()` first"
        )


class UsageMissing(UserWarning):
    """A reply without usage was observed, so token counts stay estimates. It is given once per conversation."""

    def __init__(self) -> None:
        super().__init__(
            "the reply has no usage, so token counts stay estimates. When you stream from a chat API, ask for it "
            'with stream_options={"include_usage": True} and observe the last chunk'
        )
