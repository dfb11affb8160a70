"""Dialects: their names, long and short, and their detection from features that only one has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast, get_args

from foveal.core.log.events import Dialect
from foveal.core.wire.cache_marks import has_cache_mark, is_cache_point
from foveal.core.wire.common import BadField, as_mapping
from foveal.errors import BadSetting

DIALECTS: Final = tuple(name for name in get_args(Dialect) if name)
"""The dialects, as errors, help texts and logs spell them."""
SHORT_NAMES: Final[dict[str, Dialect]] = {"openai": "openai_chat", "responses": "openai_responses"}
"""Other spellings of dialects, which every argument accepts."""
_NAMED: Final = {**{name: name for name in get_args(Dialect)}, **SHORT_NAMES}


def full_name(word: str) -> str:
    """Return a short name of a dialect as Foveal prints it, and any other word as it is."""
    return SHORT_NAMES.get(word, word)


def checked_dialect(name: object) -> Dialect:
    """Return the dialect of a name, or "" for one to detect; raises `BadSetting` for anything else."""
    found = _NAMED.get(name) if isinstance(name, str) else None
    if found is None:
        raise BadSetting("dialect", name, f'one of {", ".join(DIALECTS)}, or "" to detect it')
    return cast(Dialect, found)


_ANTHROPIC_KEYS: Final = frozenset({"clear_at", "output_config"})
"""Fields of a system message among the others."""
_CHAT_KEYS: Final = frozenset({"tool_calls", "tool_call_id", "function_call"})
_GEMINI_TOOLS: Final = frozenset(
    {"functionDeclarations", "function_declarations", "googleSearch", "google_search", "codeExecution",
     "code_execution", "urlContext", "url_context", "parametersJsonSchema", "parameters_json_schema"}
)  # fmt: skip
"""Fields of a tool, or of a function that it declares."""
_KINDS_OF_PARTS: Final = frozenset({"type", "part_kind"})
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
    "mcp_tool_use": "anthropic",
    "mcp_tool_listing": "anthropic",
    "compaction": "anthropic",
    "fallback": "anthropic",
    "tool_addition": "anthropic",
    "tool_removal": "anthropic",
    "container_upload": "anthropic",
}

_BEDROCK_BLOCKS: Final = frozenset(
    {"text", "image", "document", "video", "audio", "toolUse", "toolResult", "reasoningContent", "cachePoint",
     "guardContent", "citationsContent", "searchResult", "toolAddition", "toolRemoval"}
)  # fmt: skip
"""Fields of blocks without a type; the field names the kind of the block."""


def detect_dialect(
    messages: Sequence[object], *, tools: Sequence[Any] = (), system: object = None
) -> Dialect:
    """Return the dialect of messages, or "" if all dialects read them alike and nothing else decides.

    Messages decide before tools, and tools before a separate system text, which is Anthropic's form, or Bedrock's
    if its blocks have no type. A list of text parts with a type decides nothing: chat and Anthropic both have it.
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
        blocks = system if isinstance(system, Sequence) and not isinstance(system, str) else ()
        return _dialect_of_content(blocks) or "anthropic"
    return ""


def likely_dialect(
    messages: Sequence[object], *, model: str, system: object = None, has_system_message: bool = False
) -> Dialect:
    """Return the dialect to write messages in that all dialects read alike: "anthropic" for a Claude model, "" for
    any other.

    Anthropic's form of such messages is legal in chat too, but not the other way round: chat writes pinned rules as
    system messages, which Anthropic refuses. A system message among them, now or before, shows that Claude is used
    through a chat API; a system text beside them shows that it is not."""
    if "claude" not in model.lower():
        return ""
    if system is None and (has_system_message or any(map(_is_system_message, messages))):
        return ""
    return "anthropic"


def _is_system_message(message: object) -> bool:
    return isinstance(message, Mapping) and message.get("role") in ("system", "developer")


def _dialect_of_message(value: object) -> Dialect:
    try:
        message = as_mapping(value)
    except BadField:  # `Wire.read` reports what is wrong
        return ""
    kind, role = message.get("type"), message.get("role")
    if role == "model" or ("content" not in message and _has_gemini_parts(message.get("parts"))):
        return "gemini"
    if role in ("tool", "function") or (role is not None and not _CHAT_KEYS.isdisjoint(message)):
        return "openai_chat"
    if kind == "message" and "stop_reason" in message:  # a whole reply of Anthropic
        return "anthropic"
    if isinstance(kind, str) and (role is None or kind == "message" or "content" not in message):
        return "openai_responses"
    if role == "system" and not _ANTHROPIC_KEYS.isdisjoint(message):
        return "anthropic"
    content = message.get("content")
    if isinstance(content, Sequence) and not isinstance(content, str):
        return _dialect_of_content(content)
    return "openai_chat" if role is not None and len(message) > 2 else ""


def _has_gemini_parts(parts: object) -> bool:
    """Return whether parts may be Gemini's, which have no field for their kind, unlike those of AI SDK and
    pydantic-ai."""
    if not isinstance(parts, list | tuple):
        return False
    return not any(isinstance(part, Mapping) and not _KINDS_OF_PARTS.isdisjoint(part) for part in parts)


def _dialect_of_content(content: Sequence[object]) -> Dialect:
    found: Dialect = ""
    for part in content:
        try:
            item = as_mapping(part)
        except BadField:
            continue
        kind = item.get("type")
        if kind is None and not _BEDROCK_BLOCKS.isdisjoint(item):
            return "bedrock"
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
    if not _GEMINI_TOOLS.isdisjoint(tool):
        return "gemini"
    if "input_schema" in tool:
        return "anthropic"
    if kind in ("function", "custom") and kind in tool:
        return "openai_chat"
    if "toolSpec" in tool or "systemTool" in tool or is_cache_point(tool):
        return "bedrock"
    if not isinstance(kind, str):
        return ""
    date = kind.rpartition("_")[2]  # Anthropic's own tools end in a date, such as `bash_20250124`
    return "anthropic" if len(date) == 8 and date.isdigit() else "openai_responses"
