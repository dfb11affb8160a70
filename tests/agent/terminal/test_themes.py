"""Themes: colours that are legible on black and white, and terminals without colours or Unicode."""

from __future__ import annotations

import re
from typing import Final

import pytest

from foveal.agent.terminal.output.context_card import CATEGORY_STYLES
from foveal.agent.terminal.output.styled_text import (
    ASCII_MARKS,
    COLOUR_NUMBERS,
    LIGHT_SGR_CODES,
    SGR_CODES,
    Background,
    Span,
    Theme,
    ansi_text,
    cell_width,
    row,
    terminal_theme,
)
from support.chat_project import ChatProject
from support.terminal import Terminal

MIN_CONTRAST: Final = 3.0
UTF8: Final = {"LANG": "en_GB.UTF-8", "TERM": "xterm-256color"}


def luminance(number: int) -> float:
    """Return the relative luminance of a colour of the palette of 256, as WCAG defines it."""
    steps = (0, 95, 135, 175, 215, 255)
    grey = 8 + 10 * (number - 232)
    at = number - 16
    rgb = (grey, grey, grey) if number >= 232 else (steps[at // 36], steps[at // 6 % 6], steps[at % 6])
    linear = [v / 255 / 12.92 if v / 255 <= 0.03928 else ((v / 255 + 0.055) / 1.055) ** 2.4 for v in rgb]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("background", ["dark", "light", "unknown"])
def test_every_colour_has_contrast_on_its_background(background: Background) -> None:
    for style, number in COLOUR_NUMBERS[background].items():
        on_black, on_white = (luminance(number) + 0.05) / 0.05, 1.05 / (luminance(number) + 0.05)
        assert background == "light" or on_black >= MIN_CONTRAST, style
        assert background == "dark" or on_white >= MIN_CONTRAST, style


@pytest.mark.parametrize(
    ("environ", "background", "colours"),
    [
        ({}, "unknown", 256),
        ({"COLORFGBG": "15;0"}, "dark", 256),
        ({"COLORFGBG": "0;15"}, "light", 256),
        ({"COLORFGBG": "0;default;15"}, "light", 256),
        ({"COLORFGBG": "default;default"}, "unknown", 256),
        ({"FOVEAL_THEME": "light", "COLORFGBG": "15;0"}, "light", 256),
        ({"FOVEAL_THEME": "dark"}, "dark", 256),
        ({"FOVEAL_THEME": "plain"}, "unknown", 0),
        ({"NO_COLOR": "1", "FOVEAL_THEME": "dark"}, "unknown", 0),
        ({"TERM": "xterm"}, "unknown", 16),
        ({"TERM": "linux", "COLORFGBG": "0;15"}, "light", 16),
        ({"TERM": "xterm-kitty", "COLORTERM": "truecolor"}, "unknown", 256),
    ],
)
def test_the_theme_follows_the_terminal(environ: dict[str, str], background: str, colours: int) -> None:
    theme = terminal_theme({**UTF8, **environ})
    assert (theme.background, theme.colours) == (background, colours)
    assert bool(theme.codes) == (colours > 0)


def test_sixteen_colours_have_their_own_codes() -> None:
    assert terminal_theme({**UTF8, "TERM": "xterm"}).codes == SGR_CODES
    light = terminal_theme({**UTF8, "TERM": "xterm", "FOVEAL_THEME": "light"}).codes
    assert light == LIGHT_SGR_CODES
    assert not {"33", "36"} & set(light.values())


@pytest.mark.parametrize(
    ("environ", "is_unicode"),
    [
        ({}, True),
        ({"LANG": "de_DE.UTF-8"}, True),
        ({"LANG": "C.utf8"}, True),
        ({"LC_ALL": "C", "LANG": "de_DE.UTF-8"}, False),
        ({"LANG": "de_DE.ISO-8859-1"}, False),
        ({"LC_CTYPE": "POSIX"}, False),
    ],
)
def test_unicode_follows_the_locale(environ: dict[str, str], *, is_unicode: bool) -> None:
    assert terminal_theme(environ).is_unicode is is_unicode


def test_every_mark_has_an_ascii_character_of_its_width() -> None:
    for mark, plain in ASCII_MARKS.items():
        assert (cell_width(chr(mark)), cell_width(chr(plain))) == (1, 1)
        assert plain < 127
    theme = Theme(is_unicode=False)
    assert ansi_text([row(Span("▪ é…", "good"))], theme=theme) == "\x1b[32m- \\xe9~\x1b[0m\n"


def screen_of(project: ChatProject, env: dict[str, str], columns: int, rows: int) -> Terminal:
    project.script([("write", {"path": "ü.txt", "content": "eins\nzwei ✓\n"})], "- **Done** → `a`\n- twice")
    with project.terminal(env=env, columns=columns, rows=rows) as terminal:
        terminal.see("ctx ")
        terminal.enter("go")
        terminal.see("zwei")
        terminal.answer("y")
        terminal.see("twice")
        terminal.enter("/context")
        terminal.see("acts at")
        terminal.enter("/help")
        terminal.see(lambda t: "/quit" in t.text and re.match(r" ctx .* % .* sandbox", t.bottom) is not None)
    return terminal


def test_without_unicode_the_screen_is_ascii(project: ChatProject) -> None:
    terminal = screen_of(project, {"LC_ALL": "C", "LANG": "C"}, 80, 24)
    assert terminal.raw.isascii()
    assert "\\u2713" in terminal.text  # the check mark in the file
    assert "[#" in terminal.text


def test_without_unicode_every_category_has_its_mark() -> None:
    marks = [Theme(is_unicode=False).characters(style.letter) for style in CATEGORY_STYLES.values()]
    assert len(set(marks)) == len(marks)


def test_without_unicode_the_context_card_has_letters(project: ChatProject) -> None:
    with project.terminal(env={"LC_ALL": "C"}) as terminal:
        terminal.see("ctx ")
        terminal.enter("/context")
        seen = terminal.see("acts at")
    assert re.search(r"s system ", seen)
    assert re.search(r"- margin ", seen)
    assert re.search(r"\. free ", seen)


def test_a_plain_theme_has_no_colours(project: ChatProject) -> None:
    terminal = screen_of(project, {"FOVEAL_THEME": "plain", "LC_ALL": "C.UTF-8"}, 60, 20)
    codes = {code for found in re.findall(rb"\x1b\[([\d;]*)m", terminal.raw) for code in found.split(b";")}
    assert not codes - {b"", b"0", b"1", b"2", b"3", b"4", b"7"}, codes


def test_a_light_theme_has_no_bright_colours(project: ChatProject) -> None:
    terminal = screen_of(project, {"FOVEAL_THEME": "light", "LC_ALL": "C.UTF-8"}, 120, 40)
    used = {int(number) for number in re.findall(rb"38;5;(\d+)", terminal.raw)}
    assert used
    assert all(1.05 / (luminance(number) + 0.05) >= MIN_CONTRAST for number in used if number >= 16), used
