"""File history: rewinding gives the bytes of that point or says that it does not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from foveal.agent.tool import Toolbox
from foveal.agent.tools.change_recording import record_changes
from foveal.agent.tools.file_history import (
    ChangeHistory,
    FileChange,
    FileChanges,
    LeftFile,
    RestorePlan,
    plan_rewind,
    plan_undo,
    present_states,
    read_changes,
    restore_files,
)
from foveal.agent.tools.files import file_tools
from foveal.agent.tools.workspace import Workspace
from foveal.core.log.events import AnyFact, Call, Event, ModelSaid, ToolReturned
from support.effort import examples


class AgentFiles:
    """A workspace whose file tools write a log, and the bytes of the files after each event."""

    def __init__(self, folder: str) -> None:
        self.root = Path(folder).resolve()
        self.workspace = Workspace(self.root)
        self.tools = Toolbox(record_changes(file_tools(self.workspace), self.workspace, self._record))
        self.log: list[Event] = []
        self.states: list[dict[str, bytes]] = []

    def add(self, fact: AnyFact) -> None:
        self.log.append(Event(len(self.log), fact))
        self.states.append(self.files())

    def files(self) -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in self.root.iterdir()}

    async def _record(self, changes: Sequence[FileChange]) -> None:
        self.add(FileChanges(changes=tuple(changes)).to_fact())

    async def call(self, name: str, **arguments: Any) -> str:
        call = Call(id=f"call_{len(self.log) % 3}", name=name, arguments=json.dumps(arguments))
        self.add(ModelSaid(content=(call,)))
        output = await self.tools.call(name, call.arguments)
        assert isinstance(output.content, str)
        self.add(ToolReturned(call_id=call.id, name=name, content=output.content, error=output.error))
        return output.content

    @property
    def history(self) -> ChangeHistory:
        return ChangeHistory.of(self.log)

    def plan(self, to: int) -> RestorePlan:
        return plan_rewind(self.history, to, present_states(self.workspace, self.history.paths()))

    def rewind(self, to: int) -> RestorePlan:
        done = restore_files(self.workspace, self.plan(to))
        self.add(FileChanges(changes=tuple(one.change for one in done.restorations), by="rewind").to_fact())
        return done

    def undo(self) -> RestorePlan:
        record = read_changes(self.log[-1])
        assert record is not None
        present = present_states(self.workspace, self.history.paths())
        return restore_files(self.workspace, plan_undo(self.history, record.changes, present))


TEXTS = st.text(alphabet="ab\n ü", max_size=12)
BYTES = st.sampled_from(
    [b"a\nb\n", b"a\r\nb\r\n", b"\xef\xbb\xbfa\nb", "ab\nü".encode("utf-16"), b"a\xff\nb", b"", b"aaaa\nab\n"]
)
NAMES = st.sampled_from(["one.txt", "two.txt"])
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), NAMES, TEXTS),
        st.tuples(st.just("edit"), NAMES, st.sampled_from("ab\n"), TEXTS, st.booleans()),
        st.tuples(st.just("read"), NAMES),
        st.tuples(st.just("other program"), NAMES, BYTES),
        st.tuples(st.just("deleted"), NAMES),
    ),
    max_size=10,
)


async def perform(agent: AgentFiles, operation: tuple[Any, ...]) -> None:
    kind, name, *rest = operation
    match kind:
        case "write":
            await agent.call("write", path=name, content=rest[0])
        case "edit":
            await agent.call("edit", path=name, old=rest[0], new=rest[1], all=rest[2])
        case "read":
            await agent.call("read", path=name)
        case "other program":
            (agent.root / name).write_bytes(rest[0])
        case _:
            (agent.root / name).unlink(missing_ok=True)


async def perform_all(agent: AgentFiles, operations: list[tuple[Any, ...]]) -> None:
    for operation in operations:
        await perform(agent, operation)


@given(st.dictionaries(NAMES, BYTES), OPERATIONS, st.data())
@examples(30)
def test_a_rewind_gives_the_bytes_of_that_point_or_says_that_it_does_not(
    start: dict[str, bytes], operations: list[tuple[Any, ...]], data: st.DataObject
) -> None:
    with TemporaryDirectory() as folder:
        for name, content in start.items():
            (Path(folder) / name).write_bytes(content)
        agent = AgentFiles(folder)
        agent.add(ModelSaid(content="hi"))
        asyncio.run(perform_all(agent, operations))
        changed = set(agent.history.paths())
        to = data.draw(st.integers(0, len(agent.log) - 1))
        before = agent.files()
        done = agent.rewind(to)
        left = {file.path for file in done.left}
        for path in {one.change.path for one in done.restorations}:
            assert agent.files().get(path) == agent.states[to].get(path) or is_changed_outside(
                operations, path
            )
        for path in left | (set(before) - changed):
            assert agent.files().get(path) == before.get(path)
        assert agent.undo().left == ()
        assert agent.files() == before


def is_changed_outside(operations: list[tuple[Any, ...]], path: str) -> bool:
    """Whether another program changed the file: such a change before the first one of the agent is kept."""
    return any(
        kind in ("other program", "deleted") and Path(path).name == name for kind, name, *_ in operations
    )


@given(st.dictionaries(NAMES, BYTES, min_size=2), OPERATIONS)
@examples(20)
def test_without_other_programs_every_file_that_the_model_has_read_is_restored(
    start: dict[str, bytes], operations: list[tuple[Any, ...]]
) -> None:
    with TemporaryDirectory() as folder:
        for name in ("one.txt", "two.txt"):
            (Path(folder) / name).write_bytes(start[name].replace(b"a\xff\n", b"a\n"))
        agent = AgentFiles(folder)
        own = [operation for operation in operations if operation[0] not in ("other program", "deleted")]
        asyncio.run(perform_all(agent, [("read", "one.txt"), ("read", "two.txt"), *own]))
        assert agent.rewind(0).left == ()
        assert agent.files() == agent.states[0]


def test_edits_are_reversed_without_reading_and_new_files_are_deleted(tmp_path: Path) -> None:
    agent = AgentFiles(str(tmp_path))
    (tmp_path / "a.txt").write_bytes(b"one\r\ntwo\r\ntwo\r\n")

    async def work() -> None:
        await agent.call("edit", path="a.txt", old="one\n", new="")
        await agent.call("edit", path="a.txt", old="two\n", new="2\n", all=True)
        await agent.call("write", path="new.txt", content="new")

    asyncio.run(work())
    assert agent.rewind(0).left == ()
    assert agent.files() == {str(tmp_path / "a.txt"): b"one\r\ntwo\r\ntwo\r\n"}
    assert agent.undo().left == ()
    assert agent.files() == {
        str(tmp_path / "a.txt"): b"2\r\n2\r\n",
        str(tmp_path / "new.txt"): b"new",
    }


def test_a_file_that_is_not_as_the_agent_left_it_is_left_and_named(tmp_path: Path) -> None:
    agent = AgentFiles(str(tmp_path))
    for name in ("mine.txt", "between.txt", "unread.txt"):
        (tmp_path / name).write_text("old")

    async def work() -> None:
        await agent.call("edit", path="mine.txt", old="old", new="new")
        await agent.call("edit", path="between.txt", old="old", new="new")
        (tmp_path / "between.txt").write_text("formatted")
        await agent.call("read", path="between.txt")
        await agent.call("edit", path="between.txt", old="formatted", new="newer")
        (tmp_path / "mine.txt").write_text("mine")

    asyncio.run(work())
    before = agent.files()
    assert agent.rewind(0).left == (
        LeftFile(str(tmp_path / "mine.txt"), "it is not as the agent left it"),
        LeftFile(str(tmp_path / "between.txt"), "something else changed it between the agent's changes"),
    )
    assert agent.files() == before


def test_changes_of_older_sessions_are_named_as_not_recorded(tmp_path: Path) -> None:
    call = Call(id="c", name="write", arguments='{"path": "a.txt", "content": "x"}')
    log = [
        Event(0, ModelSaid(content=(call,))),
        Event(1, ToolReturned(call_id="c", name="write", content="wrote the new file a.txt")),
    ]
    plan = plan_rewind(ChangeHistory.of(log), 0, {})
    assert plan == RestorePlan(left=(LeftFile("a.txt", "the log has no record of its state"),))
