"""`foveal memory`: the entries in the shell, as text and as JSON, with exit codes for scripts."""

from __future__ import annotations

import json
from subprocess import CompletedProcess
from typing import Any

import pytest

from support.chat_project import ChatProject


def memory(project: ChatProject, *args: str, code: int = 0, input: str = "") -> CompletedProcess[str]:
    done = project.run_piped("memory", *args, input=input)
    assert done.returncode == code, done.stderr
    return done


def entries(project: ChatProject, *args: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(memory(project, *args, "--json").stdout)
    return found


def test_an_entry_from_its_beginning_to_its_end(project: ChatProject) -> None:
    assert memory(project, "list").stdout == "nothing is remembered yet\n"
    assert memory(project, "add", "I", "prefer", "tabs.").stdout == "m0    preference  I prefer tabs.\n"
    [shown] = entries(project, "show", "m0")
    assert (shown["id"], shown["kind"], shown["text"]) == ("m0", "preference", "I prefer tabs.")
    assert "origin       you told it" in memory(project, "show", "m0").stdout
    assert memory(project, "edit", "m0", "I prefer spaces.").stdout == "m0    preference  I prefer spaces.\n"
    assert memory(project, "list", "spaces").stdout == "m0    preference  I prefer spaces.\n"
    assert memory(project, "list", "zebra").stdout == "no entry has these words\n"
    assert memory(project, "forget", "m0").stdout == "m0    preference  I prefer spaces.  (forgotten)\n"
    assert entries(project, "list") == []
    assert [one["forgotten"] for one in entries(project, "list", "--all")] == [True]
    assert memory(project, "undo").stdout == "m0    preference  I prefer spaces.\n"
    assert "I prefer spaces." in (project.home / ".config/foveal/memory.md").read_text()


@pytest.mark.parametrize(
    ("args", "code", "problem"),
    [
        (("show", "m9"), 1, "no entry has the id 'm9'"),
        (("forget", "m9"), 1, "no entry has the id 'm9'"),
        (("add", " "), 1, "there is nothing to remember"),
        (("accept", "m0"), 1, "m0 is no proposal"),
        (("import", "a.txt"), 1, "line 1 is no entry"),
        (("import", "none.jsonl"), 1, "No such file"),
        (("add",), 2, "the following arguments are required: TEXT"),
        (("burn",), 2, "invalid choice"),
        ((), 2, "the following arguments are required"),
    ],
)
def test_the_exit_code_tells_an_error_from_wrong_usage(
    project: ChatProject, args: tuple[str, ...], code: int, problem: str
) -> None:
    memory(project, "add", "The port is 8081.")
    assert problem in memory(project, *args, code=code).stderr


def test_entries_move_with_export_and_import(project: ChatProject) -> None:
    memory(project, "add", "The port is 8081.")
    memory(project, "export", "-o", "memory.jsonl")
    assert "was not overwritten" in memory(project, "export", "-o", "memory.jsonl", code=1).stderr
    assert memory(project, "export").stdout == (project.folder / "memory.jsonl").read_text()
    memory(project, "import", "--project", "memory.jsonl")
    assert [one["id"] for one in entries(project, "list")] == ["m0", "p0"]
    assert [one["id"] for one in entries(project, "list", "--project")] == ["p0"]
    assert "The port is 8081. <!-- p0 -->" in (project.folder / ".foveal/memory.md").read_text()
    memory(project, "import", "-", input=memory(project, "export").stdout)
    assert len(entries(project, "list")) == 2
    memory(project, "forget", "p0")
    assert [one["id"] for one in entries(project, "list")] == ["m0"]
