"""The page that compares Foveal with other products names a public source for each of their cells."""

from __future__ import annotations

import re
from typing import Final

import pytest

from support.doc_pages import page_text
from support.paths import ROOT

PAGE: Final = page_text("comparison")
BODY, SOURCES = PAGE.split("\n## Sources\n")
MEASURED: Final = BODY.partition("\n## Measured\n")[2].partition("\n## Where others are better\n")[0]
ADDRESSES: Final = {
    int(number): url for number, url in re.findall(r"^\[(\d+)\]: (\S+)$", SOURCES, re.MULTILINE)
}
LISTED: Final = [int(number) for number in re.findall(r"\[(\d+)\](?!:)", SOURCES)]
REGISTRIES: Final = re.compile(
    r"pypi\.org|pythonhosted\.org|npmjs\.(com|org)|crates\.io|unpkg\.com", re.IGNORECASE
)
WITHOUT_SOURCE: Final = {"product", "version"}
"""Columns that name what was read."""


def used_numbers(text: str) -> set[int]:
    """Return the numbers of the sources that a text names."""
    return {int(number) for number in re.findall(r"\[(\d+)\]", text)}


def tables() -> list[list[list[str]]]:
    """Return the tables of features as rows of cells, the heading first; those with measured figures come later."""
    blocks = re.findall(r"(?:^\|.*\|\n)+", BODY.split("\n## Measured\n")[0], re.MULTILINE)
    rows = ([line.strip("|").split("|") for line in block.splitlines()] for block in blocks)
    return [[[cell.strip() for cell in row] for row in table] for table in rows]


def test_every_source_that_is_named_exists_and_every_source_is_named() -> None:
    assert used_numbers(BODY) == set(ADDRESSES)


def test_the_list_has_every_source_once_in_order() -> None:
    assert LISTED == list(ADDRESSES) == list(range(1, len(ADDRESSES) + 1))


def test_a_source_is_a_public_address_and_not_a_package_registry() -> None:
    assert [url for url in ADDRESSES.values() if not url.startswith("https://")] == []
    assert len(set(ADDRESSES.values())) == len(ADDRESSES)
    assert REGISTRIES.findall(PAGE) == []


@pytest.mark.parametrize("table", tables(), ids=lambda table: table[0][1])
def test_every_row_of_a_table_has_as_many_cells_as_its_heading(table: list[list[str]]) -> None:
    assert [row for row in table if len(row) != len(table[0]) or "" in row] == []


@pytest.mark.parametrize("table", tables(), ids=lambda table: table[0][1])
def test_every_cell_of_another_product_has_a_source(table: list[list[str]]) -> None:
    heading, _, foveal, *others = table
    assert foveal[0] == "**Foveal**"
    assert not used_numbers(" ".join(foveal))
    without = [
        f"{row[0]}: {cell}"
        for row in others
        for column, cell in zip(heading, row, strict=True)
        if column not in WITHOUT_SOURCE and not used_numbers(cell)
    ]
    assert without == []


def test_the_measured_versions_are_the_pinned_ones() -> None:
    pinned = (ROOT / "bench/peers-constraints.txt").read_text(encoding="utf-8").split()
    named = re.findall(
        r"(langchain|langchain-core|pydantic-ai-harness|strands-agents)\s+(\d[\d.]*\d)", MEASURED
    )
    assert {name for name, _ in named} == {
        "langchain",
        "langchain-core",
        "pydantic-ai-harness",
        "strands-agents",
    }
    assert [f"{name}=={version}" for name, version in named if f"{name}=={version}" not in pinned] == []


def test_every_figure_of_the_conclusions_is_in_a_table() -> None:
    tables = "\n".join(re.findall(r"^\|.*\|$", PAGE + page_text("measure/benchmarks"), re.MULTILINE))
    prose = re.sub(r"^\|.*\|$", "", MEASURED.split("\n### CPU time\n")[0], flags=re.MULTILINE)
    sentences = prose.partition("### Surprise and cost")[2]
    assert [figure for figure in re.findall(r"\d+\.\d+", sentences) if figure not in tables] == []


def test_every_table_has_the_same_products_in_the_same_order() -> None:
    products = [[row[0] for row in table[2:]] for table in tables()]
    assert len(products) == 7
    assert len(products[0]) == 13
    assert all(names == products[0] for names in products)


def test_every_cell_of_foveal_links_to_a_page_of_its_own() -> None:
    features = [table for table in tables() if "version" not in table[0]]
    assert [
        cell for table in features for cell in table[2][1:] if not re.search(r"\]\([^)]+\.md", cell)
    ] == []
