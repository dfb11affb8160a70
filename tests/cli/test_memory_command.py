"""`foveal memory`: the entries in the shell, as text and as JSON, with exit codes for scripts."""

from __future__ import annotations

import asyncio
import json
from subprocess import CompletedProcess
from typing import Any

import msgspec
import pytest

from foveal.memory import EntryOrigin, Memory, MemoryEntry
from foveal.server.api.schemas import entry_to_api
from foveal.stores import open_store
from support.chat_project import ChatProject
from support.effort import rest_in_soak
from support.terminal import Terminal


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
    rest_in_soak(
        [
            (("show", "m9"), 1, "no entry has the id 'm9'"),
            (("add", " "), 1, "there is nothing to remember"),
            (("accept", "m0"), 1, "m0 is no proposal"),
            (("import", "long.jsonl"), 1, "line 2 is no entry: the statement has 501 characters"),
            (("import", "none.jsonl"), 1, "No such file"),
            (("add",), 2, "the following arguments are required: TEXT"),
            (("forget", "m9"), 1, "no entry has the id 'm9'"),
            (("import", "a.txt"), 1, "line 1 is no entry"),
            (("burn",), 2, "invalid choice"),
            ((), 2, "the following arguments are required"),
        ],
        kept=6,
    ),
)
def test_the_exit_code_tells_an_error_from_wrong_usage(
    project: ChatProject, args: tuple[str, ...], code: int, problem: str
) -> None:
    memory(project, "add", "The port is 8081.")
    (project.folder / "long.jsonl").write_text(f'{{"text": "Fine."}}\n{{"text": "{"x" * 501}"}}\n')
    assert problem in memory(project, *args, code=code).stderr


def test_entries_move_with_export_and_import(project: ChatProject) -> None:
    (project.folder / "pyproject.toml").touch()
    memory(project, "add", "The port is 8081.")
    memory(project, "export", "-o", "memory.jsonl")
    assert "was not overwritten" in memory(project, "export", "-o", "memory.jsonl", code=1).stderr
    assert memory(project, "export").stdout == (project.folder / "memory.jsonl").read_text()
    assert json.loads(memory(project, "export").stdout)["origin"] == {"source": "told"}
    memory(project, "import", "--project", "memory.jsonl")
    assert [one["id"] for one in entries(project, "list")] == ["m0", "p0"]
    assert [one["id"] for one in entries(project, "list", "--project")] == ["p0"]
    assert "The port is 8081. <!-- p0 -->" in (project.folder / ".foveal/memory.md").read_text()
    memory(project, "import", "-", input=memory(project, "export").stdout)
    assert len(entries(project, "list")) == 2
    memory(project, "forget", "p0")
    assert [one["id"] for one in entries(project, "list")] == ["m0"]


def test_an_import_needs_only_texts(project: ChatProject) -> None:
    lines = '{"text": "I prefer tabs."}\n{"text": "Never push.", "kind": "rule", "id": "x", "more": 1}\n'
    memory(project, "import", "-", input=lines)
    assert [(one["kind"], one["text"], one["origin"]["source"]) for one in entries(project, "list")] == [
        ("preference", "I prefer tabs.", "imported"),
        ("rule", "Never push.", "imported"),
    ]
    assert "line 1 is no entry" in memory(project, "import", "-", input='{"kind": "rule"}\n', code=1).stderr


def test_the_json_of_an_entry_has_the_fields_of_the_api(project: ChatProject) -> None:
    memory(project, "add", "I prefer tabs.")
    [shown] = entries(project, "show", "m0")
    origin = EntryOrigin(source="told")
    entry = MemoryEntry(id="m0", kind="preference", text="I prefer tabs.", origin=origin, at=shown["at"])
    api = msgspec.to_builtins(entry_to_api(entry))
    assert {name: shown[name] for name in api} == api


def test_entries_are_searched(project: ChatProject) -> None:
    memory(project, "add", "I prefer tabs.")
    memory(project, "add", "The port is 8081.")
    assert [one["id"] for one in entries(project, "search", "which", "port")] == ["m1"]
    assert memory(project, "search", "zebra").stdout == "no entry has these words\n"
    assert "required: WORDS" in memory(project, "search", code=2).stderr


def test_an_undo_says_what_is_not_remembered_any_more(project: ChatProject) -> None:
    memory(project, "add", "I prefer tabs.")
    memory(project, "add", "I prefer spaces.")
    taken_back = memory(project, "undo", "m1").stdout
    assert taken_back.startswith("m1 is not remembered any more: I prefer spaces.\n")
    assert memory(project, "undo").stdout == "m0 is not remembered any more: I prefer tabs.\n"
    assert entries(project, "list") == []


def test_an_undo_takes_the_newest_change_of_both_memories_back(project: ChatProject) -> None:
    (project.folder / ".foveal").mkdir()
    memory(project, "add", "--project", "The build needs Node 22.")
    memory(project, "add", "I prefer tabs.")
    memory(project, "forget", "p0")
    assert memory(project, "undo").stdout == "p0    fact        The build needs Node 22.\n"
    assert memory(project, "undo").stdout == "m0 is not remembered any more: I prefer tabs.\n"


def test_adding_says_what_is_replaced(project: ChatProject) -> None:
    memory(project, "add", "My name is Ada.")
    assert memory(project, "add", "My name is Grace.").stdout == (
        "m1    fact        My name is Grace.\nm0    fact        My name is Ada.  (replaced by m1)\n"
    )


def test_words_in_place_of_an_id_name_the_entries_that_have_them(project: ChatProject) -> None:
    (project.folder / ".foveal").mkdir()
    memory(project, "add", "--project", "The build needs Node 22.")
    memory(project, "add", "I prefer tabs.")
    problem = memory(project, "forget", "prefer tabs", code=1).stderr
    assert "no entry has the id 'prefer tabs'" in problem
    assert "m0 “I prefer tabs.”" in problem


@pytest.mark.parametrize("act", [("add", "x y"), ("list",), ("import", "-"), ("erase", "--yes"), ("undo",)])
def test_a_folder_without_a_project_has_no_memory_of_one(project: ChatProject, act: tuple[str, ...]) -> None:
    done = memory(project, *act, "--project", code=1, input='{"text": "x y"}\n')
    assert "this folder is in no project" in done.stderr
    assert not (project.folder / ".foveal").exists()


def test_an_empty_memory_names_the_owners_of_the_others(project: ChatProject) -> None:
    async def remember() -> None:
        async with open_store(project.store) as store:
            for number in range(12):
                await Memory(f"user-{number:02}", store=store).remember("The port is 8081.")
            await Memory("user-11", store=store).files.write("/memories/notes", "The port is 8081.")

    asyncio.run(remember())
    first, second = memory(project, "list").stdout.splitlines()
    assert first == "nothing is remembered yet"
    about, _, names = second.partition(": ")
    assert about == "the store has memories of other owners, which `foveal inspect` shows"
    assert sorted(names.removesuffix(" and 2 more").split(", ")) == [f"user-{n:02}" for n in range(2, 12)]
    assert entries(project, "list") == []
    memory(project, "add", "I prefer tabs.")
    assert memory(project, "list").stdout == "m0    preference  I prefer tabs.\n"


def test_erasing_asks_and_leaves_no_words_in_the_store_and_the_file(project: ChatProject) -> None:
    memory(project, "add", "The hint is xylophone.")
    memory(project, "edit", "m0", "The hint is marimba.")
    file = project.home / ".config/foveal/memory.md"
    assert "pass --yes" in memory(project, "erase", code=1).stderr
    assert "marimba" in file.read_text()
    assert memory(project, "erase", "--yes").stdout.startswith("erased your memory: 1 entry,")
    assert not file.exists()
    kept = b"".join(path.read_bytes() for path in project.home.glob("chats.db*"))
    assert kept
    assert not any(word in kept for word in (b"xylophone", b"marimba"))
    assert entries(project, "list", "--all") == []
    memory(project, "add", "The hint is tuba.")
    assert [one["text"] for one in entries(project, "list")] == ["The hint is tuba."]
    assert json.loads(memory(project, "erase", "--yes", "--json").stdout) == {"erased": 1}


def test_erasing_asks_at_a_terminal(project: ChatProject) -> None:
    memory(project, "add", "The hint is xylophone.")
    for answer, left in (("n", 1), ("y", 0)):
        with Terminal("memory", "erase", env=project.env, cwd=project.folder) as terminal:
            terminal.see("for good? [y/N]")
            terminal.enter(answer)
            terminal.see("nothing was erased" if left else "erased your memory")
        assert len(entries(project, "list")) == left
