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

from foveal.agent.permissions.sandbox.confinement import Sandbox, SandboxFinding
from foveal.agent.permissions.sandbox.find import find_sandbox

__all__ = ["Sandbox", "SandboxFinding", "find_sandbox"]
