"""Sandbox of macOS: `sandbox-exec` with a profile in its own language.

1. The last rule of a profile that matches decides, so rules for inner folders come last.
2. Everything that is not named is denied; unix sockets count as network.
3. Paths are parameters of the profile, so that no character of a path can change it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Final

from foveal.agent.permissions.sandbox.file_access import Access, AccessRule, PrivateFolder, access_rules

SEATBELT_PROGRAM: Final = "/usr/bin/sandbox-exec"
_BASE_PROFILE: Final = """\
(version 1)
(deny default)
(allow process-exec)
(allow process-fork)
(allow signal (target same-sandbox))
(allow process-info* (target same-sandbox))
(allow sysctl-read)
(allow ipc-posix-sem)
(allow mach-lookup
  (global-name "com.apple.system.opendirectoryd.libinfo")
  (global-name "com.apple.system.logger")
  (global-name "com.apple.system.notification_center"))
(allow file-read*)
(allow file-write-data (literal "/dev/null") (literal "/dev/zero") (literal "/dev/dtracehelper"))
(allow file-ioctl (literal "/dev/null") (literal "/dev/dtracehelper"))
"""
_NETWORK_PROFILE: Final = """\
(allow network*)
(allow system-socket)
(allow mach-lookup
  (global-name "com.apple.SystemConfiguration.configd")
  (global-name "com.apple.SystemConfiguration.DNSConfiguration")
  (global-name "com.apple.networkd")
  (global-name "com.apple.trustd.agent"))
"""
_OPERATIONS: Final[dict[Access, tuple[tuple[str, str], ...]]] = {
    "hidden": (("deny", "file-read* file-write*"),),
    "read": (("allow", "file-read*"), ("deny", "file-write*")),
    "write": (("allow", "file-read* file-write*"),),
    "keep": (("allow", "file-read* file-write*"),),
}


class Seatbelt:
    """`sandbox-exec` for one workspace; implements `Sandbox`."""

    name = "seatbelt"

    def __init__(self, workspace: Path, *, homes: Iterable[Path], hidden: Iterable[Path] = ()) -> None:
        self.workspace = workspace
        self._homes = tuple(homes)
        self._hidden = tuple(hidden)
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
        if not self._private.is_whole:
            self._private = PrivateFolder(workspace=self.workspace)
        found = access_rules(
            self.workspace,
            homes=self._homes,
            private=self._private,
            hidden=self._hidden,
            commits=commits,
            reads_only=reads_only,
            unchanged=unchanged,
        )
        # It cannot show another folder at a path, so that folder itself is writable, and the path is not.
        rules = [AccessRule(rule.source or rule.path, rule.access) for rule in found]
        rules.sort(key=lambda rule: len(Path(rule.path).parts))
        profile, paths = seatbelt_profile(rules, self.workspace, network=network)
        return [
            SEATBELT_PROGRAM,
            "-p",
            profile,
            *(f"-D{name}={path}" for name, path in paths.items()),
            "/usr/bin/env",
            f"TMPDIR={self._private.temporary}",
            f"XDG_CACHE_HOME={self._private.cache}",
            *argv,
        ]


def seatbelt_profile(
    rules: Sequence[AccessRule], workspace: Path, *, network: bool
) -> tuple[str, dict[str, str]]:
    """Return a profile and the values of its parameters."""
    paths: dict[str, str] = {}
    lines = [_BASE_PROFILE, _NETWORK_PROFILE if network else ""]
    for number, rule in enumerate(rules):
        paths[f"P{number}"] = rule.path
        kind = "subpath" if os.path.isdir(rule.path) else "literal"
        lines += [
            f'({verb} {operations} ({kind} (param "P{number}")))\n'
            for verb, operations in _OPERATIONS[rule.access]
        ]
    # Rules count for paths, so what can be written must stay where it is, whole; to move it is to unlink it.
    lines += [
        f'(deny file-write-unlink (literal (param "P{number}")))\n'
        for number, rule in enumerate(rules)
        if rule.access in ("write", "keep")
    ]
    # A program asks for the folders above its own, which may be hidden.
    for number, folder in enumerate(workspace.parents):
        paths[f"A{number}"] = str(folder)
        lines.append(f'(allow file-read-metadata (literal (param "A{number}")))\n')
    return "".join(lines), paths
