"""Commands of a chat in the sandbox and outside of it, and what the screen shows while they run."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pytest

from foveal.core.log import ToolReturned, text_of
from support.chat_project import ChatProject, InProcessChat, run_chat
from support.sandbox_here import WHY_NO_SANDBOX, needs_sandbox, shared_folder
from support.terminal import CTRL_C

WITH_SANDBOX: Final = {"FOVEAL_TOOLS_SANDBOX": "auto"}


@pytest.fixture
def outside() -> Iterator[Path]:
    """A folder that is neither in the project nor in /tmp."""
    with TemporaryDirectory(dir=shared_folder()) as folder:
        yield Path(folder)


def results(project: ChatProject) -> list[str]:
    return [text_of(e.fact.content) for e in project.events() if isinstance(e.fact, ToolReturned)]


def _script_that_escapes(project: ChatProject, outside: Path) -> dict[str, str]:
    (project.folder / "escape.sh").write_text(f"cat a.txt > {outside}/copy\n")
    return {"command": "sh escape.sh"}


@needs_sandbox
def test_a_model_that_cheats_stays_in_the_sandbox(project: ChatProject, outside: Path) -> None:
    escape = _script_that_escapes(project, outside)
    project.script(
        [("run", {"command": "touch made"})],
        [("run", escape)],
        [("run", escape | {"outside_sandbox": True})],
        "Refused?",
        [("run", escape | {"outside_sandbox": True})],
        "Copied.",
    )
    with project.terminal("--session", "s", env=WITH_SANDBOX, columns=120) as terminal:
        terminal.see(lambda t: "bubblewrap" in t.bottom)
        terminal.enter("go")
        terminal.see("Allow run outside of the sandbox")
        assert terminal.text.count("Allow ") == 1
        assert (project.folder / "made").exists()
        assert not (outside / "copy").exists()
        terminal.answer("n")
        terminal.see("Refused?")
        assert not (outside / "copy").exists()
        terminal.enter("again")
        terminal.see(lambda t: t.text.count("Allow run outside of the sandbox") == 2)
        terminal.answer("y")
        terminal.see("Copied.")
    assert (outside / "copy").read_text() == "one\ntwo\n"
    assert "Read-only file system\n[foveal: the sandbox blocks the network and writes" in results(project)[1]


@needs_sandbox
def test_everything_is_allowed_only_inside_the_sandbox(project: ChatProject, outside: Path) -> None:
    escape = _script_that_escapes(project, outside)
    project.script([("run", escape)], [("run", escape | {"outside_sandbox": True})], "Tried.")
    done = project.run_piped("run", "--yes", "--session", "s", "go", env=WITH_SANDBOX)
    assert done.returncode == 3, done.stderr
    assert list(outside.iterdir()) == []


def test_without_a_sandbox_the_status_line_says_so_and_commands_ask(project: ChatProject) -> None:
    project.script([("run", {"command": "touch made"})], "Asked.")
    with project.terminal("--session", "s", "--no-sandbox", env=WITH_SANDBOX) as terminal:
        terminal.see(lambda t: "no sandbox" in t.bottom)
        terminal.enter("go")
        terminal.see("Allow run: touch made")
        assert not (project.folder / "made").exists()


def test_without_bubblewrap_the_start_says_how_to_install_it_and_run_can_read(project: ChatProject) -> None:
    programs = project.home / "programs"
    programs.mkdir()
    for name in ("ls", "cat", "git", "touch", "apt-get"):
        (programs / name).symlink_to(shutil.which(name) or shutil.which("true") or "")
    subprocess.run(["git", "init", "-q", str(project.folder)], check=True)
    commands = ("ls -A", "cat a.txt", "git status --short", "touch made", "cat ../chats.db", "cat $HOME/x")
    project.script([("run", {"command": command}) for command in commands], "Done.")
    done = project.run_piped("run", "--session", "s", "look", env=WITH_SANDBOX | {"PATH": str(programs)})
    notice = "no sandbox, so commands ask unless they only read: bubblewrap is not installed; "
    assert done.stderr.count(f"{notice}`sudo apt-get install bubblewrap` installs it") == 1
    answers = results(project)
    assert answers[:3] == [
        ".git\na.txt\nexit status 0",
        "one\ntwo\nexit status 0",
        "?? a.txt\nexit status 0",
    ]
    assert not any("exit status" in answer for answer in answers[3:])
    # A program that the repository configures could run.
    subprocess.run(["git", "-C", str(project.folder), "config", "core.fsmonitor", "./x"], check=True)
    project.script([("run", {"command": "git status"})], "Done.")
    done = project.run_piped("run", "--session", "s", "again", env=WITH_SANDBOX | {"PATH": str(programs)})
    assert "? Allow run: git status?" in done.stderr


def test_a_project_cannot_switch_the_sandbox_off(project: ChatProject) -> None:
    (project.folder / "foveal.toml").write_text('[tools]\nsandbox = "off"\nnetwork = true\n')
    shown = project.run_piped("config", env=WITH_SANDBOX)
    assert "tools.sandbox" in shown.stdout
    assert [line.split()[1] for line in shown.stdout.splitlines() if line.startswith("tools.network")] == [
        "false"
    ]


def test_a_running_command_is_shown_and_ctrl_c_ends_it_and_keeps_its_output(project: ChatProject) -> None:
    (project.folder / "slow.sh").write_text("echo first; sleep 0.5; echo second; sleep 60; echo never")
    project.script([("run", {"command": "sh slow.sh"})], "Not reached.", "Back again.")
    with project.terminal("--session", "s", "--yes") as terminal:
        terminal.see("ctx ")
        terminal.enter("go")
        terminal.see("second")
        terminal.type(CTRL_C)
        seen = terminal.see("stopped; the conversation so far is kept")
        assert "│ first\n  │ second\n" in seen
        assert re.search(r"└ .* · /expand e\d+", seen)
    (output,) = results(project)
    assert output.startswith("first\nsecond\n")
    assert "never" not in output


def test_the_doctor_names_the_sandbox_or_says_why_there_is_none(project: ChatProject) -> None:
    def sandbox_line(**env: str) -> str:
        done = project.run_piped("doctor", env=env, has_process=True)
        assert done.returncode == 0, done.stderr
        (line,) = (line for line in done.stdout.splitlines() if line.startswith("sandbox"))
        return line.removeprefix("sandbox").strip()

    assert sandbox_line() == "switched off by FOVEAL_TOOLS_SANDBOX: commands run without one"
    missing = "bubblewrap is not installed; install the package bubblewrap of your distribution"
    nowhere = str(project.home / "nothing")
    assert (
        sandbox_line(**WITH_SANDBOX, PATH=nowhere)
        == f"none, so commands ask unless they only read: {missing}"
    )
    if not WHY_NO_SANDBOX:
        assert sandbox_line(**WITH_SANDBOX) == "bubblewrap, without network"
        assert sandbox_line(**WITH_SANDBOX, FOVEAL_TOOLS_NETWORK="1") == "bubblewrap, with network"


@needs_sandbox
def test_the_user_reads_which_hooks_do_not_run(project: ChatProject, monkeypatch: pytest.MonkeyPatch) -> None:
    (project.home / ".gitconfig").write_text("[user]\n\tname = Ada\n\temail = ada@example.org\n")
    subprocess.run(["git", "init", "-q", "."], cwd=project.folder, check=True)
    (project.folder / ".git/hooks/pre-commit").write_text("#!/bin/sh\n")
    (project.folder / ".git/hooks/pre-commit").chmod(0o755)
    project.script([("run", {"command": "git add -A && git commit -m Begin && git log -1"})], "Done.")

    async def steps(chat: InProcessChat) -> None:
        said = await chat.send("commit it")
        assert "  │ [foveal: hooks do not run in the sandbox: pre-commit]\n" in said + chat.err.getvalue()

    run_chat(project, monkeypatch, steps, sandbox="auto")
