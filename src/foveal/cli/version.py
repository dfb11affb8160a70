"""The version with the commit that runs: of a checkout by git, of an installation from git by its metadata.

A package from a registry has no commit: its version names it.
"""

from __future__ import annotations

import json
import subprocess
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

from foveal import __version__

GIT_TIMEOUT_S: Final = 5
COMMIT_CHARS: Final = 10
_ROOT: Final = Path(__file__).resolve().parents[3]
"""The checkout, if Foveal runs from one."""


def version_text(root: Path = _ROOT) -> str:
    """Return the version, such as `0.2.0 (commit 8d2d448f5a, changed)`."""
    commit = _checkout_commit(root) if (root / "pyproject.toml").exists() else _installed_commit()
    return f"{__version__} (commit {commit})" if commit else __version__


def _checkout_commit(root: Path) -> str:
    """Return the commit of a checkout and whether its files are changed; "" without git, or outside of one."""
    describe = ["describe", "--always", "--dirty", "--exclude=*", f"--abbrev={COMMIT_CHARS}"]
    if not (root / ".git").exists():  # a file in a work tree
        return ""
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", "-C", root, *describe],
            capture_output=True,
            encoding="utf-8",
            timeout=GIT_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip().replace("-dirty", ", changed")


def _installed_commit() -> str:
    """Return the commit that an installer has noted for a package from git, else ""."""
    try:
        origin = json.loads(distribution("foveal").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        return ""
    return str(origin.get("vcs_info", {}).get("commit_id", ""))[:COMMIT_CHARS]
