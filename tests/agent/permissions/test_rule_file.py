"""The file of rules: two processes, damage, age, and its mode."""

from __future__ import annotations

import json
import stat
import time
from pathlib import Path
from subprocess import DEVNULL

import pytest
from msgspec.structs import replace

from foveal.agent.permissions.command_rules import RULE_LIFETIME_S, CommandRule, RuleFile
from support import warm_start

RULE = CommandRule(words=("git", "status"), is_prefix=True, project="/p", program="/usr/bin/git")


def stored(file: RuleFile, **which: str) -> list[CommandRule]:
    return [replace(rule, expires_at=None) for rule in file.rules(**which)]


def test_a_rule_is_stored_for_30_days_and_removed(tmp_path: Path) -> None:
    file = RuleFile(tmp_path / "state" / "permissions.json")
    assert file.rules() == ()
    other = replace(RULE, project="/q")
    file.add(RULE, other)
    file.add(RULE)
    assert stored(RuleFile(file.path)) == [other, RULE]
    assert stored(file, project="/p") == [RULE]
    (rule,) = file.rules(project="/p")
    assert rule.expires_at == pytest.approx(time.time() + RULE_LIFETIME_S, abs=60)
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.path.parent.stat().st_mode) == 0o700
    file.remove(rule)
    assert stored(file) == [other]


def test_a_damaged_file_has_no_rules_and_says_so(tmp_path: Path) -> None:
    file = RuleFile(tmp_path / "permissions.json")
    for text in ("{", '{"rules": [{"words": 3}]}', "\0"):
        file.path.write_text(text)
        assert file.rules() == ()
        assert file.problem.startswith(f"{file.path} is damaged, so no rule of it counts: ")
    file.add(RULE)
    assert (stored(file), file.problem) == ([RULE], "")


def test_rules_that_the_user_cannot_have_agreed_to_are_ignored(tmp_path: Path) -> None:
    file = RuleFile(tmp_path / "permissions.json")
    file.add(RULE)
    (good,) = json.loads(file.path.read_text())["rules"]
    now = time.time()
    bad = [
        good | {"expires_at": now - 1},
        good | {"expires_at": now + 365 * 24 * 3600},
        good | {"expires_at": None},
        good | {"words": ["rm", "-f"], "program": "/usr/bin/rm"},
        good | {"words": ["git"]},
        good | {"words": []},
        good | {"program": ""},
        good | {"project": ""},
        good | {"is_prefix": False},
    ]
    file.path.write_text(json.dumps({"rules": [*bad, good]}))
    assert stored(file) == [RULE]
    assert file.problem == ""


@pytest.mark.long
def test_two_processes_lose_no_rule(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from subprocess import DEVNULL
from foveal.agent.permissions.command_rules import CommandRule
from foveal.agent.permissions.command_rules import RuleFile
file, project = RuleFile(Path(sys.argv[1])), sys.argv[2]
for number in range(15):
    file.add(CommandRule(words=("ls", str(number)), is_prefix=True, project=project, program="/bin/ls"))
"""
    program, folder = tmp_path / "program.py", tmp_path / "rules"
    program.write_text(code)
    folder.mkdir()
    path = folder / "permissions.json"
    workers = [warm_start.start([program, path, name], stdin=DEVNULL) for name in ("/a", "/b")]
    assert [worker.wait(timeout=240) for worker in workers] == [0, 0]
    assert len(RuleFile(path).rules()) == 30
    assert sorted(each.name for each in folder.iterdir()) == ["permissions.json", "permissions.json.lock"]
