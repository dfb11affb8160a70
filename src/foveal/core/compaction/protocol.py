"""What is said between a compaction and the model that writes for it, in words of neither."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, Literal

import msgspec

from foveal.core.models.model import Model
from foveal.core.wire import overflow_errors
from foveal.core.wire.safe_print import one_line
from foveal.core.wire.usage import used


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One request to a writer."""

    writer: int
    """Which of the writers, counted from 0."""
    form: Literal["shared", "cold"]
    """`shared`: the conversation as it stands, and `text` as one more user message: its prefix is cached.
    `cold`: `system`, and `text` as the only message."""
    text: str
    system: str = ""
    max_tokens: int
    """What the answer may take."""
    stage: str = ""
    """For the progress line: what this request is about."""


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """What a writer answered."""

    text: str
    stop: Literal["", "end", "length", "tools", "refused"] = ""
    """Why it ended; "" when nobody says."""
    input: int = 0
    """Tokens read at the full price …"""
    cache_read: int = 0
    cache_write: int = 0
    output: int = 0
    seconds: float = 0.0


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """That a writer gave no answer."""

    problem: str
    transient: bool = False
    """Worth another try: a time-out, a busy server."""
    limit: int = 0
    """Tokens that the writer can hold, when it refused the request as too large and said so."""
    overflow: bool = False
    seconds: float = 0.0


class SummaryWriter(msgspec.Struct, frozen=True, kw_only=True):
    """A model that can write summaries."""

    model: Model
    name: str = ""
    """What it is called, if not by its model."""
    shares_cache: bool = False
    """It is the conversation's own model, and its provider caches prefixes."""

    @property
    def called(self) -> str:
        return self.name or self.model.name


# ── replies ───────────────────────────────────────────────────────────────────────────────────────
# What a client library gives back, read as an answer: replies of the three dialects, pieces of their streams, and
# errors.
#
# Objects are read by their attributes and dicts by their keys, so that every client and every imitation will do. What
# the model thought is not part of what it says.

Stop = Literal["", "end", "length", "tools", "refused"]

_STOPS: Final[dict[str, Stop]] = {
    "stop": "end",
    "end_turn": "end",
    "stop_sequence": "end",
    "completed": "end",
    "length": "length",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_calls": "tools",
    "function_call": "tools",
    "tool_use": "tools",
    "content_filter": "refused",
    "refusal": "refused",
}
_SPOKEN: Final = ("text", "output_text")
_CALLS: Final = ("function_call", "custom_tool_call", "tool_use")
_BUSY: Final = frozenset({408, 409, 425, 429})
_PASSING: Final = ("Timeout", "Connection", "RateLimit", "ServiceUnavailable", "InternalServer", "Overloaded")
"""Parts of the names of errors that pass."""


def draft(reply: object, *, seconds: float = 0.0) -> Draft | None:
    """A chat completion, a Responses reply, an Anthropic message or a bare message; None when it is none."""
    found = _chat(reply) or _responses(reply) or _message(reply)
    if found is None:
        return None
    text, stop = found
    usage = None
    with suppress(Exception):  # a strange report must not cost the text
        usage = used(reply)
    if usage is None:
        return Draft(text=text, stop=stop, seconds=seconds)
    return Draft(
        text=text,
        stop=stop,
        input=usage.input,
        cache_read=usage.cache_read,
        cache_write=usage.cache_write,
        output=usage.output,
        seconds=seconds,
    )


def piece(chunk: object) -> str | None:
    """The words in one piece of a stream, None when nobody knows how to read it."""
    if isinstance(chunk, str):
        return chunk
    if _get(chunk, "choices") is not None:
        return _spoken(_get(chunk, "choices", 0, "delta", "content"))
    kind = _get(chunk, "type")
    if not isinstance(kind, str):
        return None
    match kind:
        case "response.output_text.delta":
            return _spoken(_get(chunk, "delta"))
        case "content_block_delta":
            return _spoken(_get(chunk, "delta", "text"))
        case _:
            return ""


def _chat(reply: object) -> tuple[str, Stop] | None:
    choice = _get(reply, "choices", 0)
    if choice is None:
        return None
    message = _get(choice, "message")
    text = _spoken(_get(message, "content"))
    stop = _STOPS.get(str(_get(choice, "finish_reason")), "")
    if _get(message, "refusal"):
        stop = "refused"
    elif _get(message, "tool_calls") or _get(message, "function_call"):
        stop = "tools"
    return text, stop


def _responses(reply: object) -> tuple[str, Stop] | None:
    items = _get(reply, "output")
    if not isinstance(items, list | tuple):
        return None
    texts = [_spoken(_get(item, "content")) for item in items if _get(item, "type") == "message"]
    reason = _get(reply, "incomplete_details", "reason") or _get(reply, "status")
    stop = _STOPS.get(str(reason), "")
    if any(_get(item, "type") in _CALLS for item in items):
        stop = "tools"
    elif any(_get(part, "type") == "refusal" for item in items for part in _each(_get(item, "content"))):
        stop = "refused"
    return "\n".join(filter(None, texts)), stop


def _message(reply: object) -> tuple[str, Stop] | None:
    content = _get(reply, "content")
    if not isinstance(content, str | list | tuple):
        return None
    stop = _STOPS.get(str(_get(reply, "stop_reason")), "")
    if any(_get(part, "type") in _CALLS for part in _each(content)) or _get(reply, "tool_calls"):
        stop = "tools"
    return _spoken(content), stop


def _spoken(content: object) -> str:
    if isinstance(content, str):
        return content
    texts = (_get(part, "text") for part in _each(content) if _get(part, "type") in _SPOKEN)
    return "".join(text for text in texts if isinstance(text, str))


def _each(content: object) -> Iterator[object]:
    return iter(content) if isinstance(content, list | tuple) else iter(())


def _get(value: Any, *path: str | int) -> Any:
    """What stands at a path of fields and places, None when there is nothing."""
    for step in path:
        if isinstance(step, int):
            value = value[step] if isinstance(value, list | tuple) and len(value) > step else None
        elif isinstance(value, Mapping):
            value = value.get(step)
        else:
            value = getattr(value, step, None)
    return value


# ── what went wrong ──────────────────────────────────────────────────────────────────────────────────────


def failure(error: Exception, *, seconds: float = 0.0) -> Failure:
    """An exception as an answer: too large, worth another try, or neither."""
    words = ""
    with suppress(Exception):
        words = one_line(str(error), width=200)
    refusal = overflow_errors.recognise(error)
    return Failure(
        problem=f"{type(error).__name__}: {words}".rstrip(": "),
        transient=refusal is None and _transient(error),
        limit=refusal.limit if refusal is not None and refusal.kind != "bytes" else 0,
        overflow=refusal is not None,
        seconds=seconds,
    )


def _transient(error: Exception) -> bool:
    if isinstance(error, TimeoutError | ConnectionError):
        return True
    status = None
    with suppress(Exception):
        status = _get(error, "status_code") or _get(error, "response", "status_code")
    if isinstance(status, int):
        return status in _BUSY or 500 <= status < 600
    return any(word in kind.__name__ for kind in type(error).__mro__ for word in _PASSING)
