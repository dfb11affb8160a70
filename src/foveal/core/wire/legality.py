"""Checks whether a provider accepts the form of a request.

    request_faults("anthropic", messages, system=system, tools=tools)     # [] if the request is legal

The checks are independent of the code that writes messages: tests apply them to everything that leaves, and the
server counts the faults of the requests that it writes. They cover what providers refuse with status 400: roles and
their order, pairs of calls and results, empty content, cache marks. They never raise, whatever the messages are. A
fault never has the text of a message in it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from foveal.core.log.events import Dialect
from foveal.core.wire.cache_marks import MAX_CACHE_MARKS, count_cache_marks
from foveal.core.wire.common import Json

MAX_FAULT_CHARS: Final = 200
"""Characters of a fault: a message of any size may be wrong."""
_CALL_ID: Final = re.compile(r"[a-zA-Z0-9_-]+")


def request_faults(
    dialect: Dialect, messages: Sequence[Any], *, system: Any = None, tools: Any = ()
) -> list[str]:
    """Return what a provider would refuse in a request; `system` is Anthropic's field of that name."""
    listed = list(messages)
    faults = [
        f"[{at}] is not an object" for at, message in enumerate(listed) if not isinstance(message, dict)
    ]
    if not faults:
        faults = _CHECKS[dialect](listed)
    if dialect == "anthropic":
        faults += _mark_faults(listed, system, tools)
    return [fault[:MAX_FAULT_CHARS] for fault in faults]


# ── OpenAI chat ──────────────────────────────────────────────────────────────────────────────────────────


def _chat_faults(messages: list[Json]) -> list[str]:
    """Every call has one tool message before any other message; no result lacks its call."""
    faults: list[str] = []
    waiting: Counter[str] = Counter()
    for at, message in enumerate(messages):
        role = message.get("role")
        if role in ("tool", "function"):
            faults += _chat_result_faults(at, message, waiting)
            continue
        if waiting:
            faults.append(f"[{at}] {role} comes before the results of {sorted(waiting)}")
            waiting.clear()
        if role == "assistant":
            faults += _chat_answer_faults(at, message, waiting)
        elif role in ("system", "developer", "user"):
            faults += _chat_content_faults(at, message.get("content"), text_only=role != "user")
        else:
            faults.append(f"[{at}] unknown role {role!r}")
    return [*faults, f"[end] {sorted(waiting)} have no result"] if waiting else faults


def _chat_result_faults(at: int, message: Json, waiting: Counter[str]) -> list[str]:
    """Return the faults of a result, and remove its call from those that wait."""
    key = message.get("tool_call_id") if message["role"] == "tool" else message.get("name")
    faults = _chat_content_faults(at, message.get("content"), text_only=True)
    if not isinstance(key, str) or waiting[key] <= 0:
        return [*faults, f"[{at}] result of {key!r}, which has no call"]
    waiting[key] -= 1
    if not waiting[key]:
        del waiting[key]
    return faults


def _chat_answer_faults(at: int, message: Json, waiting: Counter[str]) -> list[str]:
    """Return the faults of an assistant message, and add its calls to those that wait."""
    faults: list[str] = []
    calls = message.get("tool_calls")
    if calls is not None and (not isinstance(calls, list) or not calls):
        faults.append(f"[{at}] tool_calls is {_shape(calls)}")
        calls = []
    for call in calls or []:
        faults += _chat_call_faults(at, call)
        waiting[str(_field(call, "id"))] += 1
    legacy = message.get("function_call")
    if legacy is not None:
        waiting[str(_field(legacy, "name"))] += 1
    has_more = calls or legacy or message.get("refusal") or message.get("audio")
    if message.get("content") is not None or not has_more:
        faults += _chat_content_faults(at, message.get("content"), text_only=True)
    return faults


def _chat_call_faults(at: int, call: Any) -> list[str]:
    kind, id = _field(call, "type"), _field(call, "id")
    body = _field(call, kind) if isinstance(kind, str) else None
    arguments = "input" if kind == "custom" else "arguments"
    faults = [] if isinstance(id, str) and id else [f"[{at}] a call without an id"]
    if kind not in ("function", "custom") or not isinstance(body, dict):
        return [*faults, f"[{at}] a call of type {kind!r} without a body"]
    if not isinstance(body.get("name"), str) or not isinstance(body.get(arguments), str):
        faults.append(f"[{at}] a call without name or {arguments}")
    return faults


def _chat_content_faults(at: int, content: object, *, text_only: bool) -> list[str]:
    if isinstance(content, str):
        return []
    if not isinstance(content, list) or not content:
        return [f"[{at}] content is {_shape(content)}"]
    kinds = [_field(part, "type") for part in content]
    return [
        f"[{at}] a part without a type"
        if not isinstance(kind, str)
        else f"[{at}] {kind} where only text is allowed"
        for kind in kinds
        if not isinstance(kind, str) or (text_only and kind not in ("text", "refusal"))
    ]


# ── OpenAI Responses ─────────────────────────────────────────────────────────────────────────────────────

_CLIENT_CALLS: Final = ("function", "custom_tool", "local_shell", "shell", "computer", "apply_patch")
_NOT_FROM_MODEL: Final = {*(f"{kind}_call_output" for kind in _CLIENT_CALLS), "mcp_approval_response"}


def _responses_faults(items: list[Json]) -> list[str]:
    """Every client-run call has one later output of its own kind; an item of the model follows reasoning."""
    faults: list[str] = []
    waiting: Counter[tuple[str, str]] = Counter()
    shells = {item.get("id"): item.get("call_id") for item in items if item.get("type") == "local_shell_call"}
    for at, item in enumerate(items):
        kind = str(item.get("type") or ("message" if "role" in item else "item_reference"))
        call_kind = kind.removesuffix("_output").removesuffix("_call")
        if kind == "message":
            faults += _responses_message_faults(at, item)
        elif kind == "reasoning":
            faults += _reasoning_faults(at, items)
        elif call_kind in _CLIENT_CALLS and kind.endswith("_output"):
            key = (call_kind, str(item.get("call_id") or shells.get(item.get("id")) or ""))
            faults += _output_faults(at, item)
            if waiting[key] <= 0:
                faults.append(f"[{at}] output of {key}, which has no call")
            waiting[key] -= 1
        elif call_kind in _CLIENT_CALLS:
            waiting[call_kind, str(item.get("call_id") or "")] += 1
            faults += _responses_call_faults(at, item, call_kind)
    return [*faults, *(f"[end] {key} has no output" for key, count in waiting.items() if count > 0)]


def _responses_message_faults(at: int, item: Json) -> list[str]:
    role, content = item.get("role"), item.get("content")
    known = role in ("user", "assistant", "system", "developer")
    faults = [] if known else [f"[{at}] unknown role {role!r}"]
    if isinstance(content, str):
        return faults
    if not isinstance(content, list) or not content:
        return [*faults, f"[{at}] content is {_shape(content)}"]
    own = ("output_text", "refusal") if role == "assistant" else ("input_text", "input_image", "input_file")
    kinds = (_field(part, "type") for part in content)
    return [*faults, *(f"[{at}] {kind!r} said by {role}" for kind in kinds if kind not in own)]


def _reasoning_faults(at: int, items: list[Json]) -> list[str]:
    after = items[at + 1] if at + 1 < len(items) else {"role": "user"}
    is_by_model = after.get("role", "assistant") == "assistant" and after.get("type") not in _NOT_FROM_MODEL
    return [] if is_by_model else [f"[{at}] reasoning without the item that follows it"]


def _responses_call_faults(at: int, item: Json, call_kind: str) -> list[str]:
    id = item.get("call_id")
    faults = [] if isinstance(id, str) and id else [f"[{at}] a call without call_id"]
    field = {"function": "arguments", "custom_tool": "input"}.get(call_kind)
    if field and not (isinstance(item.get("name"), str) and isinstance(item.get(field), str)):
        faults.append(f"[{at}] a call without name or {field}")
    return faults


def _output_faults(at: int, item: Json) -> list[str]:
    output = item.get("output")
    match item["type"]:
        case "computer_call_output":
            good = _field(output, "type") == "computer_screenshot"
        case "shell_call_output":
            needed = {"stdout", "stderr", "outcome"}
            good = isinstance(output, list) and all(
                isinstance(one, dict) and needed <= one.keys() for one in output
            )
        case "local_shell_call_output":
            good = isinstance(output, str)
        case "apply_patch_call_output":
            good = item.get("status") in ("completed", "failed") and isinstance(output, str | None)
        case _:
            good = isinstance(output, str) or (isinstance(output, list) and bool(output))
    return [] if good else [f"[{at}] {item['type']} with output {_shape(output)}"]


# ── Anthropic ────────────────────────────────────────────────────────────────────────────────────────────

_USER_ONLY: Final = ("image", "document", "search_result", "tool_result")
_MODEL_ONLY: Final = ("thinking", "redacted_thinking", "tool_use", "server_tool_use")


def _anthropic_faults(messages: list[Json]) -> list[str]:
    """Roles alternate, the user first; results come first in the message after their calls; nothing is empty."""
    faults: list[str] = []
    called: list[str] = []
    expected = "user"
    for at, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        if role != expected:
            faults.append(f"[{at}] {role!r} where {expected} is expected")
        expected = "user" if role == "assistant" else "assistant"
        if message.keys() != {"role", "content"}:
            faults.append(f"[{at}] fields {sorted(message)}")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if not isinstance(blocks, list) or not blocks or not all(isinstance(one, dict) for one in blocks):
            faults.append(f"[{at}] content is {_shape(content)}")
            called = []
            continue
        faults += [*_block_faults(at, role, blocks), *_result_faults(at, blocks, called)]
        called = [str(block.get("id")) for block in blocks if block.get("type") == "tool_use"]
        if len(called) != len(set(called)):
            faults.append(f"[{at}] an id twice in {called}")
    return [*faults, f"[end] {called} have no result"] if called else faults


def _result_faults(at: int, blocks: list[Json], called: list[str]) -> list[str]:
    results = [str(block.get("tool_use_id")) for block in blocks if block.get("type") == "tool_result"]
    faults = [f"[{at}] results {results} for calls {called}"] if sorted(results) != sorted(called) else []
    if any(block.get("type") != "tool_result" for block in blocks[: len(results)]):
        faults.append(f"[{at}] results do not come first")
    return faults


def _block_faults(at: int, role: object, blocks: list[Json]) -> list[str]:
    faults: list[str] = []
    wrong = _USER_ONLY if role == "assistant" else _MODEL_ONLY
    for block in blocks:
        kind = block.get("type")
        if kind in wrong:
            faults.append(f"[{at}] {kind} said by {role}")
        if _is_empty_text(block):
            faults.append(f"[{at}] an empty text")
        if kind == "tool_use" and not (
            _CALL_ID.fullmatch(str(block.get("id"))) and isinstance(block.get("input"), dict)
        ):
            faults.append(f"[{at}] tool_use {block.get('id')!r} with input {_shape(block.get('input'))}")
        inner = block.get("content") if kind == "tool_result" else None
        if isinstance(inner, list) and any(map(_is_empty_text, inner)):
            faults.append(f"[{at}] an empty text in a result")
    if blocks[-1].get("type") in ("thinking", "redacted_thinking"):
        faults.append(f"[{at}] ends with thinking")
    return faults


def _is_empty_text(block: Any) -> bool:
    return _field(block, "type") == "text" and not str(_field(block, "text") or "").strip()


def _mark_faults(messages: list[Any], system: Any, tools: Any) -> list[str]:
    marks = sum(map(count_cache_marks, (list(tools or ()), system, messages)))
    return [f"{marks} cache marks, {MAX_CACHE_MARKS} are allowed"] if marks > MAX_CACHE_MARKS else []


def _shape(value: object) -> str:
    """Return what a value is, without its text: faults are logged."""
    if isinstance(value, str | list | dict) and not value:
        return f"an empty {type(value).__name__}"
    return f"of type {type(value).__name__}"


def _field(value: Any, name: str) -> Any:
    """Return a field of a JSON value; None if the value is not an object."""
    return value.get(name) if isinstance(value, Mapping) else None


_CHECKS: Final[dict[Dialect, Callable[[list[Json]], list[str]]]] = {
    "openai_chat": _chat_faults,
    "openai_responses": _responses_faults,
    "anthropic": _anthropic_faults,
}
