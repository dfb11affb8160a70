"""Recording of HTTP requests and of Foveal's reductions while a capture is active.

While at least one capture is active, the transports of httpx and httpx2 (their own, and those for tests), and those
of requests and botocore if they are imported, tell every active capture the URL and the body of each request. The
transports are restored when the last capture ends. No request is changed. `SentRequests.add` is wrapped in the same
way: it is where a `Context` or a `Session` notes that a reduction moved the prefix.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from threading import Lock
from typing import Any, Final, Protocol

from foveal.core.engine.prefix import PrefixBreak
from foveal.core.engine.sent_requests import SentRequests

_HTTPX: Final = ("httpx", "httpx2")
_HTTPX_METHODS: Final = (
    ("HTTPTransport", "handle_request"),
    ("AsyncHTTPTransport", "handle_async_request"),
    ("MockTransport", "handle_request"),
    ("MockTransport", "handle_async_request"),
    ("WSGITransport", "handle_request"),
    ("ASGITransport", "handle_async_request"),
)
_OTHER_METHODS: Final = (
    ("requests.adapters", "HTTPAdapter", "send"),
    ("botocore.httpsession", "URLLib3Session", "send"),
)


class RequestRecorder(Protocol):
    """Receives what happens while it is active."""

    def request_sent(self, url: str, body: bytes | str) -> None:
        """A request leaves."""
        ...

    def prefix_break(self, sender: SentRequests, found: PrefixBreak, steps: list[Any]) -> None:
        """Foveal recorded that its next request does not begin like the last; `steps` is what it sends."""
        ...


_lock: Final = Lock()
_active: Final[list[RequestRecorder]] = []
_restore: Final[list[Callable[[], None]]] = []


def start(recorder: RequestRecorder) -> None:
    """Begin to tell a recorder what happens."""
    with _lock:
        if not _active:
            _wrap_all()
        _active.append(recorder)


def stop(recorder: RequestRecorder) -> None:
    """Tell a recorder no more."""
    with _lock:
        _active.remove(recorder)
        while not _active and _restore:
            _restore.pop()()


def _wrap_all() -> None:
    for library in _HTTPX:
        if find_spec(library) is not None:
            module = import_module(library)
            for name, method in _HTTPX_METHODS:
                _wrap(getattr(module, name, None), method, _tell_httpx)
    for library, name, method in _OTHER_METHODS:
        if library in sys.modules:
            _wrap(getattr(sys.modules[library], name, None), method, _tell_prepared)
    _wrap_sent_requests()


def _wrap(owner: Any, method: str, tell: Callable[[Any], None]) -> None:
    original = vars(owner).get(method) if owner is not None else None
    if original is None:
        return

    # An async method needs no wrapper of its own: calling it returns the coroutine to wait for.
    @wraps(original)
    def told(self: Any, request: Any, *args: Any, **options: Any) -> Any:
        tell(request)
        return original(self, request, *args, **options)

    setattr(owner, method, told)
    _restore.append(lambda: setattr(owner, method, original))


def _tell_httpx(request: Any) -> None:
    try:
        body = request.content
    except RuntimeError:  # a streamed body, which only the transport may read
        return
    if request.method == "POST" and body:
        _tell(str(request.url), body)


def _tell_prepared(request: Any) -> None:
    body = request.body
    if request.method == "POST" and isinstance(body, bytes | bytearray | str):
        _tell(str(request.url), bytes(body) if isinstance(body, bytearray) else body)


def _tell(url: str, body: bytes | str) -> None:
    for recorder in _active:
        recorder.request_sent(url, body)


def _wrap_sent_requests() -> None:
    original = SentRequests.add

    @wraps(original)
    def told(self: SentRequests, engine: Any, steps: list[Any]) -> None:
        known = len(self.breaks)
        original(self, engine, steps)
        for found in self.breaks[known:]:
            for recorder in _active:
                recorder.prefix_break(self, found, steps)

    setattr(SentRequests, "add", told)  # noqa: B010  a plain assignment to a method is a type error
    _restore.append(lambda: setattr(SentRequests, "add", original))
