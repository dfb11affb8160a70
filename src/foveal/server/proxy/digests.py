"""A history as a chain of digests: two histories that begin alike have the same digests up to where they part.

What makes no difference to a conversation is left out, so that a client may send the same message in another form:

1. marks for the cache and fields that are null;
2. the words of instructions: that there is one counts, what it says does not (it often holds the time of day);
3. of what the model said, everything but its words and its calls: thoughts, annotations and numbers come and go;
4. how arguments are written: as JSON they are the same with and without blanks;
5. whether a text stands alone or as the only part of a list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final

import msgspec

from foveal.core.log.events import Dialect

Json = dict[str, Any]

_SIZE: Final = 16
_INSTRUCTED: Final = b"instructed"
_ROLES: Final = frozenset({"system", "developer"})
_TEXTS: Final = frozenset({"text", "input_text", "output_text", "refusal"})
_THOUGHTS: Final = frozenset({"thinking", "redacted_thinking"})
_CALLS: Final = {
    "function_call": "arguments",
    "custom_tool_call": "input",
}
"""Calls that are items of their own, and where each has its arguments."""
_PASSING: Final = frozenset({"id", "status"})
"""Fields of an item that a client may leave out."""

_encode: Final = msgspec.json.Encoder(order="sorted").encode


def digests(messages: Sequence[Json], dialect: Dialect) -> list[bytes]:
    """The digest after each message; one that does not count has that of the message before it."""
    return extended(_digest(dialect.encode()), messages, dialect)


def extended(last: bytes, messages: Iterable[Json], dialect: Dialect) -> list[bytes]:
    """The digests of messages that follow a history which has the digest `last`."""
    form = _FORMS[dialect]
    found: list[bytes] = []
    for message in messages:
        words = form(message)
        if words is not None:
            last = _digest(last + words)
        found.append(last)
    return found


def start(dialect: Dialect) -> bytes:
    """The digest of a history without messages."""
    return _digest(dialect.encode())


def fingerprint(value: bytes) -> bytes:
    """A digest of anything."""
    return _digest(value)


def instructs(message: Json) -> bool:
    """It is an instruction."""
    return message.get("role") in _ROLES


def by_model(message: Json) -> bool:
    """The model said it, or did it."""
    role = message.get("role")
    return role == "assistant" or (role is None and not str(message.get("type")).endswith("_output"))


def _digest(value: bytes) -> bytes:
    return blake2b(value, digest_size=_SIZE).digest()


# ── the forms ────────────────────────────────────────────────────────────────────────────────────────────


def _chat(message: Json) -> bytes | None:
    role = message.get("role")
    if role in _ROLES:
        return _INSTRUCTED
    if role != "assistant":
        return _whole(message)
    content = message.get("content")
    calls = [_function(call) for call in _listed(message.get("tool_calls"))]
    if message.get("function_call") is not None:
        calls.append(_function({"function": message["function_call"]}))
    return _encode(("assistant", _speech(content), calls))


def _function(call: Any) -> Any:
    if not isinstance(call, Mapping):
        return call
    kind = "custom" if "custom" in call else "function"
    body = call.get(kind)
    if not isinstance(body, Mapping):
        return call
    return call.get("id"), body.get("name"), _arguments(body.get("arguments", body.get("input")))


def _anthropic(message: Json) -> bytes | None:
    role = message.get("role")
    if role in _ROLES:
        return _INSTRUCTED
    if role != "assistant":
        return _whole(message)
    blocks = _listed(message.get("content"))
    done = [_done(block) for block in blocks if isinstance(block, Mapping) and _is_deed(block)]
    return _encode(("assistant", _speech(message.get("content")), done))


def _is_deed(block: Mapping[str, Any]) -> bool:
    return block.get("type") not in _TEXTS and block.get("type") not in _THOUGHTS


def _done(block: Mapping[str, Any]) -> Any:
    if block.get("type") == "tool_use":
        return block.get("id"), block.get("name"), _arguments(block.get("input"))
    return _bare(block)


def _responses(item: Json) -> bytes | None:
    kind, role = item.get("type"), item.get("role")
    if role in _ROLES:
        return _INSTRUCTED
    if kind == "reasoning":
        return None
    if role == "assistant" and kind in (None, "message"):
        return _encode(("assistant", _speech(item.get("content"))))
    if isinstance(kind, str) and kind in _CALLS:
        return _encode((kind, item.get("call_id"), item.get("name"), _arguments(item.get(_CALLS[kind]))))
    if kind == "message":
        item = {name: value for name, value in item.items() if name != "type"}
    return _whole({name: value for name, value in item.items() if name not in _PASSING})


_FORMS: Final[dict[Dialect, Callable[[Json], bytes | None]]] = {
    "openai_chat": _chat,
    "anthropic": _anthropic,
    "openai_responses": _responses,
}


def _whole(message: Json) -> bytes:
    """A message with all of its fields that count."""
    content = message.get("content")
    if len(message) == 2 and type(content) is str:  # what most messages are
        return _encode((message.get("role"), content))
    bare = _bare(message)
    bare["content"] = _alone(bare.get("content"))
    return _encode((bare.pop("role", None), bare.pop("content"), *bare.items()))


def _alone(content: Any) -> Any:
    """The text, if a content is nothing else."""
    if not isinstance(content, list) or len(content) != 1 or not isinstance(content[0], dict):
        return content
    part = content[0]
    return part["text"] if part.keys() == {"type", "text"} and part["type"] in _TEXTS else content


def _speech(content: Any) -> str:
    """What was said in words."""
    if isinstance(content, str):
        return content.strip()
    parts = (part for part in _listed(content) if isinstance(part, Mapping) and part.get("type") in _TEXTS)
    words = (part.get("refusal" if part["type"] == "refusal" else "text") for part in parts)
    return "\n".join(text for text in words if isinstance(text, str) and text.strip()).strip()


def _arguments(given: Any) -> Any:
    if not isinstance(given, str):
        return given
    try:
        return msgspec.json.decode(given or "{}")
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return given


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _bare(value: Any) -> Any:
    """A value without marks and nulls."""
    if isinstance(value, Mapping):
        return {
            name: _bare(inner)
            for name, inner in value.items()
            if name != "cache_control" and inner is not None
        }
    return [_bare(inner) for inner in value] if isinstance(value, list) else value
