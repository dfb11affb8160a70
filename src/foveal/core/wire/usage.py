"""What a provider reports for a call, normalised: {uncached input, cache read, cache write, output, reasoning}.

OpenAI counts cached tokens inside the prompt, Anthropic beside it; both spell everything their own way. Numbers
that are missing, negative or not numbers count as 0: a broken report must not break an account.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foveal.core.log.events import Used
from foveal.errors import BadSetting

LARGEST = 10**9


def used(
    report: object, *, model: str = "", units: int = 0, predicted: int = 0, unreduced: int = 0
) -> Used | None:
    """The usage object or dict of any of the three dialects, or a whole reply that has one, as a fact; None
    when it says nothing about the prompt (an aborted reply, say)."""
    if isinstance(report, str | bytes | int | float):
        raise BadSetting("usage", report, "a provider's usage object or dict, or the reply that has one")
    fields = _fields(report)
    for inner in ("response", "message", "usage"):  # events of a stream, and whole replies
        if not _known(fields) and fields.get(inner) is not None:
            fields = _fields(fields[inner])
    kinds = _anthropic(fields) if _is_anthropic(fields) else _openai(fields)
    fact = Used(**kinds, model=model, units=units, predicted=predicted, unreduced=unreduced)
    return fact if fact.prompt > 0 else None


def _fields(value: object) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        dumped = dump()
        return dumped if isinstance(dumped, Mapping) else {}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        named: Mapping[str, Any] = value._asdict()
        return named
    slots = getattr(type(value), "__slots__", ())
    return getattr(value, "__dict__", None) or {name: getattr(value, name, None) for name in slots}


def _known(fields: Mapping[str, Any]) -> bool:
    return "prompt_tokens" in fields or "input_tokens" in fields


def _is_anthropic(fields: Mapping[str, Any]) -> bool:
    return "input_tokens" in fields and "input_tokens_details" not in fields


def _anthropic(fields: Mapping[str, Any]) -> dict[str, int]:
    return {
        "input": _number(fields, "input_tokens"),
        "cache_read": _number(fields, "cache_read_input_tokens"),
        "cache_write": _number(fields, "cache_creation_input_tokens"),
        "output": _number(fields, "output_tokens"),
    }


def _openai(fields: Mapping[str, Any]) -> dict[str, int]:
    """Chat and Responses, and those who speak like them: cached tokens are part of the prompt."""
    prompt = _number(fields, "prompt_tokens") or _number(fields, "input_tokens")
    details = _fields(fields.get("prompt_tokens_details") or fields.get("input_tokens_details") or {})
    answer = _fields(fields.get("completion_tokens_details") or fields.get("output_tokens_details") or {})
    read = _number(details, "cached_tokens") or _number(fields, "prompt_cache_hit_tokens")
    read = min(read, prompt)
    written = _number(details, "cache_write_tokens") or _number(details, "cache_creation_tokens")
    write = min(written or _number(fields, "cache_creation_input_tokens"), prompt - read)
    return {
        "input": prompt - read - write,
        "cache_read": read,
        "cache_write": write,
        "output": _number(fields, "completion_tokens") or _number(fields, "output_tokens"),
        "reasoning": _number(answer, "reasoning_tokens"),
    }


def _number(fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LARGEST:
        return 0
    return int(value)
