"""`foveal` alone, /new, /retry, /init and /diff."""

from __future__ import annotations

import re

import pytest

from foveal import cli
from foveal.agent.terminal.commands import SLASH_COMMANDS
from foveal.agent.terminal.commands.rewinding import MAX_DIFF_LINES
from foveal.core.log import Pinned, Prioritised, Rewound, Steered, UserSaid
from support.chat_project import ChatProject, InProcessChat, run_chat
from support.terminal import CTRL_D, Terminal


def test_foveal_alone_starts_the_chat(project: ChatProject) -> None:
    with Terminal(env=project.env, cwd=project.folder) as terminal:
        terminal.see("foveal  scripted/model")
        terminal.see("ctx ")
        terminal.enter("hi")
        terminal.see("Hello you.")
        terminal.type(CTRL_D)
        assert terminal.ended() == 0


def test_foveal_alone_reads_messages_from_a_pipe(project: ChatProject) -> None:
    done = project.run_piped(input="hi\n")
    assert (done.returncode, done.stdout) == (0, "Hello **you**.\n")
    done = project.run_piped("--continue", input="again\n")
    assert (done.returncode, done.stdout) == (0, "Hello **you**.\n")


def test_foveal_help_helps(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--help"])
    assert ended.value.code == 0
    assert "Without a command: chat." in capsys.readouterr().out.replace("\n", " ")


def test_new_starts_a_session_and_names_the_old_one(project: ChatProject) -> None:
    project.script("One.", "Two.", "Three.")
    with project.terminal("--session", "first") as terminal:
        terminal.see("ctx ")
        terminal.enter("about apples")
        terminal.see("One.")
        terminal.enter("/clear")
        terminal.see("the old session (“about apples”) is kept · /resume first")
        terminal.enter("about pears")
        terminal.see("Two.")
        terminal.enter("/resume first")
        terminal.see("session first · ")
        terminal.enter("more")
        terminal.see("Three.")
    assert project.user_messages("first") == ["about apples", "more"]


# ── Input of several lines ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "typed", ["/plan\nwrite b.txt", "/plan first\nwrite b.txt", " /plan  first\n\nthen\n"]
)
def test_a_task_of_several_lines_is_planned(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch, typed: str
) -> None:
    project.script([("write", {"path": "b.txt", "content": "x"})], "A plan.")

    async def steps(chat: InProcessChat) -> None:
        await chat.send(typed)
        assert chat.state.plan.is_on
        assert not (project.folder / "b.txt").exists()

    run_chat(project, monkeypatch, steps, yes=True)
    assert project.user_messages() == [typed.strip().removeprefix("/plan").strip()]


def test_no_command_of_several_lines_is_sent_as_a_message(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steps(chat: InProcessChat) -> None:
        for command in SLASH_COMMANDS:
            if not command.takes_text:
                shown = await chat.send(f"{command.name}\nrm -rf x")
                assert f"{command.name} takes no further lines: nothing was run or sent" in shown
        assert "there is no command /nothing" in await chat.send("/nothing\nat all")
        assert "in every request" in await chat.send("/pin Never push.\nAlways test.")
        assert not chat.loop.has_left
        assert chat.state.session.id == "s"
        await chat.send("/usr/bin/env is a path\nand this a message")

    run_chat(project, monkeypatch, steps)
    assert project.user_messages() == ["/usr/bin/env is a path\nand this a message"]
    [pinned] = [event.fact for event in project.events() if isinstance(event.fact, Pinned)]
    assert pinned.text == "Never push.\nAlways test."


def test_a_pasted_command_that_cannot_run_returns_to_the_input_line(project: ChatProject) -> None:
    with project.terminal("--session", "s") as terminal:
        terminal.see("ctx ")
        terminal.paste("/new\nand so on")
        terminal.enter("")
        terminal.see("✗ /new takes no further lines")
        terminal.see(lambda t: "› /new\n  and so on" in "\n".join(t.lines))


# ── Focus and priorities ─────────────────────────────────────────────────────────────────────────────────


def test_a_focus_is_set_and_taken_back(project: ChatProject, monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(chat: InProcessChat) -> None:
        assert "the next summary keeps “the migration” above all" in await chat.send("/focus the migration")
        assert "the focus is taken back" in await chat.send("/focus")

    run_chat(project, monkeypatch, steps)
    steered = [event.fact for event in project.events() if isinstance(event.fact, Steered)]
    assert steered == [Steered(by="user", focus="the migration"), Steered(by="user")]


def test_a_mark_gives_a_message_a_priority_until_it_is_undone(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steps(chat: InProcessChat) -> None:
        await chat.send("hi")
        said = next(e.handle for e in await chat.state.session.events() if isinstance(e.fact, UserSaid))
        shown = await chat.send(f"/mark {said} high")
        assert f"{said} has high priority in the next cut · /undo e" in shown
        assert f"high priority: {said}" in await chat.send("/context")
        await chat.send(f"/undo {shown.split('/undo ')[1].split()[0]}")
        assert "high priority" not in await chat.send("/context")
        assert "/mark needs a handle and a priority: low, normal or high" in await chat.send(f"/mark {said}")
        assert "urgent" in await chat.send(f"/mark {said} urgent")
        assert "e999" in await chat.send("/mark e999 low")

    run_chat(project, monkeypatch, steps)
    (marked,) = [event.fact for event in project.events() if isinstance(event.fact, Prioritised)]
    assert marked.priority == "high"


# ── Again, init and diff ─────────────────────────────────────────────────────────────────────────────────


def test_retry_rewinds_the_answer_and_sends_the_same_message(project: ChatProject) -> None:
    project.script("Wrong.", "Right.")
    with project.terminal("--session", "s") as terminal:
        terminal.see("ctx ")
        terminal.enter("/retry")
        terminal.see("✗ there is no message yet that could be sent again")
        terminal.enter("what is 2+2?")
        terminal.see("Wrong.")
        terminal.enter("/retry")
        terminal.see("Right.")
        terminal.see(lambda t: t.text.count("› what is 2+2?") == 2)
        terminal.see(
            lambda t: project.request()[-1]["role"] == "assistant"
        )  # it is shown before it is stored
    assert [(m["role"], m["content"]) for m in project.request()][-2:] == [
        ("user", "what is 2+2?"),
        ("assistant", "Right."),
    ]
    assert sum(isinstance(event.fact, Rewound) for event in project.events()) == 1


def test_retry_after_an_error_sends_the_message_once(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.script(code='ProviderError("no answer", code="refused"), "Now."')

    async def steps(chat: InProcessChat) -> None:
        assert (await chat.send("hi")).startswith("✗ no answer")
        assert (await chat.send("/retry")).endswith("Now.\n")

    run_chat(project, monkeypatch, steps)
    assert [m["content"] for m in project.request() if m["role"] == "user"] == ["hi"]


def test_init_sends_the_prepared_request_and_asks_before_overwriting(project: ChatProject) -> None:
    write = [("write", {"path": "AGENTS.md", "content": "# The project\n"})]
    project.script(write, "Written.", "Not this one.")
    with project.terminal("--session", "s", "--yes") as terminal:
        terminal.see("ctx ")
        terminal.enter("/init in British English")
        terminal.see("Allow write AGENTS.md")
        terminal.answer("y")
        terminal.see("Written.")
        assert (project.folder / "AGENTS.md").read_text() == "# The project\n"
        terminal.enter("/init")
        terminal.see("AGENTS.md exists. Let the agent rewrite it?")
        terminal.answer("n")
        terminal.see("AGENTS.md stays as it is")
    [sent] = project.user_messages()
    assert sent.startswith("Write the file AGENTS.md in the working folder")
    assert sent.endswith("The user adds: in British English")


def test_init_attaches_the_files_that_the_wish_names(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.script("Written.")

    async def steps(chat: InProcessChat) -> None:
        assert "there is no file b.txt: nothing was sent" in await chat.send("/init as in @b.txt")
        await chat.send("/init as in @a.txt")

    run_chat(project, monkeypatch, steps)
    [sent] = project.user_messages()
    assert "The user adds: as in @a.txt\n[foveal: attached a.txt]\none\ntwo\n" in sent


def test_init_needs_tools(project: ChatProject, monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(chat: InProcessChat) -> None:
        assert (await chat.send("/init")).startswith("✗ /init needs the tools read and write")

    run_chat(project, monkeypatch, steps, tools=False)
    assert not any(isinstance(event.fact, UserSaid) for event in project.events())


def test_diff_shows_what_the_file_tools_changed(project: ChatProject) -> None:
    project.script(
        [
            ("edit", {"path": "a.txt", "old": "two", "new": "2"}),
            ("write", {"path": "new.txt", "content": "x\n"}),
        ],
        [("run", {"command": "true"})],
        "Done.",
    )
    with project.terminal("--session", "s", "--yes") as terminal:
        terminal.see("ctx ")
        terminal.enter("/diff")
        terminal.see("the file tools have changed nothing in this session")
        terminal.enter("go")
        terminal.see("Done.")
        terminal.enter("/diff")
        seen = terminal.see("not shown: what 1 command changed")
        assert re.search(r"  a\.txt\n.*@@ .*\n.* one\n.*-two\n.*\+2\n", seen)
        assert re.search(r"  new\.txt  new file\n.*@@ .*\n.*\+x\n", seen)
    (project.folder / "a.txt").write_text("mine\n")
    done = project.run_piped("chat", "--session", "s", input="/diff\n")
    assert re.search(r"  a\.txt  1 change \(e\d+\); the log does not hold its first text", done.stdout)


def test_a_long_diff_is_cut_and_names_the_files(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.script(
        [
            ("write", {"path": "small.txt", "content": "x\n"}),
            ("write", {"path": "long.txt", "content": "y\n" * 300}),
            ("write", {"path": "deep/last.txt", "content": "z\n"}),
        ],
        "Done.",
    )

    async def steps(chat: InProcessChat) -> None:
        await chat.send("go")
        *shown, note, long, last = (await chat.send("/diff")).splitlines()
        assert len(shown) == MAX_DIFF_LINES
        assert note == "▪ 108 more lines; /diff PATH shows a file whole:"
        assert (long.split(), last.split()) == (["long.txt", "302", "lines"], ["deep/last.txt", "3", "lines"])
        whole = await chat.send("/diff long.txt")
        assert whole.startswith("  long.txt  new file\n")
        assert whole.count("+y") == 300
        assert "+z" in await chat.send(f"/diff {project.folder / 'deep' / 'last.txt'}")
        assert await chat.send("/diff a.txt") == (
            "✗ the file tools have not changed 'a.txt' in this session; changed are: "
            "small.txt, long.txt, deep/last.txt\n"
        )

    run_chat(project, monkeypatch, steps, yes=True)


def test_why_gives_the_size_of_a_clipped_result_that_its_notice_gave(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project.folder / "long.txt").write_text("".join(f"{n} {n * n}\n" for n in range(20_000)))
    project.script([("run", {"command": "cat long.txt"})], "Done.", window=32_000)

    async def steps(chat: InProcessChat) -> None:
        await chat.send("go")
        notice = re.search(r"clipped (e\d+): the model sees (.* tokens) ·", chat.err.getvalue())
        assert notice is not None
        assert f", {notice[2]} · /expand {notice[1]}" in await chat.send(f"/why {notice[1]}")

    run_chat(project, monkeypatch, steps, yes=True)
