"""The mounts that a sandbox should have, and a check of those it has.

    table = MountTable.of_this_process()
    table.add_bind("/home/ada/project", "/home/ada/project", is_writable=True)
    argv = [*table.check(), "make", "test"]  # started inside the sandbox

1. Mounts are compared by what `/proc/self/mountinfo` says: file system, folder of it, place, and whether it can be
   written. A mount that a link has led elsewhere differs in one of them.
2. Each mount must be one that is meant, as often as it is meant, and of the needed ones none may be missing.
3. The comparison is a program for `/bin/sh`, which commands cannot change: the interpreter of Foveal may lie in the
   workspace.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

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
    """The mounts that are meant: the added ones, those of the machine, read-only; also `/dev` and `/proc`."""

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
