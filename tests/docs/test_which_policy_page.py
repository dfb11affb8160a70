"""The page "Which policy" names every preset, and only presets and settings that exist."""

from __future__ import annotations

import re

import pytest

from foveal import PRESETS, Policy
from support.doc_pages import code_blocks, page_text
from support.paths import ROOT

PAGE = page_text("which-policy")
STRATA = ["≤ 1", "1–3", "3–8"]
MEASURED = [name for name in PRESETS if name != "plain"]  # which depends on the numbers it is given
NUMBER = re.compile(r"\d+(?:,\d{3})+|\d+\.\d+")
"""A figure: a number with a decimal point, or with thousands."""


def section(heading: str) -> str:
    return PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def table_under(heading: str) -> list[list[str]]:
    """Return the cells of all table rows of a section, without their header lines."""
    lines = [line for line in section(heading).splitlines() if line.startswith("|")]
    headers = {number - 1 for number, line in enumerate(lines) if line.startswith("|---")}
    rows = (
        line for number, line in enumerate(lines) if number not in headers and not line.startswith("|---")
    )
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in rows]


def code_in(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def presets_in(text: str) -> set[str]:
    return set(code_in(text)) & set(PRESETS)


def test_every_row_of_the_decision_table_recommends_a_preset() -> None:
    assert all(presets_in(preset) for _, preset, _ in table_under("Choose"))


def test_every_preset_is_recommended_for_something() -> None:
    assert {name for _, preset, _ in table_under("Choose") for name in presets_in(preset)} == set(PRESETS)


def test_the_decision_table_names_no_other_policy() -> None:
    named = {name for _, preset, _ in table_under("Choose") for name in code_in(preset)}
    assert {name for name in named if "=" not in name} == set(PRESETS)


def test_every_stratum_has_figures_of_every_preset() -> None:
    rows = [row for row in table_under("Figures") if len(row) == 9]
    shown: dict[str, list[str]] = {}
    stratum = ""
    for pressure, preset, *_ in rows:
        stratum = pressure or stratum
        shown.setdefault(stratum, []).extend(code_in(preset))
    assert shown == dict.fromkeys(STRATA, MEASURED)


def test_the_table_of_all_calls_has_every_preset() -> None:
    rows = [row for row in table_under("Figures") if len(row) == 6]
    assert [name for row in rows for name in code_in(row[0])] == MEASURED


def test_every_figure_of_the_decision_table_is_among_the_figures() -> None:
    figures = set(NUMBER.findall(section("Figures")))
    quoted = {figure for *_, why in table_under("Choose") for figure in NUMBER.findall(why)}
    assert quoted - figures == set()


@pytest.mark.parametrize(
    "name",
    sorted(
        {name for code in code_in(PAGE) for name in re.findall(r"^(\w+)=", code)}
        | {name for block in code_blocks(PAGE) for name in re.findall(r'policy\("[\w-]+", (\w+)=', block)}
        | {name for block in code_blocks(PAGE, "sh") for name in re.findall(r"--sweep (\w+)=", block)}
    ),
)
def test_a_setting_of_the_page_exists(name: str) -> None:
    assert name in (*Policy.__struct_fields__, "cut_at")


def test_the_readme_has_the_figures_of_the_default_policy() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?:at most|\d to \d)[^|]* \| (.*) \|$", readme, re.MULTILINE)
    figures = [row for row in table_under("Figures") if len(row) == 9 and row[1] == "`economy`"]
    assert [NUMBER.findall(row) for row in rows] == [
        [number for place in (2, 4, 5, 6, 7) for number in NUMBER.findall(row[place])[:1]] for row in figures
    ]


def test_the_command_of_the_figures_replays_every_preset() -> None:
    commands = [re.findall(r"--policy ([\w-]+)", block) for block in code_blocks(PAGE, "sh")]
    assert MEASURED in commands
