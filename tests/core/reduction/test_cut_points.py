"""Parts of one text: counted and cut as by the counter of all texts, with less work."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveal.core.reduction.cut_points import PartCounter, SeamCounter, counter_for_parts
from foveal.core.tokens import Estimate
from foveal.core.tokens.counter import Exact, adds_up
from support.effort import examples

toktok = pytest.importorskip("toktok")

EXACT = Exact()
CHARACTERS = "ab Z\n\t/'\"()[]{}.,:_-019é漢🙂\u0301\u2019\r\u00a0"
ENCODINGS = pytest.mark.parametrize("encoding", ["o200k_base", "cl100k_base", "o200k_harmony"])


def text_of(seed: int, alphabet: str, *, words: int = 2_000) -> str:
    pick = random.Random(seed)
    vocabulary = ["".join(pick.choices(alphabet, k=pick.randint(1, 12))) for _ in range(40)]
    return "".join(pick.choices(vocabulary, k=words))


texts = st.builds(
    text_of, st.integers(0, 2**32), st.sampled_from([CHARACTERS, "ab c\n", "0123456789abcdef", "a"])
)


@examples(30)
@given(texts, st.data())
def test_parts_are_counted_and_cut_as_by_the_counter_of_all_texts(text: str, data: st.DataObject) -> None:
    parts = SeamCounter(text, EXACT)
    assert parts.count(text) == EXACT.count(text)
    for _ in range(8):
        start, end = sorted(data.draw(st.tuples(*[st.integers(0, len(text))] * 2)))
        assert parts.span(start, end) == EXACT.count(text[start:end])
        tokens = data.draw(st.integers(0, 5_000))
        assert parts.head(text, tokens) == EXACT.head(text, tokens)
        assert parts.tail(text, tokens) == EXACT.tail(text, tokens)


@examples(100)
@given(st.text(CHARACTERS, min_size=2, max_size=60), st.integers(0, 60))
@ENCODINGS
def test_tokens_add_up_where_adds_up_says_so(encoding: str, text: str, at: int) -> None:
    count = Exact(encoding)
    if adds_up(text, at):
        assert count.count(text[:at]) + count.count(text[at:]) == count.count(text)


def test_a_text_far_above_its_limit_is_counted_in_blocks_by_an_exact_counter_only() -> None:
    text = "word " * 2_000
    assert type(counter_for_parts(text, EXACT, 500)) is SeamCounter
    assert type(counter_for_parts(text, EXACT, 9_000)) is PartCounter, "probably within its limit"
    assert type(counter_for_parts(text, EXACT, None)) is PartCounter
    assert type(counter_for_parts(text, Estimate(), 500)) is PartCounter
    assert type(counter_for_parts(text * 50, EXACT, 500)) is PartCounter, "never counted whole"
    assert type(counter_for_parts(text, Exact("qwen3.5"), 500)) is PartCounter, "toktok cannot cut with it"


def test_texts_other_than_the_counted_one_go_through() -> None:
    parts = SeamCounter("word " * 2_000, EXACT)
    other = "another text " * 400
    assert parts.count(other) == EXACT.count(other)
    assert parts.count_all([other, "a"]) == EXACT.count_all([other, "a"])
    assert parts.head(other, 300) == EXACT.head(other, 300)
    assert parts.tail(other, 300) == EXACT.tail(other, 300)
