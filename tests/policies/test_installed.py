"""Policies by name: presets, tables of a configuration, entry points."""

from __future__ import annotations

from pathlib import Path

import pytest

import foveal
from foveal import BadSetting
from foveal.config import load
from foveal.policies import find_policy, policy_names
from foveal.replay import policy_choices

MODULE = """
import foveal

class Journals(foveal.Policy, frozen=True):
    tool: str = "journal"

    def decide(self, view, budget, moment):
        return view.hide(result for result in view.results if result.tool == self.tool)

broken = 3
"""
ENTRY_POINTS = """[foveal.policies]
hide-journals = journal_policies:Journals
broken = journal_policies:broken
missing = journal_policies:nothing
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with policies, on the path."""
    folder = tmp_path / "packages"
    about = folder / "journal_policies-1.0.dist-info"
    about.mkdir(parents=True)
    (folder / "journal_policies.py").write_text(MODULE)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: journal-policies\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(str(folder))
    return folder


def test_an_installed_policy_is_found_under_the_name_of_its_entry_point(installed: Path) -> None:
    assert policy_names()[-3:] == ["broken", "hide-journals", "missing"]
    found = find_policy("hide-journals")
    assert (found.name, found.is_own) == ("hide-journals", True)
    assert [choice.label for choice in policy_choices(["hide-journals", "plain"])] == [
        "hide-journals",
        "plain",
    ]


def test_a_table_changes_the_settings_of_an_installed_policy(installed: Path) -> None:
    found = find_policy("mine", {"mine": {"preset": "hide-journals", "tool": "log", "keep_last": 7}})
    assert (found.name, found.is_own, found.keep_last) == ("mine", True, 7)
    assert found.tool == "log"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "problem"),
    [("broken", "gives a int"), ("missing", "raised AttributeError"), ("other", "one of economy, ")],
)
def test_what_is_no_policy_is_refused(installed: Path, name: str, problem: str) -> None:
    with pytest.raises(BadSetting, match=problem):
        find_policy(name)


def config(folder: Path, text: str) -> foveal.Policy:
    (folder / "foveal.toml").write_text(text)
    return load(folder, environ={}, user_folder=folder, project=False).policy()


def test_the_configuration_names_an_installed_policy(installed: Path, tmp_path: Path) -> None:
    assert config(tmp_path, "context.policy = 'hide-journals'").is_own
    text = "context.policy = 'mine'\n[policies.mine]\npreset = 'hide-journals'\ntool = 'log'"
    assert config(tmp_path, text).name == "mine"


def test_the_configuration_has_policies_of_its_own(tmp_path: Path) -> None:
    text = "context.policy = 'mine'\n[policies.mine]\npreset = 'plain'\ncut_at = 9000\nclip = { lines = 50 }"
    limits = foveal.Limits(lines=50)
    assert config(tmp_path, text) == foveal.policy("plain", name="mine", cut_at=9_000, clip=limits)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[policies.mine]\ncut_att = 9000", "cut_att = 9000 is not allowed: no such setting"),
        ("[policies.mine]\ntarget = 3", "target = 3"),
        ("policies.mine = 3", "a policy is a table"),
        ("context.policy = 'mine'\n[policies.other]\ntarget = 0.3", "or a table \\[policies.NAME\\]"),
    ],
)
def test_a_wrong_table_is_refused_with_its_place(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(BadSetting, match=problem):
        config(tmp_path, text)


def test_lines_of_a_configuration_are_a_policy_of_the_replay(tmp_path: Path) -> None:
    path = tmp_path / "tuned.toml"
    path.write_text("[context]\npolicy = 'tuned'\n\n[policies.tuned]\npreset = 'economy'\ntarget = 0.3\n")
    (choice,) = policy_choices([path])
    assert choice == ("tuned", foveal.policy("economy", name="tuned", target=0.3))
