"""Token usage that a provider or framework reports, as a `Used` fact.

1. The fields are found by name, in dicts and objects, in snake_case and camelCase, in a usage report or in the
   reply that holds it.
2. Cached tokens are part of the prompt count (OpenAI, Gemini, LangChain, pydantic-ai, litellm) or stand beside it
   (Anthropic, Bedrock). Where both occur under one name (strands, agent-framework), the total decides.
3. Of a reply in several iterations (Anthropic), the last message is the size; the others are in `Used.others`.
4. A count that is missing, negative, too large or not a number is read as 0. A report without any known count, one
   whose count of the prompt is malformed, and the sum of several requests raise `BadSetting`.

The prompt is the size of the request. Gemini's `tool_use_prompt_token_count` is not part of it, because tools that
Google runs produce those tokens while the model answers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from foveal.core.log.events import Used
from foveal.errors import BadSetting, shown_value

MAX_REPORTED_TOKENS: Final = 10**9
"""A larger count is read as 0."""
MAX_REPORT_LEVELS: Final = 5
"""Levels of objects in which the usage of a reply is searched."""
_MAX_NAMED_FIELDS: Final = 12
"""Fields that an error names."""
_MAX_SHOWN_CHARS: Final = 40
"""Characters of a value that an error shows: it may be the text of an answer."""

_PROMPT_INCLUDES_CACHE: Final = ("prompt_tokens", "prompt_token_count", "prompt_eval_count")
_INPUT: Final = (*_PROMPT_INCLUDES_CACHE, "input_tokens", "input_token_count")
_OUTPUT: Final = (
    "completion_tokens", "output_tokens", "output_token_count", "eval_count", "candidates_token_count",
    "response_token_count",
)  # fmt: skip
_TOTAL: Final = ("total_tokens", "total_token_count")
_CACHE_BESIDE: Final = (
    "cache_read_input_tokens", "cache_creation_input_tokens", "cache_write_input_tokens",
    "cache_read_input_token_count", "cache_creation_input_token_count",
)  # fmt: skip
"""Names of cached tokens that providers count beside the input, if no details of the input are given."""
_CACHE_READ: Final = (
    "cache_read_input_tokens", "cached_content_token_count", "cache_read_tokens", "cache_read_input_token_count",
    "prompt_cache_hit_tokens", "cached_prompt_tokens",
)  # fmt: skip
_CACHE_WRITE: Final = (
    "cache_creation_input_tokens", "cache_write_input_tokens", "cache_write_tokens",
    "cache_creation_input_token_count", "cache_creation_tokens",
)  # fmt: skip
_REASONING: Final = ("thoughts_token_count", "reasoning_output_token_count", "reasoning_tokens")
_INPUT_DETAILS: Final = ("prompt_tokens_details", "input_tokens_details", "input_token_details")
_OUTPUT_DETAILS: Final = (
    "completion_tokens_details", "output_tokens_details", "output_token_details", "details",
)  # fmt: skip
_DETAIL_READ: Final = ("cached_tokens", "cache_read", "priority_cache_read", "flex_cache_read")
_DETAIL_WRITE: Final = (
    "cache_write_tokens", "cache_creation_tokens", "cache_creation", "priority_cache_creation",
    "flex_cache_creation",
)  # fmt: skip
_DETAIL_REASONING: Final = (
    "reasoning_tokens", "thinking_tokens", "reasoning", "priority_reasoning", "flex_reasoning",
)  # fmt: skip
_WRITE_LIFETIMES: Final = ("cache_creation", "cache_creation_token_details", "cache_write_tokens_details")
"""Objects that split the written tokens by the lifetime of the cache."""
_HALF_DAY: Final = "ttl_12h_tokens"
_HOUR: Final = "ephemeral_1h_input_tokens"
_MINUTES: Final = ("ephemeral_5m_input_tokens", "ttl_30m_tokens")

_USAGE_FIELDS: Final = ("usage", "usage_metadata", "usage_details", "token_usage")
_REPLY_FIELDS: Final = ("response", "message", "metadata", "raw", "meta", "model_response")
"""Fields of stream events and of frameworks' replies that hold the reply of the provider."""
_NO_REPORT: Final = (str, bytes, int, float, list, tuple)
"""Types of values that hold no usage."""
_ACCEPTED: Final = (
    "the usage that one reply reports, or the reply itself: of OpenAI, Anthropic, Gemini, Bedrock, Ollama, "
    "LangChain, pydantic-ai, litellm, openai-agents, strands or agent-framework, or a dict with `input_tokens` "
    "and `output_tokens`"
)
_MISS_REASON: Final = re.compile(r"[a-z][a-z0-9_]{0,59}")


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

    `report` is a usage object or dict, or a whole reply or stream event that has one; None, or a reply whose usage
    is None, has no usage. Raises `BadSetting` for a report that is not understood, and for a sum of requests."""
    usage = _find_usage(report)
    if usage is None:
        return None
    counts = _read_iterations(_single_request(usage))
    fact = replace(counts, **_cache_miss(report), **_dropped_thinking(report))
    if fact.prompt <= 0:
        return None
    return replace(fact, model=model, units=units, predicted=predicted, unreduced=unreduced, until=until)


def usage_or_none(report: object, *, model: str = "") -> Used | None:
    """Return the usage in a report, or None if it is not understood, where a report of an unknown program must not
    stop the caller."""
    try:
        return read_usage(report, model=model)
    except BadSetting:
        return None


def has_usage(report: object) -> bool:
    """Return whether a report holds usage, whatever its counts; raises `BadSetting` if it is not understood."""
    return _find_usage(report) is not None


# ── Finding the counts ───────────────────────────────────────────────────────────────────────────────────


def _find_usage(report: object) -> object | None:
    """Return the object that has the counts, None if the report says that there is no usage."""
    empty = report is None
    for level in _levels(report):
        if _has_counts(level):
            return level
        empty = empty or any(_has(level, name) and _get(level, name) is None for name in _USAGE_FIELDS)
    if empty:
        return None
    raise BadSetting("usage", _description(report), _ACCEPTED)


def _levels(report: object) -> Iterator[object]:
    """Yield the report and the objects in it that may have the counts, the outermost first."""
    found = [report]
    for _ in range(MAX_REPORT_LEVELS):
        yield from found
        found = [
            inner
            for level in found
            for name in (*_USAGE_FIELDS, *_REPLY_FIELDS)
            if (inner := _get(level, name)) is not None and not isinstance(inner, _NO_REPORT)
            if type(inner) is dict or not callable(inner)
        ]
        if not found:
            return


def _single_request(usage: object) -> object:
    """Return the usage of the last request if the report is a sum that lists them; raises `BadSetting` if not."""
    requests = max(_first(usage, ("requests", "successful_requests")), 0)
    entries = _get(usage, "request_usage_entries")
    if requests <= 1:
        return usage
    if isinstance(entries, Sequence) and entries:
        return entries[-1]
    problem = f"the usage of one request; this is the sum of {requests:,}: observe each reply"
    raise BadSetting("usage", _description(usage), problem)


def _description(report: object) -> str:
    if isinstance(report, _NO_REPORT):
        return f"{shown_value(report)[:_MAX_SHOWN_CHARS]} ({type(report).__name__})"
    names = sorted(map(str, report)) if isinstance(report, Mapping) else _attributes(report)
    shown = ", ".join(name[:40] for name in names[:_MAX_NAMED_FIELDS])
    more = f" and {len(names) - _MAX_NAMED_FIELDS} others" if len(names) > _MAX_NAMED_FIELDS else ""
    fields = f"with the fields {shown}{more}" if names else "without fields"
    return f"{type(report).__name__} {fields}"


def _attributes(report: object) -> list[str]:
    slots = getattr(type(report), "__slots__", ())
    names = [*getattr(report, "__dict__", {}), *((slots,) if isinstance(slots, str) else slots)]
    return sorted(name for name in names if not name.startswith("_"))


# ── Reading the counts ───────────────────────────────────────────────────────────────────────────────────


def _read_iterations(usage: object) -> Used:
    """Return the counts of the last iteration that answers, with the others beside it. The counts around
    Anthropic's iterations are a sum: they say neither the size of the context nor what a compaction cost."""
    found = _get(usage, "iterations")
    entries = [entry for entry in found if _has_counts(entry)] if isinstance(found, list | tuple) else []
    answers = [at for at, entry in enumerate(entries) if _get(entry, "type") == "message"]
    counts = list(map(_read_counts, entries))
    if answers:
        last = counts.pop(answers[-1])
        return replace(last, others=tuple(counts)) if last.prompt else _read_counts(usage)
    whole = _read_counts(usage)
    if counts and not whole.prompt:  # the reply to a request for a compaction has no other counts
        whole = counts.pop()
    return replace(whole, others=tuple(counts))


def _read_counts(usage: object) -> Used:
    prompt, output = _prompt(usage), _first(usage, _OUTPUT)
    details, answer = _object(usage, _INPUT_DETAILS), _object(usage, _OUTPUT_DETAILS)
    read = _first(details, _DETAIL_READ) or _first(usage, _CACHE_READ)
    written = _written_by_lifetime(usage, details)
    write = max(_first(details, _DETAIL_WRITE) or _first(usage, _CACHE_WRITE), sum(written))
    reasoning = _first(answer, _DETAIL_REASONING) or _first(usage, _REASONING)
    if _is_reasoning_beside(usage, prompt=prompt, output=output, reasoning=reasoning):
        output += reasoning
    if not _is_cache_beside(usage, details, prompt=prompt, output=output, cached=read + write):
        read = min(read, prompt)
        write = min(write, prompt - read)
        prompt -= read + write
    return Used(
        input=prompt,
        cache_read=read,
        cache_write=write,
        cache_write_1h=min(written.hour, write),
        cache_write_12h=min(written.half_day, write),
        output=output,
        reasoning=reasoning,
    )


def _prompt(usage: object) -> int:
    """Return the count of the prompt, 0 if there is none; raises `BadSetting` if none of those given is a count."""
    count = _first(usage, _INPUT)
    given = [] if count else [(name, _get(usage, name)) for name in _INPUT]
    for name, value in given:
        if value is not None and not _is_zero(value):
            found = (
                value if isinstance(value, int | float) else type(value).__name__
            )  # never the text of a report
            expected = f"a report whose `{name}` is a whole number up to {MAX_REPORTED_TOKENS:,}, not {found}"
            raise BadSetting("usage", _description(usage), expected)
    return count


def _is_zero(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1


def _is_cache_beside(usage: object, details: object, *, prompt: int, output: int, cached: int) -> bool:
    """Return whether cached tokens are counted beside the input, and not as a part of it."""
    if _first(usage, _PROMPT_INCLUDES_CACHE) or details is not None or not _has(usage, *_CACHE_BESIDE):
        return False
    total = _first(usage, _TOTAL)  # Anthropic gives none
    return not total or cached > prompt or total == prompt + output + cached


def _is_reasoning_beside(usage: object, *, prompt: int, output: int, reasoning: int) -> bool:
    """Return whether reasoning is not part of the output: so in Gemini's counts, and in copies of them."""
    if _has(usage, "thoughts_token_count"):
        return True
    return reasoning > 0 and _first(usage, _TOTAL) == prompt + output + reasoning


class _CacheWrites(NamedTuple):
    """Tokens that were written to the cache, by how long they stay there at least."""

    half_day: int
    hour: int
    minutes: int


def _written_by_lifetime(usage: object, details: object) -> _CacheWrites:
    split = _object(usage, _WRITE_LIFETIMES) or _object(details, _WRITE_LIFETIMES) or details
    hour = _first(split, (_HOUR,)) or _first(usage, ("cache_write_1h_tokens",))
    minutes = _first(split, _MINUTES)
    entries = _get(usage, "cache_details")  # Bedrock's
    for entry in entries if isinstance(entries, list | tuple) else ():
        tokens = _first(entry, ("input_tokens",))
        if _get(entry, "ttl") == "1h":
            hour += tokens
        else:
            minutes += tokens
    return _CacheWrites(_first(split, (_HALF_DAY,)), hour, minutes)


def _cache_miss(report: object) -> dict[str, Any]:
    """Return the provider's diagnosis of a cache that was not read, if a reply has one."""
    for level in _levels(report):
        anthropic = _get(_get(level, "diagnostics"), "cache_miss_reason")
        openai = _get(level, "prompt_cache_diagnostics")
        reason = _get(anthropic, "type") or _get(openai, "reason")
        if isinstance(reason, str) and _MISS_REASON.fullmatch(reason):
            tokens = _first(anthropic or openai, ("cache_missed_input_tokens", "cache_missed_tokens"))
            return {"cache_miss": reason, "cache_missed": tokens}
    return {}


def _dropped_thinking(report: object) -> dict[str, Any]:
    """Return how many thinking blocks Anthropic has left out of the request, if a reply says so."""
    for level in _levels(report):
        listed = _get(level, "input_transformations")
        if isinstance(listed, list):
            dropped = sum(_get(entry, "type") == "thinking_dropped" for entry in listed)
            return {"dropped_thinking": dropped} if dropped else {}
    return {}


# ── Fields of dicts and objects ──────────────────────────────────────────────────────────────────────────


def _get(thing: object, name: str) -> object:
    """Return a field by its name in snake_case or camelCase, None if it is missing."""
    if type(thing) is dict:  # most reports, and every line of a transcript
        found = thing.get(name)
        return thing.get(_camel_case(name)) if found is None else found
    if thing is None:
        return None
    found = None
    with suppress(Exception):  # a property of a foreign object may raise anything
        found = thing.get(name) if isinstance(thing, Mapping) else getattr(thing, name, None)
        if found is None and isinstance(thing, Mapping) and "_" in name:
            found = thing.get(_camel_case(name))
    return found


def _has(thing: object, *names: str) -> bool:
    if type(thing) is dict:
        return any(name in thing or _camel_case(name) in thing for name in names)
    with suppress(Exception):
        if isinstance(thing, Mapping):
            return any(name in thing or _camel_case(name) in thing for name in names)
        return any(hasattr(thing, name) for name in names)
    return False


def _has_counts(thing: object) -> bool:
    if type(thing) is dict:
        return not _COUNT_FIELDS.isdisjoint(thing)
    return _has(thing, *_INPUT, *_OUTPUT)


@cache
def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def _object(thing: object, names: Sequence[str]) -> object:
    """Return the first of these fields that is an object or a dict."""
    for name in names:
        found = _get(thing, name)
        if found is not None and not isinstance(found, str | int | float | Sequence):
            return found
    return None


def _first(thing: object, names: Sequence[str]) -> int:
    """Return the first of these counts that is not 0."""
    for name in names:
        value = _get(thing, name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if 1 <= value <= MAX_REPORTED_TOKENS:
            return int(value)
    return 0


_COUNT_FIELDS: Final = frozenset(
    spelling for name in (*_INPUT, *_OUTPUT) for spelling in (name, _camel_case(name))
)
