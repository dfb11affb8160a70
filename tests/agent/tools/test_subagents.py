"""Sub-agents: a real loop on a real store, with a provider that answers each task from its own script."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import foveal
from foveal.agent.events import ToolFinished, ToolOutputStreamed
from foveal.agent.loop import Agent
from foveal.agent.tools import Tool, Toolbox, ToolOutput
from foveal.agent.tools.subagents import (
    MAX_PARALLEL_TASKS,
    MAX_TASK_RESULT_CHARS,
    SubAgents,
    TaskLimits,
    TaskUsage,
    is_subagent_id,
    open_task_session,
    recorded_usage,
)
from foveal.core.log import Call, Event, ModelSaid, Opened, ToolReturned, UserSaid, text_of
from foveal.core.tokens import MessageTokens
from foveal.core.tokens.counter import counter
from foveal.core.view.fold import fold
from foveal.core.view.request import Fitted
from foveal.inspector.sessions.collection import SessionCollection
from foveal.recall.archive.source import session_handle
from foveal.recall.archive.store_sources import StoreSource
from foveal.sessions.session import Session
from foveal.testing import Scripted
from support.legality import check_chat


class ByTask:
    """A provider with one script for each first message."""

    name, dialect = "scripted/model", "openai_chat"

    def __init__(self, scripts: Mapping[str, Sequence[Any]]) -> None:
        self.scripts = {task: Scripted(*answers) for task, answers in scripts.items()}
        self.model = next(iter(self.scripts.values())).model
        self.running = self.most_running = 0
        self.together = 0
        """How many tasks must have begun before the first of them is answered."""
        self._have_met = asyncio.Event()

    async def send(self, request: Fitted, *, max_tokens: int) -> AsyncIterator[Any]:
        said = next(fact for fact in request.facts if isinstance(fact, UserSaid))
        self.running += 1
        self.most_running = max(self.running, self.most_running)
        is_task = text_of(said.content) != "go"
        if is_task and self.running >= self.together:
            self._have_met.set()
        try:
            if is_task:
                await asyncio.wait_for(self._have_met.wait(), timeout=60)
            await asyncio.sleep(0.01)
            async for piece in self.scripts[text_of(said.content)].send(request, max_tokens=max_tokens):
                yield piece
        finally:
            self.running -= 1

    async def close(self) -> None:
        pass


def task(prompt: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return ("task", {"prompt": prompt, **more})


def tool(name: str, run: Any, *, needs_approval: bool = False) -> Tool:
    schema: dict[str, Any] = {"type": "object", "properties": {}}
    return Tool(
        name=name,
        description=name,
        parameters=schema,
        run=run,
        describe=lambda _: name,
        needs_approval=needs_approval,
    )


async def look(_: Mapping[str, Any]) -> ToolOutput:
    return ToolOutput(content="looked")


async def stuck(given: Mapping[str, Any]) -> ToolOutput:
    try:
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(given.get("stops_after", 0))
    return ToolOutput(content="too late")


async def nap(_: Mapping[str, Any]) -> ToolOutput:
    await asyncio.sleep(0.5)
    return ToolOutput(content="rested")


class Scene:
    """An agent with sub-agents on a store in a file."""

    def __init__(self, path: Path, scripts: Mapping[str, Sequence[Any]], **limits: Any) -> None:
        self.path, self.provider, self.limits = path, ByTask(scripts), TaskLimits(**limits)
        self.asked: list[str] = []
        self.open_questions = self.most_open = 0

    async def approve(self, call: Call, what: str) -> bool:
        self.asked.append(what)
        self.open_questions += 1
        self.most_open = max(self.most_open, self.open_questions)
        await asyncio.sleep(0.01)
        self.open_questions -= 1
        return True

    async def __aenter__(self) -> Scene:
        self._opened = foveal.open_store(str(self.path / "a.db"))
        self.store = await self._opened.__aenter__()
        self.session = await Session.open(self.store, "a", model=self.provider.model)
        tools = [
            tool("look", look),
            tool("change", look, needs_approval=True),
            tool("stuck", stuck),
            tool("nap", nap),
        ]
        open_task = open_task_session(self.session, self.provider, tools, approve=self.approve)
        subagents = SubAgents(self.session, self.provider, open_task, limits=self.limits)
        self.agent = Agent(
            self.session, self.provider, Toolbox([*tools, subagents.tool()]), approve=self.approve
        )
        return self

    async def __aexit__(self, *problem: Any) -> None:
        await self.session.close()
        await self._opened.__aexit__(*problem)

    async def results(self, text: str = "go") -> list[ToolFinished]:
        return [event async for event in self.agent.run(text) if isinstance(event, ToolFinished)]

    async def children(self) -> dict[str, list[Event]]:
        infos = await self.store.sessions(limit=100)
        return {info.id: await self.store.read(info.id) for info in infos if info.id != "a"}

    async def check_legal(self) -> None:
        """Check the next request of every session."""
        for info in await self.store.sessions(limit=100):
            view = fold(await self.store.read(info.id), MessageTokens(counter("estimate")))
            check_chat(Fitted.of(view).to_openai())


def scene(test: Any, *args: Any, **more: Any) -> None:
    async def run() -> None:
        async with Scene(*args, **more) as opened:
            await asyncio.wait_for(test(opened), 60)
            await opened.check_legal()

    asyncio.run(run())


def test_the_answer_of_a_sub_agent_is_the_result_and_its_session_names_the_calling_event(
    tmp_path: Path,
) -> None:
    async def steps(s: Scene) -> None:
        (done,) = await s.results()
        assert not done.error
        ((id, events),) = (await s.children()).items()
        assert is_subagent_id(id)
        opened = next(event.fact for event in events if isinstance(event.fact, Opened))
        parent, _, seq = opened.origin.rpartition("@")
        calling = await s.session.event(int(seq))
        assert parent == "a"
        assert isinstance(calling.fact, ModelSaid)
        head, _, answer = done.text.partition("\n")
        assert head.startswith("[foveal: sub-agent “count”: ")
        assert head.endswith(f"; session {id}]")
        assert answer == "There are three."
        # The parent's own requests have nothing of what the sub-agent read.
        assert "looked" not in str((await s.session.fit()).to_openai())
        assert (await s.store.info(id)).title == "task: count"

    scripts = {
        "go": [[task("count the files", name="count")], "Three."],
        "count the files": [[("look", {})], "There are three."],
    }
    scene(steps, tmp_path, scripts)


def test_the_inspector_lists_a_sub_agent_below_its_parent(tmp_path: Path) -> None:
    async def steps(s: Scene) -> None:
        await s.results()
        page = await SessionCollection([StoreSource(s.store, "here")]).rows()
        parents = {row.key: row.origin for row in page.rows}
        (below,) = await s.children()
        assert parents == {
            session_handle("here", "a"): "",
            session_handle("here", below): session_handle("here", "a"),
        }

    scene(steps, tmp_path, {"go": [[task("x")], "Ok."], "x": ["done"]})


def test_calls_of_one_answer_run_together_and_at_most_four_at_once(tmp_path: Path) -> None:
    names = [f"part {number}" for number in range(7)]

    async def steps(s: Scene) -> None:
        s.provider.together = MAX_PARALLEL_TASKS
        done = await s.results()
        assert sorted(one.text.partition("\n")[2] for one in done) == sorted(f"did {name}" for name in names)
        assert s.provider.most_running == MAX_PARALLEL_TASKS
        results = [e.fact for e in await s.session.events() if isinstance(e.fact, ToolReturned)]
        assert len({result.call_id for result in results}) == len(names)

    scripts = {
        "go": [[task(name) for name in names], "All."],
        **{n: [[("look", {})], f"did {n}"] for n in names},
    }
    scene(steps, tmp_path, scripts)


def test_a_failure_of_one_sub_agent_is_its_own_result(tmp_path: Path) -> None:
    async def steps(s: Scene) -> None:
        done = {one.call.id: one for one in await s.results()}
        broken, fine = done["call_1_0"], done["call_1_1"]
        assert broken.error
        assert "The sub-agent failed: scripted/model: no such model" in broken.text
        assert fine.text.endswith("fine")

    scripts = {
        "go": [[task("break"), task("work")], "Half."],
        "break": [ValueError("no such model")],
        "work": ["fine"],
    }
    scene(steps, tmp_path, scripts)


def test_a_sub_agent_has_no_tool_that_its_parent_has_not(tmp_path: Path) -> None:
    async def steps(s: Scene) -> None:
        wrong, narrow = await s.results()
        if not wrong.error:
            wrong, narrow = narrow, wrong
        assert "a sub-agent cannot have sudo. The tools are: look, change, stuck, nap, task." in wrong.text
        assert narrow.text.endswith("only look")
        request = s.provider.scripts["narrow"].requests[0]
        assert [one["name"] for one in request.tools] == ["look"]

    scripts = {
        "go": [[task("wide", tools=["look", "sudo"]), task("narrow", tools=["look"])], "Done."],
        "narrow": ["only look"],
        "wide": ["never asked"],
    }
    scene(steps, tmp_path, scripts)


def test_the_deepest_sub_agent_cannot_start_another(tmp_path: Path) -> None:
    async def steps(s: Scene) -> None:
        (done,) = await s.results()
        assert done.text.endswith("level 1")
        assert len(await s.children()) == 2
        deepest = s.provider.scripts["deeper"].requests[-1]
        assert "There is no tool 'task'" in str(deepest.to_openai())

    scripts = {
        "go": [[task("deep")], "Done."],
        "deep": [[task("deeper")], "level 1"],
        "deeper": [[task("deepest")], "level 2"],
    }
    scene(steps, tmp_path, scripts)


def test_what_a_sub_agent_was_not_given_its_own_sub_agent_has_not_either(tmp_path: Path) -> None:
    async def steps(s: Scene) -> None:
        await s.results()
        assert [one["name"] for one in s.provider.scripts["deep"].requests[0].tools] == ["look", "task"]
        assert [one["name"] for one in s.provider.scripts["deeper"].requests[0].tools] == ["look"]

    scripts = {
        "go": [[task("deep", tools=["look", "task"])], "Done."],
        "deep": [[task("deeper")], "level 1"],
        "deeper": ["level 2"],
    }
    scene(steps, tmp_path, scripts)


def test_questions_name_the_sub_agent_and_come_one_at_a_time(tmp_path: Path) -> None:
    async def steps(s: Scene) -> None:
        await s.results()
        assert sorted(s.asked) == ["sub-agent “one” change", "sub-agent “two” change"]
        assert s.most_open == 1

    change = [[("change", {})], "changed"]
    scripts = {
        "go": [[task("1", name="one"), task("2", name="two")], "Done."],
        "1": change,
        "2": list(change),
    }
    scene(steps, tmp_path, scripts)


def test_cancelling_the_parent_ends_all_and_leaves_legal_logs(tmp_path: Path) -> None:
    async def steps(s: Scene) -> None:
        async def have_called() -> bool:
            children = (await s.children()).values()
            return all(any(isinstance(e.fact, ModelSaid) for e in events) for events in children)

        s.provider.together = 2
        running = asyncio.create_task(s.results())
        while len(await s.children()) < 2 or s.provider.most_running < 2 or not await have_called():
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        assert s.provider.running == 0
        results = [e.fact for e in await s.session.events() if isinstance(e.fact, ToolReturned)]
        assert len(results) == 2
        assert all(result.error for result in results)
        said = "".join(text_of(result.content) for result in results)
        assert all(
            f"”: no answer; session {id}]\n[task was stopped: the turn" in said for id in await s.children()
        )
        for events in (await s.children()).values():
            assert isinstance([e.fact for e in events if isinstance(e.fact, ToolReturned)][-1], ToolReturned)

    soon, late = ([[("stuck", {"stops_after": seconds})], "never"] for seconds in (0, 0.3))
    scene(steps, tmp_path, {"go": [[task("x"), task("y")], "Never."], "x": soon, "y": late})


def test_what_sub_agents_take_is_recorded_in_the_log_of_their_parent(tmp_path: Path) -> None:
    async def steps(s: Scene) -> None:
        deep, flat = await s.results()
        children = [await Session.open(s.store, id, model=s.provider.model) for id in await s.children()]
        taken = [await child.usage() for child in children]
        assert len(taken) == 3
        tokens = sum(one.input + one.output for one in taken)
        assert await recorded_usage(s.session) == TaskUsage(tokens=tokens)
        shown = [int(re.findall(r"([\d,]+) tokens", one.text)[0].replace(",", "")) for one in (deep, flat)]
        assert sum(shown) == tokens  # with those of the sub-agent below
        await s.session.rewind(0)
        assert await recorded_usage(s.session) == TaskUsage(tokens=tokens)
        for child in children:
            await child.close()

    scripts = {
        "go": [[task("deep"), task("flat")], "Done."],
        "deep": [[task("deeper")], "level 1"],
        "deeper": ["level 2"],
        "flat": [[("look", {})], "seen"],
    }
    scene(steps, tmp_path, scripts)


def test_a_sub_agent_ends_at_its_limits(tmp_path: Path) -> None:
    async def steps(s: Scene) -> None:
        (done,) = await s.results()
        assert done.error
        assert "ended early, it has reached its limit of 10 tokens; " in done.text

    for name in "bc":
        (tmp_path / name).mkdir()
    again = [[("look", {})]] * 5
    scene(steps, tmp_path, {"go": [[task("x")], "Ok."], "x": again}, max_tokens=10)

    async def those_below_count(s: Scene) -> None:
        (done,) = await s.results()
        assert done.error
        assert "ended early, it has reached its limit of 1,500 tokens; " in done.text
        assert len(await s.children()) == 2  # the first step does not exceed it, the sub-agent below does

    below = {"x": [[task("y")], *again], "y": [[("look", {})], "word " * 2_000]}
    scene(those_below_count, tmp_path / "c", {"go": [[task("x")], "Ok."], **below}, max_tokens=1_500)

    async def few_rounds(s: Scene) -> None:
        (done,) = await s.results()
        assert done.error
        assert "limit of 2 rounds of tool calls" in done.text

    scene(few_rounds, tmp_path / "b", {"go": [[task("x")], "Ok."], "x": list(again)}, max_tool_iterations=2)


def test_a_long_answer_is_limited_and_says_where_the_whole_is(tmp_path: Path) -> None:
    text = "".join(f"line {number}\n" for number in range(4_000))

    async def steps(s: Scene) -> None:
        (done,) = await s.results()
        assert len(done.text) < MAX_TASK_RESULT_CHARS + 500
        assert "line 0\n" in done.text
        assert "line 3999" in done.text
        (events,) = (await s.children()).values()
        said = next(e for e in events if isinstance(e.fact, ModelSaid))
        assert f"characters left out; {said.handle} of that session has them]" in done.text
        assert text_of(said.fact.content) == text

    scene(steps, tmp_path, {"go": [[task("x")], "Ok."], "x": [text]})


def test_what_a_sub_agent_does_is_reported_while_it_runs(tmp_path: Path) -> None:
    async def steps(s: Scene) -> None:
        lines: list[str] = []
        async for event in s.agent.run("go"):
            if isinstance(event, ToolOutputStreamed):
                lines += event.lines
        assert "slow: nap" in lines

    scene(steps, tmp_path, {"go": [[task("x", name="slow")], "Ok."], "x": [[("nap", {})], "done"]})
