"""Whether a sandbox works on this machine, for tests that need one."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from foveal.agent.permissions.sandbox import find_sandbox

with TemporaryDirectory() as _folder:
    WHY_NO_SANDBOX = find_sandbox(Path(_folder)).why_not
"""Why there is none; "" if there is one."""


def shared_folder() -> Path:
    """Return a folder for temporary files that commands in a sandbox share with the machine: not in `/tmp`, where
    the checkout itself may lie."""
    for folder in (Path(sys.prefix), Path.home(), Path("/srv"), Path("/opt")):
        real = folder.resolve()
        is_private = any(real.is_relative_to(private) for private in ("/tmp", "/var/tmp", "/run"))
        if not is_private and os.access(real, os.W_OK):
            return real
    pytest.skip("there is no writable folder outside of /tmp")


needs_sandbox = pytest.mark.skipif(bool(WHY_NO_SANDBOX), reason=f"no sandbox works here: {WHY_NO_SANDBOX}")
