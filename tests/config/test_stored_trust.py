"""Stored answers about items of a project: what they are bound to, and what does not inherit them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from foveal.config.project import GivenItems, ProjectItem, Trust, items_hash


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path.resolve() / "project"
    folder.mkdir()
    return folder


@pytest.fixture
def trust(tmp_path: Path) -> Trust:
    return Trust(tmp_path / "state" / "trust")


def item(text: str = "run it", key: str = "server x") -> ProjectItem:
    return ProjectItem(key=key, title=text, source="foveal.toml:1", text=text)


def test_an_answer_holds_for_the_text_that_the_user_saw(root: Path, trust: Trust) -> None:
    assert (trust.state(root, item()), trust.seen_text(root, item())) == ("new", None)
    trust.answer(root, [item(), item("model", "file A")], allowed={"server x"})
    assert trust.state(root, item()) == "allowed"
    assert trust.state(root, item("model", "file A")) == "refused"
    assert trust.state(root, item("run it; rm -rf ~")) == "changed"
    assert trust.seen_text(root, item("run it; rm -rf ~")) == "run it"
    trust.answer(root, [item("other")], allowed=())
    assert trust.state(root, item("other")) == "refused"
    assert trust.state(root, item()) == "changed"
    assert trust.state(root, item("model", "file A")) == "refused"
    trust.forget(root)
    assert trust.state(root, item("other")) == "new"


def test_the_line_of_an_item_is_not_part_of_it(root: Path, trust: Trust) -> None:
    trust.answer(root, [item()], allowed={"server x"})
    moved = ProjectItem(key="server x", title="run it", source="foveal.toml:9", text="run it")
    assert trust.state(root, moved) == "allowed"


def test_no_two_items_have_the_same_digest() -> None:
    pairs = [("a", "b"), ("ab", ""), ("a\0b", ""), ("a", "\0b"), ('a", "b', "")]
    assert len({item(text, key).digest for key, text in pairs}) == len(pairs)


def test_a_link_to_the_project_is_the_project(root: Path, trust: Trust) -> None:
    trust.answer(root, [item()], allowed={"server x"})
    (link := root.parent / "link").symlink_to(root)
    assert trust.state(link, item()) == "allowed"
    assert trust.state(root.parent, item()) == "new"
    assert trust.state(root / "inside", item()) == "new"


def test_a_renamed_or_replaced_folder_or_one_with_git_s_commondir_inherits_nothing(
    root: Path, trust: Trust
) -> None:
    (root / ".git").mkdir()
    trust.answer(root, [item()], allowed={"server x"})
    worktree = root.parent / "worktree"
    (worktree / ".git").mkdir(parents=True)
    (worktree / ".git" / "commondir").write_text(str(root / ".git"))
    assert trust.state(worktree, item()) == "new"
    moved = root.rename(root.parent / "moved")
    assert trust.state(moved, item()) == "new"
    root.mkdir()
    assert trust.state(root, item()) == "new"
    root.rmdir()
    assert trust.state(root, item()) == "new"


def test_a_record_that_was_copied_to_another_project_s_name_does_not_count(root: Path, trust: Trust) -> None:
    other = root.parent / "other"
    other.mkdir()
    trust.answer(root, [item()], allowed={"server x"})
    [record] = trust.folder.iterdir()
    trust.answer(other, [item()], allowed=())
    [empty] = (path for path in trust.folder.iterdir() if path != record)
    empty.write_bytes(record.read_bytes())
    assert trust.state(other, item()) == "new"


def test_only_the_user_can_read_the_answers(root: Path, trust: Trust) -> None:
    trust.answer(root, [item()], allowed=())
    [record] = trust.folder.iterdir()
    assert [os.stat(path).st_mode & 0o077 for path in (record, trust.folder)] == [0, 0]


@pytest.mark.parametrize("text", ["", "no json", '{"path": 3}', '{"answers": {"server x": true}}'])
def test_an_invalid_record_allows_nothing(root: Path, trust: Trust, text: str) -> None:
    trust.answer(root, [item()], allowed={"server x"})
    [record] = trust.folder.iterdir()
    record.write_text(text)
    assert trust.state(root, item()) == "new"
    trust.answer(root, [item()], allowed={"server x"})
    assert trust.state(root, item()) == "allowed"


def test_an_answer_of_an_earlier_version_allows_nothing(root: Path, trust: Trust) -> None:
    trust.folder.parent.mkdir()
    old = trust.folder.with_name("trust.json")
    old.write_text(json.dumps({"projects": {str(root): True}}))
    assert trust.state(root, item()) == "new"
    assert (trust.was_trusted_as_a_whole(root), trust.was_trusted_as_a_whole(root.parent)) == (True, False)
    old.write_text("no json")
    assert not trust.was_trusted_as_a_whole(root)


def test_given_items_are_exactly_these(root: Path) -> None:
    given = GivenItems([item()])
    states = [given.state(root, one) for one in (item(), item("other"), item(key="server y"))]
    assert states == ["allowed", "changed", "new"]


def test_the_hash_is_that_of_all_items_in_any_order() -> None:
    items = [item(), item("model", "file A")]
    assert items_hash(items) == items_hash(reversed(items))
    assert len({items_hash(items), items_hash(items[:1]), items_hash([])}) == 3
