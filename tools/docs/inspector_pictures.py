"""Takes the pictures of the inspector in docs/screens, in a real Chromium.

`python tools/docs/inspector_pictures.py [NAME …]` records the sessions of a made-up coding agent, the same on
every run, and takes a picture of each page. It needs the packages of the tests, and Chromium. Each file has the
text that it shows in it, so that a test can compare it with the page, whatever fonts the machine has.
"""

from __future__ import annotations

import asyncio
import struct
import sys
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from playwright.sync_api import Locator

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from support.chromium import Chromium, Theme, WatchedPage  # noqa: E402
from support.coding_agent import AGENT_WINDOW, FIRST_EVENT_AT, record_shop  # noqa: E402
from support.inspected_pages import InspectedPage  # noqa: E402
from support.inspected_server import InspectedServer  # noqa: E402

FOLDER = ROOT / "docs" / "screens"
TITLE = "Orders are shipped twice"
TAKEN_AT = FIRST_EVENT_AT + 7_000
SETTLE_MS = 1_500
"""Milliseconds for what a page loads after its rows."""
MAX_BYTES = 200_000
KEPT_BITS = 0b11111000
"""Bits of each colour channel that are kept: the picture is a third as large, and looks the same."""
HIDE_PATHS = """
for (const place of document.querySelectorAll(".session-place")) place.textContent = "~/shop/sessions.db";
"""
"""The sessions are in a folder for this run only."""
VISIBLE_TEXT = """part => {
  const texts = [], lists = [...part.querySelectorAll(".virtual-list")];
  for (const list of lists) {
    const box = list.getBoundingClientRect();
    const places = [...list.querySelectorAll(".virtual-body > *")].map((row) => [row.getBoundingClientRect(), row]);
    const seen = places.filter(([place]) => place.height && place.top >= box.top && place.bottom <= box.bottom);
    texts.push(...seen.sort((one, other) => one[0].top - other[0].top).map(([, row]) => row.innerText));
  }
  for (const list of lists) list.style.visibility = "hidden";
  texts.unshift(part.innerText);
  for (const list of lists) list.style.visibility = "";
  return texts.join("\\n");
}"""
"""A long list has elements for the rows around those that are seen, in any order. Its other text is read without a
change of its size: the page would draw it again, and a test that reads often would never see it finished."""
SIGNATURE = b"\x89PNG\r\n\x1a\n"
TEXT_HEAD = b"Visible text\0\1\0\0\0"
"""Of an `iTXt` part: keyword, compressed, method 0, no language, no other keyword."""


class Picture(NamedTuple):
    """One picture."""

    name: str
    size: tuple[int, int]
    fragment: str = ""
    title: str = TITLE
    theme: Theme = "light"
    part: str = ""
    """A CSS selector of the part that is shown; "" for the whole window."""


PICTURES = (
    Picture("inspector", (1280, 820)),
    Picture("inspector-dark", (1280, 820), "#e47&message=e12", theme="dark"),
    Picture("inspector-cache", (1640, 1000), "#r30&panel=requests", part="#panels"),
    Picture("inspector-reduction", (1640, 1100), "#e93&panel=reductions", part="#panels"),
    Picture("inspector-composition", (1640, 800), "#r39&panel=composition", part="#panels"),
    Picture("inspector-overview", (1280, 420), title=""),
    Picture("inspector-narrow", (360, 740), theme="dark"),
)


def main(names: list[str]) -> None:
    browser = Chromium()
    browser.start()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sessions.db"
        asyncio.run(record_shop(path))
        with InspectedServer(path, window=AGENT_WINDOW) as server:
            for picture in PICTURES:
                if not names or picture.name in names:
                    data = browser.run(partial(take, browser, server, picture))
                    (FOLDER / f"{picture.name}.png").write_bytes(data)
    browser.close()


def take(browser: Chromium, server: InspectedServer, picture: Picture) -> bytes:
    """Return one picture as a PNG file."""
    with page_of_pictures(browser) as watched:
        part = show(watched, server, picture)
        part.page.wait_for_timeout(SETTLE_MS)
        part.page.locator(".happened .is-loading").first.wait_for(state="hidden")  # it may take seconds
        text = visible_text(part)
        data = smaller(part.screenshot() if picture.part else part.page.screenshot(), text)
        assert len(data) <= MAX_BYTES, f"{picture.name} has {len(data):,} bytes"
        return data


@contextmanager
def page_of_pictures(browser: Chromium) -> Iterator[WatchedPage]:
    """Yield a page for pictures, whose clock stands."""
    with browser.page(reduced_motion="reduce") as watched:
        watched.page.clock.set_fixed_time(TAKEN_AT)
        yield watched


def show(watched: WatchedPage, server: InspectedServer, picture: Picture) -> Locator:
    """Show a picture on a page, and return the part of the page that the picture shows."""
    width, height = picture.size
    watched.page.set_viewport_size({"width": width, "height": height})
    watched.page.emulate_media(color_scheme=picture.theme)
    InspectedPage(watched, server).open(picture.title, picture.fragment)
    part: Locator = watched.page.locator(picture.part or "body")
    return part


def visible_text(part: Locator) -> str:
    """Return the words of a part of a page. The picture has them too, so that a test can compare them."""
    part.page.evaluate(HIDE_PATHS)
    return " ".join(part.evaluate(VISIBLE_TEXT).split())


# ── Smaller files ────────────────────────────────────────────────────────────────────────────────────────


def smaller(png: bytes, text: str) -> bytes:
    """Return a PNG file with fewer colours, and with a text in it."""
    width, height, channels, data = _read_pixels(png)
    rows = _unfiltered(data, width * channels, height, channels)
    table = bytes((value & KEPT_BITS) | (value >> 5) for value in range(256))
    plain = b"".join(b"\0" + bytes(row).translate(table) for row in rows)
    header = struct.pack(">IIBBBBB", width, height, 8, 6 if channels == 4 else 2, 0, 0, 0)
    parts = [
        (b"IHDR", header),
        (b"iTXt", TEXT_HEAD + zlib.compress(text.encode(), 9)),
        (b"IDAT", zlib.compress(plain, 9)),
        (b"IEND", b""),
    ]
    return SIGNATURE + b"".join(_chunk(name, content) for name, content in parts)


def read_text(png: bytes) -> str:
    """Return the text in a picture; "" if it has none."""
    found = dict(_chunks(png)).get(b"iTXt", b"")
    return zlib.decompress(found.removeprefix(TEXT_HEAD)).decode() if found else ""


def _chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the names and contents of the parts of a PNG file."""
    place = len(SIGNATURE)
    while place < len(png):
        (size,) = struct.unpack_from(">I", png, place)
        yield png[place + 4 : place + 8], png[place + 8 : place + 8 + size]
        place += 12 + size


def _read_pixels(png: bytes) -> tuple[int, int, int, bytes]:
    """Return width, height, bytes per pixel and the filtered rows."""
    width, height, _, kind = struct.unpack_from(">IIBB", dict(_chunks(png))[b"IHDR"])
    data = b"".join(content for name, content in _chunks(png) if name == b"IDAT")
    return width, height, 4 if kind == 6 else 3, zlib.decompress(data)


def _unfiltered(data: bytes, length: int, height: int, channels: int) -> list[bytearray]:
    """Return the rows without the filters of the PNG format."""
    rows, above = [], bytearray(length)
    for number in range(height):
        start = number * (length + 1)
        kind, row = data[start], bytearray(data[start + 1 : start + 1 + length])
        for place in range(length):
            left = row[place - channels] if place >= channels else 0
            corner = above[place - channels] if place >= channels else 0
            row[place] = (row[place] + _predicted(kind, left, above[place], corner)) & 255
        rows.append(row)
        above = row
    return rows


def _predicted(kind: int, left: int, up: int, corner: int) -> int:
    match kind:
        case 1:
            return left
        case 2:
            return up
        case 3:
            return (left + up) // 2
        case 4:
            guess = left + up - corner
            return min((left, up, corner), key=lambda value: abs(guess - value))
    return 0


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


if __name__ == "__main__":
    main(sys.argv[1:])
