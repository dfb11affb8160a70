"""The release checklist: each item finds what it is for, and holds for this checkout where that is quick to see."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest
from tools import release

GOOD = "# Changes\n\n## 1.2.0 (unreleased)\n\n### New\n\n- A line.\n\n### Fixed\n\n- Another.\n"
HOST = "https://files." + "registry.test/simple"


@pytest.mark.parametrize("item", ["versions", "changelog", "files", "addresses"])
def test_the_quick_items_hold(item: str) -> None:
    assert list(release.ITEMS[item](release.Options())) == []


def test_the_run_prints_a_line_for_each_item(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "log").write_text(
        "== 3 failed, 1,204 passed in 1:02:03 ==\n= 1 failed, 20 passed in 3.21s =\n"
    )
    names = ("versions", "tests", "changes")
    assert release.run(names, release.Options(tests=tmp_path / "log")) == 1
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == [
        "ok      versions",
        "failed  tests",
        "        1 failed, 20 passed",
        "open    changes",
    ]
    assert release.run(["tests"], release.Options()) == 0
    (tmp_path / "log").write_text("4031 passed, 12 skipped in 512.33s (0:08:32)\n")
    assert release.run(["tests"], release.Options(tests=tmp_path / "log")) == 0


def test_a_good_changelog_has_no_problems() -> None:
    dated = GOOD.replace("unreleased", date(2026, 1, 2).isoformat())
    assert list(release.changelog_problems(GOOD, "1.2.0", final=False)) == []
    assert list(release.changelog_problems(dated, "1.2.0", final=True)) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (GOOD, "1.2.0 has no date"),
        (GOOD.replace("1.2.0", "1.1.0"), "the newest entry is 1.1.0, the package has version 1.2.0"),
        (
            GOOD.replace("unreleased", "soon"),
            "the heading '1.2.0 (soon)' is no version with a date or `unreleased`",
        ),
        (
            GOOD.replace("### New", "### Nice"),
            "1.2.0 has the sections Nice, Fixed; they are New, Changed, Fixed",
        ),
        (GOOD.replace("- Another.", ""), "section Fixed of 1.2.0 is empty"),
        ("# Changes\n", "there is no entry"),
    ],
)
def test_a_wrong_changelog_is_found(text: str, problem: str) -> None:
    assert problem in list(release.changelog_problems(text, "1.2.0", final=True))


def test_addresses_of_registries_and_paths_are_found() -> None:
    text = f"see {HOST}/foveal and https://registry.example.org/a, made in /home/ada/foveal/x"
    assert list(release.addresses(text, ["/home/ada/foveal/"])) == [
        HOST.removesuffix("/simple"),
        "/home/ada/foveal/",
    ]
