"""The contract of a sandbox, and which files its commands can read and write.

1. The innermost rule above a path decides. Without a rule a path is readable.
2. Paths are real paths, and only paths that exist have rules: a sandbox cannot mount something on a path that does
   not exist without creating it in the user's folder.
3. The rules are made for each command, because files come and go.
4. Each sandbox has a private folder, which is removed with it.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from glob import glob
from pathlib import Path
from tempfile import gettempdir, mkdtemp
from typing import Final, Literal, NamedTuple, Protocol
from weakref import finalize

from foveal.agent.permissions.protected_paths import (
    is_git_link,
    is_repository,
    protected_files,
    repository_settings,
)
from foveal.user_paths import config_folder, state_folder

# ── The contract, and the private folder ─────────────────────────────────────────────────────────────────

_FOLDER_PREFIX: Final = "foveal-sandbox-"
_UNFINISHED_PREFIX: Final = "foveal-new-sandbox-"
"""A folder has this name until its process holds its lock."""
_ABANDONED_AFTER_S: Final = 3_600.0
"""Younger unfinished folders stay: their process may be about to take the lock."""


class Sandbox(Protocol):
    """Confines commands to a workspace."""

    @property
    def name(self) -> str:
        """Name for the status line."""
        ...

    @property
    def workspace(self) -> Path:
        """The folder in which commands can write."""
        ...

    def wrap(
        self,
        argv: Sequence[str],
        *,
        network: bool = False,
        commits: bool = False,
        reads_only: bool = False,
        unchanged: Collection[str] = (),
    ) -> list[str]:
        """Return the command line that runs a program inside the sandbox, in the workspace. A program that
        `commits` can write in the repositories there; with `reads_only` it cannot write there at all, and it
        cannot change the files `unchanged`."""
        ...


class SandboxFinding(NamedTuple):
    """The sandbox of a workspace, or why there is none."""

    sandbox: Sandbox | None
    why_not: str = ""


class PrivateFolder:
    """A folder with an unpredictable name for temporary files of sandboxed commands.

    It lasts as long as the object, so that a command finds what the one before it left in `/tmp`. A process that
    was killed leaves its folder behind; the next one removes it, because nothing holds its lock.

    Commands can write in two folders of it, and neither lies in the other or in the workspace: a command could
    put a link in place of the inner one, which the next command would get instead."""

    def __init__(self, *, workspace: Path | None = None) -> None:
        _remove_abandoned()
        new = os.path.realpath(mkdtemp(prefix=_UNFINISHED_PREFIX, dir=_place_outside_of(workspace)))
        lock = os.open(os.path.join(new, "empty"), os.O_RDONLY | os.O_CREAT | os.O_EXCL, 0o600)
        _try_lock(lock)
        folder, name = os.path.split(new)
        path = os.path.join(folder, name.replace(_UNFINISHED_PREFIX, _FOLDER_PREFIX, 1))
        os.rename(new, path)
        self.temporary: str = os.path.join(path, "tmp")
        """What commands see as `/tmp`."""
        self.cache: str = os.path.join(path, "cache")
        """What commands see as `~/.cache`."""
        self.empty_file: str = os.path.join(path, "empty")
        """What commands see instead of a hidden file."""
        for writable in (self.temporary, self.cache):
            os.mkdir(writable, mode=0o700)
        finalize(self, _remove, path, lock, os.getpid())

    @property
    def is_whole(self) -> bool:
        """Whether its folders are still there; programs that clean `/tmp` remove them."""
        folders = (self.temporary, self.cache)
        return os.path.isfile(self.empty_file) and all(
            os.path.isdir(folder) and not os.path.islink(folder) for folder in folders
        )


def _place_outside_of(workspace: Path | None) -> str | None:
    """Return where a private folder is made, None for the usual place. The state folder is hidden from commands."""
    if workspace is None or not Path(os.path.realpath(gettempdir())).is_relative_to(workspace):
        return None
    state_folder().mkdir(mode=0o700, parents=True, exist_ok=True)
    return str(state_folder())


def _remove(path: str, lock: int, owner: int) -> None:
    if os.getpid() == owner:  # a fork of the process must not remove the folder that its parent uses
        _delete(path)
        os.close(lock)


def _remove_abandoned() -> None:
    """Remove folders of this user that processes left behind."""
    places = itertools.product((gettempdir(), str(state_folder())), (_FOLDER_PREFIX, _UNFINISHED_PREFIX))
    for path in (path for place, prefix in places for path in glob(os.path.join(place, f"{prefix}*"))):
        with suppress(OSError):
            found = os.lstat(path)
            is_finished = os.path.basename(path).startswith(_FOLDER_PREFIX)
            is_old = time.time() - found.st_mtime >= _ABANDONED_AFTER_S
            if found.st_uid != os.getuid() or not (is_finished or is_old):
                continue
            lock = os.open(os.path.join(path, "empty"), os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            if _try_lock(lock):
                _delete(path)
            os.close(lock)


def _delete(path: str) -> None:
    """Delete a folder, also with folders in it that a command made read-only, such as Go's module cache."""
    with suppress(OSError):  # another program has removed it, or put something else there
        for _, names, _, folder in os.fwalk(path):  # a command that is kept may exchange folders for links
            for name in names:
                with suppress(OSError, ValueError):  # it is a link
                    os.chmod(name, 0o700, dir_fd=folder, follow_symlinks=False)
    shutil.rmtree(path, ignore_errors=True)


def _try_lock(file: int) -> bool:
    """Return whether no other process holds the lock of a file, which this process then holds."""
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


Access = Literal["hidden", "read", "write", "keep"]
"""`keep` is a folder that can be written in, but neither moved nor removed: protected files lie in it."""

# ── Rules for folders ────────────────────────────────────────────────────────────────────────────────────

SECRET_NAMES: Final = (
    ".ssh", ".aws", ".gnupg", ".azure", ".kube", ".docker", ".netrc", ".npmrc", ".pypirc", ".git-credentials",
    ".config/gcloud", ".config/gh", ".password-store", ".mozilla", ".thunderbird",
)  # fmt: skip
"""Paths in the home that hold keys; hidden also where they are links to another place."""
HIDDEN_NAMES: Final = ("snap", "Library")
"""Folders in the home that are hidden like dot-folders: they hold the profiles of browsers and other programs."""
READABLE_IN_HOME: Final = (
    ".gitconfig", ".gitignore", ".gitignore_global", ".config/git/config", ".config/git/ignore",
    ".config/git/attributes", ".editorconfig", ".tool-versions", ".local/bin", ".local/lib", ".local/pipx",
    ".local/share/pipx", ".local/share/uv", ".local/share/mise", ".local/share/pnpm", ".local/share/fnm",
    ".local/share/virtualenvs", ".local/share/rtx", ".virtualenvs", ".pyenv", ".rbenv", ".nvm", ".volta",
    ".fnm", ".asdf", ".sdkman/candidates", ".bun/bin", ".deno/bin", ".cargo/bin", ".cargo/registry",
    ".cargo/git", ".rustup", ".ghcup", ".opam", ".elan", ".juliaup", ".dotnet", ".m2/repository",
    ".nix-profile", ".npm-global", ".yarn", "Library/Python",
)  # fmt: skip
"""Exceptions: toolchains, and the settings of git, without the files in which they keep passwords."""
_SYSTEM_SECRETS: Final = ("/etc/shadow", "/etc/gshadow", "/etc/ssl/private")
_SOCKET_FOLDERS: Final = (
    "/run", "/var/run", "/var/lib/lxd", "/var/lib/incus", "/var/snap", "/var/lib/mysql", "/mnt/wslg",
)  # fmt: skip
"""Folders of sockets: a program that listens there, such as Docker, runs outside of the sandbox."""
_READABLE_IN_RUN: Final = (
    "/run/current-system", "/run/opengl-driver", "/run/systemd/resolve/resolv.conf",
    "/run/systemd/resolve/stub-resolv.conf", "/run/resolvconf/resolv.conf", "/run/NetworkManager/resolv.conf",
)  # fmt: skip
"""The programs of NixOS, and the addresses of name servers: files, because sockets lie beside them."""
_KERNEL_FOLDERS: Final = ("/proc", "/sys", "/dev")
_TEMPORARY_FOLDERS: Final = ("/tmp", "/var/tmp")
_PUBLIC_FOLDERS: Final = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib64",
    "/etc",
    "/opt",
    "/nix",
    "/snap",
    "/System",
)
"""Folders of the system, which hold no secrets of the user and are needed to start programs."""
_MAX_PROTECTED_MOUNTS: Final = 600
"""Most rules for protected files; with more, the workspace is read-only. The time that bubblewrap takes is
quadratic in them: about 0.6 s for 600."""
_MAX_PATH_STEPS: Final = 1_000
"""Most names that are followed on a path with links, which can lead in a circle."""


class AccessRule(NamedTuple):
    """What a command can do with a file, or with a folder and all that is in it."""

    path: str
    access: Access
    source: str = ""
    """The folder that the command sees at `path`, if it is another one."""


def user_homes() -> tuple[Path, ...]:
    """Return the home of the environment and the one of the user's account, which may differ."""
    homes = [os.path.expanduser("~")]
    with suppress(ImportError, KeyError):  # Windows has no such accounts
        import pwd

        homes.append(pwd.getpwuid(os.getuid()).pw_dir)
    real = dict.fromkeys(os.path.realpath(home) for home in homes if os.path.isabs(home))
    return tuple(Path(home) for home in real if os.path.isdir(home))


def workspace_problem(workspace: Path, homes: Iterable[Path]) -> str:
    """Return why commands must not be able to write in a folder, "" if they may."""
    if workspace == Path("/"):
        return "the working folder is the root of the file system"
    if any(workspace == Path(_real(folder)) for folder in (*_TEMPORARY_FOLDERS, *_SOCKET_FOLDERS)):
        return "the working folder is shared by all programs"
    for home in homes:
        if home == workspace:
            return "the working folder is your home folder"
        if home.is_relative_to(workspace):
            return "the working folder contains your home folder"
        if any(workspace.is_relative_to(_real(home / name)) for name in SECRET_NAMES):
            return "the working folder holds keys"
    if any(workspace.is_relative_to(folder) for folder in _KERNEL_FOLDERS):
        return "the working folder belongs to the kernel"
    if any(workspace.is_relative_to(_real(folder)) for folder in (config_folder(), state_folder())):
        return "the working folder holds Foveal's own settings"
    if is_git_link(workspace):
        return "the .git of the working folder is a link, which cannot be protected"
    return ""


def access_rules(
    workspace: Path,
    *,
    homes: Iterable[Path],
    private: PrivateFolder,
    hidden: Iterable[Path] = (),
    commits: bool = False,
    reads_only: bool = False,
    unchanged: Collection[str] = (),
) -> list[AccessRule]:
    """Return the rules for the next command, those for outer folders first.

    `hidden` are further files that the command must not see, such as the store of sessions. A command that
    `commits` can write in the repositories of the workspace, but not in their settings and hooks. With
    `reads_only`, it writes only in its private folder. Of the workspace, it cannot change the files
    `unchanged`."""
    rules: dict[str, AccessRule] = {}
    for rule in (
        *_system_rules(private),
        *(rule for home in homes for rule in _home_rules(home, workspace, private)),
        *(AccessRule(_real(path), "hidden") for path in (config_folder(), state_folder(), *hidden)),
    ):
        rules[rule.path] = rule
    inside = {path: rule for path, rule in rules.items() if workspace in Path(path).parents}
    rules |= {rule.path: rule for rule in _workspace_rules(workspace, inside, unchanged, commits=commits)}
    existing = [rule for rule in rules.values() if os.path.lexists(rule.path)]
    if reads_only:
        existing = [
            rule if rule.source or rule.access == "hidden" else AccessRule(rule.path, "read")
            for rule in existing
        ]
    ordered = sorted(existing, key=lambda rule: (len(Path(rule.path).parts), rule.path))
    return _without_repetitions(ordered)


def _real(path: Path | str) -> str:
    return os.path.realpath(path)


def _system_rules(private: PrivateFolder) -> Iterator[AccessRule]:
    for path in (*_SYSTEM_SECRETS, *_SOCKET_FOLDERS):
        yield AccessRule(_real(path), "hidden")
    for path in _READABLE_IN_RUN:
        yield AccessRule(path, "read")
    for path in _TEMPORARY_FOLDERS:
        yield AccessRule(_real(path), "write", private.temporary)


def _home_rules(home: Path, workspace: Path, private: PrivateFolder) -> Iterator[AccessRule]:
    names = [entry for entry in _entries(home) if entry.name.startswith(".") or entry.name in HIDDEN_NAMES]
    yield from (AccessRule(entry.path, "hidden") for entry in names if not entry.is_symlink())
    for entry in (*names, *_entries(home / ".config")):
        target = Path(_real(entry.path))
        if entry.is_symlink() and not _is_needed(target, home, workspace):
            yield AccessRule(str(target), "hidden")
    for name in SECRET_NAMES:
        real = _real(home / name)
        if not home.is_relative_to(real):
            yield AccessRule(real, "hidden")
    readable = [os.path.join(home, name) for name in READABLE_IN_HOME]
    if environment := os.environ.get("VIRTUAL_ENV"):
        readable.append(os.path.abspath(environment))
    yield from (AccessRule(_real(path), "read") for path in readable if not _is_led_by(workspace, path))
    yield AccessRule(_real(home / ".cache"), "write", private.cache)


def _is_needed(target: Path, home: Path, workspace: Path) -> bool:
    """Return whether the target of a link in the home stays visible: the system, the workspace, folders above."""
    return (
        home.is_relative_to(target)
        or workspace.is_relative_to(target)
        or target.is_relative_to(workspace)
        or any(target.is_relative_to(folder) for folder in (*_PUBLIC_FOLDERS, *_KERNEL_FOLDERS))
    )


def _is_led_by(workspace: Path, path: str) -> bool:
    """Return whether a link in the workspace is on a path: a command can make it lead to what is hidden."""
    names, place = list(Path(path).parts[:0:-1]), Path("/")
    for _ in range(_MAX_PATH_STEPS):
        if not names:
            return False
        step = place.parent if names[-1] == ".." else place / names[-1]
        names.pop()
        if not step.is_symlink():
            place = step
        elif workspace in step.parents:
            return True
        else:
            target = step.readlink()
            place = Path("/") if target.is_absolute() else place
            names += [name for name in reversed(target.parts) if name != "/"]
    return True


def _workspace_rules(
    workspace: Path, outer: Mapping[str, AccessRule], unchanged: Iterable[str], *, commits: bool
) -> Iterator[AccessRule]:
    """Yield the rules for the workspace and the files in it that commands must not change.

    Inside a folder that has a rule in `outer`, there is no other rule: it could show what is hidden."""
    files = [*protected_files(workspace), *(path for path in _own_code() if workspace in Path(path).parents)]
    if commits:
        files = [
            inner
            for path in files
            for inner in (repository_settings(path) if is_repository(path) else [path])
        ]
    ruled = {Path(path) for path in outer}
    closed = ruled.union(map(Path, (*files, *unchanged)))
    outermost = [path for path in closed if closed.isdisjoint(_between(workspace, path))]
    kept = {folder for path in outermost for folder in _between(workspace, path)}
    chosen = [path for path in outermost if path not in ruled]
    if len(chosen) + len(kept) > _MAX_PROTECTED_MOUNTS:
        yield AccessRule(str(workspace), "read")
        return
    yield AccessRule(str(workspace), "write")
    yield from (AccessRule(str(path), "keep") for path in kept)
    yield from (AccessRule(str(path), "read") for path in chosen)


def _between(workspace: Path, path: Path) -> list[Path]:
    """Return the folders below the workspace in which a path lies."""
    return [folder for folder in path.parents if workspace in folder.parents]


def _own_code() -> tuple[str, ...]:
    """Return the folders of Python and of Foveal, which runs files of them outside of the sandbox."""
    return _real(sys.prefix), _real(Path(__file__).parents[2])


def _entries(folder: Path | str) -> list[os.DirEntry[str]]:
    """Return the entries of a folder, none if it cannot be read."""
    with suppress(OSError), os.scandir(folder) as found:
        return list(found)
    return []


def _without_repetitions(rules: Iterable[AccessRule]) -> list[AccessRule]:
    """Leave out rules that say the same as the rule above them."""
    kept: dict[str, AccessRule] = {}
    for rule in rules:
        above = next(
            (kept[str(p)] for p in Path(rule.path).parents if str(p) in kept), AccessRule("/", "read")
        )
        is_same = rule.access == above.access and not (rule.source or above.source)
        if not is_same:
            kept[rule.path] = rule
    return list(kept.values())
