"""Protected paths: by name, by link, in words of commands."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from foveal.agent.permissions.protected_paths import (
    ProtectedFiles,
    protected_files,
    protected_in,
    protected_part,
)
from foveal.agent.tools import Workspace, call_facts


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
    assert protected_in(["tee lnk/../config"], root) == ".git/config"
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
    ("text", "part"),
    [
        ("cp x .git/hooks/x", ".git/hooks"),
        ("git log --output=.git/config", ".git/config"),
        ("sort -o.git/config", ".git/config"),
        ("scp a:.git/config b", ".git/config"),
        ("dd of=.bashrc", ".bashrc"),
        ("x=1; echo evil > .envrc; y", ".envrc"),
        ("python3 -c \"open('.envrc','w').write('x')\"", ".envrc"),
        ("python3 -c 'open(\"a/b/.git/config\")'", "a/b/.git/config"),
        ("node -e \"require('fs').writeFileSync(`.vscode/tasks.json`, '')\"", ".vscode/tasks.json"),
        ("python3 - <<'E'\nPath('CLAUDE.md').touch()\nE", "CLAUDE.md"),
        ("jq '.[\".claude/settings.json\"]' x", ".claude/settings.json"),
        ("tee .en''vrc", ".envrc"),
        ('tee ".en"vrc', ".envrc"),
        ("tee .en\\vrc", ".envrc"),
        ("echo evil >> AGENTS''.md", "AGENTS.md"),
        ('for x in a; do echo evil > ".zsh"rc; done', ".zshrc"),
        ("ls src", ""),
    ],
)
def test_a_command_names_protected_paths_in_words_quotes_and_code(
    text: str, part: str, tmp_path: Path
) -> None:
    assert call_facts("run", {"command": text}, Workspace(tmp_path)).protected == part


def test_files_are_found_at_any_depth_and_not_in_what_tools_fill(tmp_path: Path) -> None:
    names = ["a/b/c/.git/config", "a/GEMINI.md", "a/b/AGENTS.override.md", ".config/fish/x", "a/.idea/x"]
    for name in (*names, "node_modules/pkg/.vscode/x", "a/.venv/lib/.npmrc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = sorted(path.removeprefix(f"{tmp_path}/") for path in protected_files(tmp_path))
    assert found == [".config/fish", "a/.idea", "a/GEMINI.md", "a/b/AGENTS.override.md", "a/b/c/.git"]


def test_new_protected_files_are_renamed_and_links_are_made_again(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".vscode").symlink_to("shared")
    (tmp_path / "AGENTS.md").write_text("mine")
    before = ProtectedFiles(tmp_path)
    (tmp_path / ".vscode").unlink()
    (tmp_path / ".vscode").mkdir()
    (tmp_path / ".git/commondir").write_text("/elsewhere")
    (tmp_path / ".git/COMMIT_EDITMSG").write_text("fine")
    (tmp_path / "a/b/.git/hooks").mkdir(parents=True)
    (tmp_path / "a/b").chmod(0o555)
    (tmp_path / ".envrc.set-aside").write_text("older")
    (tmp_path / ".envrc").write_text("evil")
    assert sorted(before.set_new_aside()) == [
        (".envrc", ".envrc.set-aside-2"),
        (".git/commondir", ".git/commondir.set-aside"),
        (".vscode", ".vscode.set-aside"),
        ("a/b/.git", "a/b/.git.set-aside"),
    ]
    assert (tmp_path / ".vscode").readlink() == Path("shared")
    assert (tmp_path / "AGENTS.md").read_text() == "mine"
    assert (tmp_path / "a/b").stat().st_mode & 0o777 == 0o555
    assert before.set_new_aside() == []
    (tmp_path / "a/b").chmod(0o755)


def test_what_is_set_aside_lies_in_the_folder_whatever_a_running_command_exchanges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, home = tmp_path / "work", tmp_path / "home"
    (root / "sub").mkdir(parents=True)
    (home / ".ssh").mkdir(parents=True)
    (root / ".vscode").symlink_to("shared")
    (root / "a").mkdir()
    (root / "a/CLAUDE.md").symlink_to("../NOTES.md")
    before = ProtectedFiles(root)
    for name in ("sub/.ssh", ".idea"):
        (root / name).mkdir()
    (root / "a/CLAUDE.md").unlink()
    rename, paths = os.rename, iter(["sub", "a"])

    def exchange_and_rename(*args: Any, **how: Any) -> None:
        for name in paths:
            rename(root / name, root / f"old-{name}")
            (root / name).symlink_to(home)
        (root / ".idea").rmdir()
        rename(*args, **how)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", exchange_and_rename)
        assert before.set_new_aside() == []
    assert [path.name for path in home.iterdir()] == [".ssh"]
    assert before.set_new_aside() == [("old-sub/.ssh", "old-sub/.ssh.set-aside")]


def test_a_folder_that_became_unreadable_is_set_aside() -> None:
    user = os.geteuid()
    with TemporaryDirectory(prefix="foveal-test-") as folder:
        root = Path(folder)
        os.chown(root, user or 65534, -1)
        os.seteuid(user or 65534)  # root reads every folder
        try:
            for name in ("mine", "made"):
                (root / name).mkdir()
            (root / "mine").chmod(0o300)
            before = ProtectedFiles(root)
            (root / "made/.envrc").touch()
            (root / "made").chmod(0o300)
            assert before.set_new_aside() == [("made", "made.set-aside")]
        finally:
            os.seteuid(user)
            for path in root.iterdir():
                path.chmod(0o700)
