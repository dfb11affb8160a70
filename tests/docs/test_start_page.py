"""A newcomer finds the answer: each page says at once what it is for, and no page is far from the start page."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from support.doc_pages import SITE_PAGES, page_name, page_text
from support.paths import ROOT

MAX_FIRST_SENTENCE_WORDS = 45
QUESTION = re.compile(r"^\*\*(.+?\?)\*\* (.+?)(?=\n\n|\Z)", re.DOTALL | re.MULTILINE)
MAX_CLICKS = 2
MAX_README_LINES = 120


def links_of(name: str, text: str) -> set[str]:
    """Return the names of the pages that a text on a page links to."""
    targets = re.findall(r"\]\(([^)#\s:]+\.md)(?:#[^)]*)?\)", text)
    folder = os.path.dirname(name)
    return {os.path.normpath(os.path.join(folder, target)).removesuffix(".md") for target in targets}


def clicks_to_pages() -> dict[str, int]:
    """Return for each page how many links lead to it from the start page."""
    clicks = {"index": 0}
    newest = ["index"]
    while newest:
        linked = {target for name in newest for target in links_of(name, page_text(name))}
        depth = clicks[newest[0]] + 1
        newest = sorted(target for target in linked if target not in clicks)
        clicks |= dict.fromkeys(newest, depth)
    return clicks


@pytest.mark.parametrize("page", SITE_PAGES, ids=page_name)
def test_a_page_begins_with_a_sentence_that_says_what_it_is_for(page: Path) -> None:
    title, opening = page.read_text(encoding="utf-8").split("\n\n")[:2]
    assert re.fullmatch("# .+", title)
    sentence = re.match(r"[A-Z`][^|]*?[.:](?=\s|$)", opening)
    assert sentence is not None, opening
    assert len(sentence[0].split()) <= MAX_FIRST_SENTENCE_WORDS


def test_every_page_is_two_links_from_the_start_page() -> None:
    far = {name: clicks for name, clicks in clicks_to_pages().items() if clicks > MAX_CLICKS}
    assert far == {}
    assert {page_name(page) for page in SITE_PAGES} == set(clicks_to_pages())


def test_every_question_is_answered_with_a_link() -> None:
    found = QUESTION.findall(page_text("questions"))
    assert len(found) >= 20
    assert "questions" in links_of("index", page_text("index"))
    assert [question for question, answer in found if not links_of("questions", answer)] == []


def test_the_readme_is_short_and_installs_only_what_exists() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.splitlines()) <= MAX_README_LINES
    for page in (readme, *(page.read_text(encoding="utf-8") for page in SITE_PAGES)):
        commands = re.findall(r"^\s*pip install .*$", page, re.MULTILINE)
        assert [command for command in commands if re.search(r"foveal(?!\S* @ git\+)", command)] == []
