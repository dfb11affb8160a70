"""Protected paths: files that start programs, or that change what an agent may do.

1. Writing them, and commands that name them, always ask, whatever rules there are.
2. A path is protected by its name at any depth, whether it exists or not, and whatever the case of its letters.
3. It is checked as written and with all its links resolved.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from foveal.core.wire.safe_print import visible
from foveal.project import config_folder, state_folder

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
_WORD_PARTS: Final = re.compile(r"[=:,@;]")
_TEXT_PARTS: Final = re.compile(r"[\s;&|()<>`$\"'{}\\=:,@]+")


def protected_part(path: str, root: Path) -> str:
    """Return the part of a path that is protected, "" if none is; a relative path begins at `root`."""
    try:
        written = os.path.normpath(os.path.join(root, os.path.expanduser(path)))
        real = os.path.realpath(written)
    except (OSError, RuntimeError, ValueError):
        return visible(path)  # a path that cannot be checked counts as protected
    # The names above the workspace are the user's own: a project in ~/.config/git is not protected as a whole.
    for each in (written, real):
        if part := _protected_name(_below(each, root)) or _own_folder(each):
            return part
    return ""


def is_protected_name(name: str) -> bool:
    """Return whether files and folders of this name are protected."""
    return _fold(name) in _PROTECTED_NAMES


def protected_word(words: Iterable[str], root: Path) -> str:
    """Return the first protected path that a word of a command names, also in `--option=path` and `-opath`."""
    for word in words:
        parts = {word, *_WORD_PARTS.split(word)}
        parts |= {word[2:]} if word.startswith("-") else set()
        for part in sorted(parts):
            if part and (found := protected_part(part, root)):
                return found
    return ""


def protected_text(text: str, root: Path) -> str:
    """Return the first protected path in a text that is not parsed; it may find too much."""
    return protected_word(dict.fromkeys(_TEXT_PARTS.split(text)), root)


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
