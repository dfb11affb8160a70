"""Digest chain of a message history, by which conversations are recognised.

Two histories that begin with the same messages have the same digests up to where they differ. The digest ignores
what makes no difference to a conversation, so that a client may send the same message in another form:

1. cache marks and null fields;
2. the text of instructions: that there is one counts, its text does not (it often contains the time of day);
3. of model messages, everything except text and tool calls: clients may leave out thinking and annotations;
4. the formatting of arguments: JSON with and without spaces is the same;
5. whether a text is a string or the only part of a list.

`core/engine/history_diff.py` recognises a resent history too, but the two cannot share one implementation.
`Context` has one history in memory and compares each message with its own copy, because it must notice and record
changes that a digest ignores (cache marks, other fields). The proxy looks up a history among thousands of stored
conversations, also after a restart and in another process, without keeping their messages: it needs one persistent
16-byte key per message. It can ignore such changes, because it forwards the client's own messages.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final

import msgspec

from foveal.core.log.events import Dialect, ForeignSummary, unraw
from foveal.core.wire.cache_marks import strip_cache_marks
from foveal.core.wire.common import Json

_DIGEST_BYTES: Final = 16
_INSTRUCTION: Final = b"instructed"
_INSTRUCTION_ROLES: Final = frozenset({"system", "developer"})
_TEXT_TYPES: Final = frozenset({"text", "input_text", "output_text", "refusal"})
_THINKING_TYPES: Final = frozenset({"thinking", "redacted_thinking"})
_CALL_ARGUMENTS: Final = {
    "function_call": "arguments",
    "custom_tool_call": "input",
}
"""Types of Responses items that are calls, and the field with their arguments."""
_RESULT_FIELDS: Final = frozenset({"toolResult", "functionResponse", "function_response"})
"""Fields of a block that is the result of a tool, in the dialects whose blocks have no type."""
_OPTIONAL_FIELDS: Final = frozenset({"id", "status"})
"""Fields of a Responses item that a client may leave out."""

_ENCODER: Final = msgspec.json.Encoder(order="sorted")


def history_digests(messages: Sequence[Json], dialect: Dialect) -> list[bytes]:
    """Return, for each message, the digest of the history up to it; some messages do not change the digest."""
    return extend_digests(empty_history_digest(dialect), messages, dialect)


def count_up_to(digests: Sequence[bytes], digest: bytes) -> int:
    """Return how many messages make up the history with this digest. It is searched from the end, where the newest
    known history of a long request is; messages that add nothing to a digest follow each other."""
    at = len(digests) - 1
    while at >= 0 and digests[at] != digest:
        at -= 1
    if at < 0:
        raise ValueError("no message has this digest")
    while at and digests[at - 1] == digest:
        at -= 1
    return at + 1


def extend_digests(last: bytes, messages: Iterable[Json], dialect: Dialect) -> list[bytes]:
    """Return the digests of messages that follow a history with the digest `last`."""
    canonical = _CANONICAL[dialect]
    found: list[bytes] = []
    for message in messages:
        text = canonical(message)
        if text is not None:
            last = digest_of(last + text)
        found.append(last)
    return found


def summary_digest(fact: ForeignSummary) -> bytes:
    """Return the digest of a summary that a provider made. It stands for the history before it, whatever of that a
    client still sends."""
    native = {name: value for name, value in unraw(fact.native).items() if name not in _OPTIONAL_FIELDS}
    return digest_of(b"summary" + _encode(strip_cache_marks(native, drop_nulls=True)))


def empty_history_digest(dialect: Dialect) -> bytes:
    """Return the digest of a history without messages."""
    return digest_of(dialect.encode())


def digest_of(value: bytes) -> bytes:
    return blake2b(value, digest_size=_DIGEST_BYTES).digest()


def is_instruction(message: Json) -> bool:
    """Return whether a message is a system or developer message."""
    return message.get("role") in _INSTRUCTION_ROLES


def is_from_model(message: Json) -> bool:
    """Return whether a message or item was produced by the model."""
    role = message.get("role")
    return role in ("assistant", "model") or (
        role is None and not str(message.get("type")).endswith("_output")
    )


def begins_turn(message: Json) -> bool:
    """Return whether a message is one of the user, and not only the results of tools."""
    if message.get("role") != "user":
        return False
    content = message.get("content", message.get("parts"))
    blocks = [block for block in _as_list(content) if isinstance(block, Mapping)]
    return not blocks or any(not _is_tool_result(block) for block in blocks)


def _is_tool_result(block: Mapping[str, Any]) -> bool:
    return block.get("type") == "tool_result" or not _RESULT_FIELDS.isdisjoint(block)


# ── Canonical form of a message, by dialect ──────────────────────────────────────────────────────────────


def _chat(message: Json) -> bytes | None:
    role = message.get("role")
    if role in _INSTRUCTION_ROLES:
        return _INSTRUCTION
    if role != "assistant":
        return _all_fields(message)
    content = message.get("content")
    calls = [_function(call) for call in _as_list(message.get("tool_calls"))]
    if message.get("function_call") is not None:
        calls.append(_function({"function": message["function_call"]}))
    return _encode(("assistant", _spoken_text(content), calls))


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
    if role in _INSTRUCTION_ROLES:
        return _INSTRUCTION
    if role != "assistant":
        return _all_fields(message)
    blocks = _as_list(message.get("content"))
    actions = [_action(block) for block in blocks if isinstance(block, Mapping) and _is_action(block)]
    return _encode(("assistant", _spoken_text(message.get("content")), actions))


def _is_action(block: Mapping[str, Any]) -> bool:
    return block.get("type") not in _TEXT_TYPES and block.get("type") not in _THINKING_TYPES


def _action(block: Mapping[str, Any]) -> Any:
    if block.get("type") == "tool_use":
        return block.get("id"), block.get("name"), _arguments(block.get("input"))
    return strip_cache_marks(block, drop_nulls=True)


def _responses(item: Json) -> bytes | None:
    kind, role = item.get("type"), item.get("role")
    if role in _INSTRUCTION_ROLES:
        return _INSTRUCTION
    if kind == "reasoning":
        return None
    if role == "assistant" and kind in (None, "message"):
        return _encode(("assistant", _spoken_text(item.get("content"))))
    if isinstance(kind, str) and kind in _CALL_ARGUMENTS:
        return _encode(
            (kind, item.get("call_id"), item.get("name"), _arguments(item.get(_CALL_ARGUMENTS[kind])))
        )
    if kind == "message":
        item = {name: value for name, value in item.items() if name != "type"}
    return _all_fields({name: value for name, value in item.items() if name not in _OPTIONAL_FIELDS})


def _gemini(content: Json) -> bytes | None:
    if content.get("role") != "model":
        return _all_fields(content)
    parts = [part for part in _as_list(content.get("parts")) if isinstance(part, Mapping)]
    spoken = (part.get("text") for part in parts if not part.get("thought"))
    text = "\n".join(said for said in spoken if isinstance(said, str) and said.strip()).strip()
    calls = [part.get("functionCall", part.get("function_call")) for part in parts]
    called = [(c.get("id"), c.get("name"), c.get("args")) for c in calls if isinstance(c, Mapping)]
    return _encode(("model", text, called))


def _bedrock(message: Json) -> bytes | None:
    if message.get("role") != "assistant":
        return _all_fields(message)
    blocks = [block for block in _as_list(message.get("content")) if isinstance(block, Mapping)]
    spoken = (block.get("text") for block in blocks)
    text = "\n".join(said for said in spoken if isinstance(said, str) and said.strip()).strip()
    uses = [block.get("toolUse") for block in blocks]
    called = [(u.get("toolUseId"), u.get("name"), u.get("input")) for u in uses if isinstance(u, Mapping)]
    return _encode(("assistant", text, called))


_CANONICAL: Final[dict[Dialect, Callable[[Json], bytes | None]]] = {
    "openai_chat": _chat,
    "anthropic": _anthropic,
    "openai_responses": _responses,
    "gemini": _gemini,
    "bedrock": _bedrock,
}


def _encode(value: Any) -> bytes:
    try:
        return _ENCODER.encode(value)
    except (TypeError, ValueError):  # objects or text of a framework that JSON cannot hold
        return json.dumps(value, sort_keys=True, default=str).encode()


def _all_fields(message: Json) -> bytes:
    """Encode a message with all fields that count."""
    content = message.get("content")
    if len(message) == 2 and type(content) is str:  # most messages: skips the general case
        return _encode((message.get("role"), content))
    fields = strip_cache_marks(message, drop_nulls=True)
    fields["content"] = _single_text(fields.get("content"))
    return _encode((fields.pop("role", None), fields.pop("content"), *fields.items()))


def _single_text(content: Any) -> Any:
    """Return the text of a content that is nothing else, otherwise the content."""
    if not isinstance(content, list) or len(content) != 1 or not isinstance(content[0], dict):
        return content
    part = content[0]
    return part["text"] if part.keys() == {"type", "text"} and part["type"] in _TEXT_TYPES else content


def _spoken_text(content: Any) -> str:
    """Return the text of a content without its other parts."""
    if isinstance(content, str):
        return content.strip()
    parts = (
        part for part in _as_list(content) if isinstance(part, Mapping) and part.get("type") in _TEXT_TYPES
    )
    words = (part.get("refusal" if part["type"] == "refusal" else "text") for part in parts)
    return "\n".join(text for text in words if isinstance(text, str) and text.strip()).strip()


def _arguments(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value or "{}")
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return value


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
