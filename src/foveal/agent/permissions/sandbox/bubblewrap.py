"""Sandbox of Linux: bubblewrap, which starts a command in namespaces of its own.

1. Mounts are made from the outermost folder to the innermost, so the innermost rule wins.
2. A hidden folder is an empty one that cannot be written: a write fails instead of being lost.
3. The command has its own processes, network, users and session, no capabilities, and ends with Foveal.
4. Another command that still runs can exchange a folder of the workspace for a link while bubblewrap mounts, which
   follows links. So the first program inside compares the mounts with those that are meant; see `MountTable`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from foveal.agent.permissions.sandbox.file_access import AccessRule, PrivateFolder, access_rules

BUBBLEWRAP_PROGRAM: Final = "bwrap"
_NAMESPACES: Final = ("--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL")
_SYSTEM: Final = ("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc")
_KERNEL_SETTINGS: Final = (
    "/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/acpi", "/proc/scsi",
    "/proc/dynamic_debug", "/proc/mtrr",
)  # fmt: skip
"""Root can write them without any capability; bubblewrap itself leaves `/proc/sys` writable for root."""
_ENVIRONMENT: Final = ("--setenv", "TMPDIR", "/tmp", "--setenv", "XDG_CACHE_HOME", "/tmp/.cache")


class Bubblewrap:
    """Bubblewrap for one workspace; implements `Sandbox`."""

    def __init__(
        self,
        workspace: Path,
        *,
        program: str,
        homes: Iterable[Path],
        hidden: Iterable[Path] = (),
        can_nest: bool = False,
        is_checked: bool = True,
    ) -> None:
        """With `can_nest`, commands can create user namespaces: bubblewrap before 0.8 cannot forbid it. With
        `is_checked`, a command starts only if all mounts are the ones that are meant."""
        self.name = "bubblewrap" if is_checked else "bubblewrap, unchecked"
        self.workspace = workspace
        self._program = program
        self._homes = tuple(homes)
        self._hidden = tuple(hidden)
        self._users = () if can_nest else ("--unshare-user", "--disable-userns")
        self._is_checked = is_checked
        self._private = PrivateFolder(workspace=workspace)

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
        rules = self._rules(commits=commits, reads_only=reads_only, unchanged=unchanged)
        if not self._private.is_whole or _has_misleading_mount_point(rules):
            self._private = PrivateFolder(workspace=self.workspace)
            rules = self._rules(commits=commits, reads_only=reads_only, unchanged=unchanged)
        kernel_settings = [path for path in _KERNEL_SETTINGS if os.path.lexists(path)]
        return [
            self._program,
            *_NAMESPACES,
            *self._users,
            *(("--share-net",) if network else ()),
            *_SYSTEM,
            *(word for path in kernel_settings for word in ("--ro-bind", path, path)),
            *self._mounts(rules),
            *_ENVIRONMENT,
            "--chdir",
            str(self.workspace),
            "--",
            *(self._check(rules, kernel_settings) if self._is_checked else ()),
            *argv,
        ]

    def _check(self, rules: Sequence[AccessRule], kernel_settings: Sequence[str]) -> list[str]:
        """Return the beginning of a command line that starts the rest of it if the mounts are as they should be."""
        table = MountTable.of_this_process()
        for path in kernel_settings:
            table.add_bind(path, path, is_writable=False)
        for path, access, source in rules:
            if access == "hidden" and os.path.isdir(path):
                table.add_empty(path)
            elif access == "hidden":
                table.add_bind(self._private.empty_file, path, is_writable=False)
            else:
                table.add_bind(source or path, path, is_writable=access != "read")
        return table.check()

    def _rules(self, *, commits: bool, reads_only: bool, unchanged: Collection[str]) -> list[AccessRule]:
        found = access_rules(
            self.workspace,
            homes=self._homes,
            private=self._private,
            hidden=self._hidden,
            commits=commits,
            reads_only=reads_only,
            unchanged=unchanged,
        )
        # Nothing can be mounted on a link; what it leads to has a rule of its own.
        return [rule for rule in found if not os.path.islink(rule.path)]

    def _mounts(self, rules: Sequence[AccessRule]) -> Iterator[str]:
        emptied = []
        for path, access, source in rules:
            if access in ("write", "keep"):  # a mount point cannot be moved
                yield from ("--bind", source or path, path)
            elif access == "read":
                yield from ("--ro-bind", path, path)
            elif os.path.isdir(path):
                emptied.append(path)
                yield from ("--tmpfs", path)
            else:
                yield from ("--ro-bind", self._private.empty_file, path)
        # At the end: until then, bubblewrap creates in them the places for the mounts of inner rules.
        for path in emptied:
            yield from ("--remount-ro", path)


def _has_misleading_mount_point(rules: Sequence[AccessRule]) -> bool:
    """Return whether an earlier command has put something else where bubblewrap mounts an inner folder.

    Of a workspace in `/tmp`, the mount point lies in the private folder, in which commands write. Bubblewrap
    follows links there while the whole file system is still writable for it."""
    replaced = [(Path(rule.path), rule.source) for rule in rules if rule.source]
    mounted = [Path(rule.path) for rule in rules]
    return any(
        not _is_mount_point(os.path.join(source, folder.relative_to(outer)), folder)
        for outer, source in replaced
        for path in mounted
        if outer in path.parents
        for folder in (path, *path.parents)
        if outer in folder.parents
    )


def _is_mount_point(place: str, folder: Path) -> bool:
    """Return whether a folder can be mounted at a place: nothing is there yet, or the same kind of file."""
    if os.path.islink(place):
        return False
    return not os.path.exists(place) or os.path.isdir(place) == os.path.isdir(folder)


_DEVICES: Final = ("null", "zero", "full", "random", "urandom", "tty")
_COVERED_IN_PROC: Final = ("sys", "sysrq-trigger", "irq", "bus")
"""Bubblewrap itself makes these read-only for root."""
_END: Final = "--"
_PROGRAM: Final = r"""
set -f
needed= allowed=
while [ "$1" != -- ]; do needed="$needed|$1|"; shift; done
shift
while [ "$1" != -- ]; do allowed="$allowed|$1|"; shift; done
shift
refuse() {
    echo "foveal: not started, because folders of the project were exchanged at this moment; try again" >&2
    exit 125
}
# 1 number, 2 number of the parent, 3 device, 4 folder, 5 place, 6 options, others up to a dash, kind
compare() {
    [ "$5" = /dev/console ] && return
    case $6 in ro | ro,*) rest="$4 $5 ro|" ;; *) rest="$4 $5 rw|" ;; esac
    by_device="|$3 $rest"
    while [ "$1" != - ]; do shift; done
    case $2-$rest in cgroup*\ ro\|) return ;; esac
    for mount in "$by_device" "|$2 $rest"; do
        case $needed in *"$mount"*) needed="${needed%%"$mount"*}${needed#*"$mount"}"; return ;; esac
        case $allowed in *"$mount"*) allowed="${allowed%%"$mount"*}${allowed#*"$mount"}"; return ;; esac
    done
    refuse
}
mounts=$(/bin/cat /proc/self/mountinfo) || refuse
IFS='
'
for line in $mounts; do
    IFS=' '
    compare $line
done
[ -z "$needed" ] || refuse
exec "$@"
"""


class _Mount(NamedTuple):
    """A line of `/proc/self/mountinfo`, with paths as they are written there."""

    number: str
    parent: str
    device: str
    folder: str
    place: str
    is_writable: bool


class MountTable:
    """The mounts that are meant: the added ones, those of the machine, read-only; also `/dev` and `/proc`.

        table = MountTable.of_this_process()
        table.add_bind("/home/ada/project", "/home/ada/project", is_writable=True)
        argv = [*table.check(), "make", "test"]  # started inside the sandbox

    1. Mounts are compared by what `/proc/self/mountinfo` says: file system, folder of it, place, and whether it can
       be written. A mount that a link has led elsewhere differs in one of them.
    2. Each mount must be one that is meant, as often as it is meant, and of the needed ones none may be missing.
    3. The comparison is a program for `/bin/sh`, which commands cannot change: the interpreter of Foveal may lie in
       the workspace.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        """`lines` are the ones of `/proc/self/mountinfo` outside of the sandbox."""
        self._machine = [_read_mount(line) for line in lines]
        self._visible = [mount for mount in self._machine if not _is_covered(mount, self._machine)]
        self._needed: list[str] = []
        self._allowed = [
            *self._below("", "", is_writable=False),
            "tmpfs / /dev rw",
            "devpts / /dev/pts rw",
            *(self._bound(f"/dev/{name}", f"/dev/{name}", is_writable=True) for name in _DEVICES),
            "proc / /proc rw",
            *(f"proc /{name} /proc/{name} ro" for name in _COVERED_IN_PROC),
        ]

    @classmethod
    def of_this_process(cls) -> MountTable:
        """Return a table with the mounts of the machine as this process sees them."""
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            return cls(file)

    def add_bind(self, source: str, path: str, *, is_writable: bool) -> None:
        """Add a folder or file that is shown at a path, with all that is mounted in it."""
        self._needed.append(self._bound(source, path, is_writable=is_writable))
        self._allowed += self._below(_escaped(source), _escaped(path), is_writable=is_writable)

    def add_empty(self, path: str) -> None:
        """Add an empty folder that cannot be written."""
        self._needed.append(f"tmpfs / {_escaped(path)} ro")

    def check(self) -> list[str]:
        """Return the beginning of a command line that starts the rest of it if the mounts are as meant."""
        return ["/bin/sh", "-c", _PROGRAM, "foveal", *self._needed, _END, *self._allowed, _END]

    def _below(self, source: str, path: str, *, is_writable: bool) -> Iterator[str]:
        """Yield what is mounted in a folder, as it is seen in another one."""
        for mount in self._machine:
            if mount.place.startswith(f"{source}/"):
                # Bubblewrap reaches a covered mount by no path and leaves it as it is.
                can_write = mount.is_writable and (is_writable or mount not in self._visible)
                place = path + mount.place.removeprefix(source)
                yield f"{mount.device} {mount.folder} {place} {'rw' if can_write else 'ro'}"

    def _bound(self, source: str, path: str, *, is_writable: bool) -> str:
        inner = _escaped(source)
        above = max(
            (mount for mount in self._visible if _is_in(inner, mount.place)),
            key=lambda mount: len(mount.place),
        )
        below = inner.removeprefix(above.place).strip("/")
        folder = "/".join((above.folder.rstrip("/"), below)) if below else above.folder
        mode = "rw" if is_writable and above.is_writable else "ro"
        return f"{above.device} {folder} {_escaped(path)} {mode}"


def _read_mount(line: str) -> _Mount:
    number, parent, device, folder, place, options, *_ = line.split(" ")
    return _Mount(number, parent, device, folder, place, is_writable="ro" not in options.split(","))


def _is_covered(mount: _Mount, every: Sequence[_Mount]) -> bool:
    """Return whether another mount, at its place or above it, hides a mount."""
    by_number = {other.number: other for other in every}
    above, at = {mount.number}, mount
    while (at := by_number.get(at.parent, at)).number not in above:
        above.add(at.number)
    return any(_is_in(mount.place, other.place) and other.number not in above for other in every)


def _is_in(path: str, place: str) -> bool:
    return path == place or path.startswith(f"{place.rstrip('/')}/")


def _escaped(path: str) -> str:
    r"""Return a path as `mountinfo` writes it: with `\040` for a space."""
    return re.sub(r"[ \t\n\\]", lambda found: f"\\{ord(found[0]):03o}", path)
