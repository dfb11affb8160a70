"""Long texts in pieces: nothing lost, nothing too long, marks continued."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveal.server.gateways.split_message import MarkedText, PartSize, TextMark, cut_text, pack, utf16

WORDS = st.text(alphabet="ab é😀\n\u200d\u0301", max_size=400)
RANGES = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 400)), max_size=8)


def pieces(text: str | MarkedText, limit: int, **options: bool) -> list[MarkedText]:
    whole = MarkedText(text) if isinstance(text, str) else text
    return list(cut_text(whole, window=limit, fits=lambda piece: utf16(piece.text) <= limit, **options))


def texts(text: str, limit: int, **options: bool) -> list[str]:
    return [piece.text for piece in pieces(text, limit, **options)]


def bare(text: str) -> str:
    return "".join(text.split())


@given(text=WORDS, ranges=RANGES, limit=st.integers(3, 90), is_monospace=st.booleans())
def test_no_piece_is_too_large_and_no_character_or_mark_is_lost(
    text: str, ranges: list[tuple[int, int]], limit: int, is_monospace: bool
) -> None:
    marks = [
        TextMark("bold", min(a, b), min(max(a, b), len(text)), str(number))
        for number, (a, b) in enumerate(ranges)
        if min(a, b) < min(max(a, b), len(text))
    ]
    cut = pieces(MarkedText(text, tuple(marks)), limit, is_monospace=is_monospace)
    assert all(0 < utf16(piece.text) <= limit for piece in cut)
    assert bare("".join(piece.text for piece in cut)) == bare(text)
    for mark in marks:
        marked = [
            piece.text[part.start : part.end]
            for piece in cut
            for part in piece.marks
            if part.value == mark.value
        ]
        assert bare("".join(marked)) == bare(text[mark.start : mark.end])


def test_exactly_at_the_limit_is_one_piece_and_one_more_character_makes_two() -> None:
    assert texts("x" * 50, 50) == ["x" * 50]
    assert texts("x" * 51, 50) == ["x" * 50, "x"]


def test_lines_are_cut_apart_before_words() -> None:
    assert texts("one two three\nfour five six", 20) == ["one two three", "four five six"]
    assert texts("one two three four five six", 20) == ["one two three four", "five six"]


def test_code_is_cut_between_lines_and_keeps_its_indentation() -> None:
    assert texts("if a:\n    b()\n    c()", 12, is_monospace=True) == ["if a:", "    b()", "    c()"]


def test_code_is_cut_at_a_blank_line_in_the_last_quarter() -> None:
    code = "a1\n\na2\na3\na4\n\na5\na6\n"
    assert texts(code, 17, is_monospace=True) == ["a1\n\na2\na3\na4", "a5\na6"]
    assert texts("a1\n\na2\na3\na4\na5", 14, is_monospace=True) == ["a1\n\na2\na3\na4", "a5"]


def test_a_mark_that_spans_a_cut_continues_in_the_next_piece() -> None:
    whole = MarkedText("see the long text", (TextMark("link", 4, 17, "https://a.example"),))
    assert pieces(whole, 9) == [
        MarkedText("see the", (TextMark("link", 4, 7, "https://a.example"),)),
        MarkedText("long text", (TextMark("link", 0, 9, "https://a.example"),)),
    ]


@pytest.mark.parametrize("whole", ["e\u0301", "👩\u200d🔬", "👍🏽", "1\ufe0f\u20e3"])
def test_what_looks_like_one_character_is_not_torn_apart(whole: str) -> None:
    text = whole * 40
    cut = texts(text, 31)
    assert "".join(cut) == text
    assert all(piece == whole * (len(piece) // len(whole)) for piece in cut)


def test_a_size_is_counted_in_units_of_utf_16() -> None:
    assert utf16("a😀é") == len("a😀é".encode("utf-16-le")) // 2 == 4
    assert [len(piece) for piece in texts("😀" * 30, 40)] == [20, 10]


def test_a_megabyte_without_a_space_is_split_wholly() -> None:
    cut = texts("x" * 1_000_000, 4096)
    assert "".join(cut) == "x" * 1_000_000
    assert len(cut) == 245


def packed(*blocks: str, limit: int) -> list[list[str]]:
    return pack(
        blocks,
        room=PartSize(limit),
        size=lambda block: PartSize(len(block)),
        cut=lambda block: [block[:limit], block[limit:]],
        is_heading=lambda block: block.startswith("#"),
    )


def test_blocks_share_a_part_while_they_fit() -> None:
    assert packed("one", "two", "three", "four", limit=8) == [["one", "two"], ["three"], ["four"]]
    assert packed("one", "a long block", limit=8) == [["one"], ["a long b"], ["lock"]]


def test_a_heading_moves_to_the_next_part_with_its_block() -> None:
    assert packed("one", "# A", "## B", "text", limit=12) == [["one"], ["# A", "## B", "text"]]
    assert packed("# A", "text text text", limit=14) == [["# A"], ["text text text"]]
