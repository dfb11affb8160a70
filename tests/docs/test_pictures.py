"""The pictures show what the programs show today.

1. The captures of the chat are drawn again from a run in a pseudo-terminal, and their texts compared.
2. A picture of the inspector has the text that it shows in it. The page is opened again, and its text compared.
   Pixels depend on the fonts of the machine.
3. `test_pages.py` draws the picture of the demo.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from shutil import copyfile
from typing import Final

import pytest

from support.chromium import Chromium, WatchedPage
from support.coding_agent import AGENT_WINDOW, recorded_shop
from support.doc_pages import DOCS, PAGES, pictures
from support.effort import some_cases
from support.inspected_server import InspectedServer
from support.paths import ROOT
from support.sandbox_here import needs_sandbox
from support.terminal import Terminal
from support.waiting import wait_until

sys.path.insert(0, str(ROOT / "tools/docs"))

import chat_captures
import drawings
import inspector_pictures
import savings_picture
from inspector_pictures import PICTURES, Picture

COMPARED: Final = [one for one in PICTURES if one.theme == "light" or one.size != PICTURES[0].size]
"""Those of the inspector whose text is compared with the page; `make test` compares a third of them."""
SUFFIXES: Final = {".svg", ".png", ".jpg", ".gif", ".webp"}
AGAIN: Final = "the program shows something else now: run .venv/bin/python tools/docs/"
Captures = Callable[[], Iterator[tuple[str, str, Terminal]]]


@pytest.mark.long
@pytest.mark.parametrize(
    "take",
    [
        pytest.param(chat_captures.take_captures, marks=[needs_sandbox, pytest.mark.soak]),
        pytest.param(chat_captures.take_planning, marks=[needs_sandbox, pytest.mark.soak]),
        chat_captures.take_first_steps,
    ],
)
def test_a_capture_is_what_the_chat_shows(take: Captures) -> None:
    for name, title, terminal in take():
        wanted = words((chat_captures.FOLDER / f"{name}.svg").read_text(encoding="utf-8"))
        assert words_of_capture(terminal, title, wanted) == wanted, f"{name}: {AGAIN}chat_captures.py"


def words_of_capture(terminal: Terminal, title: str, wanted: list[str]) -> list[str]:
    """Return the texts that the terminal shows once they are those wanted, or the time is over. A terminal on a
    busy machine may leave out an empty row, so only the texts are compared."""
    comparison = Comparison(lambda: words(chat_captures.draw(title, terminal)))
    with suppress(AssertionError):
        terminal.see(lambda _: comparison.finds(wanted))
    return comparison.found


class Comparison:
    """What was shown when it was last compared. A screen that is read once more may show something else by then."""

    def __init__(self, read: Callable[[], list[str]]) -> None:
        self._read = read
        self.found: list[str] = []

    def finds(self, wanted: list[str]) -> bool:
        self.found = self._read()
        return self.found == wanted


def words(drawing: str) -> list[str]:
    """Return the texts of a drawing, which show a difference better than its tags do."""
    return re.findall(r">([^<>\n]+)<", drawing.replace("&#160;", " "))


@pytest.mark.long
def test_a_picture_of_the_inspector_has_the_text_of_its_page(
    chromium: Chromium, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path / "sessions.db"
    copyfile(recorded_shop(tmp_path_factory), path)
    with InspectedServer(path, window=AGENT_WINDOW) as server:

        def compare() -> None:
            with inspector_pictures.page_of_pictures(chromium) as watched:
                for picture in some_cases(COMPARED, every=3):
                    wanted, shown = words_of(watched, server, picture)
                    assert wanted == shown, f"{picture.name}: {AGAIN}inspector_pictures.py"

        chromium.run(compare)


def words_of(watched: WatchedPage, server: InspectedServer, picture: Picture) -> tuple[list[str], list[str]]:
    """Return the words in a picture, and those of its page once they agree or the time is over. They are sorted,
    because sessions of the same time have no order."""
    wanted = sorted(words_without_times(recorded_text(picture)))
    part = inspector_pictures.show(watched, server, picture)
    comparison = Comparison(lambda: sorted(words_without_times(inspector_pictures.visible_text(part))))
    with suppress(AssertionError):
        wait_until(lambda: comparison.finds(wanted), interval_s=0.05)
    return wanted, comparison.found


def words_without_times(text: str) -> list[str]:
    """Return the words of a page. How long a summary took to write depends on the machine."""
    return re.sub(r"\b\d+\.\d s\b", "N s", text).split()


def recorded_text(picture: Picture) -> str:
    return inspector_pictures.read_text((inspector_pictures.FOLDER / f"{picture.name}.png").read_bytes())


def test_the_first_two_pictures_show_the_first_screen_and_a_masked_result() -> None:
    light, dark = PICTURES[:2]
    assert (light.theme, dark.theme) == ("light", "dark")
    assert "125 events and 39 requests" in recorded_text(light)
    assert "e47 Masked" in recorded_text(dark)


def test_the_picture_of_the_start_page_has_the_figures_of_the_table() -> None:
    assert [saving.label for saving in savings_picture.savings()] == list(savings_picture.LABELS.values())
    assert savings_picture.PICTURE.read_text(encoding="utf-8") == savings_picture.picture(), (
        f"{AGAIN}savings_picture.py"
    )


def test_every_picture_is_used_and_made_by_a_script() -> None:
    used = {(page.parent / picture.text).resolve() for page in PAGES for picture in pictures(page)}
    files = {path.resolve() for path in DOCS.rglob("*") if path.suffix in SUFFIXES}
    captures = re.findall(r'yield "([\w-]+)"', Path(chat_captures.__file__).read_text(encoding="utf-8"))
    made = {chat_captures.FOLDER / f"{name}.svg" for name in captures}
    made |= {inspector_pictures.FOLDER / f"{picture.name}.png" for picture in PICTURES}
    made |= {drawings.PICTURE, savings_picture.PICTURE}
    assert files == {path.resolve() for path in made}
    assert files == used


def test_the_text_of_a_picture_is_read_back() -> None:
    row = b"\0" + bytes(3 * 2)
    header = inspector_pictures.struct.pack(">IIBBBBB", 2, 1, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", inspector_pictures.zlib.compress(row)), (b"IEND", b""))
    plain = inspector_pictures.SIGNATURE + b"".join(inspector_pictures._chunk(*part) for part in parts)
    assert inspector_pictures.read_text(plain) == ""
    assert inspector_pictures.read_text(inspector_pictures.smaller(plain, "Log · e47 …")) == "Log · e47 …"
