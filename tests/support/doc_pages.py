"""Reads the pages of the documentation: their code blocks, inline code, links, pictures and headings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token

from support.paths import ROOT

DOCS: Final = ROOT / "docs"
SITE_PAGES: Final = sorted(DOCS.rglob("*.md"))
"""The pages of the site."""
ROOT_PAGES: Final = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "AGENTS.md", "CHANGELOG.md")]
PAGES: Final = [*ROOT_PAGES, *SITE_PAGES]
CONTAINER: Final = re.compile(r" *(?:===|!!!|\?\?\?\+?) ")
"""The first line of a tab or a note; its content is indented by four spaces."""
ANCHOR: Final = re.compile(r'<a (?:id|name)="([^"]+)"')


def page_name(page: Path) -> str:
    """Return the name of a page in test ids, such as `library/sessions`."""
    return str(page.relative_to(DOCS if DOCS in page.parents else ROOT).with_suffix(""))


def page_text(name: str) -> str:
    """Return the text of the page of this name."""
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


def code_blocks(text: str, language: str = "python") -> list[str]:
    """Return the code blocks of a text in one language, those inside of lists and notes without their indent."""
    found = re.finditer(rf"^( *)```{language}(?: [^\n]*)?\n(.*?)^\1```", text, re.DOTALL | re.MULTILINE)
    return [re.sub(rf"^{block[1]}", "", block[2], flags=re.MULTILINE) for block in found]


class PagePart(NamedTuple):
    """A code block, a piece of inline code, a link or a picture."""

    page: str
    line: int
    """The line of its paragraph, counted from 1."""
    text: str
    """The code, the address of a link, or the address of a picture."""
    about: str = ""
    """The language of a block ("" without one), or the alternative text of a picture."""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text}"


def fenced_blocks(page: Path, *languages: str) -> list[PagePart]:
    """Return the code blocks of a page, of all languages or of these. An indented block has no language."""
    found = [
        PagePart(page_name(page), _line(token), token.content, token.info.split(" ")[0])
        for token in _tokens(page)
        if token.type in ("fence", "code_block")
    ]
    return [block for block in found if not languages or block.about in languages]


def inline_code(page: Path) -> list[PagePart]:
    """Return everything between backquotes outside of code blocks."""
    inner = _inner(page)
    return [
        PagePart(page_name(page), line, token.content) for line, token in inner if token.type == "code_inline"
    ]


def links(page: Path) -> list[PagePart]:
    """Return the addresses of all links."""
    return [
        PagePart(page_name(page), line, str(token.attrs["href"]))
        for line, token in _inner(page)
        if token.type == "link_open"
    ]


def pictures(page: Path) -> list[PagePart]:
    """Return the addresses of all pictures, with their alternative texts."""
    return [
        PagePart(page_name(page), line, str(token.attrs["src"]), token.content)
        for line, token in _inner(page)
        if token.type == "image"
    ]


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors of a page: those that GitHub and the site make of its headings, and its own."""
    found: list[str] = []
    tokens = _tokens(page)
    for token, content in pairwise(tokens):
        if token.type == "heading_open":
            parts = (part.content for part in content.children or () if part.type in ("text", "code_inline"))
            slug = _slug("".join(parts))
            found.append(slug if (times := found.count(slug)) == 0 else f"{slug}-{times}")
    return frozenset(found) | set(ANCHOR.findall(page.read_text(encoding="utf-8")))


def _slug(heading: str) -> str:
    """Return the anchor of a heading: GitHub keeps letters, digits and hyphens, and turns spaces into hyphens."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@cache
def _tokens(page: Path) -> tuple[Token, ...]:
    return tuple(MarkdownIt("commonmark").enable("table").parse(_flat(page.read_text(encoding="utf-8"))))


def _inner(page: Path) -> Iterator[tuple[int, Token]]:
    """Yield what is inside of paragraphs, headings and tables, with its line."""
    for token in _tokens(page):
        yield from ((_line(token), child) for child in token.children or ())


def _line(token: Token) -> int:
    return token.map[0] + 1 if token.map else 0


def _flat(text: str) -> str:
    """Return a text in which the contents of tabs and notes are not indented, so that they are not code."""
    lines: list[str] = []
    open_at: list[int] = []
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip(" "))
        while line.strip() and open_at and indent < open_at[-1] + 4:
            open_at.pop()
        lines.append(line[4 * len(open_at) :])
        if CONTAINER.match(line):
            open_at.append(indent)
    return "\n".join(lines) + "\n"
