"""Background commands in the chat: started, read, listed, ended with the chat, or kept."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Any, Final

import pytest

from foveal.core.log import ToolReturned, text_of
from support.chat_project import ChatProject, InProcessChat, run_chat
from support.effort import rest_in_soak
from support.sandbox_here import needs_sandbox
from support.terminal import ENTER

SERVER: Final = "echo $$ > pid; echo listening on 8080; sleep 100 & echo $! > child; wait"
START: Final = [("run", {"command": SERVER, "background": True})]


@pytest.fixture
def project(tmp_path: Path) -> ChatProject:
    return ChatProject(tmp_path)


def results(project: ChatProject) -> list[str]:
    return [text_of(e.fact.content) for e in project.events() if isinstance(e.fact, ToolReturned)]


def is_running(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def ends(pid: int) -> bool:
    until = time.monotonic() + 30
    while is_running(pid) and time.monotonic() < until:
        time.sleep(0.02)
    return not is_running(pid)


def pids(project: ChatProject) -> list[int]:
    """Return the processes of `SERVER`, once it has started them."""
    until = time.monotonic() + 30
    files = [project.folder / "pid", project.folder / "child"]
    while not all(file.exists() and file.read_text().endswith("\n") for file in files):
        assert time.monotonic() < until
        time.sleep(0.02)
    return [int(file.read_text()) for file in files]


def test_the_model_starts_reads_and_ends_a_server(project: ChatProject) -> None:
    project.script(
        START,
        [("run", {"command": "until grep -q . child; do sleep 0.05; done 2>/dev/null"})],
        [("job", {"id": "j1"})],
        [("job", {"id": "j1"})],
        [("job", {})],
        [("job", {"id": "j1", "end": True})],
        [("job", {"id": "j2"})],
        "Done.",
    )
    done = project.run_piped("run", "--yes", "--session", "s", "start it", has_process=True)
    assert done.returncode == 0, done.stderr
    started, _, first, second, listed, ended, unknown = results(project)
    assert started == "[foveal: it runs in the background as j1; the tool job reads and ends it]"
    assert first == "listening on 8080\n[foveal: j1: running]"
    assert second == "[foveal: j1: running]"
    assert listed.startswith("j1 running: ")
    assert ended == "[foveal: j1: stopped]"
    assert unknown == "there is no background command 'j2'; there are: j1."
    assert all(map(ends, pids(project)))


def test_a_command_that_ends_says_how_and_its_output_is_bounded(project: ChatProject) -> None:
    command = {"command": "yes 0123456789 | head -c 9000000; exit 3", "background": True}
    project.script([("run", command)], [("job", {"id": "j1", "wait": 30})], "Done.")
    done = project.run_piped("run", "--yes", "--session", "s", "go", has_process=True)
    assert "▪ j1 has ended, exit status 3: yes 0123456789" in done.stderr
    text = results(project)[1]
    assert text.endswith("[foveal: j1: exit status 3]")
    assert f"[{9_000_000 - 4 * 1024 * 1024:,} bytes were left out here and not kept" in text
    assert len(text) < 4_200_000


def test_a_background_command_asks_as_any_other_and_ends_with_the_chat(project: ChatProject) -> None:
    project.script(START, "Started.")
    with project.terminal("--session", "s", columns=120) as terminal:
        terminal.see("ctx ")
        terminal.enter("start it")
        terminal.see("Allow run in the background")
        terminal.see("(or Enter, Esc)")  # keys count once the question has been seen
        terminal.enter("y")
        terminal.see("Started.")
        server, child = pids(project)
        terminal.enter("/jobs")
        terminal.see(
            lambda t: (
                re.search(r"j1 +running +since \d\d:\d\d:\d\d +echo .*listening on 8080", t.text) is not None
            )
        )
        assert is_running(server)
        terminal.enter("/quit")
        assert terminal.ended() == 0
    assert ends(server)
    assert ends(child)


@pytest.mark.parametrize("number", rest_in_soak([signal.SIGKILL, signal.SIGHUP]))
def test_it_ends_with_a_chat_that_is_killed(project: ChatProject, number: int) -> None:
    project.script(START, "Started.")
    with project.terminal("--session", "s", "--yes") as terminal:
        terminal.see("ctx ")
        terminal.enter("start it")
        terminal.see("Started.")
        server, child = pids(project)
        os.kill(terminal.pid, number)
        assert ends(server)
        assert ends(child)


def test_a_kept_command_runs_on_until_the_user_ends_it(project: ChatProject) -> None:
    ticking = "echo $$ > pid; echo $$ > child; while :; do echo tick; sleep 0.05; done"
    project.script([("run", {"command": ticking, "background": True})], "Started.")
    with project.terminal("--session", "s", "--yes", columns=120) as terminal:
        terminal.see("ctx ")
        terminal.enter("start it")
        terminal.see("Started.")
        server, _ = pids(project)
        terminal.enter("/jobs keep j1")
        said = terminal.see("to end it then: kill -- -")
        terminal.enter("/quit")
        assert terminal.ended() == 0
    found = re.search(r"kill -- -(\d+)", said)
    assert found is not None
    try:
        time.sleep(0.2)  # it prints into a pipe that has no reader any more
        assert is_running(server)
    finally:
        os.killpg(int(found[1]), signal.SIGTERM)
    assert ends(server)


@needs_sandbox
def test_it_runs_in_the_sandbox(project: ChatProject, tmp_path: Path) -> None:
    outside = Path.home() / f".foveal-test-{os.getpid()}"
    command = {"command": f"touch {outside}; touch inside; echo tried", "background": True}
    project.script([("run", command)], [("job", {"id": "j1", "wait": 30})], "Done.")
    env = {"FOVEAL_TOOLS_SANDBOX": "auto"}
    project.run_piped("run", "--yes", "--session", "s", "go", env=env, has_process=True)
    assert "tried" in results(project)[1]
    assert (project.folder / "inside").exists()
    assert not outside.exists()


def test_jobs_ends_one_and_says_what_is_wrong(project: ChatProject, monkeypatch: pytest.MonkeyPatch) -> None:
    project.script(START, "Started.")

    async def steps(chat: InProcessChat) -> Any:
        assert await chat.send("/jobs") == "no command runs in the background\n"
        await chat.send("start it")
        assert (await chat.send("/jobs end j7")).startswith(
            "✗ there is no background command 'j7'; there are: j1."
        )
        assert (await chat.send("/jobs stop")).startswith("✗ /jobs takes end ID or keep ID")
        assert "j1 is ended" in await chat.send("/jobs end j1")
        assert "j1 has ended already, stopped" in await chat.send("/jobs end j1")
        assert all(map(ends, pids(project)))

    run_chat(project, monkeypatch, steps, yes=True)


@needs_sandbox
def test_a_protected_file_of_a_background_command_is_set_aside(project: ChatProject) -> None:
    """Before the next step of the model, and when the command ends; what the user has allowed stays."""
    first = "until test -e go; do sleep 0.05; done; echo 1 > .envrc; echo 1 > first; sleep 100"
    second = "mkdir .vscode; echo 2 > .vscode/tasks.json"
    project.script(
        [("run", {"command": first, "background": True})],
        [("write", {"path": "CLAUDE.md", "content": "mine"})],
        [("run", {"command": second, "background": True})],
        [("job", {"id": "j2", "wait": 30})],
        "Done.",
    )
    with project.terminal("--session", "s", columns=120, env={"FOVEAL_TOOLS_SANDBOX": "auto"}) as terminal:
        terminal.see("ctx ")
        terminal.enter("start it")
        terminal.see("Allow write")
        (project.folder / "go").touch()
        wait_for(project.folder / "first")
        terminal.answer("y")
        terminal.see("Done.")
        terminal.see("a background command made .envrc, which is protected: it is .envrc.set-aside now")
        terminal.enter("/quit")
        assert terminal.ended() == 0
    told = "\n".join(results(project))
    assert ".envrc is protected, so it was renamed to .envrc.set-aside" in told
    assert ".vscode is protected, so it was renamed to .vscode.set-aside" in told
    there = {each.name for each in project.folder.iterdir()}
    assert {".envrc.set-aside", ".vscode.set-aside", "CLAUDE.md"} <= there
    assert not {".envrc", ".vscode", "CLAUDE.md.set-aside"} & there


SANDBOX: Final = {"FOVEAL_TOOLS_SANDBOX": "auto"}


@needs_sandbox
def test_a_protected_file_is_set_aside_before_a_step_that_only_reads_and_at_the_end(
    project: ChatProject,
) -> None:
    wait = "until test -e {}; do sleep 0.05; done"
    job = f"{wait.format('go')}; echo 1 > .envrc; touch first; {wait.format('go2')}; mkdir .vscode; touch second"
    project.script(
        [("run", {"command": f"{job}; sleep 100", "background": True})],
        "Started.",
        [("read", {"path": "a.txt"})],
        "Done.",
    )
    with project.terminal("--session", "s", columns=120, env=SANDBOX) as terminal:
        terminal.see("ctx ")
        terminal.enter("start it")
        terminal.see("Started.")
        (project.folder / "go").touch()
        wait_for(project.folder / "first")
        terminal.enter("look")
        terminal.see("Done.")
        assert not (project.folder / ".envrc").exists()
        (project.folder / "go2").touch()
        wait_for(project.folder / "second")
        terminal.enter("/quit")
        assert terminal.ended() == 0
        assert "a background command made .vscode, which is protected" in terminal.text
    assert (project.folder / ".vscode.set-aside").exists()
    assert not (project.folder / ".vscode").exists()


@needs_sandbox
@pytest.mark.parametrize("is_killed", rest_in_soak([True, False]))
def test_the_next_chats_set_aside_what_a_kept_command_made(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch, *, is_killed: bool
) -> None:
    """While it still runs, and once after it has ended; what the user makes later stays."""
    wait = "until test -e {}; do sleep 0.05; done"
    first = "echo evil > .envrc; mkdir -p s/.git/hooks; touch first"
    job = f"{wait.format('go')}; {first}; {wait.format('go2')}; mkdir .vscode; touch second; sleep 100"
    project.script([("run", {"command": job, "background": True})], "Started.")
    with project.terminal("--session", "s", columns=200, env=SANDBOX) as terminal:
        terminal.see("ctx ")
        terminal.enter("start it")
        terminal.see("Started.")
        terminal.enter("/jobs keep j1")
        said = terminal.see(
            "protected files that it makes then keep their names until the next chat here begins"
        )
        found = re.search(r"kill -- -(\d+)", said)
        assert found is not None
        watchdog = int(Path(f"/proc/{found[1]}/stat").read_text().rpartition(")")[2].split()[1])
        if is_killed:
            os.kill(terminal.pid, signal.SIGKILL)
        else:
            terminal.enter("/quit")
        terminal.ended()
    (project.folder / "go").touch()
    wait_for(project.folder / "first")

    def next_chat(session: str, *made: str) -> None:
        async def steps(chat: InProcessChat) -> Any:
            for name in made:
                notice = f"{name} is new since then and protected: it is {name}.set-aside now"
                assert notice in chat.err.getvalue()
                assert not (project.folder / name).exists()
            assert made or "new since then" not in chat.err.getvalue()

        run_chat(project, monkeypatch, steps, session=session, sandbox="auto")

    try:
        next_chat("other", ".envrc", "s/.git")
        next_chat("s")
        (project.folder / "go2").touch()
        wait_for(project.folder / "second")
    finally:
        os.killpg(int(found[1]), signal.SIGTERM)
    assert ends(watchdog)
    next_chat("s", ".vscode")
    (project.folder / ".idea").mkdir()
    next_chat("s")
    assert (project.folder / ".idea").exists()


@needs_sandbox
def test_rewind_restores_what_a_background_command_deleted(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what it changed after the turn, and beside changes by other calls."""
    (project.folder / "b.txt").write_text("b\n")
    (project.folder / "c.txt").write_text("c\n")
    job = (
        "rm -f b.txt; touch gone; until test -e go; do sleep 0.05; done; rm -f c.txt; touch second; sleep 100"
    )
    project.script(
        [("run", {"command": job, "background": True})],
        [("run", {"command": "until test -e gone; do sleep 0.05; done"})],
        [("edit", {"path": "a.txt", "old": "two", "new": "2"})],
        [("run", {"command": "echo 3 >> a.txt"})],
        "Done.",
    )

    async def steps(chat: InProcessChat) -> Any:
        await chat.send("go")
        (project.folder / "go").touch()
        wait_for(project.folder / "second")
        handle = (await chat.send("/rewind")).splitlines()[-1].split()[0]
        said = await chat.send(f"/rewind {handle} files")
        # What it did before another call of the agent is recorded with that call, sooner or later.
        assert re.search(r"changed while a command ran unattended, perhaps by you: (b\.txt, )?c\.txt\n", said)
        deleted = re.search(r"deleted, perhaps yours: (.*) \(made while a command ran unattended\)\n", said)
        assert deleted
        assert {*deleted[1].split(", ")} - {"gone"} == {"go", "second"}
        texts = [(project.folder / name).read_text() for name in ("a.txt", "b.txt", "c.txt")]
        assert texts == ["one\ntwo\n", "b\n", "c\n"]
        assert not (project.folder / "gone").exists()

    run_chat(project, monkeypatch, steps, yes=True, sandbox="auto")


@needs_sandbox
def test_a_small_screen_names_first_what_a_rewind_deletes_that_is_perhaps_not_of_the_agent(
    project: ChatProject,
) -> None:
    job = "touch begun; until test -e go; do sleep 0.05; done; seq 300 > made.txt; touch ended; sleep 100"
    project.script([("run", {"command": job, "background": True})], "Started.")
    with project.terminal("--session", "s", "--yes", columns=50, rows=20, env=SANDBOX) as terminal:
        terminal.see("ctx ")
        terminal.enter("start it")
        terminal.see("Started.")
        wait_for(project.folder / "begun")
        (project.folder / "yours.txt").write_text("by the user\n")
        (project.folder / "go").touch()
        wait_for(project.folder / "ended")
        terminal.enter("/rewind")
        terminal.see("type to search")
        terminal.type(ENTER)
        seen = terminal.see("more lines between")
        assert "deleted, perhaps yours: " in seen
        assert "yours.txt" in re.sub(r"[\s┊]", "", seen.split("more lines between")[0])
        terminal.answer("n")
        terminal.see("nothing was changed")
    assert (project.folder / "yours.txt").exists()


def wait_for(path: Path) -> None:
    until = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < until
        time.sleep(0.02)
