"""Protected paths: files that start programs, or that change what an agent may do.

1. Writing them, and commands that name them, always ask, whatever rules there are.
2. A path is protected by its name at any depth, whether it exists or not, and whatever the case of its letters.
3. It is checked as written and with all its links resolved, in the order in which the kernel resolves them.
4. What a protected link, or the file `.git` of a worktree, leads to inside the workspace is protected too.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from foveal.config.project import resolve_links
from foveal.core.wire.safe_print import visible
from foveal.user_paths import config_folder, state_folder

_PROTECTED_NAMES: Final = frozenset(
    {
        *(".git", ".gitconfig", ".foveal", "foveal.toml", "agents.md", ".mcp.json", ".envrc", ".husky"),
        *(".vscode", ".idea", ".zed", ".cursor", ".fleet", ".devcontainer", ".claude", ".codex", ".gemini"),
        *(".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".bash_aliases", ".profile", ".inputrc"),
        *(".zshrc", ".zshenv", ".zprofile", ".zlogin", ".zlogout", ".kshrc", ".cshrc", ".tcshrc", ".login"),
        *(".logout", ".xprofile", ".xsessionrc", ".pam_environment", ".pythonrc"),
        *(".ssh", ".netrc", ".npmrc", ".pypirc"),
    }
)
"""Names of files and folders; what lies in such a folder is protected too. All of `.git` counts, because
`.git/config`, `.git/hooks`, `.git/commondir` and a `.git` that is a file all choose programs that git starts."""
_PROTECTED_PAIRS: Final = frozenset({(".config", "fish"), (".config", "git"), (".config", "autostart")})
_MAX_GIT_FILE_BYTES: Final = 8_192
"""Most bytes that are read of a `.git` or `commondir` file, which hold one path."""
_WORD_PARTS: Final = re.compile(r"[=:,@;]")
_TEXT_PARTS: Final = re.compile(r"[\s;&|()<>`$\"'{}\\=:,@]+")


def protected_part(path: str, root: Path) -> str:
    """Return the part of a path that is protected, "" if none is; a relative path begins at `root`."""
    return _protected_part(path, root, _led_to(root))


def protected_files(root: Path) -> list[str]:
    """Return the protected files that exist in a folder and in the folders directly in it.

    What links and `.git` files among them lead to is included if it lies in the folder."""
    entries = _entries(root)
    for entry in list(entries):
        if entry.is_dir(follow_symlinks=False) and not is_protected_name(entry.name):
            entries += _entries(entry.path)
    named = [entry.path for entry in entries if is_protected_name(entry.name)]
    return [*named, *(target for path in named for target in _targets(path, root))]


def is_protected_name(name: str) -> bool:
    """Return whether files and folders of this name are protected."""
    return _fold(name) in _PROTECTED_NAMES


def is_git_link(folder: Path) -> bool:
    """Return whether the `.git` of a folder is a link, or a file that leads to the folder itself or one above."""
    path = os.path.join(folder, ".git")
    return os.path.islink(path) or any(
        folder.is_relative_to(os.path.realpath(each)) for each in _git_leads(path)
    )


def protected_word(words: Iterable[str], root: Path) -> str:
    """Return the first protected path that a word of a command names, also in `--option=path` and `-opath`."""
    led_to = _led_to(root)
    for word in words:
        parts = {word, *_WORD_PARTS.split(word)}
        parts |= {word[2:]} if word.startswith("-") else set()
        for part in sorted(parts):
            if part and (found := _protected_part(part, root, led_to)):
                return found
    return ""


def protected_text(text: str, root: Path) -> str:
    """Return the first protected path in a text that is not parsed; it may find too much."""
    return protected_word(dict.fromkeys(_TEXT_PARTS.split(text)), root)


def _protected_part(path: str, root: Path, led_to: Iterable[str]) -> str:
    try:
        written = os.path.normpath(os.path.join(root, os.path.expanduser(path)))
        # Some programs remove `..` before they resolve links, so both orders count.
        places = dict.fromkeys((written, resolve_links(path, root), os.path.realpath(written)))
    except (OSError, RuntimeError, ValueError):
        return visible(path)  # a path that cannot be checked counts as protected
    # The names above the workspace are the user's own: a project in ~/.config/git is not protected as a whole.
    for place in places:
        if part := _protected_name(_below(place, root)) or _own_folder(place):
            return part
        if part := next((each for each in led_to if Path(place).is_relative_to(each)), ""):
            return visible(os.path.relpath(part, root))
    return ""


def _led_to(root: Path) -> list[str]:
    """Return the protected places that have no protected name themselves."""
    real_root = Path(os.path.realpath(root))
    return [path for path in protected_files(real_root) if not _protected_name(_below(path, real_root))]


def _targets(path: str, root: Path) -> Iterator[str]:
    """Yield the places inside a folder to which a protected path leads."""
    inside = [path, *(entry.path for entry in _entries(path) if entry.is_symlink())]
    for each in (*inside, *_git_leads(path)):
        real = os.path.realpath(each)
        if real != path and root in Path(real).parents:
            yield real


def _git_leads(path: str) -> list[str]:
    """Return the folders that a `.git` file or folder names: its repository, and the one it shares."""
    if _fold(os.path.basename(path)) != ".git":
        return []
    folder = os.path.dirname(path)
    repository = path if os.path.isdir(path) else _named_in(path, "gitdir:", folder)
    shared = _named_in(os.path.join(repository, "commondir"), "", repository) if repository else ""
    return [each for each in (repository, shared) if each]


def _named_in(file: str, prefix: str, folder: str) -> str:
    """Return the path in a small file of git, "" if there is none; a relative path begins at `folder`."""
    with suppress(OSError, ValueError):
        handle = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(handle, "rb") as opened:
            text = os.fsdecode(opened.read(_MAX_GIT_FILE_BYTES) or b"")
        if text.startswith(prefix) and "\0" not in text:
            return os.path.join(folder, text.removeprefix(prefix).strip())
    return ""


def _entries(folder: Path | str) -> list[os.DirEntry[str]]:
    """Return the entries of a folder, none if it cannot be read."""
    with suppress(OSError), os.scandir(folder) as found:
        return list(found)
    return []


def _below(path: str, root: Path) -> tuple[str, ...]:
    parts = Path(path).parts
    above = len(root.parts) if Path(path).is_relative_to(root) else 0
    return parts[above:]


def _protected_name(parts: tuple[str, ...]) -> str:
    names = [_fold(part) for part in parts]
    for at, name in enumerate(names):
        if name in _PROTECTED_NAMES or tuple(names[at : at + 2]) in _PROTECTED_PAIRS:
            return visible(os.path.join(*parts[: at + 2]))
    return ""


def _own_folder(path: str) -> str:
    """Return Foveal's own folder of settings or state in which a path lies."""
    for folder in (config_folder(), state_folder()):
        if Path(path).is_relative_to(folder) or Path(path).is_relative_to(os.path.realpath(folder)):
            return visible(str(folder))
    return ""


def _fold(name: str) -> str:
    """Return a name as file systems compare it that ignore case, composition and invisible characters."""
    text = unicodedata.normalize("NFKC", name).casefold()
    kept = "".join(char for char in text if unicodedata.category(char) != "Cf")
    return kept.rstrip(". ") or kept  # Windows ignores blanks and dots at the end
