"""Checks that a provider would accept a list of messages, independent of the code under test.

Each function returns the faults of a list of messages as texts; a legal list has none.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from foveal.core.log import AnyFact, Call, ModelSaid, ToolReturned, calls_of

_ID = re.compile(r"^[a-zA-Z0-9_-]+$")


# ── OpenAI chat ──────────────────────────────────────────────────────────────────────────────────────────


def check_chat(messages: list[dict[str, Any]]) -> list[str]:
    """Every call has one tool message before any other message; no result lacks its call."""
    faults: list[str] = []
    waiting: Counter[str] = Counter()
    for index, message in enumerate(messages):
        role = message.get("role")
        if role in ("tool", "function"):
            _chat_result(index, message, waiting, faults)
            continue
        if waiting:
            faults.append(f"[{index}] {role} comes before the results of {sorted(waiting)}")
            waiting.clear()
        if role == "assistant":
            waiting = _chat_assistant(index, message, faults)
        elif role in ("system", "developer", "user"):
            _chat_content(index, message.get("content"), faults, text_only=role != "user")
        else:
            faults.append(f"[{index}] unknown role {role!r}")
    if waiting:
        faults.append(f"[end] {sorted(waiting)} have no result")
    return faults + _json_faults(messages)


def _chat_result(index: int, message: dict[str, Any], waiting: Counter[str], faults: list[str]) -> None:
    key = message.get("tool_call_id") if message["role"] == "tool" else message.get("name")
    _chat_content(index, message.get("content"), faults, text_only=True)
    if not isinstance(key, str) or waiting[key] <= 0:
        faults.append(f"[{index}] result of {key!r}, which has no call")
        return
    waiting[key] -= 1
    if not waiting[key]:
        del waiting[key]


def _chat_assistant(index: int, message: dict[str, Any], faults: list[str]) -> Counter[str]:
    waiting: Counter[str] = Counter()
    calls = message.get("tool_calls")
    if calls is not None and (not isinstance(calls, list) or not calls):
        faults.append(f"[{index}] tool_calls is {calls!r}")
        calls = []
    for call in calls or []:
        waiting[call.get("id")] += 1
        _chat_call(index, call, faults)
    legacy = message.get("function_call")
    if legacy is not None:
        waiting[legacy["name"]] += 1
    spoken = calls or legacy or message.get("refusal") or message.get("audio")
    if message.get("content") is not None or not spoken:
        _chat_content(index, message.get("content"), faults, text_only=True)
    return waiting


def _chat_call(index: int, call: dict[str, Any], faults: list[str]) -> None:
    kind = call.get("type")
    body = call.get(kind) if isinstance(kind, str) else None
    field = "input" if kind == "custom" else "arguments"
    if not isinstance(call.get("id"), str) or not call["id"]:
        faults.append(f"[{index}] a call without an id")
    if kind not in ("function", "custom") or not isinstance(body, dict):
        faults.append(f"[{index}] a call of type {kind!r} without a body")
    elif not isinstance(body.get("name"), str) or not isinstance(body.get(field), str):
        faults.append(f"[{index}] a call without name or {field}")


def _chat_content(index: int, content: object, faults: list[str], *, text_only: bool) -> None:
    if isinstance(content, str):
        return
    if not isinstance(content, list) or not content:
        faults.append(f"[{index}] content is {content!r}")
        return
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(kind, str):
            faults.append(f"[{index}] a part without a type")
        elif text_only and kind not in ("text", "refusal"):
            faults.append(f"[{index}] {kind} where only text is allowed")


# ── OpenAI Responses ─────────────────────────────────────────────────────────────────────────────────────

_CLIENT_CALLS = ("function", "custom_tool", "local_shell", "shell", "computer", "apply_patch")
_NOT_FROM_MODEL = {*(f"{call_kind}_call_output" for call_kind in _CLIENT_CALLS), "mcp_approval_response"}


def check_responses(items: list[dict[str, Any]]) -> list[str]:
    """Every client-run call has one later output of its own kind; an item of the model follows reasoning."""
    faults: list[str] = []
    waiting: Counter[tuple[str, str]] = Counter()
    shells = {item.get("id"): item.get("call_id") for item in items if item.get("type") == "local_shell_call"}
    for index, item in enumerate(items):
        kind = item.get("type") or ("message" if "role" in item else "item_reference")
        call_kind = kind.removesuffix("_output").removesuffix("_call")
        if kind == "message":
            _responses_message(index, item, faults)
        elif kind == "reasoning":
            _responses_reasoning(index, items, faults)
        elif call_kind in _CLIENT_CALLS and kind.endswith("_output"):
            key = (call_kind, item.get("call_id") or shells.get(item.get("id")) or "")
            _responses_output(index, item, faults)
            if waiting[key] <= 0:
                faults.append(f"[{index}] output of {key}, which has no call")
            waiting[key] -= 1
        elif call_kind in _CLIENT_CALLS:
            waiting[(call_kind, item.get("call_id") or "")] += 1
            _responses_call(index, item, call_kind, faults)
    faults += [f"[end] {key} has no output" for key, count in waiting.items() if count > 0]
    return faults + _json_faults(items)


def _responses_message(index: int, item: dict[str, Any], faults: list[str]) -> None:
    role, content = item.get("role"), item.get("content")
    if role not in ("user", "assistant", "system", "developer"):
        faults.append(f"[{index}] unknown role {role!r}")
    if isinstance(content, str):
        return
    if not isinstance(content, list) or not content:
        faults.append(f"[{index}] content is {content!r}")
        return
    allowed = (
        ("output_text", "refusal") if role == "assistant" else ("input_text", "input_image", "input_file")
    )
    faults += [f"[{index}] {p.get('type')!r} said by {role}" for p in content if p.get("type") not in allowed]


def _responses_reasoning(index: int, items: list[dict[str, Any]], faults: list[str]) -> None:
    after = items[index + 1] if index + 1 < len(items) else {"role": "user"}
    by_model = after.get("role", "assistant") == "assistant" and after.get("type") not in _NOT_FROM_MODEL
    if not by_model:
        faults.append(f"[{index}] reasoning without the item that follows it")


def _responses_call(index: int, item: dict[str, Any], call_kind: str, faults: list[str]) -> None:
    if not isinstance(item.get("call_id"), str) or not item["call_id"]:
        faults.append(f"[{index}] a call without call_id")
    field = {"function": "arguments", "custom_tool": "input"}.get(call_kind)
    if field and not (isinstance(item.get("name"), str) and isinstance(item.get(field), str)):
        faults.append(f"[{index}] a call without name or {field}")


def _responses_output(index: int, item: dict[str, Any], faults: list[str]) -> None:
    output = item.get("output")
    match item["type"]:
        case "computer_call_output":
            good = isinstance(output, dict) and output.get("type") == "computer_screenshot"
        case "shell_call_output":
            good = isinstance(output, list) and all(
                {"stdout", "stderr", "outcome"} <= o.keys() for o in output
            )
        case "local_shell_call_output":
            good = isinstance(output, str)
        case "apply_patch_call_output":
            good = item.get("status") in ("completed", "failed") and isinstance(output, str | None)
        case _:
            good = isinstance(output, str) or (isinstance(output, list) and bool(output))
    if not good:
        faults.append(f"[{index}] {item['type']} with output {output!r:.60}")


# ── Anthropic ────────────────────────────────────────────────────────────────────────────────────────────

_USER_ONLY = ("image", "document", "search_result", "tool_result")
_MODEL_ONLY = ("thinking", "redacted_thinking", "tool_use", "server_tool_use")


def check_anthropic(messages: list[dict[str, Any]]) -> list[str]:
    """Roles alternate, the user first; results come first in the message after their calls; nothing is empty."""
    faults: list[str] = []
    called: list[str] = []
    expected = "user"
    for index, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        if role != expected:
            faults.append(f"[{index}] {role!r} where {expected} is expected")
        expected = "user" if role == "assistant" else "assistant"
        if message.keys() != {"role", "content"}:
            faults.append(f"[{index}] fields {sorted(message)}")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if not isinstance(blocks, list) or not blocks:
            faults.append(f"[{index}] content is {content!r}")
            continue
        _anthropic_blocks(index, role, blocks, faults)
        _anthropic_results(index, blocks, called, faults)
        called = [block["id"] for block in blocks if block.get("type") == "tool_use"]
        if len(called) != len(set(called)):
            faults.append(f"[{index}] an id twice in {called}")
    if called:
        faults.append(f"[end] {called} have no result")
    return faults + _json_faults(messages)


def _anthropic_results(index: int, blocks: list[Any], called: list[str], faults: list[str]) -> None:
    results = [block["tool_use_id"] for block in blocks if block.get("type") == "tool_result"]
    if sorted(results) != sorted(called):
        faults.append(f"[{index}] results {results} for calls {called}")
    if any(block.get("type") != "tool_result" for block in blocks[: len(results)]):
        faults.append(f"[{index}] results do not come first")


def _anthropic_blocks(index: int, role: object, blocks: list[Any], faults: list[str]) -> None:
    wrong = _USER_ONLY if role == "assistant" else _MODEL_ONLY
    for block in blocks:
        kind = block.get("type")
        if kind in wrong:
            faults.append(f"[{index}] {kind} said by {role}")
        if kind == "text" and not block["text"].strip():
            faults.append(f"[{index}] an empty text")
        if kind == "tool_use" and not (_ID.match(block["id"]) and isinstance(block["input"], dict)):
            faults.append(f"[{index}] tool_use {block['id']!r} with input {block['input']!r:.40}")
        inner = block.get("content") if kind == "tool_result" else None
        if isinstance(inner, list) and any(b["type"] == "text" and not b["text"].strip() for b in inner):
            faults.append(f"[{index}] an empty text in a result")
    if blocks[-1].get("type") in ("thinking", "redacted_thinking"):
        faults.append(f"[{index}] ends with thinking")


def _json_faults(messages: list[dict[str, Any]]) -> list[str]:
    try:
        json.dumps(messages, allow_nan=False)
    except (TypeError, ValueError) as problem:
        return [f"not JSON: {problem}"]
    return []


# ── Facts as a view passes them to a wire ─────────────────────────────────────────────────────────────────


def with_results(facts: Iterable[AnyFact]) -> list[AnyFact]:
    """Return the facts with exactly one result right after each call; results without a call are left out."""
    steps: list[list[Any]] = []
    for fact in facts:
        if isinstance(fact, ToolReturned):
            waiting = steps[-1][1:] if steps else []
            free = [call for call in waiting if isinstance(call, Call) and call.id == fact.call_id]
            if free:
                place = next(n for n, call in enumerate(steps[-1]) if call is free[0])
                steps[-1][place] = fact
        elif isinstance(fact, ModelSaid):
            steps.append([fact, *(call for _, call in calls_of(fact.content))])
        else:
            steps.append([fact])
    return [_result_of(item) for step in steps for item in step]


def _result_of(item: Any) -> Any:
    if not isinstance(item, Call):
        return item
    return ToolReturned(call_id=item.id, content="[no result]", name=item.name, variety=item.variety)
