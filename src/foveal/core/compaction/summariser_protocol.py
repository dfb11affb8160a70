"""Requests to a summariser and its replies, independent of the provider's dialect.

1. A compaction is a `Dialogue`: a generator that yields a `DraftRequest`, is sent a `Draft` or a `DraftFailure`,
   and returns its result.
2. `read_reply` and `read_stream_chunk` read what a client library returns: replies of all dialects and
   chunks of their streams. Objects are read by attribute and dicts by key, so every client and every stand-in
   works. The model's thinking is not part of the text.
3. `failure_from_error` turns what a client raises into a `DraftFailure`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Raw

from foveal.core.log.events import Dialect, Used, raw
from foveal.core.models.model import Model
from foveal.core.wire import overflow_errors
from foveal.core.wire.native_compaction import find_compaction
from foveal.core.wire.safe_print import one_line
from foveal.core.wire.usage import usage_or_none

T = TypeVar("T")

SummaryForm = Literal["shared", "cold", "native"]
StopReason = Literal["", "end", "length", "tools", "refused"]


class DraftRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request to a writer for a draft."""

    writer: int
    """Index of the writer."""
    form: SummaryForm
    """`shared`: the conversation as it is, with a cached prefix, and `text` as one more user message.
    `cold`: `system`, and `text` as the only message. `native`: the conversation as it is, for the provider's own
    compaction, with `text` as its instructions."""
    text: str
    system: str = ""
    max_tokens: int
    """Limit of the reply."""
    stage: str = ""
    """What the request is for, shown in the progress line."""
    dialect: Dialect = ""
    """The dialect of the request; "" is that of the conversation."""


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """The reply of a writer."""

    text: str
    native: Raw | None = None
    """The compaction block or item that the provider wrote; None if it wrote none."""
    stop: StopReason = ""
    """Why the reply ended; "" when the reply does not say."""
    input: int = 0
    """Tokens read at the full price."""
    cache_read: int = 0
    cache_write: int = 0
    output: int = 0
    seconds: float = 0.0

    @classmethod
    def of(
        cls,
        text: str,
        usage: Used | None,
        *,
        native: Raw | None = None,
        stop: StopReason = "",
        seconds: float = 0.0,
    ) -> Draft:
        """Return a draft with all that it cost: a compaction by the provider is more than one call."""
        billed = () if usage is None else usage.billed
        return cls(
            text=text,
            native=native,
            stop=stop,
            input=sum(one.input for one in billed),
            cache_read=sum(one.cache_read for one in billed),
            cache_write=sum(one.cache_write for one in billed),
            output=sum(one.output for one in billed),
            seconds=seconds,
        )


class DraftFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A request without a usable reply."""

    problem: str
    transient: bool = False
    """Whether a retry may succeed: after a timeout, or with a busy server."""
    limit: int = 0
    """Tokens that the writer accepts, if it refused the request as too large and stated its limit."""
    overflow: bool = False
    """Whether the request was refused as too large."""
    seconds: float = 0.0


class SummaryWriter(msgspec.Struct, frozen=True, kw_only=True):
    """A model that can write summaries."""

    model: Model
    name: str = ""
    """The name to report, if not the model's."""
    shares_cache: bool = False
    """Whether it is the conversation's own model and its provider caches prefixes."""
    is_native: bool = False
    """Whether it is asked for the provider's own compaction."""
    dialect: Dialect = ""
    """The dialect of its requests; "" is that of the conversation."""

    @property
    def label(self) -> str:
        return self.name or self.model.name


Dialogue: TypeAlias = Generator[DraftRequest, Draft | DraftFailure, T]


# ── Replies of client libraries ──────────────────────────────────────────────────────────────────────────

_STOP_REASONS: Final[dict[str, StopReason]] = {
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
    "content_filtered": "refused",
    "guardrail_intervened": "refused",
    "refusal": "refused",
    "safety": "refused",
    "prohibited_content": "refused",
    "recitation": "refused",
}
_TEXT_TYPES: Final = ("text", "output_text")
_CALL_TYPES: Final = ("function_call", "custom_tool_call", "tool_use")
_TRANSIENT_STATUSES: Final = frozenset({408, 409, 425, 429})
_TRANSIENT_NAMES: Final = (
    "Timeout",
    "Connection",
    "RateLimit",
    "ServiceUnavailable",
    "InternalServer",
    "Overloaded",
)
"""Parts of the class names of errors after which a retry may succeed."""


def read_reply(reply: object, *, seconds: float = 0.0) -> Draft | None:
    """Read a chat completion, a Responses reply, an Anthropic message, a reply of Gemini or Bedrock, or a bare
    message; None for anything else."""
    readers = (_read_chat, _read_responses, _read_gemini, _read_bedrock, _read_message)
    found = next(filter(None, (read(reply) for read in readers)), None)
    if found is None:
        return None
    text, stop = found
    block = find_compaction(reply)
    native = None if block is None else raw(block)
    usage = None
    with suppress(Exception):  # malformed usage must not cost the text
        usage = usage_or_none(reply)
    return Draft.of(text, usage, native=native, stop=stop, seconds=seconds)


def read_stream_chunk(chunk: object) -> str | None:
    """Return the text in one chunk of a stream, None if its format is unknown."""
    if isinstance(chunk, str):
        return chunk
    if _get(chunk, "choices") is not None:
        return _text(_get(chunk, "choices", 0, "delta", "content"))
    if (candidates := _get(chunk, "candidates")) is not None:
        return _gemini_text(_get(candidates, 0, "content", "parts"))
    if (delta := _get(chunk, "contentBlockDelta", "delta")) is not None:
        return _text(_get(delta, "text"))
    kind = _get(chunk, "type")
    if not isinstance(kind, str):
        return None
    match kind:
        case "response.output_text.delta":
            return _text(_get(chunk, "delta"))
        case "content_block_delta":
            return _text(_get(chunk, "delta", "text"))
        case _:
            return ""


def _read_chat(reply: object) -> tuple[str, StopReason] | None:
    choice = _get(reply, "choices", 0)
    if choice is None:
        return None
    message = _get(choice, "message")
    text = _text(_get(message, "content"))
    stop = _STOP_REASONS.get(str(_get(choice, "finish_reason")), "")
    if _get(message, "refusal"):
        stop = "refused"
    elif _get(message, "tool_calls") or _get(message, "function_call"):
        stop = "tools"
    return text, stop


def _read_responses(reply: object) -> tuple[str, StopReason] | None:
    items = _get(reply, "output")
    if not isinstance(items, list | tuple):
        return None
    texts = [_text(_get(item, "content")) for item in items if _get(item, "type") == "message"]
    reason = _get(reply, "incomplete_details", "reason") or _get(reply, "status")
    stop = _STOP_REASONS.get(str(reason), "")
    if any(_get(item, "type") in _CALL_TYPES for item in items):
        stop = "tools"
    elif any(_get(part, "type") == "refusal" for item in items for part in _parts(_get(item, "content"))):
        stop = "refused"
    return "\n".join(filter(None, texts)), stop


def _read_gemini(reply: object) -> tuple[str, StopReason] | None:
    candidate = _get(reply, "candidates", 0)
    if candidate is None:
        return None
    parts = _get(candidate, "content", "parts")
    reason = _get(candidate, "finishReason") or _get(candidate, "finish_reason")
    stop = _STOP_REASONS.get(str.__str__(reason).lower(), "") if isinstance(reason, str) else ""
    if any(_get(part, "functionCall") or _get(part, "function_call") for part in _parts(parts)):
        stop = "tools"
    return _gemini_text(parts), stop


def _gemini_text(parts: object) -> str:
    texts = (_get(part, "text") for part in _parts(parts) if not _get(part, "thought"))
    return "".join(text for text in texts if isinstance(text, str))


def _read_bedrock(reply: object) -> tuple[str, StopReason] | None:
    content = _get(reply, "output", "message", "content")
    if not isinstance(content, list):
        return None
    texts = (_get(block, "text") for block in content)
    stop = _STOP_REASONS.get(str(_get(reply, "stopReason")), "")
    return "".join(text for text in texts if isinstance(text, str)), stop


def _read_message(reply: object) -> tuple[str, StopReason] | None:
    content = _get(reply, "content")
    if not isinstance(content, str | list | tuple):
        return None
    stop = _STOP_REASONS.get(str(_get(reply, "stop_reason")), "")
    if any(_get(part, "type") in _CALL_TYPES for part in _parts(content)) or _get(reply, "tool_calls"):
        stop = "tools"
    return _text(content), stop


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    texts = (_get(part, "text") for part in _parts(content) if _get(part, "type") in _TEXT_TYPES)
    return "".join(text for text in texts if isinstance(text, str))


def _parts(content: object) -> Iterator[object]:
    return iter(content) if isinstance(content, list | tuple) else iter(())


def _get(value: Any, *path: str | int) -> Any:
    """Return the value at a path of fields and indexes, None if there is none."""
    for step in path:
        if isinstance(step, int):
            value = value[step] if isinstance(value, list | tuple) and len(value) > step else None
        elif isinstance(value, Mapping):
            value = value.get(step)
        else:
            value = getattr(value, step, None)
    return value


# ── Errors of client libraries ───────────────────────────────────────────────────────────────────────────


def failure_from_error(error: Exception, *, seconds: float = 0.0) -> DraftFailure:
    """Return an exception as a failure: too large, transient, or neither."""
    message = ""
    with suppress(Exception):
        message = one_line(str(error), width=200)
    refusal = overflow_errors.recognise_overflow(error)
    return DraftFailure(
        problem=f"{type(error).__name__}: {message}".rstrip(": "),
        transient=refusal is None and _is_transient(error),
        limit=refusal.limit if refusal is not None and refusal.kind != "bytes" else 0,
        overflow=refusal is not None,
        seconds=seconds,
    )


def _is_transient(error: Exception) -> bool:
    if isinstance(error, TimeoutError | ConnectionError):
        return True
    status = None
    with suppress(Exception):
        status = _get(error, "status_code") or _get(error, "response", "status_code")
    if isinstance(status, int):
        return status in _TRANSIENT_STATUSES or 500 <= status < 600
    return any(word in kind.__name__ for kind in type(error).__mro__ for word in _TRANSIENT_NAMES)
