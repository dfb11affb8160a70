"""Checks that a provider would accept a list of messages, and facts in the order of a view.

Each check returns the faults of a list of messages as texts; a legal list has none.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable
from typing import Any

from foveal.core.log import AnyFact, Call, ModelSaid, ToolReturned, calls_of
from foveal.core.wire.legality import request_faults


def check_chat(messages: list[dict[str, Any]]) -> list[str]:
    return request_faults("openai_chat", messages) + _json_faults(messages)


def check_responses(items: list[dict[str, Any]]) -> list[str]:
    return request_faults("openai_responses", items) + _json_faults(items)


def check_anthropic(messages: list[dict[str, Any]]) -> list[str]:
    return request_faults("anthropic", messages) + _json_faults(messages)


def check_gemini(contents: list[dict[str, Any]]) -> list[str]:
    """A history that ends with the model is sent so: what the user says next is the caller's to add."""
    faults = request_faults("gemini", contents)
    return [fault for fault in faults if fault != "[end] the model speaks last"] + _json_faults(contents)


def check_bedrock(messages: list[dict[str, Any]]) -> list[str]:
    return request_faults("bedrock", messages) + _json_faults(messages)


def _json_faults(messages: list[dict[str, Any]]) -> list[str]:
    try:
        json.dumps(messages, allow_nan=False, default=_as_base64)
    except (TypeError, ValueError) as problem:
        return [f"not JSON: {problem}"]
    return []


def _as_base64(value: object) -> str:
    """Return `bytes` as the text that a client of Bedrock sends."""
    if isinstance(value, bytes):
        return b64encode(value).decode()
    raise TypeError(f"of type {type(value).__name__}")


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
