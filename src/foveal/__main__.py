"""`python -m foveal` and the installed program run the command `foveal`."""

from __future__ import annotations

import sys

_INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""


def main() -> int:
    """Run one command and return the exit code; Ctrl-C ends it without a word, also while modules are imported."""
    try:
        from foveal.cli.__main__ import main as run_command

        return run_command()
    except KeyboardInterrupt:
        return _INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
