"""Sub-agents in `foveal chat` and `foveal run`: questions, files, sessions, and a killed process."""

from __future__ import annotations

import asyncio
import json
import re
import sys

import pytest

from foveal.core.log import Compacted, Masked, Opened, ToolReturned, UserSaid
from foveal.stores import open_store
from support.chat_project import ChatProject, InProcessChat, run_chat
from support.terminal import CTRL_C
from support.waiting import wait_until


def task(prompt: str, name: str) -> list[tuple[str, object]]:
    return [("task", {"prompt": prompt, "name": name})]


def sub_sessions(project: ChatProject) -> list[str]:
    async def ids() -> list[str]:
        async with open_store(project.store) as store:
            return [info.id for info in await store.sessions(limit=50) if info.id != "s"]

    return asyncio.run(ids())


def test_the_question_of_a_sub_agent_has_its_name_and_its_change_is_recorded(project: ChatProject) -> None:
    write = [("write", {"path": "b.txt", "content": "made below\n"})]
    project.script(task("write b.txt", "writer"), write, "Written below.", "It is there.")
    with project.terminal("--session", "s") as terminal:
        terminal.see("ctx ")
        terminal.enter("let it write")
        terminal.see("Allow sub-agent “writer” write b.txt")
        assert not (project.folder / "b.txt").exists()
        terminal.answer("y")
        seen = terminal.see("It is there.")
        assert "● task writer: write b.txt" in seen
        assert "│ [foveal: sub-agent “writer”: " in seen
        assert "│ Written below." in seen
        terminal.enter("/diff")
        terminal.see("b.txt")
    assert (project.folder / "b.txt").read_text() == "made below\n"
    (below,) = sub_sessions(project)
    opened = project.events(below)[0].fact
    assert isinstance(opened, Opened)
    assert re.fullmatch(r"s@\d+", opened.origin)
    assert "made below" not in str(project.request("s"))
    project.request(below)


def test_tasks_of_one_answer_are_shown_with_their_names_and_ctrl_c_ends_all(project: ChatProject) -> None:
    both = [*task("look left", "left"), *task("look right", "right")]
    project.script(both, "Nothing there.", "Nothing there.", "Both are empty.", both, "held", held_after=8)
    with project.terminal("--session", "s", rows=40) as terminal:
        terminal.see("ctx ")
        terminal.enter("look around")
        seen = terminal.see("Both are empty.")
        for name in ("left", "right"):
            assert f"● task {name}: look {name}" in seen
            assert f"│ [foveal: sub-agent “{name}”: " in seen
        terminal.enter("once more")
        terminal.see(lambda t: t.text.count("● task right") == 2)
        terminal.type(CTRL_C)
        seen = terminal.see("stopped; the conversation so far is kept")
        for name in ("left", "right"):
            assert f"▪ stopped: task {name}: look {name}" in seen
    results = [e.fact for e in project.events() if isinstance(e.fact, ToolReturned)]
    assert [result.error for result in results] == [False, False, True, True]
    for id in ("s", *sub_sessions(project)):
        project.request(id)


def test_a_denied_tool_is_not_offered(project: ChatProject, monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(chat: InProcessChat) -> None:
        assert chat.state.toolbox.get("todo") is not None
        assert chat.state.toolbox.get("task") is None

    run_chat(project, monkeypatch, steps, settings={"tools.deny": "task"})


def test_run_denies_what_nobody_can_allow_and_the_sub_agent_learns_it(project: ChatProject) -> None:
    write = [("write", {"path": "b.txt", "content": "x"})]
    project.script(task("write b.txt", "writer"), write, "I could not.", "Not written.")
    done = project.run_piped("run", "--session", "s", "let it write", has_process=True)
    assert done.stdout == "Not written.\n"
    assert "Allow sub-agent “writer” write b.txt" in done.stderr
    assert not (project.folder / "b.txt").exists()
    (below,) = sub_sessions(project)
    denied = [e.fact for e in project.events(below) if isinstance(e.fact, ToolReturned)]
    assert [fact.error for fact in denied] == [True]


def test_after_a_kill_in_a_sub_agent_both_logs_are_legal_and_the_chat_goes_on(project: ChatProject) -> None:
    project.script(task("look around", "scout"), "never", held_after=1)
    with project.terminal("--session", "s") as terminal:
        terminal.see("ctx ")
        terminal.enter("send a scout")
        terminal.see("● task scout")
        wait_until(
            lambda: any(
                isinstance(e.fact, UserSaid) for id in sub_sessions(project) for e in project.events(id)
            )
        )
    # Leaving the block kills the process.
    (below,) = sub_sessions(project)
    project.request("s")
    project.request(below)
    project.script("Here again.")
    with project.terminal("--session", "s") as terminal:
        terminal.see("ctx ")
        terminal.enter("what happened?")
        terminal.see("Here again.")
    answered = [m for m in project.request("s") if m["role"] == "tool"]
    assert len(answered) == 1


def test_the_menu_and_continue_do_not_offer_sub_agents(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.script(task("look", "scout"), "Looked.", "Done.", "Again.")

    async def steps(chat: InProcessChat) -> None:
        await chat.send("go")
        assert len(await chat.state.store.sessions(limit=10)) == 2

    run_chat(project, monkeypatch, steps)
    done = project.run_piped("run", "--continue", "--json", "go on", has_process=True)
    assert '"session": "s"' in done.stdout.splitlines()[0]
    with project.terminal("--resume") as terminal:
        seen = terminal.see("Continue which session?")
        assert "task: scout" not in seen


def test_the_cost_in_the_status_line_has_that_of_sub_agents_also_when_the_session_is_opened_again(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.script(task("look left", "left"), "Nothing there. " * 500, "It is empty.")
    seen: list[float] = []

    async def steps(chat: InProcessChat) -> None:
        await chat.send("look around")
        own = (await chat.state.session.report()).spent or 0.0
        report = await chat.state.report()
        below = chat.state.subagents.used
        assert (report.spent or 0.0) == own + below.dollars > 2 * own > 0
        assert f"sub-agents    {below.tokens:,} tokens more, ${below.dollars:.2f}" in await chat.send(
            "/tokens"
        )
        seen.append(report.spent or 0.0)

    async def again(chat: InProcessChat) -> None:
        assert [(await chat.state.report()).spent] == seen

    run_chat(project, monkeypatch, steps, model="openai/gpt-4.1")
    run_chat(project, monkeypatch, again, model="openai/gpt-4.1")


def test_a_sub_agent_ends_at_the_configured_cost(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = [("list", {})]
    project.script(task("look left", "left"), look, look, "never", "It is empty.")

    async def steps(chat: InProcessChat) -> None:
        await chat.send("look around")
        results = [e.fact for e in await chat.state.session.events() if isinstance(e.fact, ToolReturned)]
        assert "ended early, it has reached its limit of $0.0010;" in str(results[0].content)

    settings = {"tasks.max_cost": 0.001}
    run_chat(project, monkeypatch, steps, model="openai/gpt-4.1", settings=settings)


def test_a_cut_of_a_sub_agent_is_shown_to_the_hook_of_the_user(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = []
    for part in range(9):
        text = "".join(f"part_{part}_{line} is built from its sources\n" for line in range(200))
        (project.folder / f"part{part}.txt").write_text(text)
        reads.append([("read", {"path": f"part{part}.txt"})])
    project.script(task("look left", "left"), *reads, "Nothing there.", "It is empty.")
    seen = project.folder / "seen.txt"
    code = f"import sys; open({str(seen)!r}, 'a').write(sys.stdin.read() + '\\n')"

    async def steps(chat: InProcessChat) -> None:
        await chat.send("look around")
        assert not [e for e in await chat.state.session.events() if isinstance(e.fact, Compacted | Masked)]

    settings = {"context.hook": [sys.executable, "-c", code], "context.policy": "rolling"}
    run_chat(project, monkeypatch, steps, settings=settings)
    cuts = [json.loads(line) for line in seen.read_text().splitlines()]
    assert {event["tool"] for cut in cuts for event in cut["events"] if "tool" in event} == {"read"}
