"""Sandbox of Linux: bubblewrap, which starts a command in namespaces of its own.

1. Mounts are made from the outermost folder to the innermost, so the innermost rule wins.
2. A hidden folder is an empty one that cannot be written: a write fails instead of being lost.
3. The command has its own processes, network, users and session, no capabilities, and ends with Foveal.
4. Another command that still runs can exchange a folder of the workspace for a link while bubblewrap mounts, which
   follows links. So the first program inside compares the mounts with those that are meant; see `mount_table`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from foveal.agent.permissions.sandbox.confinement import PrivateFolder
from foveal.agent.permissions.sandbox.file_access import AccessRule, access_rules
from foveal.agent.permissions.sandbox.mount_table import MountTable

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
