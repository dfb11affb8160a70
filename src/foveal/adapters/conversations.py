"""The contexts of an application: one per conversation, found by the framework's own id.

1. Without a store, contexts live in memory; beyond `max_open` the least recently used one is forgotten, and its
   next request begins with the history that the framework passes.
2. With a store, each conversation is a session in it: reductions and learned limits survive a restart, and the
   conversation can be listed, searched and inspected like any other session.
3. The store is used from one thread with an event loop of its own, so sync and async code share it.

With `summarise="own"`, the model that the framework's agent runs on writes summaries. An adapter knows that model
only during a call, so it sets the writer for that time (`own_model`).

`ConversationIds` finds conversations that a framework does not name by their messages:

1. A run keeps the conversation of its first request.
2. A request continues a conversation if it begins with all messages of that one's last request and has more. All
   of them count, not only the newest: two users may say the same thing at the same place.
   The same request again continues it too if the adapter has seen the request fail.
3. If several conversations could be meant, or none, a new one begins. It knows nothing that the request does not
   contain, so words of one user cannot reach another.
4. Nothing is found after a restart: an application that stores its conversations names them.
"""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from contextvars import ContextVar
from secrets import token_hex
from threading import Lock
from typing import Any, Final, Generic, Literal, Self, TypeAlias, TypeVar, Unpack, cast

from foveal.adapters.native_context import MessageFormat, NativeContext, NativeMessage
from foveal.context import Context
from foveal.core.compaction.summariser import Summarise, SummaryProgress, SummaryRequest
from foveal.core.engine.context_arguments import ContextArguments, check_arguments, check_flag, model_of
from foveal.core.engine.settings import SettingArguments
from foveal.core.log.events import Dialect
from foveal.core.models.budget import check_whole_number
from foveal.core.models.model import Model
from foveal.errors import BadSetting, Conflict, ConversationIdMissing, StoreUnusable, UnknownSession
from foveal.memory.attached import checked_memories
from foveal.ports import Store
from foveal.stores import open_store
from foveal.transport.digests import digest_of, empty_history_digest, extend_digests, is_instruction

Request = TypeVar("Request")
MAX_KNOWN_CONVERSATIONS: Final = 10_000
"""Conversations, and runs, that are remembered."""


def checked_function(conversation: Callable[[Request], str] | None) -> Callable[[Request], str] | None:
    """Return the setting `conversation` of an adapter; raises `BadSetting` for anything that is no function."""
    if conversation is not None and not callable(conversation):
        raise BadSetting("conversation", conversation, "a function that returns the id of a conversation")
    return conversation


class ConversationIds:
    """Finds or creates the id of a conversation. It can be used from any thread."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._runs: OrderedDict[str, str] = OrderedDict()
        self._newest: OrderedDict[str, bytes] = OrderedDict()
        """For each conversation, the digest of the messages of its last request."""
        self._ends: dict[bytes, set[str]] = {}
        """For each of these digests, the conversations that have it."""
        self._failed: set[str] = set()
        """Conversations whose last request failed and may be sent again."""
        self._lock = Lock()

    def find(self, messages: Sequence[dict[str, Any]], *, scope: str = "", run: str = "") -> str:
        """Return the id of the conversation that a request belongs to. Conversations of different scopes have
        different ids; `run` names the run of the framework that sends the request, if it is known."""
        digests = self._digests(messages, scope)
        with self._lock:
            id = self._runs.get(run) or self._continued(digests) or f"{scope}{token_hex(8)}"
            self._set_newest(id, digests[-1])
            if run:
                self._runs[run] = id
                self._runs.move_to_end(run)
                if len(self._runs) > MAX_KNOWN_CONVERSATIONS:
                    self._runs.popitem(last=False)
        return id

    def known(self, messages: Sequence[dict[str, Any]], *, scope: str = "", run: str = "") -> str | None:
        """Return the id of the conversation whose last request the messages begin with, or equal; None if there is
        none, or more than one."""
        digests = self._digests(messages, scope)
        with self._lock:
            return self._runs.get(run) or self._longest(digests)

    def expect_retry(self, id: str) -> None:
        """Let the same request continue a conversation, because its last request failed."""
        with self._lock:
            if id in self._newest:
                self._failed.add(id)

    def _digests(self, messages: Sequence[dict[str, Any]], scope: str) -> list[bytes]:
        """Return the digest of each beginning of a history. System messages do not count: they often change."""
        first = digest_of(empty_history_digest(self._dialect) + scope.encode(errors="surrogatepass"))
        said = (message for message in messages if not is_instruction(message))
        return [first, *extend_digests(first, said, self._dialect)]

    def _continued(self, digests: Sequence[bytes]) -> str | None:
        """Return the conversation that a request continues. The same request again may come from another user who
        has said the same, so it continues nothing unless it has failed."""
        same = self._ends.get(digests[-1])
        if same is None:
            return self._longest([one for one in digests if one != digests[-1]])
        failed = same & self._failed
        return failed.pop() if len(failed) == 1 else None

    def _longest(self, digests: Sequence[bytes]) -> str | None:
        for digest in reversed(digests[1:]):
            ids = self._ends.get(digest)
            if ids:
                return next(iter(ids)) if len(ids) == 1 else None
        return None

    def _set_newest(self, id: str, digest: bytes) -> None:
        self._forget(id)
        self._newest[id] = digest
        self._ends.setdefault(digest, set()).add(id)
        if len(self._newest) > MAX_KNOWN_CONVERSATIONS:
            self._forget(next(iter(self._newest)))

    def _forget(self, id: str) -> None:
        self._failed.discard(id)
        digest = self._newest.pop(id, None)
        if digest is not None:
            ids = self._ends[digest]
            ids.discard(id)
            if not ids:
                del self._ends[digest]


AdapterSummarise: TypeAlias = Literal["own"] | Summarise | Sequence[Summarise] | None
"""What writes the summaries: the agent's own model, your callables, or (None) only the log."""
WriteSummary: TypeAlias = Callable[[SummaryRequest], Any]

_writer: ContextVar[WriteSummary | None] = ContextVar("foveal_own_model", default=None)


@contextmanager
def own_model(write: WriteSummary) -> Iterator[None]:
    """Let the current call's model write the summaries that the call needs. In async code, `write` may return an
    awaitable."""
    token = _writer.set(write)
    try:
        yield
    finally:
        _writer.reset(token)


def summarise_with_own_model(request: SummaryRequest) -> Any:
    """Write a summary with the model of the current call."""
    write = _writer.get()
    if write is None:
        raise RuntimeError("no model call is running whose model could write the summary")
    return write(request)


def resolve_summarise(
    given: AdapterSummarise | str, *, has_own_model: bool
) -> Summarise | Sequence[Summarise] | None:
    """Return the summariser that a `Context` takes. Raises `BadSetting` for `"own"` where nothing calls
    `own_model`, because then no model could ever write a summary."""
    if not isinstance(given, str):
        return given
    if given != "own":
        own = '"own", ' if has_own_model else ""
        raise BadSetting("summarise", given, f"{own}a callable, or a list of callables")
    if not has_own_model:
        raise BadSetting(
            "summarise",
            given,
            "a callable, or a list of callables: only the adapter of a framework knows the agent's own model; pass "
            "a function that calls your model, or None to summarise from the log alone",
        )
    return summarise_with_own_model


T = TypeVar("T")
MAX_OPEN_CONTEXTS: Final = 1_000
"""Contexts that are kept in memory."""


class AdapterArguments(SettingArguments, total=False):
    """The settings that every adapter takes, beside its model.

    The other fields are those of `SettingArguments`.

    Examples:
        ```python
        from foveal.adapters.pydantic_ai import FovealCapability

        fitted = FovealCapability(window=32_000, policy="handoff", summarise="own", max_open=100)
        ```
    """

    summarise: AdapterSummarise
    """The callables that write summaries; in an adapter of a framework, `"own"` lets the model of the agent write
    them. Default: none; the log alone is summarised.
    """
    strict_ids: bool
    """Whether a request that names no conversation is an error, `ConversationIdMissing`. Default: no; it is
    recognised by its messages. A service sets it, so that no user depends on what others say.
    """
    memory: Any
    """A `foveal.Memory`, or several, that all conversations of the adapter show: what its one user said in others.
    A service makes an adapter for each user. Default: none.
    """
    store: str
    """A file or a PostgreSQL URL that keeps the contexts. Default: none; they live in memory."""
    max_open: int
    """Contexts that are kept in memory. Default: 1,000."""
    prompt: str
    """A text, or `file://…`, that replaces the task of the summary prompt."""
    progress: Callable[[SummaryProgress], None] | None
    """Called while a summary is written."""
    clock: Callable[[], float] | None
    """Returns the time in seconds since 1970. Default: `time.time`."""


class Conversations(Generic[NativeMessage]):
    """Finds or creates the context of a conversation.

    It can be used from any thread.

    Args:
        format: Converts the messages of the framework.
        model: The model of all conversations. `""` needs a model with each `get`.
        has_own_model: Whether the adapter runs each call of its model inside `own_model`, so that
            `summarise="own"` is possible. By default it is not.
        **arguments: The settings of every adapter, as in `AdapterArguments`.

    Raises:
        BadSetting: A setting is unknown or outside its range, or `summarise` is `"own"` and no adapter supplies
            the model.

    Examples:
        ```python
        from collections.abc import Sequence
        from typing import Any

        from foveal.adapters import Conversations, Piece
        from foveal.core.log.events import Dialect


        class ChatFormat:
            dialect: Dialect = "openai_chat"

            def write(self, message: dict[str, Any]) -> Sequence[dict[str, Any]]:
                return [message]

            def build(
                self, pieces: Sequence[Piece], original: dict[str, Any] | None
            ) -> Sequence[dict[str, Any]]:
                return [piece.message for piece in pieces]


        with Conversations(ChatFormat(), "gpt-4.1") as conversations:
            found = conversations.get("demo")
            fitted = found.fit([{"role": "user", "content": "Why is CI red?"}])
            assert conversations.ids() == ["demo"]
        ```
    """

    def __init__(
        self,
        format: MessageFormat[NativeMessage],
        model: str | Model = "",
        *,
        has_own_model: bool = False,
        **arguments: Unpack[AdapterArguments],
    ) -> None:
        self._format = format
        self._model = model
        store = arguments.pop("store", "")
        if not isinstance(store, str):
            raise BadSetting("store", store, "a file or a PostgreSQL URL")
        self._strict_ids = check_flag("strict_ids", arguments.pop("strict_ids", False))
        self._ids = ConversationIds(format.dialect)
        self._max_open = check_whole_number("max_open", arguments.pop("max_open", MAX_OPEN_CONTEXTS), least=1)
        summarise = resolve_summarise(arguments.pop("summarise", None), has_own_model=has_own_model)
        self._arguments = cast(
            ContextArguments, {**arguments, "dialect": format.dialect, "summarise": summarise}
        )
        check_arguments(model, self._arguments)
        checked_memories(self._arguments.get("memory"))
        self._window = arguments.get("window")
        self._open: OrderedDict[str, NativeContext[NativeMessage]] = OrderedDict()
        self._lock = threading.RLock()
        self._store = StoreThread(store) if store else None

    def get(self, id: str, *, model: str | Model = "") -> NativeContext[NativeMessage]:
        """Return the context of a conversation, or a new one.

        Args:
            id: The id of the conversation.
            model: The model of the request. If the context was used with another one, it continues with this
                one.

        Raises:
            BadSetting: The id is empty, or the conversation is new and no model is known.
        """
        if not id:  # a function that names conversations has failed: all of its calls would share one
            raise BadSetting("id", id, "the id of a conversation, which is not empty")
        with self._lock:
            found = self._open.get(id)
            chosen = self._model or model
            if found is None:
                found = self._keep(id, self._load(id, chosen) or self._create(id, chosen))
            self._open.move_to_end(id)
        found.use(chosen)
        return found

    async def aget(self, id: str, *, model: str | Model = "") -> NativeContext[NativeMessage]:
        """Do what `get` does without blocking the event loop.

        A stored conversation is read in a thread.

        Args:
            id: The id of the conversation.
            model: The model of the request. If the context was used with another one, it continues with this
                one.

        Raises:
            BadSetting: The id is empty, or the conversation is new and no model is known.
        """
        if self._store is None or id in self._open:
            return self.get(id, model=model)
        return await asyncio.to_thread(self.get, id, model=model)

    def find(self, id: str) -> NativeContext[NativeMessage] | None:
        """Return the context of a conversation in memory or stored.

        Args:
            id: The id of the conversation.

        Returns:
            The context; None if there is none. No context is created.
        """
        with self._lock:
            found = self._open.get(id)
            if found is None:
                found = self._load(id, self._model)
                if found is not None:
                    self._keep(id, found)
            return found

    def check_named(self, id: str, *, how: str) -> None:
        """Check that a request names its conversation.

        Without `strict_ids` it need not.

        Args:
            id: The id; `""` if there is none.
            how: How an application names the conversation.

        Raises:
            ConversationIdMissing: `strict_ids` is set, and there is no id.
        """
        if self._strict_ids and not id:
            raise ConversationIdMissing(how)

    def recognise(
        self, messages: Sequence[NativeMessage], *, how: str, scope: str = "", run: str = ""
    ) -> str:
        """Return the id of the conversation that a request continues.

        It is for a framework that names none. In doubt a new conversation begins.

        Args:
            messages: The whole history of the framework.
            how: How an application names the conversation, for the error of `strict_ids`.
            scope: What keeps conversations apart, such as the name of a user.
            run: The run of the framework that sends the request; all its requests are one conversation.

        Raises:
            ConversationIdMissing: `strict_ids` is set.
        """
        self.check_named("", how=how)
        return self._ids.find(self._written(messages), scope=scope, run=run)

    def recognised(
        self, messages: Sequence[NativeMessage], *, scope: str = "", run: str = ""
    ) -> NativeContext[NativeMessage] | None:
        """Return the context whose last request the messages begin with.

        Args:
            messages: The history of the framework.
            scope: As in `recognise`.
            run: As in `recognise`.

        Returns:
            The context; None if there is none, or if several could be meant.
        """
        id = self._ids.known(self._written(messages), scope=scope, run=run)
        return None if id is None else self.find(id)

    def expect_retry(self, id: str) -> None:
        """Let the same request continue a conversation, because it failed.

        Args:
            id: The id of the conversation.
        """
        self._ids.expect_retry(id)

    def _written(self, messages: Sequence[NativeMessage]) -> list[dict[str, Any]]:
        return [written for message in messages for written in self._format.write(message)]

    def ids(self) -> list[str]:
        """Return the ids of the conversations in memory.

        The most recently used one is the last.
        """
        with self._lock:
            return list(self._open)

    def forget(self, id: str) -> None:
        """Drop the context of a conversation from memory; what is stored stays.

        Args:
            id: The id of the conversation.
        """
        with self._lock:
            self._open.pop(id, None)

    def close(self) -> None:
        """Close the store."""
        if self._store is not None:
            self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _keep(self, id: str, found: NativeContext[NativeMessage]) -> NativeContext[NativeMessage]:
        self._open[id] = found
        if len(self._open) > self._max_open:
            self._open.popitem(last=False)
        return found

    def _load(self, id: str, model: str | Model) -> NativeContext[NativeMessage] | None:
        context = self._store.load(id, model, self._arguments) if self._store is not None else None
        if context is None:
            return None
        found = self._native(id, context)
        found.use(model or model_of(context.log))  # the next request may name another one
        return found

    def _create(self, id: str, model: str | Model) -> NativeContext[NativeMessage]:
        if not model:
            raise BadSetting(
                "model",
                model,
                f"no model is known yet for a new conversation {id!r}; pass `model`, or read conversations with "
                "`find`, which returns None before the first request",
            )
        return self._native(id, Context(model, **self._arguments))

    def _native(self, id: str, context: Context) -> NativeContext[NativeMessage]:
        store = self._store
        save = None if store is None else lambda context: store.save(context, id)
        return NativeContext(context, self._format, save=save, window=self._window)


class StoreThread:
    """A store in a thread with an event loop, for callers with and without one."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="foveal-store", daemon=True)
        self._thread.start()
        self._closing = AsyncExitStack()
        self._saving = threading.Lock()
        self._store: Store = self._run(self._open())

    def load(self, session: str, model: str | Model, arguments: ContextArguments) -> Context | None:
        """Return the context of a stored session; None if there is none."""
        try:
            log = self._run(self._store.read(session))
        except UnknownSession:
            return None
        return Context(
            model or model_of(log), log=log, **arguments
        )  # the adapter's arguments are all settings

    def save(self, context: Context, session: str) -> None:
        """Store the new events of a context. A session that another program has continued is left as it is."""
        try:
            with self._saving:  # two requests of one conversation must not store the same events
                self._run(context.save_to(self._store, session))
        except Conflict:
            warnings.warn(
                f"session {session!r} is not stored any more: another program writes it too", stacklevel=3
            )

    def close(self) -> None:
        """Close the store and end the thread."""
        if self._thread.is_alive():
            self._run(self._closing.aclose())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _open(self) -> Store:
        return await self._closing.enter_async_context(open_store(self._path))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop.is_closed():
            work.close()
            raise StoreUnusable("the store of these conversations is closed")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
