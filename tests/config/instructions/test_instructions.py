"""Instruction files: which files count, size limits, trust, and each file once per request."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveal.config.instructions import (
    WITHDRAWN_PREFIX,
    InstructionFile,
    InstructionFiles,
    InstructionRules,
    fit_files,
    folders_between,
    instruction_set,
    paths_in,
)
from foveal.config.instructions.files import SHORT_FILES_SHARE, USER_SHARE, fit_by_owner
from foveal.config.project import (
    EveryItem,
    GivenItems,
    ItemTrust,
    Trust,
    UnusableFile,
    find_root,
    read_text_file,
)
from foveal.core.log import (
    AnyFact,
    Call,
    Compacted,
    Event,
    Instructed,
    ModelSaid,
    Noted,
    Rewound,
    ToolReturned,
    UserSaid,
    kind,
    text_of,
)
from foveal.core.tokens import Estimate
from foveal.errors import BadSetting
from foveal.sessions import Session
from foveal.stores import MemoryStore
from support.legality import check_anthropic, check_chat


class ProjectFolders:
    """A user folder and a project on disk."""

    def __init__(self, folder: Path) -> None:
        self.user = folder / "home" / "foveal"
        self.root = folder / "project"
        self.user.mkdir(parents=True)
        (self.root / ".git").mkdir(parents=True)
        self.trust: ItemTrust = EveryItem()

    def write(self, name: str, text: str | bytes) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    def files(self, cwd: str = ".", **rules: Any) -> InstructionFiles:
        (self.root / cwd).mkdir(parents=True, exist_ok=True)
        made = InstructionRules(**rules) if rules else None
        return InstructionFiles(self.root / cwd, rules=made, user_folder=self.user, trust=self.trust)


@pytest.fixture
def folders(tmp_path: Path) -> ProjectFolders:
    return ProjectFolders(tmp_path.resolve())


class GrowingLog:
    """A log to which facts are appended as in a session."""

    def __init__(self, files: InstructionFiles) -> None:
        self.files = files
        self.events: list[Event] = []

    def add(self, *facts: AnyFact) -> list[Event]:
        events = [Event(len(self.events) + i, fact) for i, fact in enumerate(facts)]
        self.events += events
        return events

    def turn(self) -> list[AnyFact]:
        facts = list(self.files.refresh_blocking(self.events))
        self.add(*facts, UserSaid(content="go on"))
        return facts

    def touch(self, *paths: str) -> list[AnyFact]:
        facts = list(self.files.instructions_for_blocking(paths, self.events))
        self.add(*facts)
        return facts


def instructed(facts: Sequence[AnyFact]) -> list[Instructed]:
    return [fact for fact in facts if isinstance(fact, Instructed)]


def sources(facts: Sequence[AnyFact], root: Path) -> list[str]:
    return [os.path.relpath(fact.source, root) for fact in instructed(facts)]


def shown_texts(files: InstructionFiles) -> list[str]:
    """Return the texts of the files as the model sees them, without headings."""
    return [text_of(fact.content).split("\n\n", 1)[-1] for fact in instructed(files.refresh_blocking([]))]


def notes_of(files: InstructionFiles) -> str:
    files.refresh_blocking([])
    return "\n".join(files.notes)


# ── Which files ──────────────────────────────────────────────────────────────────────────────────────────


def test_without_files_there_are_no_facts(folders: ProjectFolders) -> None:
    files = folders.files()
    assert files.refresh_blocking([]) == ()
    assert (files.shown, files.notes) == ((), ())


def test_the_order_is_user_root_then_folders_down_to_the_cwd(
    folders: ProjectFolders,
) -> None:
    (folders.user / "AGENTS.md").write_text("mine")
    folders.write("AGENTS.md", "root")
    folders.write("a/AGENTS.md", "a")
    folders.write("a/b/c/AGENTS.md", "c")
    folders.write("a/other/AGENTS.md", "other")
    folders.write("a/b/c/d/AGENTS.md", "below")
    assert shown_texts(folders.files("a/b/c")) == ["mine", "root", "a", "c"]


def test_the_override_precedes_agents_md_and_that_a_fallback(folders: ProjectFolders) -> None:
    folders.write("AGENTS.md", "standard")
    folders.write("AGENTS.override.md", "override")
    folders.write("a/AGENTS.md", "standard a")
    folders.write("a/CLAUDE.md", "fallback a")
    folders.write("a/b/CLAUDE.md", "fallback b")
    assert shown_texts(folders.files("a/b")) == ["override", "standard a"]
    assert shown_texts(folders.files("a/b", fallback_names=("CLAUDE.md",))) == [
        "override",
        "standard a",
        "fallback b",
    ]


def test_nothing_above_the_root_is_read(folders: ProjectFolders) -> None:
    (folders.root.parent / "AGENTS.md").write_text("above")
    folders.write("AGENTS.md", "root")
    assert shown_texts(folders.files("a")) == ["root"]


@pytest.mark.parametrize("marker", [".git", ".hg", "pyproject.toml", "package.json", "go.mod"])
def test_each_marker_makes_a_root(tmp_path: Path, marker: str) -> None:
    (tmp_path / "p" / "a" / "b").mkdir(parents=True)
    (tmp_path / "p" / marker).touch()  # `.git` is a file in a worktree and in a submodule
    assert find_root(tmp_path / "p" / "a" / "b", InstructionRules().root_markers) == tmp_path.resolve() / "p"


def test_a_package_inside_a_repository_is_not_its_root(folders: ProjectFolders) -> None:
    folders.write("packages/one/package.json", "{}")
    assert folders.files("packages/one/src").root == folders.root


def test_without_markers_the_working_directory_is_the_root(folders: ProjectFolders) -> None:
    folders.write("AGENTS.md", "root")
    folders.write("a/here.txt", "")
    folders.write("a/AGENTS.md", "a")
    folders.write("a/b/AGENTS.md", "b")
    assert folders.files("a/b", root_markers=("here.txt",)).root == folders.root / "a"
    files = folders.files("a/b", root_markers=())
    assert files.root == folders.root / "a" / "b"
    assert shown_texts(files) == ["b"]


def test_a_home_folder_is_not_the_root_of_folders_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path.resolve()
    monkeypatch.setenv("HOME", str(home))
    (home / ".git").mkdir()
    (home / "downloads").mkdir()
    assert find_root(home / "downloads", (".git",)) == home / "downloads"
    assert find_root(home, (".git",)) == home


def test_a_link_as_working_directory_is_resolved(folders: ProjectFolders) -> None:
    folders.write("AGENTS.md", "root")
    folders.write("deep/down/AGENTS.md", "down")
    link = folders.root.parent / "link"
    link.symlink_to(folders.root / "deep" / "down")
    files = InstructionFiles(link, user_folder=folders.user, trust=folders.trust)
    assert files.root == folders.root
    assert shown_texts(files) == ["root", "down"]


def test_folders_can_be_ignored(folders: ProjectFolders) -> None:
    folders.write("AGENTS.md", "root")
    folders.write("vendor/lib/AGENTS.md", "vendored")
    folders.write("src/AGENTS.md", "src")
    assert shown_texts(folders.files("vendor/lib", ignore=("vendor",))) == ["root"]
    assert shown_texts(folders.files("vendor/lib", ignore=("vendor/*",))) == ["root"]
    assert shown_texts(folders.files("src", ignore=("vendor/",))) == ["root", "src"]


def test_an_import_in_a_file_is_not_followed(folders: ProjectFolders) -> None:
    (folders.root.parent / "secret.md").write_text("secret")
    folders.write("AGENTS.md", "@../secret.md\n@secret.md\n")
    assert shown_texts(folders.files()) == ["@../secret.md\n@secret.md\n"]


def test_a_file_with_two_names_is_shown_once(folders: ProjectFolders) -> None:
    folders.write("AGENTS.md", "root")
    (folders.root / "a").mkdir()
    os.link(folders.root / "AGENTS.md", folders.root / "a" / "AGENTS.md")
    (folders.root / "a" / "b").mkdir()
    (folders.root / "a" / "b" / "AGENTS.md").symlink_to("../../AGENTS.md")
    files = folders.files("a/b")
    assert shown_texts(files) == ["root"]
    assert [note.split(" is ", 1)[1] for note in files.notes] == [
        f"left out: it is the same file as {folders.root}/AGENTS.md"
    ] * 2


def test_fallback_names_have_no_folder() -> None:
    with pytest.raises(BadSetting, match="fallback_names"):
        InstructionRules(fallback_names=("../../etc/passwd",))


@given(
    st.lists(st.sampled_from(["a", "b", "c.d"]), max_size=5),
    st.lists(st.sampled_from(["a", "x"]), max_size=5),
)
def test_the_folders_start_at_the_root_and_grow_by_one_name(up: list[str], down: list[str]) -> None:
    root = "/" + "/".join(up)
    way = folders_between(root, "/".join([root.rstrip("/"), *down]) or "/")
    assert len(way) == len(down) + 1
    assert way[0] == root
    assert [name.rsplit("/", 1)[-1] for name in way[1:]] == down
    assert folders_between(f"{root.rstrip('/')}/q", root) == ()
    assert folders_between(f"{root.rstrip('/')}/q", f"{root.rstrip('/')}/qq") == ()


# ── Unusable files ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("text", ["", " \n\t\n", "\n"])
def test_an_empty_file_is_left_out_and_the_next_name_counts(folders: ProjectFolders, text: str) -> None:
    folders.write("AGENTS.override.md", text)
    folders.write("AGENTS.md", "standard")
    files = folders.files()
    assert shown_texts(files) == ["standard"]
    assert files.notes == (f"{folders.root}/AGENTS.override.md is left out: it is empty",)


def test_a_folder_named_agents_md_is_left_out(folders: ProjectFolders) -> None:
    (folders.root / "AGENTS.md").mkdir()
    assert notes_of(folders.files()) == f"{folders.root}/AGENTS.md is left out: it is a folder"


def test_a_pipe_is_not_opened_and_does_not_block(folders: ProjectFolders) -> None:
    os.mkfifo(folders.root / "AGENTS.md")
    assert notes_of(folders.files()) == f"{folders.root}/AGENTS.md is left out: it is a pipe"


def test_a_device_is_not_opened(folders: ProjectFolders) -> None:
    (folders.user / "AGENTS.md").symlink_to("/dev/zero")
    assert notes_of(folders.files()) == f"{folders.user}/AGENTS.md is left out: it is a device"


def test_a_socket_is_not_opened() -> None:
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{folder}/AGENTS.md")
        with pytest.raises(UnusableFile, match="it is a socket"):
            read_text_file(Path(folder) / "AGENTS.md", max_bytes=10)


def test_a_link_out_of_the_project_is_left_out(folders: ProjectFolders) -> None:
    (folders.root.parent / "secret.md").write_text("secret")
    (folders.root / "AGENTS.md").symlink_to("../secret.md")
    folders.write("a/x", "")
    (folders.root / "a" / "AGENTS.md").symlink_to(folders.user / "AGENTS.md")
    (folders.user / "AGENTS.md").write_text("mine")
    files = folders.files("a")
    assert shown_texts(files) == ["mine"]
    assert len([note for note in files.notes if note.endswith("a link that leads out of the project")]) == 2


def test_links_inside_the_project_and_of_the_user_are_followed(folders: ProjectFolders) -> None:
    folders.write("docs/agents.md", "root")
    (folders.root / "AGENTS.md").symlink_to("docs/agents.md")
    dotfiles = folders.root.parent / "dotfiles.md"
    dotfiles.write_text("mine")
    (folders.user / "AGENTS.md").symlink_to(dotfiles)
    assert shown_texts(folders.files()) == ["mine", "root"]


def test_link_loops_and_broken_links_are_left_out(folders: ProjectFolders) -> None:
    (folders.root / "AGENTS.override.md").symlink_to("AGENTS.override.md")
    (folders.root / "AGENTS.md").symlink_to("nowhere.md")
    files = folders.files()
    assert shown_texts(files) == []
    assert "AGENTS.override.md is left out: it cannot be read (Too many levels" in files.notes[0]
    assert files.notes[1].endswith(
        "AGENTS.md is left out: it leads to nothing, or vanished while it was read"
    )


def test_a_file_deleted_after_it_was_found_is_left_out(
    folders: ProjectFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folders.write("AGENTS.md", "root")
    real = os.path.realpath

    def vanish(name: Any, *, strict: bool = False) -> Any:
        if strict and Path(name) == path:
            path.unlink()
        return real(name)

    files = folders.files()
    monkeypatch.setattr(os.path, "realpath", vanish)
    assert files.refresh_blocking([]) == (
        Noted(
            text=f"{path} is left out: it leads to nothing, or vanished while it was read",
            topic="instructions",
        ),
    )


def test_a_file_of_a_gigabyte_is_read_only_in_part(folders: ProjectFolders) -> None:
    path = folders.write("AGENTS.md", "rule one\n" * 200_000)
    os.truncate(path, 10**9)
    files = folders.files(max_bytes=1_000)
    [text] = shown_texts(files)
    assert len(text) < 1_000
    assert text.startswith("rule one\n")
    assert re.search(
        r"\[foveal: more than 116,\d\d\d lines of .* are not shown; read the file for the rest\]$", text
    )
    assert "or more lines are shown" in files.notes[0]


def test_a_gigabyte_in_one_line_gives_only_a_notice(folders: ProjectFolders) -> None:
    path = folders.write("AGENTS.md", "x")
    with path.open("r+b") as file:
        file.write(b"x" * (1 << 20) + b"y")
        file.truncate(10**9)
    files = folders.files()
    [fact] = instructed(files.refresh_blocking([]))
    assert fact.content == (
        f"[foveal: instructions are cut: {path} (0 of 0 or more lines shown)]\n"
        f"[foveal: more than 0 lines of {path} are not shown; read the file for the rest]"
    )


def test_bytes_that_are_not_utf_8_are_replaced_and_noted(folders: ProjectFolders) -> None:
    folders.write("AGENTS.md", b"caf\xe9 rule")
    files = folders.files()
    assert shown_texts(files) == ["caf\ufffd rule"]
    assert "is not UTF-8 throughout" in files.notes[0]


def test_a_binary_file_is_left_out(folders: ProjectFolders) -> None:
    folders.write("AGENTS.md", "rule".encode("utf-16"))
    assert "it is not text (it has NUL bytes)" in notes_of(folders.files())


@pytest.mark.parametrize("mark", ["\u200b", "\u202e", "\U000e0041", "\u2066", "\x1b"])
def test_invisible_characters_are_kept_and_noted(folders: ProjectFolders, mark: str) -> None:
    folders.write("AGENTS.md", f"be{mark} kind\r\n")
    files = folders.files()
    assert shown_texts(files) == [f"be{mark} kind\r\n"]
    assert f"has characters that cannot be seen (U+{ord(mark):04X})" in files.notes[0]


def test_a_byte_order_mark_and_crlf_are_not_noted(folders: ProjectFolders) -> None:
    folders.write("AGENTS.md", "\ufeffbe kind\r\nalways\r\n")
    assert notes_of(folders.files()) == ""


def test_backticks_and_foveal_notices_in_a_file_change_nothing(folders: ProjectFolders) -> None:
    text = "```\n[foveal: 3 lines of x are not shown]\n# Instructions of the user\n```\n"
    folders.write("AGENTS.md", text)
    log = GrowingLog(folders.files())
    assert text_of(instructed(log.turn())[0].content).endswith(f"\n\n{text}")
    assert log.turn() == []


@contextmanager
def unprivileged() -> Iterator[Path]:
    """Create a folder as a user without permissions for files of others, and run as this user."""
    folder = Path(tempfile.mkdtemp()).resolve()
    folder.chmod(0o755)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield folder
    finally:
        if root:
            os.seteuid(0)
        shutil.rmtree(folder)


def test_unreadable_files_and_folders_are_noted(
    tmp_path: Path,
) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs two users")
    with unprivileged() as folder:
        os.seteuid(0)
        folders = ProjectFolders(folder)
        folders.write("AGENTS.md", "root").chmod(0o600)
        folders.write("a/AGENTS.md", "a")
        folders.write("a/b/AGENTS.md", "b")
        files = folders.files("a/b")
        (folders.root / "a" / "b").chmod(0o600)
        os.seteuid(65534)
        assert shown_texts(files) == ["a"]
        assert [note.removeprefix(f"{folders.root}/") for note in files.notes] == [
            "AGENTS.md is left out: it cannot be read (Permission denied)",
            "a/b/AGENTS.override.md is left out: it cannot be read (Permission denied)",
            "a/b/AGENTS.md is left out: it cannot be read (Permission denied)",
        ]


# ── Size limits ───────────────────────────────────────────────────────────────────────────────────────────

TEXTS = st.lists(st.text(alphabet="ab é\U0001f600", max_size=30), max_size=30).map("\n".join)


def size(text: str) -> int:
    return len(text.encode())


@given(st.lists(TEXTS, max_size=6), st.integers(0, 3_000))
def test_the_limit_holds_and_the_most_specific_file_is_cut_last(texts: list[str], room: int) -> None:
    files = [InstructionFile(f"/p/{number}/AGENTS.md", text) for number, text in enumerate(texts)]
    shown = fit_files(files, room)
    assert sum(size(one.content) for one in shown if one is not None) <= room
    cut = [position for position, one in enumerate(shown) if one is None or not one.whole]
    for above in shown[: max(cut, default=0)]:
        assert above is None or above.lines == 0 or above.whole


@given(TEXTS, st.integers(0, 1_500))
def test_a_cut_is_at_a_line_end_with_a_counted_notice(text: str, room: int) -> None:
    file = InstructionFile("/p/AGENTS.md", text)
    [one] = fit_files([file], room)
    if one is None:
        assert room < size("[foveal: 30 lines of /p/AGENTS.md are not shown; read the file for the rest]")
    elif one.whole:
        assert one.content.endswith(f"\n\n{text}")
    else:
        body, _, notice = one.content.rpartition("[foveal: ")
        lines = text.split("\n")
        total = len(lines) - (lines[-1] == "")
        assert (
            notice
            == f"{total - one.lines:,} lines of /p/AGENTS.md are not shown; read the file for the rest]"
        )
        assert body.split("\n\n", 1)[-1] == "".join(f"{line}\n" for line in lines[: one.lines])
        assert one.total == total


@given(TEXTS, st.integers(0, 1_000), st.integers(0, 1_000))
def test_more_room_never_shows_less(text: str, one: int, more: int) -> None:
    small, large = (
        fit_files([InstructionFile("/p/AGENTS.md", text)], one)[0],
        fit_files([InstructionFile("/p/AGENTS.md", text)], one + more)[0],
    )
    assert small is None or (large is not None and small.lines <= large.lines)


def test_files_without_room_still_get_a_notice(folders: ProjectFolders) -> None:
    folders.write("AGENTS.md", "root\n" * 1_000)
    folders.write("a/AGENTS.md", "a\n" * 5_000)
    root, folder = shown_texts(folders.files("a", max_bytes=1_000))
    cut, notice = root.split("\n")
    assert cut.startswith("[foveal: instructions are cut: ")
    assert (
        notice
        == f"[foveal: 1,000 lines of {folders.root}/AGENTS.md are not shown; read the file for the rest]"
    )
    assert folder.startswith("a\na\n")


def test_32_kib_are_shared_by_all_files(folders: ProjectFolders) -> None:
    folders.write("AGENTS.md", "r" * 99 + "\n" + ("r" * 99 + "\n") * 200)
    folders.write("a/AGENTS.md", ("a" * 99 + "\n") * 200)
    files = folders.files("a")
    contents = [text_of(fact.content) for fact in instructed(files.refresh_blocking([]))]
    assert 32_000 < sum(map(size, contents)) <= 32 * 1024
    assert [one.whole for one in files.shown] == [False, True]
    assert [one.tokens(Estimate()) for one in files.shown] == Estimate().count_all(contents)


USERS_LINE = "Answer in English.\n"


@pytest.mark.parametrize("limit", [2_000, 32 * 1024])
def test_a_long_project_file_does_not_cut_the_user_s_own(folders: ProjectFolders, limit: int) -> None:
    (folders.user / "AGENTS.md").write_text(USERS_LINE)
    folders.write("AGENTS.md", "a rule of the project\n" * 5_000)
    folders.write("a/AGENTS.md", "a rule of the folder\n" * 5_000)
    files = folders.files("a", max_bytes=limit)
    assert shown_texts(files)[0] == USERS_LINE
    assert [(one.lines > 0, one.whole) for one in files.shown] == [
        (True, True),
        (False, False),
        (True, False),
    ]
    assert sum(size(one.content) for one in files.shown) <= limit


def test_a_short_file_of_the_root_survives_a_long_nested_one(folders: ProjectFolders) -> None:
    root = "Use tabs.\nNever push.\nRun make test.\nWrite plain words.\n"
    folders.write("AGENTS.md", root)
    folders.write("a/AGENTS.md", "a rule of the folder, which is long\n" * 2_000)
    files = folders.files("a")
    assert shown_texts(files)[0] == root
    assert [(one.lines > 0, one.whole) for one in files.shown] == [(True, True), (True, False)]
    assert sum(size(one.content) for one in files.shown) <= 32 * 1024


@given(st.lists(st.integers(0, 400), min_size=1, max_size=6), st.integers(2_000, 20_000))
def test_every_short_file_is_shown_whole(lines: list[int], room: int) -> None:
    files = [InstructionFile(f"/p/{at}/AGENTS.md", "rule\n" * count) for at, count in enumerate(lines)]
    for count, one in zip(lines, fit_files(files, room), strict=True):
        heading = 100
        if heading + 5 * count <= room * SHORT_FILES_SHARE / len(files):
            assert one is not None
            assert one.whole


@given(st.integers(0, 60), st.integers(0, 3_000), st.integers(0, 3_000), st.integers(400, 40_000))
def test_what_is_shown_of_the_user_s_file_does_not_shrink_below_its_share(
    mine: int, root: int, folder: int, room: int
) -> None:
    user = [InstructionFile("/me/AGENTS.md", "mine\n" * mine, "user")]
    project = [
        InstructionFile("/p/AGENTS.md", "root\n" * root),
        InstructionFile("/p/a/AGENTS.md", "folder\n" * folder),
    ]
    [alone] = fit_by_owner(user, (), int(room * USER_SHARE))
    shown = fit_by_owner(user, project, room)
    assert alone is None or (shown[0] is not None and shown[0].lines >= alone.lines)
    assert sum(size(one.content) for one in shown if one is not None) <= room


def test_a_project_s_preferences_do_not_cut_the_user_s_own(folders: ProjectFolders) -> None:
    (folders.user / "preferences.md").write_text("short answers\n" * 100)
    folders.write(".foveal/preferences.md", "tabs\n" * 2_000)
    files = folders.files()
    files.refresh_blocking([])
    assert [one.whole for one in files.shown] == [True, False]
    assert sum(size(one.content) for one in files.shown) <= 4_096


def test_the_instructions_begin_with_what_is_cut(folders: ProjectFolders) -> None:
    (folders.user / "AGENTS.md").write_text(USERS_LINE)
    folders.write("AGENTS.md", "a rule\n" * 9_000)
    files = folders.files()
    [mine, project] = instructed(files.refresh_blocking([]))
    shown = files.shown[1].lines
    assert text_of(mine.content).split("\n")[0] == (
        f"[foveal: instructions are cut: {folders.root}/AGENTS.md ({shown:,} of 9,000 lines shown)]"
    )
    assert "cut:" not in text_of(project.content)
    assert files.notes == (f"{folders.root}/AGENTS.md is cut: {shown:,} of 9,000 lines are shown",)
    assert folders.files().refresh_blocking([]) == files.refresh_blocking([])


def test_instructions_take_at_most_a_third_of_the_room(folders: ProjectFolders) -> None:
    (folders.user / "AGENTS.md").write_text(USERS_LINE)
    folders.write("AGENTS.md", "Run the tests before you say that a task is done.\n" * 900)
    files = InstructionFiles(folders.root, user_folder=folders.user, trust=folders.trust, room=3_000)
    files.refresh_blocking([])
    assert [one.whole for one in files.shown] == [True, False]
    assert 900 < sum(one.tokens(Estimate()) for one in files.shown) <= 1_000
    assert files.notes[-1] == "instructions take at most 1,000 tokens in the window of this model"


PROSE = "- Rule {}: never edit generated/file_{}.py by hand, use make gen_{}."
HEX = "{:064x}{:064x}{:064x}"


@pytest.mark.parametrize("line", [PROSE, HEX, "規則{}：不要修改 {} 和 {}。"])
@pytest.mark.parametrize("preferences", ["", "short answers\n" * 200])
@pytest.mark.parametrize("room", [3_000, 5_178, 12_000])
def test_the_third_of_the_room_is_used(
    folders: ProjectFolders, line: str, preferences: str, room: int
) -> None:
    (folders.user / "AGENTS.md").write_text("- Always answer in English and keep it short.\n" * 300)
    (folders.user / "preferences.md").write_text(preferences)
    folders.write("AGENTS.md", "".join(f"{line.format(n, n, n)}\n" for n in range(800)))
    files = InstructionFiles(
        folders.root, user_folder=folders.user, trust=folders.trust, room=room, counter=Estimate()
    )
    files.refresh_blocking([])
    used = sum(one.tokens(Estimate()) for one in files.shown)
    assert room / 3 * 0.85 < used <= room / 3
    before = files.shown
    files.refresh_blocking([])
    assert files.shown == before


def test_files_of_other_folders_stay_within_the_third_of_the_room(folders: ProjectFolders) -> None:
    folders.write("AGENTS.md", "root\n")
    folders.write("a/AGENTS.md", "a rule of the folder\n" * 2_000)
    files = InstructionFiles(folders.root, user_folder=folders.user, trust=folders.trust, room=3_000)
    files.refresh_blocking([])
    files.instructions_for_blocking(["a/x.py"])
    assert [one.lines > 0 for one in files.shown] == [True, True]
    assert sum(one.tokens(Estimate()) for one in files.shown) <= 1_000


def test_a_budget_of_zero_reads_nothing(folders: ProjectFolders) -> None:
    os.mkfifo(folders.write("AGENTS.md", "root").with_name("AGENTS.override.md"))
    (folders.user / "AGENTS.md").write_text("mine")
    assert folders.files(max_bytes=0).refresh_blocking([]) == ()


def test_preferences_come_last_and_have_a_limit_of_their_own(
    folders: ProjectFolders,
) -> None:
    (folders.user / "preferences.md").write_text("short answers\n")
    folders.write(".foveal/preferences.md", "tabs\n" * 2_000)
    folders.write("AGENTS.md", "root")
    files = folders.files()
    root, user, project = shown_texts(files)
    assert (root, user, project[:5]) == ("root", "short answers\n", "tabs\n")
    assert sum(size(one.content) for one in files.shown[1:]) <= 4_096
    assert shown_texts(folders.files(preferences_max_bytes=0)) == ["root"]


# ── Trust ────────────────────────────────────────────────────────────────────────────────────────────────


def allow(trust: Trust, files: InstructionFiles, *keys: str) -> None:
    trust.answer(files.root, [answer.item for answer in files.items()], allowed=keys)


@pytest.fixture
def asking(folders: ProjectFolders) -> Trust:
    """Stored answers, of which there are none yet."""
    trust = folders.trust = Trust(folders.root.parent / "trust")
    return trust


def test_files_of_the_project_are_used_one_by_one_as_the_user_allows(
    folders: ProjectFolders, asking: Trust
) -> None:
    folders.write("AGENTS.md", "root")
    folders.write("a/AGENTS.md", "a\nb\n")
    folders.write(".foveal/preferences.md", "tabs")
    (folders.user / "AGENTS.md").write_text("mine")
    files = folders.files("a")
    assert [(item.key, item.title, item.source, item.text, state) for item, state in files.items()] == [
        ("file AGENTS.md", "1 line of instructions for the model", "AGENTS.md", "root", "new"),
        (
            "file a/AGENTS.md",
            "2 lines of instructions for the model",
            "a/AGENTS.md",
            "a\nb\n",
            "new",
        ),
        (
            "file .foveal/preferences.md",
            "1 line of instructions for the model",
            ".foveal/preferences.md",
            "tabs",
            "new",
        ),
    ]
    assert shown_texts(files) == ["mine"]
    assert [note.removeprefix(f"{folders.root}/") for note in files.notes] == [
        "AGENTS.md is not used: you were not asked about it yet",
        "a/AGENTS.md is not used: you were not asked about it yet",
        ".foveal/preferences.md is not used: you were not asked about it yet",
    ]
    allow(asking, files, "file a/AGENTS.md")
    assert shown_texts(files) == ["mine", "a\nb\n"]
    assert [note.removeprefix(f"{folders.root}/") for note in files.notes] == [
        "AGENTS.md is not used: you did not allow it",
        ".foveal/preferences.md is not used: you did not allow it",
    ]


def test_a_project_without_instructions_has_no_items(folders: ProjectFolders, asking: Trust) -> None:
    assert folders.files().items() == ()


def test_without_the_project_only_the_user_s_files_are_read(folders: ProjectFolders) -> None:
    folders.write("AGENTS.md", "root")
    folders.write("a/AGENTS.md", "a")
    (folders.user / "AGENTS.md").write_text("mine")
    files = InstructionFiles(folders.root, user_folder=folders.user, trust=folders.trust, project=False)
    assert (shown_texts(files), files.items(), files.notes) == (["mine"], (), ())
    assert files.instructions_for_blocking(["a/x.py"]) == ()


def test_a_changed_file_is_withdrawn_until_the_user_allows_it_again(
    folders: ProjectFolders, asking: Trust
) -> None:
    folders.write("AGENTS.md", "root")
    log = GrowingLog(folders.files())
    assert instructed(log.turn()) == []
    allow(asking, log.files, "file AGENTS.md")
    assert sources(log.turn(), folders.root) == ["AGENTS.md"]
    folders.write("AGENTS.md", "other")
    [withdrawn] = instructed(log.turn())
    why = "is not used, because it has changed since you were asked about it"
    assert withdrawn.content == f"{WITHDRAWN_PREFIX}{folders.root}/AGENTS.md {why}]"
    assert log.turn() == []
    [(item, state)] = log.files.items()
    assert (state, asking.seen_text(folders.root, item)) == ("changed", "root")
    allow(asking, log.files, "file AGENTS.md")
    assert [text_of(fact.content).endswith("other") for fact in instructed(log.turn())] == [True]


def test_the_file_of_a_touched_folder_waits_for_the_user_s_answer(
    folders: ProjectFolders, asking: Trust
) -> None:
    folders.write("lib/AGENTS.md", "rule of lib")
    log = GrowingLog(folders.files())
    log.turn()
    assert instructed(log.touch("lib/x.py")) == []
    assert log.files.notes == (f"{folders.root}/lib/AGENTS.md is not used: you were not asked about it yet",)
    assert [(item.key, state) for item, state in log.files.items()] == [("file lib/AGENTS.md", "new")]
    assert instructed(log.turn()) == []
    allow(asking, log.files, "file lib/AGENTS.md")
    assert sources(log.turn(), folders.root) == ["lib/AGENTS.md"]
    assert log.turn() == []


# ── Changes during a session ────────────────────────────────────────────────────────────────────────


def test_facts_and_notes_are_returned_once(folders: ProjectFolders) -> None:
    folders.write("AGENTS.md", "root\x1b")
    log = GrowingLog(folders.files())
    assert len(log.turn()) == 2  # the file, and a note about its invisible character
    assert log.turn() == []
    assert folders.files().refresh_blocking(log.events) == ()  # nor in the next process


def test_a_changed_file_replaces_its_older_version_in_place(folders: ProjectFolders) -> None:
    folders.write("AGENTS.md", "one")
    log = GrowingLog(folders.files())
    log.turn()
    folders.write("AGENTS.md", "two")
    [second] = instructed(log.turn())
    assert (second.replaces, second.source) == (0, f"{folders.root}/AGENTS.md")
    folders.write("AGENTS.md", "three")
    [third] = instructed(log.turn())
    assert third.replaces == log.events.index(Event(2, second))


def test_a_new_override_replaces_the_file_beside_it(folders: ProjectFolders) -> None:
    folders.write("AGENTS.md", "standard")
    log = GrowingLog(folders.files())
    log.turn()
    override = folders.write("AGENTS.override.md", "override")
    [fact] = instructed(log.turn())
    assert (fact.source, fact.replaces) == (str(override), 0)
    override.unlink()
    [fact] = instructed(log.turn())
    assert (fact.source, fact.replaces) == (f"{folders.root}/AGENTS.md", 2)


def test_a_deleted_file_leaves_one_notice_and_returns_in_place(folders: ProjectFolders) -> None:
    path = folders.write("AGENTS.md", "root")
    log = GrowingLog(folders.files())
    log.turn()
    path.unlink()
    assert log.turn() == [
        Instructed(content=f"{WITHDRAWN_PREFIX}{path} was deleted]", source=str(path), replaces=0)
    ]
    assert log.turn() == []
    path.write_text("again")
    [fact] = instructed(log.turn())
    assert (text_of(fact.content).rpartition("\n")[2], fact.replaces) == ("again", 2)


def test_a_file_created_later_is_added_at_the_end(folders: ProjectFolders) -> None:
    folders.write("a/AGENTS.md", "a")
    log = GrowingLog(folders.files("a"))
    log.turn()
    folders.write("AGENTS.md", "root")
    [fact] = instructed(log.turn())
    assert (fact.source, fact.replaces) == (f"{folders.root}/AGENTS.md", None)


def test_after_a_rewind_the_files_are_compared_with_the_view(folders: ProjectFolders) -> None:
    folders.write("AGENTS.md", "one")
    log = GrowingLog(folders.files())
    log.turn()  # e0 and e1
    folders.write("AGENTS.md", "two")
    log.turn()  # e2 and e3
    log.add(Rewound(to=1))
    [fact] = instructed(log.turn())
    assert fact.replaces == 0
    log.add(Rewound(to=-1))
    [fact] = instructed(log.turn())
    assert fact.replaces is None


def test_files_added_by_two_processes_are_shown_once(folders: ProjectFolders) -> None:
    folders.write("AGENTS.md", "root")
    log = GrowingLog(folders.files())
    log.add(*folders.files().refresh_blocking([]))
    log.add(*folders.files().refresh_blocking([]))
    [fact] = instructed(log.turn())
    assert (fact.replaces, text_of(fact.content)[: len(WITHDRAWN_PREFIX)]) == (0, WITHDRAWN_PREFIX)
    assert log.turn() == []


def test_a_session_continued_elsewhere_withdraws_old_instructions(
    folders: ProjectFolders, tmp_path: Path
) -> None:
    folders.write("AGENTS.md", "first")
    log = GrowingLog(folders.files())
    log.turn()
    other = ProjectFolders(tmp_path.resolve() / "other")
    other.write("AGENTS.md", "second")
    log.files = other.files()
    added, withdrawn = instructed(log.turn())
    assert (added.source, added.replaces) == (f"{other.root}/AGENTS.md", None)
    assert withdrawn.content == f"{WITHDRAWN_PREFIX}{folders.root}/AGENTS.md is not used any more]"


# ── Touched files ───────────────────────────────────────────────────────────────────────────────


def test_a_touched_file_adds_the_instructions_of_its_folder_once(folders: ProjectFolders) -> None:
    folders.write("AGENTS.md", "root")
    folders.write("lib/AGENTS.md", "lib")
    folders.write("lib/deep/AGENTS.md", "deep")
    log = GrowingLog(folders.files("src"))
    log.turn()
    assert sources(log.touch("../lib/deep/x.py", "../lib/deep/y.py"), folders.root) == [
        "lib/AGENTS.md",
        "lib/deep/AGENTS.md",
    ]
    assert log.touch("../lib/deep/z.py") == []
    assert log.turn() == []
    assert (
        GrowingLog(folders.files("src")).files.refresh_blocking(log.events) == ()
    )  # nor in the next process
    assert log.touch(str(folders.root / "lib")) == []


def test_instructions_removed_by_a_rewind_are_added_again(folders: ProjectFolders) -> None:
    folders.write("lib/AGENTS.md", "lib")
    log = GrowingLog(folders.files())
    log.turn()
    assert len(log.touch("lib/x.py")) == 1
    log.add(Rewound(to=0))
    log.turn()
    assert sources(log.touch("lib/x.py"), folders.root) == ["lib/AGENTS.md"]


def test_touched_files_move_nothing_before_them(folders: ProjectFolders) -> None:
    folders.write("AGENTS.md", "root\n" * 150)
    folders.write("lib/AGENTS.md", "lib\n" * 200)
    log = GrowingLog(folders.files(max_bytes=1_200))
    log.turn()
    [fact] = instructed(log.touch("lib/x.py"))
    assert fact.replaces is None
    assert "lines of" in text_of(fact.content)
    assert log.turn() == []
    assert sum(size(one.content) for one in log.files.shown) <= 1_200


def test_touching_a_file_reads_no_changes_of_other_files(folders: ProjectFolders) -> None:
    folders.write("AGENTS.md", "one")
    folders.write("lib/AGENTS.md", "lib")
    log = GrowingLog(folders.files())
    log.turn()
    folders.write("AGENTS.md", "two")
    assert sources(log.touch("lib/x.py"), folders.root) == ["lib/AGENTS.md"]
    assert sources(log.turn(), folders.root) == ["AGENTS.md"]


def test_files_outside_the_project_add_nothing(folders: ProjectFolders) -> None:
    (folders.root.parent / "AGENTS.md").write_text("above")
    (folders.root.parent / "beside").mkdir()
    (folders.root.parent / "beside" / "AGENTS.md").write_text("beside")
    (folders.root / "out").symlink_to("../beside")
    log = GrowingLog(folders.files())
    log.turn()
    assert log.touch("/etc/passwd", "../beside/x", "out/x", "\0", "x" * 5_000, "", "~nobody/x", "/") == []


def test_paths_are_found_in_arguments_and_commands() -> None:
    assert paths_in('{"path": "src/a.py", "limit": 3, "flag": "-x", "edits": [{"file": "b.py"}]}') == (
        "src/a.py",
        "b.py",
    )
    assert paths_in({"command": "cat -n --color=always 'my file.txt' >out/log.txt && ls lib|wc"}) == (
        "cat", "my file.txt", ">", "out/log.txt", "&&", "ls", "lib", "|", "wc",
    )  # fmt: skip
    assert paths_in({"command": ["bash", "-lc", "cat src/a.py"]}) == (
        "bash",
        "cat src/a.py",
        "cat",
        "src/a.py",
    )
    assert paths_in({"command": "echo 'never closed"}) == ("echo", "'never", "closed")
    assert paths_in({"content": "line\nsrc/a.py\n"}) == ()


@pytest.mark.parametrize("broken", ["", "{", "[" * 100_000, "3", '"text', '{"path": null}'])
def test_malformed_arguments_have_no_paths(broken: str) -> None:
    assert paths_in(broken) == ()


def test_the_number_of_paths_in_a_call_is_bounded() -> None:
    assert len(paths_in({"command": " ".join(f"f{number}" for number in range(5_000))})) == 200


# ── In a session ─────────────────────────────────────────────────────────────────────────────────────────


def run(test: Callable[[Session], Awaitable[None]], **settings: Any) -> None:
    async def inner() -> None:
        session = await Session.open(MemoryStore(), "demo", model="gpt-4.1", **settings)
        await test(session)

    asyncio.run(inner())


async def shown(session: Session) -> list[str]:
    fitted = await session.fit()
    return [text_of(fact.content) for fact in fitted.facts if isinstance(fact, Instructed)]


def test_instructions_are_in_the_system_text_exactly_once(folders: ProjectFolders) -> None:
    folders.write("AGENTS.md", "rule one")
    files = folders.files()

    async def test(session: Session) -> None:
        for number in range(3):
            await session.append(*await files.refresh(session))
            await session.append(UserSaid(content=f"{number}"), ModelSaid(content="yes"))
        assert (await session.fit()).system.count("rule one") == 1
        assert len(await shown(session)) == 1

    run(test)


def test_after_a_compaction_the_newest_version_is_shown_once(folders: ProjectFolders) -> None:
    folders.write("AGENTS.md", "rule one")
    folders.write("lib/AGENTS.md", "rule of lib")
    files = folders.files()

    async def test(session: Session) -> None:
        await session.equip([{"name": "read"}])
        await session.append(
            *await files.refresh(session), UserSaid(content="begin"), ModelSaid(content="yes")
        )
        await session.append(*await files.instructions_for(session, ["lib/x.py"]))
        for number in range(6):
            await session.append(UserSaid(content=f"{number} " * 2_000), ModelSaid(content="yes"))
        last = session.last
        await session.append(Compacted(first=0, last=last, summary="what was"))
        folders.write("AGENTS.md", "rule two")
        await session.append(*await files.refresh(session), UserSaid(content="go on"))
        one, lib = await shown(session)
        assert one.endswith("rule two")
        assert lib.endswith("rule of lib")
        assert (await session.fit()).tools == [{"name": "read"}]
        assert await files.refresh(session) == ()
        (folders.root / "AGENTS.md").unlink()
        await session.append(*await files.refresh(session))
        assert [text.startswith(WITHDRAWN_PREFIX) for text in await shown(session)] == [True, False]
        assert await files.refresh(session) == ()

    run(test)


def test_a_file_that_became_untrusted_is_not_restored(folders: ProjectFolders) -> None:
    folders.write("AGENTS.md", "rule one")
    files = folders.files()

    async def test(session: Session) -> None:
        await session.append(
            *await files.refresh(session), UserSaid(content="x " * 3_000), ModelSaid(content="yes")
        )
        files.trust = GivenItems()
        await session.append(*await files.refresh(session), UserSaid(content="go on"))
        await session.append(Compacted(first=1, last=session.last - 1, summary="what was"))
        [text] = await shown(session)
        assert "rule one" not in text
        assert await files.refresh(session) == ()

    run(test)


def test_the_prompt_prefix_moves_only_when_a_file_changes(folders: ProjectFolders) -> None:
    folders.write("AGENTS.md", "rule one")
    folders.write("lib/AGENTS.md", "rule of lib")
    files = folders.files()

    async def test(session: Session) -> None:
        before: list[Any] = []
        for number in range(4):
            await session.append(*await files.refresh(session))
            await session.append(UserSaid(content=f"{number}"), ModelSaid(content="yes"))
            if number == 1:
                await session.append(*await files.instructions_for(session, ["lib/x.py"]))
            if number == 2:
                folders.write("new/AGENTS.md", "not touched")
            messages = (await session.fit()).to_openai()
            assert messages[: len(before)] == before
            before = messages

    run(test)


def test_rewound_and_forked_sessions_show_each_file_once(folders: ProjectFolders) -> None:
    folders.write("AGENTS.md", "one")
    files = folders.files()

    async def test(session: Session) -> None:
        await session.append(*await files.refresh(session), UserSaid(content="a"), ModelSaid(content="b"))
        at = session.last
        folders.write("AGENTS.md", "two")
        await session.append(*await files.refresh(session), UserSaid(content="c"), ModelSaid(content="d"))
        await session.rewind(at)
        await session.append(*await files.refresh(session))
        fork = await session.fork("other")
        fresh = folders.files()
        assert await fresh.refresh(fork) == ()
        for each in (session, fork):
            assert [text.endswith("two") for text in await shown(each)] == [True]

    run(test)


def test_the_instruction_set_equals_the_view(folders: ProjectFolders) -> None:
    folders.write("AGENTS.md", "one")
    files = folders.files()

    async def test(session: Session) -> None:
        for text in ("one", "two", "three"):
            folders.write("AGENTS.md", text)
            await session.append(*await files.refresh(session), UserSaid(content="a"))
            held = instruction_set(await session.events())
            assert [one.content for one in held.files.values()] == await shown(session)
            assert held.duplicates == ()

    run(test)


def test_instructions_between_results_split_no_call_from_its_result(folders: ProjectFolders) -> None:
    folders.write("lib/AGENTS.md", "lib")
    files = folders.files()
    calls = (Call(id="c1", name="read", arguments="{}"), Call(id="c2", name="read", arguments="{}"))

    async def test(session: Session) -> None:
        await session.append(UserSaid(content="read"), ModelSaid(content=calls))
        await session.append(ToolReturned(call_id="c1", content="x"))
        await session.append(*await files.instructions_for(session, ["lib/x.py"]))
        await session.append(ToolReturned(call_id="c2", content="y"))
        fitted = await session.fit()
        assert [kind(fact) for fact in fitted.facts[-3:]] == ["tool_returned", "tool_returned", "instructed"]
        assert check_chat(fitted.to_openai()) == []
        assert check_anthropic(fitted.to_anthropic()) == []

    run(test)
