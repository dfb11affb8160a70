"""File tools: an approval counts for what was shown, and no link leads a write elsewhere."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from foveal.agent.permissions.decision import CallFacts
from foveal.agent.tool import InvalidArguments
from foveal.agent.tools import Toolbox, Workspace, file_tools
from foveal.agent.tools.approvals import call_facts
from foveal.agent.tools.files import PlannedChange
from foveal.agent.tools.text_edit import TextCoding


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path.resolve() / "work"
    (folder / "src").mkdir(parents=True)
    (folder / "src/a.txt").write_text("one\ntwo\n")
    (tmp_path / "outside").mkdir()
    return folder


@pytest.fixture
def box(folder: Path) -> Toolbox:
    return Toolbox(file_tools(Workspace(folder)))


def call(box: Toolbox, name: str, **arguments: Any) -> str:
    return str(asyncio.run(box.call(name, json.dumps(arguments))).content)


EDIT = {"path": "src/a.txt", "old": "two", "new": "three"}
REFUSED = (
    "src/a.txt is not as it was when the user was asked: the file or a folder on its path has changed since, so "
    "nothing was written. Read it and call again."
)


def test_a_change_that_was_shown_is_written(box: Toolbox, folder: Path) -> None:
    assert box.preview("edit", json.dumps(EDIT)).endswith("-two\n+three")
    assert call(box, "edit", **EDIT) == "edited src/a.txt at line 2"
    assert call(box, "edit", **EDIT | {"old": "one"}) == "edited src/a.txt at line 1", "without a question"
    assert (folder / "src/a.txt").read_text() == "three\nthree\n"


def test_a_file_that_changes_while_the_question_is_open_is_not_written(box: Toolbox, folder: Path) -> None:
    box.preview("edit", json.dumps(EDIT))
    (folder / "src/a.txt").write_text("zero\ntwo\n")
    assert call(box, "edit", **EDIT) == REFUSED
    new = {"path": "new", "content": "x"}
    assert box.preview("write", json.dumps(new)) == (
        "--- new\n+++ new\n@@ -0,0 +1 @@\n+x\n\\ No newline at end of file"
    )
    (folder / "new").write_text("other")
    assert call(box, "write", **new) == REFUSED.replace("src/a.txt", "new")
    assert (folder / "new").read_text() == "other"


def test_an_edit_that_was_shown_as_a_problem_is_not_written_later(box: Toolbox, folder: Path) -> None:
    assert "not in the file" in box.preview("edit", json.dumps(EDIT | {"old": "four"}))
    (folder / "src/a.txt").write_text("four\n")
    assert call(box, "edit", **EDIT | {"old": "four"}) == REFUSED


def test_a_folder_that_becomes_a_link_while_the_question_is_open_is_refused(
    box: Toolbox, folder: Path
) -> None:
    (folder / "other").mkdir()
    (folder / "other/a.txt").write_text("one\ntwo\n")
    box.preview("edit", json.dumps(EDIT))
    (folder / "src").rename(folder / "old")
    (folder / "src").symlink_to("other")
    assert call(box, "edit", **EDIT) == REFUSED.replace("src/a.txt", "other/a.txt")
    (folder / "src").unlink()
    (folder / "src").symlink_to("../../outside")
    box.preview("edit", json.dumps(EDIT))
    assert "is outside of the working folder" in call(box, "edit", **EDIT)
    assert (folder / "other/a.txt").read_text() == "one\ntwo\n"


def test_a_link_that_appears_after_the_check_is_not_followed(folder: Path, tmp_path: Path) -> None:
    workspace = Workspace(folder)
    path, inner = workspace.resolve("src/a.txt"), workspace.resolve("src/new/b.txt")
    (tmp_path / "outside/a.txt").write_text("secret")
    (folder / "src/a.txt").unlink()
    (folder / "src/a.txt").symlink_to(tmp_path / "outside/a.txt")
    with pytest.raises(InvalidArguments, match="has become a link"):
        workspace.open_file(path)
    with pytest.raises(InvalidArguments, match="has changed while it was being written"):
        workspace.write(path, b"x", expected=None)
    os.rename(folder / "src", folder / "old")
    (folder / "src").symlink_to(tmp_path / "outside")
    for act in (
        lambda: workspace.open_file(path),
        lambda: workspace.write(path, b"x", expected=None),
        lambda: workspace.write(inner, b"x", expected=None),
    ):
        with pytest.raises(InvalidArguments, match="is not a folder, or has become a link"):
            act()
    assert [each.name for each in (tmp_path / "outside").iterdir()] == ["a.txt"]
    assert (tmp_path / "outside/a.txt").read_text() == "secret"


def test_a_digest_names_path_old_and_new_content() -> None:
    change = PlannedChange(Path("/a"), "x", "y", TextCoding(), None)
    others = [
        change._replace(path=Path("/b")),
        change._replace(old=None),
        change._replace(old=""),
        change._replace(old="xy", new=""),
        change._replace(new="z"),
    ]
    assert len({each.digest for each in (change, *others)}) == 6
    assert change.digest == change._replace(lines=(3,)).digest


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("a.txt\u00a0", "a.txt⟨U+00A0⟩"),
        ("a.txt ", "a.txt␠"),
        ("a  b.txt", "a␠␠b.txt"),
        ("a\ufe0f\u2800.txt", "a⟨U+FE0F⟩⟨U+2800⟩.txt"),
        (f"{'d' * 200}/{'e' * 200}/evil.sh", f"{'d' * 200}/{'e' * 200}/evil.sh"),
    ],
)
def test_a_question_names_exactly_the_file_that_is_written(
    box: Toolbox, folder: Path, path: str, shown: str
) -> None:
    call_text = json.dumps({"path": path, "content": "x\n"})
    assert box.describe("write", call_text) == f"write {shown}: 1 line, 2 characters"
    assert box.preview("write", call_text) == f"--- {shown}\n+++ {shown}\n@@ -0,0 +1 @@\n+x"
    call(box, "write", path=path, content="x\n")
    assert (folder / path).read_text() == "x\n"


def test_a_change_of_line_ends_is_visible() -> None:
    change = PlannedChange(Path("/a"), "x\r\n", "x\n", TextCoding(), None)
    assert change.diff("a") == "--- a\n+++ a\n@@ -1 +1 @@\n-x␍\n+x"
    assert change._replace(new="y\r\n").diff("a") == "--- a\n+++ a\n@@ -1 +1 @@\n-x\n+y"
    assert change._replace(old="x\n", new="x").diff("a") == (
        "--- a\n+++ a\n@@ -1 +1 @@\n-x\n+x\n\\ No newline at end of file"
    )


def test_facts_about_file_calls(folder: Path, tmp_path: Path) -> None:
    workspace, root = Workspace(folder, extra_folders=[tmp_path / "outside"]), str(folder)
    (folder / "hook").symlink_to(".git/hooks/x")
    found = [
        call_facts("write", {"path": path}, workspace) for path in ("a", "hook", "../outside/x", "/etc/x")
    ]
    assert found == [
        CallFacts(tool="write", project=root),
        CallFacts(tool="write", project=root, protected=".git/hooks"),
        CallFacts(tool="write", project=root, is_inside=False),
        CallFacts(tool="write", project=root, is_inside=False),
    ]
