"""Copies of files: what they cover, what a command changed, and that it comes back exactly."""

from __future__ import annotations

import os
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from foveal.agent.tools import file_backups
from foveal.agent.tools.file_backups import FileBackups, changed_files


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def copies(root: Path, tmp_path: Path) -> FileBackups:
    return FileBackups(root, folder=tmp_path / "copies")


def test_every_file_has_a_copy_also_one_that_git_ignores(root: Path, copies: FileBackups) -> None:
    for name in (
        ".env",
        "src/a.py",
        "build/x",
        "target/y",
        ".git/config",
        "node_modules/p/index.js",
        "rust/target/z",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    (root / "rust/Cargo.toml").touch()
    (root / ".gitignore").write_text(".env\nbuild\n")
    files = copies.take().files
    names = sorted(os.path.relpath(path, root) for path in files if not os.path.isdir(path))
    assert names == [".env", ".gitignore", "build/x", "rust/Cargo.toml", "src/a.py", "target/y"]
    assert copies.read(files[str(root / ".env")].digest) == b".env"


def test_what_differs_between_two_states_is_found(root: Path, copies: FileBackups) -> None:
    for name in ("kept", "changed", "removed", "same-size"):
        (root / name).write_text(name)
    (root / "link").symlink_to("kept")
    before = copies.take()
    times = os.stat(root / "same-size")
    (root / "changed").write_text("other")
    (root / "same-size").write_text("SAME-SIZE")
    os.utime(root / "same-size", ns=(times.st_atime_ns, times.st_mtime_ns))
    (root / "removed").unlink()
    (root / "link").unlink()
    (root / "new").touch()
    changed = changed_files(before, copies.take())
    found = {os.path.basename(one.path): (one.before is None, one.after is None) for one in changed}
    assert found == {
        "changed": (False, False),
        "same-size": (False, False),
        "removed": (False, True),
        "link": (False, True),
        "new": (True, False),
    }


def test_limits_are_said(root: Path, copies: FileBackups, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "large").write_bytes(b"x" * 11)
    (root / "small").write_text("x")
    monkeypatch.setattr(file_backups, "MAX_READ_BYTES", 10)
    taken = copies.take()
    assert (taken.problem, list(taken.files)) == ("", [str(root / "small")])
    assert taken.notes(root) == ["/rewind cannot restore files of more than 10 bytes each: large"]
    (root / "small").write_bytes(b"y" * 11)
    assert changed_files(taken, copies.take()) == []
    monkeypatch.setattr(file_backups, "MAX_READ_BYTES", 100)
    monkeypatch.setattr(file_backups, "MAX_BACKED_UP_BYTES", 10)
    short = copies.take()
    assert short.problem == "the working folder has more than 20,000 files or 10 bytes"
    assert short.notes(root) == [f"/rewind cannot restore what commands delete: {short.problem}"]
    monkeypatch.setattr(file_backups, "MAX_BACKED_UP_BYTES", 100)
    assert copies.take().problem == ""


def test_the_store_of_sessions_is_not_copied(root: Path, tmp_path: Path) -> None:
    (root / "chats.db").touch()
    assert FileBackups(root, excluded=[root / "chats.db"], folder=tmp_path / "c").take().files == {}


def test_copies_are_private_and_old_ones_are_deleted(root: Path, tmp_path: Path) -> None:
    (root / "a").write_text("a")
    (root / "b").write_text("b")
    folder = tmp_path / "copies"
    FileBackups(root, folder=folder).take()
    (one, other) = sorted(folder.glob("??/*"))
    assert [one.stat().st_mode & 0o777, one.parent.stat().st_mode & 0o777] == [0o600, 0o700]
    old = time.time() - 31 * 24 * 3600
    os.utime(one, (old, old))
    os.utime(other, (old + 2 * 24 * 3600,) * 2)
    for name in ("a", "b"):
        (root / name).unlink()
    FileBackups(root, folder=folder).take()
    assert list(folder.glob("??/*")) == [other]


def test_a_damaged_copy_is_not_used(root: Path, tmp_path: Path) -> None:
    (root / "a").write_text("a")
    copies = FileBackups(root, folder=tmp_path / "copies")
    (file,) = copies.take().files.values()
    (copy,) = (tmp_path / "copies").glob("??/*")
    copy.write_text("b")
    assert copies.read(file.digest) is None
    assert copies.read("0" * 64) is None


def test_nothing_outside_is_copied_whatever_a_running_command_exchanges(
    root: Path, copies: FileBackups, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "gone").mkdir()
    for folder in (root / "sub", tmp_path / "home"):
        folder.mkdir()
        (folder / "id").write_text(folder.name)
    scandir = os.scandir

    def exchange_and_scan(path: str) -> Any:
        found = list(scandir(path))
        if path == str(root / "sub"):
            (root / "sub").rename(root / "old")
            (root / "sub").symlink_to(tmp_path / "home")
        elif path == str(root):
            (root / "gone").rmdir()
        return nullcontext(found)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", exchange_and_scan)
        state = copies.take()
    assert state.problem == ""
    assert [os.path.relpath(path, root) for path in state.files] == ["sub"]
    assert list((tmp_path / "copies").glob("??/*")) == []
