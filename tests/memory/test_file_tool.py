"""The memory tool answers as Anthropic documents it, and no path leads out of /memories."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from foveal import Memory
from foveal.core.tokens.counter import Estimate
from foveal.errors import BadSetting, NotRemembered
from foveal.memory import MemoryTool, memory_tool
from foveal.memory.files import FILES_LOG_SUFFIX, MAX_FILE_BYTES, MAX_FILES
from foveal.stores import MemoryStore, SqliteStore

PLAN = "/memories/plan.md"


def owned(store: Any = None, owner: str = "ada") -> Memory:
    return Memory(owner, store=store or MemoryStore(), counting=Estimate())


def answers(*calls: dict[str, Any] | str, memory: Memory | None = None) -> list[str]:
    async def run() -> list[str]:
        tool = memory_tool(memory or owned())
        return [await tool.call(call) for call in calls]

    return asyncio.run(run())


def create(path: str = PLAN, text: str = "a\nb\nc\n") -> dict[str, Any]:
    return {"command": "create", "path": path, "file_text": text}


def view(path: str = PLAN, **more: Any) -> dict[str, Any]:
    return {"command": "view", "path": path, **more}


def replace(old: str, new: str, path: str = PLAN) -> dict[str, Any]:
    return {"command": "str_replace", "path": path, "old_str": old, "new_str": new}


def insert(line: Any, text: str, path: str = PLAN) -> dict[str, Any]:
    return {"command": "insert", "path": path, "insert_line": line, "insert_text": text}


def rename(old: str, new: str) -> dict[str, Any]:
    return {"command": "rename", "old_path": old, "new_path": new}


def test_a_folder_is_viewed_with_sizes_two_levels_deep() -> None:
    *_, empty = answers(view("/memories"))
    head = "Here're the files and directories up to 2 levels deep in {}, excluding hidden items and node_modules:"
    assert empty == f"{head.format('/memories')}\n0B\t/memories"
    *_, root, below = answers(
        create("/memories/a.md", "x" * 2_048),
        create("/memories/work/b.md", "12"),
        create("/memories/work/deep/c.md", "345"),
        create("/memories/.hidden", "no"),
        create("/memories/node_modules/d.js", "no"),
        view("/memories/"),
        view("/memories/work"),
    )
    assert root.splitlines() == [
        head.format("/memories"),
        "2.0K\t/memories",
        "2.0K\t/memories/a.md",
        "5B\t/memories/work",
        "2B\t/memories/work/b.md",
        "3B\t/memories/work/deep",
    ]
    assert below.splitlines()[1:] == [
        "5B\t/memories/work",
        "2B\t/memories/work/b.md",
        "3B\t/memories/work/deep",
        "3B\t/memories/work/deep/c.md",
    ]


def test_a_file_is_viewed_with_line_numbers() -> None:
    _, whole, part, rest, wrong, missing = answers(
        create(),
        view(),
        view(view_range=[2, 2]),
        view(view_range=[2, -1]),
        view(view_range=[4, 9]),
        view("/memories/none.md"),
    )
    head = f"Here's the content of {PLAN} with line numbers:"
    assert whole == f"{head}\n     1\ta\n     2\tb\n     3\tc"
    assert part == f"{head}\n     2\tb"
    assert rest == f"{head}\n     2\tb\n     3\tc"
    assert wrong.startswith("Error: Invalid `view_range` parameter")
    assert missing == "The path /memories/none.md does not exist. Please provide a valid path."


def test_a_file_is_created_once() -> None:
    assert answers(create(), create()) == [
        f"File created successfully at: {PLAN}",
        f"Error: File {PLAN} already exists",
    ]


def test_a_text_that_occurs_once_is_replaced() -> None:
    _, done, missing, twice, nowhere, seen = answers(
        create(text="one\ntwo\none\n"),
        replace("two", "2"),
        replace("three", "3"),
        replace("one", "1"),
        replace("a", "b", "/memories/none.md"),
        view(),
    )
    assert done == "The memory file has been edited.\n     1\tone\n     2\t2\n     3\tone"
    assert missing == f"No replacement was performed, old_str `three` did not appear verbatim in {PLAN}."
    assert twice == (
        "No replacement was performed. Multiple occurrences of old_str `one` in lines: 1, 3."
        " Please ensure it is unique"
    )
    assert nowhere == "Error: The path /memories/none.md does not exist. Please provide a valid path."
    assert seen.endswith("     1\tone\n     2\t2\n     3\tone")


def test_lines_are_inserted() -> None:
    _, done, first, last, wrong, missing, seen = answers(
        create(text="a\nb"),
        insert(1, "new\n"),
        insert(0, "top"),
        insert(4, "end"),
        insert(9, "no"),
        insert(0, "no", "/memories/none.md"),
        view(),
    )
    assert {done, first, last} == {f"The file {PLAN} has been edited."}
    assert wrong == (
        "Error: Invalid `insert_line` parameter: 9. It should be within the range of lines of the file: [0, 5]"
    )
    assert missing == "Error: The path /memories/none.md does not exist"
    assert [line[7:] for line in seen.splitlines()[1:]] == ["top", "a", "new", "b", "end"]


def test_files_and_folders_are_deleted_and_renamed() -> None:
    assert answers(
        create("/memories/work/a.md"),
        create("/memories/b.md"),
        rename("/memories/work/a.md", "/memories/b.md"),
        rename("/memories/none.md", "/memories/c.md"),
        rename("/memories/work", "/memories/work/inner"),
        rename("/memories/work", "/memories/done"),
        {"command": "delete", "path": "/memories/work"},
        {"command": "delete", "path": "/memories/done"},
        {"command": "delete", "path": "/memories"},
    )[2:] == [
        "Error: The destination /memories/b.md already exists",
        "Error: The path /memories/none.md does not exist",
        "Error: /memories/work cannot be moved into itself",
        "Successfully renamed /memories/work to /memories/done",
        "Error: The path /memories/work does not exist",
        "Successfully deleted /memories/done",
        "Error: /memories itself cannot be deleted or renamed",
    ]


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "memories/a",
        "/memoriesx/a",
        "/Memories/a",
        "/memories/../etc/passwd",
        "/memories/a/../../b",
        "/memories/./a",
        "/memories//a",
        "/memories/ .. /a",
        "/memories/..\\..\\a",
        "/memories/%2e%2e%2fa",
        "/memories/%252e%252e/a",
        "/memories/．．/a",
        "/memories／..／a",
        "/memories/‥/a",
        "/memories/a\u200b",
        "/memories/\u202egpj.exe",
        "/memories/a\x00b",
        "/memories/a\nb",
        "/memories/" + "a" * 500,
        "",
        None,
        7,
        ["/memories/a"],
    ],
)
def test_no_path_leads_out_of_the_memory(path: Any) -> None:
    memory = owned()
    calls = [
        create(path),
        view(path),
        replace("a", "b", path),
        insert(0, "a", path),
        {"command": "delete", "path": path},
        rename(path, "/memories/b"),
        rename("/memories/a", path),
    ]
    assert all(
        answer.startswith("Error: ") for answer in answers(create("/memories/a"), *calls, memory=memory)[1:]
    )
    assert list(asyncio.run(memory.files.texts())) == ["/memories/a"]


@pytest.mark.parametrize(
    "call",
    ["", "[]", "{", {}, {"command": "chmod"}, {"command": ["view"]}, {"command": "create", "path": PLAN}],
)
def test_a_wrong_call_is_answered(call: Any) -> None:
    (answer,) = answers(call)
    assert answer.startswith("Error: ")


def test_a_file_cannot_be_a_folder() -> None:
    memory = owned()
    assert answers(
        create(),
        create(f"{PLAN}/a.md"),
        create("/memories/work/a.md"),
        create("/memories/work"),
        memory=memory,
    )[1::2] == [
        f"Error: {PLAN}/a.md would be in a file: choose another path",
        "Error: /memories/work is a folder",
    ]


def test_sizes_are_bounded() -> None:
    memory = owned()
    too_large, *_ = answers(create(text="é" * (MAX_FILE_BYTES // 2 + 1)), create(), memory=memory)
    assert "at most 100,000 are kept" in too_large
    grown = answers(insert(0, "x" * MAX_FILE_BYTES), memory=memory)
    assert grown[0].startswith("Error: the file would have")
    many = answers(*(create(f"/memories/{number}", "") for number in range(MAX_FILES)), memory=memory)
    assert "delete what is not needed" in many[-1]
    assert len(asyncio.run(memory.files.texts())) == MAX_FILES


def test_a_secret_is_not_kept() -> None:
    *_, seen = answers(create(text="key: sk-ant-api03-" + "Ab1" * 31 + "AA"), view())
    assert "Ab1Ab1" not in seen


def test_each_change_has_a_version_and_can_be_undone() -> None:
    async def run() -> None:
        memory = owned()
        tool = memory_tool(memory)
        for call in (
            create(text="one"),
            replace("one", "two"),
            rename(PLAN, "/memories/old.md"),
            {"command": "delete", "path": "/memories/old.md"},
        ):
            assert not (await tool.call(call)).startswith("Error")
        assert await memory.files.texts() == {}
        assert [version.text for version in await memory.files.versions(PLAN)] == ["one", "two"]
        expected = [{"/memories/old.md": "two"}, {PLAN: "two"}, {PLAN: "one"}, {}]
        for texts in expected:
            await memory.files.undo()
            assert await memory.files.texts() == texts
        with pytest.raises(NotRemembered, match="nothing to take back"):
            await memory.files.undo()
        await memory.files.write(PLAN, "three")
        assert await memory.files.texts() == {PLAN: "three"}

    asyncio.run(run())


def test_files_are_kept_by_the_store_for_one_owner_and_erased_with_the_memory(tmp_path: Path) -> None:
    async def run() -> None:
        path = tmp_path / "a.db"
        async with SqliteStore(str(path)) as store:
            ada = owned(store)
            await memory_tool(ada).call(create(text="zebra-crossing"))
        async with SqliteStore(str(path)) as store:
            ada, grace, other = owned(store), owned(store, "grace"), owned(store)
            assert await other.files.texts() == await ada.files.texts() == {PLAN: "zebra-crossing"}
            assert await grace.files.texts() == {}
            assert await ada.entries(all=True) == []
            assert await store.sessions() == []
            await ada.erase()
            assert await ada.files.texts() == await other.files.texts() == {}
            await other.files.write(PLAN, "again")
            assert await owned(store).files.texts() == {PLAN: "again"}
        assert b"zebra" not in b"".join(file.read_bytes() for file in tmp_path.iterdir())

    asyncio.run(run())


def test_writers_at_the_same_time_all_keep_their_files(tmp_path: Path) -> None:
    async def run() -> None:
        async with SqliteStore(str(tmp_path / "a.db")) as store:
            tools = [memory_tool(owned(store)) for _ in range(4)]
            calls = (tools[n % 4].call(create(f"/memories/{n}.md", str(n))) for n in range(24))
            assert all(answer.startswith("File created") for answer in await asyncio.gather(*calls))
            same = await asyncio.gather(*(tool.call(create("/memories/same.md")) for tool in tools))
            assert sorted(answer.startswith("Error") for answer in same) == [False, True, True, True]
            assert len(await owned(store).files.texts()) == 25

    asyncio.run(run())


def test_other_providers_get_a_function_with_the_same_arguments() -> None:
    tool = MemoryTool(owned().files)
    assert tool.tools("anthropic") == [{"type": "memory_20250818", "name": "memory"}]
    (schema,) = tool.tools("openai_chat")
    assert schema["function"]["name"] == "memory"
    assert {"command", "path", "old_path", "insert_text"} <= schema["function"]["parameters"][
        "properties"
    ].keys()
    assert answers(json.dumps(create())) == [f"File created successfully at: {PLAN}"]
    with pytest.raises(BadSetting):
        tool.tools("smoke")  # type: ignore[arg-type]


def test_no_owner_has_the_name_of_the_files_of_another() -> None:
    with pytest.raises(BadSetting):
        owned(owner=f"ada{FILES_LOG_SUFFIX}")
