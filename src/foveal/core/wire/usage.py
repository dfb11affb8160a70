"""Token usage that a provider reports for a call, as a `Used` fact.

The fact separates uncached input, cache read, cache write, output and reasoning. OpenAI includes cached tokens
in the prompt count, Anthropic excludes them, and the field names differ. Counts that are missing, negative,
too large or not numbers are read as 0, so a malformed report cannot break the totals.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from foveal.core.log.events import Used
from foveal.errors import BadSetting

MAX_REPORTED_TOKENS: Final = 10**9
"""A larger count is read as 0."""


def read_usage(
    report: object,
    *,
    model: str = "",
    units: int = 0,
    predicted: int = 0,
    unreduced: int = 0,
    until: int = 0,
) -> Used | None:
    """Return the usage in a provider's report, or None if it has no prompt tokens, as after an aborted reply.

    `report` is a usage object or dict of any of the three dialects, or a whole reply or stream event that has
    one.
    """
    if isinstance(report, str | bytes | int | float):
        raise BadSetting("usage", report, "a provider's usage object or dict, or the reply that has one")
    fields = _fields(report)
    for inner in ("response", "message", "usage"):  # stream events and whole replies
        if not _has_counts(fields) and fields.get(inner) is not None:
            fields = _fields(fields[inner])
    counts = _anthropic(fields) if _is_anthropic(fields) else _openai(fields)
    fact = Used(**counts, model=model, units=units, predicted=predicted, unreduced=unreduced, until=until)
    return fact if fact.prompt > 0 else None


def _fields(value: object) -> Mapping[str, Any]:
    """Return the fields of a dict, a pydantic model, a named tuple or any other object."""
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


def _has_counts(fields: Mapping[str, Any]) -> bool:
    return "prompt_tokens" in fields or "input_tokens" in fields


def _is_anthropic(fields: Mapping[str, Any]) -> bool:
    return "input_tokens" in fields and "input_tokens_details" not in fields


def _anthropic(fields: Mapping[str, Any]) -> dict[str, int]:
    return {
        "input": _count(fields, "input_tokens"),
        "cache_read": _count(fields, "cache_read_input_tokens"),
        "cache_write": _count(fields, "cache_creation_input_tokens"),
        "output": _count(fields, "output_tokens"),
    }


def _openai(fields: Mapping[str, Any]) -> dict[str, int]:
    """Return the counts of Chat, Responses and compatible APIs, where cached tokens are part of the prompt."""
    prompt = _count(fields, "prompt_tokens") or _count(fields, "input_tokens")
    details = _fields(fields.get("prompt_tokens_details") or fields.get("input_tokens_details") or {})
    answer = _fields(fields.get("completion_tokens_details") or fields.get("output_tokens_details") or {})
    read = _count(details, "cached_tokens") or _count(fields, "prompt_cache_hit_tokens")
    read = min(read, prompt)
    written = _count(details, "cache_write_tokens") or _count(details, "cache_creation_tokens")
    write = min(written or _count(fields, "cache_creation_input_tokens"), prompt - read)
    return {
        "input": prompt - read - write,
        "cache_read": read,
        "cache_write": write,
        "output": _count(fields, "completion_tokens") or _count(fields, "output_tokens"),
        "reasoning": _count(answer, "reasoning_tokens"),
    }


def _count(fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_REPORTED_TOKENS:
        return 0
    return int(value)
