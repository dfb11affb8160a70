"""Runs `foveal` with questions that take keys after a tenth of the usual time.

    python -m support.quick_questions chat …

The real times are in tests of them (`tests/agent/terminal/test_questions.py`). A test that answers questions for
another reason does not wait for them.
"""

from __future__ import annotations

import sys

from foveal.agent.terminal.output import panel_host
from foveal.cli.__main__ import main

if __name__ == "__main__":
    for name in ("SHOWN_S", "QUIET_S", "REPEAT_S", "CHECK_INTERVAL_S"):
        setattr(panel_host, name, getattr(panel_host, name) / 10)
    sys.exit(main())
