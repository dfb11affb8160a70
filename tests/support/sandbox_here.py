"""Whether a sandbox works on this machine, for tests that need one."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from foveal.permissions.sandbox import find_sandbox

with TemporaryDirectory() as _folder:
    WHY_NO_SANDBOX = find_sandbox(Path(_folder)).why_not
"""Why there is none; "" if there is one."""

needs_sandbox = pytest.mark.skipif(bool(WHY_NO_SANDBOX), reason=f"no sandbox works here: {WHY_NO_SANDBOX}")
