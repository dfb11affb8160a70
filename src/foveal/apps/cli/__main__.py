"""Entry point of `python -m foveal.apps.cli`."""

import sys

from foveal.apps.cli import main

sys.exit(main())
