"""The sandbox: what a command can read, write and reach, and the programs that enforce it.

    found = find_sandbox(workspace)
    if found.sandbox is not None:
        argv = found.sandbox.wrap(["make", "test"], network=False)
    else:
        print(found.why_not)

1. Commands write only in the workspace and in a temporary folder of their own. They read the rest, without the
   secrets and dot-folders of the home. They have no network unless it is allowed.
2. `file_access` decides that; `bubblewrap` (Linux) and `seatbelt` (macOS) express it in the words of their program.
3. A sandbox is used only if it has started a program here; otherwise `why_not` says what is missing.
"""

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Final

from foveal.agent.permissions.sandbox.bubblewrap import BUBBLEWRAP_PROGRAM, Bubblewrap
from foveal.agent.permissions.sandbox.file_access import (
    Sandbox,
    SandboxFinding,
    user_homes,
    workspace_problem,
)
from foveal.agent.permissions.sandbox.seatbelt import Seatbelt
from foveal.core.wire.safe_print import one_line

__all__ = ["Sandbox", "SandboxFinding", "find_sandbox"]


_PROBE_TIMEOUT_S: Final = 5.0
_INSTALL_COMMANDS: Final = {
    "apt-get": "sudo apt-get install bubblewrap",
    "dnf": "sudo dnf install bubblewrap",
    "pacman": "sudo pacman -S bubblewrap",
    "zypper": "sudo zypper install bubblewrap",
    "apk": "sudo apk add bubblewrap",
}
"""How bubblewrap is installed, by the program that installs it."""
_NAMESPACE_ADVICE: Final = (
    "the kernel or the container does not allow it to create namespaces; "
    "docs/terminal/permissions.md says what helps"
)


def find_sandbox(workspace: Path, *, hidden: Iterable[Path] = ()) -> SandboxFinding:
    """Return the sandbox for a workspace, probed once per process, or why there is none.

    `hidden` are further files that commands must not see."""
    real = Path(os.path.realpath(workspace))
    return _find(real, user_homes(), tuple(hidden), sys.platform)


@cache
def _find(
    workspace: Path, homes: tuple[Path, ...], hidden: tuple[Path, ...], platform: str
) -> SandboxFinding:
    if problem := workspace_problem(workspace, homes):
        return SandboxFinding(None, problem)
    if platform == "linux":
        return _find_bubblewrap(workspace, homes, hidden)
    if platform == "darwin":
        return _tried(Seatbelt(workspace, homes=homes, hidden=hidden))
    return SandboxFinding(None, f"there is none for {platform}")


def _find_bubblewrap(workspace: Path, homes: tuple[Path, ...], hidden: tuple[Path, ...]) -> SandboxFinding:
    program = shutil.which(BUBBLEWRAP_PROGRAM)
    if program is None:
        return SandboxFinding(None, f"bubblewrap is not installed; {_install_advice()}")
    # A link of the project could name any program of the system.
    named = os.path.join(os.path.realpath(os.path.dirname(program)), os.path.basename(program))
    program = os.path.realpath(program)
    if planted := next((path for path in (named, program) if Path(path).is_relative_to(workspace)), ""):
        return SandboxFinding(None, f"{planted} is a file of the project")
    # Bubblewrap before 0.8, and file systems whose mounts look different inside.
    choices = itertools.product((True, False), (False, True))
    found = SandboxFinding(None)
    for is_checked, can_nest in choices:
        found = _tried(
            Bubblewrap(
                workspace,
                program=program,
                homes=homes,
                hidden=hidden,
                can_nest=can_nest,
                is_checked=is_checked,
            )
        )
        if found.sandbox is not None:
            break
    return found


def _install_advice() -> str:
    found = next((command for name, command in _INSTALL_COMMANDS.items() if shutil.which(name)), "")
    return f"`{found}` installs it" if found else "install the package bubblewrap of your distribution"


def _tried(sandbox: Sandbox) -> SandboxFinding:
    """Return a sandbox if it can start a program."""
    program = sandbox.name.partition(",")[0]
    try:
        done = subprocess.run(
            sandbox.wrap([shutil.which("true") or "/usr/bin/true"]),
            cwd=sandbox.workspace,
            env={"PATH": os.defpath},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PROBE_TIMEOUT_S,
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        return SandboxFinding(None, f"{program} does not start: {one_line(str(problem), width=200)}")
    if done.returncode == 0:
        return SandboxFinding(sandbox)
    said = one_line(done.stderr.decode("utf-8", "replace"), width=200)
    advice = f"; {_NAMESPACE_ADVICE}" if "ermi" in said or "namespace" in said else ""
    return SandboxFinding(None, f"{program} does not work here: {said}{advice}")
