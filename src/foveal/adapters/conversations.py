"""The contexts of an application: one per conversation, found by the framework's own id.

1. Without a store, contexts live in memory; beyond `max_open` the least recently used one is forgotten, and its
   next request begins with the history that the framework passes.
2. With a store, each conversation is a session in it: reductions and learned limits survive a restart, and the
   conversation can be listed, searched and inspected like any other session.
3. The store is used from one thread with an event loop of its own, so sync and async code share it.
"""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, Final, Generic, Self, TypeVar, Unpack, cast

from foveal.adapters.native_context import MessageFormat, NativeContext, NativeMessage
from foveal.adapters.own_model import AdapterSummarise, resolve_summarise
from foveal.context import Context
from foveal.core.compaction.summariser import SummaryProgress
from foveal.core.engine.context_arguments import ContextArguments
from foveal.core.engine.settings import SettingArguments
from foveal.core.models.model import Model
from foveal.errors import Conflict, UnknownSession
from foveal.ports import Store
from foveal.stores import open_store

T = TypeVar("T")
MAX_OPEN_CONTEXTS: Final = 1_000
"""Contexts that are kept in memory."""


class AdapterArguments(SettingArguments, total=False):
    """The settings that every adapter takes, beside its model."""

    summarise: AdapterSummarise
    """`"own"` lets the model of the agent write the summaries."""
    store: str
    """A file or a PostgreSQL URL that keeps the contexts."""
    max_open: int
    """Contexts that are kept in memory."""
    prompt: str
    progress: Callable[[SummaryProgress], None] | None
    clock: Callable[[], float] | None


class Conversations(Generic[NativeMessage]):
    """Finds or creates the context of a conversation. It can be used from any thread."""

    def __init__(
        self,
        format: MessageFormat[NativeMessage],
        model: str | Model = "",
        **arguments: Unpack[AdapterArguments],
    ) -> None:
        """`model` is needed where the framework does not tell it with each request; it takes precedence."""
        self._format = format
        self._model = model
        store = arguments.pop("store", "")
        self._max_open = max(1, arguments.pop("max_open", MAX_OPEN_CONTEXTS))
        summarise = resolve_summarise(arguments.pop("summarise", None))
        self._arguments = cast(
            ContextArguments, {**arguments, "dialect": format.dialect, "summarise": summarise}
        )
        self._window = arguments.get("window")
        self._open: OrderedDict[str, NativeContext[NativeMessage]] = OrderedDict()
        self._lock = threading.RLock()
        self._store = StoreThread(store) if store else None

    def get(self, id: str, *, model: str | Model = "") -> NativeContext[NativeMessage]:
        """Return the context of a conversation. If it was used with another `model`, it continues with this one."""
        with self._lock:
            found = self._open.get(id)
            chosen = self._model or model
            if found is None:
                found = self._open[id] = self._create(id, chosen)
                if len(self._open) > self._max_open:
                    self._open.popitem(last=False)
            self._open.move_to_end(id)
        found.use(chosen)
        return found

    async def aget(self, id: str, *, model: str | Model = "") -> NativeContext[NativeMessage]:
        """Do what `get` does without blocking the event loop while a stored conversation is read."""
        if self._store is None or id in self._open:
            return self.get(id, model=model)
        return await asyncio.to_thread(self.get, id, model=model)

    def forget(self, id: str) -> None:
        """Drop the context of a conversation from memory; what is stored stays."""
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

    def _create(self, id: str, model: str | Model) -> NativeContext[NativeMessage]:
        if self._store is None:
            return NativeContext(Context(model, **self._arguments), self._format, window=self._window)
        store = self._store
        return NativeContext(
            store.load(id, model, self._arguments),
            self._format,
            save=lambda context: store.save(context, id),
            window=self._window,
        )


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

    def load(self, session: str, model: str | Model, arguments: ContextArguments) -> Context:
        """Return the context of a stored session, or a new one."""
        try:
            return self._run(Context.load_from(self._store, session, model or None, **arguments))
        except UnknownSession:
            return Context(model, **arguments)

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
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
