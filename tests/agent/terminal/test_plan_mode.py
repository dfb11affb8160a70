"""Plan mode: nothing is changed until the user says yes."""

from __future__ import annotations

import pytest

from foveal.core.log import Noted, ToolReturned, text_of
from support.chat_project import ChatProject, InProcessChat, run_chat
from support.effort import rest_in_soak
from support.sandbox_here import needs_sandbox
from support.terminal import ENTER

SHIFT_TAB = "\x1b[Z"
WRITE = [("write", {"path": "b.txt", "content": "x\n"})]


def results(project: ChatProject, session: str = "s") -> list[str]:
    return [text_of(e.fact.content) for e in project.events(session) if isinstance(e.fact, ToolReturned)]


def notes(project: ChatProject) -> list[str]:
    facts = [event.fact for event in project.events()]
    return [fact.text for fact in facts if isinstance(fact, Noted) and fact.topic == "plan mode"]


def test_a_plan_is_proposed_and_carried_out_after_a_yes(project: ChatProject) -> None:
    project.script(WRITE, "I would write b.txt.", WRITE, "Written.")
    with project.terminal("--session", "s", "--allow", "write") as terminal:
        terminal.see("ctx ")
        terminal.enter("/plan write b.txt")
        terminal.see("Carry out this plan?")
        assert not (project.folder / "b.txt").exists()
        terminal.see(lambda t: any(line.startswith("plan ›") for line in t.lines))
        terminal.answer(f"y{ENTER}")
        terminal.see("Written.")
        terminal.see(lambda t: not any(line.startswith("plan ›") for line in t.lines))
    assert (project.folder / "b.txt").read_text() == "x\n"
    assert "plan mode" in results(project)[0]
    assert notes(project) == ["on", "off"]
    assert project.user_messages() == ["write b.txt", "Yes, carry out the plan. Plan mode is off."]


def test_a_no_stays_in_plan_mode_also_in_the_next_chat_of_the_session(project: ChatProject) -> None:
    project.script("First plan.", WRITE, "Second plan.")
    with project.terminal("--session", "s") as terminal:
        terminal.see("ctx ")
        terminal.type(SHIFT_TAB)
        terminal.see("plan ›")
        terminal.enter("think")
        terminal.see("Carry out this plan?")
        terminal.answer(f"n{ENTER}")
        terminal.see(lambda t: any(line.startswith("plan ›") for line in t.lines))
    with project.terminal("--session", "s") as terminal:
        terminal.see("plan ›")
        terminal.enter("think again")
        terminal.see(lambda t: "First plan." in t.text and "Carry out this plan?" in t.text)
    assert not (project.folder / "b.txt").exists()


@pytest.mark.parametrize(
    ("reply", "is_seen"),
    rest_in_soak(
        [
            ("you forgot tests", False),
            ("no tests?", True),
            ("smaller steps", False),
            ("smaller steps", True),
            ("you forgot tests", True),
            ("no tests?", False),
        ],
        kept=2,
    ),
)
def test_a_reply_to_the_plan_is_a_message_and_no_consent(
    project: ChatProject, reply: str, *, is_seen: bool
) -> None:
    project.script("A plan.", "A better plan.")
    with project.terminal("--session", "s") as terminal:
        terminal.see("ctx ")
        terminal.enter("/plan it")
        terminal.see("(or Enter, Esc)" if is_seen else "Carry out this plan?")
        terminal.type(reply[0])  # it arrives alone, as at normal speed
        terminal.see(f"plan › {reply[0]}")
        terminal.enter(reply[1:])
        terminal.see("A better plan.")
    assert project.user_messages() == ["it", reply]
    assert notes(project) == ["on"]


def test_a_sub_agent_is_bound_by_plan_mode(project: ChatProject, monkeypatch: pytest.MonkeyPatch) -> None:
    project.script([("task", {"prompt": "write b.txt"})], WRITE, "Refused.", "A plan.")

    async def steps(chat: InProcessChat) -> None:
        await chat.send("/plan write b.txt")
        assert not (project.folder / "b.txt").exists()
        ids = [info.id for info in await chat.state.store.sessions(limit=5)]
        below = await chat.state.store.read(next(id for id in ids if id != "s"))
        refused = [event.fact for event in below if isinstance(event.fact, ToolReturned)]
        assert "plan mode" in text_of(refused[0].content)

    run_chat(project, monkeypatch, steps, yes=True)


def test_without_a_terminal_a_plan_is_proposed_and_not_carried_out(project: ChatProject) -> None:
    project.script(WRITE, "A plan.", WRITE, "Written.")
    done = project.run_piped("run", "--yes", "--session", "s", "/plan write b.txt")
    assert done.stdout.endswith("A plan.\n")
    assert "Carry out this plan? no: there is no terminal to ask at. Send /plan yes" in done.stderr
    assert not (project.folder / "b.txt").exists()
    project.script(WRITE, "Written.")
    done = project.run_piped("run", "--yes", "--session", "s", "/plan yes")
    assert done.stdout.endswith("Written.\n")
    assert (project.folder / "b.txt").exists()


def test_without_a_sandbox_commands_are_refused(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.script([("run", {"command": "touch made"})], "A plan.")

    async def steps(chat: InProcessChat) -> None:
        await chat.send("/plan look")
        assert not (project.folder / "made").exists()

    run_chat(project, monkeypatch, steps, yes=True)
    assert "only inside the sandbox, and there is none here" in results(project)[0]


@needs_sandbox
def test_in_the_sandbox_commands_read_the_folder_and_cannot_write_it(project: ChatProject) -> None:
    commands = [
        "cat a.txt",
        "echo x >> a.txt; touch made; mkdir sub; rm a.txt",
        "touch /tmp/scratch && echo kept",
    ]
    project.script(*([("run", {"command": command})] for command in commands), "A plan.")
    env = {"FOVEAL_TOOLS_SANDBOX": "auto"}
    project.run_piped("run", "--yes", "--session", "s", "/plan look", env=env)
    read, wrote, scratch = results(project)
    assert read.startswith("one\ntwo\n")
    assert "in plan mode, commands have no network and cannot write" in wrote
    assert scratch.startswith("kept\n")
    assert sorted(path.name for path in project.folder.iterdir()) == ["a.txt"]
    assert (project.folder / "a.txt").read_text() == "one\ntwo\n"


@needs_sandbox
def test_plan_mode_does_not_leave_the_sandbox_whatever_is_allowed(project: ChatProject) -> None:
    project.script([("run", {"command": "touch made", "outside_sandbox": True})], "A plan.")
    env = {"FOVEAL_TOOLS_SANDBOX": "auto"}
    project.run_piped("run", "--yes", "--session", "s", "/plan look", env=env)
    assert "only inside the sandbox, not outside of it" in results(project)[0]
    assert not (project.folder / "made").exists()


def test_the_command_says_what_it_did(project: ChatProject, monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(chat: InProcessChat) -> None:
        assert "there is no plan to carry out" in await chat.send("/plan yes")
        assert "plan mode is not on" in await chat.send("/plan off")
        assert "plan mode: the agent reads" in await chat.send("/plan")
        assert "plan mode is off" in await chat.send("/plan")

    run_chat(project, monkeypatch, steps)


def test_the_task_of_plan_attaches_the_files_that_it_names(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.script("I would split it.")

    async def steps(chat: InProcessChat) -> None:
        assert "there is no file b.txt: nothing was sent" in await chat.send("/plan look at @b.txt")
        await chat.send("/plan split @a.txt")

    run_chat(project, monkeypatch, steps)
    (said,) = project.user_messages()
    assert said.startswith("split @a.txt")
    assert "[foveal: attached a.txt]\none\ntwo\n" in said


def test_what_is_piped_belongs_to_the_task_of_plan(project: ChatProject) -> None:
    project.script("It is fine.")
    done = project.run_piped("run", "/plan review this", "--session", "s", input="- old\n+ new\n")
    assert done.returncode == 0
    (said,) = project.user_messages()
    assert "review this" in said
    assert "[foveal: attached standard input]\n- old\n+ new\n" in said
