"""Reads the pages of the documentation and their code blocks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from support.paths import ROOT

DOCS: Final = ROOT / "docs"
SITE_PAGES: Final = sorted(DOCS.rglob("*.md"))
"""The pages of the site."""
ROOT_PAGES: Final = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "AGENTS.md", "CHANGELOG.md")]
PAGES: Final = [*ROOT_PAGES, *SITE_PAGES]


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
