"""Detection of the dialect of messages, from features that only one dialect has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from foveal.core.log.events import Dialect
from foveal.core.wire.cache_marks import has_cache_mark
from foveal.core.wire.common import BadField, as_mapping

_CHAT_KEYS: Final = frozenset({"tool_calls", "tool_call_id", "function_call"})
_DIALECT_OF_PART: Final[dict[str, Dialect]] = {
    "image_url": "openai_chat",
    "input_audio": "openai_chat",
    "file": "openai_chat",
    "input_text": "openai_responses",
    "output_text": "openai_responses",
    "input_image": "openai_responses",
    "input_file": "openai_responses",
    "image": "anthropic",
    "document": "anthropic",
    "search_result": "anthropic",
    "thinking": "anthropic",
    "redacted_thinking": "anthropic",
    "tool_use": "anthropic",
    "tool_result": "anthropic",
    "server_tool_use": "anthropic",
}


def detect_dialect(
    messages: Sequence[object], *, tools: Sequence[Any] = (), system: object = None
) -> Dialect:
    """Return the dialect of messages, or "" if all dialects read them alike and nothing else decides.

    Messages decide before tools, and tools before a separate system text, which is Anthropic's form. A list of
    text parts decides nothing, because chat and Anthropic both have it.
    """
    for message in messages:
        if type(message) is dict and len(message) == 2 and type(message.get("content")) is str:
            continue  # role and text: the same in all dialects
        found = _dialect_of_message(message)
        if found:
            return found
    for tool in tools:
        if found := _dialect_of_tool(tool):
            return found
    if system is not None:
        return "anthropic"
    return ""


def _dialect_of_message(value: object) -> Dialect:
    try:
        message = as_mapping(value)
    except BadField:  # `Wire.read` reports what is wrong
        return ""
    kind, role = message.get("type"), message.get("role")
    if role in ("tool", "function") or (role is not None and not _CHAT_KEYS.isdisjoint(message)):
        return "openai_chat"
    if kind == "message" and "stop_reason" in message:  # a whole reply of Anthropic
        return "anthropic"
    if isinstance(kind, str) and (role is None or kind == "message"):
        return "openai_responses"
    content = message.get("content")
    if isinstance(content, Sequence) and not isinstance(content, str):
        return _dialect_of_content(content)
    return "openai_chat" if role is not None and len(message) > 2 else ""


def _dialect_of_content(content: Sequence[object]) -> Dialect:
    found: Dialect = ""
    for part in content:
        try:
            item = as_mapping(part)
        except BadField:
            continue
        kind = item.get("type")
        if not isinstance(kind, str):
            continue
        if kind in _DIALECT_OF_PART:
            return _DIALECT_OF_PART[kind]
        if kind.endswith("_tool_result"):
            return "anthropic"
        if has_cache_mark(item) or "citations" in item:
            found = "anthropic"
    return found


def _dialect_of_tool(value: object) -> Dialect:
    try:
        tool: Mapping[str, Any] = as_mapping(value)
    except BadField:
        return ""
    kind = tool.get("type")
    if "input_schema" in tool:
        return "anthropic"
    if kind in ("function", "custom") and kind in tool:
        return "openai_chat"
    if not isinstance(kind, str):
        return ""
    date = kind.rpartition("_")[2]  # Anthropic's own tools end in a date, such as `bash_20250124`
    return "anthropic" if len(date) == 8 and date.isdigit() else "openai_responses"
