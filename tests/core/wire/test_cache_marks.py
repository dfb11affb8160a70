"""Cache marks: recognising, counting and removing them."""

from __future__ import annotations

import json
from typing import Any

from foveal.core.wire.cache_marks import (
    CACHE_MARK,
    count_cache_marks,
    count_cache_marks_in_json,
    has_cache_mark,
    strip_cache_marks,
)

MARK = {CACHE_MARK: {"type": "ephemeral"}}
MARKED: list[dict[str, Any]] = [
    {"role": "user", "content": [{"type": "text", "text": "one", **MARK}]},
    {
        "role": "user",
        "content": [
            {
                "type": "tool_result",
                "tool_use_id": "t1",
                "content": [{"type": "text", "text": "two", **MARK}],
                "is_error": None,
                **MARK,
            }
        ],
    },
]


def test_marks_are_removed_at_every_level_and_nothing_else() -> None:
    before = json.dumps(MARKED)
    bare = strip_cache_marks(MARKED)
    assert json.dumps(MARKED) == before
    assert count_cache_marks(bare) == count_cache_marks_in_json(json.dumps(bare).encode()) == 0
    assert bare[0] == {"role": "user", "content": [{"type": "text", "text": "one"}]}
    assert bare[1]["content"][0] == {
        "type": "tool_result",
        "tool_use_id": "t1",
        "content": [{"type": "text", "text": "two"}],
        "is_error": None,
    }
    assert strip_cache_marks("cache_control") == "cache_control"


def test_null_fields_are_removed_only_on_request() -> None:
    block = {"type": "text", "citations": None, "inner": [{"a": None, "b": 0}]}
    assert strip_cache_marks(block) == block
    assert strip_cache_marks(block, drop_nulls=True) == {"type": "text", "inner": [{"b": 0}]}


def test_marks_are_counted_in_values_and_in_json() -> None:
    assert count_cache_marks(MARKED) == 3
    assert count_cache_marks_in_json(json.dumps(MARKED).encode()) == 3
    assert count_cache_marks(None) == count_cache_marks("a system text") == 0
    assert has_cache_mark(MARKED[1]["content"][0])
    assert not has_cache_mark(MARKED[1])


def test_points_of_bedrock_are_marks() -> None:
    point = {"cachePoint": {"type": "default", "ttl": "1h"}}
    messages = [{"role": "user", "content": [{"text": "a"}, point, {"text": "b"}]}]
    assert count_cache_marks(messages) == 1
    assert has_cache_mark(point)
    assert strip_cache_marks(messages) == [{"role": "user", "content": [{"text": "a"}, {"text": "b"}]}]
    assert count_cache_marks([{"toolSpec": {"name": "f"}}, point]) == 1


def test_data_with_a_field_like_a_point_is_not_a_mark() -> None:
    for data in ({"cachePoint": 1}, {"cachePoint": {"type": "x", "id": 1}}, {"cachePoint": {}, "a": 1}):
        assert not has_cache_mark(data)
        assert strip_cache_marks([data]) == [data]


def test_a_text_that_quotes_the_field_is_not_a_mark() -> None:
    quoting = [{"role": "user", "content": 'use "cache_control" here'}]
    assert count_cache_marks_in_json(json.dumps(quoting).encode()) == 0
    assert strip_cache_marks(quoting) == quoting
