"""Untrusted text made safe to print; all other text is unchanged."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from foveal.core.log import UserSaid
from foveal.core.wire import exact_line
from foveal.core.wire.safe_print import one_line, printable, readable, unhidden, visible

ANY = st.text(st.characters(codec=None))


CODE = re.compile(r"\\u\{([0-9a-f]+)\}")


def as_mark(code: re.Match[str]) -> str:
    return f"⟨U+{int(code[1], 16):04X}⟩"


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
    assert readable(hostile) == shown
    assert visible(hostile) == printable(hostile) == CODE.sub(as_mark, shown)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plain",
        "two\nlines\tand a tab",
        "Grüße, 日本語, العربية, עברית",
        "😀 👍🏽",
        "e\u0301",
        "हिन्दी, ไทย",
        "[31m",
    ],
)
def test_ordinary_text_in_any_language_is_unchanged(text: str) -> None:
    assert visible(text) == readable(text) == text


@pytest.mark.parametrize("text", ["a\u00a0b", "全角\u3000空白", "❤\ufe0f", "\u2800"])
def test_prose_keeps_its_spaces_and_emoji(text: str) -> None:
    assert readable(text) == text


@given(st.characters(codec=None))
def test_only_the_space_looks_like_a_blank(character: str) -> None:
    shown = visible(f"1{character}2")
    assume(not 0x1D400 <= ord(character) <= 0x1D7FF)
    blank = unicodedata.category(character) in ("Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Cn", "Co")
    assert (shown == f"1{character}2") is not (blank and character not in " \n\t") or character in HIDDEN


HIDDEN = "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0" + "".join(
    map(chr, (*range(0xFE00, 0xFE10), 0x16FE4, 0x1107F, 0x1D159, *range(0xE0100, 0xE01F0)))
)


def test_what_looks_like_nothing_or_like_a_blank_is_shown_where_a_user_decides() -> None:
    spaces = "\u00a0\u1680\u2000\u2002\u200a\u202f\u205f\u3000"
    for character in spaces + HIDDEN:
        assert visible(f"./check.sh{character}") == f"./check.sh⟨U+{ord(character):04X}⟩"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\u0301", "⟨U+0301⟩"),
        ("a \u0338b", "a ⟨U+0338⟩b"),
        ("./\u0301\u0302x", "./⟨U+0301⟩⟨U+0302⟩x"),
        ("1\ufe0f\u20e3", "1⟨U+FE0F⟩⟨U+20E3⟩"),
        ("e" + "\u0301" * 9, "e" + "\u0301" * 8 + "⟨U+0301⟩"),
    ],
)
def test_a_mark_without_a_letter_is_shown(text: str, shown: str) -> None:
    assert visible(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\u0440m -rf /", "⟨U+0440⟩m -rf /"),
        ("/\u0435tc/pass\u03bdd", "/⟨U+0435⟩tc/pass⟨U+03BD⟩d"),
        ("\U0001d69b\U0001d696 x", "⟨U+1D69B⟩⟨U+1D696⟩ x"),
        ("привет, мир: README и Δt, API接口, 5µm", "привет, мир: README и Δt, API接口, 5µm"),
    ],
)
def test_a_letter_that_looks_like_a_latin_one_of_its_word_is_shown(text: str, shown: str) -> None:
    assert visible(text) == shown
    assert unhidden(shown) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a b", "a b"),
        (" a  b ", "␠a␠␠b␠"),
        ("a\nb\tc\u00a0", "a␊b␉c⟨U+00A0⟩"),
        ("x" * 5_000, "x" * 5_000),
    ],
)
def test_an_exact_line_loses_nothing(text: str, shown: str) -> None:
    assert exact_line(text) == shown


@given(ANY)
def test_no_control_or_invisible_character_is_left(text: str) -> None:
    left = visible(text)
    assert {unicodedata.category(c) for c in left if c not in "\n\t"}.isdisjoint({"Cc", "Cs", "Zl", "Zp"})
    assert not any(unicodedata.bidirectional(c) in _BIDI for c in left)
    left.encode()


_BIDI = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


@given(ANY)
def test_what_is_visible_stays_as_it_is(text: str) -> None:
    assert unhidden(visible(text)) == visible(text)
    assert printable(visible(text)) == visible(text)


LOOK_ALIKES = st.text(st.sampled_from("⟨⟩U+0241B7E8\x1b\u202e\u200b␛␉⏎\t\n \\u{}"), max_size=20)


@given(ANY | LOOK_ALIKES)
@example("⟨U+202E⟩")
@example("\u202e⟨U+27E8⟩U+202E⟩")
def test_texts_that_differ_look_different(text: str) -> None:
    shown = visible(text)
    symbols = {chr(0x2400 + code): chr(code) for code in range(0x20)}
    meant = re.sub(
        "⟨U\\+([0-9A-F]{4,6})⟩|[\u2400-\u241f]",
        lambda found: chr(int(found[1], 16)) if found[1] else symbols[found[0]],
        shown,
    )
    assert meant == text


def test_a_character_and_its_code_look_different() -> None:
    for literal in ("\\u{202e}", "⟨U+202E⟩", "\\u202e"):
        assert visible(literal) != visible("\u202e")
        assert exact_line(literal) != exact_line("\u202e")


@given(ANY)
def test_all_other_characters_keep_their_place(text: str) -> None:
    assert readable(text) == "".join(readable(character) for character in text)


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
    for show in (visible, readable, printable):
        assert not any(character in show(f"a{invisible}b") for character in invisible)


@given(ANY, st.integers(2, 200))
def test_one_line_is_one_line_within_its_width(text: str, width: int) -> None:
    line = one_line(text, width=width)
    assert len(line) <= width
    assert line.splitlines() in ([], [line])
    assert printable(line) == line


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
