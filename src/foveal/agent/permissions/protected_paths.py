"""Protected paths: files that start programs, or that change what an agent may do.

1. Writing them always asks, whatever rules there are. So does a command that names them without a sandbox.
2. In a sandbox no command changes them: those that exist are read-only (see `sandbox.file_access`), and those that
   a command creates are renamed when it ends, before anything else happens (`ProtectedFiles`).
3. A path is protected by its name at any depth, whether it exists or not, and whatever the case of its letters.
4. It is checked as written and with all its links resolved, in the order in which the kernel resolves them.
5. What a protected link, or the file `.git` of a worktree, leads to inside the workspace is protected too.
"""

from __future__ import annotations

import itertools
import os
import re
import stat
import time
import unicodedata
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from foveal.config.project import open_folder, resolve_links
from foveal.core.wire.safe_print import visible
from foveal.user_paths import config_folder, state_folder

_PROTECTED_NAMES: Final = frozenset(
    {
        *(".git", ".gitconfig", ".foveal", "foveal.toml", ".mcp.json", ".envrc", ".husky"),
        *("agents.md", "agents.override.md", "claude.md", "claude.local.md", "gemini.md"),
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
REBUILT_FOLDERS: Final = frozenset(
    {
        *(
            "node_modules",
            ".venv",
            "venv",
            "site-packages",
            "__pycache__",
            ".tox",
            ".nox",
            ".gradle",
            ".next",
        ),
        *(".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".turbo", ".parcel-cache"),
    }
)
"""Folders that a tool fills and can fill again. Files in them are neither looked for nor backed up: packages bring
files with protected names, and nothing reads them there."""
MAX_WALKED_ENTRIES: Final = 100_000
"""Most files and folders of a workspace that are looked at, those nearest to its root first."""
ASIDE_SUFFIX: Final = ".set-aside"
"""Added to the name of a protected file that a command has created; nothing reads it under this name."""
_GIT_STATE: Final = re.compile(
    r"[A-Z_]+(\.lock)?|index(\.lock)?|next-index-\d+(\.lock)?|sharedindex\..*|packed-refs(\.lock|\.new)?"
    r"|objects|refs|logs|sequencer|rebase-(merge|apply)|gc\.(log|pid)(\.lock)?|.*"
    + re.escape(ASIDE_SUFFIX)
    + r"(-\d+)?"
)
"""Names in `.git` that hold commits and what is staged. All others choose programs, or another repository."""
_CLOCK_GRAIN_NS: Final = 50_000_000
"""File systems take the time of a change from a clock that is a little behind."""
_PATH_ENDS: Final = re.compile(r"[\s;&|()<>`$\"'{}\[\]\\=:,@]+")
"""Characters that end a path, in a command line and in code."""


def protected_part(path: str, root: Path) -> str:
    """Return the part of a path that is protected, "" if none is; a relative path begins at `root`."""
    return _protected_part(path, root, _led_to(root), _own_folders())


def protected_files(root: Path) -> list[str]:
    """Return the protected files that exist below a folder, and what links and `.git` files among them lead to, if
    it lies in the folder too."""
    named = [path for path in _walk(root) if path]
    return [*named, *(target for path in named for target in _targets(path, root))]


def _walk(root: Path) -> Iterator[str]:
    """Yield the paths with a protected name, and folders that cannot be read, in which such paths may lie, the
    outermost first; and "" if there were too many files."""
    waiting, walked = deque([str(root)]), 0
    while waiting:
        folder = waiting.popleft()
        holds_settings = _fold(os.path.basename(folder)) == ".config"
        try:
            with os.scandir(folder) as found:
                entries = list(found)
        except OSError as problem:
            if isinstance(problem, PermissionError) and folder != str(root):
                yield folder
            continue
        for entry in entries:
            walked += 1
            pair = (".config", _fold(entry.name))
            if is_protected_name(entry.name) or (holds_settings and pair in _PROTECTED_PAIRS):
                yield entry.path
            elif entry.name not in REBUILT_FOLDERS and entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)
        if walked > MAX_WALKED_ENTRIES:
            yield ""
            return


def repository_settings(folder: str) -> list[str]:
    """Return what in a `.git` folder stays read-only while a command commits: all but commits and the index."""
    names = [entry.name for entry in _entries(folder) if not _GIT_STATE.fullmatch(entry.name)]
    info = os.path.join(folder, "objects", "info")
    return [*(os.path.join(folder, name) for name in sorted(names)), *([info] if os.path.isdir(info) else [])]


def is_protected_name(name: str) -> bool:
    """Return whether files and folders of this name are protected."""
    return _fold(name) in _PROTECTED_NAMES


def with_protected_names(paths: Iterable[str]) -> list[str]:
    """Return those relative paths in which a name is protected, whether they exist or not."""
    return [path for path in dict.fromkeys(paths) if _protected_name(Path(path).parts)]


class SetAside(NamedTuple):
    """A protected file that a command has created, and the name that it has now."""

    path: str
    now: str


class KnownProtected(NamedTuple):
    """The protected files of a workspace at one time, as they are saved."""

    links: dict[str, str]
    """Every path, with the target of a link."""
    is_partial: bool
    """Whether some files were not looked at."""
    at_ns: int


class ProtectedFiles:
    """The protected files of a workspace before a command runs in the sandbox."""

    def __init__(self, root: Path, known: KnownProtected | None = None) -> None:
        """`known` is what another process has saved; without it, the present state counts."""
        self._root = root
        if known is None:
            self.accept_all()
        else:
            self._before, self._is_partial, self._started_ns = known

    @property
    def known(self) -> KnownProtected:
        """What is known so far, to be saved."""
        return KnownProtected(self._before, self._is_partial, self._started_ns)

    def accept_all(self) -> None:
        """Take all files that are there now for known, after a command that the user let leave the sandbox."""
        self._before, self._is_partial = _protected_state(self._root)
        self._started_ns = time.time_ns() - _CLOCK_GRAIN_NS

    def accept(self, path: str) -> None:
        """Take a file for known that the user lets a tool write, and the folders that hold it."""
        for known in (path, *map(str, Path(path).parents)):
            self._before.setdefault(known, "")

    def set_new_aside(self) -> list[SetAside]:
        """Rename the protected files that are new since then; make links again that were replaced or removed."""
        present, is_partial = _protected_state(self._root)
        new = [path for path, link in present.items() if self._before.get(path) != link]
        if self._is_partial or is_partial:  # a file may have been there without having been looked at
            new = [path for path in new if _changed_at(path) >= self._started_ns]
        outermost = [path for path in new if not any(str(above) in new for above in Path(path).parents)]
        moved = [SetAside(path, aside) for path in outermost if (aside := _rename_aside(path, self._root))]
        for path, link in self._before.items():
            if link and not os.path.lexists(path):
                folder, name = os.path.split(path)
                with (
                    suppress(OSError),
                    open_folder(folder, self._root) as opened,
                ):  # its folder can be gone too
                    os.symlink(link, name, dir_fd=opened)
        shown = [SetAside(*(os.path.relpath(name, self._root) for name in one)) for one in moved]
        return [SetAside(visible(one.path), visible(one.now)) for one in shown]


def _protected_state(root: Path) -> tuple[dict[str, str], bool]:
    """Return the protected files with the targets of those that are links, and whether some files were not looked
    at."""
    found = list(_walk(root))
    named = [path for path in found if path]
    named += [inner for path in named if is_repository(path) for inner in repository_settings(path)]
    return {path: _link_target(path) for path in named}, "" in found


def _link_target(path: str) -> str:
    """Return where a link leads, "" if it is none."""
    with suppress(OSError):
        return os.readlink(path)
    return ""


def is_repository(path: str) -> bool:
    """Return whether a path is a `.git` folder, and not a link to one."""
    return _fold(os.path.basename(path)) == ".git" and os.path.isdir(path) and not os.path.islink(path)


def _changed_at(path: str) -> int:
    """Return when a file has changed, in nanoseconds; 0 if it is gone."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return os.lstat(path).st_ctime_ns
    return 0


def _rename_aside(path: str, root: Path) -> str:
    """Rename a file below `root`; return its new path, "" if a command that still runs has just moved it, or has
    exchanged its folder for a link."""
    folder, name = os.path.split(path)
    numbers = itertools.count(2)
    aside = f"{name}{ASIDE_SUFFIX}"
    while os.path.lexists(os.path.join(folder, aside)):
        aside = f"{name}{ASIDE_SUFFIX}-{next(numbers)}"
    with suppress(FileNotFoundError, NotADirectoryError), open_folder(folder, root) as opened:
        mode = stat.S_IMODE(os.fstat(opened).st_mode)
        with suppress(PermissionError):  # it belongs to another user
            os.fchmod(opened, mode | stat.S_IRWXU)  # a command can make its folder read-only
        try:
            os.rename(name, aside, src_dir_fd=opened, dst_dir_fd=opened)
        finally:
            with suppress(PermissionError):
                os.fchmod(opened, mode)
        return os.path.join(folder, aside)
    return ""


def is_git_link(folder: Path) -> bool:
    """Return whether the `.git` of a folder is a link, or a file that leads to the folder itself or one above."""
    path = os.path.join(folder, ".git")
    return os.path.islink(path) or any(
        folder.is_relative_to(os.path.realpath(each)) for each in _git_leads(path)
    )


_STARTING_SETTING: Final = re.compile(
    r"^\s*(\[(include|filter|pager)|(fsmonitor|pager|external|textconv|command|program|process|clean|hookspath)\b)",
    re.I | re.M,
)
_HOOK_FOLDER: Final = re.compile(r"^\s*hookspath\s*=\s*\"?([^\"\n]+)", re.I | re.M)
_MAX_GIT_CONFIG_BYTES: Final = 1_000_000


def configures_programs(root: Path) -> bool:
    """Return whether the repository of a folder, or a submodule of it, may start a program when git only reads."""
    folders = repository_folders(root)
    has_submodules = any(os.path.isdir(os.path.join(folder, "modules")) for folder in folders)
    return has_submodules or any(map(_STARTING_SETTING.search, _git_settings(folders)))


def hook_names(root: Path) -> list[str]:
    """Return the hooks of the repository of a folder that a commit would run."""
    folders = repository_folders(root)
    named = [found for text in _git_settings(folders) for found in _HOOK_FOLDER.findall(text)]
    places = [os.path.join(root, os.path.expanduser(each.strip())) for each in named]
    places = places or [os.path.join(folder, "hooks") for folder in folders]
    found = {
        entry.name for place in places for entry in _entries(place) if not entry.name.endswith(".sample")
    }
    return sorted(found)


def _git_settings(folders: Iterable[str]) -> Iterator[str]:
    """Yield the texts of the settings in folders of a repository."""
    for folder in folders:
        for name in ("config", "config.worktree"):
            with suppress(OSError):
                yield Path(folder, name).read_bytes()[:_MAX_GIT_CONFIG_BYTES].decode("utf-8", "replace")


def repository_folders(root: Path) -> list[str]:
    """Return the folder of the repository of a folder and the one it shares, none if it is in no repository."""
    places = (os.path.join(folder, ".git") for folder in (root, *root.parents))
    return _git_leads(next((place for place in places if os.path.lexists(place)), ""))


def protected_in(texts: Iterable[str], root: Path) -> str:
    """Return the first protected path in texts: a command line, and the words that bash makes of it."""
    led_to, own = _led_to(root), _own_folders()
    for part in dict.fromkeys(part for text in texts for part in paths_in(text)):
        if found := _protected_part(part, root, led_to, own):
            return found
    return ""


def paths_in(text: str) -> Iterator[str]:
    """Yield everything in a text that can be a path, also in quotes, code and options; `-opath` is `path` too."""
    for part in filter(None, _PATH_ENDS.split(text)):
        yield part
        if part.startswith("-") and len(part) > 2:
            yield part[2:]


def _protected_part(path: str, root: Path, led_to: Iterable[str], own: Mapping[str, Path]) -> str:
    try:
        written = os.path.normpath(os.path.join(root, os.path.expanduser(path)))
        # Some programs remove `..` before they resolve links, so both orders count.
        places = dict.fromkeys((written, resolve_links(path, root), os.path.realpath(written)))
    except (OSError, RuntimeError, ValueError):
        return visible(path)  # a path that cannot be checked counts as protected
    # The names above the workspace are the user's own: a project in ~/.config/git is not protected as a whole.
    for place in places:
        if part := _protected_name(_below(place, root)):
            return part
        if folder := next((folder for at, folder in own.items() if Path(place).is_relative_to(at)), None):
            return visible(str(folder))
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


def _own_folders() -> dict[str, Path]:
    """Return Foveal's own folders of settings and state, by their paths as written and with links resolved."""
    return {
        path: folder
        for folder in (config_folder(), state_folder())
        for path in (str(folder), os.path.realpath(folder))
    }


def _fold(name: str) -> str:
    """Return a name as file systems compare it that ignore case, composition and invisible characters."""
    if name.isascii() and name.isprintable():
        return name.lower().rstrip(". ") or name
    text = unicodedata.normalize("NFKC", name).casefold()
    kept = "".join(char for char in text if unicodedata.category(char) != "Cf")
    return kept.rstrip(". ") or kept  # Windows ignores blanks and dots at the end
