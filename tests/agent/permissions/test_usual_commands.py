"""Usual commands: what happens with each, as the table in `usual_commands.txt` says it, line by line."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from foveal.agent.permissions.decision import Allowed, Permissions, decide
from foveal.agent.tools import Workspace, call_facts
from foveal.core.log import ToolReturned, text_of
from support.chat_project import ChatProject
from support.effort import some_cases
from support.sandbox_here import shared_folder

TABLE = Path(__file__).with_name("usual_commands.txt")
OUTSIDE = "outside: "
"""Marks a call that leaves the sandbox."""
LINE_BREAK = "⏎"


class Usual(NamedTuple):
    """A command, and what happens with it: in a sandbox; in one where nothing can be restored; without one; in
    `foveal run` without one, where there is no user to ask."""

    sandbox: str
    large: str
    plain: str
    run: str
    command: str

    @property
    def arguments(self) -> dict[str, object]:
        text = self.command.removeprefix(OUTSIDE).replace(LINE_BREAK, "\n")
        return {"command": text} | ({"outside_sandbox": True} if self.command.startswith(OUTSIDE) else {})


def table() -> list[Usual]:
    lines = TABLE.read_text().splitlines()
    return [Usual(*line.split(maxsplit=4)) for line in lines if line and not line.startswith("#")]


@pytest.fixture(scope="module")
def programs() -> Iterator[Path]:
    """A folder with a program of each name in the table, which does nothing; rules name none in /tmp."""
    with TemporaryDirectory(dir=shared_folder()) as folder:
        names = {word for usual in table() for word in str(usual.arguments["command"]).split()}
        for name in (name for name in names if name.isascii() and name.replace("-", "").isalnum()):
            Path(folder, name).write_text("#!/bin/sh\n")
            Path(folder, name).chmod(0o755)
        yield Path(folder)


def fill(folder: Path) -> None:
    """Make a folder a project."""
    for name in ("src/app.py", "tests/test_app.py", "app.log", "AGENTS.md", "run.sh", "note.txt", "out.log"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("x\n")
    subprocess.run(["git", "init", "-q", str(folder)], check=True)


def test_each_command_gets_the_decision_of_the_table(programs: Path, tmp_path: Path) -> None:
    fill(tmp_path)
    workspace = Workspace(tmp_path)

    def found(usual: Usual) -> tuple[str, str, str]:
        facts = call_facts("run", usual.arguments, workspace, search_path=str(programs))
        decisions = (
            decide(replace(facts, is_restorable=True), Permissions(), is_sandboxed=True),
            decide(facts, Permissions(), is_sandboxed=True),
            decide(facts, Permissions()),
        )
        first, second, third = ("runs" if isinstance(each, Allowed) else "asks" for each in decisions)
        return first, second, third

    assert [(*found(usual), usual.command) for usual in table()] == [
        (usual.sandbox, usual.large, usual.plain, usual.command) for usual in table()
    ]


def test_in_a_sandbox_few_commands_ask_and_none_that_only_looks() -> None:
    commands = table()
    assert len(commands) >= 120
    asking = [usual.command for usual in commands if usual.sandbox == "asks"]
    assert all(command.startswith(OUTSIDE) for command in asking)


def test_run_answers_the_same_without_a_user(programs: Path, project: ChatProject) -> None:
    """The programs do nothing, so that an error here harms nothing."""
    fill(project.folder)
    usual = some_cases([each for each in table() if not each.command.startswith(OUTSIDE)], every=4)
    project.script([("run", each.arguments) for each in usual], "Done.")
    env = {"PATH": f"{programs}:{os.path.dirname(shutil.which('bash') or '/bin/bash')}"}
    project.run_piped("run", "--session", "s", "look", env=env)
    answers = [event.fact for event in project.events() if isinstance(event.fact, ToolReturned)]
    ran = ["runs" if "exit status" in text_of(fact.content) else "denied" for fact in answers]
    assert list(zip(ran, usual, strict=True)) == [(each.run, each) for each in usual]
