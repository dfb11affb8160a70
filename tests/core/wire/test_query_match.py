"""Query terms and the part of a text that matches them best."""

from __future__ import annotations

from foveal.core.wire.query_match import (
    best_window,
    count_identifiers,
    missing_terms,
    next_line_start,
    query_identifiers,
    query_terms,
)


def test_terms_are_identifiers_word_beginnings_and_character_pairs() -> None:
    assert query_terms("Where is parse_header called?") == {"parse_header", "pars", "head", "call"}
    assert query_terms("灯塔人") == {"灯塔", "塔人"}
    assert query_terms("what is it") == frozenset()


def test_the_window_with_the_most_letters_of_different_terms_wins() -> None:
    text = "cat " * 20 + "x" * 200 + " cat and zeppelin"
    start = best_window(text, frozenset({"cat", "zeppelin"}), width=40)
    assert text[start:].startswith("cat and zeppelin")
    assert best_window(text, frozenset({"giraffe"}), width=40) == 0
    assert best_window(text, frozenset(), width=40) == 0


def test_a_line_start_within_reach_is_preferred() -> None:
    text = "first line\nsecond line"
    assert next_line_start(text, 0, 5) == 0
    assert next_line_start(text, 6, 10) == 11
    assert next_line_start(text, 3, 2) == 3
    assert next_line_start(text, 11, 5) == 11


def test_identifiers_are_ids_numbers_names_and_paths() -> None:
    query = "What's the e.g. follow-up total of order ORD-0030, 123 in 3 lines of src/app.py and parse_it?"
    assert query_identifiers(query) == {"ord-0030", "123", "src/app.py", "parse_it"}
    assert query_identifiers("what's up") == frozenset()


def test_identifiers_count_as_whole_words() -> None:
    wanted = frozenset({"ord-0030", "ord-0031", "123"})
    assert count_identifiers("ORD-0030, ord-0030 and ORD-00311 for 1123", wanted) == 1
    assert count_identifiers("123: ORD-0031", wanted) == 2
    assert count_identifiers("123", frozenset()) == 0


def test_terms_outside_of_a_window_are_missing() -> None:
    text = "cat dog" + " " * 50 + "bird"
    terms = frozenset({"cat", "bird", "whale"})
    assert missing_terms(text, terms, start=0, end=7) == {"bird"}
