"""`python -m foveal` runs the command `foveal`."""

from __future__ import annotations

import sys

from foveal.cli.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
