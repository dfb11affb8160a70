"""The search tool in repositories that are not trusted: which files it reads, and that it starts no program."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from foveal.agent.tools import Toolbox, Workspace, search_tool
from foveal.agent.tools.search_worker import IgnoreFile
from foveal.core.log import text_of
from support.effort import examples

EVIL_SETTINGS = {
    "extensions.partialClone": "evil",
    "core.repositoryFormatVersion": "1",
    "remote.evil.promisor": "true",
    "remote.evil.url": "ssh://127.0.0.1/x",
}


def search(folder: Path, **arguments: Any) -> str:
    box = Toolbox([search_tool(Workspace(folder))])
    return text_of(asyncio.run(box.call("search", json.dumps(arguments))).content)


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def git(folder: Path, *words: str) -> str:
    return subprocess.run(
        ["git", "-C", str(folder), *words], check=True, capture_output=True, text=True
    ).stdout


def test_a_repository_that_makes_git_fetch_starts_no_program(tmp_path: Path) -> None:
    folder, ran = tmp_path / "project", tmp_path / "ran"
    write(folder, {".gitignore": "build\n", "a": "needle"})
    git(folder, "init", "-q")
    git(folder, "add", ".gitignore")
    git(folder, "update-index", "--skip-worktree", ".gitignore")
    blob = git(folder, "rev-parse", ":.gitignore").strip()
    (folder / ".git/objects" / blob[:2] / blob[2:]).unlink()
    (folder / ".gitignore").unlink()
    for name, value in (EVIL_SETTINGS | {"core.sshCommand": f"id > {ran}; false"}).items():
        git(folder, "config", name, value)
    assert search(folder, pattern="needle") == "a:1: needle\n[foveal: 1 lines in 1 of 1 files]"
    assert not ran.exists()


def test_a_program_of_the_project_in_the_search_path_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, ran = tmp_path / "project", tmp_path / "ran"
    write(folder, {"node_modules/.bin/git": f"#!/bin/sh\ntouch {ran}\n", "a": "needle"})
    (folder / "node_modules/.bin/git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}/node_modules/.bin:{os.environ['PATH']}")
    assert search(folder, pattern="needle") == "a:1: needle\n[foveal: 1 lines in 1 of 1 files]"
    assert not ran.exists()


def test_an_index_entry_behind_a_link_is_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    write(tmp_path, {"keys/id_rsa": "PRIVATE", "project/l/id_rsa": "public", "project/keys": "keys"})
    git(folder, "init", "-q")
    git(folder, "add", ".")
    (folder / "l/id_rsa").unlink()
    (folder / "l").rmdir()
    (folder / "l").symlink_to(tmp_path / "keys")
    assert search(folder, pattern="PRIVATE") == "[foveal: 0 lines in 0 of 1 files]"


def test_a_pipe_or_a_link_as_an_ignore_file_is_not_read(tmp_path: Path) -> None:
    write(tmp_path, {"outside": "a\n", "project/a": "needle", "project/sub/a": "needle"})
    folder = tmp_path / "project"
    git(folder, "init", "-q")
    (folder / ".gitignore").symlink_to(tmp_path / "outside")
    os.mkfifo(folder / "sub/.gitignore")
    assert search(folder, pattern="needle").splitlines()[:2] == ["a:1: needle", "sub/a:1: needle"]


def test_ignore_files_count_from_the_repository_down_to_the_working_folder(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            ".gitignore": "*.log\n/app/out\n",
            ".git/info/exclude": "mine\n",
            "app/.gitignore": "!keep.log\n",
            "app/a.log": "needle",
            "app/keep.log": "needle",
            "app/mine": "needle",
            "app/out/x": "needle",
            "app/inner/.git/HEAD": "",
            "app/inner/b.log": "needle",
        },
    )
    assert search(tmp_path / "app", pattern="needle").splitlines()[:-1] == [
        "inner/b.log:1: needle",  # a repository of its own
        "keep.log:1: needle",
    ]
    assert search(tmp_path / "app", pattern="needle", path="out").startswith("out/x:1: needle\n")


def test_a_very_deep_folder_is_passed_over(tmp_path: Path) -> None:
    write(tmp_path, {"a": "needle", f"{'d/' * 300}b": "needle"})
    assert search(tmp_path, pattern="needle") == (
        "a:1: needle\n[foveal: 1 lines in 1 of 1 files; passed over: 1 unreadable]"
    )


NAMES = [
    "a",
    "ab",
    "b.c",
    "d/a",
    "d/ab",
    "d/e/a",
    "d/e/b.c",
    "a b",
    "!x",
    "#y",
    "f/d/a",
    "f/g/h/a",
    "z]",
    "d/-",
]
PIECES = st.sampled_from(
    [*"abdef/*?\\!# []-", "**", "**/", "/**", "[ab]", "[!a]", "[a-c]", ".c", "[]a]", "[^/]", "[d-", "\\*"]
)
LINES = st.lists(st.lists(PIECES, min_size=1, max_size=5).map("".join), min_size=1, max_size=4)
NOT_COPIED = re.compile(r"[^/*\n]\*\*+/\*\*")
"""Git treats `a**/**` as `a**`, which its documentation does not say."""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ignored")
    write(folder, dict.fromkeys(NAMES, ""))
    git(folder, "init", "-q")
    return folder


@examples(50)
@given(lines=LINES)
def test_ignore_rules_mean_what_they_mean_to_git(repository: Path, lines: list[str]) -> None:
    text = "\n".join(lines) + "\n"
    assume(not NOT_COPIED.search(text))
    (repository / ".git/info/exclude").write_text(text)
    listed = git(repository, "-c", "core.excludesFile=", "ls-files", "-z", "--others", "--exclude-standard")
    rules = IgnoreFile.parse("", text)
    found = [name for name in NAMES if not is_ignored(rules, name)]
    assert sorted(found) == sorted(name for name in listed.split("\0") if name), text


def is_ignored(rules: IgnoreFile, name: str) -> bool:
    parts = name.split("/")
    folders = ["/".join(parts[: at + 1]) + "/" for at in range(len(parts) - 1)]
    return any(rules.ignores(each) for each in [*folders, name])
