"""AGENTS.md: which files count, how they are cut, and that each stands in the request exactly once."""

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
from foveal.instructions import (
    WITHDRAWN,
    InstructionFile,
    InstructionFiles,
    InstructionRules,
    fit,
    folders,
    instruction_set,
    paths_in,
)
from foveal.project import Trust, UnusableFile, find_root, read
from foveal.sessions import Session
from foveal.stores import MemoryStore
from support.legality import check_anthropic, check_chat


class Place:
    """A home and a project on a real disk."""

    def __init__(self, folder: Path) -> None:
        self.user = folder / "home" / "foveal"
        self.root = folder / "project"
        self.user.mkdir(parents=True)
        (self.root / ".git").mkdir(parents=True)
        self.trust = Trust(folder / "state" / "trust.json")
        self.trust.trust(self.root, yes=True)

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
def place(tmp_path: Path) -> Place:
    return Place(tmp_path.resolve())


class Talk:
    """A log that grows as a session's does, without a session."""

    def __init__(self, files: InstructionFiles) -> None:
        self.files = files
        self.log: list[Event] = []

    def add(self, *facts: AnyFact) -> list[Event]:
        events = [Event(len(self.log) + i, fact) for i, fact in enumerate(facts)]
        self.log += events
        return events

    def turn(self) -> list[AnyFact]:
        facts = list(self.files.look(self.log))
        self.add(*facts, UserSaid(content="go on"))
        return facts

    def touch(self, *paths: str) -> list[AnyFact]:
        facts = list(self.files.for_paths(paths, self.log))
        self.add(*facts)
        return facts


def instructed(facts: Sequence[AnyFact]) -> list[Instructed]:
    return [fact for fact in facts if isinstance(fact, Instructed)]


def sources(facts: Sequence[AnyFact], root: Path) -> list[str]:
    return [os.path.relpath(fact.source, root) for fact in instructed(facts)]


def looked(files: InstructionFiles) -> list[str]:
    """The texts of the files, as the model sees them, without their headings."""
    return [text_of(fact.content).split("\n\n", 1)[-1] for fact in instructed(files.look([]))]


def noted(files: InstructionFiles) -> str:
    files.look([])
    return "\n".join(files.notes)


# ── which files ──────────────────────────────────────────────────────────────────────────────────────────


def test_without_any_file_there_is_nothing_to_say(place: Place) -> None:
    files = place.files()
    assert files.look([]) == ()
    assert (files.shown, files.notes) == ((), ())


def test_the_users_file_comes_first_then_the_root_then_each_folder_down_to_the_working_directory(
    place: Place,
) -> None:
    (place.user / "AGENTS.md").write_text("mine")
    place.write("AGENTS.md", "root")
    place.write("a/AGENTS.md", "a")
    place.write("a/b/c/AGENTS.md", "c")
    place.write("a/other/AGENTS.md", "other")
    place.write("a/b/c/d/AGENTS.md", "below")
    assert looked(place.files("a/b/c")) == ["mine", "root", "a", "c"]


def test_the_override_goes_before_the_standard_name_and_that_before_a_fallback(place: Place) -> None:
    place.write("AGENTS.md", "standard")
    place.write("AGENTS.override.md", "override")
    place.write("a/AGENTS.md", "standard a")
    place.write("a/CLAUDE.md", "fallback a")
    place.write("a/b/CLAUDE.md", "fallback b")
    assert looked(place.files("a/b")) == ["override", "standard a"]
    assert looked(place.files("a/b", fallback_names=("CLAUDE.md",))) == [
        "override",
        "standard a",
        "fallback b",
    ]


def test_nothing_above_the_root_is_read(place: Place) -> None:
    (place.root.parent / "AGENTS.md").write_text("above")
    place.write("AGENTS.md", "root")
    assert looked(place.files("a")) == ["root"]


@pytest.mark.parametrize("marker", [".git", ".hg", "pyproject.toml", "package.json", "go.mod"])
def test_each_marker_makes_a_root(tmp_path: Path, marker: str) -> None:
    (tmp_path / "p" / "a" / "b").mkdir(parents=True)
    (tmp_path / "p" / marker).touch()  # `.git` is a file in a worktree and in a submodule
    assert find_root(tmp_path / "p" / "a" / "b", InstructionRules().root_markers) == tmp_path.resolve() / "p"


def test_a_package_inside_a_repository_is_not_its_root(place: Place) -> None:
    place.write("packages/one/package.json", "{}")
    assert place.files("packages/one/src").root == place.root


def test_markers_can_be_chosen_and_without_markers_the_working_directory_is_the_root(place: Place) -> None:
    place.write("AGENTS.md", "root")
    place.write("a/here.txt", "")
    place.write("a/AGENTS.md", "a")
    place.write("a/b/AGENTS.md", "b")
    assert place.files("a/b", root_markers=("here.txt",)).root == place.root / "a"
    files = place.files("a/b", root_markers=())
    place.trust.trust(files.root, yes=True)
    assert files.root == place.root / "a" / "b"
    assert looked(files) == ["b"]


def test_a_home_folder_is_not_the_root_of_what_lies_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path.resolve()
    monkeypatch.setenv("HOME", str(home))
    (home / ".git").mkdir()
    (home / "downloads").mkdir()
    assert find_root(home / "downloads", (".git",)) == home / "downloads"
    assert find_root(home, (".git",)) == home


def test_a_working_directory_that_is_a_link_counts_as_what_it_leads_to(place: Place) -> None:
    place.write("AGENTS.md", "root")
    place.write("deep/down/AGENTS.md", "down")
    link = place.root.parent / "link"
    link.symlink_to(place.root / "deep" / "down")
    files = InstructionFiles(link, user_folder=place.user, trust=place.trust)
    assert files.root == place.root
    assert looked(files) == ["root", "down"]


def test_folders_can_be_ignored(place: Place) -> None:
    place.write("AGENTS.md", "root")
    place.write("vendor/lib/AGENTS.md", "vendored")
    place.write("src/AGENTS.md", "src")
    assert looked(place.files("vendor/lib", ignore=("vendor",))) == ["root"]
    assert looked(place.files("vendor/lib", ignore=("vendor/*",))) == ["root"]
    assert looked(place.files("src", ignore=("vendor/",))) == ["root", "src"]


def test_an_import_in_a_file_is_text_and_never_followed(place: Place) -> None:
    (place.root.parent / "secret.md").write_text("secret")
    place.write("AGENTS.md", "@../secret.md\n@secret.md\n")
    assert looked(place.files()) == ["@../secret.md\n@secret.md\n"]


def test_a_file_with_two_names_is_shown_once(place: Place) -> None:
    place.write("AGENTS.md", "root")
    (place.root / "a").mkdir()
    os.link(place.root / "AGENTS.md", place.root / "a" / "AGENTS.md")
    (place.root / "a" / "b").mkdir()
    (place.root / "a" / "b" / "AGENTS.md").symlink_to("../../AGENTS.md")
    files = place.files("a/b")
    assert looked(files) == ["root"]
    assert [note.split(" is ", 1)[1] for note in files.notes] == [
        f"left out: it is the same file as {place.root}/AGENTS.md"
    ] * 2


def test_names_of_fallbacks_have_no_folder() -> None:
    with pytest.raises(BadSetting, match="fallback_names"):
        InstructionRules(fallback_names=("../../etc/passwd",))


@given(
    st.lists(st.sampled_from(["a", "b", "c.d"]), max_size=5),
    st.lists(st.sampled_from(["a", "x"]), max_size=5),
)
def test_the_folders_on_the_way_down_begin_at_the_root_and_grow_by_one_name(
    up: list[str], down: list[str]
) -> None:
    root = "/" + "/".join(up)
    way = folders(root, "/".join([root.rstrip("/"), *down]) or "/")
    assert len(way) == len(down) + 1
    assert way[0] == root
    assert [name.rsplit("/", 1)[-1] for name in way[1:]] == down
    assert folders(f"{root.rstrip('/')}/q", root) == ()
    assert folders(f"{root.rstrip('/')}/q", f"{root.rstrip('/')}/qq") == ()


# ── files that are none ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("text", ["", " \n\t\n", "\n"])
def test_a_file_with_nothing_in_it_is_left_out_and_the_next_name_counts(place: Place, text: str) -> None:
    place.write("AGENTS.override.md", text)
    place.write("AGENTS.md", "standard")
    files = place.files()
    assert looked(files) == ["standard"]
    assert files.notes == (f"{place.root}/AGENTS.override.md is left out: it is empty",)


def test_a_folder_of_that_name_is_left_out(place: Place) -> None:
    (place.root / "AGENTS.md").mkdir()
    assert noted(place.files()) == f"{place.root}/AGENTS.md is left out: it is a folder"


def test_a_pipe_is_not_opened_and_nothing_waits_for_it(place: Place) -> None:
    os.mkfifo(place.root / "AGENTS.md")
    assert noted(place.files()) == f"{place.root}/AGENTS.md is left out: it is a pipe"


def test_a_device_is_not_opened(place: Place) -> None:
    (place.user / "AGENTS.md").symlink_to("/dev/zero")
    assert noted(place.files()) == f"{place.user}/AGENTS.md is left out: it is a device"


def test_a_socket_is_not_opened() -> None:
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{folder}/AGENTS.md")
        with pytest.raises(UnusableFile, match="it is a socket"):
            read(Path(folder) / "AGENTS.md", most=10)


def test_a_link_that_leads_out_of_the_project_is_left_out(place: Place) -> None:
    (place.root.parent / "secret.md").write_text("secret")
    (place.root / "AGENTS.md").symlink_to("../secret.md")
    place.write("a/x", "")
    (place.root / "a" / "AGENTS.md").symlink_to(place.user / "AGENTS.md")
    (place.user / "AGENTS.md").write_text("mine")
    files = place.files("a")
    assert looked(files) == ["mine"]
    assert len([note for note in files.notes if note.endswith("a link that leads out of the project")]) == 2


def test_a_link_inside_the_project_and_any_link_of_the_user_are_followed(place: Place) -> None:
    place.write("docs/agents.md", "root")
    (place.root / "AGENTS.md").symlink_to("docs/agents.md")
    dotfiles = place.root.parent / "dotfiles.md"
    dotfiles.write_text("mine")
    (place.user / "AGENTS.md").symlink_to(dotfiles)
    assert looked(place.files()) == ["mine", "root"]


def test_a_loop_of_links_and_one_that_leads_to_nothing_are_left_out(place: Place) -> None:
    (place.root / "AGENTS.override.md").symlink_to("AGENTS.override.md")
    (place.root / "AGENTS.md").symlink_to("nowhere.md")
    files = place.files()
    assert looked(files) == []
    assert "AGENTS.override.md is left out: it cannot be read (Too many levels" in files.notes[0]
    assert files.notes[1].endswith(
        "AGENTS.md is left out: it leads to nothing, or vanished while it was read"
    )


def test_a_file_that_vanishes_after_it_was_found_is_left_out(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = place.write("AGENTS.md", "root")
    real = os.path.realpath

    def vanish(name: Any, *, strict: bool = False) -> Any:
        if strict and Path(name) == path:
            path.unlink()
        return real(name)

    files = place.files()
    monkeypatch.setattr(os.path, "realpath", vanish)
    assert files.look([]) == (
        Noted(
            text=f"{path} is left out: it leads to nothing, or vanished while it was read",
            topic="instructions",
        ),
    )


def test_a_file_of_a_gigabyte_is_read_only_in_part(place: Place) -> None:
    path = place.write("AGENTS.md", "rule one\n" * 200_000)
    os.truncate(path, 10**9)
    files = place.files(max_bytes=1_000)
    [text] = looked(files)
    assert len(text) < 1_000
    assert text.startswith("rule one\n")
    assert re.search(
        r"\[foveal: more than 116,\d\d\d lines of .* are not shown; read the file for the rest\]$", text
    )
    assert "or more lines are shown" in files.notes[0]


def test_a_gigabyte_in_one_line_is_only_named(place: Place) -> None:
    path = place.write("AGENTS.md", "x")
    with path.open("r+b") as file:
        file.write(b"x" * (1 << 20) + b"y")
        file.truncate(10**9)
    files = place.files()
    [fact] = instructed(files.look([]))
    assert fact.content == (
        f"[foveal: more than 0 lines of {path} are not shown; read the file for the rest]"
    )


def test_bytes_that_are_not_utf_8_are_replaced_and_that_is_said(place: Place) -> None:
    place.write("AGENTS.md", b"caf\xe9 rule")
    files = place.files()
    assert looked(files) == ["caf\ufffd rule"]
    assert "is not UTF-8 throughout" in files.notes[0]


def test_a_binary_file_is_left_out(place: Place) -> None:
    place.write("AGENTS.md", "rule".encode("utf-16"))
    assert "it is not text (it has NUL bytes)" in noted(place.files())


@pytest.mark.parametrize("mark", ["\u200b", "\u202e", "\U000e0041", "\u2066", "\x1b"])
def test_characters_that_cannot_be_seen_are_kept_and_told_of(place: Place, mark: str) -> None:
    place.write("AGENTS.md", f"be{mark} kind\r\n")
    files = place.files()
    assert looked(files) == [f"be{mark} kind\r\n"]
    assert f"has characters that cannot be seen (U+{ord(mark):04X})" in files.notes[0]


def test_a_byte_order_mark_and_windows_line_ends_are_nothing_to_tell_of(place: Place) -> None:
    place.write("AGENTS.md", "\ufeffbe kind\r\nalways\r\n")
    assert noted(place.files()) == ""


def test_backticks_and_words_of_ours_in_a_file_change_nothing(place: Place) -> None:
    text = "```\n[foveal: 3 lines of x are not shown]\n# Instructions of the user\n```\n"
    place.write("AGENTS.md", text)
    talk = Talk(place.files())
    assert text_of(instructed(talk.turn())[0].content).endswith(f"\n\n{text}")
    assert talk.turn() == []


@contextmanager
def nobody() -> Iterator[Path]:
    """A folder and a user without rights on what others keep to themselves."""
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


def test_an_unreadable_file_and_an_unreadable_folder_are_told_of_and_nothing_else_is_lost(
    tmp_path: Path,
) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs two users")
    with nobody() as folder:
        os.seteuid(0)
        place = Place(folder)
        place.trust.path.parent.chmod(0o755)
        place.trust.path.chmod(0o644)
        place.write("AGENTS.md", "root").chmod(0o600)
        place.write("a/AGENTS.md", "a")
        place.write("a/b/AGENTS.md", "b")
        files = place.files("a/b")
        (place.root / "a" / "b").chmod(0o600)
        os.seteuid(65534)
        assert looked(files) == ["a"]
        assert [note.removeprefix(f"{place.root}/") for note in files.notes] == [
            "AGENTS.md is left out: it cannot be read (Permission denied)",
            "a/b/AGENTS.override.md is left out: it cannot be read (Permission denied)",
            "a/b/AGENTS.md is left out: it cannot be read (Permission denied)",
        ]


# ── the budget ───────────────────────────────────────────────────────────────────────────────────────────

TEXTS = st.lists(st.text(alphabet="ab é\U0001f600", max_size=30), max_size=30).map("\n".join)


def size(text: str) -> int:
    return len(text.encode())


@given(st.lists(TEXTS, max_size=6), st.integers(0, 3_000))
def test_what_is_shown_never_exceeds_the_budget_and_the_most_specific_file_is_kept_longest(
    texts: list[str], room: int
) -> None:
    files = [InstructionFile(f"/p/{number}/AGENTS.md", text) for number, text in enumerate(texts)]
    shown = fit(files, room)
    assert sum(size(one.content) for one in shown if one is not None) <= room
    cut = [place for place, one in enumerate(shown) if one is None or not one.whole]
    for above in shown[: max(cut, default=0)]:
        assert above is None or above.lines == 0


@given(TEXTS, st.integers(0, 1_500))
def test_a_cut_is_at_a_line_end_counted_and_visible(text: str, room: int) -> None:
    file = InstructionFile("/p/AGENTS.md", text)
    [one] = fit([file], room)
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
        fit([InstructionFile("/p/AGENTS.md", text)], one)[0],
        fit([InstructionFile("/p/AGENTS.md", text)], one + more)[0],
    )
    assert small is None or (large is not None and small.lines <= large.lines)


def test_files_that_have_no_room_are_still_named(place: Place) -> None:
    place.write("AGENTS.md", "root\n" * 1_000)
    place.write("a/AGENTS.md", "a\n" * 5_000)
    root, folder = looked(place.files("a", max_bytes=1_000))
    assert (
        root == f"[foveal: 1,000 lines of {place.root}/AGENTS.md are not shown; read the file for the rest]"
    )
    assert folder.startswith("a\na\n")


def test_32_kib_are_shared_by_all_files(place: Place) -> None:
    place.write("AGENTS.md", "r" * 99 + "\n" + ("r" * 99 + "\n") * 200)
    place.write("a/AGENTS.md", ("a" * 99 + "\n") * 200)
    files = place.files("a")
    contents = [text_of(fact.content) for fact in instructed(files.look([]))]
    assert 32_000 < sum(map(size, contents)) <= 32 * 1024
    assert [one.whole for one in files.shown] == [False, True]
    assert [one.tokens(Estimate()) for one in files.shown] == Estimate().count_all(contents)


def test_a_budget_of_zero_reads_nothing(place: Place) -> None:
    os.mkfifo(place.write("AGENTS.md", "root").with_name("AGENTS.override.md"))
    (place.user / "AGENTS.md").write_text("mine")
    assert place.files(max_bytes=0).look([]) == ()


def test_preferences_of_the_user_and_of_the_project_come_last_and_have_a_budget_of_their_own(
    place: Place,
) -> None:
    (place.user / "preferences.md").write_text("short answers\n")
    place.write(".foveal/preferences.md", "tabs\n" * 2_000)
    place.write("AGENTS.md", "root")
    files = place.files()
    root, mine, ours = looked(files)
    assert (root, mine[:9], ours[:5]) == ("root", "[foveal: ", "tabs\n")
    assert sum(size(one.content) for one in files.shown[1:]) <= 4_096
    assert looked(place.files(preferences_max_bytes=0)) == ["root"]


# ── trust ────────────────────────────────────────────────────────────────────────────────────────────────


def test_nothing_of_an_untrusted_project_is_read_and_the_question_is_asked_once(place: Place) -> None:
    place.trust.forget(place.root)
    place.write("AGENTS.md", "root")
    place.write("a/AGENTS.md", "a")
    place.write(".foveal/preferences.md", "tabs")
    (place.user / "AGENTS.md").write_text("mine")
    files = place.files()
    assert files.asks
    assert looked(files) == ["mine"]
    assert files.notes == (f"{place.root} is not trusted yet: its instructions are not read",)
    assert files.for_paths(["a/x.py"]) == ()
    place.trust.trust(place.root, yes=False)
    assert not files.asks
    assert looked(files) == ["mine"]
    assert files.notes == ()


def test_a_project_without_instructions_is_not_asked_about(place: Place) -> None:
    place.trust.forget(place.root)
    assert not place.files().asks


def test_a_change_of_trust_reloads(place: Place) -> None:
    place.trust.trust(place.root, yes=False)
    place.write("AGENTS.md", "root")
    talk = Talk(place.files())
    assert talk.turn() == []
    place.trust.trust(place.root, yes=True)
    assert sources(talk.turn(), place.root) == ["AGENTS.md"]
    place.trust.trust(place.root, yes=False)
    [withdrawn] = instructed(talk.turn())
    assert withdrawn.content == (
        f"{WITHDRAWN}{place.root}/AGENTS.md is not read, because its project is not trusted]"
    )
    assert talk.turn() == []


def test_trust_is_remembered_by_the_path_that_links_lead_to_and_by_no_other(place: Place) -> None:
    link = place.root.parent / "link"
    link.symlink_to(place.root)
    again = Trust(place.trust.path)
    assert again.trusted(link) is True
    assert again.trusted(place.root.parent) is None
    assert again.trusted(place.root / "a") is None
    again.trust(link, yes=False)
    assert place.trust.trusted(place.root) is False
    assert os.stat(place.trust.path).st_mode & 0o077 == 0


@pytest.mark.parametrize("text", ["", "no json", '{"projects": 3}', '{"projects": {"/": "yes"}}'])
def test_a_file_of_trust_that_makes_no_sense_trusts_nobody(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trust.json"
    path.write_text(text)
    assert Trust(path).trusted(Path("/")) is None
    Trust(path).trust(tmp_path, yes=True)
    assert Trust(path).trusted(tmp_path) is True


# ── changes while a session lives ────────────────────────────────────────────────────────────────────────


def test_nothing_is_said_twice(place: Place) -> None:
    place.write("AGENTS.md", "root\x1b")
    talk = Talk(place.files())
    assert len(talk.turn()) == 2  # the file, and a note about what is odd in it
    assert talk.turn() == []
    assert place.files().look(talk.log) == ()  # nor in the next process


def test_a_changed_file_replaces_its_older_version_in_its_place(place: Place) -> None:
    place.write("AGENTS.md", "one")
    talk = Talk(place.files())
    talk.turn()
    place.write("AGENTS.md", "two")
    [second] = instructed(talk.turn())
    assert (second.replaces, second.source) == (0, f"{place.root}/AGENTS.md")
    place.write("AGENTS.md", "three")
    [third] = instructed(talk.turn())
    assert third.replaces == talk.log.index(Event(2, second))


def test_an_override_that_appears_replaces_the_file_beside_it(place: Place) -> None:
    place.write("AGENTS.md", "standard")
    talk = Talk(place.files())
    talk.turn()
    override = place.write("AGENTS.override.md", "override")
    [fact] = instructed(talk.turn())
    assert (fact.source, fact.replaces) == (str(override), 0)
    override.unlink()
    [fact] = instructed(talk.turn())
    assert (fact.source, fact.replaces) == (f"{place.root}/AGENTS.md", 2)


def test_a_deleted_file_is_announced_once_and_comes_back_in_its_place(place: Place) -> None:
    path = place.write("AGENTS.md", "root")
    talk = Talk(place.files())
    talk.turn()
    path.unlink()
    assert talk.turn() == [
        Instructed(content=f"{WITHDRAWN}{path} was deleted]", source=str(path), replaces=0)
    ]
    assert talk.turn() == []
    path.write_text("again")
    [fact] = instructed(talk.turn())
    assert (text_of(fact.content).rpartition("\n")[2], fact.replaces) == ("again", 2)


def test_a_file_that_appears_later_is_added_at_the_end(place: Place) -> None:
    place.write("a/AGENTS.md", "a")
    talk = Talk(place.files("a"))
    talk.turn()
    place.write("AGENTS.md", "root")
    [fact] = instructed(talk.turn())
    assert (fact.source, fact.replaces) == (f"{place.root}/AGENTS.md", None)


def test_after_a_rewind_the_files_are_compared_with_what_is_shown_then(place: Place) -> None:
    place.write("AGENTS.md", "one")
    talk = Talk(place.files())
    talk.turn()  # e0 and e1
    place.write("AGENTS.md", "two")
    talk.turn()  # e2 and e3
    talk.add(Rewound(to=1))
    [fact] = instructed(talk.turn())
    assert fact.replaces == 0
    talk.add(Rewound(to=-1))
    [fact] = instructed(talk.turn())
    assert fact.replaces is None


def test_files_that_two_processes_added_at_once_are_shown_once_in_the_end(place: Place) -> None:
    place.write("AGENTS.md", "root")
    talk = Talk(place.files())
    talk.add(*place.files().look([]))
    talk.add(*place.files().look([]))
    [fact] = instructed(talk.turn())
    assert (fact.replaces, text_of(fact.content)[: len(WITHDRAWN)]) == (0, WITHDRAWN)
    assert talk.turn() == []


def test_a_session_that_goes_on_in_another_project_leaves_the_instructions_of_the_first(
    place: Place, tmp_path: Path
) -> None:
    place.write("AGENTS.md", "first")
    talk = Talk(place.files())
    talk.turn()
    other = Place(tmp_path.resolve() / "other")
    other.write("AGENTS.md", "second")
    talk.files = other.files()
    added, withdrawn = instructed(talk.turn())
    assert (added.source, added.replaces) == (f"{other.root}/AGENTS.md", None)
    assert withdrawn.content == f"{WITHDRAWN}{place.root}/AGENTS.md is not used any more]"


# ── files that are touched ───────────────────────────────────────────────────────────────────────────────


def test_a_file_in_another_folder_brings_the_instructions_of_that_folder_once(place: Place) -> None:
    place.write("AGENTS.md", "root")
    place.write("lib/AGENTS.md", "lib")
    place.write("lib/deep/AGENTS.md", "deep")
    talk = Talk(place.files("src"))
    talk.turn()
    assert sources(talk.touch("../lib/deep/x.py", "../lib/deep/y.py"), place.root) == [
        "lib/AGENTS.md",
        "lib/deep/AGENTS.md",
    ]
    assert talk.touch("../lib/deep/z.py") == []
    assert talk.turn() == []
    assert Talk(place.files("src")).files.look(talk.log) == ()  # the next process knows them too
    assert talk.touch(str(place.root / "lib")) == []


def test_instructions_that_a_rewind_took_away_come_again(place: Place) -> None:
    place.write("lib/AGENTS.md", "lib")
    talk = Talk(place.files())
    talk.turn()
    assert len(talk.touch("lib/x.py")) == 1
    talk.add(Rewound(to=0))
    talk.turn()
    assert sources(talk.touch("lib/x.py"), place.root) == ["lib/AGENTS.md"]


def test_touched_files_move_nothing_that_stands_before_them(place: Place) -> None:
    place.write("AGENTS.md", "root\n" * 150)
    place.write("lib/AGENTS.md", "lib\n" * 200)
    talk = Talk(place.files(max_bytes=1_200))
    talk.turn()
    [fact] = instructed(talk.touch("lib/x.py"))
    assert fact.replaces is None
    assert "lines of" in text_of(fact.content)
    assert talk.turn() == []
    assert sum(size(one.content) for one in talk.files.shown) <= 1_200


def test_a_touched_file_notices_no_change_elsewhere_before_the_next_turn(place: Place) -> None:
    place.write("AGENTS.md", "one")
    place.write("lib/AGENTS.md", "lib")
    talk = Talk(place.files())
    talk.turn()
    place.write("AGENTS.md", "two")
    assert sources(talk.touch("lib/x.py"), place.root) == ["lib/AGENTS.md"]
    assert sources(talk.turn(), place.root) == ["AGENTS.md"]


def test_files_outside_the_project_and_names_that_are_none_bring_nothing(place: Place) -> None:
    (place.root.parent / "AGENTS.md").write_text("above")
    (place.root.parent / "beside").mkdir()
    (place.root.parent / "beside" / "AGENTS.md").write_text("beside")
    (place.root / "out").symlink_to("../beside")
    talk = Talk(place.files())
    talk.turn()
    assert talk.touch("/etc/passwd", "../beside/x", "out/x", "\0", "x" * 5_000, "", "~nobody/x", "/") == []


def test_paths_are_found_in_arguments_and_in_the_words_of_a_command_and_flags_are_not_paths() -> None:
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
def test_arguments_that_make_no_sense_have_no_paths(broken: str) -> None:
    assert paths_in(broken) == ()


def test_the_number_of_paths_in_a_call_is_bounded() -> None:
    assert len(paths_in({"command": " ".join(f"f{number}" for number in range(5_000))})) == 200


# ── in a session ─────────────────────────────────────────────────────────────────────────────────────────


def run(test: Callable[[Session], Awaitable[None]], **settings: Any) -> None:
    async def inner() -> None:
        session = await Session.open(MemoryStore(), "demo", model="gpt-4.1", **settings)
        await test(session)

    asyncio.run(inner())


async def shown(session: Session) -> list[str]:
    fitted = await session.fit()
    return [text_of(fact.content) for fact in fitted.facts if isinstance(fact, Instructed)]


def test_in_a_session_instructions_stand_in_front_as_system_text_exactly_once(place: Place) -> None:
    place.write("AGENTS.md", "rule one")
    files = place.files()

    async def test(session: Session) -> None:
        for number in range(3):
            await session.append(*await files.refresh(session))
            await session.append(UserSaid(content=f"{number}"), ModelSaid(content="yes"))
        assert (await session.fit()).system.count("rule one") == 1
        assert len(await shown(session)) == 1

    run(test)


def test_after_a_compaction_instructions_are_there_once_in_their_newest_version(place: Place) -> None:
    place.write("AGENTS.md", "rule one")
    place.write("lib/AGENTS.md", "rule of lib")
    files = place.files()

    async def test(session: Session) -> None:
        await session.equip([{"name": "read"}])
        await session.append(
            *await files.refresh(session), UserSaid(content="begin"), ModelSaid(content="yes")
        )
        await session.append(*await files.touched(session, ["lib/x.py"]))
        for number in range(6):
            await session.append(UserSaid(content=f"{number} " * 2_000), ModelSaid(content="yes"))
        last = session.last
        await session.append(Compacted(first=0, last=last, summary="what was"))
        place.write("AGENTS.md", "rule two")
        await session.append(*await files.refresh(session), UserSaid(content="go on"))
        one, lib = await shown(session)
        assert one.endswith("rule two")
        assert lib.endswith("rule of lib")
        assert (await session.fit()).tools == [{"name": "read"}]
        assert await files.refresh(session) == ()
        (place.root / "AGENTS.md").unlink()
        await session.append(*await files.refresh(session))
        assert [text.startswith(WITHDRAWN) for text in await shown(session)] == [True, False]
        assert await files.refresh(session) == ()

    run(test)


def test_a_file_that_may_not_be_read_any_more_is_not_restored_after_a_compaction(place: Place) -> None:
    place.write("AGENTS.md", "rule one")
    files = place.files()

    async def test(session: Session) -> None:
        await session.append(
            *await files.refresh(session), UserSaid(content="x " * 3_000), ModelSaid(content="yes")
        )
        place.trust.trust(place.root, yes=False)
        await session.append(*await files.refresh(session), UserSaid(content="go on"))
        await session.append(Compacted(first=1, last=session.last - 1, summary="what was"))
        [text] = await shown(session)
        assert "rule one" not in text
        assert await files.refresh(session) == ()

    run(test)


def test_the_beginning_of_the_prompt_moves_only_when_a_file_changes(place: Place) -> None:
    place.write("AGENTS.md", "rule one")
    place.write("lib/AGENTS.md", "rule of lib")
    files = place.files()

    async def test(session: Session) -> None:
        before: list[Any] = []
        for number in range(4):
            await session.append(*await files.refresh(session))
            await session.append(UserSaid(content=f"{number}"), ModelSaid(content="yes"))
            if number == 1:
                await session.append(*await files.touched(session, ["lib/x.py"]))
            if number == 2:
                place.write("new/AGENTS.md", "not touched")
            messages = (await session.fit()).to_openai()
            assert messages[: len(before)] == before
            before = messages

    run(test)


def test_a_rewound_and_a_forked_session_show_each_file_once(place: Place) -> None:
    place.write("AGENTS.md", "one")
    files = place.files()

    async def test(session: Session) -> None:
        await session.append(*await files.refresh(session), UserSaid(content="a"), ModelSaid(content="b"))
        at = session.last
        place.write("AGENTS.md", "two")
        await session.append(*await files.refresh(session), UserSaid(content="c"), ModelSaid(content="d"))
        await session.rewind(at)
        await session.append(*await files.refresh(session))
        fork = await session.fork("other")
        fresh = place.files()
        assert await fresh.refresh(fork) == ()
        for each in (session, fork):
            assert [text.endswith("two") for text in await shown(each)] == [True]

    run(test)


def test_what_is_standing_is_what_the_view_shows(place: Place) -> None:
    place.write("AGENTS.md", "one")
    files = place.files()

    async def test(session: Session) -> None:
        for text in ("one", "two", "three"):
            place.write("AGENTS.md", text)
            await session.append(*await files.refresh(session), UserSaid(content="a"))
            held = instruction_set(await session.events())
            assert [one.content for one in held.files.values()] == await shown(session)
            assert held.doubles == ()

    run(test)


def test_instructions_that_come_between_results_part_no_call_from_its_result(place: Place) -> None:
    place.write("lib/AGENTS.md", "lib")
    files = place.files()
    calls = (Call(id="c1", name="read", arguments="{}"), Call(id="c2", name="read", arguments="{}"))

    async def test(session: Session) -> None:
        await session.append(UserSaid(content="read"), ModelSaid(content=calls))
        await session.append(ToolReturned(call_id="c1", content="x"))
        await session.append(*await files.touched(session, ["lib/x.py"]))
        await session.append(ToolReturned(call_id="c2", content="y"))
        fitted = await session.fit()
        assert [kind(fact) for fact in fitted.facts[-3:]] == ["tool_returned", "tool_returned", "instructed"]
        assert check_chat(fitted.to_openai()) == []
        assert check_anthropic(fitted.to_anthropic()) == []

    run(test)
