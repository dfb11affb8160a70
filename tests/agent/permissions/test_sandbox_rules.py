"""The rules of the sandbox as data, the profile for macOS, and the environment of commands."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from foveal.agent.permissions.sandbox import _find, find_sandbox
from foveal.agent.permissions.sandbox.file_access import (
    AccessRule,
    PrivateFolder,
    access_rules,
    user_homes,
    workspace_problem,
)
from foveal.agent.permissions.sandbox.seatbelt import Seatbelt, seatbelt_profile
from foveal.agent.tools import Toolbox, Workspace, shell_tool
from foveal.agent.tools.process_group import command_environment
from foveal.core.log import text_of


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("VIRTUAL_ENV", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_the_innermost_rule_decides_and_only_existing_paths_have_rules(home: Path) -> None:
    for name in (".ssh", ".cache", ".cargo/bin", ".config/foveal", "code/app/.git", "code/app/lib/.vscode"):
        (home / name).mkdir(parents=True)
    (home / ".npmrc").touch()
    private = PrivateFolder()
    found = access_rules(home / "code/app", homes=[home], private=private)
    assert [rule for rule in found if rule.path.startswith(f"{home}/")] == [
        AccessRule(f"{home}/.cache", "write", private.cache),
        AccessRule(f"{home}/.cargo", "hidden"),
        AccessRule(f"{home}/.config", "hidden"),
        AccessRule(f"{home}/.npmrc", "hidden"),
        AccessRule(f"{home}/.ssh", "hidden"),
        AccessRule(f"{home}/.cargo/bin", "read"),
        AccessRule(f"{home}/code/app", "write"),
        AccessRule(f"{home}/code/app/.git", "read"),
        AccessRule(f"{home}/code/app/lib", "keep"),
        AccessRule(f"{home}/code/app/lib/.vscode", "read"),
    ]
    assert AccessRule("/tmp", "write", private.temporary) in found


def test_a_workspace_in_a_dot_folder_is_writable_and_its_neighbours_are_hidden(home: Path) -> None:
    (home / ".config/editor").mkdir(parents=True)
    found = access_rules(home / ".config/editor", homes=[home], private=PrivateFolder())
    assert [rule for rule in found if rule.path.startswith(f"{home}/")] == [
        AccessRule(f"{home}/.config", "hidden"),
        AccessRule(f"{home}/.config/editor", "write"),
    ]


def test_files_from_which_foveal_runs_are_read_only_in_the_workspace(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "code/tools/venv/.vscode").mkdir(parents=True)
    monkeypatch.setattr(sys, "prefix", str(home / "code/tools/venv"))
    found = access_rules(home / "code", homes=[], private=PrivateFolder())
    assert [rule for rule in found if rule.path.startswith(f"{home}/")] == [
        AccessRule(f"{home}/code", "write"),
        AccessRule(f"{home}/code/tools", "keep"),
        AccessRule(f"{home}/code/tools/venv", "read"),
    ]


def test_the_folder_of_a_hidden_file_stays_where_it_is(home: Path) -> None:
    (home / "code/data").mkdir(parents=True)
    (home / "code/data/chats.db").touch()
    store = home / "code/data/chats.db"
    found = access_rules(home / "code", homes=[], private=PrivateFolder(), hidden=[store])
    assert [rule for rule in found if rule.path.startswith(f"{home}/")] == [
        AccessRule(f"{home}/code", "write"),
        AccessRule(f"{home}/code/data", "keep"),
        AccessRule(str(store), "hidden"),
    ]


def test_a_link_of_the_project_is_not_taken_for_bubblewrap(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "code/bin").mkdir(parents=True)
    (home / "code/bin/bwrap").symlink_to("/usr/bin/true")
    monkeypatch.setenv("PATH", str(home / "code/bin"))
    _find.cache_clear()
    found = _find(home / "code", (home,), (), "linux")
    _find.cache_clear()
    assert found == (None, f"{home}/code/bin/bwrap is a file of the project")


@pytest.mark.parametrize(
    ("workspace", "reason"),
    [
        ("/", "the working folder is the root of the file system"),
        ("{home}", "the working folder is your home folder"),
        ("{home}/..", "the working folder contains your home folder"),
        ("{home}/.ssh", "the working folder holds keys"),
        ("{home}/.config/foveal", "the working folder holds Foveal's own settings"),
        ("/tmp", "the working folder is shared by all programs"),
        ("/proc/self", "the working folder belongs to the kernel"),
        ("{home}/code", ""),
    ],
)
def test_some_folders_cannot_be_a_workspace_of_the_sandbox(home: Path, workspace: str, reason: str) -> None:
    folder = Path(os.path.normpath(workspace.format(home=home)))
    assert workspace_problem(folder, [home]) == reason


def test_why_there_is_no_sandbox_is_said(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = home / "code"
    (workspace / "bin").mkdir(parents=True)
    planted = workspace / "bin/bwrap"
    planted.write_text("#!/bin/sh\nexit 0\n")
    planted.chmod(0o755)
    refusing = home / "bwrap"
    refusing.write_text("#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n")
    refusing.chmod(0o755)
    for path, reason in (
        (
            str(home / "nothing"),
            "bubblewrap is not installed; install the package bubblewrap of your distribution",
        ),
        (str(planted.parent), f"{planted} is a file of the project"),
        (
            f"{home}:{os.defpath}",
            "bubblewrap does not work here: bwrap: setting up uid map: Permission denied; the kernel or the "
            "container does not allow it to create namespaces; docs/terminal/permissions.md says what helps",
        ),
    ):
        _find.cache_clear()
        monkeypatch.setenv("PATH", path)
        assert _find(workspace, (home,), (), "linux") == (None, reason)
    assert _find(workspace, (home,), (), "sunos") == (None, "there is none for sunos")
    _find.cache_clear()


def test_a_sandbox_is_probed_once(home: Path) -> None:
    (home / "code").mkdir()
    first, probes = find_sandbox(home / "code"), _find.cache_info().misses
    assert find_sandbox(home / "code") is first
    assert _find.cache_info().misses == probes


def test_both_homes_count(home: Path) -> None:
    import pwd

    account = Path(os.path.realpath(pwd.getpwuid(os.getuid()).pw_dir))
    assert user_homes() == (home, *([account] if account.is_dir() else []))


def test_the_private_folder_is_removed_with_its_sandbox() -> None:
    private = PrivateFolder()
    place = Path(private.temporary).parent
    assert place.stat().st_mode & 0o777 == 0o700
    del private
    assert not place.exists()


def test_a_folder_that_a_killed_process_left_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    confinement = "foveal.agent.permissions.sandbox.file_access"
    code = f"import os; from {confinement} import PrivateFolder; folder = PrivateFolder(); os._exit(0)"
    used = PrivateFolder()
    (abandoned,) = _folders_after(tmp_path, code) - {Path(used.empty_file).parent}
    module = abandoned / "cache/module"
    module.mkdir()
    (module / "code").touch()
    module.chmod(0o500)
    unfinished = [tmp_path / f"foveal-new-sandbox-{name}" for name in ("old", "young")]
    for folder in unfinished:
        folder.mkdir()
    os.utime(unfinished[0], (0, 0))
    another = PrivateFolder()
    living = {Path(each.empty_file).parent for each in (used, another)}
    assert set(tmp_path.iterdir()) == {*living, unfinished[1]}


def _folders_after(tmp_path: Path, code: str) -> set[Path]:
    env = os.environ | {"TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], env=env, check=True)
    return set(tmp_path.iterdir())


# ── macOS ────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_profile_for_macos_denies_by_default_and_puts_inner_rules_last(tmp_path: Path) -> None:
    workspace = tmp_path / 'a "quoted") (allow default) name'
    for name in (".git", "hidden", "sub"):
        (workspace / name).mkdir(parents=True)
    (workspace / "file").touch()
    rules = [
        AccessRule(str(workspace), "write"),
        AccessRule(str(workspace / ".git"), "read"),
        AccessRule(str(workspace / "hidden"), "hidden"),
        AccessRule(str(workspace / "file"), "hidden"),
        AccessRule(str(workspace / "sub"), "keep"),
    ]
    profile, paths = seatbelt_profile(rules, workspace, network=False)
    assert profile.startswith("(version 1)\n(deny default)\n")
    assert "network" not in profile
    assert "allow default" not in profile
    assert profile[profile.index('(allow file-read* file-write* (subpath (param "P0")))') :].split("\n")[
        :8
    ] == [
        '(allow file-read* file-write* (subpath (param "P0")))',
        '(allow file-read* (subpath (param "P1")))',
        '(deny file-write* (subpath (param "P1")))',
        '(deny file-read* file-write* (subpath (param "P2")))',
        '(deny file-read* file-write* (literal (param "P3")))',
        '(allow file-read* file-write* (subpath (param "P4")))',
        '(deny file-write-unlink (literal (param "P0")))',
        '(deny file-write-unlink (literal (param "P4")))',
    ]
    assert [paths[f"P{number}"] for number in range(5)] == [rule.path for rule in rules]
    assert profile.count("(") == profile.count(")")
    assert "(allow network*)" in seatbelt_profile(rules, workspace, network=True)[0]


def test_on_macos_the_private_folder_is_writable_and_tmp_is_not(home: Path) -> None:
    (home / "code").mkdir()
    argv = Seatbelt(home / "code", homes=[home]).wrap(["make", "test"])
    assert argv[:2] == ["/usr/bin/sandbox-exec", "-p"]
    assert argv[-5] == "/usr/bin/env"
    assert argv[-2:] == ["make", "test"]
    assert not [word for word in argv if word.startswith("-DP") and word.endswith(("=/tmp", "=/private/tmp"))]
    temporary, cache = argv[-4].removeprefix("TMPDIR="), argv[-3].removeprefix("XDG_CACHE_HOME=")
    assert not Path(cache).is_relative_to(temporary)
    number = next(word for word in argv if word.endswith(f"={temporary}") and word.startswith("-DP"))[2:]
    name = number.partition("=")[0]
    assert f'(allow file-read* file-write* (subpath (param "{name}")))' in argv[2]
    assert f'(deny file-write-unlink (literal (param "{name}")))' in argv[2]


def test_on_macos_the_private_folder_of_a_workspace_with_temporary_files_is_outside_of_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "code/tmp").mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(home / "code/tmp"))
    argv = Seatbelt(home / "code", homes=[home]).wrap(["make"])
    temporary, state = argv[-3].removeprefix("TMPDIR="), home / ".local/state/foveal"
    assert Path(temporary).is_relative_to(state)
    paths = [word.partition("=")[2] for word in argv if word.startswith("-DP")]
    assert paths.index(str(home / ".local")) < paths.index(temporary)  # the last rule decides


# ── The environment of commands ──────────────────────────────────────────────────────────────────────────


def test_no_variable_that_starts_a_program_reaches_a_command() -> None:
    hostile = [
        "BASH_ENV", "ENV", "LD_PRELOAD", "LD_AUDIT", "PYTHONSTARTUP", "PROMPT_COMMAND", "PS4", "SHELLOPTS",
        "BASHOPTS", "IFS", "CDPATH", "GIT_SSH_COMMAND", "GIT_EXTERNAL_DIFF", "GIT_CONFIG_COUNT",
        "GIT_CONFIG_KEY_0", "GIT_DIR", "GIT_EXEC_PATH", "PERL5OPT", "RUBYOPT", "NODE_OPTIONS",
        "JAVA_TOOL_OPTIONS", "DYLD_INSERT_LIBRARIES", "LESSOPEN", "MAKEFLAGS", "BASH_FUNC_git%%",
        "GIT_EDITOR", "GIT_AUTHOR_NAMES", "OPENAI_API_KEY",
    ]  # fmt: skip
    harmless = [
        "PATH",
        "HOME",
        "LANG",
        "VIRTUAL_ENV",
        "GIT_AUTHOR_NAME",
        "GIT_COMMITTER_EMAIL",
        "SSH_AUTH_SOCK",
    ]
    kept = command_environment(dict.fromkeys([*hostile, *harmless], "x"))
    assert {name: value for name, value in kept.items() if value == "x"} == dict.fromkeys(harmless, "x")


def test_a_shell_starts_without_files_and_functions_of_the_user(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / ".bashrc").write_text("echo from bashrc\n")
    (home / "evil").write_text("echo from evil\n")
    monkeypatch.setenv("BASH_ENV", str(home / "evil"))
    monkeypatch.setenv("BASH_FUNC_echo%%", "() { printf function; }")
    box = Toolbox([shell_tool(Workspace(home))])
    for command, expected in (("echo plain", "plain\nexit status 0"), ("-x", "-x: command not found")):
        answer = text_of(asyncio.run(box.call("run", json.dumps({"command": command}))).content)
        assert expected in answer
        assert "from" not in answer
        assert "function" not in answer


def test_what_a_command_exports_does_not_reach_the_next(home: Path) -> None:
    box = Toolbox([shell_tool(Workspace(home))])
    asyncio.run(box.call("run", json.dumps({"command": "export PATH=/evil GIT_PAGER=evil; cd /"})))
    answer = asyncio.run(box.call("run", json.dumps({"command": 'echo "$GIT_PAGER"; pwd'})))
    assert text_of(answer.content) == f"cat\n{home}\nexit status 0"
