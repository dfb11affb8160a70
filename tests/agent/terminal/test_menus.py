"""Menus in a terminal: picking one item, and switches that are off at first."""

from __future__ import annotations

import os
import sys
from itertools import product
from pathlib import Path
from typing import Final

import pytest

from foveal.agent.terminal.output.panels import PickMenu, SwitchMenu
from foveal.agent.terminal.output.styled_text import cell_width, plain_text, row
from foveal.agent.terminal.user_interface import MenuItem
from support.effort import rest_in_soak
from support.terminal import CTRL_C, ENTER, ESCAPE, TAB, Terminal

SIZES: Final = ((60, 20), (80, 24), (120, 40))
DOWN, UP = "\x1b[B", "\x1b[A"
DRIVER: Final = """
import asyncio, sys
from prompt_toolkit.completion import DummyCompleter
from foveal.agent.terminal.output.screen import Screen
from foveal.agent.terminal.output.styled_text import row
from foveal.agent.terminal.user_interface import MenuItem

ITEMS = [
    MenuItem(f"k{n}", f"session number {n}", f"{n} days ago", tuple(row(f"turn {t}") for t in range(99)))
    for n in range(40)
]

async def main():
    screen = Screen(DummyCompleter(), on_submit=lambda text: None, on_interrupt=lambda: None)
    running = asyncio.create_task(screen.app.run_async())
    await asyncio.sleep(0.05)
    screen.entry.insert_text("half a mess")
    ask = {"pick": screen.pick, "many": screen.choose_many}[sys.argv[1]]
    found = await ask("Which one?", ITEMS, hint="a hint at the end")
    screen.show([row(f"result: {sorted(found) if isinstance(found, frozenset) else found}")])
    await asyncio.sleep(30)

asyncio.run(main())
"""


def terminal(folder: Path, kind: str, columns: int = 80, rows: int = 24) -> Terminal:
    script = folder / "driver.py"
    script.write_text(DRIVER)
    env = {**os.environ, "TERM": "xterm-256color", "HOME": str(folder)}
    command = (sys.executable, str(script))
    return Terminal(kind, env=env, cwd=folder, columns=columns, rows=rows, command=command)


def items(count: int, *, title: str = "item") -> list[MenuItem]:
    return [MenuItem(f"k{number}", f"{title} {number}", f"detail {number}") for number in range(count)]


@pytest.mark.parametrize(("columns", "rows"), rest_in_soak(SIZES))
def test_an_item_is_searched_and_picked(tmp_path: Path, columns: int, rows: int) -> None:
    with terminal(tmp_path, "pick", columns, rows) as shown:
        shown.see("session number 0")
        shown.see("type to search")
        assert shown.bottom == " opening …"
        shown.type("number 3")
        shown.see("search: number 3")
        shown.see(lambda t: not any("number 4" in line for line in t.lines))
        shown.type(DOWN + DOWN)
        shown.see(lambda t: any(line.startswith("› session number 23") for line in t.lines))
        shown.type(ENTER)
        shown.see("result: k23")
        shown.see(lambda t: any(line == "› half a mess" for line in t.lines))


def test_esc_and_ctrl_c_pick_nothing_and_tab_shows_the_body(tmp_path: Path) -> None:
    with terminal(tmp_path, "pick") as shown:
        shown.see("type to search")
        shown.type(TAB)
        shown.see("turn 15")
        shown.type(ESCAPE)
        shown.see(lambda t: "Which one?" in "\n".join(t.lines) and b"\x1b[?1049l" in t.raw)
        shown.type(CTRL_C)
        shown.see("result: None")


@pytest.mark.parametrize(("columns", "rows"), rest_in_soak(SIZES))
def test_switches_are_off_until_they_are_switched_on(tmp_path: Path, columns: int, rows: int) -> None:
    with terminal(tmp_path, "many", columns, rows) as shown:
        shown.see("(0 on)")
        assert "[x]" not in shown.text
        shown.type(" " + DOWN + DOWN + " " + UP + "  ")
        shown.see("(2 on)")
        shown.type(ENTER)
        shown.confirm()
        shown.see("result: ['k0', 'k2']")


@pytest.mark.parametrize(("width", "height"), rest_in_soak(product([59, 79, 119], [8, 17, 37]), every=4))
def test_a_menu_fits_at_every_cursor(width: int, height: int) -> None:
    for menu in (
        PickMenu("Title " * 30, items(200, title="漢字 " * 40), "hint " * 10),
        SwitchMenu("Title", items(200)),
    ):
        for _ in range(60):
            rows = menu.rows(width=width, height=height)
            assert len(rows) <= max(height, 10)
            assert all(cell_width("".join(span.text for span in parts)) <= width for parts in rows)
            assert sum("›" in plain_text([parts]) for parts in rows) == 1
            menu.press("down")


def test_enter_in_an_empty_search_picks_nothing() -> None:
    menu = PickMenu("Title", items(3))
    for key in "zzz":
        menu.press(key)
    menu.press("enter")
    assert (menu.is_open, menu.picked) == (True, None)
    for _ in range(3):
        menu.press("backspace")
    menu.press("end")
    menu.press("enter")
    assert (menu.is_open, menu.picked) == (False, "k2")


def test_an_item_that_must_be_read_is_shown_before_it_is_switched_on() -> None:
    body = tuple(row(f"line {number}") for number in range(100))
    menu = SwitchMenu("Title", [MenuItem("a", "run a script", "", body, needs_view=True)])
    menu.press(" ")
    assert menu.view is not None
    menu.view = None
    menu.press("enter")
    assert menu.chosen == frozenset()
