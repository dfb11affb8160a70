"""Tables in monospaced text: aligned, never too wide, nothing lost."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from foveal.server.gateways.markdown_blocks import MonospaceTable, display_width, draw_table

CELLS = st.text(alphabet="ab é字😀\u0301", max_size=30)


@st.composite
def tables(draw: st.DrawFn) -> list[list[str]]:
    columns = draw(st.integers(1, 8))
    return draw(st.lists(st.lists(CELLS, min_size=columns, max_size=columns), min_size=1, max_size=6))


def letters(text: str) -> Counter[str]:
    return Counter(character for character in text if character not in " \n|-+:")


@given(tables(), st.integers(12, 60))
def test_no_line_is_too_wide_and_no_letter_is_lost(rows: list[list[str]], max_width: int) -> None:
    table = draw_table(rows, max_width=max_width)
    lines = [*table.header, *(line for row in table.rows for line in row)]
    assert all(display_width(line) <= max_width for line in lines)
    if table.header:
        assert letters("".join(lines)) == letters("".join(cell for row in rows for cell in row))
        assert len(table.rows) == len(rows) - 1


def test_columns_are_aligned_and_numbers_stand_right() -> None:
    rows = [["Name", "Price"], ["Tea", "2"], ["珈琲", "12.50"]]
    assert draw_table(rows, max_width=40, right=frozenset({1})) == MonospaceTable(
        ("Name | Price", "-----+------"), (("Tea  |     2",), ("珈琲 | 12.50",))
    )


def test_the_widest_column_is_wrapped() -> None:
    rows = [["Key", "Text"], ["one", "some words that are long"]]
    assert draw_table(rows, max_width=18) == MonospaceTable(
        ("Key | Text", "----+-------------"), (("one | some words", "    | that are", "    | long"),)
    )


def test_too_many_columns_become_records() -> None:
    rows = [
        ["a", "long name", "other name"],
        ["1", "a long value", "another value"],
        ["2", "", "last value here"],
    ]
    assert draw_table(rows, max_width=16) == MonospaceTable(
        (),
        (
            ("a: 1", "long name: a", "long value", "other name:", "another value"),
            ("-" * 16, "a: 2", "long name", "other name: last", "value here"),
        ),
    )
