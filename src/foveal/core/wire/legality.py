"""Checks whether a provider accepts the form of a request.

    request_faults("anthropic", messages, system=system, tools=tools)     # [] if the request is legal

The checks are independent of the code that writes messages: tests apply them to everything that leaves, and the
server counts the faults of the requests that it writes. They cover what providers refuse with status 400: roles and
their order, pairs of calls and results, empty content, cache marks, and thinking that is bound to other messages
(`thinking_check`). They never raise, whatever the messages are. A fault never has the text of a message in it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from foveal.core.log.events import Dialect
from foveal.core.wire.bound_thinking import ThinkingCheck
from foveal.core.wire.cache_marks import CACHE_POINT, MAX_CACHE_MARKS, count_cache_marks, is_cache_point
from foveal.core.wire.common import Json

MAX_FAULT_CHARS: Final = 200
"""Characters of a fault: a message of any size may be wrong."""
_LAST_THINKING: Final = ("ends with thinking", "ends with reasoning")
_TWICE: Final = "speaks twice in a row"
_LEGAL_IF_BOUND: Final = (*_LAST_THINKING, _TWICE)
"""Faults in a request to a model that does not bind thinking; one that binds it gets what was given."""
_CALL_ID: Final = re.compile(r"[a-zA-Z0-9_-]+")


def request_faults(
    dialect: Dialect,
    messages: Sequence[Any],
    *,
    system: Any = None,
    tools: Any = (),
    thinking: ThinkingCheck | None = None,
) -> list[str]:
    """Return what a provider would refuse in a request; `system` is the field of that name of Anthropic and
    Bedrock. With `thinking`, the model is one that binds thinking to what comes before it."""
    listed = list(messages)
    faults = [
        f"[{at}] is not an object" for at, message in enumerate(listed) if not isinstance(message, dict)
    ]
    if not faults:
        faults = _CHECKS[dialect](listed)
    if dialect == "anthropic":
        faults += _mark_faults(listed, system, tools)
    if dialect == "bedrock":
        faults += [*_mark_faults(listed, system, tools), *_ttl_faults(listed, system, tools)]
    if thinking is not None:
        faults = [fault for fault in faults if not fault.endswith(_LEGAL_IF_BOUND)]
        faults += thinking.faults(dialect, listed, system=system, tools=tools)
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
    expected: tuple[str, ...] = (
        ("assistant",) if messages and _begins_with_summary(messages[0]) else ("user",)
    )
    for at, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        if role == "system":
            faults += _system_faults(at, message, called)
            expected = ("user", "assistant") if at else expected
            continue
        if role not in expected:
            is_twice = at > 0 and role == messages[at - 1].get("role")
            faults.append(
                f"[{at}] {role} {_TWICE}" if is_twice else f"[{at}] {role!r} where {expected[0]} is expected"
            )
        expected = ("user",) if role == "assistant" else ("assistant",)
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


def _system_faults(at: int, message: Json, called: list[str]) -> list[str]:
    """A system message may stand between any two others, but not between calls and their results."""
    content, settings = message.get("content"), message.get("output_config")
    faults = [f"[{at}] system comes before the results of {called}"] if called else []
    if not isinstance(content, str | list | None) or not (content or settings or len(message) > 2):
        faults.append(f"[{at}] content is {_shape(content)}")
    return faults


def _begins_with_summary(message: Json) -> bool:
    content = message.get("content")
    first = content[0] if isinstance(content, list) and content else None
    return isinstance(first, dict) and first.get("type") == "compaction"


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
        faults.append(f"[{at}] {_LAST_THINKING[0]}")
    return faults


def _is_empty_text(block: Any) -> bool:
    return _field(block, "type") == "text" and not str(_field(block, "text") or "").strip()


def _mark_faults(messages: list[Any], system: Any, tools: Any) -> list[str]:
    marks = sum(map(count_cache_marks, (list(tools or ()), system, messages)))
    return [f"{marks} cache marks, {MAX_CACHE_MARKS} are allowed"] if marks > MAX_CACHE_MARKS else []


# ── Gemini ───────────────────────────────────────────────────────────────────────────────────────────────


def _gemini_faults(contents: list[Json]) -> list[str]:
    """Roles alternate, the user first and last; the responses to all calls of a content are in the next one."""
    faults: list[str] = []
    called: list[Any] = []
    expected = "user"
    needs_signature = any(_signed_call(part) for content in contents for part in _gemini_parts(content))
    for at, content in enumerate(contents):
        role, parts = content.get("role"), content.get("parts")
        if role != expected:
            faults.append(f"[{at}] {role!r} where {expected} is expected")
        expected = "user" if role == "model" else "model"
        if not isinstance(parts, list) or not parts or not all(isinstance(part, dict) for part in parts):
            faults.append(f"[{at}] parts is {_shape(parts)}")
            called = []
            continue
        responses = [body for part in parts if (body := _gemini_body(part, "functionResponse")) is not None]
        faults += _gemini_response_faults(at, responses, called)
        faults += _gemini_part_faults(at, role, parts)
        called = [body for part in parts if (body := _gemini_body(part, "functionCall")) is not None]
        if called and needs_signature and not _signed_call(_first_call(parts)):
            faults.append(f"[{at}] the first functionCall has no thoughtSignature")
    if called:
        faults.append(f"[end] {len(called)} calls have no response")
    return [*faults, "[end] the model speaks last"] if expected == "user" and contents else faults


def _gemini_response_faults(at: int, responses: list[Any], called: list[Any]) -> list[str]:
    """Every call has one response of its name; an id, where a response has one, is that of a call of the name."""
    faults: list[str] = []
    names = Counter(str(_field(call, "name")) for call in called)
    if Counter(str(_field(one, "name")) for one in responses) != names:
        faults.append(f"[{at}] {len(responses)} responses for the calls {sorted(names.elements())}")
    ids = Counter((str(_field(call, "name")), str(_field(call, "id"))) for call in called)
    for one in responses:
        key = (str(_field(one, "name")), str(_field(one, "id")))
        if _field(one, "id") is not None and ids[key] <= 0:
            faults.append(f"[{at}] a response with an id that no call has")
        ids[key] -= 1
        if not isinstance(_field(one, "response"), dict):
            faults.append(f"[{at}] a response is {_shape(_field(one, 'response'))}")
    return faults


def _gemini_part_faults(at: int, role: object, parts: list[Json]) -> list[str]:
    faults: list[str] = []
    is_response = [_gemini_body(part, "functionResponse") is not None for part in parts]
    if is_response != sorted(is_response, reverse=True):
        faults.append(f"[{at}] responses do not come first")
    for part, responds in zip(parts, is_response, strict=True):
        call = _gemini_body(part, "functionCall")
        if not part or part == {"text": ""}:
            faults.append(f"[{at}] an empty part")
        if (responds and role == "model") or (call is not None and role == "user"):
            faults.append(f"[{at}] {'a response' if responds else 'a call'} said by {role}")
        args = _field(call, "args")
        if call is not None and not (isinstance(_field(call, "name"), str) and isinstance(args, dict | None)):
            faults.append(f"[{at}] a call without name, or with args {_shape(args)}")
    ids = [id for part in parts if (id := _field(_gemini_body(part, "functionCall"), "id")) is not None]
    return [*faults, f"[{at}] an id twice"] if len(ids) != len(set(map(str, ids))) else faults


def _gemini_parts(content: Json) -> list[Any]:
    parts = content.get("parts")
    return parts if isinstance(parts, list) else []


def _first_call(parts: list[Json]) -> Json:
    return next(part for part in parts if _gemini_body(part, "functionCall") is not None)


def _signed_call(part: Any) -> bool:
    signature = _field(part, "thoughtSignature") or _field(part, "thought_signature")
    return bool(signature) and _gemini_body(part, "functionCall") is not None


def _gemini_body(part: Any, name: str) -> Any:
    """Return the call or the response of a part, in either spelling; None if it has none."""
    other = {"functionCall": "function_call", "functionResponse": "function_response"}[name]
    body = _field(part, name)
    return body if body is not None else _field(part, other)


# ── Bedrock Converse ─────────────────────────────────────────────────────────────────────────────────────

_BEDROCK_ID: Final = re.compile(r"[a-zA-Z0-9_.:-]{1,64}")
_BEDROCK_TOOL_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_BEDROCK_DOCUMENT_NAME: Final = re.compile(r"(?!.*\s\s)[a-zA-Z0-9\s()\[\]-]{1,200}")
_BEDROCK_NEXT_ROLES: Final = {
    "user": ("assistant", "system"),
    "assistant": ("user", "system"),
    "system": ("user", "assistant", "system"),
}
_BEDROCK_USER_ONLY: Final = ("document", "toolResult", "guardContent", "searchResult")
_BEDROCK_MODEL_ONLY: Final = ("toolUse", "reasoningContent", "citationsContent")


def _bedrock_faults(messages: list[Json]) -> list[str]:
    """Roles alternate, the user first; results come first in the message after their calls; nothing is empty.

    A message of the system may stand between two others. The check does not know the model: some refuse text
    beside tool results, or an assistant message at the end."""
    faults: list[str] = []
    called: list[str] = []
    names: list[str] = []
    expected: tuple[str, ...] = ("user", "system")
    for at, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        if role not in expected:
            faults.append(f"[{at}] {role!r} where {expected[0]} is expected")
        expected = (
            _BEDROCK_NEXT_ROLES.get(str(role), ("user", "system")) if at or role != "system" else expected
        )
        if message.keys() != {"role", "content"}:
            faults.append(f"[{at}] fields {sorted(message)}")
        if not isinstance(content, list) or not content or not all(map(_is_bedrock_block, content)):
            faults.append(f"[{at}] content is {_shape(content)}, or a block has not one kind")
            called = []
            continue
        faults += [*_bedrock_block_faults(at, role, content), *_bedrock_result_faults(at, content, called)]
        called = [str(call.get("toolUseId")) for call in _inner(content, "toolUse") if "type" not in call]
        if len(called) != len(set(called)):
            faults.append(f"[{at}] an id twice in {called}")
        names += [str(_field(document, "name")).lower() for document in _bedrock_documents(content)]
    if len(names) != len(set(names)):
        faults.append("[end] two documents have the same name")
    return [*faults, f"[end] {called} have no result"] if called else faults


def _is_bedrock_block(block: Any) -> bool:
    return isinstance(block, dict) and len(block) == 1


def _inner(blocks: list[Json], kind: str) -> list[Json]:
    """Return the values of the blocks of one kind."""
    return [block[kind] for block in blocks if isinstance(block.get(kind), dict)]


def _bedrock_result_faults(at: int, blocks: list[Json], called: list[str]) -> list[str]:
    results = [str(one.get("toolUseId")) for one in _inner(blocks, "toolResult") if "type" not in one]
    faults = [f"[{at}] results {results} for calls {called}"] if sorted(results) != sorted(called) else []
    said = [block for block in blocks if not is_cache_point(block)]
    if any("toolResult" not in block for block in said[: len(results)]):
        faults.append(f"[{at}] results do not come first")
    return faults


def _bedrock_block_faults(at: int, role: object, blocks: list[Json]) -> list[str]:
    kinds = [next(iter(block)) for block in blocks]
    wrong = _BEDROCK_USER_ONLY if role == "assistant" else _BEDROCK_MODEL_ONLY
    faults = [
        f"[{at}] {kind} said by {role}"
        for kind, block in zip(kinds, blocks, strict=True)
        if kind in wrong and _field(block[kind], "type") is None
    ]
    for call in _inner(blocks, "toolUse"):
        faults += _bedrock_call_faults(at, call)
    for result in _inner(blocks, "toolResult"):
        inner = result.get("content")
        if not isinstance(inner, list) or not all(map(_is_bedrock_block, inner)):
            faults.append(f"[{at}] a result with content {_shape(inner)}")
        elif any(map(_is_blank, inner)) or not all(isinstance(one.get("json", {}), dict) for one in inner):
            faults.append(f"[{at}] an empty text in a result, or JSON that is no object")
    names = [str(_field(document, "name")) for document in _bedrock_documents(blocks)]
    if any(map(_is_blank, blocks)):
        faults.append(f"[{at}] an empty text")
    if "document" in kinds and "text" not in kinds:
        faults.append(f"[{at}] a document without a text")
    if not all(map(_BEDROCK_DOCUMENT_NAME.fullmatch, names)):
        faults.append(f"[{at}] an illegal name of a document")
    if role == "assistant" and kinds[-1] == "reasoningContent":
        faults.append(f"[{at}] {_LAST_THINKING[1]}")
    return faults


def _bedrock_call_faults(at: int, call: Json) -> list[str]:
    id, name = str(call.get("toolUseId")), str(call.get("name"))
    is_legal = _BEDROCK_ID.fullmatch(id) and _BEDROCK_TOOL_NAME.fullmatch(name)
    if is_legal and isinstance(call.get("input"), dict):
        return []
    return [f"[{at}] toolUse {id!r} with an illegal id or name, or with input {_shape(call.get('input'))}"]


def _bedrock_documents(blocks: list[Json]) -> list[Json]:
    inner = [result.get("content") for result in _inner(blocks, "toolResult")]
    nested = [block for content in inner if isinstance(content, list) for block in content]
    return _inner([block for block in (*blocks, *nested) if isinstance(block, dict)], "document")


def _is_blank(block: Json) -> bool:
    return "text" in block and not str(block["text"] or "").strip()


def _ttl_faults(messages: list[Any], system: Any, tools: Any) -> list[str]:
    """A mark may not live longer than one before it, in the order tools, system, messages."""
    contents = [_field(message, "content") for message in messages]
    lists = [blocks for blocks in (tools, system, *contents) if isinstance(blocks, list)]
    points = [block[CACHE_POINT] for blocks in lists for block in blocks if is_cache_point(block)]
    is_long = [point.get("ttl") == "1h" for point in points]
    return ["a cachePoint of 1h after a shorter one"] if is_long != sorted(is_long, reverse=True) else []


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
    "bedrock": _bedrock_faults,
    "gemini": _gemini_faults,
}
