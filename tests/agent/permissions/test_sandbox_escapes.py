"""Escapes from the sandbox, tried for real: bubblewrap runs each command, and the test looks at the machine."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest.mock import patch
from uuid import uuid4

import pytest

from foveal.agent.permissions import sandbox as sandbox_module
from foveal.agent.permissions.protected_paths import protected_files
from foveal.agent.permissions.sandbox import Sandbox, SandboxFinding, find_sandbox
from foveal.agent.tool import ToolInterrupted
from foveal.agent.tools import Toolbox, Workspace, shell_tool
from foveal.core.log import text_of
from support.effort import rest_in_soak, some_cases
from support.sandbox_here import needs_sandbox, shared_folder

pytestmark = needs_sandbox


class Machine(NamedTuple):
    """A made home with a project in it, and a folder beside it, none of them in /tmp."""

    home: Path
    workspace: Path
    outside: Path
    sandbox: Sandbox
    box: Toolbox

    def run(self, command: str, **more: Any) -> str:
        call = self.box.call("run", json.dumps({"command": command, **more}))
        return text_of(asyncio.run(call).content)


@pytest.fixture(scope="module")
def is_usual() -> bool:
    """Whether the first sandbox that is tried works here, so that no test need try it again."""
    with TemporaryDirectory(dir=shared_folder()) as folder:
        tried: list[Sandbox] = []
        try_one = sandbox_module._tried

        def note_and_try(one: Sandbox) -> SandboxFinding:
            tried.append(one)
            return try_one(one)

        with patch.object(sandbox_module, "_tried", note_and_try):
            find_sandbox(Path(folder))
    return len(tried) == 1


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, is_usual: bool) -> Iterator[Machine]:
    if is_usual:
        monkeypatch.setattr(sandbox_module, "_tried", SandboxFinding)
    # In /tmp, which a sandboxed command sees as its own folder, every write would seem to succeed.
    with TemporaryDirectory(dir=shared_folder()) as folder:
        home, outside = Path(folder, "home"), Path(folder, "outside")
        workspace = home / "project"
        for path in (workspace, outside, home / ".ssh", home / ".config/git", home / ".docker"):
            path.mkdir(parents=True)
        (home / ".ssh/id_ed25519").write_text("PRIVATE")
        (home / ".netrc").write_text("password")
        (home / ".gitconfig").write_text("[user]\n\tname = Ada\n")
        (home / ".config/git/config").write_text("[user]\n\temail = ada@example.org\n")
        (home / ".config/git/credentials").write_text("https://token@example.org")
        (outside / "theirs").write_text("untouched")
        monkeypatch.setenv("HOME", str(home))
        monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
        monkeypatch.delenv("XDG_STATE_HOME", raising=False)
        found = find_sandbox(workspace)
        assert found.sandbox is not None, found.why_not
        box = Toolbox([shell_tool(Workspace(workspace), sandbox=found.sandbox)])
        yield Machine(home, workspace, outside, found.sandbox, box)


# ── Files ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_command_works_in_the_workspace(machine: Machine) -> None:
    assert machine.run("echo made > new && cat new; pwd") == f"made\n{machine.workspace}\nexit status 0"
    assert (machine.workspace / "new").read_text() == "made\n"


def test_nothing_outside_of_the_workspace_changes(machine: Machine) -> None:
    for command in (
        "echo broken > {outside}/theirs",
        "ln -s {outside}/theirs link && echo broken > link",
        "ln -s {outside} folder && echo broken > folder/theirs",
        "echo broken > /proc/self/root{outside}/theirs",
        "echo broken > /proc/1/root{outside}/theirs",
        "cd /proc/self/cwd/../../outside && echo broken > theirs",
        "ln {outside}/theirs hard && echo broken > hard",
        "mv {outside}/theirs .",
        "chmod 777 {outside}/theirs",
        "mount -o remount,rw,bind / && echo broken > {outside}/theirs",
        "unshare -Urm sh -c 'mount -o remount,rw,bind / && echo broken > {outside}/theirs'",
        "umount -l {home}/.ssh; cat {home}/.ssh/id_ed25519",
        "echo broken > ~/new-file",
        "echo broken > ~/.ssh/new-file",
    ):
        answer = machine.run(command.format(outside=machine.outside, home=machine.home))
        assert "exit status 0" not in answer, command
        assert "PRIVATE" not in answer, command
        assert (machine.outside / "theirs").read_text() == "untouched", command
        assert os.stat(machine.outside / "theirs").st_mode & 0o777 == 0o644, command
        assert [path.name for path in (machine.home / ".ssh").iterdir()] == ["id_ed25519"], command
        assert not (machine.home / "new-file").exists(), command


@pytest.mark.parametrize(
    ("folder", "reads_only"),
    rest_in_soak(
        product(
            ["/tmp/.cache", "$XDG_CACHE_HOME", "~/.cache", "/var/tmp", "/tmp", "$TMPDIR/tmp"], [False, True]
        ),
        every=3,
    ),
)
def test_a_link_in_a_private_folder_leads_no_later_command_out(
    machine: Machine, folder: str, reads_only: bool
) -> None:
    (machine.home / ".cache").mkdir()
    (machine.home / ".config/foveal").mkdir()
    (machine.home / ".config/foveal/foveal.toml").write_text("PRIVATE")
    tool = shell_tool(Workspace(machine.workspace), sandbox=machine.sandbox, reads_only=lambda: reads_only)
    plan = machine._replace(box=Toolbox([tool]))
    plan.run(f"rm -rf {folder}; ln -s $HOME {folder}; ls -la {folder}/")
    answer = plan.run(
        "for place in ~/.cache /tmp/.cache /tmp /var/tmp; do"
        " cat $place/.config/foveal/foveal.toml; echo broken > $place/outside-file; done; echo done"
    )
    assert "PRIVATE" not in answer
    assert "done\n" in answer
    assert sorted(path.name for path in machine.home.iterdir()) == [
        ".cache", ".config", ".docker", ".gitconfig", ".netrc", ".ssh", "project",
    ]  # fmt: skip
    assert list((machine.home / ".cache").iterdir()) == []


def test_commands_work_after_one_that_emptied_its_private_folders(machine: Machine) -> None:
    (machine.home / ".cache").mkdir()
    machine.run("rm -rf /tmp/.cache ~/.cache /tmp/* /var/tmp")
    assert machine.run("touch /tmp/a ~/.cache/b && mkdir -p $XDG_CACHE_HOME && echo works") == (
        "works\nexit status 0"
    )


def test_commands_work_after_another_program_removed_the_private_folders(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (machine.workspace / "sub").mkdir()
    sandbox = find_sandbox(machine.workspace / "sub").sandbox
    assert sandbox is not None
    shutil.rmtree(next(tmp_path.iterdir()))
    assert subprocess.run(sandbox.wrap(["touch", "/tmp/a"])).returncode == 0


def test_temporary_files_in_the_workspace_are_no_way_out(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, temporary = machine.workspace / "sub", machine.workspace / "sub/tmp"
    temporary.mkdir(parents=True)
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    sandbox = find_sandbox(project).sandbox
    assert sandbox is not None
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("name", ["environment", "bin"])
def test_a_link_that_a_command_made_shows_nothing_hidden(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The folders of toolchains are readable where they lead to, which a command must not choose."""
    monkeypatch.setenv("VIRTUAL_ENV", str(machine.workspace / "environment"))
    (machine.home / ".local").mkdir()
    (machine.home / ".local/bin").symlink_to(machine.workspace / "bin")
    machine.run(f"ln -s ~/.ssh {name}")
    assert "PRIVATE" not in machine.run(f"cat ~/.ssh/* {name}/*")


def test_secrets_and_dot_folders_of_the_home_are_not_readable(machine: Machine) -> None:
    home = machine.home
    assert "PRIVATE" not in machine.run(
        f"cat ~/.ssh/* /proc/self/root{home}/.ssh/id_ed25519; ls -A ~/.docker"
    )
    assert machine.run("cat ~/.netrc; ls -A ~/.docker ~/.ssh") == (
        f"{home}/.docker:\n\n{home}/.ssh:\nexit status 0"
    )
    assert machine.run("git config user.name; git config user.email") == "Ada\nada@example.org\nexit status 0"
    assert "token" not in machine.run("cat ~/.config/git/credentials")


def test_a_secret_folder_that_is_a_link_is_hidden_where_it_really_is(machine: Machine) -> None:
    keys = machine.outside / "keys"
    (machine.home / ".ssh").rename(keys)
    (machine.home / ".ssh").symlink_to(keys)
    answer = machine.run(f"cat ~/.ssh/id_ed25519 {keys}/id_ed25519")
    assert "PRIVATE" not in answer
    assert (keys / "id_ed25519").read_text() == "PRIVATE"


def test_the_settings_state_and_store_of_foveal_are_hidden(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, name in (("XDG_CONFIG_HOME", "settings"), ("XDG_STATE_HOME", "state")):
        folder = machine.workspace / name / "foveal"
        folder.mkdir(parents=True)
        (folder / "file").write_text("own")
        monkeypatch.setenv(variable, str(folder.parent))
    store = machine.workspace / "chats.db"
    store.write_text("own")
    sandbox = find_sandbox(machine.workspace, hidden=[store]).sandbox
    box = Toolbox([shell_tool(Workspace(machine.workspace), sandbox=sandbox)])
    hostile = (
        "cat */foveal/* chats.db; echo broken > chats.db; rm chats.db; touch settings/foveal/foveal.toml"
    )
    answer = text_of(asyncio.run(box.call("run", json.dumps({"command": hostile}))).content)
    assert "own" not in answer.replace("foveal", "")
    assert store.read_text() == "own"
    assert [path.name for path in (machine.workspace / "settings/foveal").iterdir()] == ["file"]


def test_git_and_project_files_of_the_workspace_are_read_only(machine: Machine) -> None:
    workspace = machine.workspace
    subprocess.run(["git", "init", "-q", str(workspace)], check=True)
    (workspace / "foveal.toml").write_text("")
    (workspace / "sub/.git").mkdir(parents=True)
    for command in (
        "echo broken > .git/hooks/pre-commit",
        "git config core.fsmonitor ./broken",
        "echo /elsewhere > .git/commondir",
        "mv .git other",
        "rm -rf .git",
        "echo broken > foveal.toml",
        "mv foveal.toml other",
        "echo broken > sub/.git/config",
        "mv sub/.git other",
    ):
        assert "exit status 0" not in machine.run(command), command
    assert "broken" not in (workspace / ".git/config").read_text()
    assert not (workspace / ".git/hooks/pre-commit").exists()
    assert not (workspace / ".git/commondir").exists()
    assert machine.run("git status --short") == "?? foveal.toml\nexit status 0"


def test_the_folder_of_a_protected_file_cannot_be_moved(machine: Machine) -> None:
    config = machine.workspace / "sub/.git/config"
    config.parent.mkdir(parents=True)
    config.write_text("untouched")
    (machine.workspace / "d").mkdir()
    for command in (
        "python3 -c \"import os; os.rename('sub', 'd/sub')\"",
        "echo broken > d/sub/.git/config",
        "python3 -c \"import os; os.rename('d/sub', 'sub')\"",
        "mv sub other && echo broken > other/.git/config && mv other sub",
        "rm -rf sub",
    ):
        assert "exit status 0" not in machine.run(command), command
    assert config.read_text() == "untouched"
    assert machine.run("echo new > sub/file && cat sub/file") == "new\nexit status 0"


def test_what_protected_links_lead_to_is_read_only(machine: Machine) -> None:
    workspace = machine.workspace
    for name in ("gitdata", "shared", "own", ".bare/worktrees/t", "sub", "tree"):
        (workspace / name).mkdir(parents=True)
    (workspace / "sub/.git").symlink_to("../gitdata")
    (workspace / ".vscode").symlink_to("shared")
    (workspace / "tree/.git").write_text("gitdir: ../.bare/worktrees/t\n")
    (workspace / ".bare/worktrees/t/commondir").write_text("../..\n")
    for command in (
        "echo broken > sub/.git/config",
        "echo broken > gitdata/config",
        "mv gitdata other",
        "echo broken > shared/tasks.json",
        "echo broken > .bare/config",
        "mv .bare other",
    ):
        assert "exit status 0" not in machine.run(command), command
    assert [*workspace.glob("gitdata/*"), *workspace.glob("shared/*"), *workspace.glob("other")] == []


def test_a_protected_link_does_not_show_what_is_hidden(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = machine.workspace / "state/foveal"
    folder.mkdir(parents=True)
    (folder / "file").write_text("SECRET")
    (machine.workspace / ".vscode").symlink_to("state/foveal")
    (machine.workspace / ".idea").symlink_to(machine.home / ".ssh")
    monkeypatch.setenv("XDG_STATE_HOME", str(folder.parent))
    answer = machine.run("cat .vscode/file .idea/id_ed25519 state/foveal/file")
    assert "SECRET" not in answer
    assert "PRIVATE" not in answer


def test_protected_files_count_in_any_number_of_folders(machine: Machine) -> None:
    for number in range(700):
        (machine.workspace / f"d{number}/.git").mkdir(parents=True)
    machine.run("for each in d*; do echo broken > $each/.git/config; done")
    assert [*machine.workspace.glob("d*/.git/config")] == []


def test_a_workspace_whose_repository_is_a_link_has_no_sandbox(machine: Machine) -> None:
    workspace = machine.workspace / "linked"
    (workspace / "gitdata").mkdir(parents=True)
    (workspace / ".git").symlink_to("gitdata")
    assert find_sandbox(workspace) == (
        None,
        "the .git of the working folder is a link, which cannot be protected",
    )


def test_dot_names_of_the_home_that_are_links_are_hidden_where_they_lead(machine: Machine) -> None:
    dotfiles = machine.home / "dotfiles"
    for name in ("cfg", "app"):
        (dotfiles / name).mkdir(parents=True)
        (dotfiles / name / "key").write_text("SECRET")
    (dotfiles / "rc").write_text("SECRET")
    (machine.workspace / "vimrc").write_text("mine")
    (machine.home / ".appcfg").symlink_to(dotfiles / "cfg")
    (machine.home / ".config/app").symlink_to(dotfiles / "app")
    (machine.home / ".apprc").symlink_to(dotfiles / "rc")
    (machine.home / ".vimrc").symlink_to(machine.workspace / "vimrc")
    (machine.home / ".up").symlink_to("..")
    (machine.home / ".tools").symlink_to("/usr")
    assert "SECRET" not in machine.run("cat ~/dotfiles/*/key ~/dotfiles/rc ~/.appcfg/key ~/.apprc")
    assert machine.run("cat vimrc; echo changed > vimrc; cat vimrc") == "minechanged\nexit status 0"


def test_a_worktree_keeps_its_git_file_and_its_repository(machine: Machine) -> None:
    repository = machine.outside / "repository"
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(repository)]
    subprocess.run(["git", "init", "-q", str(repository)], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "one"], check=True)
    subprocess.run([*git, "worktree", "add", "-q", str(machine.workspace / "tree")], check=True)
    tree = machine.workspace / "tree"
    before = (tree / ".git").read_text()
    sandbox = find_sandbox(tree).sandbox
    assert sandbox is not None
    for command in ("echo gitdir: /elsewhere > .git", "mv .git other", "git config core.fsmonitor ./broken"):
        done = subprocess.run(sandbox.wrap(["sh", "-c", command]), capture_output=True, cwd=tree)
        assert done.returncode != 0, command
    assert (tree / ".git").read_text() == before
    log = subprocess.run(sandbox.wrap(["git", "log", "--format=%s"]), capture_output=True, cwd=tree)
    assert log.stdout == b"one\n"


def test_protected_files_that_do_not_exist_are_not_created(machine: Machine) -> None:
    machine.run("true")
    assert list(machine.workspace.iterdir()) == []
    assert sorted(path.name for path in machine.home.iterdir()) == [
        ".config", ".docker", ".gitconfig", ".netrc", ".ssh", "project",
    ]  # fmt: skip


def test_temporary_files_are_private_and_last_until_the_next_command(machine: Machine) -> None:
    name = f"foveal-{uuid4().hex}"
    assert machine.run(f"echo kept > /tmp/{name}; ls /run") == "exit status 0"
    assert machine.run(f'cat "$TMPDIR/{name}" /var/tmp/{name}') == "kept\nkept\nexit status 0"
    assert not Path("/tmp", name).exists()


def test_root_cannot_change_the_kernel_through_proc(machine: Machine) -> None:
    looks = "for file in /proc/sys/kernel/core_pattern /proc/sysrq-trigger /sys/kernel/uevent_helper; do "
    assert machine.run(f'{looks} test ! -w "$file" || echo "$file"; done') == "exit status 0"
    assert "exit status 0" not in machine.run(": >> /proc/sys/kernel/core_pattern")


# ── Protected names ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "command",
    rest_in_soak(
        [
            "echo evil > .envrc",
            "echo evil > x && mv x .envrc",
            "echo evil > x && ln x CLAUDE.md",
            "ln -s x .vscode",
            "ln -s . loop && echo evil > loop/GEMINI.md",
            "mkdir -p d/e && echo evil > d/e/AGENTS.override.md && mv d f",
            "mkdir -p node_modules/p && echo evil > node_modules/p/.envrc && mv node_modules/p q",
            "mkdir .CLAUDE .Idea",
            "git init -q",
            "mkdir -p a && touch a/.mcp.json && chmod 500 a",
            "(sleep 0.3; echo evil > .envrc) & echo evil > .profile; exit 3",
            "python3 -c \"open('.en' + 'vrc', 'w')\"",
            "mkdir -p a/b/.git && echo evil > a/b/.git/config",
            "git init -q a/b/c",
        ],
        kept=11,
    ),
)
def test_a_protected_file_that_a_command_creates_does_not_stay(machine: Machine, command: str) -> None:
    answer = machine.run(command)
    assert "is protected, so it was renamed to" in answer
    assert protected_files(machine.workspace) == []
    # What the next command sees is the same.
    assert machine.run("ls -d .envrc .vscode CLAUDE.md .git 2>/dev/null | wc -l") == "0\nexit status 0"


@pytest.mark.parametrize(
    "command",
    rest_in_soak(
        [
            "echo broken > a/b/.git/hooks/pre-commit",
            "sed -i s/untouched/broken/ a/b/CLAUDE.md",
            "ln a/b/CLAUDE.md x && echo broken > x",
            "ln -s a/b l && echo broken > l/CLAUDE.md",
            "mv a c && echo broken > c/b/CLAUDE.md && mv c a",
            "cp -r a c && echo broken > c/b/CLAUDE.md && rm -r a && mv c a",
            "rm -rf a",
            "echo broken > /proc/self/cwd/a/b/CLAUDE.md",
            "echo broken > x && mv -f x a/b/CLAUDE.md",
            "umount a/b/.git && echo broken > a/b/.git/config",
            "git -C a/b config core.fsmonitor ./broken",
            "echo broken > a/b/.git/config",
            "cp /dev/null a/b/CLAUDE.md",
            "python3 -c \"import os; os.replace('other', 'a/b/.git/config')\"",
            "truncate -s 0 a/b/.git/config",
            "GIT_DIR=a/b/.git git config core.pager ./broken",
        ],
        kept=11,
    ),
)
def test_protected_files_further_down_do_not_change(machine: Machine, command: str) -> None:
    for name in ("a/b/.git/config", "a/b/CLAUDE.md", "other"):
        (machine.workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (machine.workspace / name).write_text("untouched")
    (machine.workspace / "a/b/.git/hooks").mkdir()
    machine.run(command)
    assert (machine.workspace / "a/b/.git/config").read_text() == "untouched"
    assert (machine.workspace / "a/b/CLAUDE.md").read_text() == "untouched"
    assert list((machine.workspace / "a/b/.git/hooks").iterdir()) == []


def test_a_protected_link_that_a_command_replaces_is_made_again(machine: Machine) -> None:
    (machine.workspace / "shared").mkdir()
    (machine.workspace / ".vscode").symlink_to("shared")
    answer = machine.run("rm .vscode && mkdir .vscode && echo evil > .vscode/tasks.json")
    assert ".vscode is protected, so it was renamed to .vscode.set-aside" in answer
    assert (machine.workspace / ".vscode").readlink() == Path("shared")


# ── Repositories ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def made_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with one commit, a hook, and a `.gitattributes` that names a filter. Each test gets a copy."""
    folder = tmp_path_factory.mktemp("repository")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(folder)]
    subprocess.run(["git", "init", "-q", "--template=", "-b", "main", str(folder)], check=True)
    (folder / ".git/info").mkdir()
    (folder / "a.txt").write_text("one\n")
    (folder / ".gitattributes").write_text("*.txt filter=odd diff=odd\n")
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "first"], check=True)
    subprocess.run([*git, "branch", "old"], check=True)
    hook = folder / ".git/hooks/pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\ntouch hook-ran\nexit 1\n")
    hook.chmod(0o755)
    return folder


@pytest.fixture
def repository(machine: Machine, made_repository: Path) -> Machine:
    """The workspace as a repository."""
    shutil.copytree(made_repository, machine.workspace, symlinks=True, dirs_exist_ok=True)
    return machine


def configure(machine: Machine, key: str, value: str) -> None:
    subprocess.run(["git", "-C", str(machine.workspace), "config", key, value], check=True)


@pytest.fixture(scope="module")
def made_branches(made_repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository with branches `other`, which changes protected files and others, and `plain`, which changes no
    protected one."""
    folder = tmp_path_factory.mktemp("branches") / "repository"
    shutil.copytree(made_repository, folder, symlinks=True)

    def git(*words: str) -> None:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "core.hooksPath=/dev/null"]
        subprocess.run([*command, *words], cwd=folder, check=True, capture_output=True)

    def write(**files: str) -> None:
        for name, text in files.items():
            place = folder / names[name]
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
        git("add", "-A")

    names = {"rules": "AGENTS.md", "name": "name", "b": "b.txt", "editor": "sub/.vscode/tasks.json"}
    write(rules="one", b="one", name="other")
    git("commit", "-q", "-m", "rules")
    git("checkout", "-q", "-b", "other")
    write(rules="two", b="two", editor="evil")
    git("commit", "-q", "-m", "both")
    git("checkout", "-q", "main")
    git("checkout", "-q", "-b", "plain")
    write(b="three")
    git("commit", "-q", "-m", "plain")
    git("checkout", "-q", "main")
    write(rules="stashed", b="stashed")
    git("stash")
    return folder


@pytest.fixture
def branches(machine: Machine, made_branches: Path) -> Machine:
    """The workspace as the repository with branches."""
    shutil.copytree(made_branches, machine.workspace, symlinks=True, dirs_exist_ok=True)
    return machine


@pytest.mark.parametrize(
    "commands",
    rest_in_soak(
        [
            [
                "git checkout -q -b new other",
                "cd sub; git switch other",
                "git -C . checkout other && git log",
                "git checkout other -- .",
                "git restore -s other -SW .",
                "git merge -m 'from other' other",
                "git cherry-pick other",
                "git revert HEAD",
                "git stash pop",
                "git checkout -",
                'git checkout "$(cat name)"',
                "git rm -r .",
            ],
            [
                "git checkout other",
                "git switch other",
                "git checkout -f other",
                "git checkout other AGENTS.md b.txt",
                "git restore --source=other .",
                "git restore -s other .",
                "git merge other",
                "git stash apply 0",
                "git checkout `cat name`",
            ],
        ]
    ),
)
def test_a_switch_that_changes_protected_files_is_refused_before_anything_moves(
    branches: Machine, commands: list[str]
) -> None:
    for name in ("other", "main"):  # so that `-` is another branch
        subprocess.run(["git", "-C", str(branches.workspace), "checkout", "-q", name], check=True)
    (branches.workspace / "sub").mkdir(exist_ok=True)
    for command in commands:
        answer = branches.run(command)
        assert "AGENTS.md" in answer, command
        assert "nothing was run" in answer, command
        assert "outside_sandbox" in answer, command
        status = ["git", "-C", str(branches.workspace), "status", "--porcelain", "--branch"]
        assert subprocess.check_output(status, text=True) == "## main\n", command
        assert (branches.workspace / "b.txt").read_text() == "one", command


@pytest.mark.parametrize(
    "command",
    rest_in_soak(
        [
            "git switch plain",
            "git checkout other -- b.txt",
            "git merge plain",
            "git checkout plain",
            "git checkout other b.txt",
            "git restore --source=other b.txt",
            "git cherry-pick plain",
            "git checkout -b other2",
        ],
        kept=3,
    ),
)
def test_a_switch_that_changes_no_protected_file_works(branches: Machine, command: str) -> None:
    configure(branches, "user.name", "a")
    configure(branches, "user.email", "a@b")
    answer = branches.run(command)
    assert "exit status 0" in answer
    assert "nothing was run" not in answer
    assert (branches.workspace / "b.txt").read_text() != "one" or "other2" in command


def test_local_changes_of_protected_files_are_not_discarded_in_part(branches: Machine) -> None:
    for name in ("AGENTS.md", "b.txt"):
        (branches.workspace / name).write_text("mine")
    for command in ("git checkout .", "git restore .", "git stash", "git checkout -f", "git checkout -- ."):
        assert "nothing was run" in branches.run(command)
    assert (branches.workspace / "b.txt").read_text() == "mine"
    assert "exit status 0" in branches.run("git checkout b.txt && git restore --staged .")
    assert (branches.workspace / "b.txt").read_text() == "one"


def test_a_merged_branch_can_be_deleted_and_no_other(branches: Machine) -> None:
    assert "Deleted branch old" in branches.run("git branch -d old")
    for command in ("-d plain", "-D plain", "-d -f plain", "--del --forc plain", "-df plain"):
        assert "exit status 0" not in branches.run(f"git branch {command}")
    assert (branches.workspace / ".git/refs/heads/plain").exists()


def test_a_line_that_stages_and_commits_works_without_hooks(repository: Machine) -> None:
    (repository.workspace / "b.txt").write_text("two\n")
    lines = (
        "git add -A && git commit -q -m 'second' && git log --format=%s",
        "git commit -q --allow-empty -m \"$(cat <<'E'\nthird: it's\n\nbody\nE\n)\"",
        "git checkout -q -b topic && git branch --show-current",
        "git stash list; git tag v1; git -C . status --short",
    )
    answers = [repository.run(line) for line in lines]
    note = "[foveal: hooks do not run in the sandbox: pre-commit]\n"
    assert answers == [
        f"second\nfirst\n{note}exit status 0",
        f"{note}exit status 0",
        f"topic\n{note}exit status 0",
        f"{note}exit status 0",
    ]
    log = ["git", "-C", str(repository.workspace), "log", "--format=%s", "topic"]
    assert subprocess.check_output(log, text=True) == "third: it's\nsecond\nfirst\n"
    assert not (repository.workspace / "hook-ran").exists()


def test_a_git_that_is_stopped_leaves_no_lock(repository: Machine) -> None:
    with open(repository.workspace / "large", "wb") as file:
        file.truncate(8 * 1024**3)  # git holds the index while it reads it
    answer = repository.run("git add -A", timeout=0.6)
    assert "it was stopped after 0.6 seconds" in answer
    assert not list((repository.workspace / ".git").rglob("*.lock"))


def test_a_command_that_is_stopped_can_clean_up(machine: Machine) -> None:
    answer = machine.run(
        "trap 'rm busy; exit 9' TERM; touch busy; for i in $(seq 600); do sleep 0.1; done", timeout=1
    )
    assert "it was stopped after 1 second]" in answer
    assert answer.endswith("exit status 9")
    assert not (machine.workspace / "busy").exists()


@pytest.mark.parametrize(
    "commands",
    rest_in_soak(
        [
            [
                "git reset --hard HEAD",
                "git update-ref -d refs/heads/main",
                "git config user.name x && git commit -m x",
                "git -c core.hooksPath=.git/hooks commit --allow-empty -m x",
                "GIT_DIR=.git git commit --allow-empty -m x",
                "git() { rm -rf .git/objects; }; git add .",
                "git add . && rm -rf .git/refs",
                "ln -s .git/refs r; echo evil >> r/heads/old; git add a.txt",
                "test -v 'x[$(rm -rf .git/refs)]'; git add a.txt",
                "rm -rf .git/objects",
            ],
            [
                "git branch -D old",
                "git gc --prune=now",
                "python3 evil.py; git commit --allow-empty -m x",
                "git add a.txt && echo evil > .git/refs/heads/old",
            ],
        ]
    ),
)
def test_nothing_else_writes_in_a_repository(repository: Machine, commands: list[str]) -> None:
    (repository.workspace / "evil.py").write_text("import shutil; shutil.rmtree('.git/refs')")
    files = (repository.workspace / ".git").rglob("*")
    before = {path: path.stat().st_mtime_ns for path in files if path.name != "index"}
    for command in commands:
        assert "exit status 0" not in repository.run(command), command
        assert {path: path.stat().st_mtime_ns for path in before} == before, command


def test_a_folder_that_looks_like_a_repository_is_not_taken_for_one(repository: Machine) -> None:
    root = repository.workspace
    (root / "evil.sh").write_text(f"#!/bin/sh\nrm -rf {root}/.git/refs\ntouch {root}/ran\n")
    (root / "evil.sh").chmod(0o755)
    repository.run(
        "git init -q --bare x && cd x && git config core.bare false && git config core.worktree .. && "
        f"git config filter.odd.clean {root}/evil.sh"
    )
    assert (root / "x/config").exists()
    (root / "b.txt").write_text("b")
    assert "exit status 0" not in repository.run("cd x && git add ../b.txt")
    assert not (root / "ran").exists()
    assert (root / ".git/refs/heads/old").exists()


def test_a_program_of_the_project_that_is_called_git_does_not_get_the_repository(
    repository: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = repository.workspace / "bin/git"
    planted.parent.mkdir()
    planted.write_text("#!/bin/sh\nrm -rf .git/refs && echo removed\n")
    planted.chmod(0o755)
    monkeypatch.setenv("PATH", f"{planted.parent}:{os.environ['PATH']}")
    box = Toolbox([shell_tool(Workspace(repository.workspace), sandbox=repository.sandbox)])
    answer = asyncio.run(box.call("run", json.dumps({"command": "git add a.txt"})))
    assert "Read-only file system" in text_of(answer.content)
    assert (repository.workspace / ".git/refs/heads/old").exists()


def test_hooks_of_another_folder_are_named_too(repository: Machine) -> None:
    (repository.workspace / "githooks").mkdir()
    (repository.workspace / "githooks/commit-msg").write_text("#!/bin/sh\nexit 1\n")
    (repository.workspace / "githooks/commit-msg").chmod(0o755)
    configure(repository, "core.hooksPath", "githooks")
    answer = repository.run("git commit -q --allow-empty -m x")
    assert answer == "[foveal: hooks do not run in the sandbox: commit-msg]\nexit status 0"


def test_a_program_that_runs_while_committing_cannot_change_settings(repository: Machine) -> None:
    evil = repository.workspace / "evil.sh"
    evil.write_text(
        "#!/bin/sh\necho evil > .git/hooks/post-commit\necho evil >> .git/config\nmv .git/config .git/x\n"
        "mv .git/hooks .git/y\necho /elsewhere > .git/commondir\necho evil > .git/info/attributes\n"
        f"echo evil > {repository.outside}/theirs\ncat\n"
    )
    evil.chmod(0o755)
    configure(repository, "filter.odd.clean", "./evil.sh")
    before = (repository.workspace / ".git/config").read_text()
    (repository.workspace / "b.txt").write_text("two\n")
    answer = repository.run("git add b.txt")
    assert ".git/commondir is protected, so it was renamed to .git/commondir.set-aside" in answer
    assert (repository.workspace / ".git/config").read_text() == before
    assert [
        path.name for path in (repository.workspace / ".git/hooks").iterdir() if ".sample" not in path.name
    ] == ["pre-commit"]
    assert not (repository.workspace / ".git/info/attributes").exists()
    assert (repository.outside / "theirs").read_text() == "untouched"


@pytest.mark.parametrize(
    ("key", "command"),
    rest_in_soak(
        [
            ("core.fsmonitor", "git status"),
            ("alias.st", "git st"),
            ("diff.odd.textconv", "git log -p"),
            ("filter.odd.smudge", "git checkout -f a.txt"),
            ("core.sshCommand", "git ls-remote ssh://example.org/x"),
            ("core.editor", "git commit --allow-empty"),
            ("core.pager", "git -p log"),
            ("diff.external", "git diff HEAD --ext-diff"),
            ("diff.odd.command", "git diff HEAD"),
        ],
        kept=6,
    ),
)
def test_programs_that_the_repository_configures_stay_in_the_sandbox(
    repository: Machine, key: str, command: str
) -> None:
    evil = repository.workspace / "evil.sh"
    evil.write_text(
        f"#!/bin/sh\necho x > ran\necho broken > {repository.outside}/theirs\ncat ~/.ssh/*\nexit 1\n"
    )
    evil.chmod(0o755)
    path = f"!{evil}" if key.startswith("alias") else str(evil)
    configure(repository, key, path)
    (repository.workspace / "a.txt").write_text("changed\n")
    assert "PRIVATE" not in repository.run(command)
    assert (repository.outside / "theirs").read_text() == "untouched"
    if key != "core.pager":  # git starts no pager without a terminal
        assert (repository.workspace / "ran").exists(), "the test starts no program"


def test_scripts_of_a_project_stay_in_the_sandbox(machine: Machine) -> None:
    scripts = {"test": f"echo broken > {machine.outside}/theirs; cat ~/.ssh/*; touch ran; echo evil > .envrc"}
    (machine.workspace / "package.json").write_text(json.dumps({"name": "x", "scripts": scripts}))
    (machine.workspace / "Makefile").write_text(f"test:\n\t{scripts['test']}\n")
    for program in some_cases(("make", "npm"), every=2):
        if shutil.which(program):
            answer = machine.run(f"{program} test")
            assert "PRIVATE" not in answer
            assert ".envrc is protected" in answer
            (machine.workspace / "ran").unlink()
    assert (machine.outside / "theirs").read_text() == "untouched"


# ── Network and sockets ──────────────────────────────────────────────────────────────────────────────────


def test_the_network_is_reachable_only_where_it_is_allowed(machine: Machine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(5)
        connect = f"exec 3<>/dev/tcp/127.0.0.1/{server.getsockname()[1]} && echo connected"
        assert "connected" not in machine.run(connect)
        allowed = Toolbox([shell_tool(Workspace(machine.workspace), sandbox=machine.sandbox, network=True)])
        answer = asyncio.run(allowed.call("run", json.dumps({"command": connect})))
        assert text_of(answer.content) == "connected\nexit status 0"


def test_sockets_of_other_programs_are_not_reachable(machine: Machine) -> None:
    abstract = f"\0foveal-{uuid4().hex}"
    hidden = machine.home / ".docker/docker.sock"
    with TemporaryDirectory() as temporary:
        places = (abstract, os.path.join(temporary, "s"), os.path.relpath(hidden))
        servers = []
        for place in places:
            server = socket.socket(socket.AF_UNIX)
            server.bind(place)
            server.listen()
            servers.append(server)
        tries = [abstract, places[1], str(hidden)]
        code = (
            "import socket, sys\n"
            f"for place in {tries!r}:\n"
            "    try: socket.socket(socket.AF_UNIX).connect(place); print('connected', place)\n"
            "    except OSError as problem: print('refused')\n"
        )
        (machine.workspace / "connect.py").write_text(code)
        assert machine.run("python3 connect.py") == "refused\nrefused\nrefused\nexit status 0"
        for server in servers:
            server.close()


# ── Processes ────────────────────────────────────────────────────────────────────────────────────────────


def test_processes_outside_can_neither_be_seen_nor_killed(machine: Machine) -> None:
    victim = subprocess.Popen(["sleep", "60"])
    try:
        answer = machine.run(
            f"kill -9 {victim.pid}; ls -d /proc/{victim.pid}; cat /proc/{victim.pid}/environ; kill -9 {os.getpid()}"
        )
        assert "exit status 0" not in answer
        assert victim.poll() is None
    finally:
        victim.kill()
        victim.wait()


def test_a_command_gains_no_privileges(machine: Machine) -> None:
    answer = machine.run("grep -E 'NoNewPrivs|CapEff|CapBnd' /proc/self/status; unshare -Ur true")
    assert answer.startswith("CapEff:\t0000000000000000\nCapBnd:\t0000000000000000\nNoNewPrivs:\t1\n")
    assert "exit status 0" not in answer


def test_no_process_outlives_its_command(machine: Machine) -> None:
    marker = f"86{uuid4().int % 10**9}"
    machine.run(f"sleep {marker} & setsid nohup sleep {marker} >/dev/null 2>&1 & disown -a; echo started")
    assert _ends(marker)


def _ends(marker: str) -> bool:
    """The kernel ends the processes of a sandbox just after its first one."""
    deadline = time.monotonic() + 30
    while _has_process(marker) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not _has_process(marker)


def _has_process(marker: str) -> bool:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if marker.encode() in path.read_bytes().split(b"\0"):
                return True
    return False


def test_an_interrupted_command_keeps_its_output_and_ends(machine: Machine) -> None:
    marker = f"87{uuid4().int % 10**9}"
    seen = threading.Event()

    async def interrupt() -> str:
        command = json.dumps({"command": f"echo begun; sleep {marker}"})
        task = asyncio.create_task(machine.box.call("run", command, on_output=lambda _: seen.set()))
        while not seen.is_set():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(ToolInterrupted) as stopped:
            await task
        return text_of(stopped.value.output.content)

    assert asyncio.run(interrupt()).startswith("begun\n")
    assert _ends(marker)


def test_a_command_cannot_type_into_the_terminal(machine: Machine) -> None:
    code = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSTI, b'x')"
    argv = machine.sandbox.wrap(["python3", "-c", code])
    child, terminal = pty.fork()
    if child == 0:
        os.execv(argv[0], argv)
    try:
        output = b""
        with suppress(OSError):
            while piece := os.read(terminal, 4096):
                output += piece
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
        assert b"Error" in output
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.close(terminal)


# ── The tool ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_blocked_command_says_that_the_sandbox_blocked_it(machine: Machine) -> None:
    note = (
        f"[foveal: the sandbox blocks the network and writes outside of {machine.workspace} and /tmp, and in .git, "
        "except by a line that only stages and commits; if the command needs that, outside_sandbox asks the user]\n"
    )
    assert note in machine.run(f"echo x > {machine.outside}/theirs")
    assert note in machine.run("python3 -c \"import socket; socket.create_connection(('example.org', 80))\"")
    assert "[foveal" not in machine.run("false")


def test_a_call_can_leave_the_sandbox_and_says_so(machine: Machine) -> None:
    write = f"echo allowed > {machine.outside}/theirs"
    arguments = json.dumps({"command": write, "outside_sandbox": True})
    assert machine.box.describe("run", arguments) == f"run outside of the sandbox: {write}"
    assert machine.run(write, outside_sandbox=True) == "exit status 0"
    assert (machine.outside / "theirs").read_text() == "allowed\n"
    without = Toolbox([shell_tool(Workspace(machine.workspace))])
    assert "outside_sandbox" not in json.dumps(without.schemas)


def test_a_workspace_behind_a_link_or_in_tmp_is_confined_too(machine: Machine, tmp_path: Path) -> None:
    link = machine.home / "link"
    link.symlink_to(machine.workspace)
    for folder in (link, tmp_path):
        sandbox = find_sandbox(folder).sandbox
        assert sandbox is not None
        argv = sandbox.wrap(["sh", "-c", f"echo here > made; echo broken > {machine.outside}/theirs"])
        assert subprocess.run(argv, capture_output=True).returncode != 0
        assert (folder / "made").read_text() == "here\n"
        assert (machine.outside / "theirs").read_text() == "untouched"


@pytest.mark.parametrize(
    "change", ["ln -s /oldroot{victim} {above}", "ln -s {victim} {above}", "echo file > {above}"]
)
def test_a_command_cannot_move_the_mount_point_of_the_next_one(
    machine: Machine, tmp_path: Path, change: str
) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    sandbox = find_sandbox(workspace).sandbox
    assert sandbox is not None
    first = f"mv {tmp_path} /tmp/gone && {change.format(victim=machine.outside, above=tmp_path)}"
    assert subprocess.run(sandbox.wrap(["sh", "-c", first])).returncode == 0
    done = subprocess.run(sandbox.wrap(["pwd"]), capture_output=True, text=True)
    assert done.stdout == f"{workspace}\n"
    assert [path.name for path in machine.outside.iterdir()] == ["theirs"]


@pytest.mark.parametrize("link", ["../../outside", "/oldroot{outside}", "/newroot{outside}", "../.ssh/.."])
def test_a_folder_exchanged_for_a_link_while_a_command_starts_is_no_way_out(
    machine: Machine, link: str
) -> None:
    """As another command does that still runs: between the decision about the mounts and the mounting."""
    (machine.workspace / "new/.git").mkdir(parents=True)
    (machine.outside / ".git").mkdir()
    (machine.home / ".git").mkdir()
    (machine.home / ".git/config").write_text("PRIVATE")
    command = "echo broken > ../../outside/theirs; echo broken > ../planted; cat ../.git/config; echo started"
    argv = machine.sandbox.wrap(["sh", "-c", command])
    (machine.workspace / "new").rename(machine.workspace / "old")
    (machine.workspace / "new").symlink_to(link.format(outside=machine.outside))
    done = subprocess.run(argv, cwd=machine.workspace, capture_output=True, text=True)
    assert done.stdout == ""
    assert done.returncode != 0
    assert (machine.outside / "theirs").read_text() == "untouched"
    assert not (machine.home / "planted").exists()
    assert machine.run("cat ../.git/config || echo hidden").endswith("hidden\nexit status 0")


def test_a_workspace_with_many_protected_folders_and_odd_names_is_checked(machine: Machine) -> None:
    for name in ("a b", "tab\there", "back\\slash", "new\nline", "öä|é", "*", *map(str, range(100))):
        (machine.workspace / name / ".git").mkdir(parents=True)
    assert machine.run("mkdir '*/made' && ls -d '*/made'") == "*/made\nexit status 0"
    assert machine.sandbox.name == "bubblewrap"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_it_works_for_a_user_who_is_not_root() -> None:
    with TemporaryDirectory(prefix="foveal-user-") as folder:
        os.chmod(folder, 0o777)
        reader, writer = os.pipe()
        if os.fork() == 0:
            answer = b"the child failed"
            with suppress(BaseException):
                answer = _as_nobody(Path(folder)).encode()
            os.write(writer, answer)
            os._exit(0)
        os.close(writer)
        with open(reader, "rb") as pipe:
            assert pipe.read().decode() == "65534\nhidden\nmade\n"
        os.wait()
        assert sorted(path.name for path in Path(folder, "home").iterdir()) == [".ssh", "project"]


def _as_nobody(folder: Path) -> str:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    home, workspace = folder / "home", folder / "home/project"
    workspace.mkdir(parents=True)
    os.environ["HOME"] = str(home)
    found = find_sandbox(workspace)
    if found.sandbox is None:
        return found.why_not
    (home / ".ssh").mkdir()
    (home / ".ssh/key").write_text("PRIVATE")
    script = "id -u; touch ~/new; cat ~/.ssh/key 2>/dev/null || echo hidden; echo made > made; cat made"
    return subprocess.run(
        found.sandbox.wrap(["sh", "-c", script]), cwd="/", capture_output=True, text=True
    ).stdout
