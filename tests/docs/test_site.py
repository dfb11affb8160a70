"""The site: it builds without a warning, is complete, and works in Chromium without asking another host.

The site is built once, in a copy of the sources, and shared by the processes of a test run. `make soak` builds all
of it, which takes 20 seconds, and allows no warning; `make test` builds some pages. What the other tests of this
folder check of the sources holds for all pages: links, headings, names of the reference.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest

from support.chromium import Chromium, WatchedPage
from support.doc_pages import DOCS, SITE_PAGES, links
from support.made_once import made_once
from support.paths import ROOT

ZENSICAL: Final = shutil.which("zensical", path=f"{ROOT / '.venv/bin'}{os.pathsep}{os.environ['PATH']}")
ESCAPES: Final = re.compile(r"\x1b\[[\d;]*m")
SOAK: Final = bool(os.environ.get("FOVEAL_SOAK"))
PHONE, DESKTOP_SIZE = (390, 844), (1280, 900)
BUILT_PAGES: Final = ("index", "reference/config", "terminal/chat")
"""The pages that `make test` builds: with tables, pictures and drawings."""
MORE_DESKTOP_PAGES: Final = ("reference/config", "inspector", "terminal/chat", "how-it-works/design")
DESKTOP_PAGES: Final = ("index", *(MORE_DESKTOP_PAGES if SOAK else ()))
WIDE_ELEMENTS: Final = """() => {
    const width = document.documentElement.clientWidth, found = [];
    if (document.documentElement.scrollWidth > width) found.push("the page");
    for (const element of document.querySelectorAll(".md-content *")) {
        const place = element.getBoundingClientRect();
        if (place.width === 0 || place.right <= width + 1) continue;
        let box = element.parentElement;
        while (box && getComputedStyle(box).overflowX === "visible") box = box.parentElement;
        if (!box) found.push(`${element.tagName} ${element.className}: ${element.textContent.slice(0, 60)}`);
    }
    return found;
}"""
"""The elements that are wider than the window and in no box that scrolls."""


# ── Building ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the built site."""
    if ZENSICAL is None:
        pytest.skip("Zensical is not installed: pip install 'foveal[docs]'")
    folder = made_once(tmp_path_factory, "site_sources", build)
    printed = (folder / "printed").read_text(encoding="utf-8")
    assert (folder / "site/index.html").exists(), printed
    return folder / "site"


def build(folder: Path) -> None:
    """Build the site in a folder, beside a file with what the program has printed."""
    shutil.copytree(DOCS, folder / "docs", ignore=None if SOAK else _other_pages)
    shutil.copyfile(ROOT / "zensical.toml", folder / "zensical.toml")
    (folder / "src").symlink_to(ROOT / "src")
    done = subprocess.run(
        [str(ZENSICAL), "build", *(["--strict"] if SOAK else [])],
        cwd=folder, capture_output=True, encoding="utf-8", check=False,
    )  # fmt: skip
    text = ESCAPES.sub("", f"exit code {done.returncode}\n{done.stdout}{done.stderr}")
    (folder / "printed").write_text(text, encoding="utf-8")


def _other_pages(folder: str, names: list[str]) -> list[str]:
    """Return the names of the pages of a folder that are not built."""
    pages = {
        name: (Path(folder) / name).relative_to(DOCS).with_suffix("")
        for name in names
        if name.endswith(".md")
    }
    return [name for name, page in pages.items() if page.as_posix() not in BUILT_PAGES]


@pytest.mark.soak
def test_the_site_is_built_without_a_warning(site: Path) -> None:
    printed = (site.parent / "printed").read_text(encoding="utf-8")
    assert printed.startswith("exit code 0\n"), printed
    assert "Warning" not in printed, printed
    assert "No issues found" in printed


def navigation(entry: Any) -> Iterator[str]:
    """Yield the pages of a part of the navigation."""
    match entry:
        case str():
            yield entry
        case dict():
            yield from navigation(list(entry.values()))
        case list():
            for inner in entry:
                yield from navigation(inner)


def test_the_navigation_has_every_page_once() -> None:
    settings = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))
    listed = sorted(navigation(settings["project"]["nav"]))
    assert listed == sorted(str(page.relative_to(DOCS)) for page in SITE_PAGES)


def test_no_page_links_to_a_file_outside_of_the_site() -> None:
    for page in SITE_PAGES:
        for link in links(page):
            if "://" not in link.text and not link.text.startswith(("#", "mailto:")):
                target = (page.parent / link.text.partition("#")[0]).resolve()
                assert DOCS.resolve() in target.parents, link


class Figures(HTMLParser):
    """Finds the pictures of a page that have no alternative text or no caption."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.problems: list[str] = []
        self._figures: list[list[str]] = []
        """For each open figure the pictures in it."""
        self._has_caption = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "figure":
            self._figures.append([])
            self._has_caption = False
        elif tag == "figcaption":
            self._has_caption = True
        elif tag == "img":
            source = given.get("src") or ""
            if not given.get("alt"):
                self.problems.append(f"{source} has no alternative text")
            if not self._figures:
                self.problems.append(f"{source} is in no figure")
            else:
                self._figures[-1].append(source)

    def handle_endtag(self, tag: str) -> None:
        if tag == "figure" and not self._has_caption:
            self.problems += [f"{source} has no caption" for source in self._figures.pop()]
        elif tag == "figure":
            self._figures.pop()


def test_every_picture_has_a_caption_and_an_alternative_text(site: Path) -> None:
    texts = {str(page.relative_to(site)): page.read_text(encoding="utf-8") for page in html_pages(site)}
    found = {name: Figures(text).problems for name, text in texts.items() if "<img" in text}
    assert {name: problems for name, problems in found.items() if problems} == {}


def test_a_picture_without_a_caption_is_noticed() -> None:
    good = '<figure><p><img src="a.png" alt="A log"></p><figcaption>The log.</figcaption></figure>'
    assert Figures(good).problems == []
    assert Figures(good.replace("figcaption", "p")).problems == ["a.png has no caption"]
    bare = '<img src="b.png" alt="">'
    assert Figures(good + bare).problems == ["b.png has no alternative text", "b.png is in no figure"]


def html_pages(site: Path) -> list[Path]:
    return sorted(site.rglob("*.html"))


# ── In a browser ─────────────────────────────────────────────────────────────────────────────────────────


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves files and prints nothing."""

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def served(site: Path) -> Iterator[str]:
    """Serve the site on 127.0.0.1, and yield its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def browsing(browser: Chromium, site: Path, **settings: Any) -> Iterator[tuple[WatchedPage, str]]:
    """Open a page of a browser beside the served site. The page asks no other host and does not complain."""
    with served(site) as address:
        opened = browser.page(**settings)
        watched = browser.run(opened.__enter__)
        try:
            yield watched, address
            watched.check(address.removeprefix("http://"))
        finally:
            browser.run(lambda: opened.__exit__(None, None, None))


@pytest.mark.long
def test_a_page_fits_a_phone(chromium: Chromium, site: Path) -> None:
    with browsing(chromium, site, size=PHONE, reduced_motion="reduce") as (watched, address):

        def visit() -> dict[str, list[str]]:
            wide = {}
            for path in html_pages(site):
                name = str(path.relative_to(site))
                watched.page.goto(f"{address}/{name}")
                wide[name] = watched.page.evaluate(WIDE_ELEMENTS)
            return wide

        assert {name: elements for name, elements in chromium.run(visit).items() if elements} == {}


def test_a_desktop_shows_dark_pages_and_finds_a_word(chromium: Chromium, site: Path) -> None:
    with browsing(chromium, site, size=DESKTOP_SIZE, color_scheme="dark") as (watched, address):
        page = watched.page

        def visit() -> None:
            for name in DESKTOP_PAGES:
                page.goto(f"{address}/{name}.html")
                assert page.evaluate(WIDE_ELEMENTS) == []
                assert brightness(page.evaluate("getComputedStyle(document.body).backgroundColor")) < 50
                text = page.locator(".md-content p").first
                assert brightness(text.evaluate("element => getComputedStyle(element).color")) > 150

        def search() -> None:
            page.get_by_role("button", name="Search").first.click()
            page.get_by_role("combobox", name="Search").fill("undo")
            page.get_by_role("option").first.click()
            page.wait_for_url("**/*h=undo*")
            assert "undo" in page.locator(".md-content").inner_text().lower()

        chromium.run(visit)
        chromium.run(search)


ANSWERED_BY: Final = {
    "how much will it save": ("measure/replay", "which-policy"),
    "many users": ("library/web-app",),
    "streaming": ("library/own-loop", "library/web-app"),
    "own policy": ("which-policy", "library/own-policy"),
    "delete user": ("library/delete-data",),
    "large result": ("library/large-results",),
}
"""What readers search for, and the pages of which one must be among the first results."""
MAX_RANK: Final = 5


@pytest.mark.soak
def test_the_search_finds_what_readers_ask_for(chromium: Chromium, site: Path) -> None:
    with browsing(chromium, site, size=DESKTOP_SIZE) as (watched, address):
        page = watched.page

        def search() -> dict[str, list[str]]:
            page.goto(f"{address}/index.html")
            page.get_by_role("button", name="Search").first.click()
            found = {}
            for query in ANSWERED_BY:
                page.get_by_role("combobox", name="Search").fill(query)
                page.locator(f'[role=option][href*="h={query.replace(" ", "+")}"]').first.wait_for()
                options = page.get_by_role("option").all()
                found[query] = [str(option.get_attribute("href")) for option in options[:MAX_RANK]]
            return found

        found = chromium.run(search)
    missed = {
        query: found[query]
        for query, pages in ANSWERED_BY.items()
        if not any(f"/{name}.html" in address for name in pages for address in found[query])
    }
    assert missed == {}


def brightness(colour: str) -> float:
    """Return the mean of the channels of a colour such as `rgb(11, 12, 15)`."""
    channels = colour.partition("(")[2].rstrip(")").split(",")
    return sum(map(float, channels[:3])) / 3
