"""Names, lines and values of a text: the fast ways return what the plain ones do."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveal.core.view.text_facts import (
    count_names,
    distinct_names,
    find_names,
    string_values,
    strip_line_number,
)

LINES = st.text(alphabet="0123456789²٣\t :|- abc", max_size=30)


def test_names_of_a_long_text_are_found_across_its_blocks() -> None:
    words = [f"module_{number % 700}.py: HTTPServer, plain words" for number in range(1_000)]
    for text in ("\n".join(words), " ".join(words), "x" * 9_000 + "\n" + "\n".join(words)):
        assert list(distinct_names(text)) == list(dict.fromkeys(find_names(text)))


@given(st.lists(st.text(alphabet="abcXY01_./:@#- \n", max_size=60), max_size=3))
def test_names_are_counted_as_they_are_found(texts: list[str]) -> None:
    expected = Counter(name for text in texts for name in find_names(text))
    assert list(count_names(texts).items()) == list(expected.items())


@given(LINES)
def test_a_line_number_is_stripped_with_what_separates_it(line: str) -> None:
    bare = line.strip()
    is_numbered = bare[:1].isdigit()
    assert strip_line_number(line) == (re.sub(r"\d+[\t:|-]\s*", "", bare, count=1) if is_numbered else bare)


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        ('{"a": "x", "b": [1, {"c": "y"}]}', ["x", "y"]),
        ('{"a": "\\ud800", "n": NaN}', ["\ud800"]),
        ('{"a": "line\nline"}', ['{"a": "line\nline"}']),
        ("\ud800", ["\ud800"]),
        ("ls -l", ["ls -l"]),
    ],
)
def test_strings_of_call_arguments(arguments: str, values: list[str]) -> None:
    assert string_values(arguments) == values


@given(
    st.recursive(st.text() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))
)
def test_strings_survive_json(value: object) -> None:
    assert string_values(json.dumps(value)) == string_values(json.dumps(value, ensure_ascii=False))
