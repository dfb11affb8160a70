"""Long answers in pieces: nothing lost, nothing too long, code readable in each piece."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveal.apps.gateways.split_message import split, utf16

LINES = st.lists(
    st.one_of(
        st.text(alphabet="ab é😀\u200d\u0301", max_size=60),
        st.sampled_from(["", "```", "```python", "~~~", "- item", "  ```", "````", "``` a `b` ```"]),
    ),
    max_size=30,
)


def bare(text: str) -> str:
    """The words of a text: without blanks and what makes fences."""
    return re.sub(r"[\s`~]|python", "", text)


@given(lines=LINES, limit=st.integers(40, 200))
def test_no_piece_is_larger_than_the_limit_and_no_word_is_lost(lines: list[str], limit: int) -> None:
    text = "\n".join(lines)
    for size in (len, utf16):
        pieces = split(text, limit, size=size)
        assert all(0 < size(piece) <= limit for piece in pieces)
        assert bare("".join(pieces)) == bare(text)


def test_a_short_text_is_one_piece_as_it_is() -> None:
    assert split("One.\n\n```\ntwo\n```\nThree.", 100) == ["One.\n\n```\ntwo\n```\nThree."]
    assert split("", 100) == []
    assert split(" \n\n ", 100) == []


def test_exactly_at_the_limit_is_one_piece_and_one_more_character_makes_two() -> None:
    assert split("x" * 50, 50) == ["x" * 50]
    assert split("x" * 51, 50) == ["x" * 50, "x"]


def test_a_fence_that_fits_into_a_piece_stays_whole() -> None:
    code = "```python\n" + "\n".join(f"line {n}" for n in range(5)) + "\n```"
    text = "Before that some words.\n\n" + code + "\n\nAnd after it."
    assert split(text, 60) == ["Before that some words.", code, "And after it."]


def test_a_fence_that_is_too_large_is_closed_and_opened_again() -> None:
    lines = [f"line number {n}" for n in range(20)]
    pieces = split("```python\n" + "\n".join(lines) + "\n```", 100)
    assert len(pieces) > 2
    assert all(piece.startswith("```python\n") and piece.endswith("\n```") for piece in pieces)
    inside = [line for piece in pieces for line in piece.split("\n")[1:-1]]
    assert inside == lines


def test_a_fence_that_was_left_open_is_closed() -> None:
    assert split("See:\n```\ncode", 100) == ["See:\n```\ncode\n```"]


def test_backticks_in_a_line_are_no_fence_and_a_longer_fence_holds_a_shorter_one() -> None:
    assert split("``` a ``` and\nmore", 100) == ["``` a ``` and\nmore"]
    nested = "````\n```\ninner\n```\n````"
    assert split(nested, 100) == [nested]


def test_paragraphs_are_cut_apart_before_lines_and_lines_before_words() -> None:
    assert split("one two\nthree\n\nfour five six", 20) == ["one two\nthree", "four five six"]
    assert split("one two three\nfour five six", 20) == ["one two three", "four five six"]
    assert split("one two three four five six", 20) == ["one two three four ", "five six"]


@pytest.mark.parametrize("whole", ["e\u0301", "👩\u200d🔬", "👍🏽", "1\ufe0f\u20e3"])
def test_what_looks_like_one_character_is_not_torn_apart(whole: str) -> None:
    text = whole * 40
    pieces = split(text, 31, size=utf16)
    assert "".join(pieces) == text
    assert all(piece == whole * (len(piece) // len(whole)) for piece in pieces)


def test_a_size_is_counted_in_units_of_utf_16() -> None:
    assert utf16("a😀é") == len("a😀é".encode("utf-16-le")) // 2 == 4
    assert [len(piece) for piece in split("😀" * 30, 40, size=utf16)] == [20, 10]


def test_a_megabyte_without_a_space_is_split_quickly_and_wholly() -> None:
    pieces = split("x" * 1_000_000, 4096, size=utf16)
    assert "".join(pieces) == "x" * 1_000_000
    assert len(pieces) == 245
