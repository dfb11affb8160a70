"""Protected paths: by name, by link, in words of commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from foveal.agent.permissions.protected_paths import protected_part, protected_text, protected_word
from foveal.agent.tools import Workspace


@pytest.mark.parametrize(
    ("path", "part"),
    [
        (".git/config", ".git/config"),
        (".git/hooks/pre-commit", ".git/hooks"),
        (".git", ".git"),
        (".GIT/Hooks/x", ".GIT/Hooks"),
        ("sub/.git/config", "sub/.git/config"),
        ("x/../.git/config", ".git/config"),
        (".g\u200cit/config", ".g⟨U+200C⟩it/config"),
        ("foveal.toml", "foveal.toml"),
        (".foveal/x", ".foveal/x"),
        ("AGENTS.md", "AGENTS.md"),
        ("docs/agents.MD", "docs/agents.MD"),
        (".mcp.json", ".mcp.json"),
        (".vscode/tasks.json", ".vscode/tasks.json"),
        (".idea/x", ".idea/x"),
        (".bashrc", ".bashrc"),
        (".zshenv", ".zshenv"),
        ("link/hooks/x", ".git/hooks"),
        ("hooks.txt", ".git/hooks"),
        ("a.py", ""),
        (".gitignore", ""),
        (".github/workflows/ci.yml", ""),
        ("git/config", ""),
        ("agents.md.py", ""),
    ],
)
def test_a_path_is_protected_by_name_and_through_links(path: str, part: str, tmp_path: Path) -> None:
    root = tmp_path.resolve()
    (root / "link").symlink_to(".git")  # .git does not exist
    (root / "hooks.txt").symlink_to(".git/hooks/pre-commit")
    assert protected_part(path, root) == part


def test_links_are_resolved_before_the_folder_above(tmp_path: Path) -> None:
    root = tmp_path.resolve()
    (root / ".git/objects").mkdir(parents=True)
    (root / "lnk").symlink_to(".git/objects")
    assert protected_part("lnk/../hooks/pre-commit", root) == ".git/hooks"
    assert protected_part("lnk/../../a", root) == ""
    assert protected_word(["tee", "lnk/../config"], root) == ".git/config"
    assert Workspace(root).resolve("lnk/../hooks/pre-commit") == root / ".git/hooks/pre-commit"


def test_what_a_protected_name_leads_to_is_protected(tmp_path: Path) -> None:
    root = tmp_path.resolve()
    for name in ("gitdata", "shared", "sub", ".bare/worktrees/tree", "tree", "outside"):
        (root / "work" / name).mkdir(parents=True)
    work = root / "work"
    (work / "sub/.git").symlink_to("../gitdata")
    (work / ".vscode").symlink_to("shared")
    (work / "tree/.git").write_text(f"gitdir: {work}/.bare/worktrees/tree\n")
    (work / ".bare/worktrees/tree/commondir").write_text("../..\n")
    (work / ".idea").symlink_to(root)
    assert {
        path: protected_part(path, work) for path in ("gitdata/config", "shared/x", ".bare/config", "a")
    } == {
        "gitdata/config": "gitdata",
        "shared/x": "shared",
        ".bare/config": ".bare",
        "a": "",
    }


def test_the_user_s_own_folders_and_start_files_are_protected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path.resolve()
    monkeypatch.setenv("HOME", str(root))
    monkeypatch.setenv("XDG_STATE_HOME", str(root / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(root / "settings"))
    work = root / "work"
    assert protected_part("~/.profile", work) == str(root / ".profile")
    assert protected_part("../state/foveal/permissions.json", work) == str(root / "state/foveal")
    assert protected_part("../settings/foveal/x", work) == str(root / "settings/foveal")
    assert protected_part("../other", work) == ""


def test_a_project_below_a_protected_name_is_not_protected_as_a_whole(tmp_path: Path) -> None:
    root = (tmp_path / ".config/git").resolve()
    assert protected_part("ignore", root) == ""
    assert protected_part("../git/ignore", root) == ""
    assert protected_part(".git/config", root) == ".git/config"


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["cp", "x", ".git/hooks/x"], ".git/hooks"),
        (["git", "log", "--output=.git/config"], ".git/config"),
        (["sort", "-o.git/config"], ".git/config"),
        (["scp", "a:.git/config"], ".git/config"),
        (["dd", "of=.bashrc"], ".bashrc"),
        (["ls", "src"], ""),
    ],
)
def test_words_of_a_command_name_protected_paths(words: list[str], part: str, tmp_path: Path) -> None:
    assert protected_word(words, tmp_path) == part
    assert protected_text(f"x=1; {' '.join(words)} > $y", tmp_path) == part
