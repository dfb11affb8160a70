"""Clients and transports of `httpx` and `httpx2` whose requests are fitted."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from foveal.core.engine.context_arguments import ContextArguments
from foveal.core.engine.no_waiting import run_without_waiting
from foveal.errors import BadSetting
from foveal.transport.conversation_pool import ConversationPool, checked_pool
from foveal.transport.http_relay import BlockingIO, WaitingIO, relay, subclass

LIBRARIES: Final = ("httpx", "httpx2")
_POOL_SETTINGS: Final = frozenset({"model", "limit", "strict_ids", *ContextArguments.__annotations__})
"""Settings that a client of the library does not take."""


class BlockingClient:
    """A client that fits every request it sends. The library's own class is the second base."""

    conversations: ConversationPool
    _library: Any

    def send(self, request: Any, *, stream: bool = False, **options: Any) -> Any:
        """Send a request; `stream` leaves the response unread."""
        send = super().send  # type: ignore[misc]
        io = BlockingIO(self._library, lambda fitted: send(fitted, stream=True, **options))
        response = run_without_waiting(relay(io, self.conversations, request))
        if not stream:
            try:
                response.read()
            except BaseException:
                response.close()
                raise
        return response


class WaitingClient:
    """An async client that fits every request it sends."""

    conversations: ConversationPool
    _library: Any

    async def send(self, request: Any, *, stream: bool = False, **options: Any) -> Any:
        """Send a request; `stream` leaves the response unread."""
        send = super().send  # type: ignore[misc]
        io = WaitingIO(self._library, lambda fitted: send(fitted, stream=True, **options))
        response = await relay(io, self.conversations, request)
        if not stream:
            try:
                await response.aread()
            except BaseException:
                await response.aclose()
                raise
        return response


class FittedTransport:
    """A transport that fits every request and sends it through another transport."""

    def __init__(self, inner: Any, conversations: ConversationPool, library: Any) -> None:
        self.conversations = conversations
        self._inner, self._library = inner, library

    def handle_request(self, request: Any) -> Any:
        io = BlockingIO(self._library, self._inner.handle_request)
        return run_without_waiting(relay(io, self.conversations, request))

    async def handle_async_request(self, request: Any) -> Any:
        io = WaitingIO(self._library, self._inner.handle_async_request)
        return await relay(io, self.conversations, request)

    def close(self) -> None:
        self._inner.close()

    async def aclose(self) -> None:
        await self._inner.aclose()


def make_client(name: str, conversations: ConversationPool | None, options: dict[str, Any]) -> Any:
    """Return a client of the library with this name."""
    library = import_module(name)
    return _make(subclass(BlockingClient, library.Client), library, conversations, options)


def make_async_client(name: str, conversations: ConversationPool | None, options: dict[str, Any]) -> Any:
    """Return an async client of the library with this name."""
    library = import_module(name)
    return _make(subclass(WaitingClient, library.AsyncClient), library, conversations, options)


def _make(
    kind: type[Any], library: Any, conversations: ConversationPool | None, options: dict[str, Any]
) -> Any:
    for field in _POOL_SETTINGS & options.keys():
        raise BadSetting(field, options[field], f"a setting of the pool: pass `ConversationPool({field}=…)`")
    pool = checked_pool(conversations)
    # The clients of OpenAI and Anthropic follow redirects and allow this many connections.
    limits = library.Limits(max_connections=1_000, max_keepalive_connections=100)
    client = kind(**{"follow_redirects": True, "limits": limits, **options})
    client.conversations = pool
    client._library = library
    return client


def wrap_transport(inner: Any, conversations: ConversationPool | None) -> Any:
    """Return a transport of the same library that fits requests and sends them through `inner`."""
    roots = (base.__module__.partition(".")[0] for base in type(inner).__mro__)
    name = next((root for root in roots if root in LIBRARIES), "")
    if not name:
        raise BadSetting("transport", type(inner).__name__, "a transport of httpx or httpx2")
    library = import_module(name)
    bases = (library.BaseTransport, library.AsyncBaseTransport)
    kind = subclass(FittedTransport, *(base for base in bases if isinstance(inner, base)))
    return kind(inner, checked_pool(conversations), library)
