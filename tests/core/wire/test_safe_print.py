"""Untrusted text made safe to print; all other text is unchanged."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveal.core.log import UserSaid
from foveal.core.wire import one_line, visible

ANY = st.text(st.characters(codec=None))


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "␛[31mred␛[0m"),
        ("\x1b]0;title\x07", "␛]0;title␇"),
        ("\x1b]8;;https://x.example\x1b\\link", "␛]8;;https://x.example␛\\link"),
        ("\x9b2J", "\\u{9b}2J"),
        ("\x9d52;c;aGk=\x9c", "\\u{9d}52;c;aGk=\\u{9c}"),
        ("safe\rEVIL", "safe␍EVIL"),
        ("abc\b\b\bxyz", "abc␈␈␈xyz"),
        ("nul\x00", "nul␀"),
        ("del\x7f", "del\\u{7f}"),
        ("a\x0b\x0cb", "a␋␌b"),
        ("access = \u202e'resu'\u2066 # admin", "access = \\u{202e}'resu'\\u{2066} # admin"),
        ("zero\u200bwidth\u200d\u2060\ufeff", "zero\\u{200b}width\\u{200d}\\u{2060}\\u{feff}"),
        ("marks\u200e\u200f\u061c", "marks\\u{200e}\\u{200f}\\u{61c}"),
        ("tags\U000e0041\U000e007f", "tags\\u{e0041}\\u{e007f}"),
        ("select\ufe00\U000e0100", "select\\u{fe00}\\u{e0100}"),
        ("soft\u00adhyphen\u180e", "soft\\u{ad}hyphen\\u{180e}"),
        ("lines\u2028and\u2029paragraphs\x85", "lines\\u{2028}and\\u{2029}paragraphs\\u{85}"),
        ("half \ud83d a character \udc1b", "half \\u{d83d} a character \\u{dc1b}"),
        ("notes\ufff9in\ufffabetween\ufffb", "notes\\u{fff9}in\\u{fffa}between\\u{fffb}"),
    ],
)
def test_unsafe_characters_are_shown_by_their_code(hostile: str, shown: str) -> None:
    assert visible(hostile) == shown


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plain",
        "two\nlines\tand a tab",
        "Grüße, 日本語, العربية, עברית",
        "😀 👍🏽",
        "e\u0301",
        "a\u00a0b",
        "[31m",
    ],
)
def test_ordinary_text_in_any_language_is_unchanged(text: str) -> None:
    assert visible(text) == text


@given(ANY)
def test_no_control_or_invisible_character_is_left(text: str) -> None:
    left = visible(text)
    assert {unicodedata.category(c) for c in left if c not in "\n\t"}.isdisjoint({"Cc", "Cs", "Zl", "Zp"})
    assert not any(unicodedata.bidirectional(c) in _BIDI for c in left)
    left.encode()


_BIDI = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


@given(ANY)
def test_visible_is_idempotent(text: str) -> None:
    assert visible(visible(text)) == visible(text)


@given(ANY)
def test_all_other_characters_keep_their_place(text: str) -> None:
    assert visible(text) == "".join(visible(character) for character in text)


@pytest.mark.parametrize(
    "invisible",
    [
        pytest.param("\u3164", id="hangul filler"),
        pytest.param("\u115f\u1160", id="hangul choseong and jungseong fillers"),
        pytest.param("\uffa0", id="halfwidth hangul filler"),
        pytest.param("\u034f", id="combining grapheme joiner"),
        pytest.param("\u17b4\u17b5", id="khmer inherent vowels"),
        pytest.param("\U0001d173\U0001d17a", id="musical format characters"),
        pytest.param("\U0001bca0\U0001bca3", id="shorthand format characters"),
        pytest.param("\u180b\u180c\u180d\u180f", id="mongolian variation selectors"),
    ],
)
def test_invisible_characters_are_shown(invisible: str) -> None:
    assert not any(character in visible(f"a{invisible}b") for character in invisible)


@given(ANY, st.integers(2, 200))
def test_one_line_is_one_line_within_its_width(text: str, width: int) -> None:
    line = one_line(text, width=width)
    assert len(line) <= width
    assert line.splitlines() in ([], [line])
    assert visible(line) == line


def test_one_line_marks_a_shortened_text() -> None:
    assert one_line("a  few\n\twords") == "a few words"
    assert one_line("word " * 50, width=10) == "word word…"
    assert one_line("", width=10) == ""


def test_one_line_skips_leading_blanks() -> None:
    assert one_line(" " * 10_000 + "rm -rf /", width=20) == "rm -rf /"


def test_one_line_marks_text_cut_after_blanks() -> None:
    assert one_line("ls" + " " * 10_000 + "; rm -rf /", width=20) != "ls"


def test_stored_text_is_not_changed() -> None:
    fact = UserSaid(content="a\u200bb\x1b[0m")
    visible(str(fact.content))
    assert fact == UserSaid(content="a\u200bb\x1b[0m")
