"""The exceptions of Foveal, in one tree.

    FovealError
    ├── ContextOverflow     the parts that must stay do not fit; carries the numbers and the floor
    ├── BudgetExceeded      a request would exceed a spending limit; carries what is spent and left
    ├── NotCompacted        nothing could be summarised, or no summary was written; the view is unchanged
    ├── NotDropped          what should be dropped is in every request; the message says why
    ├── NotRemembered       a memory cannot keep this: no words of the user, too long, or no such entry
    ├── MalformedMessage    a message that no dialect allows; names its index and field
    ├── BadReduction        a policy of your own returned what a law forbids; names the policy and the reason
    ├── BadSetting          a setting outside its range; names the field and what is allowed
    ├── ConversationIdMissing  a request names no conversation, and `strict_ids` is set; says how to name it
    ├── Busy                a session is answering; the operation has to wait
    ├── NothingToAsk        the last turn was answered, so the model is not called again
    ├── KeyReused           the key of a message was sent again with another text
    ├── AnsweredElsewhere   another program writes this session through the drop-in endpoints
    ├── AgentRemoved        the agent of a session is no longer in the configuration
    ├── UnknownHandle       a handle that no event of this log has
    ├── UnreadableEvent     bytes in the log that are not an event
    ├── UnreadableTranscript  (in `foveal.transcripts`) a file that is not a recorded conversation
    ├── RecallProblem       (in `foveal.recall.archive`) a recall call that cannot be answered; says what to do
    ├── UnusableFile        (in `foveal.config.project`) a path that cannot be read as text; says why
    ├── ProviderError       a model's provider could not answer; says what to do
    └── StoreError          a store could not perform an operation
        ├── Conflict        another writer appended first; carries the next seq
        ├── LeaseLost       another process has taken over the session; nothing was written
        ├── UnknownSession  no session has that id
        ├── SessionExists   the id of a new session is or was in use
        └── StoreUnusable   not a store, a newer version's, read-only, locked, full or damaged

`HistoryDiverged`, `SettingsChanged`, `SummariserFailed`, `UnrelatedConversation` and `UsageMissing` are warnings,
not errors.

A mistake of a *model*, such as a call with broken arguments, is answered to the model; it raises no exception.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

__all__ = [
    "TRANSIENT_CODES",
    "AgentRemoved",
    "AnsweredElsewhere",
    "BadReduction",
    "BadSetting",
    "BudgetExceeded",
    "Busy",
    "Conflict",
    "ContextOverflow",
    "ConversationIdMissing",
    "FovealError",
    "HistoryDiverged",
    "KeyReused",
    "LeaseLost",
    "MalformedMessage",
    "NotCompacted",
    "NotDropped",
    "NotRemembered",
    "NothingToAsk",
    "ProviderError",
    "SessionExists",
    "SettingsChanged",
    "StoreError",
    "StoreUnusable",
    "SummariserFailed",
    "UnknownHandle",
    "UnknownSession",
    "UnreadableEvent",
    "UnrelatedConversation",
    "UsageMissing",
]

MAX_SHOWN_CHARS: Final = 200
"""Characters of a wrong value that a message shows."""


_PLAIN_TYPES: Final = (bool, int, float, str, bytes)


def shown_value(value: object) -> str:
    """Return a wrong value as a message shows it: on one line, and shortened."""
    try:
        text = repr(value).replace("\n", " ")
    except Exception:  # noqa: BLE001 (an object of the caller: the message matters more)
        text = f"<{type(value).__name__}>"
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[: MAX_SHOWN_CHARS - 1]}…"


def _rebuild(kind: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    """Return an exception without calling its `__init__`, whose arguments are not `args`."""
    return kind.__new__(kind, *args)


def _as_plain(value: object) -> object:
    """Return a value of plain data or of Foveal's own types; another one, such as a lock of the caller, as a
    message shows it, because what cannot be pickled would replace the error by another."""
    kind = type(value)
    if value is None or kind in _PLAIN_TYPES or kind.__module__.partition(".")[0] == "foveal":
        return value
    if kind in (list, tuple):
        return kind(map(_as_plain, cast(Sequence[object], value)))
    if kind is dict:
        return {_as_plain(key): _as_plain(inner) for key, inner in cast(dict[object, object], value).items()}
    return shown_value(value)


class PicklableError(BaseException):
    """The base class of exceptions with fields: `pickle` and `copy` keep the message and the fields.

    `multiprocessing` and `concurrent.futures` send exceptions between processes; one that cannot be read back ends
    the whole pool.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        fields = {name: _as_plain(value) for name, value in self.__dict__.items()}
        return _rebuild, (type(self), tuple(map(_as_plain, self.args))), fields


class FovealError(PicklableError, Exception):
    """The base class of all errors that Foveal raises on purpose.

    Examples:
        ```python
        import foveal

        try:
            foveal.Context("gpt-4.1", window=-1)
        except foveal.FovealError as error:
            print(error)
        ```
    """


class BadReduction(FovealError):
    """A policy of your own returned a reduction that a law forbids.

    Nothing of it was recorded. `foveal.testing.check_policy` finds such mistakes before users do.

    Examples:
        ```python
        import foveal

        try:
            raise foveal.errors.BadReduction("mine", "it drops e4, which is pinned")
        except foveal.FovealError as error:
            assert str(error) == "the policy mine made a bad reduction: it drops e4, which is pinned"
        ```
    """

    def __init__(self, policy: str, problem: str) -> None:
        super().__init__(f"the policy {policy} made a bad reduction: {problem}")
        self.policy: str = policy
        """The name of the policy."""
        self.problem: str = problem
        """What is wrong with the reduction."""


class ContextOverflow(FovealError):
    """The parts that may not be cut do not fit.

    Nothing was sent, and nothing is lost. The message says what is too large, and what to do.

    Examples:
        ```python
        import foveal

        ctx = foveal.Context("gpt-4.1", window=2_000)
        try:
            ctx.fit([{"role": "system", "content": "Rule. " * 3_000}, {"role": "user", "content": "Hello."}])
        except foveal.ContextOverflow as error:
            assert error.needed > error.available
        ```
    """

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
        """Tokens of the model's window."""
        self.reserve = reserve
        """Tokens kept free for the answer."""
        self.margin = margin
        """Tokens that stay unused because counts are not exact."""
        self.capped = capped
        """Tokens that the input limit of the model, or a cap of the caller, leaves unused."""
        self.floor = floor
        """Tokens of the smallest possible request, with only what no reduction may touch."""


class BudgetExceeded(FovealError):
    """The next request would exceed a spending limit, or its price is not known.

    Nothing was sent, and nothing is lost. The message has the numbers, and says what to do.

    Examples:
        ```python
        import foveal

        ctx = foveal.Context("gpt-4.1", limit="0.01 USD")
        try:
            ctx.fit([{"role": "user", "content": "Summarise this. " + "word " * 20_000}])
        except foveal.BudgetExceeded as error:
            assert error.left < (error.estimate or 0)
        ```
    """

    def __init__(
        self,
        message: str,
        *,
        limit: str,
        unit: str,
        spent: float,
        left: float,
        estimate: float | None,
        until: float | None = None,
        wait_s: float | None = None,
        scope: str = "",
    ) -> None:
        super().__init__(message)
        self.scope = scope
        """Whose limit it is on a server, such as `tenant` or `user`; "" for a limit of your own loop."""
        self.limit = limit
        """The limit, such as `5 USD per day`."""
        self.unit = unit
        """The unit of the numbers: `USD` or `tokens`."""
        self.spent = spent
        """What is spent in all, or in the current period."""
        self.left = left
        """What is left of the limit."""
        self.estimate = estimate
        """What the request would probably use; None if the model has no price."""
        self.until = until
        """When the period ends, in seconds since 1970; None for a limit without a period."""
        self.wait_s = wait_s
        """Seconds until the request may fit: until the end of the period, or a few if only requests that are being
        answered keep what it needs."""


class NotCompacted(FovealError):
    """No summary was recorded; `problem` says why.

    Examples:
        ```python
        import foveal

        ctx = foveal.Context("gpt-4.1")
        ctx.fit([{"role": "user", "content": "Why is CI red?"}])
        try:
            ctx.compact()
        except foveal.NotCompacted as error:
            print(error.problem)
        ```
    """

    def __init__(self, problem: str, *, floor: int = 0) -> None:
        super().__init__(f"nothing was summarised: {problem}")
        self.problem = problem
        """Why nothing was summarised."""
        self.floor = floor
        """Tokens that no summary can remove, if they are the reason; otherwise 0."""


class NotDropped(FovealError):
    """What should be dropped must stay in every request.

    The message says why, and what to do. The view is unchanged.

    Examples:
        ```python
        import foveal
        from foveal.errors import NotDropped

        ctx = foveal.Context("gpt-4.1")
        ctx.fit([{"role": "user", "content": "Why is CI red?"}])
        try:
            ctx.drop("e1")
        except NotDropped as error:
            print(error)
        ```
    """


class NotRemembered(FovealError):
    """A memory cannot keep or change this.

    The message says why, and what to do. The memory is unchanged.

    Examples:
        ```python
        import foveal
        from foveal.errors import NotRemembered

        async with foveal.stores.MemoryStore() as store:
            try:
                await foveal.Memory("ada", store=store).forget("m7")
            except NotRemembered as error:
                print(error)
        ```
    """


class MalformedMessage(FovealError, ValueError):
    """A message cannot be read in any dialect.

    Examples:
        ```python
        import foveal

        ctx = foveal.Context("gpt-4.1")
        try:
            ctx.fit([{"role": "user"}])
        except foveal.MalformedMessage as error:
            assert error.index == 0
        ```
    """

    def __init__(self, index: int, field: str, problem: str) -> None:
        super().__init__(
            f"messages[{index}].{field}: {problem}" if field else f"messages[{index}]: {problem}"
        )
        self.index = index
        """The place of the message in the given list, from 0."""
        self.field = field
        """The field that is wrong; "" for the whole message."""
        self.problem = problem
        """What is wrong with it."""


class BadSetting(FovealError, ValueError):
    """A setting has a value that is not allowed.

    Examples:
        ```python
        import foveal

        try:
            foveal.Context("gpt-4.1", reserve=-5)
        except foveal.BadSetting as error:
            assert error.field == "reserve"
        ```
    """

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(f"{field} = {shown_value(value)} is not allowed: {allowed}")
        self.field = field
        """The name of the setting."""
        self.value = value
        """The given value. The message shows the beginning of it."""
        self.allowed = allowed
        """What is allowed, in words."""


class ConversationIdMissing(FovealError):
    """A request names no conversation, and `strict_ids` is set.

    The message says how to name it.

    Examples:
        ```python
        import foveal
        from foveal.adapters.openai_agents import FovealModelProvider
        from foveal.errors import ConversationIdMissing

        fitted = FovealModelProvider(strict_ids=True)
        try:
            fitted.conversations.recognise([], how="pass a session to `Runner.run`")
        except ConversationIdMissing as error:
            assert "pass a session" in str(error)
        ```
    """

    def __init__(self, how: str) -> None:
        super().__init__(f"the request names no conversation, and `strict_ids` is set: {how}")


class Busy(FovealError):
    """A session or context is in use, and the operation is not possible meanwhile.

    Examples:
        ```python
        from foveal.errors import Busy

        error = Busy("the context is being fitted in this event loop")
        ```
    """


class NothingToAsk(FovealError):
    """There is no unanswered turn, so the model is not called.

    Examples:
        ```python
        from foveal.errors import NothingToAsk

        error = NothingToAsk("the last turn was answered")
        ```
    """


class KeyReused(FovealError):
    """The key of a message was sent again with another text; nothing was stored.

    Examples:
        ```python
        from foveal.errors import KeyReused

        assert KeyReused("demo").session == "demo"
        ```
    """

    def __init__(self, session: str) -> None:
        super().__init__(
            f"session {session!r} has another message with this key: send the same text again, or use a new key"
        )
        self.session = session
        """The id of the session."""


class AgentRemoved(FovealError):
    """The agent of a session is no longer in the configuration.

    The session can be read and continued in another one; the server answers nothing in it, because it no longer
    knows its model, policy and prompt.

    Examples:
        ```python
        from foveal.errors import AgentRemoved

        error = AgentRemoved("demo", agent="reviewer", known=["writer"])
        assert "[agents.reviewer]" in str(error)
        ```
    """

    def __init__(self, session: str, *, agent: str, known: Sequence[str] = ()) -> None:
        there = f"it has {', '.join(known)}" if known else "it has none"
        super().__init__(
            f"session {session!r} belongs to the agent {agent!r}, which the configuration no longer has: add "
            f"[agents.{agent}] again, or continue the session in a new one with another agent ({there})"
        )
        self.session = session
        """The id of the session."""
        self.agent = agent
        """The name of the agent."""


class AnsweredElsewhere(FovealError):
    """Another program writes this session; only that program may add messages.

    Such a program resends the history through the drop-in endpoints.

    Examples:
        ```python
        from foveal.errors import AnsweredElsewhere

        error = AnsweredElsewhere("the session belongs to a drop-in client")
        ```
    """


class UnknownHandle(FovealError, LookupError):
    """No event of this log has that handle.

    Examples:
        ```python
        import foveal

        try:
            foveal.Context("gpt-4.1").why("e99")
        except foveal.UnknownHandle as error:
            print(error)
        ```
    """


class UnreadableEvent(FovealError, ValueError):
    """Bytes are not an event of any version.

    Examples:
        ```python
        import foveal

        try:
            foveal.Context.load(b"not an event")
        except foveal.UnreadableEvent as error:
            print(error)
        ```
    """


class StoreError(FovealError):
    """A store could not perform an operation; what was appended before is intact.

    Examples:
        ```python
        import foveal

        async with foveal.open_store("chats.db") as store:
            try:
                await store.read("demo")
            except foveal.StoreError as error:
                print(error)
        ```
    """


class Conflict(StoreError):
    """Another writer appended first: read the new events, and decide again.

    Examples:
        ```python
        import foveal

        async with foveal.stores.MemoryStore() as store:
            try:
                await store.append("demo", [foveal.Event(5, foveal.UserSaid(content="Hello."))])
            except foveal.Conflict as error:
                assert error.next_seq == 0
        ```
    """

    def __init__(self, session: str, *, given: int, next_seq: int, problem: str = "") -> None:
        problem = problem or f"cannot append event {given}, because the next one is {next_seq}"
        super().__init__(f"session {session!r}: {problem}")
        self.session = session
        """The id of the session."""
        self.given = given
        """The seq of the first event that was to be appended."""
        self.next_seq = next_seq
        """The seq that the next event must have."""


class LeaseLost(StoreError):
    """Another process has taken over the session; nothing was written.

    This process held the session's lease and did not renew it in time.

    Examples:
        ```python
        from foveal.errors import LeaseLost

        assert LeaseLost("demo").session == "demo"
        ```
    """

    def __init__(self, session: str) -> None:
        super().__init__(
            f"session {session!r} was taken over by another process, because this one did not renew its lease in"
            " time; nothing was written: the other process continues"
        )
        self.session = session
        """The id of the session."""


class UnknownSession(StoreError, LookupError):
    """No session has that id.

    Examples:
        ```python
        import foveal

        async with foveal.stores.MemoryStore() as store:
            try:
                await foveal.Context.load_from(store, "demo")
            except foveal.UnknownSession as error:
                assert error.session == "demo"
        ```
    """

    def __init__(self, session: str) -> None:
        super().__init__(f"no session {session!r} in this store")
        self.session = session
        """The id that was asked for."""


class SessionExists(StoreError):
    """The id of a new session is in use, or was.

    The id of an erased session cannot be used again.

    Examples:
        ```python
        import foveal
        from foveal.errors import SessionExists

        async with foveal.stores.MemoryStore() as store:
            await foveal.Session.open(store, "demo", model="gpt-4.1")
            try:
                await foveal.Session.continue_from(store, "demo", "demo", model="gpt-4.1")
            except SessionExists as error:
                assert error.session == "demo"
        ```
    """

    def __init__(self, session: str) -> None:
        super().__init__(f"a session {session!r} exists, or existed and was erased: choose another id")
        self.session = session
        """The id that is in use."""


class StoreUnusable(StoreError):
    """The store's file or database cannot be used.

    The message says why, and what to do.

    Examples:
        ```python
        from pathlib import Path

        import foveal

        Path("notes.db").write_text("This is no database. " * 100)
        try:
            async with foveal.open_store("notes.db"):
                pass
        except foveal.StoreUnusable as error:
            print(error)
        ```
    """


TRANSIENT_CODES: Final = ("rate", "connection", "interrupted", "server")
"""Codes of `ProviderError`s that a later retry can resolve."""


class ProviderError(FovealError):
    """A provider did not answer: key, rate limit, connection or server.

    Examples:
        ```python
        import foveal
        from foveal.errors import TRANSIENT_CODES

        error = foveal.ProviderError("too many requests: wait a minute", code="rate")
        assert error.code in TRANSIENT_CODES
        ```
    """

    def __init__(self, problem: str, *, code: str = "", partial: str = "") -> None:
        super().__init__(problem)
        self.code = code
        """`key`, `rate`, `connection`, `interrupted`, `refused` or `server`."""
        self.partial = partial
        """The text that arrived before the connection was lost."""


class SettingsChanged(PicklableError, UserWarning):
    """A saved `Context` continues with other settings than it was saved with.

    A `Session` warns if it was stored with a policy of your own and is opened without one.

    Examples:
        ```python
        import warnings

        import foveal
        from foveal.errors import SettingsChanged

        saved = foveal.Context("gpt-4.1", window=32_000).save()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            foveal.Context.load(saved, window=16_000)
        assert caught[0].category is SettingsChanged
        ```
    """

    def __init__(self, changed: Sequence[str], *, lost_policy: str = "") -> None:
        class_name = "".join(word.capitalize() for word in lost_policy.split("-"))
        advice = [
            f"{lost_policy} is a policy of your own, of which a log has only the name: pass it again, as in "
            f"`policy={class_name}()`"
        ] * bool(lost_policy)
        if len(changed) > len(advice):
            advice.append(f"leave {'the others' if advice else 'them'} out to keep the saved ones")
        super().__init__(
            f"the conversation continues with other settings than it was saved with ({'; '.join(changed)}); "
            + "; ".join(advice)
        )
        self.changed: tuple[str, ...] = tuple(changed)
        """Each changed setting with its saved and its new value."""


class SummariserFailed(PicklableError, UserWarning):
    """A summariser of a `Context` raised an error.

    The next summariser is called, or the log alone is summarised.

    Examples:
        ```python
        import warnings

        from foveal.errors import SummariserFailed

        warnings.simplefilter("ignore", SummariserFailed)
        ```
    """

    def __init__(self, problem: str) -> None:
        super().__init__(f"a summariser failed ({problem}); this is told once, see report().summaries")


class ReductionHookFailed(PicklableError, UserWarning):
    """A hook raised an error, or returned what cannot be read.

    The cut is made without it. The log has a note.

    Examples:
        ```python
        import warnings

        from foveal.errors import ReductionHookFailed

        warnings.simplefilter("error", ReductionHookFailed)
        ```
    """

    def __init__(self, problem: str, name: str = "on_reduction") -> None:
        super().__init__(f"the hook `{name}` failed, so the request is made without it: {problem}")


class UnrelatedConversation(PicklableError, UserWarning):
    """A `Context` was given a history that shares no message with the one before.

    Examples:
        ```python
        import warnings

        import foveal
        from foveal.errors import UnrelatedConversation

        ctx = foveal.Context("gpt-4.1")
        ctx.append({"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Hello, reader."})
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            ctx.fit([{"role": "user", "content": "Translate the manual."}])
        assert caught[0].category is UnrelatedConversation
        ```
    """

    def __init__(self, recorded: int) -> None:
        super().__init__(
            f"the messages have nothing in common with the {recorded:,} recorded one{'s' * (recorded != 1)}: a new "
            "conversation begins, recall does not find the old one, and its pins are gone. Use one Context for "
            "each conversation, or call `new_conversation()` first"
        )


class HistoryDiverged(PicklableError, UserWarning):
    """A `Context` was given a history that parts from the recorded one early.

    It does so before the newest user message: the user has edited an older one, or it is the history of another
    user that begins in the same way.

    Examples:
        ```python
        import warnings

        import foveal
        from foveal.errors import HistoryDiverged

        ctx = foveal.Context("gpt-4.1")
        hello = {"role": "user", "content": "Hello."}
        ctx.append(hello, {"role": "user", "content": "My name is Ann."}, {"role": "user", "content": "Who am I?"})
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            ctx.fit([hello, {"role": "user", "content": "Who am I?"}])
        assert caught[0].category is HistoryDiverged
        ```
    """

    def __init__(self, shared: int, left: int) -> None:
        super().__init__(
            f"after {shared:,} messages the history is another one than before: {left:,} recorded ones are left "
            "behind, recall does not find them, and pins made there are gone. Use one Context for each conversation"
        )


class UsageMissing(PicklableError, UserWarning):
    """A reply without usage was observed, so token counts stay estimates.

    It is given once per conversation.

    Examples:
        ```python
        import warnings

        from foveal.errors import UsageMissing

        warnings.simplefilter("ignore", UsageMissing)
        ```
    """

    def __init__(self) -> None:
        super().__init__(
            "the reply has no usage, so token counts stay estimates. When you stream from a chat API, ask for it "
            'with stream_options={"include_usage": True} and observe the last chunk'
        )
