"""/rewind with files: the menu, the question, what is restored, what is not, and /undo."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest

from foveal.core.log import UserSaid
from support.chat_project import ChatProject, InProcessChat, run_chat
from support.effort import rest_in_soak
from support.sandbox_here import needs_sandbox
from support.terminal import CTRL_C, ENTER

CHANGES = (
    [("edit", {"path": "a.txt", "old": "two", "new": "2"}), ("write", {"path": "new.txt", "content": "x\n"})],
    [("run", {"command": "touch made"})],
    "Done.",
)


def start(project: ChatProject) -> None:
    project.script("Hello.", *CHANGES, "Again.", "Last.")


def test_rewind_offers_messages_and_restores_conversation_and_files(project: ChatProject) -> None:
    start(project)
    with project.terminal("--session", "s", "--yes") as terminal:
        terminal.see("ctx ")
        terminal.enter("first message")
        terminal.see("Hello.")
        terminal.enter("change files")
        terminal.see("Done.")
        terminal.enter("/rewind")
        terminal.see("Go back to before which message?")
        terminal.see("type to search")
        terminal.type(ENTER)
        seen = terminal.see("Conversation and files")
        assert "Go back to before “change files”: what?" in seen
        assert "what these calls did is not undone: run: touch made" in seen
        terminal.answer("b")
        seen = terminal.see("deleted new.txt")
        assert "back to before “change files”; /undo takes the rewind back" in seen
        assert "restored a.txt" in seen
        assert (project.folder / "a.txt").read_text() == "one\ntwo\n"
        assert not (project.folder / "new.txt").exists()
        assert (project.folder / "made").exists()
        # The message is in the input line, to be changed and sent again.
        terminal.see(lambda t: [line for line in t.lines if line][-2] == "› change files")
        terminal.type(CTRL_C)
        terminal.enter("/undo")
        terminal.see("its messages are back in their places")
        terminal.see("restored new.txt")
        assert (project.folder / "a.txt").read_text() == "one\n2\n"
        assert (project.folder / "new.txt").read_text() == "x\n"
    assert [m["content"] for m in project.request() if m["role"] == "user"] == [
        "first message",
        "change files",
    ]


def test_rewind_of_files_only_keeps_the_conversation(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(project)

    async def steps(chat: InProcessChat) -> None:
        await chat.send("first message")
        await chat.send("change files")
        handle = (await chat.send("/rewind")).splitlines()[-1].split()[0]
        text = await chat.send(f"/rewind {handle} files")
        assert text.startswith("▪ restored a.txt · /undo e")
        assert (project.folder / "a.txt").read_text() == "one\ntwo\n"
        assert chat.state.provider.find_text("change files")
        assert "restored a.txt" in await chat.send("/undo")
        assert (project.folder / "a.txt").read_text() == "one\n2\n"
        assert (await chat.send("/undo")).startswith("✗ nothing has been reduced, superseded or rewound")
        assert "back to before “change files”" in await chat.send(f"/rewind {handle}")
        assert (project.folder / "a.txt").read_text() == "one\n2\n"
        assert (await chat.send(f"/rewind {handle} everything")).startswith("✗ ")

    run_chat(project, monkeypatch, steps, yes=True)


def test_a_rewind_leaves_what_the_user_has_typed(project: ChatProject) -> None:
    project.script("Hello.", delay=0.5)
    with project.terminal("--session", "s") as terminal:
        terminal.see("ctx ")
        terminal.enter("first message")
        terminal.see("Hello.")
        handle = next(event.handle for event in project.events() if isinstance(event.fact, UserSaid))
        terminal.type(f"/rewind {handle}{ENTER}typed")
        terminal.see("back to before “first message”")
        terminal.see(lambda t: [line for line in t.lines if line][-2] == "› typed")


def test_a_file_that_the_user_changed_is_left_and_named(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(project)

    async def steps(chat: InProcessChat) -> None:
        await chat.send("first message")
        await chat.send("change files")
        (project.folder / "a.txt").write_text("mine\n")
        handle = (await chat.send("/rewind")).splitlines()[-1].split()[0]
        text = await chat.send(f"/rewind {handle} both")
        assert "not restored: a.txt: it is not as the agent left it" in text
        assert "deleted new.txt" in text
        assert (project.folder / "a.txt").read_text() == "mine\n"

    run_chat(project, monkeypatch, steps, yes=True)


def test_two_rewinds_and_a_resumed_session_still_know_the_files(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(project)

    async def change(chat: InProcessChat) -> None:
        await chat.send("first message")
        await chat.send("change files")
        handle = (await chat.send("/rewind")).splitlines()[-1].split()[0]
        await chat.send(f"/rewind {handle} both")

    async def change_again(chat: InProcessChat) -> None:
        await chat.send("change files again")
        assert (project.folder / "a.txt").read_text() == "one\n2\n"
        handle = (await chat.send("/rewind")).splitlines()[1].split()[0]
        text = await chat.send(f"/rewind {handle} both")
        assert "restored a.txt" in text
        assert (project.folder / "a.txt").read_text() == "one\ntwo\n"
        assert not (project.folder / "new.txt").exists()

    run_chat(project, monkeypatch, change, yes=True)
    project.script(*CHANGES)
    run_chat(project, monkeypatch, change_again, yes=True)


def test_a_protected_file_is_not_restored_without_a_terminal(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.script([("write", {"path": "AGENTS.md", "content": "Be kind.\n"})], "Done.")
    with project.terminal("--session", "s") as terminal:
        terminal.see("ctx ")
        terminal.enter("write it")
        terminal.see("Allow write AGENTS.md")
        terminal.answer("y")
        terminal.see("Done.")

    async def steps(chat: InProcessChat) -> None:
        handle = (await chat.send("/rewind")).splitlines()[-1].split()[0]
        text = await chat.send(f"/rewind {handle} files")
        assert "not restored: AGENTS.md: it is protected, and there is no terminal to ask at" in text
        assert (project.folder / "AGENTS.md").exists()

    run_chat(project, monkeypatch, steps, yes=True)


@needs_sandbox
def test_rewind_restores_modes_and_empty_folders_and_names_no_harmless_command(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of the command that changed files; what was committed or left out of the copies is named."""
    folder = project.folder
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    for name in ("b.txt", "a.py", "s.sh"):
        (folder / name).write_text(f"{name}\n")
        (folder / name).chmod(0o640)
    (folder / "empty" / "inner").mkdir(parents=True)
    (folder / "empty").chmod(0o750)
    (folder / "private").mkdir(mode=0o700)
    (folder / "private" / "x").write_text("x")
    (folder / "node_modules").mkdir()
    commands = (
        "ls",
        "sleep 0",
        "rm -rf s.sh empty private; chmod 000 b.txt; chmod 777 a.py; mkdir -p new/inner",
        "chmod 700 a.py",
        "git add a.txt",
        "rm -rf node_modules",
    )
    project.script(*([("run", {"command": command})] for command in commands), "Done.")

    async def steps(chat: InProcessChat) -> None:
        await chat.send("go")
        handle = (await chat.send("/rewind")).splitlines()[-1].split()[0]
        said = await chat.send(f"/rewind {handle} files")
        assert "what these calls did is not undone: run: git add a.txt · run: rm -rf node_modules\n" in said
        for shown in ("restored b.txt", "restored a.py", "restored s.sh", "restored empty/inner/"):
            assert f"▪ {shown} " in said
        assert "deleted new/inner/ " in said
        assert "private/ " not in said
        states = {
            str(path.relative_to(folder)): path.stat().st_mode & 0o777 for path in folder.rglob("[!.]*")
        }
        kept = {name: mode for name, mode in states.items() if not name.startswith((".", "a.txt"))}
        assert kept == {
            "b.txt": 0o640, "a.py": 0o640, "s.sh": 0o640, "empty": 0o750, "empty/inner": states["empty/inner"],
            "private": 0o700, "private/x": states["private/x"],
        }  # fmt: skip
        await chat.send("/undo")
        assert not (folder / "empty").exists()
        assert (folder / "a.py").stat().st_mode & 0o777 == 0o700
        assert (folder / "new" / "inner").is_dir()

    run_chat(project, monkeypatch, steps, yes=True, sandbox="auto")


KILLED = "rm -f a.txt; echo x > .envrc; touch ready; sleep 500"
SANDBOX = {"FOVEAL_TOOLS_SANDBOX": "auto"}


def kill_during(project: ChatProject, number: int, *, background: bool) -> None:
    """Kill a chat while a command runs that has deleted a file and made a protected one."""
    project.script([("run", {"command": KILLED, "background": background})], "Started.", "Again.")
    with project.terminal("--session", "s", env=SANDBOX) as terminal:
        terminal.see("ctx ")
        terminal.enter("clean up")
        until = time.monotonic() + 30
        while not (project.folder / "ready").exists():
            assert time.monotonic() < until
            time.sleep(0.02)
        os.kill(terminal.pid, number)
        terminal.ended()


@needs_sandbox
@pytest.mark.parametrize(
    ("number", "background"),
    rest_in_soak(
        [
            (signal.SIGKILL, False),
            (signal.SIGHUP, True),
            (signal.SIGKILL, True),
            (signal.SIGHUP, False),
        ],
    ),
)
def test_a_killed_chat_loses_no_record(project: ChatProject, number: int, *, background: bool) -> None:
    kill_during(project, number, background=background)
    with project.terminal("--session", "s", columns=120, env=SANDBOX) as terminal:
        terminal.see("ctx ")
        seen = terminal.see(".envrc is new since then and protected: it is .envrc.set-aside now")
        assert "a chat was killed while this ran: rm -f a.txt; echo x > .envrc" in seen
        assert "changed since then: a.txt, " in seen
        terminal.enter("/rewind")
        terminal.see("type to search")
        terminal.type(ENTER)
        terminal.see("Conversation and files")
        terminal.answer("b")
        terminal.see("restored a.txt")
        terminal.type(CTRL_C)  # the message is in the input line
        terminal.enter("/quit")
        assert terminal.ended() == 0
    assert (project.folder / "a.txt").read_text() == "one\ntwo\n"
    assert not (project.folder / ".envrc").exists()


@needs_sandbox
def test_another_session_sets_aside_and_keeps_the_record_for_the_killed_one(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_during(project, signal.SIGKILL, background=False)

    async def other(chat: InProcessChat) -> None:
        assert "/rewind in session s restores what it was" in chat.err.getvalue()
        assert not (project.folder / ".envrc").exists()

    run_chat(project, monkeypatch, other, session="other", sandbox="auto")
    (project.folder / "later.txt").write_text("by the user\n")

    async def same(chat: InProcessChat) -> None:
        assert "changed since then: a.txt, " in chat.err.getvalue()
        handle = (await chat.send("/rewind")).splitlines()[-1].split()[0]
        assert "restored a.txt" in await chat.send(f"/rewind {handle} files")
        assert (project.folder / "later.txt").exists()

    run_chat(project, monkeypatch, same, sandbox="auto")

    async def again(chat: InProcessChat) -> None:
        assert "killed" not in chat.err.getvalue()

    run_chat(project, monkeypatch, again, sandbox="auto")


def test_a_folder_that_becomes_empty_goes_with_its_file(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project.folder / "old").mkdir()
    (project.folder / "old" / "kept.txt").write_text("kept\n")
    paths = ("made/inner/x.txt", "old/y.txt")
    project.script([("write", {"path": path, "content": "x\n"}) for path in paths], "Done.")

    async def steps(chat: InProcessChat) -> None:
        await chat.send("go")
        handle = (await chat.send("/rewind")).splitlines()[-1].split()[0]
        assert "deleted made/inner/x.txt" in await chat.send(f"/rewind {handle} files")
        assert not (project.folder / "made").exists()
        assert (project.folder / "old" / "kept.txt").exists()
        await chat.send("/undo")
        assert (project.folder / "made" / "inner" / "x.txt").exists()

    run_chat(project, monkeypatch, steps, yes=True)
