"""Query terms and the part of a text that matches them best."""

from __future__ import annotations

from foveal.core.wire.query_match import best_window, next_line_start, query_terms


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
