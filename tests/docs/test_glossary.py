"""The glossary is true: its words are in use, its names exist, and the pages that use its core words link to it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

import msgspec
import pytest

import foveal
from foveal import Limits, Policy
from foveal.adapters.openai_agents import FovealSession
from foveal.agent.terminal.commands import SLASH_COMMANDS, SLASH_COMMANDS_BY_NAME
from foveal.config.keys import KEYS
from foveal.core.engine.context_arguments import ContextArguments
from foveal.core.engine.report import Report
from foveal.core.policies.presets import PRESETS
from foveal.core.policies.presets import policy as preset
from support.doc_pages import DOCS, SITE_PAGES, page_name, page_text
from support.paths import ROOT

GLOSSARY: Final = page_text("glossary")
CORE_WORDS: Final = {
    "calibration": r"calibrat(?:ion|ed)",
    "dialect": "dialects?",
    "floor": "floor",
    "fold": "fold(?:s|ed)?",
    "handle": "handles?",
    "ledger": "ledgers?",
    "level": "(?<!-)levels?",
    "margin": "margin",
    "placeholder": "placeholders?",
    "prefix break": "prefix breaks?",
    "reserve": "reserve",
    "room": "the room",
    "skeleton": "skeletons?",
}
"""Words whose meaning here a newcomer cannot guess, with their forms."""
GENERATED: Final = re.compile(r"^(reference/(?!config|errors|policies|report$)\w[\w-]*)$")
"""Pages that are made from docstrings and from the parser."""
RECALL_TOOLS: Final = {"recall_search", "recall_read"}
"""The tools that a row may name."""
UNCHECKED: Final = {"file://", "thread_id", "clear_tool_uses_20250919"}
"""Names of others, and a scheme, in the column about Foveal."""


def section(heading: str) -> str:
    """Return the part of the glossary below a heading."""
    return GLOSSARY.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def rows(heading: str) -> list[list[str]]:
    """Return the rows of the table below a heading, without its first two lines."""
    lines = [line for line in section(heading).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


OWN_WORDS: Final = rows("Foveal's own words")
FIELD_WORDS: Final = rows("From the field's word to Foveal")
OPTIONS: Final = rows("Options of other products")


def sort_key(text: str) -> str:
    """Return a text without marks and capitals."""
    return re.sub(r"[`\"/]", "", text).casefold()


@pytest.mark.parametrize("table", [OWN_WORDS, FIELD_WORDS, OPTIONS], ids=["own", "field", "options"])
def test_a_table_is_sorted_and_each_row_has_all_cells(table: list[list[str]]) -> None:
    names = [sort_key(row[0]) for row in table]
    assert names == sorted(names)
    assert {len(row) for row in table} == {len(table[0])}
    assert all(all(row) for row in table)


def test_a_word_or_option_is_explained_once() -> None:
    assert len({row[0] for row in OWN_WORDS}) == len(OWN_WORDS)
    assert len({row[0] for row in FIELD_WORDS}) == len(FIELD_WORDS)
    assert len({(row[0], row[1]) for row in OPTIONS}) == len(OPTIONS) <= 40


def other_texts() -> str:
    """Return the texts in which the words of the glossary occur: the other pages and the help of the chat."""
    pages = [page.read_text(encoding="utf-8") for page in SITE_PAGES if page_name(page) != "glossary"]
    return "\n".join([*pages, *(command.description for command in SLASH_COMMANDS)])


def test_every_own_word_is_used_outside_of_the_glossary() -> None:
    texts = other_texts()
    unused = [word for word, _ in OWN_WORDS if not re.search(rf"\b{word}", texts, re.IGNORECASE)]
    assert unused == []


# ── Names ────────────────────────────────────────────────────────────────────────────────────────────────


def known_names() -> set[str]:
    """Return the settings, arguments, presets, tools and public names that a row may name."""
    keys = {".".join(part.replace("*", "NAME") for part in key.path) for key in KEYS}
    fields = {field.name for struct in (Policy, Limits, Report) for field in msgspec.structs.fields(struct)}
    arguments = ContextArguments.__annotations__.keys() | {"store"}
    public = {*foveal.__all__, *dir(foveal.Context), FovealSession.__name__}
    return keys | fields | arguments | RECALL_TOOLS | set(PRESETS) | public


def unknown_name(code: str) -> str | None:
    """Return what is wrong with a piece of code in the column about Foveal; None if it exists."""
    if code in UNCHECKED:
        return None
    if code.startswith("/"):
        return None if code.split()[0] in SLASH_COMMANDS_BY_NAME or code.startswith("/api") else "no command"
    if code.startswith("foveal "):
        return None  # tests/docs/test_command_lines.py parses it
    if call := re.match(r"(ctx|session|Session|Context|report\(\))\.(\w+)", code):
        owner = {"ctx": foveal.Context, "session": foveal.Session, "Session": foveal.Session}.get(call[1])
        has = hasattr(owner or Report, call[2])
        return None if has else f"{call[1]} has no {call[2]}"
    if setting := re.fullmatch(r"([\w.-]+)\s*=\s*(.*)", code):
        name, value = setting.groups()
        if name == "mode" or name.endswith(".mode"):
            preset("economy", mode=value.strip('"'))  # type: ignore[arg-type]
        return None if name in known_names() else f"no setting {name}"
    return None if code.split("(")[0] in known_names() else "no such name"


@pytest.mark.parametrize("row", OPTIONS, ids=lambda row: f"{row[0]} {row[1]}"[:60])
def test_every_name_in_the_column_about_foveal_exists(row: list[str]) -> None:
    found = {code: unknown_name(code) for code in re.findall(r"`([^`]+)`", row[2])}
    assert {code: problem for code, problem in found.items() if problem} == {}


def test_every_policy_setting_and_key_of_the_second_table_exists() -> None:
    dotted = [
        code
        for row in FIELD_WORDS
        for code in re.findall(r"`((?:compaction|context|instructions|server)\.[\w.]+)`", row[3])
    ]
    plain = [code for row in FIELD_WORDS for code in re.findall(r"`([a-z]+_[a-z_]+)`", row[3])]
    assert len(dotted) > 5
    assert [name for name in (*dotted, *plain) if name not in known_names()] == []


def test_the_recall_tools_have_the_names_of_the_glossary() -> None:
    assert {tool["name"] for tool in foveal.recall.tools("anthropic")} == RECALL_TOOLS


def test_the_definitions_name_all_dialects_levels_and_modes() -> None:
    meanings = dict(OWN_WORDS)
    assert re.findall(r"`(\w+)`", meanings["level"]) == ["full", "clipped", "masked", "summarised", "dropped"]
    assert sorted(re.findall(r"`(\w+)`", meanings["mode"])) == ["auto", "confirm", "off"]
    dialects = page_text("how-it-works/dialects")
    names = re.split(", | or ", meanings["dialect"].split(": ")[1])
    assert names == re.findall(r"^\| (\w[\w ]+) \| .* \| .*\|$", dialects, re.MULTILINE)[1:6]


# ── Links ────────────────────────────────────────────────────────────────────────────────────────────────


def prose(page: Path) -> str:
    """Return a page without code, drawings, tables' separators and addresses of links."""
    text = re.sub(r"^( *)```.*?^\1```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`]*`|<!--.*?-->", "", text)
    return re.sub(r"\]\([^)]*\)|\]\[[^]]*\]", "]", text)


def core_words(text: str) -> list[str]:
    """Return the core words in a text."""
    return [word for word, forms in CORE_WORDS.items() if re.search(rf"\b{forms}\b", text)]


def links_to_glossary(page: Path) -> bool:
    """Return whether a page links to the glossary."""
    path = os.path.relpath(DOCS / "glossary.md", page.parent)
    return re.search(rf"\]\({re.escape(path)}(#[\w-]+)?\)", page.read_text(encoding="utf-8")) is not None


CHECKED_PAGES: Final = [
    page
    for page in (*SITE_PAGES, ROOT / "README.md")
    if page_name(page) != "glossary" and not GENERATED.match(page_name(page))
]


@pytest.mark.parametrize("page", CHECKED_PAGES, ids=page_name)
def test_a_page_with_a_core_word_links_to_the_glossary(page: Path) -> None:
    words = core_words(prose(page))
    assert not words or links_to_glossary(page), words


def test_every_core_word_is_in_the_glossary() -> None:
    assert set(CORE_WORDS) <= {word for word, _ in OWN_WORDS}
