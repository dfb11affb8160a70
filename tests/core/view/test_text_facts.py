"""Names, lines and values of a text: the fast ways return what the plain ones do."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveal.core.view.text_facts import (
    count_names,
    distinct_names,
    find_names,
    listing_separator,
    string_values,
    strip_line_number,
)


def test_names_of_a_long_text_are_found_across_its_blocks() -> None:
    words = [f"module_{number % 700}.py: HTTPServer, plain words" for number in range(1_000)]
    for text in ("\n".join(words), " ".join(words), "x" * 9_000 + "\n" + "\n".join(words)):
        assert list(distinct_names(text)) == list(dict.fromkeys(find_names(text)))


@given(st.lists(st.text(alphabet="abcXY01_./:@#- \n", max_size=60), max_size=3))
def test_names_are_counted_as_they_are_found(texts: list[str]) -> None:
    expected = Counter(name for text in texts for name in find_names(text))
    assert list(count_names(texts).items()) == list(expected.items())


LISTINGS = {
    "     1\tdef add(a, b):\n     2\t    return a + b\n     3\t\n     4\tadd(1, 2)": "\t",
    "1→import os\n2→\n3→print(os.name)": "→",
    "$ nl -ba x\n9|a\n10|\n11|b": "|",
    "41: class A:\n42:   x = 1\n43: y = 2": ":",
    "     7\tif a:\n     8\t\treturn\n     9\tb()": "\t",
}
DATA = (
    "83.564\t117.611\n84.564\t117.2\n85.1\t3",
    "2026-11-22\tEMEA\n2026-11-23\tAPAC\n2026-11-24\tEMEA",
    "10.0.0.52\t46\n10.0.0.53\t46\n10.0.0.54\t46",
    "10:30: stand-up\n11:30: lunch\n12:30: review",
    "4711: customer-855 owes EUR 3467.11\n4712: customer-9 owes EUR 1\n4713: customer-8 owes EUR 2",
    "1\tAda\t12.5\n2\t\t13.5\n3\tBob\t14.5",
    "030-1164826 customer\n031-1164827 customer\n032-1164828 customer",
    "7:\n7:\n7:",
    "²\ta\n1\t b\nx",
    "",
)


@pytest.mark.parametrize(("text", "separator"), [*LISTINGS.items(), *((text, "") for text in DATA)])
def test_a_listing_is_told_from_data_with_numbers(text: str, separator: str) -> None:
    assert listing_separator(text.split("\n")) == separator


def test_only_the_number_of_a_listing_is_stripped() -> None:
    lines = ("  12\t  x = 1\t2", "12", "12:x", " x\t1", "a12\tb", "-1\tb")
    assert [strip_line_number(line, "\t") for line in lines] == [
        "x = 1\t2",
        "",
        "12:x",
        "x\t1",
        "a12\tb",
        "-1\tb",
    ]
    assert [strip_line_number(line, "") for line in lines] == [line.strip() for line in lines]


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
