"""Which dialect messages are in, by what only one of them has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from foveal.core.log.events import Dialect
from foveal.core.wire.common import BadField, mapping

_CHAT_KEYS: Final = frozenset({"tool_calls", "tool_call_id", "function_call"})
_PARTS: Final[dict[str, Dialect]] = {
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


def detect(messages: Sequence[object], *, tools: Sequence[Any] = (), system: object = None) -> Dialect:
    """The dialect of these messages, "" when every dialect reads them alike and nothing else decides.

    Messages decide before tools, tools before a separate system text (which is how Anthropic takes it). A list of
    texts, which both chat and Anthropic have, decides nothing.
    """
    for message in messages:
        if type(message) is dict and len(message) == 2 and type(message.get("content")) is str:
            continue
        found = _message(message)
        if found:
            return found
    for tool in tools:
        if found := _tool(tool):
            return found
    if system is not None:
        return "anthropic"
    return ""


def _message(value: object) -> Dialect:
    try:
        message = mapping(value)
    except BadField:  # reading it will say what is wrong
        return ""
    kind, role = message.get("type"), message.get("role")
    if role in ("tool", "function") or (role is not None and not _CHAT_KEYS.isdisjoint(message)):
        return "openai_chat"
    if kind == "message" and "stop_reason" in message:
        return "anthropic"
    if isinstance(kind, str) and (role is None or kind == "message"):
        return "openai_responses"
    content = message.get("content")
    if isinstance(content, Sequence) and not isinstance(content, str):
        return _content(content)
    return "openai_chat" if role is not None and len(message) > 2 else ""


def _content(content: Sequence[object]) -> Dialect:
    marked: Dialect = ""
    for part in content:
        try:
            item = mapping(part)
        except BadField:
            continue
        kind = item.get("type")
        if not isinstance(kind, str):
            continue
        if kind in _PARTS:
            return _PARTS[kind]
        if kind.endswith("_tool_result"):
            return "anthropic"
        if "cache_control" in item or "citations" in item:
            marked = "anthropic"
    return marked


def _tool(value: object) -> Dialect:
    try:
        tool: Mapping[str, Any] = mapping(value)
    except BadField:
        return ""
    kind = tool.get("type")
    if "input_schema" in tool:
        return "anthropic"
    if kind in ("function", "custom") and kind in tool:
        return "openai_chat"
    if not isinstance(kind, str):
        return ""
    dated = kind.rpartition("_")[2]
    return "anthropic" if len(dated) == 8 and dated.isdigit() else "openai_responses"
