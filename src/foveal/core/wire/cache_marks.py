"""Cache marks: the `cache_control` fields of Anthropic messages and the `cachePoint` blocks of Bedrock's.

A mark tells the provider where to end a cached prefix. It is not part of the content: two messages that differ
only in their marks have the same text and read the same cache entry. Where new marks go is decided by
`foveal.providers.anthropic.add_breakpoints`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

CACHE_MARK: Final = "cache_control"
"""Name of Anthropic's field."""
CACHE_POINT: Final = "cachePoint"
"""The one field of a Bedrock block that is a mark."""
MAX_CACHE_MARKS: Final = 4
"""Marks that a request may have; the provider refuses more."""
_CACHE_MARK_JSON: Final = b'"cache_control"'
_CACHE_POINT_FIELDS: Final = frozenset({"type", "ttl"})


def strip_cache_marks(value: Any, *, drop_nulls: bool = False) -> Any:
    """Return a copy of a JSON value without cache marks and, if `drop_nulls` is set, without null fields."""
    if isinstance(value, dict):
        return {
            name: strip_cache_marks(inner, drop_nulls=drop_nulls)
            for name, inner in value.items()
            if name != CACHE_MARK and not (drop_nulls and inner is None)
        }
    if isinstance(value, list):
        return [
            strip_cache_marks(inner, drop_nulls=drop_nulls) for inner in value if not is_cache_point(inner)
        ]
    return value


def limit_cache_marks(messages: Sequence[Any], max_marks: int) -> list[Any]:
    """Return the messages with at most `max_marks` marks, those of the newest messages: there the provider wrote
    its cache last. A message keeps all of its marks or none."""
    limited: list[Any] = []
    for message in reversed(messages):
        marks = count_cache_marks(message)
        is_kept = marks <= max_marks
        limited.append(message if is_kept else strip_cache_marks(message))
        max_marks -= marks if is_kept else 0
    return limited[::-1]


def has_cache_mark(block: Mapping[str, Any]) -> bool:
    """Return whether a block, a tool or a message has a mark of its own, or is one."""
    return CACHE_MARK in block or is_cache_point(block)


def is_cache_point(block: object) -> bool:
    """Return whether a block is a mark of Bedrock and nothing else."""
    if not isinstance(block, dict) or len(block) != 1:
        return False
    point = block.get(CACHE_POINT)
    return isinstance(point, dict) and "type" in point and _CACHE_POINT_FIELDS.issuperset(point)


def count_cache_marks(value: Any) -> int:
    """Count the marks of messages, of tools or of a system text, also inside the content of tool results."""
    if isinstance(value, list):
        return sum(map(count_cache_marks, value))
    if isinstance(value, dict):
        inner = sum(count_cache_marks(item) for name, item in value.items() if name == "content")
        return inner + has_cache_mark(value)
    return 0


def count_cache_marks_in_json(text: bytes) -> int:
    """Count the marks in JSON text without decoding it; a string equal to the field name counts as well."""
    return text.count(_CACHE_MARK_JSON)
